// The same for a claim whose result comes later.
// expect: no codec for this result type
#include <variant>

#include <idem/guard.hpp>
#include <idem/memory/store.hpp>

struct Receipt {
    int number = 0;
};

int main() {
    idem::IdempotencyGuard guard(idem::MemoryStore{});
#ifdef MUST_FAIL
    const auto claim = guard.claim<Receipt>({.scope = "s", .id = "1"}, {});
#else
    const auto claim = guard.claim<int>({.scope = "s", .id = "1"}, {});
#endif
    return static_cast<int>(claim.index());
}
