#ifndef IDEM_TESTS_SUPPORT_LOOPBACK_PORT_HPP
#define IDEM_TESTS_SUPPORT_LOOPBACK_PORT_HPP

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace idem_test {

/// An address on this machine.
[[nodiscard]] inline sockaddr_in loopback(int port) noexcept {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<std::uint16_t>(port));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
}

/// A listening socket on loopback whose connections are each served by a thread, and closed by it.
class LoopbackPort {
public:
    using Serve = std::function<void(int fd)>;

    explicit LoopbackPort(Serve serve) : serve_(std::move(serve)) {
        fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        auto at = loopback(0);
        socklen_t size = sizeof at;
        if (bind(fd_, reinterpret_cast<sockaddr*>(&at), size) != 0 || listen(fd_, 64) != 0 ||
            getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size) != 0)
            throw std::runtime_error("no port to listen on");
        port_ = ntohs(at.sin_port);
        acceptor_ = std::thread([this] { accept_all(); });
    }
    LoopbackPort(const LoopbackPort&) = delete;
    LoopbackPort& operator=(const LoopbackPort&) = delete;
    ~LoopbackPort() {
        shutdown(fd_, SHUT_RDWR);
        acceptor_.join();
        {
            const std::lock_guard lock(mutex_);
            for (const int fd : open_) shutdown(fd, SHUT_RDWR);
        }
        for (auto& thread : threads_) thread.join();
        close(fd_);
    }
    [[nodiscard]] int port() const noexcept { return port_; }
    [[nodiscard]] std::string url(const std::string& login = "") const {
        return "redis://" + login + "127.0.0.1:" + std::to_string(port_);
    }
    [[nodiscard]] int accepted() const noexcept { return accepted_.load(); }

private:
    void accept_all() {
        for (;;) {
            const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
            if (fd < 0) return;
            accepted_.fetch_add(1);
            {
                const std::lock_guard lock(mutex_);
                open_.push_back(fd);
            }
            threads_.emplace_back([this, fd] {
                serve_(fd);
                const std::lock_guard lock(mutex_);
                std::erase(open_, fd);
                close(fd);
            });
        }
    }

    Serve serve_;
    int fd_ = -1;
    int port_ = 0;
    std::atomic<int> accepted_{0};
    std::mutex mutex_{};
    std::vector<int> open_{};
    std::list<std::thread> threads_{};
    std::thread acceptor_{};
};

inline bool send_bytes(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
        const auto sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent <= 0) return false;
        bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
}

/// For a port where something else answers: hears the first words of whoever comes, and says the
/// same to all. Then it closes, or keeps silent.
[[nodiscard]] inline LoopbackPort::Serve says(std::string bytes, bool closes) {
    return [bytes = std::move(bytes), closes](int fd) {
        char hello[4096];
        (void)!recv(fd, hello, sizeof hello, 0);
        (void)send_bytes(fd, bytes);
        while (!closes && recv(fd, hello, sizeof hello, 0) > 0) {
        }
    };
}

}  // namespace idem_test

#endif
