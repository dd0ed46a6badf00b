#ifndef IDEM_REDIS_SOCKET_HPP
#define IDEM_REDIS_SOCKET_HPP

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <idem/clock.hpp>
#include <idem/detail/deadline.hpp>
#include <idem/detail/resolve.hpp>
#include <idem/redis/address.hpp>

namespace idem::inline v0_1::redis {

/// A socket that is closed with its owner. Closing says nothing to the server, so that a forked
/// child may do it.
class Socket {
public:
    Socket() = default;
    explicit Socket(int fd) noexcept : fd_(fd) {}
    Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Socket& operator=(Socket&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Socket() {
        if (fd_ >= 0) ::close(fd_);
    }
    [[nodiscard]] explicit operator bool() const noexcept { return fd_ >= 0; }
    [[nodiscard]] int fd() const noexcept { return fd_; }

private:
    int fd_ = -1;
};

[[nodiscard]] inline Socket connect_to(const sockaddr* address, socklen_t size,
                                       LocalInstant deadline, std::string& why) {
    Socket made(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int fd = made.fd();
    int error = made && ::connect(fd, address, size) == 0 ? 0 : errno;
    if (error == EINPROGRESS || error == EINTR) {
        socklen_t length = sizeof error;
        if (!idem::detail::await(fd, POLLOUT, deadline)) {
            error = ETIMEDOUT;
        } else if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
            error = errno;
        }
    }
    if (error == 0) return made;
    why = std::strerror(error);
    return Socket();
}

[[nodiscard]] inline Socket connect_path(const std::string& path, LocalInstant deadline,
                                         std::string& why) {
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    if (path.size() >= sizeof at.sun_path) {
        why = "the path is too long";
        return Socket();
    }
    std::memcpy(static_cast<void*>(at.sun_path), path.data(), path.size());
    return connect_to(reinterpret_cast<const sockaddr*>(&at), sizeof at, deadline, why);
}

[[nodiscard]] inline socklen_t numeric_address(const std::string& text, std::uint16_t port,
                                               sockaddr_storage& into) {
    addrinfo hints = idem::detail::stream_hints(AI_NUMERICHOST | AI_NUMERICSERV);
    addrinfo* list = nullptr;
    if (getaddrinfo(text.c_str(), std::to_string(port).c_str(), &hints, &list) != 0) return 0;
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(list, freeaddrinfo);
    std::memcpy(&into, list->ai_addr, list->ai_addrlen);
    return list->ai_addrlen;
}

[[nodiscard]] inline Socket connect_host(const Place& place, LocalInstant deadline,
                                         std::string& why) {
    const auto resolved = idem::detail::resolve(place.host, deadline);
    why = resolved.error;
    for (std::size_t i = 0; i < resolved.addresses.size(); ++i) {
        const auto share = idem::detail::share_of(deadline, resolved.addresses.size() - i);
        sockaddr_storage at{};
        const auto size = numeric_address(resolved.addresses[i], place.port, at);
        Socket made = connect_to(reinterpret_cast<const sockaddr*>(&at), size, share, why);
        if (!made) continue;
        const int on = 1;
        (void)::setsockopt(made.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        (void)::setsockopt(made.fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
        return made;
    }
    return Socket();
}

/// By name or by path, before the deadline; else none, and `why`.
[[nodiscard]] inline Socket connect(const Place& place, LocalInstant deadline, std::string& why) {
    return place.path.empty() ? connect_host(place, deadline, why)
                              : connect_path(place.path, deadline, why);
}

}  // namespace idem::inline v0_1::redis

#endif
