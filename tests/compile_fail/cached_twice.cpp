// A store is cached once: two caches would add up their ages.
// expect: idem: this store is cached already
#include <idem/layered/cached.hpp>
#include <idem/memory/store.hpp>

using Once = idem::CachedStore<idem::MemoryStore>;

int main() {
#ifdef MUST_FAIL
    using Store = idem::CachedStore<Once>;
    Store store{Once{idem::MemoryStore()}};
#else
    Once store{idem::MemoryStore()};
#endif
    return store.purge(1).removed == 0 ? 0 : 1;
}
