#ifndef IDEM_CLOCK_HPP
#define IDEM_CLOCK_HPP

#include <chrono>
#include <cstdint>
#include <ctime>
#include <functional>

namespace idem::inline v0_1 {

/// The one unit of every duration and instant: microseconds in 64 bits.
using Duration = std::chrono::microseconds;

/// A moment by the clock of a store (microseconds since 1970 as that store counts them). Zero
/// stands for "not yet". Instants of two stores, and this machine's clock, are never compared.
using Instant = std::chrono::sys_time<Duration>;

inline constexpr Duration duration_max = std::chrono::hours{24} * 3653;  ///< Ten years.

/// A moment by this machine's clock that goes on through suspend and never jumps
/// (CLOCK_BOOTTIME). Local deadlines are counted on it.
using LocalInstant = std::chrono::time_point<struct LocalClock, std::chrono::nanoseconds>;

struct LocalClock {
    using duration = std::chrono::nanoseconds;
    using rep = duration::rep;
    using period = duration::period;
    using time_point = LocalInstant;
    static constexpr bool is_steady = true;

    [[nodiscard]] static LocalInstant now() noexcept {
        timespec t{};
        (void)clock_gettime(CLOCK_BOOTTIME, &t);
        return LocalInstant(std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec));
    }
};

/// Where an embedded store takes its time from. Empty: the machine's boot clock, set to the wall
/// clock once at start, so that nothing that happens to the wall clock later moves a lease.
using StoreClock = std::function<Instant()>;

namespace detail {

[[nodiscard]] inline Instant boot_clock_now() noexcept {
    static const Duration offset =
        std::chrono::duration_cast<Duration>(std::chrono::system_clock::now().time_since_epoch()) -
        std::chrono::duration_cast<Duration>(LocalClock::now().time_since_epoch());
    return Instant(std::chrono::duration_cast<Duration>(LocalClock::now().time_since_epoch()) +
                   offset);
}

}  // namespace detail

}  // namespace idem::inline v0_1

#endif
