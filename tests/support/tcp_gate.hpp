#ifndef IDEM_TESTS_SUPPORT_TCP_GATE_HPP
#define IDEM_TESTS_SUPPORT_TCP_GATE_HPP

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support/loopback_port.hpp"

namespace idem_test {

enum class Direction : std::uint8_t { to_server, to_client };

enum class GateAct : std::uint8_t {
    reset,    ///< RST to both ends.
    close,    ///< FIN to both ends.
    swallow,  ///< Nothing more goes this way, but for the end of the connection.
    vanish,   ///< Nothing more goes either way, not even the end: a cable was pulled.
    delay,    ///< Nothing goes this way for a while; then all of it.
};

[[nodiscard]] constexpr const char* to_string(GateAct act) noexcept {
    switch (act) {
        case GateAct::reset: return "reset";
        case GateAct::close: return "close";
        case GateAct::swallow: return "swallow";
        case GateAct::vanish: return "vanish";
        case GateAct::delay: return "delay";
    }
    return "invalid";
}

/// What is to happen to a connection, and when: right after exactly so many bytes went that way,
/// counted on each connection from the moment of arming. After 0 bytes: when the first one comes,
/// which does not get through.
struct GateFault {
    Direction way = Direction::to_server;
    GateAct act = GateAct::reset;
    std::uint64_t after = 0;
    int times = 1;                       ///< So many connections are hit; then the fault is over.
    std::chrono::milliseconds pause{0};  ///< Of a delay.
};

/// A TCP proxy on a loopback port before a server on another, in one thread of this process, which
/// a test tells what to break. It knows nothing of what passes. Any thread may call any member.
class TcpGate {
public:
    /// @throws std::runtime_error where there is no port.
    explicit TcpGate(int server_port) : server_port_(server_port) {
        holder_ = bound(0);
        listener_ = bound(port_of(holder_));
        wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (wake_ < 0) throw std::runtime_error("no eventfd");
        port_ = port_of(holder_);
        open_door();
        thread_ = std::thread([this] { run(); });
    }
    TcpGate(const TcpGate&) = delete;
    TcpGate& operator=(const TcpGate&) = delete;
    ~TcpGate() {
        tell([&] { stop_ = true; });
        thread_.join();
        for (auto& connection : connections_) reset(connection);
        for (const int fd : {listener_, holder_, wake_})
            if (fd >= 0) ::close(fd);
    }

    [[nodiscard]] int port() const noexcept { return port_; }

    /// Arms a fault in place of the last one; counts begin at 0 on every connection.
    void arm(const GateFault& fault) {
        tell([&] {
            fault_ = fault;
            fired_ = 0;
            for (auto& connection : connections_)
                for (auto& stream : connection.streams) {
                    stream.since_armed = 0;
                    stream.due.reset();
                }
        });
    }
    void disarm() {
        tell([&] { fault_.reset(); });
    }
    /// Turns new connections away, as a port does where nobody listens.
    void refuse() {
        tell([&] {
            if (listener_ < 0) return;
            (void)::shutdown(listener_, SHUT_RDWR);  // at once: the thread's poll keeps it alive
            ::close(listener_);
            listener_ = -1;
        });
    }
    void accept_again() {
        tell([&] {
            if (listener_ >= 0) return;
            listener_ = bound(port_);
            open_door();
        });
    }
    /// Ends all connections, those that vanished too.
    void reset_all() {
        tell([&] {
            for (auto& connection : connections_) reset(connection);
        });
    }

    /// How many connections the armed fault has hit.
    [[nodiscard]] int fired() const { return locked(fired_); }
    /// Connections taken since the beginning, and those of them that are open.
    [[nodiscard]] int taken() const { return locked(taken_); }
    [[nodiscard]] std::size_t open() const {
        const std::lock_guard lock(mutex_);
        return static_cast<std::size_t>(
            std::count_if(connections_.begin(), connections_.end(),
                          [](const Connection& each) { return each.client >= 0; }));
    }
    /// Bytes passed on since the beginning.
    [[nodiscard]] std::uint64_t bytes(Direction way) const { return locked(bytes_[index(way)]); }

private:
    using Time = std::chrono::steady_clock;

