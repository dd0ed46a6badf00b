#ifndef IDEM_TESTS_SUPPORT_CHILD_HPP
#define IDEM_TESTS_SUPPORT_CHILD_HPP

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iterator>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

namespace idem_test {

enum class Leaves { at_once, by_exit };  ///< `_exit`, or `exit` with its static destructors.

/// Runs `body`, a predicate, in a forked child. What went wrong there; empty: nothing did. A child
/// that hangs is ended by its alarm clock.
template <class Body>
[[nodiscard]] std::string in_child(Body&& body, Leaves leaves = Leaves::at_once) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child < 0) return "fork failed";
    if (child == 0) {
        alarm(120);
        int code = 3;
        try {
            code = body() ? 0 : 2;
        } catch (const std::exception& e) {
            (void)std::fprintf(stderr, "in the child: %s\n", e.what());
        } catch (...) {
            (void)std::fprintf(stderr, "in the child: something was thrown\n");
        }
        if (leaves == Leaves::at_once) _exit(code);
        std::exit(code);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child) return "waitpid failed";
    if (WIFSIGNALED(status)) return "ended by signal " + std::to_string(WTERMSIG(status));
    switch (WEXITSTATUS(status)) {
        case 0: return "";
        case 2: return "the body says no";
        case 3: return "the body threw";
        default: return "exit status " + std::to_string(WEXITSTATUS(status));
    }
}

/// Threads of this process, as the kernel counts them.
[[nodiscard]] inline long thread_count() {
    namespace fs = std::filesystem;
    return static_cast<long>(std::distance(fs::directory_iterator("/proc/self/task"), {}));
}

}  // namespace idem_test

#endif
