#ifndef IDEM_DETAIL_BACKGROUND_THREAD_HPP
#define IDEM_DETAIL_BACKGROUND_THREAD_HPP

#include <csignal>
#include <thread>
#include <utility>

#include <pthread.h>

namespace idem::inline v0_1::detail {

/// A thread of the library's own: the program's signal handlers never run in it.
/// @throws std::system_error where no thread can be made.
template <class Work>
[[nodiscard]] std::jthread background_thread(Work work) {
    struct Masked {
        Masked() noexcept {
            sigset_t all;
            sigfillset(&all);
            (void)pthread_sigmask(SIG_SETMASK, &all, &before);
        }
        ~Masked() { (void)pthread_sigmask(SIG_SETMASK, &before, nullptr); }
        Masked(const Masked&) = delete;
        Masked& operator=(const Masked&) = delete;
        sigset_t before;
    };
    const Masked masked;
    return std::jthread(std::move(work));
}

}  // namespace idem::inline v0_1::detail

#endif
