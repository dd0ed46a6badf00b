// A store over a store keeps every promise of the one beneath.

#include <iostream>
#include <random>

#include "support/catch.hpp"
#include "support/held_to_promises.hpp"
#include "support/layered_world.hpp"

namespace {

using idem_test::CachedWorld;
using idem_test::EncryptedWorld;
using idem_test::MemoryWorld;

TEST_CASE("conformance: the encrypted in-memory store keeps every promise", "[conformance]") {
    for (const std::uint64_t seed : {std::uint64_t{1}, std::uint64_t{std::random_device{}()}})
        idem_test::held_to_promises("encrypted memory",
                                    [] { return EncryptedWorld<MemoryWorld>(); }, {.seed = seed});
}

TEST_CASE("conformance: the cached in-memory store keeps every promise", "[conformance]") {
    using World = CachedWorld<MemoryWorld>;
    for (const std::uint64_t seed : {std::uint64_t{1}, std::uint64_t{std::random_device{}()}})
        idem_test::held_to_promises("cached memory", [] { return World(); }, {.seed = seed});
    std::cout << "  answered by the cache: " << World::hits << "\n";
    CHECK(World::hits > 0);
}

TEST_CASE("conformance: a cache over encryption keeps every promise", "[conformance]") {
    using World = CachedWorld<EncryptedWorld<MemoryWorld>>;
    idem_test::held_to_promises("cached and encrypted memory", [] { return World(); }, {.seed = 1});
}

}  // namespace
