#ifndef IDEM_RUNNING_HPP
#define IDEM_RUNNING_HPP

#include <concepts>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>

#include <idem/claiming.hpp>
#include <idem/codec.hpp>
#include <idem/execution.hpp>
#include <idem/outcome.hpp>
#include <idem/settle.hpp>

/// How a handler runs under its claim.
namespace idem::inline v0_1::detail {

template <class Handler>
concept handler = std::invocable<Handler, Execution&> || std::invocable<Handler>;

template <class Handler>
struct HandlerResult : std::invoke_result<Handler> {};
template <std::invocable<Execution&> Handler>
struct HandlerResult<Handler> : std::invoke_result<Handler, Execution&> {};

/// What is stored and replayed for a handler's return type: the value of an expected-like one.
template <class R>
struct ResultOf {
    using Type = R;
};
template <expected_like R>
struct ResultOf<R> {
    using Type = typename R::value_type;
};

/// The result type of what a handler returned, after the checks whose messages a user should see.
template <class Returned>
struct CheckedResult {
    static_assert(!std::is_reference_v<Returned> && !std::is_pointer_v<Returned>,
                  "idem: a handler returns a value; what a reference or pointer refers to is gone "
                  "when its answer is replayed");
    using Type = typename ResultOf<Returned>::Type;
    using Value = typename Outcome<Type>::Value;
    static_assert(codable<Value>,
                  "idem: no codec for the handler's result type. Specialise idem::Codec<T>, or "
                  "name the members of an aggregate: static constexpr auto idem_fields = "
                  "std::tuple{&T::a, &T::b};");
};
template <class Handler>
struct Handled : CheckedResult<typename HandlerResult<Handler>::type> {};

/// The handler's own return value; `void` becomes `std::monostate`.
template <class Handler>
[[nodiscard]] auto invoke_handler(Handler&& handler, Execution& execution) {
    const auto call = [&]() -> decltype(auto) {
        if constexpr (std::invocable<Handler, Execution&>) {
            return std::invoke(std::forward<Handler>(handler), execution);
        } else {
            return std::invoke(std::forward<Handler>(handler));
        }
    };
    if constexpr (std::is_void_v<decltype(call())>) {
        call();
        return std::monostate{};
    } else {
        return call();
    }
}

template <class V>
[[nodiscard]] Outcome<V> failed_outcome(const LiveClaim& claim, const Execution& execution,
                                        Failure failure, const Settled& settled,
                                        std::optional<typename Outcome<V>::Value> value = {}) {
    OutcomeDetails details;
    const bool recorded = settled.unrecorded == UnrecordedReason::none;
    if (recorded && settled.state == State::failed && failure.kind == FailureClass::retryable)
        failure.kind = FailureClass::exhausted;  // it was the last attempt
    details.kind =
        failure.kind == FailureClass::unknown ? OutcomeKind::unknown : OutcomeKind::failed;
    details.unrecorded = settled.unrecorded;
    details.lost = settled.lost;
    details.takeover = execution.takeover();
    details.attempt = execution.attempt();
    details.fence = claim.terms().fence;
    details.failure = std::move(failure);
    return Outcome<V>(std::move(details), std::move(value));
}

/// Records a value whose effect has happened, and hands it on.
template <class V>
[[nodiscard]] Outcome<V> record_value(const Call& call, LiveClaim& claim,
                                      const Execution& execution,
                                      typename Outcome<V>::Value value) {
    const auto encoded = encode_result(value, call.guard.options().result_bytes_max);
    const Settled settled = record(call, claim, execution, encoded);
    return Outcome<V>(executed_details(claim, execution, settled), std::move(value));
}

/// Settles what a handler returned: a value is recorded, a failure as its class says.
template <class V, class Returned>
[[nodiscard]] Outcome<V> settle_returned(const Call& call, LiveClaim& claim,
                                         const Execution& execution, Returned returned) {
    if (auto failure = failure_in(returned); failure && failure->kind != FailureClass::none) {
        failure = cut(*std::move(failure));
        const Settled settled = roll_back(call, claim, &execution, *failure);
        if constexpr (expected_like<Returned>) {
            return failed_outcome<V>(claim, execution, *std::move(failure), settled);
        } else {
            return failed_outcome<V>(claim, execution, *std::move(failure), settled,
                                     std::move(returned));
        }
    }
    if constexpr (!expected_like<Returned>) {
        return record_value<V>(call, claim, execution, std::move(returned));
    } else if constexpr (std::is_void_v<V>) {
        return record_value<V>(call, claim, execution, std::monostate{});
    } else {
        return record_value<V>(call, claim, execution, std::move(returned).value());
    }
}

/// The effect has happened: should the user's own code (a move, `idem_failure`) throw now, the
/// record is held. That never demotes a result which is recorded already. Taken by reference, for
/// the first move may throw too.
template <class V, class Returned>
[[nodiscard]] Outcome<V> settle_or_hold(const Call& call, LiveClaim& claim,
                                        const Execution& execution, Returned&& returned) {
    try {
        return settle_returned<V>(call, claim, execution, std::move(returned));
    } catch (...) {
        roll_back(call, claim, &execution,
                  {FailureClass::unknown, "unrecorded", "the result could not be handed on"});
        throw;
    }
}

/// The last look before a handler begins. Where `drain` or the end of the lease came between claim
/// and handler, the claim is given back as if it had never been.
/// @throws UnavailableError then: to try again later is safe.
inline void begin_or_refuse(const Call& call, const Admission& admission, LiveClaim& claim) {
    const bool draining = admission.draining();
    if (!draining && (claim.terms().unprotected || claim.held())) return;
    const char* const why = draining ? "draining" : "too late";
    roll_back(call, claim, nullptr, {FailureClass::retryable, why, {}}, false);
    throw UnavailableError(draining ? Admission::draining_text
                                    : "the lease ended before the handler could begin");
}

/// Asks the outside world about a vanished holder's effect. Nothing: it has not happened, run.
/// @throws as `begin_or_refuse` does where the claim did not outlast the question.
template <class V>
[[nodiscard]] std::optional<Outcome<V>> verify(const Call& call, const Admission& admission,
                                               LiveClaim& claim, Execution& execution) {
    using Value = typename Outcome<V>::Value;
    std::optional<Verdict> verdict;
    Failure held{FailureClass::unknown, "verify", "the verify callback cannot tell"};
    try {
        verdict.emplace(call.guard.options().verify(call.key.key(), execution));
    } catch (const std::exception& e) {
        held.message = std::string("the verify callback threw: ") + e.what();
    } catch (...) {
        roll_back(call, claim, &execution, held);
        throw;
    }
    if (verdict && verdict->kind() == Verdict::Kind::not_done) {
        begin_or_refuse(call, admission, claim);
        return std::nullopt;
    }
    if (!verdict || verdict->kind() == Verdict::Kind::cannot_tell) {
        const Settled settled = roll_back(call, claim, &execution, held);
        return failed_outcome<V>(claim, execution, std::move(held), settled);
    }
    std::optional<Value> value;
    try {
        value.emplace(decode_result<Value>(verdict->codec(), verdict->result()));
    } catch (...) {
        held.message = "the verify callback gave a result of another type";
        roll_back(call, claim, &execution, held);
        throw UsageError("GuardOptions::verify gave a result of another type than the handler's");
    }
    const Encoded result = within({ResultKind::value, verdict->codec(), verdict->result()},
                                  call.guard.options().result_bytes_max);
    const Settled settled = record(call, claim, execution, result, EventKind::replayed);
    OutcomeDetails details = executed_details(claim, execution, settled);
    details.kind = OutcomeKind::replayed;  // the handler did not run in this call
    return Outcome<V>(std::move(details), std::move(value));
}

/// Gives a claim back as if it had never been: its handler has not begun.
inline void give_back(const Call& call, const Claimed& claimed) noexcept {
    FinishRequest request =
        finish_request(call, claimed.owner, claimed.reply.fence, FinishKind::release);
    request.counted = false;
    (void)send(call.guard, request);
}

/// The claim is this process's from here on. @throws UnavailableError where no heartbeat thread
/// can be made: the claim is then given back.
template <class Make>
[[nodiscard]] auto hold(const Call& call, const Claimed& claimed, Make&& make) {
    try {
        return make();
    } catch (const std::system_error& e) {
        give_back(call, claimed);
        throw UnavailableError(std::string("no thread for the heartbeat: ") + e.what());
    } catch (...) {
        give_back(call, claimed);
        throw;
    }
}

/// Somebody vanished, and this claim is his now.
inline void tell_takeover(const Call& call, const ClaimReply& acquired) noexcept {
    if (acquired.takeover)
        call.tell(EventKind::takeover, {.fence = acquired.fence, .attempt = acquired.attempt});
}

/// Runs the handler under a claim that is entered and `RunningHere`, and settles what comes of it.
template <class V, class Handler>
[[nodiscard]] Outcome<V> run_entered(const Call& call, const Admission& admission,
                                     const ClaimReply& acquired, LiveClaim& live,
                                     Execution& execution, Handler&& handler) {
    begin_or_refuse(call, admission, live);
    if (acquired.verify) {
        if (auto verified = verify<V>(call, admission, live, execution))
            return *std::move(verified);
    }
    // The value is made in place: a result type need not be movable twice, nor default-made.
    auto returned = [&] {
        try {
            return invoke_handler(std::forward<Handler>(handler), execution);
        } catch (...) {
            roll_back(call, live, &execution,
                      failure_of(call.guard.options(), std::current_exception()));
            throw;
        }
    }();
    return settle_or_hold<V>(call, live, execution, std::move(returned));
}

/// Enters a fresh claim and runs the handler under it.
template <class V, class Handler>
[[nodiscard]] Outcome<V> execute(const Call& call, const Admission& admission, Claimed& claimed,
                                 Handler&& handler) {
    tell_takeover(call, claimed.reply);
    std::optional<LiveClaim> live;
    hold(call, claimed, [&] { live.emplace(call.guard, terms_of(call, claimed)); });
    Execution execution(*live, claimed.reply.attempt, claimed.reply.takeover,
                        std::move(claimed.reply.checkpoint), std::move(claimed.reply.resource));
    const RunningHere here(call.key, claimed.reply);
    return run_entered<V>(call, admission, claimed.reply, *live, execution,
                          std::forward<Handler>(handler));
}

}  // namespace idem::inline v0_1::detail

#endif
