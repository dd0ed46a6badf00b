// The in-memory store is asked for every promise of a store, with a seed that is printed.

#include <random>

#include <idem/memory/store.hpp>
#include <idem/testing/manual_clock.hpp>

#include "support/catch.hpp"
#include "support/held_to_promises.hpp"

namespace memory_test {

struct World {
    explicit World(idem::MemoryOptions options) : made((options.clock = clock, options)) {}

    idem::testing::ManualClock clock{};
    idem::MemoryStore made;

    idem::MemoryStore& store() { return made; }
    void advance(idem::Duration by) { clock.advance(by); }
    idem::Instant now() { return clock.now(); }
};

void ask(const idem::MemoryOptions& options, std::uint64_t seed) {
    idem_test::held_to_promises("memory", [&] { return World(options); }, {.seed = seed});
}

TEST_CASE("conformance: the in-memory store keeps every promise", "[conformance][memory]") {
    std::random_device device;
    ask({}, 1);
    ask({.bytes_max = 0, .reserve = 10'000}, device());
}

}  // namespace memory_test
