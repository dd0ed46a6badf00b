// A store is encrypted once: a second time would only cost, and hide which keys are needed.
// expect: idem: this store is encrypted already
#include <idem/layered/encrypted.hpp>
#include <idem/memory/store.hpp>

using Once = idem::EncryptedStore<idem::MemoryStore>;

int main() {
    const idem::EncryptionKeys keys(1, {{1, "0123456789abcdef0123456789abcdef"}});
#ifdef MUST_FAIL
    using Store = idem::EncryptedStore<Once>;
    Store store(Once(idem::MemoryStore(), keys), keys);
#else
    Once store(idem::MemoryStore(), keys);
#endif
    return store.purge(1).removed == 0 ? 0 : 1;
}
