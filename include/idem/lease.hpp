#ifndef IDEM_LEASE_HPP
#define IDEM_LEASE_HPP

#include <chrono>
#include <functional>
#include <optional>
#include <stop_token>
#include <utility>
#include <variant>

#include <idem/clock.hpp>
#include <idem/error.hpp>
#include <idem/events.hpp>
#include <idem/guard.hpp>
#include <idem/key.hpp>
#include <idem/options.hpp>

namespace idem::inline v0_1 {

/// Settings that hold for the life of a `LeaseLock`. Durations are positive and at most ten years.
struct LeaseOptions {
    /// How long a holder may be silent before the lock is free for another. Too short: one that
    /// stalls is taken over while it still works. Too long: a crashed one blocks it for that time.
    Duration lease = std::chrono::seconds{30};
    /// How long the record of a lock that nobody holds is kept. Its fences go on from there, later
    /// from the store's clock.
    Duration retention = std::chrono::hours{1};
    /// How long a lock is renewed at most. A holder that hangs, or forgets to release, is told
    /// then, and the lock is free at the end of its lease. 0: for as long as the process lives.
    Duration max_hold{};
    /// Renews the lease while the lock is held. Off: the work must end within the lease.
    bool heartbeat = true;
    /// Told once when a lock is lost while it is held, with the reason, by whichever thread learns
    /// of it: a tenth of the lease before another may get in, where the store tells no sooner. Not
    /// called after `release`, which waits for one that runs. What it throws is swallowed.
    std::function<void(const Key&, LostReason)> on_loss{};
    Observer events{};
};

/// A lock that is held. Its destructor releases it with one bounded request and never throws: the
/// exception that unwinds the holder stays the one that is seen. Any thread may have it and release
/// it, one at a time: it belongs to its owner's number, not to a thread; `held` and `stop_token`
/// may be asked by any. If the process dies the lock is free at the end of its lease; a forked
/// child never holds it.
class [[nodiscard]] Lease {
public:
    explicit Lease(Claim<void> claim) noexcept : claim_(std::move(claim)) {}
    ~Lease() { (void)release(); }
    Lease(Lease&&) noexcept = default;
    Lease& operator=(Lease&& other) noexcept {
        if (this != &other) {
            (void)release();
            claim_ = std::move(other.claim_);
        }
        return *this;
    }

    /// True only while the lease stands by the local clock. Once false it stays so: stop, another
    /// may be at work. True is no proof for what follows it: that is what the fence is for.
    [[nodiscard]] bool held() const noexcept {
        return claim_.is_open() && claim_.execution().held();
    }
    /// Why it is lost; `none` while nothing is known against it. @throws UsageError once released.
    [[nodiscard]] LostReason lost() const { return claim_.execution().lost(); }
    /// Stops when the lock is lost, or at the deadline of `drain`. @throws UsageError once
    /// released.
    [[nodiscard]] std::stop_token stop_token() const { return claim_.stop_token(); }
    /// Grows with every acquisition of the lock. Whoever takes orders under the lock (`FencedFile`,
    /// a table's row) should refuse one that is below the highest it has seen: nothing else stops
    /// a holder that was paused past its lease. @throws UsageError once released.
    [[nodiscard]] Fence fence() const { return claim_.fence(); }
    /// The last holder vanished: what the lock protects may be half done.
    [[nodiscard]] bool takeover() const { return claim_.takeover(); }
    [[nodiscard]] const Key& key() const { return claim_.key(); }

    /// Frees the lock, if it is still this holder's in the store. True: nobody else has had it
    /// since it was acquired. False: it was lost, or released before; or the store did not answer,
    /// and the background or the end of the lease frees it. One request, and no renewal after it.
    bool release() noexcept {
        if (!claim_.is_open()) return false;
        const bool held = claim_.held();
        return std::move(claim_).fail({FailureClass::none, {}, {}}) && held;
    }

private:
    Claim<void> claim_;
};

/// A lock across processes: one holder per key, renewed by the heartbeat that guards share, freed
/// by its owner alone. It is a lease: a holder that is paused for longer loses it and cannot know
/// at once, so work that must not overlap hands `Lease::fence` on. Not recursive, not fair.
/// Copyable and cheap to copy; any thread may call any member. Locks and fences survive as the
/// store does: one that loses what it acknowledged may have two holders until the first is told,
/// and the second one's fence is above.
template <store Store>
class LeaseLock {
public:
    /// Keeps a handle of the store. @throws UsageError for options that cannot work.
    explicit LeaseLock(const Store& store, LeaseOptions options = {})
        : guard_(store, guard_options(store, options), Component::lease),
          on_loss_(std::move(options.on_loss)) {}

    /// The lock, or nothing where somebody holds it. @throws UnavailableError: the store could not
    /// be asked, and nothing is held (what may have got through is freed in the background);
    /// SchemaError: what is under the key is no lock; UsageError: the key.
    [[nodiscard]] std::optional<Lease> try_acquire(const Key& key) {
        return acquire(key, Duration::zero());
    }

    /// Waits for it: wakes at the notice of a release where the store has such, else looks now and
    /// then, at odd times; holds no connection meanwhile. Nothing at the end of `wait`, or when
    /// `stop` is requested. A thread that holds the lock waits in vain. Throws as `try_acquire`.
    [[nodiscard]] std::optional<Lease> acquire(const Key& key, Duration wait,
                                               const std::stop_token& stop = {}) {
        detail::check_wait(wait, "LeaseLock::acquire wait");
        auto answer = detail::claim_unfinished(guard_, key, {.wait = wait, .stop_token = stop});
        if (auto* claim = std::get_if<Claim<void>>(&answer)) return hand_out(std::move(*claim));
        return std::nullopt;
    }

    /// The guard beneath: `find` shows who holds a lock, `forget` breaks it, `drain` for SIGTERM.
    [[nodiscard]] IdempotencyGuard<Store>& guard() noexcept { return guard_; }

private:
    [[nodiscard]] static GuardOptions guard_options(const Store& store,
                                                    const LeaseOptions& options) {
        detail::check_lease(store, options.lease, options.heartbeat, "LeaseOptions::lease");
        detail::check_duration(options.retention, "LeaseOptions::retention");
        detail::check_max_hold(options.max_hold, options.lease, "LeaseOptions::max_hold",
                               "LeaseOptions::lease");
        GuardOptions out;
        out.lease = options.lease;
        out.retention = options.retention;
        out.max_hold = options.max_hold;
        out.heartbeat = options.heartbeat;
        out.max_crashes = 0;               // a lock is never a dead letter
        out.record_retry = options.lease;  // later it is free anyhow
        out.events = options.events;
        return out;
    }

    [[nodiscard]] Lease hand_out(Claim<void> claim) {
        if (!claim.held()) {  // nobody has had it: nobody is told
            std::move(claim).give_back();
            throw UnavailableError("the lease ended before its lock could be used");
        }
        if (on_loss_)
            claim.execution().on_lost(
                [on_loss = on_loss_, key = claim.key()](LostReason why) { on_loss(key, why); });
        return Lease(std::move(claim));
    }

    IdempotencyGuard<Store> guard_;
    std::function<void(const Key&, LostReason)> on_loss_;
};

}  // namespace idem::inline v0_1

#endif
