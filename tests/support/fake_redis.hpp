#ifndef IDEM_TESTS_SUPPORT_FAKE_REDIS_HPP
#define IDEM_TESTS_SUPPORT_FAKE_REDIS_HPP

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/socket.h>

#include "support/loopback_port.hpp"

namespace idem_test {

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

}  // namespace idem_test

#endif
