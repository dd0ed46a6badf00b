// The gate that the wire tests break connections with, tried on a server that says everything back.

#include "support/tcp_gate.hpp"

#include <cstring>
#include <string>
#include <string_view>
#include <thread>

#include "support/catch.hpp"

namespace tcp_gate_test {

using namespace std::chrono_literals;
using idem_test::Direction;
using idem_test::GateAct;
using idem_test::GateFault;
using idem_test::TcpGate;

/// Says back what it hears, on every connection, and says "bye" where the talk ends in order.
class Echo {
public:
    [[nodiscard]] int port() const { return port_.port(); }
    [[nodiscard]] std::string heard() {
        const std::lock_guard lock(mutex_);
        return heard_;
    }

private:
    void talk(int client) {
        char text[4096];
        ssize_t got = 0;
        while ((got = read(client, text, sizeof text)) > 0) {
            {
                const std::lock_guard lock(mutex_);
                heard_.append(text, static_cast<std::size_t>(got));
            }
            if (send(client, text, static_cast<std::size_t>(got), MSG_NOSIGNAL) != got) break;
        }
        if (got == 0) (void)!send(client, "bye", 3, MSG_NOSIGNAL);
    }

    std::mutex mutex_{};
    std::string heard_{};
    idem_test::LoopbackPort port_{[this](int client) { talk(client); }};
};

/// A client whose reads end after ten seconds: a gate that hangs fails the test.
class Client {
public:
    explicit Client(int port) {
        const auto at = idem_test::loopback(port);
        const timeval limit{10, 0};
        (void)setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        connected_ = connect(fd_, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0;
    }
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;
    ~Client() { close(fd_); }

    [[nodiscard]] bool connected() const { return connected_; }
    void say(std::string_view text) const {
        (void)!send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
    }
    void hang_up() const { shutdown(fd_, SHUT_WR); }
    /// So many bytes, or fewer and how it ended: "|" at an end in order, "!" at a reset, "?" where
    /// nothing came for `patience`.
    [[nodiscard]] std::string hear(std::size_t count, std::chrono::milliseconds patience = 10s) {
        std::string out;
        while (out.size() < count) {
            pollfd at{fd_, POLLIN, 0};
            if (poll(&at, 1, static_cast<int>(patience.count())) == 0) return out + "?";
            char c = 0;
            const auto got = recv(fd_, &c, 1, 0);
            if (got == 0) return out + "|";
            if (got < 0) return out + "!";
            out += c;
        }
        return out;
    }

private:
    int fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool connected_ = false;
};

TEST_CASE("the gate passes everything both ways, counts it, and passes the end on", "[gate]") {
    Echo echo;
    TcpGate gate(echo.port());
    Client client(gate.port());
    const std::string large(300'000, 'x');
    std::jthread writer([&] { client.say(large); });
    CHECK(client.hear(large.size()) == large);
    writer.join();
    client.hang_up();
    CHECK(client.hear(4) == "bye|");
    CHECK(gate.bytes(Direction::to_server) == large.size());
    CHECK(gate.bytes(Direction::to_client) == large.size() + 3);
    CHECK(gate.taken() == 1);
    CHECK(gate.fired() == 0);
}

TEST_CASE("the gate cuts after exactly so many bytes of either way, by RST or FIN", "[gate]") {
    for (const auto& [act, end] : {std::pair{GateAct::reset, "!"}, {GateAct::close, "|"}}) {
        for (const std::size_t after : {0U, 1U, 4U, 9U}) {
            INFO(to_string(act) << " after " << after);
            const std::string text = "one two three";
            {
                Echo echo;
                TcpGate gate(echo.port());
                Client client(gate.port());
                gate.arm({.way = Direction::to_client, .act = act, .after = after});
                client.say(text);
                CHECK(client.hear(99) == text.substr(0, after) + end);
                CHECK(gate.fired() == 1);
            }
            {
                Echo echo;
                TcpGate gate(echo.port());
                Client client(gate.port());
                gate.arm({.way = Direction::to_server, .act = act, .after = after});
                client.say(text);
                const auto heard = client.hear(99);
                CHECK(heard.back() == *end);
                CHECK(text.substr(0, after).starts_with(heard.substr(0, heard.size() - 1)));
                // What came after the cut never reached the server, in all eternity of its life.
                gate.reset_all();
                while (echo.heard().size() < after) std::this_thread::yield();
                CHECK(echo.heard() == text.substr(0, after));
            }
        }
    }
}

TEST_CASE("the gate swallows one way from a byte on, and the other goes on", "[gate]") {
    Echo echo;
    TcpGate gate(echo.port());
    Client client(gate.port());
    gate.arm({.way = Direction::to_client, .act = GateAct::swallow, .after = 3});
    client.say("abcdef");
    CHECK(client.hear(6, 50ms) == "abc?");
    client.say("ghi");
    while (echo.heard() != "abcdefghi") std::this_thread::yield();
    CHECK(client.hear(1, 50ms) == "?");
    CHECK(gate.open() == 1);
    client.hang_up();  // the end goes through, or a server would run out of places
    CHECK(client.hear(1) == "|");

    Client other(gate.port());
    gate.arm({.way = Direction::to_server, .act = GateAct::swallow, .after = 2});
    other.say("12345");
    CHECK(other.hear(5, 50ms) == "12?");
    CHECK(echo.heard() == "abcdefghi12");
}

TEST_CASE("a connection that vanished passes nothing, not even its end", "[gate]") {
    Echo echo;
    TcpGate gate(echo.port());
    auto client = std::make_unique<Client>(gate.port());
    gate.arm({.way = Direction::to_server, .act = GateAct::vanish, .after = 2});
    client->say("12345");
    while (gate.fired() == 0) std::this_thread::yield();
    client.reset();
    Client other(gate.port());
    other.say("x");
    CHECK(other.hear(1) == "x");
    CHECK(gate.open() == 2);
    gate.reset_all();
    CHECK(other.hear(1) == "!");
}

TEST_CASE("the gate delays from a byte on, and loses nothing", "[gate]") {
    Echo echo;
    TcpGate gate(echo.port());
    for (const std::size_t after : {0U, 4U}) {
        Client client(gate.port());
        gate.arm(
            {.way = Direction::to_client, .act = GateAct::delay, .after = after, .pause = 300ms});
        const auto from = std::chrono::steady_clock::now();
        client.say("abcdef");
        CHECK(client.hear(6, 10ms) == std::string("abcdef").substr(0, after) + "?");
        CHECK(client.hear(6 - after) == std::string("abcdef").substr(after));
        CHECK(std::chrono::steady_clock::now() - from >= 300ms);
        CHECK(gate.fired() == 1);
    }
}

TEST_CASE("a fault hits as many connections as it is armed for, each counted by itself", "[gate]") {
    Echo echo;
    TcpGate gate(echo.port());
    Client first(gate.port());
    Client second(gate.port());
    Client third(gate.port());
    first.say("12");
    CHECK(first.hear(2) == "12");
    gate.arm({.way = Direction::to_client, .after = 3, .times = 2});
    for (auto* client : {&first, &second}) client->say("345");
    CHECK(first.hear(4) == "345!");
    CHECK(second.hear(4) == "345!");
    third.say("345678");
    CHECK(third.hear(6) == "345678");
    CHECK(gate.fired() == 2);
    gate.arm({.way = Direction::to_client, .after = 3});
    gate.disarm();
    third.say("345678");
    CHECK(third.hear(6) == "345678");
}

TEST_CASE("the gate turns connections away and takes them again on the same port", "[gate]") {
    Echo echo;
    TcpGate gate(echo.port());
    Client before(gate.port());
    before.say("x");
    CHECK(before.hear(1) == "x");
    gate.refuse();
    CHECK_FALSE(Client(gate.port()).connected());
    before.say("y");
    CHECK(before.hear(1) == "y");
    gate.accept_again();
    Client after(gate.port());
    CHECK(after.connected());
    after.say("z");
    CHECK(after.hear(1) == "z");
    CHECK(gate.taken() == 2);
}

}  // namespace tcp_gate_test
