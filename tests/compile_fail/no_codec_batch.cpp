// The same for a batch.
// expect: no codec for the handler's result type. Specialise idem::Codec
#include <cstddef>
#include <vector>

#include <idem/guard.hpp>
#include <idem/memory/store.hpp>

struct Receipt {
    int number = 0;
};

int main() {
    idem::IdempotencyGuard guard(idem::MemoryStore{});
    const std::vector<idem::BatchCall> calls{{.key = {.scope = "s", .id = "1"}}};
#ifdef MUST_FAIL
    const auto handler = [](idem::Execution&, std::size_t) { return Receipt{}; };
#else
    const auto handler = [](idem::Execution&, std::size_t) { return Receipt{}.number; };
#endif
    return static_cast<int>(guard.run_batch(calls, handler).size()) - 1;
}
