// Tasks on a real Redis keep their promises.

#include <idem/task_records.hpp>

#include "support/catch.hpp"
#include "support/redis_world.hpp"
#include "support/task_promises.hpp"

namespace redis_task_records_test {

using namespace idem_test;

TEST_CASE("Redis: tasks keep their promises", "[integration][redis][tasks]") {
    RedisCli cli(shared_redis().url());
    RedisWorld world(shared_redis().url(), cli);
    tasks_keep_their_promises(world);
}

}  // namespace redis_task_records_test
