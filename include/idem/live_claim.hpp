#ifndef IDEM_LIVE_CLAIM_HPP
#define IDEM_LIVE_CLAIM_HPP

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <vector>

#include <idem/clock.hpp>
#include <idem/detail/fork.hpp>
#include <idem/guard_state.hpp>
#include <idem/record.hpp>

namespace idem::inline v0_1::detail {

class Heartbeat;

/// A claim that this process holds: its local deadline, and the signals that it is lost.
/// Lives on the stack of a guarded call or in a `Claim`; the heartbeat only sees it while it is
/// entered, so leaving never waits for a renewal that is on the wire.
class LiveClaim {
public:
    struct Terms {
        KeyView key{};
        Owner owner{};
        Fence fence = 0;
        Duration lease{};
        Duration lease_left{};
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
    [[nodiscard]] bool inherited() const noexcept { return generation_ != process_generation(); }

    /// True only while the lease stands by the local clock. Once false it stays so.
    [[nodiscard]] bool held() noexcept {
        if (inherited()) return false;
        if (lost_.load(std::memory_order_acquire) != LostReason::none) return false;
        if (LocalClock::now() < LocalInstant(LocalInstant::duration(deadline_.load()))) return true;
        lose(LostReason::lapsed);
        return false;
    }
    [[nodiscard]] LostReason lost() const noexcept {
        return inherited() ? LostReason::process : lost_.load(std::memory_order_acquire);
    }

    [[nodiscard]] std::stop_token stop_token();
    void on_lost(std::function<void(LostReason)> callback);
    void request_stop();
    void stop_renewal();

    /// A lease that was renewed by this claim's own request. A lapsed one does not come back.
    void extend(LocalInstant sent, Duration lease_left) noexcept;
    /// Final for this handle; the first reason stays. Tells stop token and callback.
    void lose(LostReason reason) noexcept;

private:
    friend class Heartbeat;

    [[nodiscard]] std::stop_source stop_source();
    [[nodiscard]] std::int64_t deadline_after(LocalInstant sent,
                                              Duration lease_left) const noexcept;

    GuardState& guard_;
    Terms terms_;
    std::uint32_t generation_ = process_generation();
    std::atomic<std::int64_t> deadline_;
    std::atomic<LostReason> lost_{LostReason::none};

    // Below: under the mutex of the stripe.
    bool entered_ = false;
    bool in_batch_ = false;
    std::size_t stripe_ = 0;
    LiveClaim* previous_ = nullptr;
    LiveClaim* next_ = nullptr;
    LocalInstant due_{};
    std::stop_source stop_{std::nostopstate};
    std::vector<std::unique_ptr<std::stop_callback<std::function<void()>>>> callbacks_{};
};

}  // namespace idem::inline v0_1::detail

#endif
