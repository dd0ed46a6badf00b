// Goal: what stands on the port works over every store of stores, and over one behind AnyStore.
// Method: the promises of locks and gates again, but for those that only wait for real leases.

#include <idem/any_store.hpp>

#include "support/catch.hpp"
#include "support/layered_world.hpp"
#include "support/lease_promises.hpp"
#include "support/version_promises.hpp"

using namespace idem_test;

namespace worker_layers_test {

class AnyMemoryWorld : public MemoryWorld {
public:
    [[nodiscard]] idem::AnyStore& store() { return any_; }

private:
    idem::AnyStore any_{MemoryWorld::store()};
};

using Encrypted = EncryptedWorld<CombiningWorld<MemoryWorld>>;
using Cached = CachedWorld<MemoryWorld>;
using Tiered = TieredWorld<MemoryWorld>;

TEMPLATE_TEST_CASE("a lease lock keeps its promises over a store of stores", "[lease]", Encrypted,
                   Cached, Tiered, AnyMemoryWorld) {
    TestType world;
    locks_are_held_by_one(world);
    releases_are_bounded(world);
}

TEMPLATE_TEST_CASE("a version gate keeps its promises over a store of stores", "[versions]",
                   Encrypted, Cached, Tiered, AnyMemoryWorld) {
    TestType world;
    gates_keep_their_promises(world);
}

}  // namespace worker_layers_test
