// The back of two layers is the truth, and a cache is not.
// expect: the back must be the truth
#include <idem/layered/cached.hpp>
#include <idem/layered/tiered.hpp>
#include <idem/memory/store.hpp>
#include <idem/testing/memory_front.hpp>

using Front = idem::testing::MemoryFront;
using Memory = idem::MemoryStore;

int main() {
    const Front front{idem::testing::ManualClock()};
#ifdef MUST_FAIL
    idem::TieredStore store(front, idem::CachedStore<Memory>{Memory()});
#else
    idem::CachedStore store(idem::TieredStore<Front, Memory>(front, Memory()));
#endif
    return store.purge(1).removed == 0 ? 0 : 1;
}
