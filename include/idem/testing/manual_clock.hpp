#ifndef IDEM_TESTING_MANUAL_CLOCK_HPP
#define IDEM_TESTING_MANUAL_CLOCK_HPP

#include <atomic>
#include <cstdint>
#include <memory>

#include <idem/clock.hpp>

namespace idem::inline v0_1::testing {

/// A clock that stands still until told otherwise, so that no test sleeps for a lease to lapse.
/// A handle: copies show and move the same time, from any thread. Give it to any store that takes
/// a `StoreClock`.
class ManualClock {
public:
    /// 2024-01-01 00:00:00 UTC: realistic, so that a store that mixes up units is found out.
    static constexpr Instant start{std::chrono::sys_days{std::chrono::year{2024} / 1 / 1}};

    explicit ManualClock(Instant at = start)
        : micros_(std::make_shared<std::atomic<std::int64_t>>(at.time_since_epoch().count())) {}

    [[nodiscard]] Instant now() const noexcept { return Instant(Duration(micros_->load())); }
    [[nodiscard]] Instant operator()() const noexcept { return now(); }

    /// Negative to jump back, as the clock of a real server may.
    void advance(Duration by) const noexcept { micros_->fetch_add(by.count()); }

private:
    std::shared_ptr<std::atomic<std::int64_t>> micros_;
};

}  // namespace idem::inline v0_1::testing

#endif
