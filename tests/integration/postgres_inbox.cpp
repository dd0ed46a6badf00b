// An inbox on a real PostgreSQL keeps its promises.

#include <idem/inbox.hpp>

#include "support/catch.hpp"
#include "support/inbox_promises.hpp"
#include "support/postgres_world.hpp"

namespace postgres_inbox_test {

using namespace idem_test;

TEST_CASE("PostgreSQL: an inbox keeps its promises", "[integration][postgres][inbox]") {
    PostgresBench bench(shared_server().conninfo(), shared_server().conninfo());
    inboxes_keep_their_promises(bench);
}

TEST_CASE("PostgreSQL: a message that kills its consumers is set aside after so many",
          "[integration][postgres][inbox][fork]") {
    PostgresBench bench(shared_server().conninfo(), shared_server().conninfo());
    consumers_that_are_killed_are_counted(
        bench, [&] { return idem::PostgresStore(bench.options(shared_server().conninfo())); });
}

}  // namespace postgres_inbox_test
