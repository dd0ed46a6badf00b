#ifndef IDEM_HEARTBEAT_HPP
#define IDEM_HEARTBEAT_HPP

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <idem/detail/background_thread.hpp>
#include <idem/detail/fork.hpp>
#include <idem/detail/wait_hub.hpp>
#include <idem/guard_state.hpp>
#include <idem/late_finish.hpp>
#include <idem/live_claim.hpp>
#include <idem/live_claims.hpp>
#include <idem/operation.hpp>

namespace idem::inline v0_1::detail {

/// The background of this shared object. One thread renews all live claims, one batch per guard
/// and period, and records what could not be recorded at once; it starts with the first claim that
/// needs it. A second one starts with the first request of that thread: it tells losses in time
/// while a store lets the first one wait. Both are left behind by a fork. A store that hangs keeps
/// the renewals of every other waiting, and the end of the process too: a store must bound its
/// requests (`time_allowed`) to less than the shortest lease in the process.
class Heartbeat {
public:
    /// The heartbeat of this process.
    [[gnu::visibility("hidden")]] static Heartbeat& instance();

    /// @throws std::system_error where no thread can be made.
    void enter(LiveClaim& claim);
    void leave(LiveClaim& claim) noexcept { claims_.leave(claim); }
    /// From here on the end of a lease that nobody renews is told.
    void watch_end_of(LiveClaim& claim);
    [[nodiscard]] LiveClaims& claims() noexcept { return claims_; }
    /// Takes over a finish. False: too many are waiting already.
    [[nodiscard]] bool later(LateFinish finish);
    [[nodiscard]] WaitHub& hub() noexcept { return hub_; }

    ~Heartbeat() = default;
    Heartbeat(const Heartbeat&) = delete;
    Heartbeat& operator=(const Heartbeat&) = delete;

private:
    friend class LiveClaim;

    static constexpr std::size_t batch_max = 10'000;
    static constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();

    /// A request of the background: while it lasts, losses are told by the watch.
    class OnWire {
    public:
        explicit OnWire(Heartbeat& heartbeat) : heartbeat_(heartbeat) { heartbeat_.on_wire(true); }
        ~OnWire() { heartbeat_.on_wire(false); }
        OnWire(const OnWire&) = delete;
        OnWire& operator=(const OnWire&) = delete;

    private:
        Heartbeat& heartbeat_;
    };

    Heartbeat() = default;

    void ensure_thread();
    void stop_threads() noexcept;
    void wake_by(LocalInstant when, LocalInstant deadline);
    void loop(const std::stop_token& stop);
    [[nodiscard]] LocalInstant work(LocalInstant now);
    void sleep_until(LocalInstant when, const std::stop_token& stop);
    void renew(LocalInstant now, LocalInstant& next);
    void send(RenewalBatch& batch, std::size_t from, LocalInstant& next);
    void on_wire(bool now);
    void watch(const std::stop_token& stop);

    MadeIn made_in_{};
    Heartbeat* parents_ = nullptr;  ///< Of the process this is a fork of, left as it was.
    LiveClaims claims_{};
    LateFinishes late_{};
    WaitHub hub_{};

