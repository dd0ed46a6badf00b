// A reaper on a real PostgreSQL keeps its promises.

#include <idem/reaper.hpp>

#include "support/catch.hpp"
#include "support/postgres_world.hpp"
#include "support/reaper_promises.hpp"

namespace postgres_reaper_test {

using namespace idem_test;

TEST_CASE("PostgreSQL: a reaper keeps its promises", "[integration][postgres][reaper]") {
    PostgresBench bench(shared_server().conninfo(), shared_server().conninfo());
    reapers_keep_their_promises(bench);
}

}  // namespace postgres_reaper_test
