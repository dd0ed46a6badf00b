#ifndef IDEM_CLAIMING_HPP
#define IDEM_CLAIMING_HPP

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <idem/codec.hpp>
#include <idem/detail/random.hpp>
#include <idem/heartbeat.hpp>
#include <idem/outcome.hpp>
#include <idem/settle.hpp>

/// How a call gets its claim, or the answer that somebody else has made.
namespace idem::inline v0_1::detail {

/// A place under the cap on concurrent work of a scope; comes back when it goes. One that a forked
/// child inherits is the parent's, with its lock.
class Place {
public:
    Place() = default;
    /// Empty where `most` are taken.
    Place(GuardState::Traffic& traffic, std::string_view scope, std::size_t most) : scope_(scope) {
        std::scoped_lock const lock(traffic.scopes_mutex);
        auto& running = traffic.scopes[scope_];
        if (running >= most) return;
        ++running;
        traffic_ = &traffic;
    }
    ~Place() {
        if (traffic_ == nullptr || !traffic_->made_in.here()) return;
        std::scoped_lock const lock(traffic_->scopes_mutex);
        const auto found = traffic_->scopes.find(scope_);
        if (--found->second == 0) traffic_->scopes.erase(found);
    }
    Place(Place&& other) noexcept
        : traffic_(std::exchange(other.traffic_, nullptr)), scope_(std::move(other.scope_)) {}
    Place& operator=(Place&&) = delete;
    [[nodiscard]] explicit operator bool() const noexcept { return traffic_ != nullptr; }

private:
    GuardState::Traffic* traffic_ = nullptr;
    std::string scope_{};
};

/// Counts a call in, so that `drain` can wait for it. @throws UnavailableError while draining, and
/// above the cap on concurrent work of the scope.
class Admission {
public:
    explicit Admission(const Call& call)
        : traffic_(call.guard.traffic()),
          place_(admit(call, traffic_)),
          at_(traffic_.calls.enter()) {
        if (!draining()) return;  // asked once it is counted: drain looks the other way round
        traffic_.calls.leave(at_);
        refuse(call, draining_text);
    }
    ~Admission() { traffic_.calls.leave(at_); }
    Admission(const Admission&) = delete;
    Admission& operator=(const Admission&) = delete;

    static constexpr const char* draining_text = "this guard is draining and takes no new work";
    [[nodiscard]] bool draining() const noexcept { return traffic_.draining.load(); }
    /// For work that outlives the call.
    [[nodiscard]] Place take_place() noexcept { return std::move(place_); }

private:
    [[noreturn]] static void refuse(const Call& call, const char* why) {
        call.tell(EventKind::refused, {.detail = why});
        throw UnavailableError(why);
    }
    [[nodiscard]] static Place admit(const Call& call, GuardState::Traffic& traffic) {
        const std::size_t most = call.guard.options().concurrency_max;
        if (most == 0) [[likely]]
            return {};
        Place place(traffic, call.key.scope, most);
        if (!place) refuse(call, "GuardOptions::concurrency_max calls of this scope are running");
        return place;
    }

    GuardState::Traffic& traffic_;
    Place place_;
    std::size_t at_;
};

/// The claims whose handlers run on this thread. A handler that calls the guard with its own key
/// would wait for itself.
class RunningHere {
public:
    RunningHere(const KeyView& key, const ClaimReply& acquired) noexcept
        : key_(key),
          started_(acquired.started),
          attempt_(acquired.attempt),
          outer_(std::exchange(top(), this)) {}
    ~RunningHere() { top() = outer_; }
    RunningHere(const RunningHere&) = delete;
    RunningHere& operator=(const RunningHere&) = delete;

    /// Whether a claim that is in progress is one of them, and not somebody else's: the same key
    /// in another store, or one that has been taken over.
    [[nodiscard]] static bool has(const KeyView& key, const ClaimReply& met) noexcept {
        for (const RunningHere* at = top(); at != nullptr; at = at->outer_)
            if (at->started_ == met.started && at->attempt_ == met.attempt && at->key_ == key)
                return true;
        return false;
    }

private:
    static RunningHere*& top() noexcept {
        thread_local RunningHere* here = nullptr;
        return here;
    }

