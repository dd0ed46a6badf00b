#ifndef IDEM_DETAIL_SPIN_MUTEX_HPP
#define IDEM_DETAIL_SPIN_MUTEX_HPP

#include <atomic>
#include <thread>

namespace idem::inline v0_1::detail {

/// A mutex for critical sections of a hundred nanoseconds: it spins, then yields, and only then
/// sleeps in the kernel. A hand-over through the kernel costs more than such a section, so that a
/// `std::mutex` around a hot key is two to three times slower.
/// Not recursive. `BasicLockable`: use with `std::lock_guard`.
class SpinMutex {
public:
    SpinMutex() = default;
    SpinMutex(const SpinMutex&) = delete;
    SpinMutex& operator=(const SpinMutex&) = delete;

    void lock() noexcept {
        if (!try_lock()) lock_contended();
    }
    [[nodiscard]] bool try_lock() noexcept {
        int expected = free;
        return word_.compare_exchange_strong(expected, taken, std::memory_order_acquire,
                                             std::memory_order_relaxed);
    }
    void unlock() noexcept {
        if (word_.exchange(free, std::memory_order_release) == awaited) word_.notify_one();
    }
    /// For a child after fork: whether some thread of the parent was inside at that moment.
    [[nodiscard]] bool locked() const noexcept {
        return word_.load(std::memory_order_acquire) != free;
    }

private:
    static constexpr int free = 0;
    static constexpr int taken = 1;
    static constexpr int awaited = 2;  ///< Taken, and somebody may sleep.
    static constexpr int spins_max = 64;
    static constexpr int yields_max = 8;

    static void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ __volatile__("yield");
#endif
    }

    [[gnu::noinline]] void lock_contended() noexcept {
        for (int i = 0; i < spins_max + yields_max; ++i) {
            if (i < spins_max) {
                relax();
            } else {
                std::this_thread::yield();  // the holder may be waiting for this very core
            }
            if (word_.load(std::memory_order_relaxed) == free && try_lock()) return;
        }
        // Who slept once must take the lock as awaited: others may still sleep behind it.
        while (word_.exchange(awaited, std::memory_order_acquire) != free) {
            word_.wait(awaited, std::memory_order_relaxed);
        }
    }

    std::atomic<int> word_{free};
};

}  // namespace idem::inline v0_1::detail

#endif
