#ifndef TRANSCODE_PROCESS_HPP
#define TRANSCODE_PROCESS_HPP

#include <cerrno>
#include <csignal>
#include <stop_token>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "files.hpp"

namespace transcode {

/// How a program ended.
struct Exit {
    bool exited = false;   ///< By itself, with `code`; else a signal ended it.
    bool stopped = false;  ///< Because the caller's stop token asked for it.
    int code = 0;          ///< Exit status, or the number of the signal.

    [[nodiscard]] bool success() const noexcept { return exited && code == 0; }
};

namespace internal {

/// Between fork and exec only what is async-signal-safe may be called: another thread may have
/// held any lock at the moment of the fork.
[[noreturn]] inline void become(char* const* arguments, const char* log, pid_t parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a service that is killed takes its children along
    if (::getppid() != parent) ::_exit(127);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);  // the service's threads block SIGTERM
    ::signal(SIGPIPE, SIG_DFL);
    const int null = ::open("/dev/null", O_RDONLY);
    const int out = ::open(log, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (null < 0 || out < 0 || ::dup2(null, 0) < 0 || ::dup2(out, 1) < 0 || ::dup2(out, 2) < 0)
        ::_exit(127);
    ::close_range(3, ~0U, 0);  // else it would keep the clients' connections open
    ::execvp(arguments[0], arguments);
    ::_exit(127);
}

}  // namespace internal

/// Runs a program to its end: no shell, both its outputs to `log`. When `stop` fires it is killed
/// at once; whoever asked has given its work up. It dies with the thread that called.
/// @throws std::system_error where no process can be made.
[[nodiscard]] inline Exit run_program(const std::vector<std::string>& command, const fs::path& log,
                                      const std::stop_token& stop) {
    std::vector<char*> arguments;
    for (const std::string& argument : command)
        arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);

    const pid_t parent = ::getpid();
    const pid_t child = ::fork();
    if (child < 0) throw_errno("cannot fork");
    if (child == 0) internal::become(arguments.data(), log.c_str(), parent);
    {
        const std::stop_callback kill(stop, [child] { ::kill(child, SIGKILL); });
        siginfo_t ended{};
        while (::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT) != 0 &&
               errno == EINTR) {
        }
    }  // no callback can run from here on: once reaped, the number may be another process's
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFEXITED(status)) return {.exited = true, .code = WEXITSTATUS(status)};
    return {.stopped = stop.stop_requested(), .code = WTERMSIG(status)};
}

}  // namespace transcode

#endif
