// Whoever drops the answer does not learn that nothing ran.
// expect: nodiscard|ignoring return value
#include <idem/guard.hpp>
#include <idem/memory/store.hpp>

int main() {
    idem::IdempotencyGuard guard(idem::MemoryStore{});
#ifdef MUST_FAIL
    guard.run({.scope = "s", .id = "1"}, {}, [] { return 1; });
    return 0;
#else
    return guard.run({.scope = "s", .id = "1"}, {}, [] { return 0; }).value();
#endif
}
