// What has not the operations of the port is no store.
// expect: constraint
#include <idem/guard.hpp>
#include <idem/memory/store.hpp>

struct Map {
    void claim(int) {}
};

int main() {
#ifdef MUST_FAIL
    using Store = Map;
#else
    using Store = idem::MemoryStore;
#endif
    idem::IdempotencyGuard<Store> guard(Store{});
    return guard.options().heartbeat ? 0 : 1;
}
