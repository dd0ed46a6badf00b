// A type that cannot be stored: the message says what to specialise.
// expect: no codec for the handler's result type. Specialise idem::Codec
#include <tuple>

#include <idem/guard.hpp>
#include <idem/memory/store.hpp>

struct Receipt {
    int number = 0;
#ifndef MUST_FAIL
    static constexpr auto idem_fields = std::tuple{&Receipt::number};
#endif
};

int main() {
    idem::IdempotencyGuard guard(idem::MemoryStore{});
    return guard.run({.scope = "s", .id = "1"}, {}, [] { return Receipt{}; }).value().number;
}
