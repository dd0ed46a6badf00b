#ifndef IDEM_REDIS_CONNECTION_HPP
#define IDEM_REDIS_CONNECTION_HPP

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <idem/clock.hpp>
#include <idem/detail/fork.hpp>
#include <idem/detail/resolve.hpp>
#include <idem/redis/address.hpp>
#include <idem/redis/fault.hpp>

namespace idem::inline v0_1::redis {

/// Commands that leave in one write. Arguments are bytes and go out as they are.
class Request {
public:
    void command(std::span<const std::string_view> words) {
        number('*', words.size());
        for (const auto word : words) {
            number('$', word.size());
            bytes_ += word;
            bytes_ += "\r\n";
        }
        ++count_;
    }
    void command(std::initializer_list<std::string_view> words) {
        command(std::span(words.begin(), words.size()));
    }
    [[nodiscard]] const std::string& bytes() const noexcept { return bytes_; }
    [[nodiscard]] std::size_t count() const noexcept { return count_; }

private:
    void number(char kind, std::size_t value) {
        std::array<char, 24> text{};
        const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
        bytes_ += kind;
        bytes_.append(text.data(), end);
        bytes_ += "\r\n";
    }
    std::string bytes_{};
    std::size_t count_ = 0;
};

/// One reply. What is asked of a reply of another kind is answered with nothing.
class Reply {
public:
    explicit Reply(redisReply* reply) noexcept : reply_(reply) {}

    [[nodiscard]] bool is_error() const noexcept { return reply_->type == REDIS_REPLY_ERROR; }
    [[nodiscard]] bool is_null() const noexcept { return reply_->type == REDIS_REPLY_NIL; }
    /// Of a string, a status or an error; refers into the reply.
    [[nodiscard]] std::optional<std::string_view> text() const noexcept { return text(*reply_); }
    [[nodiscard]] std::optional<std::int64_t> integer() const noexcept {
        if (reply_->type != REDIS_REPLY_INTEGER) return std::nullopt;
        return reply_->integer;
    }
    /// Of an array; 0 for anything else.
    [[nodiscard]] std::size_t size() const noexcept { return size(*reply_); }
    [[nodiscard]] std::optional<std::string_view> text(std::size_t i) const noexcept {
        return i < size() ? text(*reply_->element[i]) : std::nullopt;
    }
    [[nodiscard]] std::size_t size(std::size_t i) const noexcept {
        return i < size() ? size(*reply_->element[i]) : 0;
    }
    [[nodiscard]] std::optional<std::string_view> text(std::size_t i,
                                                       std::size_t j) const noexcept {
        return j < size(i) ? text(*reply_->element[i]->element[j]) : std::nullopt;
    }

private:
    struct Free {
        void operator()(redisReply* r) const noexcept { freeReplyObject(r); }
    };
    [[nodiscard]] static std::size_t size(const redisReply& r) noexcept {
        return r.type == REDIS_REPLY_ARRAY ? r.elements : 0;
    }
    [[nodiscard]] static std::optional<std::string_view> text(const redisReply& r) noexcept {
        if (r.type != REDIS_REPLY_STRING && r.type != REDIS_REPLY_STATUS &&
            r.type != REDIS_REPLY_ERROR)
            return std::nullopt;
        return std::string_view(r.str, r.len);
    }
    std::unique_ptr<redisReply, Free> reply_;
};

/// What came back: the replies that arrived, in order, and why the rest did not.
struct Answers {
    std::vector<Reply> replies{};
    std::optional<Fault> fault{};
};

/// What a server says of itself when one connects.
struct ServerFacts {
    unsigned major = 0;  ///< 0 where it does not tell.
    unsigned minor = 0;
    std::string eviction{};  ///< The policy, where it may drop keys; else empty.
};

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

/// One connection with our own deadlines, for one thread at a time; hiredis reads the replies, the
/// socket is ours: it never raises SIGPIPE, and no step is without a limit. A connection that timed
/// out or broke in the middle of a reply says so by `usable`, and must be dropped: its next reply
/// could be the answer to another's request. A forked child may only close it.
class Connection {
public:
    /// Name resolution, connecting to each address in turn, and the login, all before `deadline`.
    [[nodiscard]] static std::optional<Connection> open(const Place& place, const Login& login,
                                                        LocalInstant deadline, Fault& fault) {
        std::string why;
        Socket socket = place.path.empty() ? connect_host(place, deadline, why)
                                           : connect_path(place.path, deadline, why);
        if (!socket) {
            fault = Fault::of_client(code::no_place,
                                     "no connection to Redis at " + place.name() + ": " + why);
            return std::nullopt;
        }
        std::optional<Connection> made(Connection(std::move(socket), place.name()));
        if (auto refused = made->log_in(login, deadline)) {
            fault = *std::move(refused);
            return std::nullopt;
        }
        return made;
    }

