// Stores over a real PostgreSQL keep every promise of it.

#include <random>

#include "support/catch.hpp"
#include "support/held_to_promises.hpp"
#include "support/layered_world.hpp"
#include "support/postgres_world.hpp"

namespace {

using idem_test::CachedWorld;
using idem_test::CombiningWorld;
using idem_test::EncryptedWorld;
using idem_test::PostgresBench;
using idem_test::PostgresWorld;

template <class World>
void ask(const std::string& what, std::uint64_t seed) {
    const std::string conninfo = idem_test::shared_server().conninfo();
    PostgresBench bench(conninfo, conninfo);
    idem_test::held_to_promises(what, [&] { return World(bench); },
                                {.seed = seed, .histories = 60, .shrinks = 200});
}

TEST_CASE("conformance: an encrypted and combined PostgreSQL keeps every promise",
          "[integration][postgres]") {
    ask<EncryptedWorld<CombiningWorld<PostgresWorld>>>("encrypted and combined PostgreSQL",
                                                       std::random_device{}());
}

TEST_CASE("conformance: a cached PostgreSQL keeps every promise", "[integration][postgres]") {
    using World = CachedWorld<PostgresWorld>;
    ask<World>("cached PostgreSQL", std::random_device{}());
    CHECK(World::hits > 0);
}

}  // namespace
