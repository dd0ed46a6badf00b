// Tasks on a real PostgreSQL, as records, keep their promises.

#include <idem/task_records.hpp>

#include "support/catch.hpp"
#include "support/postgres_world.hpp"
#include "support/task_promises.hpp"

namespace postgres_task_records_test {

using namespace idem_test;

TEST_CASE("PostgreSQL: tasks keep their promises", "[integration][postgres][tasks]") {
    PostgresBench bench(shared_server().conninfo(), shared_server().conninfo());
    tasks_keep_their_promises(bench);
}

}  // namespace postgres_task_records_test
