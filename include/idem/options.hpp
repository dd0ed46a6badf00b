#ifndef IDEM_OPTIONS_HPP
#define IDEM_OPTIONS_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>

#include <idem/clock.hpp>
#include <idem/codec.hpp>
#include <idem/error.hpp>
#include <idem/events.hpp>
#include <idem/failure.hpp>
#include <idem/fingerprint.hpp>
#include <idem/fwd.hpp>
#include <idem/record.hpp>

namespace idem::inline v0_1 {

/// What to do where the store cannot be asked at claim time.
enum class StoreDown : std::uint8_t {
    refuse,  ///< The handler does not run; `UnavailableError`.
    /// It runs without a claim, and says so. A repeat may run it again. `Execution::held` is false
    /// and its stop token has stopped, so a handler that heeds them must be told of this choice.
    run_unprotected,
};

/// The answer of a verify callback about the effect of a holder that vanished.
class Verdict {
public:
    enum class Kind : std::uint8_t { done, not_done, cannot_tell };

    /// It has happened, and this is its result; it is recorded and replayed from now on.
    template <codable T>
    [[nodiscard]] static Verdict done(const T& result) {
        Verdict out(Kind::done);
        out.codec_ = codec_id<T>();
        Codec<T>::encode(result, out.result_);
        return out;
    }
    /// It has happened, and has no result (`void`).
    [[nodiscard]] static Verdict done() { return done(std::monostate{}); }
    /// It has not happened: the handler runs now.
    [[nodiscard]] static Verdict not_done() { return Verdict(Kind::not_done); }
    /// The record is held for a person.
    [[nodiscard]] static Verdict cannot_tell() { return Verdict(Kind::cannot_tell); }

    [[nodiscard]] Kind kind() const noexcept { return kind_; }
    [[nodiscard]] CodecId codec() const noexcept { return codec_; }
    [[nodiscard]] const std::string& result() const noexcept { return result_; }

private:
    explicit Verdict(Kind kind) noexcept : kind_(kind) {}

    Kind kind_;
    CodecId codec_{};
    std::string result_{};
};

/// Asks the outside world, under the new fence and with the heartbeat on. A throw holds the record.
using Verify = std::function<Verdict(const Key&, Execution&)>;

/// Sorts what a handler threw: final, retryable, unknown, with code and message. Gets null for an
/// exception that is not C++'s (a cancelled thread). Nothing: the library's own rule.
using Classify = std::function<std::optional<Failure>(std::exception_ptr)>;

/// Settings that hold for the life of a guard. Durations are positive and at most ten years.
struct GuardOptions {
    // --- what repeats get -----------------------------------------------------------------------
    /// How long a holder may be silent before it counts as vanished. Too short: a stalled worker
    /// is taken over while it still works. Too long: a crashed one blocks its key for that time.
    Duration lease = std::chrono::seconds{30};
    /// How long an answer is kept. A repeat after that runs again.
    Duration retention = std::chrono::hours{24};
    /// How long held records and dead letters are kept for a person.
    Duration held_retention = std::chrono::hours{24 * 30};
    /// How long a call waits for a running one; then it answers `in_progress`. 0: not at all.
    Duration wait{};
    /// Results above this are recorded as completed without a value.
    std::size_t result_bytes_max = std::size_t{1} << 20U;

    // --- what happens to work that goes wrong ---------------------------------------------------
    /// Renews the lease while the handler runs. Off: the handler must end within the lease.
    bool heartbeat = true;
    /// How long a claim is kept by the heartbeat at most; then its holder is told, and the lease
    /// runs out. A handler that hangs would else block its key for ever. 0: as long as it takes.
    Duration max_hold{};
    Orphan orphan = Orphan::rerun;
    StoreDown store_down = StoreDown::refuse;
    std::uint16_t max_attempts = 0;  ///< 0: none. At the cap a release becomes a dead letter.
    std::uint16_t max_crashes = 5;   ///< 0: none. A job that kills its workers ends here.
    Classify classify{};
    Verify verify{};  ///< Required by `Orphan::verify`.
    /// How long the background goes on recording a result the store would not take.
    Duration record_retry = std::chrono::minutes{10};

    // --- seeing ---------------------------------------------------------------------------------
    Observer events{};
    bool event_raw_ids = false;  ///< Ids may be personal data; they stay out of events unless set.

    /// Guarded calls and open claims at once per scope; more get `UnavailableError`. 0: no cap.
    std::size_t concurrency_max = 0;
};

/// Settings of one call; what is not set is the guard's.
struct RunOptions {
    std::optional<Duration> lease{};
    std::optional<Duration> retention{};
    std::optional<Duration> wait{};
    std::string request_id{};      ///< Goes into events only.
    std::stop_token stop_token{};  ///< Ends the wait for a running holder: `cancelled`.
    bool redeem_only = false;      ///< Only an issued token may be claimed.
    /// The same request's fingerprint by the previous algorithm or secret, during a change-over.
    Fingerprint fingerprint_before{};
};

namespace detail {

inline void check_duration(Duration value, const char* name) {
    if (value <= Duration::zero() || value > duration_max)
        throw UsageError(std::string(name) + " is " + std::to_string(value.count()) +
                         " us; it must be positive and at most ten years");
}

/// With a heartbeat three renewals must fit into a lease, and a thread cannot keep less than this.
inline constexpr Duration heartbeat_lease_min = std::chrono::milliseconds{10};

inline void check_lease(Duration lease, bool heartbeat, const char* name) {
    check_duration(lease, name);
    if (heartbeat && lease < heartbeat_lease_min)
        throw UsageError(std::string(name) +
                         " is under 10 ms: no heartbeat can keep that; lengthen it or set "
                         "GuardOptions::heartbeat = false");
}

inline void check_wait(Duration wait, const char* name) {
    if (wait < Duration::zero() || wait > duration_max)
        throw UsageError(std::string(name) + " must not be negative, and at most ten years");
}

inline void check_max_hold(Duration max_hold, Duration lease, const char* name,
                           const char* lease_name) {
    if (max_hold == Duration::zero()) return;
    check_duration(max_hold, name);
    if (max_hold < lease)
        throw UsageError(std::string(name) + " is shorter than " + lease_name +
                         ", which blocks the key for longer anyhow");
}

inline void check(const GuardOptions& options) {
    check_lease(options.lease, options.heartbeat, "GuardOptions::lease");
    check_duration(options.retention, "GuardOptions::retention");
    check_duration(options.held_retention, "GuardOptions::held_retention");
    check_max_hold(options.max_hold, options.lease, "GuardOptions::max_hold",
                   "GuardOptions::lease");
    check_duration(options.record_retry, "GuardOptions::record_retry");
    check_wait(options.wait, "GuardOptions::wait");
    if (options.orphan == Orphan::verify && !options.verify)
        throw UsageError("GuardOptions::orphan is verify, and GuardOptions::verify is empty");
}

inline void check(const RunOptions& options, bool heartbeat) {
    if (options.lease) check_lease(*options.lease, heartbeat, "RunOptions::lease");
    if (options.retention) check_duration(*options.retention, "RunOptions::retention");
    if (options.wait) check_wait(*options.wait, "RunOptions::wait");
}

}  // namespace detail

}  // namespace idem::inline v0_1

#endif