    KeyView key_;
    Instant started_;
    std::uint32_t attempt_;
    RunningHere* outer_;
};

[[nodiscard]] inline ClaimRequest claim_request(const Call& call, const Owner& owner) {
    const GuardOptions& options = call.guard.options();
    ClaimRequest request;
    request.key = call.key;
    request.fingerprint = call.fingerprint;
    request.fingerprint_before = call.fingerprint_before;
    request.owner = owner;
    request.lease = call.lease;
    request.retention = call.retention;
    request.held_retention = options.held_retention;
    request.policy = {options.orphan, options.max_attempts, options.max_crashes};
    request.can_verify = static_cast<bool>(options.verify);
    request.redeem_only = call.redeem_only;
    return request;
}

/// A claim of which nobody knows whether it came through: released in the background, uncounted,
/// by its owner alone.
inline void give_up_claim(const Call& call, const Owner& owner) noexcept {
    FinishRequest request = finish_request(call, owner, 0, FinishKind::release);
    request.counted = false;
    (void)leave_to_background(call, request);
}

/// An answer of the store, and what is needed to hold the claim where it is one.
struct Claimed {
    ClaimReply reply{};
    Owner owner{};
    LocalInstant sent{};
    bool unprotected = false;
    bool cancelled = false;
};

/// Whether a call may go on without a claim: by choice, and only where the store was not reached.
/// One that is full was, and knows the other keys still.
[[nodiscard]] inline bool may_run_unprotected(const GuardState& guard, const Trouble& trouble) {
    return trouble.kind == Trouble::Kind::unavailable && !trouble.full &&
           guard.options().store_down == StoreDown::run_unprotected;
}

/// What trouble at claim time comes to, where there is some. @throws UnavailableError unless the
/// guard runs unprotected; SchemaError.
inline void meet_trouble(const Call& call, Claimed& claimed) {
    const Trouble& trouble = claimed.reply.trouble;
    if (!trouble) return;
    if (trouble.may_have_applied) give_up_claim(call, claimed.owner);
    call.tell(event_of(trouble), {.detail = trouble.message});
    claimed.unprotected = may_run_unprotected(call.guard, trouble);
    if (!claimed.unprotected) trouble.raise();
}

/// One look at the store; the reply arrives as new. @throws as `meet_trouble`.
inline void look(const Call& call, Claimed& claimed) {
    const ClaimRequest request = claim_request(call, claimed.owner);
    try {
        call.guard.claim(std::span(&request, 1), std::span(&claimed.reply, 1));
    } catch (...) {
        give_up_claim(call, claimed.owner);
        throw;
    }
    meet_trouble(call, claimed);
}

/// Subscribes to what other processes settle. Null: nobody will tell.
[[nodiscard]] inline std::shared_ptr<void> watch(const Call& call) noexcept {
    try {
        return call.guard.watch(call.key, [hub = &Heartbeat::instance().hub(),
                                           at = wait_hash(call.key)] { hub->notify(at); });
    } catch (...) {  // a store of the user's own, or no memory: it is polled
        return nullptr;
    }
}

/// Between half of it and all of it: those that met once do not meet again.
[[nodiscard]] inline Duration jittered(Duration pause) {
    std::uint16_t noise = 0;
    fill_random(reinterpret_cast<char*>(&noise), sizeof noise);
    return pause / 2 + pause * noise / (2 * 65536);
}

/// Claims, or waits within the call's budget for whoever holds the key. Looks first, then
/// subscribes, looks again, and sleeps only then: a notice between cannot be missed for longer
/// than a poll, which comes rarely where other processes tell too. Holds no connection meanwhile.
[[nodiscard]] inline Claimed claim_or_wait(const Call& call, const std::stop_token& stop) {
    constexpr int stale_max = 3;
    Claimed claimed{.owner = new_owner(), .sent = call.begin};
    std::optional<WaitHub::Waiter> waiter;
    std::shared_ptr<void> watched;
    Duration pause = std::chrono::milliseconds{2};
    Duration pause_max = std::chrono::milliseconds{200};
    for (int stale = 0;; claimed.reply = ClaimReply{}, claimed.sent = LocalClock::now()) {
        look(call, claimed);
        if (claimed.unprotected) return claimed;
        if (claimed.reply.kind == ClaimKind::stale) {
            if (++stale == stale_max)
                throw UnavailableError("the store takes every claim for one that has ended");
            claimed.owner = new_owner();
            continue;
        }
        if (claimed.reply.kind != ClaimKind::in_progress || call.wait <= Duration::zero() ||
            RunningHere::has(call.key, claimed.reply))
            return claimed;
        if (!waiter) {
            waiter.emplace(Heartbeat::instance().hub(), wait_hash(call.key));
            watched = watch(call);
            if (watched) {
                pause = std::chrono::milliseconds{50};
                pause_max = std::chrono::seconds{1};
            }
            continue;
        }
        const auto left = call.begin + call.wait - LocalClock::now();
        claimed.cancelled = stop.stop_requested();
        const bool draining = call.guard.traffic().draining.load();
        if (left <= left.zero() || claimed.cancelled || draining) return claimed;
        const auto lapse = claimed.reply.lease_left + std::chrono::milliseconds{1};
        waiter->sleep(std::min<std::chrono::nanoseconds>({left, jittered(pause), lapse}), stop);
        pause = std::min(pause * 2, pause_max);
    }
}

[[nodiscard]] inline LiveClaim::Terms terms_of(const Call& call, const Claimed& claimed) {
    LiveClaim::Terms terms;
    terms.key = call.key;
    terms.owner = claimed.owner;
    terms.fence = claimed.reply.fence;
    terms.attempt = claimed.reply.attempt;
    terms.request_id = call.request_id;
    terms.lease = call.lease;
    terms.lease_left = claimed.reply.lease_left;
    terms.max_hold = call.guard.options().max_hold;
    terms.sent = claimed.sent;
    terms.renewed = call.guard.options().heartbeat && !claimed.unprotected;
    terms.unprotected = claimed.unprotected;
    return terms;
}

/// The details of an answer that is not an acquisition; its texts are moved out of the reply.
[[nodiscard]] inline OutcomeDetails details_of(Claimed& claimed) {
    ClaimReply& reply = claimed.reply;
    OutcomeDetails details;
    switch (reply.kind) {
        case ClaimKind::completed: details.kind = OutcomeKind::replayed; break;
        case ClaimKind::mismatch: details.kind = OutcomeKind::mismatch; break;
        case ClaimKind::failed: details.kind = OutcomeKind::failed; break;
        case ClaimKind::unknown: details.kind = OutcomeKind::unknown; break;
        case ClaimKind::absent: details.kind = OutcomeKind::absent; break;
        case ClaimKind::expired: details.kind = OutcomeKind::expired; break;
        default:
            details.kind = claimed.cancelled ? OutcomeKind::cancelled : OutcomeKind::in_progress;
            details.retry_after = reply.lease_left;
    }
    details.result = reply.result_kind;
    details.takeover = reply.takeover;
    details.attempt = reply.attempt;
    details.fence = reply.fence;
    details.started = reply.started;
    details.completed = reply.completed;
    details.failure = std::move(reply.failure);
    details.resource = std::move(reply.resource);
    return details;
}

[[nodiscard]] constexpr EventKind event_of(OutcomeKind kind) noexcept {
    switch (kind) {
        case OutcomeKind::executed: return EventKind::executed;
        case OutcomeKind::replayed: return EventKind::replayed;
        case OutcomeKind::in_progress: return EventKind::in_progress;
        case OutcomeKind::mismatch: return EventKind::mismatch;
        case OutcomeKind::failed: return EventKind::failed;
        case OutcomeKind::unknown: return EventKind::unknown;
        case OutcomeKind::cancelled: return EventKind::cancelled;
        case OutcomeKind::absent: return EventKind::absent;
        case OutcomeKind::expired: return EventKind::expired;
    }
    return EventKind::unknown;
}

/// The outcome of a call that did not get to run: the first answer, or why there is none.
/// @throws CodecError where the stored result is of another type.
template <class V>
[[nodiscard]] Outcome<V> answer(const Call& call, Claimed& claimed) {
    using Value = typename Outcome<V>::Value;
    OutcomeDetails details = details_of(claimed);
    std::optional<Value> value;
    if (details.kind == OutcomeKind::replayed && details.result == ResultKind::value) {
        try {
            if constexpr (std::same_as<Value, std::string>) {  // its own encoding: not copied
                if (claimed.reply.codec == codec_id<Value>())
                    value.emplace(std::move(claimed.reply.result));
            }
            if (!value)
                value.emplace(decode_result<Value>(claimed.reply.codec, claimed.reply.result));
        } catch (const std::exception& e) {
            call.tell(EventKind::schema_error, {.fence = details.fence, .detail = e.what()});
            throw;
        }
    }
    call.tell(
        event_of(details.kind),
        {.fence = details.fence, .attempt = details.attempt, .failure = details.failure.kind});
    return Outcome<V>(std::move(details), std::move(value));
}

}  // namespace idem::inline v0_1::detail

#endif
