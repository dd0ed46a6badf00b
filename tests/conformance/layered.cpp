// A store over a store keeps every promise of the one beneath.

#include <iostream>
#include <random>

#include "support/catch.hpp"
#include "support/held_to_promises.hpp"
#include "support/layered_world.hpp"

namespace layered_test {

using idem_test::CachedWorld;
using idem_test::CombiningWorld;
using idem_test::ContentWorld;
using idem_test::EncryptedWorld;
using idem_test::MemoryWorld;
using idem_test::TieredWorld;

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

TEST_CASE("conformance: the combining in-memory store keeps every promise", "[conformance]") {
    idem_test::held_to_promises("combining memory", [] { return CombiningWorld<MemoryWorld>(); },
                                {.seed = 1});
}

TEST_CASE("conformance: two layers in memory keep every promise", "[conformance]") {
    using World = TieredWorld<MemoryWorld>;
    for (const std::uint64_t seed : {std::uint64_t{1}, std::uint64_t{std::random_device{}()}})
        idem_test::held_to_promises("tiered memory", [] { return World(); }, {.seed = seed});
    std::cout << "  answered by the front: " << World::hits << "\n";
    CHECK(World::hits > 0);
}

TEST_CASE("conformance: a store that looks out for equal content keeps every promise",
          "[conformance]") {
    using World = ContentWorld<MemoryWorld>;
    idem_test::held_to_promises("memory with content watched", [] { return World(); }, {.seed = 1});
    CHECK(World::watched > 0);
}

TEST_CASE("conformance: all layers over one another keep every promise", "[conformance]") {
    using World = CachedWorld<EncryptedWorld<TieredWorld<CombiningWorld<MemoryWorld>>>>;
    idem_test::held_to_promises("all layers", [] { return World(); }, {.seed = 1});
}

}  // namespace layered_test
