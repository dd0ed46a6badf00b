// What a cache answers need not queue up: it goes over the store that combines.
// expect: CachedStore goes over CombiningStore
#include <idem/layered/cached.hpp>
#include <idem/layered/combining.hpp>
#include <idem/memory/store.hpp>

using Memory = idem::MemoryStore;

int main() {
#ifdef MUST_FAIL
    idem::CombiningStore<idem::CachedStore<Memory>> store{idem::CachedStore<Memory>{Memory()}};
#else
    idem::CachedStore<idem::CombiningStore<Memory>> store{idem::CombiningStore<Memory>{Memory()}};
#endif
    return store.purge(1).removed == 0 ? 0 : 1;
}
