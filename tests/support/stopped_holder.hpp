#ifndef IDEM_TESTS_SUPPORT_STOPPED_HOLDER_HPP
#define IDEM_TESTS_SUPPORT_STOPPED_HOLDER_HPP

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>

#include <sys/wait.h>
#include <unistd.h>

#include <idem/error.hpp>

namespace idem_test {

[[nodiscard]] inline bool ended_by(pid_t child, int signal) {
    int status = 0;
    return waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == signal;
}

/// A process of its own that holds something, is stopped in the middle (SIGSTOP, as a paused
/// machine or a debugger would), and goes on when told.
class StoppedHolder {
public:
    enum Result { written = 0, refused = 10, other = 11 };

    struct Go {
        /// Stops this process.
        void ready() const { raise(SIGSTOP); }
    };

    template <class Body>
    explicit StoppedHolder(Body&& body) {
        std::fflush(nullptr);
        child_ = fork();
        if (child_ != 0) return;
        alarm(120);
        int code = other;
        try {
            body(Go{});
            code = written;
        } catch (const idem::LeaseLostError&) {
            code = refused;
        } catch (const std::exception& e) {
            (void)std::fprintf(stderr, "in the child: %s\n", e.what());
        }
        _exit(code);
    }
    ~StoppedHolder() {
        if (child_ <= 0) return;
        kill(child_, SIGKILL);
        (void)wait(0);
    }
    StoppedHolder(const StoppedHolder&) = delete;
    StoppedHolder& operator=(const StoppedHolder&) = delete;

    /// Waits until it is. False: it ended before.
    [[nodiscard]] bool stopped() { return WIFSTOPPED(wait(WUNTRACED)); }
    /// What became of its write.
    [[nodiscard]] Result goes_on() {
        kill(child_, SIGCONT);
        const int status = wait(0);
        child_ = -1;
        return WIFEXITED(status) ? static_cast<Result>(WEXITSTATUS(status)) : other;
    }

private:
    [[nodiscard]] int wait(int options) const {
        int status = 0;
        while (waitpid(child_, &status, options) < 0 && errno == EINTR) {
        }
        return status;
    }

    pid_t child_ = -1;
};

}  // namespace idem_test

#endif
