// Redis over TLS. A program of its own: where this header is included rediss:// works everywhere.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <idem/idem.hpp>
#include <idem/redis.hpp>
#include <idem/redis/tls.hpp>

#include "support/catch.hpp"
#include "support/certificates.hpp"
#include "support/eventually.hpp"
#include "support/fake_redis.hpp"
#include "support/gate_sweep.hpp"
#include "support/held_to_promises.hpp"
#include "support/redis_requests.hpp"
#include "support/redis_world.hpp"

namespace {

using namespace std::chrono_literals;
using idem::ClaimKind;
using idem::Trouble;
using idem_test::Certificates;
using idem_test::claim_of;
using idem_test::complete_of;
using idem_test::options_for;
using idem_test::quick;
using idem_test::random_owner;
using idem_test::RedisCli;
using idem_test::RedisServer;
using idem_test::view_of;
using Rig = idem_test::GateRig<idem::RedisStore>;
namespace exchange = idem_test::exchange;

const Certificates& certificates() {
    static const Certificates made;
    return made;
}

/// A server with a port for TLS beside the plain one.
struct TlsServer {
    explicit TlsServer(const std::string& cert = "server", const std::string& clients = "no",
                       std::vector<std::string> more = {})
        : server(options(cert, clients, std::move(more), port)) {}

    [[nodiscard]] std::string url(const std::string& more = "") const {
        return "rediss://127.0.0.1:" + std::to_string(port) + more;
    }
    [[nodiscard]] std::string trusted(const std::string& more = "") const {
        return url("?tls_ca=" + certificates().cert("ca") + more);
    }

