// A handler takes nothing, or its Execution.
// expect: no matching (member )?function for call to|no matching function
#include <idem/guard.hpp>
#include <idem/memory/store.hpp>

int main() {
    idem::IdempotencyGuard guard(idem::MemoryStore{});
#ifdef MUST_FAIL
    const auto handler = [](int attempt) { return attempt; };
#else
    const auto handler = [](idem::Execution& execution) { return execution.attempt(); };
#endif
    return guard.run({.scope = "s", .id = "1"}, {}, handler).value() == 1 ? 0 : 1;
}
