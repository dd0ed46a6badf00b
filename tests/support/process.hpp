#ifndef IDEM_TESTS_SUPPORT_PROCESS_HPP
#define IDEM_TESTS_SUPPORT_PROCESS_HPP

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <idem/clock.hpp>

#include "support/loopback_port.hpp"

namespace idem_test {

/// A loopback port that was free a moment ago.
[[nodiscard]] inline int free_port() {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    auto at = loopback(0);
    socklen_t size = sizeof at;
    const bool bound = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&at), size) == 0 &&
                       getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) == 0;
    if (fd >= 0) close(fd);
    if (!bound) throw std::runtime_error("no free port");
    return ntohs(at.sin_port);
}

/// A program that was started here, ended by its process id and by nothing else.
class ServerProcess {
public:
    ServerProcess() = default;
    explicit ServerProcess(std::vector<std::string> command) {
        std::vector<char*> arguments;
        for (auto& word : command) arguments.push_back(word.data());
        arguments.push_back(nullptr);
        pid_ = fork();
        if (pid_ < 0) throw std::runtime_error("fork failed");
        if (pid_ > 0) return;
        const int null = open("/dev/null", O_RDWR);
        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
        execvp(arguments[0], arguments.data());
        _exit(127);
    }
    ServerProcess(ServerProcess&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
    ServerProcess& operator=(ServerProcess&& other) noexcept {
        std::swap(pid_, other.pid_);
        return *this;
    }
    ~ServerProcess() { end(SIGQUIT); }

    void signal(int number) const {
        if (pid_ > 0) kill(pid_, number);
    }
    /// Its children too, as stopping a server takes: the program first, so that it makes no more.
    void signal_all(int number) const {
        namespace fs = std::filesystem;
        if (pid_ <= 0 || owner_ != getpid()) return;
        signal(number);
        for (const auto& entry : fs::directory_iterator("/proc")) {
            const auto name = entry.path().filename().string();
            if (name.find_first_not_of("0123456789") != std::string::npos) continue;
            std::string stat;
            std::getline(std::ifstream(entry.path() / "stat"), stat);
            // The name of the program, in brackets, may hold anything; the state is one letter.
            const auto after = stat.rfind(") ");
            if (after == std::string::npos || after + 4 >= stat.size()) continue;
            if (std::atol(stat.c_str() + after + 4) == pid_) kill(std::stoi(name), number);
        }
    }
    /// Sends a signal and waits for the end. In a forked child it is not ours to end.
    void end(int number) {
        if (pid_ <= 0 || owner_ != getpid()) return;
        kill(pid_, number);
        while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
        }
        pid_ = -1;
    }
    [[nodiscard]] bool running() const { return pid_ > 0 && waitpid(pid_, nullptr, WNOHANG) == 0; }

private:
    pid_t pid_ = -1;
    pid_t owner_ = getpid();
};

[[nodiscard]] inline idem::LocalInstant in_seconds(int seconds) {
    return idem::LocalClock::now() + std::chrono::seconds(seconds);
}

/// A folder for servers: under the current one, or among the temporary ones where the user
/// postgres, whom a server of root runs as, could not get there. Gone with its server.
[[nodiscard]] inline std::filesystem::path server_folder(const std::string& name) {
    namespace fs = std::filesystem;
    static std::atomic<int> count{0};
    fs::path base = fs::current_path();
    for (fs::path at = base; geteuid() == 0 && at.has_relative_path(); at = at.parent_path())
        if ((fs::status(at).permissions() & fs::perms::others_exec) == fs::perms::none)
            base = fs::temp_directory_path();
    return base / "servers" /
           (name + "-" + std::to_string(getpid()) + "-" + std::to_string(++count));
}

}  // namespace idem_test

#endif