    int port = idem_test::free_port();
    RedisServer server;

private:
    static std::vector<std::string> options(const std::string& cert, const std::string& clients,
                                            std::vector<std::string> more, int port) {
        const auto& files = certificates();
        std::vector<std::string> out = {"--tls-port",         std::to_string(port),
                                        "--tls-cert-file",    files.cert(cert),
                                        "--tls-key-file",     files.key(cert),
                                        "--tls-ca-cert-file", files.cert("ca"),
                                        "--tls-auth-clients", clients};
        out.insert(out.end(), more.begin(), more.end());
        return out;
    }
};

TlsServer& shared() {
    static TlsServer server;
    return server;
}

/// A guarded call that must be refused: in time, by the server's name, without its handler.
Trouble blocked(idem::RedisOptions options) {
    idem::RedisStore store(std::move(options));
    idem::IdempotencyGuard<idem::RedisStore> guard(store);
    bool ran = false;
    const auto from = idem::LocalClock::now();
    CHECK_THROWS_AS(guard.run(idem::Key{"s", "k"}, {}, [&] { ran = true; }), idem::Error);
    CHECK(idem::LocalClock::now() - from < 30s);  // of a busy machine
    CHECK_FALSE(ran);
    auto reply = idem::claim_one(store, claim_of({"s", "k"}, random_owner()));
    INFO(reply.trouble.message);
    CHECK_FALSE(reply.trouble.may_have_applied);
    CHECK(reply.trouble.message.find("127.0.0.1") != std::string::npos);
    CHECK(reply.trouble.message.find("secret") == std::string::npos);
    return reply.trouble;
}

bool works(const std::string& url) {
    idem::RedisStore store(options_for(url));
    const auto owner = random_owner();
    const idem::Key key{"s", "k"};
    const auto reply = idem::claim_one(store, claim_of(key, owner));
    UNSCOPED_INFO(reply.trouble.message);
    return reply.kind == ClaimKind::acquired &&
           !idem::finish_one(store, complete_of(key, owner, reply.fence, "r")).trouble;
}

TEST_CASE("conformance: Redis keeps every promise over TLS", "[integration][redis][tls]") {
    RedisCli cli(shared().server.url());
    idem_test::held_to_promises("Redis over TLS",
                                [&] { return idem_test::RedisWorld(shared().trusted(), cli); },
                                {.seed = std::random_device{}(), .histories = 100, .shrinks = 200});
    CHECK(idem_test::without_ttl(cli) == "");
}

TEST_CASE("TLS: a server is believed only with a certificate that is trusted, valid and its own",
          "[integration][redis][tls]") {
    const auto refused = [](const std::string& url, const std::string& why) {
        const auto trouble = blocked(quick(url));
        INFO(trouble.message);
        CHECK(trouble.kind == Trouble::Kind::usage);
        CHECK(trouble.message.find(why) != std::string::npos);
    };
    const auto ca = "tls_ca=" + certificates().cert("ca");
    CHECK(works(shared().trusted()));
    CHECK(works("rediss://localhost:" + std::to_string(shared().port) + "?" + ca));
    refused(shared().url(), "self-signed");  // the system does not know this authority
    refused(shared().url("?tls_ca=" + certificates().cert("other")), "certificate");
    refused(shared().trusted("&tls_name=elsewhere.invalid"), "hostname mismatch");
    CHECK(works(shared().url("?tls_verify=no")));
    const TlsServer elsewhere("elsewhere");
    refused(elsewhere.trusted(), "IP address mismatch");
    CHECK(works(elsewhere.trusted("&tls_name=elsewhere.invalid")));
    const TlsServer expired("expired");
    refused(expired.trusted(), "expired");
}

TEST_CASE("TLS: a server that asks for certificates gets ours, or a usage error says so",
          "[integration][redis][tls]") {
    for (const std::string protocol : {"TLSv1.2", "TLSv1.3"}) {
        INFO(protocol);
        const TlsServer server("server", "yes", {"--tls-protocols", protocol});
        const auto with = [&](const std::string& name) {
            return server.trusted("&tls_cert=" + certificates().cert(name) +
                                  "&tls_key=" + certificates().key(name));
        };
        CHECK(works(with("client")));
        CHECK(blocked(quick(with("stranger"))).kind == Trouble::Kind::usage);
        CHECK(blocked(quick(server.trusted())).kind == Trouble::Kind::usage);
    }
}

TEST_CASE("TLS: where nothing speaks it the store is unavailable, in time, by name",
          "[integration][redis][tls]") {
    const auto to = [](int port) {
        return quick("rediss://:secret@127.0.0.1:" + std::to_string(port));
    };
    CHECK(blocked(to(shared().server.port())).kind == Trouble::Kind::unavailable);
    CHECK(blocked(to(idem_test::free_port())).kind == Trouble::Kind::unavailable);
    const auto plain = "redis://:secret@127.0.0.1:" + std::to_string(shared().port);
    CHECK(blocked(quick(plain)).kind == Trouble::Kind::unavailable);
    for (const std::string bytes : {"", "HTTP/1.1 400 Bad Request\r\n\r\n", "\x16\x03\x03"}) {
        const idem_test::LoopbackPort port(idem_test::says(bytes, false));
        CHECK(blocked(to(port.port())).kind == Trouble::Kind::unavailable);
    }
}

TEST_CASE("TLS: files that are no good are a usage error when the store is made",
          "[integration][redis][tls]") {
    const auto& files = certificates();
    struct Row {
        std::string options;
        std::string named;
    };
    const Row rows[] = {
        {"tls_ca=" + files.file("nothing"), "nothing"},
        {"tls_ca=" + files.file("ca.cnf"), "ca.cnf"},
        {"tls_cert=" + files.cert("client"), "tls_key"},
        {"tls_key=" + files.key("client"), "tls_cert"},
        {"tls_cert=" + files.cert("client") + "&tls_key=" + files.key("server"), "tls_key"},
        {"tls_cert=" + files.key("client") + "&tls_key=" + files.key("client"), "tls_cert"},
        {"tls_verify=maybe", "tls_verify"},
    };
    for (const auto& row : rows) {
        INFO(row.options);
        std::string said;
        try {
            (void)idem::RedisStore({.url = "rediss://:secret@127.0.0.1?" + row.options});
        } catch (const idem::UsageError& error) {
            said = error.what();
        }
        INFO(said);
        CHECK(said.find(row.named) != std::string::npos);
        CHECK(said.find("secret") == std::string::npos);
    }
    CHECK_THROWS_AS(idem::RedisStore({.url = "redis://h?tls_ca=x"}), idem::UsageError);
}

TEST_CASE("TLS: login, any bytes, large results, whole batches and notices go through",
          "[integration][redis][tls]") {
    const TlsServer server("server", "no", {"--requirepass", "right"});
    const auto ca = certificates().cert("ca");
    const auto at = "127.0.0.1:" + std::to_string(server.port) + "/2?tls_ca=" + ca;
    CHECK(blocked(quick("rediss://:secret@" + at)).kind == Trouble::Kind::usage);
    auto opened = idem::open_store("rediss://:right@" + at);
    idem::IdempotencyGuard<idem::AnyStore> guard(opened, {.result_bytes_max = 8U << 20U});
    std::string large(5U << 20U, '\0');
    std::mt19937 random(1);
    for (char& c : large) c = static_cast<char>(random());
    const idem::Key key{"s", std::string("\0\xff\r\n{}", 6)};
    CHECK(guard.run(key, {}, [&] { return large; }).value() == large);
    CHECK(guard.run(key, {}, [] { return std::string(); }).value() == large);

    idem::RedisStore store(options_for("rediss://:right@" + at));
    std::vector<idem::Key> keys;
    std::vector<idem::ClaimRequest> batch;
    for (int i = 0; i < 1200; ++i) keys.push_back({"batch", std::to_string(i)});
    for (const auto& each : keys) batch.push_back(claim_of(each, random_owner()));
    std::vector<idem::ClaimReply> replies(batch.size());
    store.claim(batch, replies);
    for (const auto& reply : replies) REQUIRE(reply.kind == ClaimKind::acquired);

    std::atomic<int> notices{0};
    const auto handle = store.watch(view_of(keys[0]), [&] { ++notices; });
    REQUIRE(handle != nullptr);
    (void)idem::finish_one(store, complete_of(keys[0], batch[0].owner, replies[0].fence, "r"));
    CHECK(idem_test::eventually([&] { return notices > 0; }));
}

TEST_CASE("TLS: sixteen threads get each their own answers while connections are killed",
          "[integration][redis][tls]") {
    idem::RedisStore store(options_for(shared().trusted()));
    std::atomic<int> wrong{0};
    std::atomic<int> finished{0};
    std::vector<std::jthread> threads;
    // On a slow machine the connections are killed faster than they are made: the same again.
    const auto insist = [](const auto& ask) {
        auto reply = ask();
        for (int i = 0; i < 1000 && reply.trouble.kind == Trouble::Kind::unavailable; ++i)
            reply = ask();
        return reply;
    };
    for (int me = 0; me < 16; ++me)
        threads.emplace_back([&, me] {
            for (int i = 0; i < 60; ++i, ++finished) {
                const idem::Key key{"own", std::to_string(me) + "." + std::to_string(i)};
                const auto owner = random_owner();
                const auto reply =
                    insist([&] { return idem::claim_one(store, claim_of(key, owner)); });
                const auto complete = complete_of(key, owner, reply.fence, key.id);
                const auto done = insist([&] { return idem::finish_one(store, complete); });
                const auto again =
                    insist([&] { return idem::claim_one(store, claim_of(key, random_owner())); });
                if (reply.trouble || done.trouble || done.lost || again.result != key.id) ++wrong;
            }
        });
    RedisCli cli(shared().server.url());
    for (int seen = 0; seen < 16 * 60;) {
        (void)cli({"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"});
        const int enough = std::min(seen + 16, 16 * 60);
        CHECK(idem_test::eventually([&] { return finished >= enough; }));
        seen = finished;
    }
    for (auto& thread : threads) thread.join();
    CHECK(wrong == 0);
}

TEST_CASE("TLS gate: claims and finishes broken anywhere are made once, handshake included",
          "[integration][redis][tls]") {
    const TlsServer server("server", "no", {"--requirepass", "secret"});
    const auto make = [](int port) {
        auto options = options_for("rediss://:secret@127.0.0.1:" + std::to_string(port) +
                                       "?tls_ca=" + certificates().cert("ca"),
                                   "gate:");
        options.connections = 1;
        options.connect_timeout = 400ms;
        options.command_timeout = 250ms;
        options.time_allowed = 3s;
        return idem::RedisStore(options);
    };
    idem_test::Findings findings;
    std::vector<std::unique_ptr<Rig>> rigs;
    for (int i = 0; i < 8; ++i)
        rigs.push_back(std::make_unique<Rig>(server.port, make, make(server.port), findings));
    rigs.front()->warm_up();
    using What = idem_test::Exchange<Rig>;
    for (const auto& what :
         {What{"claim over TLS", exchange::prepare_claim<Rig>, exchange::claim<Rig>},
          What{"finish over TLS", exchange::prepare_finish<Rig>, exchange::finish<Rig>},
          What{"cold claim over TLS", exchange::prepare_cold<Rig>, exchange::claim<Rig>}})
        idem_test::sweep(rigs, findings, what, 40);
}

}  // namespace
