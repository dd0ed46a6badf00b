#ifndef IDEM_TESTS_ODR_EXERCISE_HPP
#define IDEM_TESTS_ODR_EXERCISE_HPP

#include <chrono>
#include <utility>
#include <variant>

#include <idem/idem.hpp>
#include <idem/testing/model_store.hpp>

#include "../support/eventually.hpp"

// One use of the library that reaches its inline state: random bytes, a guard, its heartbeat, a
// fingerprint. `static`, so that each program and shared object runs its own copy and not the
// first one the loader met.
[[nodiscard]] static inline bool exercise() {
    const idem::testing::ModelStore store({});
    idem::IdempotencyGuard guard(store, {.lease = std::chrono::milliseconds{60}});
    const auto request = idem::Fingerprint::of("order", 7);
    const idem::Key key{.scope = "odr", .id = "1"};
    if (guard.run(key, request, [] { return 7; }).value() != 7) return false;
    if (!guard.run(key, request, [] { return 8; }).replayed()) return false;

    // Held until its lease has been renewed, or was lost for want of time.
    auto answer = guard.claim<int>({.scope = "odr", .id = "2"}, request);
    auto& claim = std::get<idem::Claim<int>>(answer);
    const auto lease_end = [&] { return guard.find(claim.key())->header.lease_end; };
    const auto first = lease_end();
    if (!idem_test::eventually([&] { return !claim.held() || lease_end() != first; })) return false;
    return std::move(claim).complete(1).value() == 1;
}

#endif
