#ifndef IDEM_TESTS_SUPPORT_FAKE_REDIS_HPP
#define IDEM_TESTS_SUPPORT_FAKE_REDIS_HPP

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstddef>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace idem_test {

/// A listening socket on loopback whose connections are each served by a thread.
class LoopbackPort {
public:
    using Serve = std::function<void(int fd)>;

    explicit LoopbackPort(Serve serve) : serve_(std::move(serve)) {
        fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in at{};
        at.sin_family = AF_INET;
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
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

/// A scripted server, for what a real one will not say on demand. `answer` gets each command as
/// its words and gives the bytes that go back; nothing closes the connection.
class FakeRedis {
public:
    using Words = std::vector<std::string>;
    using Answer = std::function<std::optional<std::string>(const Words&)>;

    explicit FakeRedis(Answer answer, std::string version = "7.0.15")
        : answer_(std::move(answer)),
          version_(std::move(version)),
          port_([this](int fd) { serve(fd); }) {}

    [[nodiscard]] std::string url(const std::string& login = "") const { return port_.url(login); }
    [[nodiscard]] int accepted() const noexcept { return port_.accepted(); }

    [[nodiscard]] static std::string bulk(const std::string& text) {
        return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n";
    }

private:
    /// Takes one command out of what has arrived; nothing while it is not whole.
    [[nodiscard]] static std::optional<Words> take(std::string& bytes) {
        std::size_t at = 0;
        const auto number = [&](char kind) -> std::optional<std::size_t> {
            const auto end = bytes.find("\r\n", at);
            if (end == std::string::npos || at >= bytes.size() || bytes[at] != kind)
                return std::nullopt;
            const std::size_t value = std::stoul(bytes.substr(at + 1, end - at - 1));
            at = end + 2;
            return value;
        };
        const auto count = number('*');
        if (!count) return std::nullopt;
        Words words;
        for (std::size_t i = 0; i < *count; ++i) {
            const auto size = number('$');
            if (!size || bytes.size() < at + *size + 2) return std::nullopt;
            words.push_back(bytes.substr(at, *size));
            at += *size + 2;
        }
        bytes.erase(0, at);
        return words;
    }

    void serve(int fd) {
        std::string bytes;
        std::array<char, 4096> buffer{};
        for (;;) {
            const auto got = recv(fd, buffer.data(), buffer.size(), 0);
            if (got <= 0) return;
            bytes.append(buffer.data(), static_cast<std::size_t>(got));
            while (auto words = take(bytes)) {
                std::optional<std::string> reply = answer_(*words);
                if (reply && reply->empty() && (*words)[0] == "INFO")
                    reply = bulk("redis_version:" + version_ + "\r\n");
                if ((*words)[0] == "CLIENT") reply = "+OK\r\n";
                if (!reply || !send_bytes(fd, *reply)) return;
            }
        }
    }

    Answer answer_;
    std::string version_;
    LoopbackPort port_;
};

/// Stands between a store and a server, and cuts the first connection after so many bytes of one
/// direction: from then on that connection is closed, or silent.
class Gate {
public:
    enum class Way { to_server, to_client };
    enum class Then { closed, silent };

    Gate(int server_port, Way way, std::size_t bytes, Then then)
        : server_port_(server_port), way_(way), left_(bytes), then_(then), port_([this](int fd) {
              serve(fd);
          }) {}
    ~Gate() { ending_.store(true); }
    Gate(const Gate&) = delete;
    Gate& operator=(const Gate&) = delete;

    [[nodiscard]] std::string url() const { return port_.url(); }
    /// Whether the cut came to pass.
    [[nodiscard]] bool cut() const noexcept { return cut_.load(); }
    /// Bytes that went that way on the first connection.
    [[nodiscard]] std::size_t passed() const noexcept { return passed_.load(); }

private:
    void serve(int client) {
        const bool first = !served_.exchange(true);
        const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in at{};
        at.sin_family = AF_INET;
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        at.sin_port = htons(static_cast<std::uint16_t>(server_port_));
        if (connect(server, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0)
            carry(client, server, first);
        close(server);
    }
    void carry(int client, int server, bool first) {
        for (;;) {
            std::array<pollfd, 2> at = {pollfd{client, POLLIN, 0}, pollfd{server, POLLIN, 0}};
            if (poll(at.data(), 2, 20) < 0) return;
            if (ending_.load()) return;
            if (at[0].revents != 0 && !forward(client, server, first && way_ == Way::to_server))
                return;
            if (at[1].revents != 0 && !forward(server, client, first && way_ == Way::to_client))
                return;
        }
    }
    bool forward(int from, int to, bool counted) {
        std::array<char, 4096> buffer{};
        const auto got = recv(from, buffer.data(), buffer.size(), 0);
        if (got <= 0) return false;
        std::string_view bytes(buffer.data(), static_cast<std::size_t>(got));
        if (counted) {
            const bool over = bytes.size() > left_;
            bytes = bytes.substr(0, std::min(bytes.size(), left_));
            left_ -= bytes.size();
            passed_.fetch_add(bytes.size());
            if (over) cut_.store(true);
        }
        if (!send_bytes(to, bytes)) return false;
        return !(counted && cut_.load()) || then_ == Then::silent;
    }

    int server_port_;
    Way way_;
    std::size_t left_;
    Then then_;
    std::atomic<std::size_t> passed_{0};
    std::atomic<bool> served_{false};
    std::atomic<bool> cut_{false};
    std::atomic<bool> ending_{false};
    LoopbackPort port_;
};

}  // namespace idem_test

#endif
