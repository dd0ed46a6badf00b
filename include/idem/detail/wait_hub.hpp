#ifndef IDEM_DETAIL_WAIT_HUB_HPP
#define IDEM_DETAIL_WAIT_HUB_HPP

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <stop_token>
#include <vector>

namespace idem::inline v0_1::detail {

/// Where callers of this process wait for a key to be settled. A notice is a hint: a waiter looks
/// at the store before it sleeps and after it wakes, and polls besides, so a lost or a foreign
/// notice does no harm.
class WaitHub {
    struct Stripe;

public:
    class Waiter {
    public:
        Waiter(WaitHub& hub, std::size_t key_hash);
        ~Waiter();
        Waiter(const Waiter&) = delete;
        Waiter& operator=(const Waiter&) = delete;

        /// Sleeps until a notice, the end of `time`, or a stop. One notice ends one sleep.
        void sleep(std::chrono::nanoseconds time, const std::stop_token& stop);

    private:
        friend class WaitHub;
        void notice() {
            noticed_ = true;
            wake_.notify_all();
        }

        std::condition_variable_any wake_{};
        bool noticed_ = false;
        Stripe& stripe_;
        std::size_t hash_;
    };

    /// Cheap where nobody waits: one load.
    void notify(std::size_t key_hash);
    void notify_all();

private:
    struct alignas(64) Stripe {
        std::mutex mutex{};
        std::atomic<std::size_t> count{0};
        std::vector<Waiter*> waiters{};
    };
    [[nodiscard]] Stripe& stripe(std::size_t key_hash) noexcept {
        return stripes_[key_hash % stripes_.size()];
    }

    std::array<Stripe, 16> stripes_{};
};

inline WaitHub::Waiter::Waiter(WaitHub& hub, std::size_t key_hash)
    : stripe_(hub.stripe(key_hash)), hash_(key_hash) {
    std::scoped_lock const lock(stripe_.mutex);
    stripe_.waiters.push_back(this);
    stripe_.count.store(stripe_.waiters.size());
}

inline WaitHub::Waiter::~Waiter() {
    std::scoped_lock const lock(stripe_.mutex);
    std::erase(stripe_.waiters, this);
    stripe_.count.store(stripe_.waiters.size());
}

inline void WaitHub::Waiter::sleep(std::chrono::nanoseconds time, const std::stop_token& stop) {
    std::unique_lock lock(stripe_.mutex);
    (void)wake_.wait_for(lock, stop, time, [&] { return noticed_; });
    noticed_ = false;
}

inline void WaitHub::notify(std::size_t key_hash) {
    Stripe& at = stripe(key_hash);
    if (at.count.load() == 0) return;
    std::scoped_lock const lock(at.mutex);
    for (Waiter* waiter : at.waiters) {
        if (waiter->hash_ == key_hash) waiter->notice();
    }
}

inline void WaitHub::notify_all() {
    for (Stripe& at : stripes_) {
        std::scoped_lock const lock(at.mutex);
        for (Waiter* waiter : at.waiters) waiter->notice();
    }
}

}  // namespace idem::inline v0_1::detail

#endif
