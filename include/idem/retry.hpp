#ifndef IDEM_RETRY_HPP
#define IDEM_RETRY_HPP

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

#include <cxxabi.h>

#include <idem/clock.hpp>
#include <idem/detail/random.hpp>
#include <idem/error.hpp>
#include <idem/failure.hpp>
#include <idem/options.hpp>
#include <idem/settle.hpp>

namespace idem::inline v0_1 {

enum class Jitter : std::uint8_t {
    none,  ///< As computed: callers that failed together come again together.
    full,  ///< Anything from nothing to what was computed.
    half,  ///< At least half of what was computed.
};

/// When to try again after a failure, and when not to. Durations are at most ten years.
struct RetryPolicy {
    std::uint32_t attempts = 5;  ///< All of them, with the first. 0: without end.
    Duration first = std::chrono::milliseconds{200};
    double factor = 2;  ///< From one pause to the next; at least 1.
    Duration longest = std::chrono::minutes{1};
    /// Pauses one by one instead ("10, 30, 60, 180 s"); the last one goes on.
    std::vector<Duration> table{};
    Jitter jitter = Jitter::full;
    Duration
        budget{};  ///< From the first try on; a pause that would end later is not begun. 0: none.
};

namespace detail {

inline void check(const RetryPolicy& policy) {
    check_duration(policy.first, "RetryPolicy::first");
    check_duration(policy.longest, "RetryPolicy::longest");
    if (!(policy.factor >= 1 && policy.factor <= 1e6))
        throw UsageError("RetryPolicy::factor must be 1 to 1,000,000");
    for (const Duration pause : policy.table) check_wait(pause, "RetryPolicy::table");
    check_wait(policy.budget, "RetryPolicy::budget");
}

}  // namespace detail

/// The pause after the `attempt`-th try (from 1 on), before jitter. Never overflows, and never
/// exceeds `longest` (a table its own entries).
[[nodiscard]] inline Duration computed_pause(const RetryPolicy& policy, std::uint32_t attempt) {
    const std::uint32_t before = std::max(attempt, 1U) - 1;
    if (!policy.table.empty())
        return policy.table[std::min<std::size_t>(before, policy.table.size() - 1)];
    // Where the product is too large for a double it is infinite, and the longest is smaller.
    const double pause =
        static_cast<double>(policy.first.count()) * std::pow(policy.factor, before);
    if (pause >= static_cast<double>(policy.longest.count())) return policy.longest;
    return Duration(static_cast<Duration::rep>(pause));
}

/// What a try has come to, for `next_pause`.
struct FailedTry {
    std::uint32_t attempt = 1;  ///< Which try it was, from 1 on.
    Duration elapsed{};         ///< Since the first one began.
    FailureClass kind = FailureClass::retryable;
    Duration retry_after{};  ///< What the other side asked for: no pause is shorter.
};

/// How long to wait before the next try. Nothing: there is none, for the failure is not retryable,
/// or attempts or budget are used up. Pure; `random` is any 64 random bits.
[[nodiscard]] inline std::optional<Duration> next_pause(const RetryPolicy& policy,
                                                        const FailedTry& failed,
                                                        std::uint64_t random) {
    if (failed.kind != FailureClass::retryable) return std::nullopt;
    if (policy.attempts != 0 && failed.attempt >= policy.attempts) return std::nullopt;
    const Duration computed = computed_pause(policy, failed.attempt);
    Duration least = computed;
    if (policy.jitter == Jitter::full) least = Duration::zero();
    if (policy.jitter == Jitter::half) least = computed / 2;
    const auto span = static_cast<std::uint64_t>((computed - least).count()) + 1;
    auto pause = least + Duration(static_cast<Duration::rep>(random % span));
    pause = std::max(pause, std::min(failed.retry_after, duration_max));
    if (policy.budget > Duration::zero() && pause > policy.budget - failed.elapsed)
        return std::nullopt;
    return pause;
}

/// What `retry` may be told. All defaults are right for a service.
struct RetryOptions {
    std::stop_token stop{};
    Classify classify{};  ///< As `GuardOptions::classify`.
    /// Told of each failure that is followed by a pause, with its length.
    std::function<void(const Failure&, Duration)> on_pause{};
    /// Waits instead of the real one; false: give up. For tests.
    std::function<bool(Duration)> sleep{};
};

namespace detail {

/// False where it was stopped.
[[nodiscard]] inline bool sleep_unless(const std::stop_token& stop, Duration pause) {
    std::mutex mutex;
    std::condition_variable_any wake;
    std::unique_lock lock(mutex);
    (void)wake.wait_for(lock, stop, pause, [] { return false; });
    return !stop.stop_requested();
}

[[nodiscard]] inline std::uint64_t random_bits() {
    std::uint64_t out = 0;
    fill_random(reinterpret_cast<char*>(&out), sizeof out);
    return out;
}

}  // namespace detail

/// Calls `work` until it returns, in this process and thread; what survives a crash is the business
/// of a guard around it or inside. What is thrown is retryable unless `Classify` or its type says
/// more (`FinalError`, `UnknownOutcomeError`); the last exception passes through unchanged, also
/// where it was stopped between two tries. Any thread. @throws what `work` throws; UsageError.
template <class Work>
auto retry(const RetryPolicy& policy, const RetryOptions& options, Work&& work)
    -> decltype(work()) {
    detail::check(policy);
    const auto begun = LocalClock::now();
    const GuardOptions rules{.classify = options.classify};
    for (FailedTry failed;; ++failed.attempt) {
        try {
            return work();
        } catch (const abi::__forced_unwind&) {
            throw;  // the thread is being cancelled
        } catch (...) {
            const Failure failure = detail::failure_of(rules, std::current_exception());
            failed.kind = failure.kind;
            failed.elapsed = std::chrono::duration_cast<Duration>(LocalClock::now() - begun);
            const auto pause = next_pause(policy, failed, detail::random_bits());
            if (!pause || options.stop.stop_requested()) throw;
            if (options.on_pause) options.on_pause(failure, *pause);
            if (!(options.sleep ? options.sleep(*pause)
                                : detail::sleep_unless(options.stop, *pause)))
                throw;
        }
    }
}
template <class Work>
auto retry(const RetryPolicy& policy, Work&& work) -> decltype(work()) {
    return retry(policy, RetryOptions{}, std::forward<Work>(work));
}

}  // namespace idem::inline v0_1

#endif