    [[nodiscard]] bool usable() const noexcept { return !broken_ && made_in_.here(); }
    /// Not to be used any more.
    void discard() noexcept { broken_ = true; }
    /// Whether the server still holds it while it lies idle. Sends nothing. Bytes that nobody asked
    /// for would be taken for the answer to the next request.
    [[nodiscard]] bool alive() const noexcept {
        if (!usable()) return false;
        char byte = 0;
        const auto got = ::recv(fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    }
    [[nodiscard]] const ServerFacts& facts() const noexcept { return facts_; }
    [[nodiscard]] const std::string& place() const noexcept { return place_; }
    [[nodiscard]] int fd() const noexcept { return socket_.fd(); }

    /// Sends all commands in one write and collects a reply for each.
    [[nodiscard]] Answers exchange(const Request& request, LocalInstant deadline) {
        Answers out;
        out.replies.reserve(request.count());
        std::string_view rest = request.bytes();
        bool sending = true;
        try {
            while (out.replies.size() < request.count()) {
                if (sending && !rest.empty()) sending = send_some(rest);
                if (!await(sending && !rest.empty(), deadline)) {
                    out.fault = fail(code::timed_out, "no answer in the time allowed");
                    return out;
                }
                if (!read_some(out.replies, request.count()))
                    return broke(std::move(out), request, rest);
            }
        } catch (...) {
            broken_ = true;
            throw;
        }
        if (!rest.empty()) broken_ = true;  // answered before it was asked
        return out;
    }

    /// For a subscriber: sends without waiting for replies. False where the connection is at its
    /// end.
    [[nodiscard]] bool send(const Request& request, LocalInstant deadline) {
        std::string_view rest = request.bytes();
        while (!rest.empty()) {
            if (!send_some(rest)) return broken_ = true, false;
            if (!rest.empty() && !await(true, deadline)) return broken_ = true, false;
        }
        return true;
    }
    /// For a subscriber: what has arrived. False where the connection is at its end.
    [[nodiscard]] bool receive(std::vector<Reply>& replies) {
        if (read_some(replies, replies.max_size())) return true;
        broken_ = true;
        return false;
    }

private:
    struct FreeReader {
        void operator()(redisReader* r) const noexcept { redisReaderFree(r); }
    };

    Connection(Socket socket, std::string place)
        : socket_(std::move(socket)), reader_(redisReaderCreate()), place_(std::move(place)) {
        if (!reader_) throw std::bad_alloc();
    }

    [[nodiscard]] Fault fail(std::string_view word, const std::string& why) {
        broken_ = true;
        return Fault::of_client(word, "Redis at " + place_ + ": " + why);
    }
    [[nodiscard]] Answers broke(Answers out, const Request& request, std::string_view rest) {
        const bool unsent = rest.size() == request.bytes().size();
        if (nonsense_) {
            out.fault = fail(code::nonsense, "what answers there does not speak Redis's protocol");
        } else {
            out.fault = fail(unsent ? code::unsent : code::broken, "the connection was closed");
        }
        return out;
    }

    /// False where nothing more can be sent; a last word may still be there to be read.
    [[nodiscard]] bool send_some(std::string_view& rest) noexcept {
        while (!rest.empty()) {
            const auto sent = ::send(fd(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
            if (sent > 0) {
                rest.remove_prefix(static_cast<std::size_t>(sent));
            } else if (sent < 0 && errno != EINTR) {
                return errno == EAGAIN || errno == EWOULDBLOCK;
            }
        }
        return true;
    }

    /// Reads what is there, without waiting. False at the end of the connection, or of sense.
    [[nodiscard]] bool read_some(std::vector<Reply>& replies, std::size_t wanted) {
        std::array<char, 16384> buffer;  // NOLINT: filled before it is read
        for (;;) {
            const auto got = ::recv(fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
            if (got == 0) return false;
            if (redisReaderFeed(reader_.get(), buffer.data(), static_cast<std::size_t>(got)) !=
                REDIS_OK)
                return nonsense_ = true, false;
            if (!take_replies(replies, wanted)) return nonsense_ = true, false;
            if (replies.size() == wanted || static_cast<std::size_t>(got) < buffer.size())
                return true;
        }
    }
    [[nodiscard]] bool take_replies(std::vector<Reply>& replies, std::size_t wanted) {
        while (replies.size() < wanted) {
            void* reply = nullptr;
            if (redisReaderGetReply(reader_.get(), &reply) != REDIS_OK) return false;
            if (reply == nullptr) return true;
            replies.emplace_back(static_cast<redisReply*>(reply));
        }
        return true;
    }

    [[nodiscard]] bool await(bool writable, LocalInstant deadline) const noexcept {
        return await(fd(), static_cast<short>(writable ? POLLIN | POLLOUT : POLLIN), deadline);
    }
    [[nodiscard]] static bool await(int fd, short events, LocalInstant deadline) noexcept {
        for (;;) {
            const auto left = deadline - LocalClock::now();
            if (left <= left.zero()) return false;
            const auto millis = std::chrono::ceil<std::chrono::milliseconds>(left).count();
            pollfd at{fd, events, 0};
            const int ready = ::poll(&at, 1, static_cast<int>(std::min<long>(millis, 60'000)));
            if (ready > 0) return true;
            if (ready < 0 && errno != EINTR) return false;
        }
    }

    // --- connecting -----------------------------------------------------------------------------

    [[nodiscard]] static Socket connect_to(const sockaddr* address, socklen_t size,
                                           LocalInstant deadline, std::string& why) {
        Socket made(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        const int fd = made.fd();
        int error = made && ::connect(fd, address, size) == 0 ? 0 : errno;
        if (error == EINPROGRESS || error == EINTR) {
            socklen_t length = sizeof error;
            if (!await(fd, POLLOUT, deadline)) {
                error = ETIMEDOUT;
            } else if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
                error = errno;
            }
        }
        if (error == 0) return made;
        why = std::strerror(error);
        return Socket();
    }

    [[nodiscard]] static Socket connect_path(const std::string& path, LocalInstant deadline,
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

    [[nodiscard]] static Socket connect_host(const Place& place, LocalInstant deadline,
                                             std::string& why) {
        const auto resolved = idem::detail::resolve(place.host, deadline);
        why = resolved.error;
        for (std::size_t i = 0; i < resolved.addresses.size(); ++i) {
            const auto now = LocalClock::now();
            const auto share = now + (deadline - now) / (resolved.addresses.size() - i);
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
    [[nodiscard]] static socklen_t numeric_address(const std::string& text, std::uint16_t port,
                                                   sockaddr_storage& into) {
        addrinfo hints = idem::detail::stream_hints(AI_NUMERICHOST | AI_NUMERICSERV);
        addrinfo* list = nullptr;
        if (getaddrinfo(text.c_str(), std::to_string(port).c_str(), &hints, &list) != 0) return 0;
        const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(list, freeaddrinfo);
        std::memcpy(&into, list->ai_addr, list->ai_addrlen);
        return list->ai_addrlen;
    }

    // --- the first words ------------------------------------------------------------------------

    /// Nothing of the login is ever in a message.
    [[nodiscard]] std::optional<Fault> log_in(const Login& login, LocalInstant deadline) {
        Request hello;
        if (!login.user.empty()) {
            hello.command({"AUTH", login.user, login.password});
        } else if (!login.password.empty()) {
            hello.command({"AUTH", login.password});
        }
        if (login.database != 0) hello.command({"SELECT", std::to_string(login.database)});
        const std::size_t told = hello.count();
        hello.command({"INFO", "server"});
        hello.command({"INFO", "memory"});
        Answers answers = exchange(hello, deadline);
        for (std::size_t i = 0; i < std::min(told + 1, answers.replies.size()); ++i) {
            if (!answers.replies[i].is_error()) continue;
            const auto text = answers.replies[i].text().value_or("");
            // Who may not ask for the version may use the store all the same.
            if (i == told && text.starts_with("NOPERM")) continue;
            return unapplied(Fault::of(text, place_));
        }
        if (answers.fault) return unapplied(*std::move(answers.fault));
        learn(answers.replies[told].text().value_or(""),
              answers.replies[told + 1].text().value_or(""));
        if (facts_.major == 0 || facts_.major > 6 || (facts_.major == 6 && facts_.minor >= 2))
            return std::nullopt;
        return fail(code::too_old, "it is older than 6.2");
    }
    [[nodiscard]] static Fault unapplied(Fault fault) noexcept {
        fault.may_have_applied = false;
        return fault;
    }

    void learn(std::string_view server, std::string_view memory) {
        const std::string version = field(server, "redis_version:");
        const auto* end = version.data() + version.size();
        const auto [dot, error] = std::from_chars(version.data(), end, facts_.major);
        if (error == std::errc{} && dot != end) (void)std::from_chars(dot + 1, end, facts_.minor);
        const std::string policy = field(memory, "maxmemory_policy:");
        // Records carry a time to live each: the volatile policies take them like the others.
        if (!policy.empty() && policy != "noeviction") facts_.eviction = policy;
    }
    [[nodiscard]] static std::string field(std::string_view info, std::string_view name) {
        const auto at = info.find(name);
        if (at == std::string_view::npos) return {};
        const auto value = info.substr(at + name.size());
        return std::string(value.substr(0, value.find_first_of("\r\n")));
    }

    Socket socket_;
    std::unique_ptr<redisReader, FreeReader> reader_;
    std::string place_;
    ServerFacts facts_{};
    idem::detail::MadeIn made_in_{};
    bool broken_ = false;
    bool nonsense_ = false;
};

}  // namespace idem::inline v0_1::redis

#endif