    struct Stream {
        std::string pending{};
        std::uint64_t since_armed = 0;
        std::optional<GateFault> due{};  ///< Strikes as soon as `pending` is delivered.
        bool swallowed = false;          ///< What comes is read and dropped.
        bool ended = false;              ///< The sender has said that no more comes.
        bool told = false;               ///< And the receiver knows.
        std::optional<Time::time_point> paused{};
    };
    struct Connection {
        int client = -1;
        int server = -1;
        std::array<Stream, 2> streams{};
        bool vanished = false;

        [[nodiscard]] int from(Direction way) const {
            return way == Direction::to_server ? client : server;
        }
        [[nodiscard]] int to(Direction way) const {
            return way == Direction::to_server ? server : client;
        }
        [[nodiscard]] Stream& at(Direction way) { return streams[index(way)]; }
    };

    [[nodiscard]] static constexpr std::size_t index(Direction way) {
        return static_cast<std::size_t>(way);
    }
    template <class T>
    [[nodiscard]] T locked(const T& value) const {
        const std::lock_guard lock(mutex_);
        return value;
    }
    template <class Change>
    void tell(Change&& change) {
        {
            const std::lock_guard lock(mutex_);
            change();
        }
        const std::uint64_t one = 1;
        (void)!::write(wake_, &one, sizeof one);
    }

