#ifndef IDEM_TESTS_SUPPORT_CTL_HPP
#define IDEM_TESTS_SUPPORT_CTL_HPP

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

namespace idem_test {

/// What a run of idemctl left behind.
struct CtlRun {
    int status = -1;  ///< Exit status; -1: ended by a signal.
    std::string out{};
    std::string err{};

    /// The lines of the output as JSON. @throws nlohmann's exception for anything else.
    [[nodiscard]] std::vector<nlohmann::json> json() const {
        std::vector<nlohmann::json> lines;
        for (std::size_t at = 0; at < out.size();) {
            const auto end = out.find('\n', at);
            lines.push_back(nlohmann::json::parse(out.substr(at, end - at)));
            if (end == std::string::npos) break;
            at = end + 1;
        }
        return lines;
    }
    [[nodiscard]] bool says(std::string_view text) const {
        return (out + err).find(text) != std::string::npos;
    }
};

/// The operator's program, as it was built, on one store. A run that hangs is ended by its alarm.
class Ctl {
public:
    /// @param url goes into the environment; empty: there is none.
    explicit Ctl(std::string url) : url_(std::move(url)) {}

    /// Without a terminal.
    [[nodiscard]] CtlRun operator()(std::vector<std::string> words) const {
        Started child(url_, std::move(words), false);
        return child.finish();
    }

    /// At a terminal, where a person sees the question, and answers it after `meanwhile`.
    template <class Meanwhile>
    [[nodiscard]] CtlRun answer(std::vector<std::string> words, const std::string& reply,
                                Meanwhile&& meanwhile) const {
        Started child(url_, std::move(words), true);
        child.read_until("[y/N] ");
        meanwhile();
        child.type(reply + "\n");
        return child.finish();
    }
    [[nodiscard]] CtlRun answer(std::vector<std::string> words, const std::string& reply) const {
        return answer(std::move(words), reply, [] {});
    }

private:
    class Started {
    public:
        Started(const std::string& url, std::vector<std::string> words, bool terminal) {
            words.insert(words.begin(), IDEM_CTL);
            std::vector<char*> arguments;
            for (auto& word : words) arguments.push_back(word.data());
            arguments.push_back(nullptr);
            int input = -1;
            if (terminal) {
                terminal_ = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
                if (terminal_ < 0 || grantpt(terminal_) != 0 || unlockpt(terminal_) != 0)
                    throw std::runtime_error("no terminal");
                input = open(ptsname(terminal_), O_RDWR | O_NOCTTY | O_CLOEXEC);
            } else {
                input = open("/dev/null", O_RDONLY | O_CLOEXEC);
            }
            std::array<std::array<int, 2>, 2> pipes{};
            for (auto& made : pipes)
                if (pipe2(made.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
            pid_ = fork();
            if (pid_ == 0) {
                dup2(input, STDIN_FILENO);
                dup2(pipes[0][1], STDOUT_FILENO);
                dup2(pipes[1][1], STDERR_FILENO);
                if (url.empty()) {
                    unsetenv("IDEM_STORE");
                } else {
                    setenv("IDEM_STORE", url.c_str(), 1);
                }
                alarm(240);
                execv(arguments[0], arguments.data());
                _exit(127);
            }
            close(input);
            for (std::size_t i = 0; i < 2; ++i) {
                close(pipes[i][1]);
                ends_[i] = pipes[i][0];
            }
            if (pid_ < 0) throw std::runtime_error("fork failed");
        }
        Started(const Started&) = delete;
        Started& operator=(const Started&) = delete;
        ~Started() {
            for (const int end : {ends_[0], ends_[1], terminal_})
                if (end >= 0) close(end);
            if (pid_ > 0) waitpid(pid_, nullptr, 0);
        }

        void read_until(std::string_view text) {
            while (!run_.says(text) && read_some()) {
            }
        }
        void type(const std::string& text) const {
            if (write(terminal_, text.data(), text.size()) < 0)
                throw std::runtime_error("nobody is at the terminal");
        }
        [[nodiscard]] CtlRun finish() {
            while (read_some()) {
            }
            int status = 0;
            while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
            }
            pid_ = -1;
            run_.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
            return std::move(run_);
        }

    private:
        /// False where both ends are.
        [[nodiscard]] bool read_some() {
            std::array<pollfd, 2> at = {{{ends_[0], POLLIN, 0}, {ends_[1], POLLIN, 0}}};
            if (ends_[0] < 0 && ends_[1] < 0) return false;
            (void)poll(at.data(), at.size(), -1);
            for (std::size_t i = 0; i < 2; ++i) {
                if (at[i].revents == 0) continue;
                std::array<char, 65536> buffer{};
                const auto got = read(ends_[i], buffer.data(), buffer.size());
                if (got > 0) {
                    (i == 0 ? run_.out : run_.err)
                        .append(buffer.data(), static_cast<std::size_t>(got));
                } else if (got == 0 || errno != EINTR) {
                    close(std::exchange(ends_[i], -1));
                }
            }
            return true;
        }

        pid_t pid_ = -1;
        int terminal_ = -1;
        std::array<int, 2> ends_{-1, -1};
        CtlRun run_{};
    };

    std::string url_;
};

}  // namespace idem_test

#endif
