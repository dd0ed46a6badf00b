// One queue before a store is enough.
// expect: CombiningStore over CombiningStore
#include <idem/layered/combining.hpp>
#include <idem/memory/store.hpp>

using Once = idem::CombiningStore<idem::MemoryStore>;

int main() {
#ifdef MUST_FAIL
    idem::CombiningStore<Once> store{Once{idem::MemoryStore()}};
#else
    Once store{idem::MemoryStore()};
#endif
    return store.purge(1).removed == 0 ? 0 : 1;
}
