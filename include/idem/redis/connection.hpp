#ifndef IDEM_REDIS_CONNECTION_HPP
#define IDEM_REDIS_CONNECTION_HPP

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
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
#include <poll.h>
#include <sys/socket.h>

#include <idem/clock.hpp>
#include <idem/detail/fork.hpp>
#include <idem/redis/address.hpp>
#include <idem/redis/encryption.hpp>
#include <idem/redis/fault.hpp>
#include <idem/redis/socket.hpp>

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
        Socket socket = connect(place, deadline, why);
        if (!socket) {
            fault = Fault::of_client(code::no_place,
                                     "no connection to Redis at " + place.name() + ": " + why);
            return std::nullopt;
        }
        std::optional<Connection> made(Connection(std::move(socket), place.name()));
        auto refused = made->encrypt(place, deadline);
        if (!refused) refused = made->log_in(login, deadline);
        if (refused) {
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
        if (!usable()) return broke(std::move(out), true);
        out.replies.reserve(request.count());
        bool sending = true;
        std::string_view rest;
        try {
            std::string sealed;
            if (!seal(request, sealed, rest)) return broke(std::move(out), true);
            const std::size_t whole = rest.size();
            while (out.replies.size() < request.count()) {
                if (sending && !rest.empty()) sending = send_some(rest);
                if (!await(sending && !rest.empty(), deadline)) {
                    out.fault = fail(code::timed_out, "no answer in the time allowed");
                    return out;
                }
                if (!read_some(out.replies, request.count()))
                    return broke(std::move(out), rest.size() == whole);
            }
            // Answered before it was asked, or more than was asked: the next would get the rest.
            if (!rest.empty() || reader_->pos != reader_->len) broken_ = true;
        } catch (...) {
            broken_ = true;
            throw;
        }
        return out;
    }

    /// For a subscriber: sends without waiting for replies. False where the connection is at its
    /// end.
    [[nodiscard]] bool send(const Request& request, LocalInstant deadline) {
        std::string sealed;
        std::string_view rest;
        if (seal(request, sealed, rest) && send_all(rest, deadline)) return true;
        broken_ = true;
        return false;
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
    [[nodiscard]] Answers broke(Answers out, bool unsent) {
        const std::string reason = cipher_ ? cipher_->why() : std::string();
        const std::string more = reason.empty() ? reason : " (TLS: " + reason + ")";
        if (nonsense_) {
            out.fault = fail(code::nonsense, "what answers there does not speak Redis's protocol");
        } else if (cipher_ && cipher_->distrust()) {
            out.fault = fail(code::untrusted, "a certificate is not accepted" + more);
        } else {
            out.fault =
                fail(unsent ? code::unsent : code::broken, "the connection was closed" + more);
        }
        return out;
    }

    /// The bytes of a request as they go out; they refer into it, or into `sealed`.
    [[nodiscard]] bool seal(const Request& request, std::string& sealed, std::string_view& bytes) {
        bytes = request.bytes();
        if (!cipher_) return true;
        if (!cipher_->seal(bytes, sealed)) return false;
        bytes = sealed;
        return true;
    }
    [[nodiscard]] bool send_all(std::string_view rest, LocalInstant deadline) {
        while (!rest.empty()) {
            if (!send_some(rest)) return false;
            if (!rest.empty() && !await(true, deadline)) return false;
        }
        return true;
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
            std::string_view bytes(buffer.data(), static_cast<std::size_t>(got));
            std::string plain;
            const bool stands = !cipher_ || cipher_->open(bytes, plain);
            if (cipher_) bytes = plain;
            if (!bytes.empty() &&
                redisReaderFeed(reader_.get(), bytes.data(), bytes.size()) != REDIS_OK)
                return nonsense_ = true, false;
            if (!take_replies(replies, wanted)) return nonsense_ = true, false;
            if (!stands) broken_ = true;  // its last words may have been whole
            if (replies.size() == wanted || !stands) return replies.size() == wanted;
            if (static_cast<std::size_t>(got) < buffer.size()) return true;
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
        return idem::detail::await(fd(), static_cast<short>(writable ? POLLIN | POLLOUT : POLLIN),
                            deadline);
    }
    [[nodiscard]] std::optional<Fault> encrypt(const Place& place, LocalInstant deadline) {
        if (!place.encryption) return std::nullopt;
        cipher_ = place.encryption->begin(place.host);
        std::array<char, 4096> buffer;  // NOLINT: filled before it is read
        for (std::string_view arrived;;) {
            std::string out;
            const auto state = cipher_->shake_hands(arrived, out);
            const bool sent = send_all(out, deadline);
            if (state == Cipher::Handshake::failed) {
                const bool distrust = cipher_->distrust();
                return fail(distrust ? code::untrusted : code::no_place,
                            (distrust ? "a certificate is not accepted: " : "no TLS there: ") +
                                cipher_->why());
            }
            if (sent && state == Cipher::Handshake::done) return std::nullopt;
            if (!sent || !await(false, deadline))
                return fail(code::no_place, "no TLS handshake in the time allowed");
            const auto got = ::recv(fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
            if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
                return fail(code::no_place, "the connection was closed in the TLS handshake");
            arrived = {buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
        }
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
        // For people who look at CLIENT LIST; who may not say it may use the store all the same.
        if (!login.name.empty()) hello.command({"CLIENT", "SETNAME", login.name});
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
    std::unique_ptr<Cipher> cipher_{};
    std::unique_ptr<redisReader, FreeReader> reader_;
    std::string place_;
    ServerFacts facts_{};
    idem::detail::MadeIn made_in_{};
    bool broken_ = false;
    bool nonsense_ = false;
};

}  // namespace idem::inline v0_1::redis

#endif
