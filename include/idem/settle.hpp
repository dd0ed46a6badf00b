#ifndef IDEM_SETTLE_HPP
#define IDEM_SETTLE_HPP

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

#include <idem/codec.hpp>
#include <idem/detail/no_cancel.hpp>
#include <idem/execution.hpp>
#include <idem/failure.hpp>
#include <idem/heartbeat.hpp>
#include <idem/outcome.hpp>

/// How a claim ends: which failure an exception stands for, and how a finish reaches the store.
namespace idem::inline v0_1::detail {

// --- which failure it was -----------------------------------------------------------------------

[[nodiscard]] inline Failure cut(Failure failure) {
    if (failure.code.size() > Failure::code_bytes_max) failure.code.resize(Failure::code_bytes_max);
    if (failure.message.size() > Failure::message_bytes_max)
        failure.message.resize(Failure::message_bytes_max);
    return failure;
}

/// The library's own rule. Null stands for an exception that is not C++'s: a cancelled thread.
[[nodiscard]] inline Failure default_failure(const std::exception_ptr& thrown) {
    if (!thrown) return {FailureClass::retryable, "unwound", "the handler's thread was unwound"};
    try {
        std::rethrow_exception(thrown);
    } catch (const FinalError& e) {
        return {FailureClass::final, e.code(), e.what()};
    } catch (const UnknownOutcomeError& e) {
        return {FailureClass::unknown, "unknown_outcome", e.what()};
    } catch (const std::exception& e) {
        return {FailureClass::retryable, "exception", e.what()};
    } catch (...) {
        return {FailureClass::retryable, "exception", "not a std::exception"};
    }
}

/// What the handler threw, sorted. A `classify` that throws itself has no say.
[[nodiscard]] inline Failure failure_of(const GuardOptions& options,
                                        const std::exception_ptr& thrown) noexcept {
    const NoCancel shield;
    try {
        if (options.classify) {
            if (auto failure = options.classify(thrown)) return cut(*std::move(failure));
        }
    } catch (...) {
    }
    try {
        return cut(default_failure(thrown));
    } catch (...) {  // no memory for its text
        return {FailureClass::retryable, {}, {}};
    }
}

/// The failure that an error value of an expected-like result stands for.
template <class E>
[[nodiscard]] Failure failure_from_error(const E& error) {
    if constexpr (requires {
                      { idem_failure(error) } -> std::convertible_to<std::optional<Failure>>;
                  }) {
        std::optional<Failure> failure = idem_failure(error);
        return failure ? *std::move(failure) : Failure{};
    } else if constexpr (std::same_as<E, Failure>) {
        return error;
    } else if constexpr (std::same_as<E, std::error_code>) {
        return {FailureClass::retryable,
                error.category().name() + (":" + std::to_string(error.value())), error.message()};
    } else if constexpr (std::convertible_to<const E&, std::string_view>) {
        return {FailureClass::retryable, "error", std::string(std::string_view(error))};
    } else if constexpr (std::is_enum_v<E> || std::integral<E>) {
        return {FailureClass::retryable, std::to_string(static_cast<long long>(error)), {}};
    } else {
        return {FailureClass::retryable, "error", {}};
    }
}

/// A returned value that is no result: the error of an expected-like type, or what the type's own
/// `idem_failure(const T&)` (found by ADL) says. An error is never taken for a value: one without
/// a class is retryable.
template <class R>
[[nodiscard]] std::optional<Failure> failure_in(const R& result) {
    std::optional<Failure> failure;
    if constexpr (requires {
                      { idem_failure(result) } -> std::convertible_to<std::optional<Failure>>;
                  }) {
        failure = idem_failure(result);
    } else if constexpr (expected_like<R>) {
        if (!result.has_value()) failure = failure_from_error(result.error());
    }
    if constexpr (expected_like<R>) {
        if (!result.has_value()) {
            if (!failure) failure.emplace();
            if (failure->kind == FailureClass::none) failure->kind = FailureClass::retryable;
        }
    }
    return failure;
}

// --- how it gets into the store -----------------------------------------------------------------

/// One guarded call, from claim to finish.
struct Call {
    GuardState& guard;
    KeyView key{};
    Fingerprint fingerprint{};
    Fingerprint fingerprint_before{};
    Duration lease{};
    Duration retention{};
    Duration wait{};
    bool redeem_only = false;
    std::string_view request_id{};
    LocalInstant begin{};

