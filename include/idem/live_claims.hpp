#ifndef IDEM_LIVE_CLAIMS_HPP
#define IDEM_LIVE_CLAIMS_HPP

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <idem/clock.hpp>
#include <idem/guard_state.hpp>
#include <idem/live_claim.hpp>
#include <idem/operation.hpp>

namespace idem::inline v0_1::detail {

/// A claim's part of a batch, with a copy of its key: the claim may leave while the batch is sent.
struct Renewal {
    LiveClaim* claim = nullptr;  ///< Null once it has left; under the mutex of its stripe.
    std::size_t stripe = 0;
    Key key{};
    RenewRequest request{};
};

/// What of one guard is renewed together. A deque: claims point at their renewals.
struct RenewalBatch {
    std::shared_ptr<GuardState> guard{};
    std::deque<Renewal> renewals{};
};

/// The claims that this process holds, striped by thread so that quick calls do not meet. Knows
/// what is due and what has lapsed; asks no store and has no thread.
class LiveClaims {
public:
    struct Times {
        LocalInstant due;
        LocalInstant deadline;
    };
    /// When it must be renewed, and by when it is lost otherwise.
    Times enter(LiveClaim& claim);
    void leave(LiveClaim& claim) noexcept;
    void stop_renewal(LiveClaim& claim);
    /// When its lease ends; nothing where that is told anyhow, or no longer matters.
    [[nodiscard]] std::optional<LocalInstant> watch_end_of(LiveClaim& claim);

    [[nodiscard]] LiveClaim::Signals signals_of(LiveClaim& claim);
    [[nodiscard]] std::stop_token token_of(LiveClaim& claim,
                                           std::stop_source LiveClaim::Signals::*which);
    /// Asks every handler of a guard to stop.
    void request_stop(const GuardState& guard);

    /// Tells the claims whose lease is over by now; `next` moves up to the next end.
    void lapse(LocalInstant now, LocalInstant& next);

    /// Appends a batch for each guard that has a claim due: one falling due within half a period
    /// goes along, so that claims made at odd times end up in one batch per period. `next` moves
    /// up to the due time of the first that does not.
    void collect(LocalInstant now, std::deque<RenewalBatch>& batches, LocalInstant& next);
    /// Takes in what the store answered to a renewal that was sent at `sent`.
    void apply(const Renewal& renewal, LocalInstant sent, const RenewReply& reply,
               LocalInstant& next);
    /// No claim points into the batches from here on.
    void let_go(std::deque<RenewalBatch>& batches) noexcept;

private:
    struct alignas(64) Stripe {
        std::mutex mutex{};
        LiveClaim* head = nullptr;
    };

    /// A loss, with all that is needed to tell it: the claim may leave meanwhile.
    struct Loss {
        std::shared_ptr<GuardState> guard;
        Key key;
        std::string request_id;
        Fence fence;
        std::uint32_t attempt;
        LostReason reason;
        LiveClaim::Signals signals;

        Loss(LiveClaim& claim, LostReason why);
        void tell() noexcept;
    };

    [[nodiscard]] Stripe& stripe_of(const LiveClaim& claim) noexcept {
        return stripes_[claim.stripe_];
    }
    [[nodiscard]] std::vector<const GuardState*> guards_due(LocalInstant now);
    static void add(std::deque<RenewalBatch>& batches, LiveClaim& claim);

