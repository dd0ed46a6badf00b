// The in-memory store is asked for every promise of a store, with a seed that is printed.

#include <iostream>
#include <random>
#include <sstream>
#include <string>

#include <idem/memory/store.hpp>
#include <idem/testing/conformance.hpp>
#include <idem/testing/manual_clock.hpp>

#include "support/catch.hpp"

namespace {

namespace conformance = idem::testing::conformance;

struct World {
    explicit World(idem::MemoryOptions options) : made((options.clock = clock, options)) {}

    idem::testing::ManualClock clock{};
    idem::MemoryStore made;

    idem::MemoryStore& store() { return made; }
    void advance(idem::Duration by) { clock.advance(by); }
    idem::Instant now() { return clock.now(); }
};

void ask(const idem::MemoryOptions& options, std::uint64_t seed) {
    const auto report = conformance::run([&] { return World(options); }, {.seed = seed});
    std::ostringstream text;
    report.print(text);
    std::cout << text.str();
    INFO(text.str());
    CHECK(report.ok());
}

TEST_CASE("conformance: the in-memory store keeps every promise", "[conformance][memory]") {
    std::random_device device;
    ask({}, 1);
    ask({.bytes_max = 0, .reserve = 10'000}, device());
}

}  // namespace
