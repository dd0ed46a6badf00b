#ifndef IDEM_HEARTBEAT_HPP
#define IDEM_HEARTBEAT_HPP

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <idem/detail/fork.hpp>
#include <idem/detail/wait_hub.hpp>
#include <idem/guard_state.hpp>
#include <idem/late_finish.hpp>
#include <idem/live_claim.hpp>
#include <idem/operation.hpp>

namespace idem::inline v0_1::detail {

/// The one background thread of this shared object: renews all live claims, one batch per guard
/// and period, and records what could not be recorded at once. It starts with the first claim that
/// needs it and is left behind by a fork.
class Heartbeat {
public:
    /// The heartbeat of this process. @throws std::system_error where no thread can be made.
    [[gnu::visibility("hidden")]] static Heartbeat& instance();

    void enter(LiveClaim& claim);
    void leave(LiveClaim& claim) noexcept;
    /// Takes over a finish. False: too many are waiting already.
    [[nodiscard]] bool later(LateFinish finish);
    [[nodiscard]] WaitHub& hub() noexcept { return hub_; }
    [[nodiscard]] bool thread_started() const noexcept { return started_.load(); }

    [[nodiscard]] std::size_t live_claims(const GuardState& guard);
    /// Asks every handler of a guard to stop.
    void request_stop(const GuardState& guard);

    ~Heartbeat() = default;
    Heartbeat(const Heartbeat&) = delete;
    Heartbeat& operator=(const Heartbeat&) = delete;

private:
    friend class LiveClaim;

    static constexpr std::size_t batch_max = 1000;
    static constexpr std::size_t late_max = 10'000;
    static constexpr std::size_t late_bytes_max = std::size_t{64} << 20U;
    static constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();

    struct alignas(64) Stripe {
        std::mutex mutex{};
        LiveClaim* head = nullptr;
        std::vector<LiveClaim*> departed{};  ///< Left while a renewal of theirs was on the wire.
    };
    struct Renewal {
        LiveClaim* claim = nullptr;
        std::size_t stripe = 0;
        std::shared_ptr<GuardState> guard{};
        Key key{};
        RenewRequest request{};
        Duration lease{};
        RenewReply reply{};
        LocalInstant sent{};
    };

    Heartbeat() = default;

    void ensure_thread();
    void stop_thread() noexcept;
    void wake_by(LocalInstant when);
    void loop(const std::stop_token& stop);
    void sleep_until(LocalInstant when, const std::stop_token& stop);
    [[nodiscard]] std::vector<Renewal> collect(LocalInstant now, LocalInstant& next);
    void renew_due(LocalInstant now, LocalInstant& next);
    void send(std::span<Renewal> batch);
    void apply(Renewal& renewal, LocalInstant& next);
    void finish_late(LocalInstant now, LocalInstant& next);
    [[nodiscard]] bool settle_late(LateFinish& finish, LocalInstant now);

    std::uint32_t generation_ = process_generation();
    std::array<Stripe, 16> stripes_{};
    WaitHub hub_{};
    std::mutex late_mutex_{};
    std::vector<LateFinish> late_{};
    std::size_t late_bytes_ = 0;

