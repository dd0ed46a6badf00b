#ifndef IDEM_LAYERED_FRONT_PAUSE_HPP
#define IDEM_LAYERED_FRONT_PAUSE_HPP

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>

#include <idem/clock.hpp>

namespace idem::inline v0_1::detail {

/// Leaves a front that fails alone: for longer each time, until it has answered. For any thread.
class FrontPause {
public:
    FrontPause(Duration min, Duration max) noexcept : min_(std::min(min, max)), max_(max) {}

    /// False while it is left alone. Of many that come at the end of a pause one tries, and the
    /// next one after `each` where nothing came of that.
    [[nodiscard]] bool may_ask(Duration each) {
        if (!paused_.load(std::memory_order_acquire)) return true;
        const std::lock_guard lock(mutex_);
        if (!paused_.load(std::memory_order_relaxed)) return true;
        const auto now = LocalClock::now();
        if (now < until_) return false;
        until_ = now + each;
        return true;
    }
    [[nodiscard]] bool paused() const noexcept { return paused_.load(std::memory_order_acquire); }

    /// @param began when the call that failed did: what was under way when the pause began says
    /// nothing new. @return whether this is news.
    [[nodiscard]] bool failed(LocalInstant began) {
        const std::lock_guard lock(mutex_);
        const bool news = !paused_.load(std::memory_order_relaxed);
        if (!news && began < since_) return false;
        pause_ = news ? min_ : std::min(2 * pause_, max_);
        since_ = LocalClock::now();
        until_ = since_ + pause_;
        paused_.store(true, std::memory_order_release);
        return news;
    }
    /// @return whether this is news.
    [[nodiscard]] bool answered() {
        if (!paused_.load(std::memory_order_acquire)) return false;
        const std::lock_guard lock(mutex_);
        return paused_.exchange(false);
    }

private:
    const Duration min_;
    const Duration max_;
    std::atomic<bool> paused_{false};
    std::mutex mutex_{};
    Duration pause_{};
    LocalInstant since_{};
    LocalInstant until_{};
};

}  // namespace idem::inline v0_1::detail

#endif
