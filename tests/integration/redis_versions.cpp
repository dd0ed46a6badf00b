// A version gate on a real Redis keeps its promises.

#include <idem/version_gate.hpp>

#include "support/catch.hpp"
#include "support/redis_world.hpp"
#include "support/version_promises.hpp"

namespace redis_versions_test {

using namespace idem_test;

TEST_CASE("Redis: a version gate keeps its promises", "[integration][redis][versions]") {
    RedisCli cli(shared_redis().url());
    RedisWorld world(shared_redis().url(), cli);
    gates_keep_their_promises(world);
}

TEST_CASE("Redis: below the version of a process that died nothing lands",
          "[integration][redis][versions][fork]") {
    RedisCli cli(shared_redis().url());
    RedisWorld world(shared_redis().url(), cli);
    dead_handlers_hold_lower_versions_back(
        world, [&] { return idem::RedisStore(world.options(shared_redis().url())); });
}

}  // namespace redis_versions_test