    std::array<Stripe, 16> stripes_{};
};

inline LiveClaims::Loss::Loss(LiveClaim& claim, LostReason why)
    : guard(claim.guard_.shared_from_this()),
      key(claim.terms_.key.key()),
      request_id(claim.terms_.request_id),
      fence(claim.terms_.fence),
      attempt(claim.terms_.attempt),
      reason(why),
      signals(claim.signals_) {}

inline void LiveClaims::Loss::tell() noexcept {
    guard->tell(EventKind::lease_lost, KeyView(guard->component(), key),
                {.request_id = request_id, .fence = fence, .attempt = attempt, .lost = reason});
    signals.fire();
}

inline LiveClaims::Times LiveClaims::enter(LiveClaim& claim) {
    static std::atomic<std::size_t> threads{0};
    thread_local const std::size_t mine = threads.fetch_add(1);
    claim.stripe_ = mine % stripes_.size();
    Stripe& stripe = stripe_of(claim);
    std::scoped_lock const lock(stripe.mutex);
    claim.next_ = stripe.head;
    if (stripe.head != nullptr) stripe.head->previous_ = &claim;
    stripe.head = &claim;
    claim.entered_ = true;
    return {claim.due_, claim.deadline()};
}

inline void LiveClaims::leave(LiveClaim& claim) noexcept {
    Stripe& stripe = stripe_of(claim);
    std::scoped_lock const lock(stripe.mutex);
    if (!claim.entered_) return;
    claim.entered_ = false;
    if (claim.on_wire_ != nullptr) claim.on_wire_->claim = nullptr;
    if (claim.previous_ != nullptr) claim.previous_->next_ = claim.next_;
    if (claim.next_ != nullptr) claim.next_->previous_ = claim.previous_;
    if (stripe.head == &claim) stripe.head = claim.next_;
}

inline void LiveClaims::stop_renewal(LiveClaim& claim) {
    std::scoped_lock const lock(stripe_of(claim).mutex);
    claim.terms_.renewed = false;
}

inline std::optional<LocalInstant> LiveClaims::watch_end_of(LiveClaim& claim) {
    std::scoped_lock const lock(stripe_of(claim).mutex);
    const bool over = !claim.entered_ || claim.lost_.load() != LostReason::none;
    if (over || std::exchange(claim.watched_, true)) return std::nullopt;
    return claim.deadline();
}

inline LiveClaim::Signals LiveClaims::signals_of(LiveClaim& claim) {
    std::scoped_lock const lock(stripe_of(claim).mutex);
    return claim.signals_;
}

inline std::stop_token LiveClaims::token_of(LiveClaim& claim,
                                            std::stop_source LiveClaim::Signals::*which) {
    std::scoped_lock const lock(stripe_of(claim).mutex);
    std::stop_source& source = claim.signals_.*which;
    if (!source.stop_possible()) source = std::stop_source();
    return source.get_token();
}

inline void LiveClaims::request_stop(const GuardState& guard) {
    std::vector<std::stop_source> sources;  // callbacks run outside the locks
    for (Stripe& stripe : stripes_) {
        std::scoped_lock const lock(stripe.mutex);
        for (LiveClaim* c = stripe.head; c != nullptr; c = c->next_) {
            if (&c->guard_ != &guard) continue;
            std::stop_source& source = c->signals_.stop;
            if (!source.stop_possible()) source = std::stop_source();
            sources.push_back(source);
        }
    }
    for (auto& source : sources) source.request_stop();
}

inline void LiveClaims::lapse(LocalInstant now, LocalInstant& next) {
    std::vector<Loss> losses;
    for (Stripe& stripe : stripes_) {
        std::scoped_lock const lock(stripe.mutex);
        for (LiveClaim* c = stripe.head; c != nullptr; c = c->next_) {
            if (!c->watched_ || c->lost_.load() != LostReason::none) continue;
            if (c->deadline() > now) {
                next = std::min(next, c->deadline());
                continue;
            }
            losses.emplace_back(*c, c->end_reason());
            if (!c->mark_lost(losses.back().reason)) losses.pop_back();
        }
    }
    for (Loss& loss : losses) loss.tell();
}

inline std::vector<const GuardState*> LiveClaims::guards_due(LocalInstant now) {
    std::vector<const GuardState*> guards;
    for (Stripe& stripe : stripes_) {
        std::scoped_lock const lock(stripe.mutex);
        for (const LiveClaim* c = stripe.head; c != nullptr; c = c->next_) {
            if (!c->wants_renewal() || c->due_ > now) continue;
            const GuardState* guard = &c->guard_;
            if (std::find(guards.begin(), guards.end(), guard) == guards.end())
                guards.push_back(guard);
        }
    }
    return guards;
}

inline void LiveClaims::add(std::deque<RenewalBatch>& batches, LiveClaim& claim) {
    const auto same = [&](const RenewalBatch& b) { return b.guard.get() == &claim.guard_; };
    auto batch = std::find_if(batches.begin(), batches.end(), same);
    if (batch == batches.end()) {
        batches.push_back({claim.guard_.shared_from_this(), {}});
        batch = std::prev(batches.end());
    }
    const auto& terms = claim.terms_;
    Renewal& renewal = batch->renewals.emplace_back();
    renewal.stripe = claim.stripe_;
    renewal.key = terms.key.key();
    renewal.request.key = KeyView(terms.key.component, renewal.key);
    renewal.request.owner = terms.owner;
    renewal.request.fence = terms.fence;
    renewal.request.lease = terms.lease;
    renewal.claim = &claim;
    claim.on_wire_ = &renewal;
}

inline void LiveClaims::collect(LocalInstant now, std::deque<RenewalBatch>& batches,
                                LocalInstant& next) {
    const auto guards = guards_due(now);
    for (Stripe& stripe : stripes_) {
        std::scoped_lock const lock(stripe.mutex);
        for (LiveClaim* c = stripe.head; c != nullptr; c = c->next_) {
            if (!c->wants_renewal()) continue;
            const bool now_too =
                c->due_ <= now + c->terms_.lease / 6 &&
                std::find(guards.begin(), guards.end(), &c->guard_) != guards.end();
            if (now_too) {
                add(batches, *c);
            } else {
                next = std::min(next, c->due_);
            }
        }
    }
}

inline void LiveClaims::apply(const Renewal& renewal, LocalInstant sent, const RenewReply& reply,
                              LocalInstant& next) {
    std::optional<Loss> loss;
    {
        std::scoped_lock const lock(stripes_[renewal.stripe].mutex);
        if (renewal.claim == nullptr) return;
        LiveClaim& claim = *renewal.claim;
        const Duration lease = claim.terms_.lease;
        const auto now = LocalClock::now();
        auto reason = LostReason::none;
        if (now >= claim.deadline()) {
            reason = claim.end_reason();
        } else if (reply.trouble) {
            claim.due_ = now + std::max<Duration>(lease / 12, std::chrono::milliseconds{1});
        } else if (reply.lost) {
            reason = reply.reason;
        } else {
            claim.move_deadline(sent, reply.lease_left);
            claim.due_ = sent + lease / 3;
        }
        next = std::min({next, claim.due_, claim.deadline()});
        if (reason == LostReason::none) return;
        loss.emplace(claim, reason);
        if (!claim.mark_lost(reason)) return;
    }
    loss->tell();
}

inline void LiveClaims::let_go(std::deque<RenewalBatch>& batches) noexcept {
    for (RenewalBatch& batch : batches) {
        for (Renewal& renewal : batch.renewals) {
            std::scoped_lock const lock(stripes_[renewal.stripe].mutex);
            if (renewal.claim != nullptr) renewal.claim->on_wire_ = nullptr;
        }
    }
}

}  // namespace idem::inline v0_1::detail

#endif
