// Stores over a real PostgreSQL keep every promise of it.

#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <idem/idem.hpp>

#include "support/catch.hpp"
#include "support/held_to_promises.hpp"
#include "support/layered_world.hpp"
#include "support/postgres_world.hpp"

namespace postgres_layers_test {

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
    const std::string conninfo = idem_test::shared_server().conninfo();
    PostgresBench bench(conninfo, conninfo);
    World world(bench);
    CHECK(world.answers_repeats());
}

TEST_CASE("combining on PostgreSQL: 64 threads need an eighth of the statements at most",
          "[integration][postgres]") {
    const std::string conninfo = idem_test::shared_server().conninfo();
    PostgresBench bench(conninfo, conninfo, 8);
    using Combining = idem::CombiningStore<idem::PostgresStore>;
    const Combining store(bench.store());
    // Its statements may take a minute here, and waiting for others as long again.
    idem::IdempotencyGuard<Combining> guard(store, {.lease = std::chrono::minutes{10}});
    std::atomic<int> ready{0};
    std::atomic<int> wrong{0};
    std::vector<std::jthread> threads;
    for (int t = 0; t < 64; ++t)
        threads.emplace_back([&, t] {
            ++ready;
            while (ready < 64) std::this_thread::yield();
            for (int i = 0; i < 20; ++i) {
                const std::string id = std::to_string(t) + "-" + std::to_string(i);
                for (const bool first : {true, false}) {
                    const auto outcome = guard.run(idem::Key{"s", id}, {}, [&] { return id; });
                    if (outcome.executed() != first || outcome.value() != id) ++wrong;
                }
            }
        });
    for (auto& thread : threads) thread.join();
    CHECK(wrong == 0);
    const auto usage = store.usage();
    CHECK(usage.items == 64 * 20 * 3);
    INFO(usage.items << " operations, " << usage.batches << " calls of the store");
    CHECK(usage.batches * 8 <= usage.items);
}

}  // namespace postgres_layers_test
