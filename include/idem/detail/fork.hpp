#ifndef IDEM_DETAIL_FORK_HPP
#define IDEM_DETAIL_FORK_HPP

#include <atomic>
#include <cstdint>

#include <pthread.h>

namespace idem::inline v0_1::detail {

/// Counts the forks between the first process of this program and this one. Sockets, threads,
/// locks and claims made under another number are the parent's and must not be used.
struct ForkWatch {
    ForkWatch() noexcept {
        (void)pthread_atfork(nullptr, nullptr, [] { generation().fetch_add(1); });
    }
    [[gnu::visibility("hidden")]] static std::atomic<std::uint32_t>& generation() noexcept {
        static std::atomic<std::uint32_t> count{1};
        return count;
    }
};

/// Hidden: each shared object has a watch of its own, and takes it along when it is unloaded.
[[nodiscard, gnu::visibility("hidden")]] inline std::uint32_t process_generation() noexcept {
    static const ForkWatch watch;
    return ForkWatch::generation().load(std::memory_order_relaxed);
}

/// The process that something was made in, by the count of the shared object that made it: two
/// objects may have begun to count at different forks.
class MadeIn {
public:
    MadeIn() noexcept : made_(process_generation()), now_(&ForkWatch::generation()) {}
    /// False in a forked child of that process.
    [[nodiscard]] bool here() const noexcept {
        return now_->load(std::memory_order_relaxed) == made_;
    }

private:
    std::uint32_t made_;
    const std::atomic<std::uint32_t>* now_;
};

}  // namespace idem::inline v0_1::detail

#endif
