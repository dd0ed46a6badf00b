// An inbox on a real Redis keeps its promises.

#include <idem/inbox.hpp>

#include "support/catch.hpp"
#include "support/inbox_promises.hpp"
#include "support/redis_world.hpp"

namespace redis_inbox_test {

using namespace idem_test;

TEST_CASE("Redis: an inbox keeps its promises", "[integration][redis][inbox]") {
    RedisCli cli(shared_redis().url());
    RedisWorld world(shared_redis().url(), cli);
    inboxes_keep_their_promises(world);
}

TEST_CASE("Redis: a message that kills its consumers is set aside after so many",
          "[integration][redis][inbox][fork]") {
    RedisCli cli(shared_redis().url());
    RedisWorld world(shared_redis().url(), cli);
    consumers_that_are_killed_are_counted(
        world, [&] { return idem::RedisStore(world.options(shared_redis().url())); });
}

}  // namespace redis_inbox_test
