// A reference that is replayed would refer to what is gone.
// expect: a handler returns a value
#include <idem/guard.hpp>
#include <idem/memory/store.hpp>

int shared = 1;

#ifdef MUST_FAIL
int& handler() {
    return shared;
}
#else
int handler() {
    return shared;
}
#endif

int main() {
    idem::IdempotencyGuard guard(idem::MemoryStore{});
    return guard.run({.scope = "s", .id = "1"}, {}, handler).value();
}
