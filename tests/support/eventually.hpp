#ifndef IDEM_TESTS_SUPPORT_EVENTUALLY_HPP
#define IDEM_TESTS_SUPPORT_EVENTUALLY_HPP

#include <chrono>
#include <thread>

#include <idem/clock.hpp>

namespace idem_test {

/// Looks until something comes true; false where it never does. No test depends on how soon: this
/// is the one place that sleeps, between two looks, and a hang ends after minutes.
template <class Predicate>
[[nodiscard]] bool eventually(Predicate&& predicate) {
    const auto end = idem::LocalClock::now() + std::chrono::minutes{2};
    while (!predicate()) {
        if (idem::LocalClock::now() > end) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    return true;
}

/// Waits until this machine's clock has passed `time` from now. Leases held here end by that clock,
/// which no test can move by hand.
inline void outlast(idem::Duration time) {
    const auto end = idem::LocalClock::now() + time;
    (void)eventually([&] { return idem::LocalClock::now() > end; });
}

}  // namespace idem_test

#endif
