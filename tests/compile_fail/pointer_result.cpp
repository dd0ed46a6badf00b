// A pointer of another process, or of yesterday, is no result.
// expect: a handler returns a value
#include <idem/guard.hpp>
#include <idem/memory/store.hpp>

int main() {
    idem::IdempotencyGuard guard(idem::MemoryStore{});
#ifdef MUST_FAIL
    const auto handler = []() -> const char* { return "done"; };
#else
    const auto handler = [] { return std::string("done"); };
#endif
    return guard.run({.scope = "s", .id = "1"}, {}, handler).has_value() ? 0 : 1;
}
