// A real PostgreSQL is asked for every promise of a store: at each isolation level that a session
// may have by default, and behind a pooler that keeps nothing of a session.

#include <random>
#include <string>

#include "support/catch.hpp"
#include "support/held_to_promises.hpp"
#include "support/postgres_world.hpp"

namespace postgres_conformance_test {

using idem_test::PostgresBench;
using idem_test::PostgresWorld;

void ask(const std::string& what, const std::string& conninfo, std::uint64_t seed,
         std::size_t histories, bool look_first = false) {
    if (what != "pgbouncer")
        REQUIRE(idem_test::Sql(conninfo)("SHOW transaction_isolation") == what);
    PostgresBench bench(idem_test::shared_server().conninfo(), conninfo, 16, look_first);
    idem_test::held_to_promises(what, [&] { return PostgresWorld(bench); },
                                {.seed = seed, .histories = histories, .shrinks = 200});
}

std::string at_level(const std::string& level) {
    return idem_test::shared_server().conninfo(
        "options='-c default_transaction_isolation=" + level + "'");
}

TEST_CASE("conformance: R124 PostgreSQL keeps every promise", "[integration][postgres]") {
    ask("read committed", at_level("read\\\\ committed"), 1, 100);
}

TEST_CASE("conformance: PostgreSQL at REPEATABLE READ, looking before it claims",
          "[integration][postgres]") {
    ask("repeatable read", at_level("repeatable\\\\ read"), std::random_device{}(), 60, true);
}

TEST_CASE("conformance: PostgreSQL at SERIALIZABLE", "[integration][postgres]") {
    ask("serializable", at_level("serializable"), std::random_device{}(), 60);
}

TEST_CASE("conformance: PostgreSQL behind pgbouncer", "[integration][postgres]") {
    const idem_test::Pgbouncer pooler(idem_test::shared_server());
    ask("pgbouncer", pooler.conninfo(), std::random_device{}(), 60);
}

}  // namespace postgres_conformance_test
