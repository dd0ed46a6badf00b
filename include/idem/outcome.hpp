#ifndef IDEM_OUTCOME_HPP
#define IDEM_OUTCOME_HPP

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include <idem/clock.hpp>
#include <idem/error.hpp>
#include <idem/failure.hpp>
#include <idem/record.hpp>

namespace idem::inline v0_1 {

enum class OutcomeKind : std::uint8_t {
    executed,     ///< The handler ran in this call.
    replayed,     ///< It ran before; this is its first answer.
    in_progress,  ///< Somebody is at it. Retry after `retry_after`.
    mismatch,     ///< The key stands for another request. Do not retry.
    failed,       ///< It failed for good (`failure`), now or before.
    unknown,      ///< It may have happened; a person or a callback must settle it.
    cancelled,    ///< The caller's stop token fired while it waited.
    absent,       ///< Redeem only: there is no such token.
    expired,      ///< Redeem only: the token was not redeemed in time.
};

[[nodiscard]] constexpr const char* to_string(OutcomeKind kind) noexcept {
    switch (kind) {
        case OutcomeKind::executed: return "executed";
        case OutcomeKind::replayed: return "replayed";
        case OutcomeKind::in_progress: return "in_progress";
        case OutcomeKind::mismatch: return "mismatch";
        case OutcomeKind::failed: return "failed";
        case OutcomeKind::unknown: return "unknown";
        case OutcomeKind::cancelled: return "cancelled";
        case OutcomeKind::absent: return "absent";
        case OutcomeKind::expired: return "expired";
    }
    return "invalid";
}

/// Why an executed result is not in the store (yet). A repeat after the lease may run again.
enum class UnrecordedReason : std::uint8_t {
    none,
    unavailable,  ///< The store did not answer; it is tried again in the background.
    lost,         ///< Another owner took over, or the record is gone.
    unprotected,  ///< Ran without a claim, by `StoreDown::run_unprotected`.
};

[[nodiscard]] constexpr const char* to_string(UnrecordedReason reason) noexcept {
    switch (reason) {
        case UnrecordedReason::none: return "none";
        case UnrecordedReason::unavailable: return "unavailable";
        case UnrecordedReason::lost: return "lost";
        case UnrecordedReason::unprotected: return "unprotected";
    }
    return "invalid";
}

/// What an outcome knows besides its value. Filled where it makes sense for the kind.
struct OutcomeDetails {
    OutcomeKind kind = OutcomeKind::in_progress;
    ResultKind result = ResultKind::none;  ///< Says why a replay has no value.
    UnrecordedReason unrecorded = UnrecordedReason::none;
    LostReason lost = LostReason::none;  ///< Where `unrecorded` is `lost`.
    bool takeover = false;
    std::uint32_t attempt = 0;
    Fence fence = 0;
    Duration retry_after{};
    Instant started{};
    Instant completed{};
    Failure failure{FailureClass::none, {}, {}};
    std::string resource{};
};

/// What a guarded call did. An ordinary value for every ordinary answer; trouble with the store,
/// and the handler's own exception, are thrown instead.
template <class T>
class Outcome {
    static_assert(!std::is_reference_v<T>, "idem: a reference cannot be replayed");

public:
    using Kind = OutcomeKind;
    /// `void` results are held as `std::monostate`.
    using Value = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

    explicit Outcome(OutcomeDetails details, std::optional<Value> value = {})
        : details_(std::move(details)), value_(std::move(value)) {}

    [[nodiscard]] Kind kind() const noexcept { return details_.kind; }
    [[nodiscard]] bool executed() const noexcept { return kind() == Kind::executed; }
    [[nodiscard]] bool replayed() const noexcept { return kind() == Kind::replayed; }

    /// True for executed, and for replayed unless the result was not kept (`details().result`).
    [[nodiscard]] bool has_value() const noexcept { return value_.has_value(); }

    /// The first answer. @throws UsageError where there is none; ask `has_value` first.
    [[nodiscard]] const Value& value() const& { return checked(*this); }
    [[nodiscard]] Value& value() & { return checked(*this); }
    [[nodiscard]] Value&& value() && { return std::move(checked(*this)); }

    /// Of `failed`, and of `unknown` where its cause is on record.
    [[nodiscard]] const Failure& failure() const noexcept { return details_.failure; }

    /// False: the handler ran, and a repeat may run it again (`unrecorded_reason` says why).
    [[nodiscard]] bool recorded() const noexcept {
        return details_.unrecorded == UnrecordedReason::none;
    }
    [[nodiscard]] UnrecordedReason unrecorded_reason() const noexcept {
        return details_.unrecorded;
    }
    /// False only where the store was down and `StoreDown::run_unprotected` was chosen.
    [[nodiscard]] bool protected_run() const noexcept {
        return details_.unrecorded != UnrecordedReason::unprotected;
    }

    /// Of a used token or a replay: when it was first used, by the store's clock.
    [[nodiscard]] Instant first_used() const noexcept { return details_.started; }

    [[nodiscard]] std::uint32_t attempt() const noexcept { return details_.attempt; }
    [[nodiscard]] Fence fence() const noexcept { return details_.fence; }
    /// The claim was taken from a holder that vanished: its effect may have happened.
    [[nodiscard]] bool takeover() const noexcept { return details_.takeover; }
    /// Of `in_progress`: what is left of the holder's lease.
    [[nodiscard]] Duration retry_after() const noexcept { return details_.retry_after; }
    /// The stable id of what the first execution made; empty where it named none.
    [[nodiscard]] const std::string& resource_id() const noexcept { return details_.resource; }

    [[nodiscard]] const OutcomeDetails& details() const noexcept { return details_; }

private:
    template <class Self>
    static auto& checked(Self& self) {
        if (!self.value_)
            throw UsageError(std::string("Outcome::value of a call that is ") +
                             to_string(self.kind()) + " and has no value");
        return *self.value_;
    }

    OutcomeDetails details_;
    std::optional<Value> value_;
};

/// One item of `run_batch`: an outcome, or the exception that its handler or the store raised.
template <class T>
struct BatchOutcome {
    std::optional<Outcome<T>> outcome{};
    std::exception_ptr error{};

    /// The outcome. @throws what the item's handler threw.
    [[nodiscard]] const Outcome<T>& get() const {
        if (error) std::rethrow_exception(error);
        return *outcome;
    }
};

}  // namespace idem::inline v0_1

#endif
