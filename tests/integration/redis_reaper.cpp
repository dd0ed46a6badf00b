// A reaper on a real Redis keeps its promises.

#include <idem/reaper.hpp>

#include "support/catch.hpp"
#include "support/reaper_promises.hpp"
#include "support/redis_world.hpp"

namespace redis_reaper_test {

using namespace idem_test;

TEST_CASE("Redis: a reaper keeps its promises", "[integration][redis][reaper]") {
    RedisCli cli(shared_redis().url());
    RedisWorld world(shared_redis().url(), cli);
    reapers_keep_their_promises(world);
}

}  // namespace redis_reaper_test
