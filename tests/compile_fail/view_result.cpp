// A view of bytes that nobody keeps is no result.
// expect: no codec for the handler's result type. Specialise idem::Codec
#include <string>
#include <string_view>

#include <idem/guard.hpp>
#include <idem/memory/store.hpp>

int main() {
    idem::IdempotencyGuard guard(idem::MemoryStore{});
#ifdef MUST_FAIL
    const auto handler = [] { return std::string_view("done"); };
#else
    const auto handler = [] { return std::string("done"); };
#endif
    return guard.run({.scope = "s", .id = "1"}, {}, handler).has_value() ? 0 : 1;
}
