#ifndef IDEM_LIVE_CLAIM_HPP
#define IDEM_LIVE_CLAIM_HPP

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string_view>
#include <vector>

#include <idem/clock.hpp>
#include <idem/detail/fork.hpp>
#include <idem/guard_state.hpp>
#include <idem/record.hpp>

namespace idem::inline v0_1::detail {

class Heartbeat;
class LiveClaims;
struct Renewal;

/// A claim that this process holds: its local deadline, and the signals that it is lost.
/// Lives on the stack of a guarded call or in a `Claim`; the heartbeat only sees it while it is
/// entered, so leaving never waits for a renewal that is on the wire.
class LiveClaim {
public:
    struct Terms {
        KeyView key{};
        Owner owner{};
        Fence fence = 0;
        std::uint32_t attempt = 0;
        std::string_view request_id{};  ///< For events.
        Duration lease{};
        Duration lease_left{};
        Duration max_hold{};       ///< Of renewal, from `sent` on. 0: none.
        LocalInstant sent{};       ///< Before the request that won the lease left.
        bool renewed = true;       ///< The heartbeat renews it.
        bool unprotected = false;  ///< There is no claim: it is lost from the start.
    };

    LiveClaim(GuardState& guard, const Terms& terms);
    ~LiveClaim() { leave(); }
    LiveClaim(const LiveClaim&) = delete;
    LiveClaim& operator=(const LiveClaim&) = delete;

    /// Ends renewal and loss signals; a loss callback that runs in another thread is waited for.
    void leave() noexcept;

    [[nodiscard]] const Terms& terms() const noexcept { return terms_; }
    [[nodiscard]] GuardState& guard() const noexcept { return guard_; }
    [[nodiscard]] bool inherited() const noexcept { return !made_in_.here(); }

    /// True only while the lease stands by the local clock. Once false it stays so.
    [[nodiscard]] bool held() noexcept {
        if (inherited()) return false;
        if (lost_.load(std::memory_order_acquire) != LostReason::none) return false;
        if (LocalClock::now() < deadline()) return true;
        lose(end_reason());
        return false;
    }
    [[nodiscard]] LostReason lost() const noexcept {
        return inherited() ? LostReason::process : lost_.load(std::memory_order_acquire);
    }

    [[nodiscard]] std::stop_token stop_token();
    void on_lost(std::function<void(LostReason)> callback);
    void stop_renewal();

    /// A lease that was renewed by this claim's own request. A lapsed one does not come back.
    void extend(LocalInstant sent, Duration lease_left) noexcept;
    /// Final for this handle; the first reason stays. Tells stop token and callbacks.
    void lose(LostReason reason) noexcept;

private:
    friend class LiveClaims;
    using Callback = std::stop_callback<std::function<void()>>;

    /// What is stopped: work at a loss or by `drain`, loss callbacks only at a loss. Made by need.
    struct Signals {
        std::stop_source stop{std::nostopstate};
        std::stop_source lost{std::nostopstate};

        void fire() noexcept {
            stop.request_stop();
            lost.request_stop();
        }
    };

    [[nodiscard]] std::stop_token token_of(std::stop_source Signals::*which);
    [[nodiscard]] bool wants_renewal() const noexcept {
        return terms_.renewed && lost_.load() == LostReason::none && lease_end() < hold_end_;
    }
    /// Up to which it may count on its lease.
    [[nodiscard]] LocalInstant lease_end() const noexcept {
        return LocalInstant(LocalInstant::duration(deadline_.load()));
    }
    [[nodiscard]] LocalInstant deadline() const noexcept {
        return std::min(lease_end(), hold_end_);
    }
    /// Why it is lost once its deadline is over.
    [[nodiscard]] LostReason end_reason() const noexcept {
        return lease_end() < hold_end_ ? LostReason::lapsed : LostReason::max_hold;
    }
    void move_deadline(LocalInstant sent, Duration lease_left) noexcept;
    /// Marks it lost. True for the one who has to tell.
    [[nodiscard]] bool mark_lost(LostReason reason) noexcept {
        auto none = LostReason::none;
        return lost_.compare_exchange_strong(none, reason);
    }

    GuardState& guard_;
    Terms terms_;
    MadeIn made_in_{};
    Heartbeat* home_;  ///< Of the shared object that made it, wherever it is asked later.
    LocalInstant hold_end_ = LocalInstant::max();
    std::atomic<std::int64_t> deadline_{0};
    std::atomic<LostReason> lost_{LostReason::none};

    // Below: under the mutex of the stripe.
    bool entered_ = false;
    bool watched_ = true;  ///< The end of its lease is told.
    std::size_t stripe_ = 0;
    Renewal* on_wire_ = nullptr;
    LiveClaim* previous_ = nullptr;
    LiveClaim* next_ = nullptr;
    LocalInstant due_{};
    Signals signals_{};

    std::vector<std::unique_ptr<Callback>> callbacks_{};  ///< The holder's thread alone.
};

}  // namespace idem::inline v0_1::detail

#endif