    [[nodiscard]] Event event() const {
        return {.request_id = request_id,
                .duration = std::chrono::duration_cast<Duration>(LocalClock::now() - begin)};
    }
    void tell(EventKind kind, Event event = {}) const noexcept {
        if (!guard.observed()) return;
        event.request_id = request_id;
        event.duration = std::chrono::duration_cast<Duration>(LocalClock::now() - begin);
        guard.tell(kind, key, event);
    }
};

/// What a call refers to, kept while it runs: a handler may change or destroy the key that it was
/// called with, and it is the claimed one that must be settled.
class Kept {
public:
    explicit Kept(Call& call) : request_id_(call.request_id) {
        char* at = bytes_.data();
        for (auto* part : {&call.key.scope, &call.key.id, &call.key.tenant}) {
            const auto size = part->copy(at, KeyView::part_bytes_max);
            *part = {at, size};
            at += size;
        }
        call.request_id = request_id_;
    }
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;

private:
    std::array<char, 3 * KeyView::part_bytes_max> bytes_;  // cheaper than three allocations
    std::string request_id_;
};

struct Settled {
    UnrecordedReason unrecorded = UnrecordedReason::none;
    LostReason lost = LostReason::none;
    State state = State::running;
    ResultKind result = ResultKind::none;
};

/// Fence 0 names a claim of which only the owner is known.
[[nodiscard]] inline FinishRequest finish_request(const Call& call, const Owner& owner, Fence fence,
                                                  FinishKind kind) {
    FinishRequest request;
    request.key = call.key;
    request.owner = owner;
    request.fence = fence;
    request.kind = kind;
    request.lease = call.lease;
    request.retention = call.retention;
    request.held_retention = call.guard.options().held_retention;
    return request;
}
[[nodiscard]] inline FinishRequest finish_request(const Call& call, const LiveClaim& claim,
                                                  FinishKind kind) {
    return finish_request(call, claim.terms().owner, claim.terms().fence, kind);
}

[[nodiscard]] inline FinishReply send(GuardState& guard, const FinishRequest& request) noexcept {
    const NoCancel shield;
    FinishReply reply;
    try {
        guard.finish(std::span(&request, 1), std::span(&reply, 1));
    } catch (...) {
        reply.trouble = caught_trouble();
    }
    return reply;
}

/// Leaves a finish to the background. False where it cannot: the lease then decides.
[[nodiscard]] inline bool leave_to_background(const Call& call,
                                              const FinishRequest& request) noexcept {
    try {
        return Heartbeat::instance().later(LateFinish::of(call.guard, request, call.request_id));
    } catch (...) {
        return false;
    }
}

/// Sends a finish whose effect has happened: what the store refuses for its value is offered
/// without it; what it does not take at all goes to the background, never back to `released`.
[[nodiscard]] inline Settled settle(const Call& call, LiveClaim& claim,
                                    FinishRequest request) noexcept {
    const std::uint32_t attempt = claim.terms().attempt;
    const auto lost = [&](LostReason reason, State state) -> Settled {
        call.tell(EventKind::unrecorded,
                  {.fence = request.fence, .attempt = attempt, .lost = reason});
        return {UnrecordedReason::lost, reason, state, {}};
    };
    if (claim.inherited()) return lost(LostReason::process, {});
    FinishReply reply = send(call.guard, request);
    if (reply.trouble.kind == Trouble::Kind::usage && request.result_kind == ResultKind::value) {
        request.result_kind = ResultKind::no_room;
        request.result = {};
        reply = send(call.guard, request);
    }
    if (reply.trouble) {
        // Told first: the background may have its own say as soon as it knows.
        call.tell(EventKind::unrecorded,
                  {.fence = request.fence, .attempt = attempt, .detail = reply.trouble.message});
        if (!leave_to_background(call, request))
            call.tell(EventKind::record_abandoned, {.fence = request.fence,
                                                    .attempt = attempt,
                                                    .detail = "too many finishes wait already"});
        return {UnrecordedReason::unavailable, LostReason::none, State::running, {}};
    }
    Heartbeat::instance().hub().notify(wait_hash(call.key));
    if (reply.lost) return lost(reply.reason, reply.state);
    return {UnrecordedReason::none, LostReason::none, reply.state, request.result_kind};
}

/// Settles a claim whose handler failed: released, failed for good, or held, by its class.
/// Never throws: the handler's own exception is on its way to the caller.
inline Settled roll_back(const Call& call, LiveClaim& claim, const Execution* execution,
                         const Failure& failure, bool counted = true,
                         std::optional<std::string_view> checkpoint = {}) noexcept {
    if (claim.inherited()) return {UnrecordedReason::lost, LostReason::process, {}, {}};
    if (claim.terms().unprotected) {
        if (execution != nullptr)
            call.tell(EventKind::ran_unprotected,
                      {.failure = failure.kind, .detail = failure.message});
        return {UnrecordedReason::unprotected, {}, {}, {}};
    }
    const NoCancel shield;
    try {
        const auto kind = failure.kind == FailureClass::final     ? FinishKind::fail
                          : failure.kind == FailureClass::unknown ? FinishKind::quarantine
                                                                  : FinishKind::release;
        FinishRequest request = finish_request(call, claim, kind);
        request.counted = counted;
        request.checkpoint = checkpoint;
        request.failure = failure.kind;
        request.failure_code = failure.code;
        request.failure_message = failure.message;
        if (execution != nullptr && !execution->resource().empty())
            request.resource = execution->resource();
        const FinishReply reply = send(call.guard, request);
        const Event about{.fence = request.fence,
                          .attempt = claim.terms().attempt,
                          .lost = reply.reason,
                          .failure = failure.kind,
                          .detail = reply.trouble ? reply.trouble.message : failure.message};
        if (reply.trouble) {
            call.tell(EventKind::rollback_failed, about);
            if (claim.lost() == LostReason::none) (void)leave_to_background(call, request);
            return {UnrecordedReason::unavailable, {}, {}, {}};
        }
        Heartbeat::instance().hub().notify(wait_hash(call.key));
        call.tell(reply.lost                      ? EventKind::unrecorded
                  : reply.state == State::failed  ? EventKind::failed
                  : reply.state == State::unknown ? EventKind::unknown
                                                  : EventKind::released,
                  about);
        const auto how = reply.lost ? UnrecordedReason::lost : UnrecordedReason::none;
        return {how, reply.reason, reply.state, {}};
    } catch (...) {  // the lease ends it
        return {UnrecordedReason::unavailable, {}, {}, {}};
    }
}

/// The stored form of a result, or why there is none.
struct Encoded {
    ResultKind kind = ResultKind::value;
    CodecId codec{};
    std::string bytes{};
};

/// Without its bytes where they are too many, or half of them.
[[nodiscard]] inline Encoded within(Encoded encoded, std::size_t bytes_max) noexcept {
    if (encoded.kind == ResultKind::value && encoded.bytes.size() > bytes_max)
        encoded.kind = ResultKind::too_large;
    if (encoded.kind != ResultKind::value) encoded.bytes.clear();
    return encoded;
}

template <codable V>
[[nodiscard]] Encoded encode_result(const V& value, std::size_t bytes_max) noexcept {
    const NoCancel shield;
    Encoded out{ResultKind::value, codec_id<V>(), {}};
    try {
        Codec<V>::encode(value, out.bytes);
    } catch (...) {
        out.kind = ResultKind::not_encodable;
    }
    return within(std::move(out), bytes_max);
}

/// Records what has happened, with its result; the event says how that is known. Without a claim
/// it only says that the handler ran.
[[nodiscard]] inline Settled record(const Call& call, LiveClaim& claim, const Execution& execution,
                                    const Encoded& encoded, EventKind how = EventKind::executed) {
    if (claim.terms().unprotected) {
        call.tell(EventKind::ran_unprotected);
        return {UnrecordedReason::unprotected, LostReason::none, State::running, {}};
    }
    FinishRequest request = finish_request(call, claim, FinishKind::complete);
    request.result_kind = encoded.kind;
    request.codec = encoded.codec;
    request.result = encoded.bytes;
    if (!execution.resource().empty()) request.resource = execution.resource();
    const Settled settled = settle(call, claim, request);
    if (settled.unrecorded == UnrecordedReason::none) {
        const Event about{.fence = request.fence, .attempt = execution.attempt()};
        if (settled.result != ResultKind::value) call.tell(EventKind::result_not_kept, about);
        call.tell(how, about);
    }
    return settled;
}

[[nodiscard]] inline OutcomeDetails executed_details(LiveClaim& claim, const Execution& execution,
                                                     const Settled& settled) {
    OutcomeDetails details;
    details.kind = OutcomeKind::executed;
    details.result = settled.result;
    details.unrecorded = settled.unrecorded;
    details.lost = settled.lost;
    details.takeover = execution.takeover();
    details.attempt = execution.attempt();
    details.fence = claim.terms().fence;
    details.resource = execution.resource();
    return details;
}

}  // namespace idem::inline v0_1::detail

#endif