    std::mutex wake_mutex_{};
    std::condition_variable_any wake_{};
    std::atomic<std::int64_t> next_wake_{never};
    bool poked_ = false;
    std::atomic<bool> started_{false};
    std::once_flag start_once_{};
    std::jthread thread_{};
};

// --- LiveClaim ----------------------------------------------------------------------------------

inline LiveClaim::LiveClaim(GuardState& guard, const Terms& terms)
    : guard_(guard), terms_(terms), deadline_(deadline_after(terms.sent, terms.lease_left)) {
    due_ = terms.sent + terms.lease / 3;
    if (terms.unprotected) lost_.store(LostReason::gone);
    Heartbeat::instance().enter(*this);
}

/// The loss is told a tenth of the lease before it ends, so that a holder that cannot reach the
/// store has stopped before another may begin.
inline std::int64_t LiveClaim::deadline_after(LocalInstant sent,
                                              Duration lease_left) const noexcept {
    const Duration margin = terms_.renewed ? terms_.lease / 10 : Duration{};
    return (sent + lease_left - margin).time_since_epoch().count();
}

inline void LiveClaim::leave() noexcept {
    if (inherited()) return;  // the list belongs to the parent process
    if (entered_) Heartbeat::instance().leave(*this);
    callbacks_.clear();
}

inline std::stop_source LiveClaim::stop_source() {
    std::scoped_lock const lock(Heartbeat::instance().stripes_[stripe_].mutex);
    if (!stop_.stop_possible()) stop_ = std::stop_source();
    return stop_;
}

inline std::stop_token LiveClaim::stop_token() {
    auto source = stop_source();
    if (lost() != LostReason::none) source.request_stop();
    return source.get_token();
}

inline void LiveClaim::on_lost(std::function<void(LostReason)> callback) {
    auto call = [this, callback = std::move(callback)] {
        if (lost() != LostReason::none) callback(lost());
    };
    callbacks_.push_back(
        std::make_unique<std::stop_callback<std::function<void()>>>(stop_token(), std::move(call)));
}

inline void LiveClaim::request_stop() {
    stop_source().request_stop();
}

inline void LiveClaim::stop_renewal() {
    std::scoped_lock const lock(Heartbeat::instance().stripes_[stripe_].mutex);
    terms_.renewed = false;
}

inline void LiveClaim::extend(LocalInstant sent, Duration lease_left) noexcept {
    if (held()) deadline_.store(deadline_after(sent, lease_left));
}

inline void LiveClaim::lose(LostReason reason) noexcept {
    auto none = LostReason::none;
    if (!lost_.compare_exchange_strong(none, reason)) return;
    guard_.tell(EventKind::lease_lost, terms_.key, {.fence = terms_.fence, .lost = reason});
    std::stop_source source(std::nostopstate);
    {
        std::scoped_lock const lock(Heartbeat::instance().stripes_[stripe_].mutex);
        source = stop_;
    }
    source.request_stop();
}

// --- Heartbeat ----------------------------------------------------------------------------------

inline Heartbeat& Heartbeat::instance() {
    // Left alone at exit but for its thread: other threads may still be in guarded calls.
    struct Slot {
        std::atomic<Heartbeat*> current{nullptr};
        ~Slot() {
            Heartbeat* last = current.load();
            if (last != nullptr && last->generation_ == process_generation()) last->stop_thread();
        }
    };
    static Slot slot;
    Heartbeat* found = slot.current.load(std::memory_order_acquire);
    if (found != nullptr && found->generation_ == process_generation()) [[likely]]
        return *found;
    auto* fresh = new Heartbeat;  // a fork leaves the parent's behind, with its locks as they were
    if (slot.current.compare_exchange_strong(found, fresh)) return *fresh;
    delete fresh;
    return *found;
}

inline void Heartbeat::stop_thread() noexcept {
    if (!thread_.joinable()) return;
    thread_.request_stop();
    thread_.join();
}

inline std::size_t Heartbeat::live_claims(const GuardState& guard) {
    std::size_t count = 0;
    for (Stripe& stripe : stripes_) {
        std::scoped_lock const lock(stripe.mutex);
        for (const LiveClaim* c = stripe.head; c != nullptr; c = c->next_)
            count += &c->guard_ == &guard ? 1 : 0;
    }
    return count;
}

inline void Heartbeat::request_stop(const GuardState& guard) {
    std::vector<std::stop_source> sources;  // callbacks run outside the locks
    for (Stripe& stripe : stripes_) {
        std::scoped_lock const lock(stripe.mutex);
        for (LiveClaim* c = stripe.head; c != nullptr; c = c->next_) {
            if (&c->guard_ != &guard) continue;
            if (!c->stop_.stop_possible()) c->stop_ = std::stop_source();
            sources.push_back(c->stop_);
        }
    }
    for (auto& source : sources) source.request_stop();
}

inline void Heartbeat::ensure_thread() {
    if (started_.load(std::memory_order_acquire)) return;
    std::call_once(start_once_, [this] {
        thread_ = std::jthread([this](const std::stop_token& stop) { loop(stop); });
        started_.store(true, std::memory_order_release);
    });
}

inline void Heartbeat::enter(LiveClaim& claim) {
    if (claim.terms_.renewed) ensure_thread();
    static std::atomic<std::size_t> threads{0};
    thread_local const std::size_t mine = threads.fetch_add(1);
    claim.stripe_ = mine % stripes_.size();
    Stripe& stripe = stripes_[claim.stripe_];
    {
        std::scoped_lock const lock(stripe.mutex);
        claim.next_ = stripe.head;
        if (stripe.head != nullptr) stripe.head->previous_ = &claim;
        stripe.head = &claim;
        claim.entered_ = true;
    }
    if (claim.terms_.renewed) wake_by(claim.due_);
}

inline void Heartbeat::leave(LiveClaim& claim) noexcept {
    Stripe& stripe = stripes_[claim.stripe_];
    std::scoped_lock const lock(stripe.mutex);
    if (!claim.entered_) return;
    claim.entered_ = false;
    if (claim.in_batch_) stripe.departed.push_back(&claim);
    if (claim.previous_ != nullptr) claim.previous_->next_ = claim.next_;
    if (claim.next_ != nullptr) claim.next_->previous_ = claim.previous_;
    if (stripe.head == &claim) stripe.head = claim.next_;
}

inline bool Heartbeat::later(LateFinish finish) {
    ensure_thread();
    const auto bytes = finish.result.size();
    {
        std::scoped_lock const lock(late_mutex_);
        if (late_.size() >= late_max || late_bytes_ + bytes > late_bytes_max) return false;
        late_bytes_ += bytes;
        finish.guard->traffic().unrecorded.fetch_add(1);
        late_.push_back(std::move(finish));
    }
    wake_by(LocalClock::now());
    return true;
}

/// Costs one load unless the thread would sleep past `when`.
inline void Heartbeat::wake_by(LocalInstant when) {
    if (when.time_since_epoch().count() >= next_wake_.load()) return;
    std::scoped_lock const lock(wake_mutex_);
    poked_ = true;
    wake_.notify_one();
}

inline void Heartbeat::loop(const std::stop_token& stop) {
    constexpr std::chrono::seconds idle{10};
    bool idled = false;
    while (!stop.stop_requested()) {
        next_wake_.store(never);  // whoever enters from here on asks for another round
        const auto now = LocalClock::now();
        auto next = LocalInstant::max();
        renew_due(now, next);
        finish_late(now, next);
        // With nothing to do it stays armed for a while: short calls that come one by one would
        // otherwise each pay for waking it.
        if (next != LocalInstant::max()) {
            idled = false;
        } else if (!std::exchange(idled, true)) {
            next = now + idle;
        }
        sleep_until(next, stop);
    }
}

inline void Heartbeat::sleep_until(LocalInstant when, const std::stop_token& stop) {
    std::unique_lock lock(wake_mutex_);
    next_wake_.store(when.time_since_epoch().count());
    const auto ready = [this] { return poked_; };
    if (when == LocalInstant::max()) {
        (void)wake_.wait(lock, stop, ready);
    } else {
        (void)wake_.wait_for(lock, stop, when - LocalClock::now(), ready);
    }
    poked_ = false;
}

/// Everything that is due, with copies of its key: a claim may leave while its renewal is sent.
inline std::vector<Heartbeat::Renewal> Heartbeat::collect(LocalInstant now, LocalInstant& next) {
    std::vector<Renewal> batch;
    for (std::size_t i = 0; i < stripes_.size(); ++i) {
        std::scoped_lock const lock(stripes_[i].mutex);
        for (LiveClaim* c = stripes_[i].head; c != nullptr; c = c->next_) {
            if (!c->terms_.renewed || c->lost_.load() != LostReason::none) continue;
            const LocalInstant deadline{LocalInstant::duration(c->deadline_.load())};
            if (c->due_ > now && deadline > now) {
                next = std::min({next, c->due_, deadline});
                continue;
            }
            c->in_batch_ = true;
            batch.push_back({.claim = c,
                             .stripe = i,
                             .guard = c->guard_.shared_from_this(),
                             .key = c->terms_.key.key(),
                             .lease = c->terms_.lease});
            RenewRequest& request = batch.back().request;
            request.owner = c->terms_.owner;
            request.fence = c->terms_.fence;
            request.lease = c->terms_.lease;
        }
    }
    return batch;
}

inline void Heartbeat::renew_due(LocalInstant now, LocalInstant& next) {
    auto batch = collect(now, next);
    std::stable_sort(batch.begin(), batch.end(), [](const Renewal& a, const Renewal& b) {
        return std::less<>{}(a.guard.get(), b.guard.get());
    });
    for (Renewal& r : batch) r.request.key = KeyView(r.guard->component(), r.key);
    for (std::size_t from = 0; from < batch.size();) {
        std::size_t to = from;
        while (to < batch.size() && to - from < batch_max && batch[to].guard == batch[from].guard)
            ++to;
        send(std::span(batch).subspan(from, to - from));
        from = to;
    }
    for (Renewal& r : batch) apply(r, next);
    for (Stripe& stripe : stripes_) {
        std::scoped_lock const lock(stripe.mutex);
        stripe.departed.clear();
    }
}

inline void Heartbeat::send(std::span<Renewal> batch) {
    std::vector<RenewRequest> requests;
    for (const Renewal& r : batch) requests.push_back(r.request);
    std::vector<RenewReply> replies(batch.size());
    const auto sent = LocalClock::now();
    try {
        batch.front().guard->renew(requests, replies);
    } catch (const std::exception& e) {
        for (auto& reply : replies) reply.trouble = Trouble::unavailable(e.what(), true);
    } catch (...) {
        for (auto& reply : replies) reply.trouble = Trouble::unavailable("renew threw", true);
    }
    for (std::size_t i = 0; i < batch.size(); ++i) {
        batch[i].reply = std::move(replies[i]);
        batch[i].sent = sent;
    }
}

inline void Heartbeat::apply(Renewal& renewal, LocalInstant& next) {
    LiveClaim& claim = *renewal.claim;
    Stripe& stripe = stripes_[renewal.stripe];
    std::stop_source stop(std::nostopstate);
    auto reason = LostReason::none;
    {
        std::scoped_lock const lock(stripe.mutex);
        if (std::erase(stripe.departed, &claim) > 0) return;
        claim.in_batch_ = false;
        const auto now = LocalClock::now();
        const LocalInstant deadline{LocalInstant::duration(claim.deadline_.load())};
        if (now >= deadline) {
            reason = LostReason::lapsed;
        } else if (renewal.reply.trouble) {
            claim.due_ = now + std::max<Duration>(renewal.lease / 12, std::chrono::milliseconds{1});
        } else if (renewal.reply.lost) {
            reason = renewal.reply.reason;
        } else {
            claim.deadline_.store(claim.deadline_after(renewal.sent, renewal.reply.lease_left));
            claim.due_ = renewal.sent + renewal.lease / 3;
        }
        if (reason == LostReason::none) {
            next = std::min({next, claim.due_, deadline});
        } else {
            auto none = LostReason::none;
            if (!claim.lost_.compare_exchange_strong(none, reason)) return;
            stop = claim.stop_;
        }
    }
    if (renewal.reply.trouble)
        renewal.guard->tell(
            EventKind::store_error, renewal.request.key,
            {.fence = renewal.request.fence, .detail = renewal.reply.trouble.message});
    if (reason == LostReason::none) return;
    renewal.guard->tell(EventKind::lease_lost, renewal.request.key,
                        {.fence = renewal.request.fence, .lost = reason});
    stop.request_stop();
}

/// Whether it is over: recorded, lost, or given up.
inline bool Heartbeat::settle_late(LateFinish& finish, LocalInstant now) {
    GuardState& guard = *finish.guard;
    const FinishRequest request = finish.request();
    FinishReply reply;
    if (now >= finish.next_renew && finish.kind != FinishKind::release) {
        RenewRequest renew{request.key, finish.owner, finish.fence, finish.lease, {}, {}};
        RenewReply renewed;
        try {
            guard.renew(std::span(&renew, 1), std::span(&renewed, 1));
        } catch (...) {  // the finish below will tell
        }
        finish.next_renew = now + finish.lease / 3;
    }
    try {
        guard.finish(std::span(&request, 1), std::span(&reply, 1));
    } catch (const std::exception& e) {
        reply.trouble = Trouble::unavailable(e.what(), true);
    } catch (...) {
        reply.trouble = Trouble::unavailable("finish threw", true);
    }
    const Event about{.fence = finish.fence, .lost = reply.reason, .detail = reply.trouble.message};
    if (!reply.trouble) {
        const bool release = finish.kind == FinishKind::release;
        guard.tell(release      ? EventKind::released
                   : reply.lost ? EventKind::record_abandoned
                                : EventKind::recorded_late,
                   request.key, about);
        instance().hub().notify(wait_hash(request.key));
        return true;
    }
    if (reply.trouble.kind != Trouble::Kind::unavailable && finish.step_down()) return false;
    if (now < finish.give_up) return false;
    guard.tell(EventKind::record_abandoned, request.key, about);
    return true;
}

inline void Heartbeat::finish_late(LocalInstant now, LocalInstant& next) {
    std::vector<LateFinish> due;
    {
        std::scoped_lock const lock(late_mutex_);
        const auto middle = std::stable_partition(
            late_.begin(), late_.end(), [&](const LateFinish& f) { return f.next_try > now; });
        std::move(middle, late_.end(), std::back_inserter(due));
        late_.erase(middle, late_.end());
        for (const LateFinish& f : late_) next = std::min(next, f.next_try);
    }
    std::vector<const GuardState*> silent;  // one attempt tells; the others must not wait it out
    for (LateFinish& finish : due) {
        const auto bytes = finish.result.size();
        const bool skip =
            std::find(silent.begin(), silent.end(), finish.guard.get()) != silent.end();
        const bool over = !skip && settle_late(finish, now);
        if (!over && !skip) silent.push_back(finish.guard.get());
        std::scoped_lock const lock(late_mutex_);
        late_bytes_ -= bytes;
        if (over) {
            finish.guard->traffic().unrecorded.fetch_sub(1);
            continue;
        }
        constexpr Duration longest = std::chrono::seconds{5};
        finish.pause =
            std::min(std::max<Duration>(finish.pause * 2, std::chrono::milliseconds{5}), longest);
        finish.next_try = LocalClock::now() + std::min(finish.pause, finish.lease / 3);
        next = std::min(next, finish.next_try);
        late_bytes_ += finish.result.size();
        late_.push_back(std::move(finish));
    }
}

}  // namespace idem::inline v0_1::detail

#endif