    /// A bound socket. One that never listens keeps the port for the times of refusing.
    [[nodiscard]] static int bound(int port) {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        const int on = 1;
        const auto at = loopback(port);
        if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
            bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0)
            throw std::runtime_error("the gate got no port");
        return fd;
    }
    [[nodiscard]] static int port_of(int fd) {
        sockaddr_in at{};
        socklen_t size = sizeof at;
        if (getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) != 0)
            throw std::runtime_error("the gate has no port");
        return ntohs(at.sin_port);
    }
    void open_door() const {
        if (listen(listener_, 128) != 0) throw std::runtime_error("the gate cannot listen");
    }

    // --- the thread, which holds the lock but while it sleeps
    // -------------------------------------
    void run() {
        std::unique_lock lock(mutex_);
        while (!stop_) {
            std::vector<pollfd> fds = {{wake_, POLLIN, 0}, {listener_, POLLIN, 0}};
            int timeout = -1;
            for (auto& connection : connections_) watch(connection, fds, timeout);
            const std::size_t watched = connections_.size();
            lock.unlock();
            (void)::poll(fds.data(), fds.size(), timeout);
            lock.lock();
            std::uint64_t count = 0;
            (void)!::read(wake_, &count, sizeof count);
            auto at = connections_.begin();
            for (std::size_t i = 0; i < watched; ++i, ++at)
                for (const Direction way : {Direction::to_server, Direction::to_client})
                    serve(*at, way);
            connections_.remove_if([](const Connection& c) { return c.client < 0; });
            if ((fds[1].revents & POLLIN) != 0) take();
        }
    }

    void watch(Connection& connection, std::vector<pollfd>& fds, int& timeout) {
        for (const Direction way : {Direction::to_server, Direction::to_client}) {
            Stream& stream = connection.at(way);
            if (connection.vanished) continue;
            if (stream.paused) {
                const auto left =
                    std::chrono::ceil<std::chrono::milliseconds>(*stream.paused - Time::now());
                const int ms = static_cast<int>(std::max<std::int64_t>(left.count(), 0));
                timeout = timeout < 0 ? ms : std::min(timeout, ms);
            } else if (!stream.pending.empty()) {
                fds.push_back({connection.to(way), POLLOUT, 0});
            } else if (!stream.ended) {
                fds.push_back({connection.from(way), POLLIN, 0});
            }
        }
    }

    void take() {
        const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (client < 0) return;
        const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const auto at = loopback(server_port_);
        const int on = 1;
        Connection connection;
        connection.client = client;
        connection.server = server;
        ++taken_;
        if (connect(server, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0)
            return reset(connection);
        (void)setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        (void)setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        connections_.push_back(std::move(connection));
    }

    /// Moves what can be moved without waiting.
    void serve(Connection& connection, Direction way) {
        Stream& stream = connection.at(way);
        while (connection.client >= 0 && !connection.vanished) {
            if (stream.paused && *stream.paused > Time::now()) return;
            stream.paused.reset();
            if (!deliver(connection, way)) return;
            if (stream.due) {
                strike(connection, *std::exchange(stream.due, std::nullopt));
                continue;
            }
            if (stream.ended) return tell_end(connection, way);
            if (!read_some(connection, way)) return;
        }
    }
    /// False while the receiver has no room.
    bool deliver(Connection& connection, Direction way) {
        Stream& stream = connection.at(way);
        while (!stream.pending.empty()) {
            const auto sent = ::send(connection.to(way), stream.pending.data(),
                                     stream.pending.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
            if (sent < 0 && errno == EINTR) continue;
            if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
            if (sent < 0) {  // the receiver is gone
                reset(connection);
                return false;
            }
            stream.pending.erase(0, static_cast<std::size_t>(sent));
        }
        return true;
    }
    /// False where there is nothing to read now.
    bool read_some(Connection& connection, Direction way) {
        Stream& stream = connection.at(way);
        const bool aimed = fault_ && fault_->way == way && !stream.swallowed;
        const bool at_first = aimed && fault_->after == 0 && stream.since_armed == 0;
        const bool armed = aimed && stream.since_armed < fault_->after;
        std::array<char, 16384> buffer;
        std::size_t most = buffer.size();
        if (armed) most = std::min<std::size_t>(most, fault_->after - stream.since_armed);
        const auto got = ::recv(connection.from(way), buffer.data(), most,
                                MSG_DONTWAIT | (at_first ? MSG_PEEK : 0));
        if (got < 0 && errno == EINTR) return true;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
        if (got < 0) {
            reset(connection);
            return false;
        }
        stream.ended = got == 0;
        if (got == 0 || stream.swallowed) return true;
        if (at_first) {
            stream.since_armed = 1;  // not again where it is only delayed
            stream.due = next_hit();
            return true;
        }
        const auto count = static_cast<std::uint64_t>(got);
        stream.pending.append(buffer.data(), static_cast<std::size_t>(got));
        stream.since_armed += count;
        bytes_[index(way)] += count;
        if (armed && stream.since_armed == fault_->after) stream.due = next_hit();
        return true;
    }
    [[nodiscard]] GateFault next_hit() {
        const GateFault hit = *fault_;
        if (--fault_->times <= 0) fault_.reset();
        return hit;
    }
    void tell_end(Connection& connection, Direction way) {
        Stream& stream = connection.at(way);
        if (!stream.told) (void)::shutdown(connection.to(way), SHUT_WR);
        stream.told = true;
        const auto over = [](const Stream& each) { return each.ended && each.told; };
        if (std::all_of(connection.streams.begin(), connection.streams.end(), over))
            end(connection);
    }

    void strike(Connection& connection, const GateFault& fault) {
        ++fired_;
        switch (fault.act) {
            case GateAct::reset: return reset(connection);
            case GateAct::close:
                for (const Direction each : {Direction::to_server, Direction::to_client}) {
                    (void)::shutdown(connection.to(each), SHUT_WR);
                    connection.at(each).swallowed = true;
                    connection.at(each).told = true;
                    connection.at(each).pending.clear();
                }
                return;
            case GateAct::swallow: connection.at(fault.way).swallowed = true; return;
            case GateAct::vanish: connection.vanished = true; return;
            case GateAct::delay: connection.at(fault.way).paused = Time::now() + fault.pause;
        }
    }
    static void reset(Connection& connection) {
        const linger at_once{1, 0};
        for (const int fd : {connection.client, connection.server})
            if (fd >= 0) (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        end(connection);
    }
    static void end(Connection& connection) {
        for (int* fd : {&connection.client, &connection.server}) {
            if (*fd >= 0) ::close(*fd);
            *fd = -1;
        }
    }

    int server_port_;
    int port_ = 0;
    int holder_ = -1;
    int listener_ = -1;
    int wake_ = -1;
    mutable std::mutex mutex_{};
    std::list<Connection> connections_{};
    std::optional<GateFault> fault_{};
    int fired_ = 0;
    int taken_ = 0;
    std::array<std::uint64_t, 2> bytes_{};
    bool stop_ = false;
    std::thread thread_{};
};

}  // namespace idem_test

#endif