    std::mutex mutex_{};  ///< Of what follows.
    std::condition_variable_any wake_{};
    std::condition_variable_any watch_wake_{};
    std::atomic<std::int64_t> next_wake_{never};  ///< Written under the mutex.
    bool poked_ = false;
    bool on_wire_ = false;
    bool watch_poked_ = false;
    LocalInstant watch_next_ = LocalInstant::max();
    std::atomic<bool> started_{false};
    std::once_flag start_once_{};
    std::jthread thread_{};
    std::jthread watch_{};
};

// --- LiveClaim ----------------------------------------------------------------------------------

inline LiveClaim::LiveClaim(GuardState& guard, const Terms& terms)
    : guard_(guard), terms_(terms), home_(&Heartbeat::instance()) {
    move_deadline(terms.sent, terms.lease_left);
    due_ = terms.sent + terms.lease / 3;
    if (terms.max_hold > Duration::zero()) hold_end_ = terms.sent + terms.max_hold;
    watched_ = terms.renewed;
    if (terms.unprotected) lost_.store(LostReason::gone);
    home_->enter(*this);
}

/// The loss is told a tenth of the lease before it ends, so that a holder that cannot reach the
/// store has stopped before another may begin. An answer that was overtaken by a later one on its
/// way does not shorten anything.
inline void LiveClaim::move_deadline(LocalInstant sent, Duration lease_left) noexcept {
    const Duration margin = terms_.renewed ? terms_.lease / 10 : Duration{};
    const std::int64_t to = (sent + lease_left - margin).time_since_epoch().count();
    std::int64_t from = deadline_.load();
    while (from < to && !deadline_.compare_exchange_weak(from, to)) {
    }
}

inline void LiveClaim::leave() noexcept {
    if (inherited()) {
        // List and locks are the parent's, and a callback that ran at the fork never ends here.
        for (auto& callback : callbacks_) (void)callback.release();
        return;
    }
    home_->leave(*this);
    callbacks_.clear();
}

inline std::stop_token LiveClaim::token_of(std::stop_source Signals::*which) {
    if (inherited()) {
        std::stop_source stopped;
        stopped.request_stop();
        return stopped.get_token();
    }
    auto token = home_->claims_.token_of(*this, which);
    home_->watch_end_of(*this);
    if (lost() != LostReason::none) home_->claims_.signals_of(*this).fire();
    return token;
}

inline std::stop_token LiveClaim::stop_token() {
    return token_of(&Signals::stop);
}

inline void LiveClaim::on_lost(std::function<void(LostReason)> callback) {
    auto shared = std::make_shared<std::function<void(LostReason)>>(std::move(callback));
    auto call = [this, shared = std::move(shared)] {
        const auto kept = shared;  // it may end its own claim, which ends this
        try {
            (*kept)(lost());
        } catch (...) {  // nobody is there to catch it: it would end the process
        }
    };
    callbacks_.push_back(std::make_unique<Callback>(token_of(&Signals::lost), std::move(call)));
}

inline void LiveClaim::stop_renewal() {
    if (!inherited()) home_->claims_.stop_renewal(*this);
}

inline void LiveClaim::extend(LocalInstant sent, Duration lease_left) noexcept {
    if (held()) move_deadline(sent, lease_left);
}

inline void LiveClaim::lose(LostReason reason) noexcept {
    if (!mark_lost(reason)) return;
    guard_.tell(EventKind::lease_lost, terms_.key,
                {.request_id = terms_.request_id,
                 .fence = terms_.fence,
                 .attempt = terms_.attempt,
                 .lost = reason});
    home_->claims_.signals_of(*this).fire();
}

// --- Heartbeat ----------------------------------------------------------------------------------

inline Heartbeat& Heartbeat::instance() {
    // Left alone at exit but for its threads: others may still be in guarded calls.
    struct Slot {
        std::atomic<Heartbeat*> current{nullptr};
        ~Slot() {
            Heartbeat* last = current.load();
            if (last != nullptr && last->made_in_.here()) last->stop_threads();
        }
    };
    static Slot slot;
    Heartbeat* found = slot.current.load(std::memory_order_acquire);
    if (found != nullptr && found->made_in_.here()) [[likely]]
        return *found;
    auto* fresh = new Heartbeat;  // a fork leaves the parent's behind, with its locks as they were
    fresh->parents_ = found;
    if (slot.current.compare_exchange_strong(found, fresh)) return *fresh;
    delete fresh;
    return *found;
}

inline void Heartbeat::ensure_thread() {
    if (started_.load(std::memory_order_acquire)) return;
    std::call_once(start_once_, [this] {
        thread_ = background_thread([this](const std::stop_token& stop) { loop(stop); });
        started_.store(true, std::memory_order_release);
    });
}

inline void Heartbeat::stop_threads() noexcept {
    for (std::jthread* thread : {&thread_, &watch_}) {  // the first one starts the second
        if (!thread->joinable()) continue;
        thread->request_stop();
        if (thread->get_id() == std::this_thread::get_id()) {
            thread->detach();  // a callback or an observer called exit()
        } else {
            thread->join();
        }
    }
}

inline void Heartbeat::enter(LiveClaim& claim) {
    if (claim.terms().renewed) ensure_thread();
    const auto [due, deadline] = claims_.enter(claim);
    if (claim.terms().renewed) wake_by(due, deadline);
}

inline void Heartbeat::watch_end_of(LiveClaim& claim) {
    const auto end = claims_.watch_end_of(claim);
    if (!end) return;
    ensure_thread();
    wake_by(*end, *end);
}

inline bool Heartbeat::later(LateFinish finish) {
    ensure_thread();
    if (!late_.add(std::move(finish))) return false;
    wake_by(LocalClock::now(), LocalInstant::max());
    return true;
}

/// Costs one load unless a thread would sleep past what has to be done.
inline void Heartbeat::wake_by(LocalInstant when, LocalInstant deadline) {
    if (when.time_since_epoch().count() >= next_wake_.load()) return;
    std::scoped_lock const lock(mutex_);
    poked_ = true;
    wake_.notify_one();
    if (!on_wire_ || deadline >= watch_next_) return;
    watch_poked_ = true;
    watch_wake_.notify_one();
}

inline void Heartbeat::loop(const std::stop_token& stop) {
    constexpr std::chrono::seconds idle{10};
    bool idled = false;
    while (!stop.stop_requested()) {
        next_wake_.store(never);  // whoever enters from here on asks for another round
        const auto now = LocalClock::now();
        auto next = LocalInstant::max();
        try {
            next = work(now);
        } catch (...) {  // no memory: what was not done is still due
            next = now + std::chrono::milliseconds{20};
        }
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

inline LocalInstant Heartbeat::work(LocalInstant now) {
    auto next = LocalInstant::max();
    claims_.lapse(now, next);
    renew(now, next);
    auto late = late_.next_try();
    if (late <= now) {
        const OnWire trip(*this);
        late = late_.work(now, hub_);
    }
    return std::min(next, late);
}

inline void Heartbeat::sleep_until(LocalInstant when, const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    next_wake_.store(when.time_since_epoch().count());
    const auto ready = [this] { return poked_; };
    if (when == LocalInstant::max()) {
        (void)wake_.wait(lock, stop, ready);
    } else {
        (void)wake_.wait_for(lock, stop, when - LocalClock::now(), ready);
    }
    poked_ = false;
}

inline void Heartbeat::renew(LocalInstant now, LocalInstant& next) {
    struct Round {
        explicit Round(LiveClaims& live) : claims(live) {}
        ~Round() { claims.let_go(batches); }
        Round(const Round&) = delete;
        Round& operator=(const Round&) = delete;
        LiveClaims& claims;
        std::deque<RenewalBatch> batches{};
    };
    Round round(claims_);
    claims_.collect(now, round.batches, next);
    if (round.batches.empty()) return;
    const OnWire trip(*this);
    for (RenewalBatch& batch : round.batches)
        for (std::size_t from = 0; from < batch.renewals.size(); from += batch_max)
            send(batch, from, next);
}

inline void Heartbeat::send(RenewalBatch& batch, std::size_t from, LocalInstant& next) {
    const std::size_t count = std::min(batch.renewals.size() - from, batch_max);
    std::vector<RenewRequest> requests;
    requests.reserve(count);
    for (std::size_t i = 0; i < count; ++i) requests.push_back(batch.renewals[from + i].request);
    std::vector<RenewReply> replies(count);
    const auto sent = LocalClock::now();
    try {
        batch.guard->renew(requests, replies);
    } catch (...) {
        for (auto& reply : replies) reply.trouble = caught_trouble();
    }
    bool told = false;  // a store that is away is one event, not one per claim
    for (std::size_t i = 0; i < count; ++i) {
        const Trouble& trouble = replies[i].trouble;
        const bool away = trouble.kind == Trouble::Kind::unavailable;
        if (trouble && !(away && std::exchange(told, true)))
            batch.guard->tell(EventKind::store_error, requests[i].key,
                              {.fence = requests[i].fence, .detail = trouble.message});
        claims_.apply(batch.renewals[from + i], sent, replies[i], next);
    }
}

inline void Heartbeat::on_wire(bool now) {
    if (now && !watch_.joinable()) {
        try {
            watch_ = background_thread([this](const std::stop_token& stop) { watch(stop); });
        } catch (const std::system_error&) {  // then losses are told when the store answers
        }
    }
    std::scoped_lock const lock(mutex_);
    on_wire_ = now;
    watch_poked_ = true;
    watch_wake_.notify_one();
}

inline void Heartbeat::watch(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    const auto asked = [this] { return on_wire_; };
    while (watch_wake_.wait(lock, stop, asked) && !stop.stop_requested()) {
        watch_poked_ = false;
        watch_next_ = LocalInstant::max();  // who enters during the look asks for another
        lock.unlock();
        auto next = LocalInstant::max();
        try {
            claims_.lapse(LocalClock::now(), next);
        } catch (...) {  // no memory
            next = LocalClock::now() + std::chrono::milliseconds{20};
        }
        lock.lock();
        watch_next_ = next;
        const auto ready = [this] { return watch_poked_; };
        if (next == LocalInstant::max()) {
            (void)watch_wake_.wait(lock, stop, ready);
        } else {
            (void)watch_wake_.wait_for(lock, stop, next - LocalClock::now(), ready);
        }
    }
}

}  // namespace idem::inline v0_1::detail

#endif
