// A version gate on a real PostgreSQL keeps its promises.

#include <string>

#include <idem/version_gate.hpp>

#include "support/catch.hpp"
#include "support/postgres_world.hpp"
#include "support/version_promises.hpp"

namespace postgres_versions_test {

using namespace idem_test;

PostgresBench make_bench() {
    return PostgresBench(shared_server().conninfo(), shared_server().conninfo());
}

TEST_CASE("PostgreSQL: a version gate keeps its promises", "[integration][postgres][versions]") {
    auto bench = make_bench();
    gates_keep_their_promises(bench);
}

TEST_CASE("PostgreSQL: below the version of a process that died nothing lands",
          "[integration][postgres][versions][fork]") {
    auto bench = make_bench();
    dead_handlers_hold_lower_versions_back(
        bench, [&] { return idem::PostgresStore(bench.options(shared_server().conninfo())); });
}

}  // namespace postgres_versions_test
