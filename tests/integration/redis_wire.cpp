// The way to the server: what each error means, and what a call gets when the way is blocked.

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <idem/idem.hpp>

#include "support/catch.hpp"
#include "support/child.hpp"
#include "support/fake_redis.hpp"
#include "support/redis_requests.hpp"
#include "support/tcp_gate.hpp"

namespace redis_wire_test {

using namespace std::chrono_literals;
using idem::Trouble;
using idem::redis::Cure;
using idem::redis::fault_class;
using idem_test::Direction;
using idem_test::FakeRedis;
using idem_test::GateAct;
using idem_test::LoopbackPort;
using idem_test::quick;
using idem_test::RedisCli;
using idem_test::RedisServer;
using idem_test::says;
using idem_test::shared_redis;
using idem_test::TcpGate;

// In a constant expression a look past the end of an error does not compile.
static_assert(fault_class("BUSY").cure == Cure::retry_here);
static_assert(fault_class("E").cure == Cure::unavailable);
static_assert(fault_class("").cure == Cure::unavailable);

/// A guarded call over a way that is blocked. It must come back within the time allowed, and some;
/// the handler must not have run; the message names the host and never the password.
Trouble blocked(idem::RedisOptions options) {
    idem::RedisStore store(std::move(options));
    idem::IdempotencyGuard<idem::RedisStore> guard(store);
    const idem::Key key{"s", "k"};
    bool ran = false;
    const auto from = idem::LocalClock::now();
    CHECK_THROWS_AS(guard.run(key, {}, [&] { ran = true; }), idem::Error);
    CHECK(idem::LocalClock::now() - from < 30s);  // of a busy machine
    CHECK_FALSE(ran);
    auto reply = idem::claim_one(store, idem_test::claim_of(key, idem_test::random_owner()));
    INFO(reply.trouble.message);
    CHECK(reply.trouble.message.find("secret") == std::string::npos);
    CHECK(reply.trouble.message.find("127.0.0.1") != std::string::npos);
    return reply.trouble;
}

bool works(idem::RedisStore& store) {
    const idem::Key key{"works", "k"};
    const auto owner = idem_test::random_owner();
    const auto reply = idem::claim_one(store, idem_test::claim_of(key, owner));
    if (reply.trouble) UNSCOPED_INFO(reply.trouble.message);
    if (reply.trouble || reply.kind != idem::ClaimKind::acquired) return false;
    return !idem::finish_one(store, idem_test::release_of(key, owner, reply.fence)).trouble;
}

TEST_CASE("Redis: every error has one class, and says whether it may have been applied (M103)",
          "[integration][redis]") {
    struct Row {
        const char* text;
        Cure cure;
        bool may_have_applied;
    };
    const auto unknown = idem::redis::Fault::of(
        "ERR unknown command 'AUTH', with args beginning with: 'user' 'secret' ", "host:1");
    CHECK(unknown.message == "Redis at host:1: ERR unknown command 'AUTH'");
    const Row rows[] = {
        {"NOSCRIPT No matching script. Please use EVAL.", Cure::retry_here, false},
        {"LOADING Redis is loading the dataset in memory", Cure::retry_here, false},
        {"BUSY Redis is busy running a script", Cure::retry_here, false},
        {"BUSYKEY Target key name already exists.", Cure::schema, false},
        {"TRYAGAIN Multiple keys request during rehashing of slot", Cure::retry_here, false},
        {"CLUSTERDOWN The cluster is down", Cure::retry_here, false},
        {"READONLY You can't write against a read only replica.", Cure::reconnect, false},
        {"MASTERDOWN Link with MASTER is down", Cure::reconnect, false},
        {"UNBLOCKED force unblock from blocking operation", Cure::reconnect, true},
        {"MOVED 3999 127.0.0.1:6381", Cure::redirect, false},
        {"ASK 3999 127.0.0.1:6381", Cure::redirect, false},
        {"OOM command not allowed when used memory > 'maxmemory'.", Cure::unavailable, false},
        {"MISCONF Redis is configured to save RDB snapshots", Cure::unavailable, false},
        {"NOREPLICAS Not enough good replicas to write.", Cure::unavailable, false},
        {"ERR max number of clients reached", Cure::unavailable, false},
        {"ERR Error running script (call to f_1): @user_script:1:", Cure::unavailable, true},
        {"ERR user_script:30: something", Cure::unavailable, true},
        {"ERR ACL failure in script: User app has no permissions", Cure::usage, true},
        {"ERR The user executing the script can't run this command", Cure::usage, true},
        {"ERR unknown command 'EVALSHA'", Cure::usage, false},
        {"ERR DB index is out of range", Cure::usage, false},
        {"WRONGPASS invalid username-password pair", Cure::usage, false},
        {"NOAUTH Authentication required.", Cure::usage, false},
        {"NOPERM this user has no permissions", Cure::usage, false},
        {"DENIED Redis is running in protected mode", Cure::usage, false},
        {"CROSSSLOT Keys in request don't hash to the same slot", Cure::usage, false},
        {"WRONGTYPE Operation against a key holding the wrong kind", Cure::schema, false},
        {"IDEMGARBAGE the bytes", Cure::schema, false},
        {"IDEMNEWER the record", Cure::schema, false},
        {"SOMETHING nobody has heard of", Cure::unavailable, true},
        {"", Cure::unavailable, true},
        {"IDEMTIMEOUT", Cure::reconnect, true},
        {"IDEMBROKEN", Cure::reconnect, true},
        {"IDEMUNSENT", Cure::reconnect, false},
        {"IDEMNOPLACE", Cure::unavailable, false},
        {"IDEMFORKED", Cure::usage, false},
    };
    for (const auto& row : rows) {
        INFO(row.text);
        CHECK(fault_class(row.text).cure == row.cure);
        CHECK(fault_class(row.text).may_have_applied == row.may_have_applied);
    }
}

TEST_CASE("Redis: a URL is read strictly, and what is wrong with it is named",
          "[integration][redis]") {
    const auto target = [](const std::string& url) {
        idem::RedisOptions options;
        options.url = url;
        return idem::redis::read_url(options);
    };
    const auto full = target("redis://user:p%40ss@[::1]:7000/3");
    CHECK(full.place.host == "::1");
    CHECK(full.place.port == 7000);
    CHECK(full.login.user == "user");
    CHECK(full.login.password == "p@ss");
    CHECK(full.login.database == 3);
    CHECK(target("redis://:word@host").login.password == "word");
    CHECK(target("redis://host").place.port == 6379);
    CHECK(target("redis+unix:///run/redis.sock?database=2").place.path == "/run/redis.sock");
    CHECK(target("redis+unix:///run/redis.sock?database=2").login.database == 2);
    idem::RedisOptions read;
    read.url =
        "redis://h?prefix=a:&connections=3&connect_timeout_ms=4&command_timeout_ms=5"
        "&time_allowed_ms=6&replicas=1&replica_timeout_ms=2&refuse_eviction=yes";
    (void)idem::redis::read_url(read);
    CHECK(read.prefix == "a:");
    CHECK(read.connections == 3);
    CHECK(read.connect_timeout == 4ms);
    CHECK(read.command_timeout == 5ms);
    CHECK(read.time_allowed == 6ms);
    CHECK(read.replicas == 1);
    CHECK(read.replica_timeout == 2ms);
    CHECK(read.refuse_eviction);

    struct Row {
        const char* url;
        const char* named;
    };
    const Row rows[] = {
        {"redis://:secret@host?conections=3", "\"conections\""},
        {"redis://:secret@host?connections=many", "connections"},
        {"redis://:secret@host?refuse_eviction=1", "refuse_eviction"},
        {"redis://:secret@host:port", "the port"},
        {"redis://:secret@host:70000", "the port"},
        {"redis://:secret@host:0", "the port"},
        {"redis://:secret@host/first", "the database"},
        {"redis://:secret@host/1/2", "the database"},
        {"redis://:secret@/0", "no host"},
        {"redis://secret@host", "without a password"},
        {"redis://:secret@[::1", "brackets"},
        {"redis+unix://secret", "begins with /"},
        {"rediss://:secret@host", "idem/redis/tls.hpp"},
        {"redis://:secret@host?tls_verify=no", "not rediss://"},
        {"redis://:secret@host?tls_ca=ca.pem", "not rediss://"},
        {"http://:secret@host", "scheme"},
        {"secret", "redis://host"},
        {"redis://:secret@host?prefix=a{b", "prefix"},
        {"redis://:secret@host?connections=0", "connections"},
        {"redis://:secret@host?client_name=two%20words", "client_name"},
        {"redis://:secret@host?replicas=1&replica_timeout_ms=9000", "replica_timeout"},
        {"redis://:secret@host?time_allowed_ms=0", "time_allowed"},
    };
    for (const auto& row : rows) {
        INFO(row.url);
        std::string said;
        try {
            (void)idem::RedisStore(idem::RedisOptions{.url = row.url});
        } catch (const idem::UsageError& error) {
            said = error.what();
        }
        INFO(said);
        CHECK(said.find(row.named) != std::string::npos);
        CHECK(said.find("secret") == std::string::npos);
    }
    auto opened = idem::open_store(shared_redis().url("?prefix=" + idem_test::fresh_prefix()));
    CHECK_FALSE(idem::find_one(opened, idem::KeyView(idem::Component::call, "s", "k", "")).trouble);
    CHECK(opened.time_allowed() == 5s);
    CHECK_THROWS_AS(idem::open_store("redis://h?nothing=1"), idem::UsageError);
    CHECK_THROWS_AS(idem::open_store("rediss://h"), idem::UsageError);
}

TEST_CASE("Redis: a wrong password, user or database is a usage error that names the host",
          "[integration][redis]") {
    RedisServer server({"--requirepass", "right"});
    const std::string at = "127.0.0.1:" + std::to_string(server.port());
    for (const std::string login : {"redis://:secret@", "redis://nobody:secret@", "redis://"}) {
        const auto trouble = blocked(quick(login + at));
        CHECK(trouble.kind == Trouble::Kind::usage);
        CHECK_FALSE(trouble.may_have_applied);
    }
    CHECK(blocked(quick("redis://:right@" + at + "/99")).kind == Trouble::Kind::usage);
    idem::RedisStore store(quick("redis://default:right@" + at + "/2"));
    CHECK(works(store));
    CHECK(RedisCli("redis://:right@" + at + "/2")({"DBSIZE"}) == "1");
}

/// Every operation of the port, on small and on large records. The first error.
std::string use_all(idem::RedisStore& store, const std::string& id) {
    const idem::Key key{"acl", id};
    const auto owner = idem_test::random_owner();
    const std::string large(5000, 'x');
    std::string said;
    const auto note = [&](const auto& reply) {
        if (said.empty()) said = reply.trouble.message;
        return reply;
    };
    auto claimed = note(idem::claim_one(store, idem_test::claim_of(key, owner)));
    (void)note(idem::renew_one(
        store, {idem_test::view_of(key), owner, claimed.fence, 40s, std::string_view(large), {}}));
    (void)note(
        idem::renew_one(store, {idem_test::view_of(key), owner, claimed.fence, 50s, {}, {}}));
    (void)note(idem::finish_one(store, idem_test::release_of(key, owner, claimed.fence)));
    claimed = note(idem::claim_one(store, idem_test::claim_of(key, idem_test::random_owner())));
    (void)note(idem::find_one(store, idem_test::view_of(key)));
    (void)note(idem::reap_one(store, {idem_test::view_of(key), claimed.fence, 1h, 1h}));
    (void)note(idem::forget_one(store, {idem_test::view_of(key), 1s}));
    const idem::Key token{"acl", id + "token"};
    (void)note(
        idem::issue_one(store, {idem_test::view_of(token), {}, idem_test::random_owner(), 1h, 1h}));
    claimed = note(idem::claim_one(store, idem_test::claim_of(token, owner)));
    auto hold = idem_test::complete_of(token, owner, claimed.fence, "");
    hold.kind = idem::FinishKind::quarantine;
    (void)note(idem::finish_one(store, hold));
    idem::ResolveRequest resolve;
    resolve.key = idem_test::view_of(token);
    resolve.seen_fence = claimed.fence;
    resolve.retention = 1h;
    resolve.succeeded = true;
    resolve.result_kind = idem::ResultKind::value;
    resolve.result = large;
    (void)note(idem::resolve_one(store, resolve));
    claimed = note(idem::claim_one(store, idem_test::claim_of(token, idem_test::random_owner())));
    if (claimed.result != large) said += "no result";
    return said;
}

TEST_CASE("Redis: the rights that the store needs are those, and no fewer",
          "[integration][redis]") {
    RedisServer server;
    RedisCli cli(server.url());
    std::vector<std::string> needed = {"+eval", "+evalsha",  "+get",     "+getrange", "+strlen",
                                       "+set",  "+setrange", "+pexpire", "+time"};
    const auto allow = [&](const std::vector<std::string>& rights) {
        std::vector<std::string> line = {"ACL", "SETUSER", "app",     "reset",
                                         "on",  ">secret", "~idem:*", "&idem:*"};
        line.insert(line.end(), rights.begin(), rights.end());
        const std::vector<std::string_view> words(line.begin(), line.end());
        idem::redis::Request request;
        request.command(words);
        const auto answers = cli.connection().exchange(request, idem_test::in_seconds(20));
        REQUIRE_FALSE(answers.replies.at(0).is_error());
        (void)cli({"SCRIPT", "FLUSH"});
    };
    auto options = quick("redis://app:secret@127.0.0.1:" + std::to_string(server.port()));
    options.prefix = "idem:";
    allow(needed);
    {
        // Without INFO, PUBLISH or CLIENT too: then who waits polls, and no eviction is noticed.
        idem::RedisStore store(options);
        CHECK(use_all(store, "all") == "");
    }
    for (const auto& right : needed) {
        INFO("without " << right);
        auto fewer = needed;
        std::erase(fewer, right);
        allow(fewer);
        idem::RedisStore store(options);
        const auto said = use_all(store, right);
        INFO(said);
        CHECK((said.find("NOPERM") != std::string::npos ||
               said.find("can't run this") != std::string::npos ||
               said.find("ACL failure") != std::string::npos));
    }
    // And what makes the rest of the service: notices, lists, the look at the server, the name.
    for (const auto* more :
         {"+publish", "+subscribe", "+unsubscribe", "+scan", "+info", "+client|setname"})
        needed.emplace_back(more);
    allow(needed);
    idem::RedisStore store(options);
    CHECK(use_all(store, "more") == "");
    CHECK(store.watch(idem_test::view_of({"acl", "k"}), [] {}) != nullptr);
    CHECK_FALSE(store.list({}).trouble);
    CHECK(cli({"CLIENT", "LIST"}).find(" name=idem ") != std::string::npos);
}

TEST_CASE("Redis: a port where something else answers is unavailable, in time, by name",
          "[integration][redis]") {
    for (const auto& serve : {says("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", true),
                              says(std::string(64, '\xff'), false), says("", false), says("", true),
                              says("$999999999999999999999\r\n", false)}) {
        const LoopbackPort port(serve);
        const auto trouble =
            blocked(quick("redis://:secret@127.0.0.1:" + std::to_string(port.port())));
        CHECK(trouble.kind == Trouble::Kind::unavailable);
        CHECK_FALSE(trouble.may_have_applied);
    }
    const auto nobody =
        blocked(quick("redis://127.0.0.1:" + std::to_string(idem_test::free_port())));
    CHECK(nobody.kind == Trouble::Kind::unavailable);
    auto nowhere = quick("redis://nowhere.invalid");
    idem::RedisStore store(nowhere);
    const auto reply =
        idem::claim_one(store, idem_test::claim_of({"s", "k"}, idem_test::random_owner()));
    CHECK(reply.trouble.kind == Trouble::Kind::unavailable);
    CHECK(reply.trouble.message.find("nowhere.invalid") != std::string::npos);
}

TEST_CASE("Redis: protected mode, an old server and a crowded one are said for what they are",
          "[integration][redis]") {
    const FakeRedis denied(
        [](const auto&) { return "-DENIED Redis is running in protected mode\r\n"; });
    CHECK(blocked(quick(denied.url())).kind == Trouble::Kind::usage);
    const FakeRedis old([](const auto&) { return ""; }, "6.0.16");
    const auto trouble = blocked(quick(old.url()));
    CHECK(trouble.kind == Trouble::Kind::usage);
    CHECK(trouble.message.find("6.2") != std::string::npos);
    RedisServer crowded({"--maxclients", "1"});
    const RedisCli only(crowded.url());
    CHECK(blocked(quick(crowded.url())).kind == Trouble::Kind::unavailable);
}

TEST_CASE("Redis: what a server says instead of an answer is bounded, and over when it is over",
          "[integration][redis]") {
    struct Row {
        const char* error;
        Trouble::Kind kind;
        bool may_have_applied;
    };
    using Kind = Trouble::Kind;
    const Row rows[] = {
        {"LOADING Redis is loading the dataset in memory", Kind::unavailable, false},
        {"BUSY Redis is busy running a script", Kind::unavailable, false},
        {"MISCONF Redis is configured to save RDB snapshots", Kind::unavailable, false},
        {"OOM command not allowed when used memory > 'maxmemory'.", Kind::unavailable, false},
        {"NOSCRIPT No matching script. Please use EVAL.", Kind::unavailable, false},
        {"READONLY You can't write against a read only replica.", Kind::unavailable, false},
        {"CLUSTERDOWN The cluster is down", Kind::unavailable, false},
        {"TRYAGAIN Multiple keys request", Kind::unavailable, false},
        {"NOREPLICAS Not enough good replicas to write.", Kind::unavailable, false},
        {"MOVED 3999 127.0.0.1:6381", Kind::usage, false},
        {"ASK 3999 127.0.0.1:6381", Kind::usage, false},
        {"NOPERM this user has no permissions", Kind::usage, false},
        {"WRONGTYPE Operation against a key", Kind::schema, false},
        {"SURPRISE nobody has heard of it", Kind::unavailable, true},
    };
    for (const auto& row : rows) {
        INFO(row.error);
        std::atomic<bool> on{true};
        const FakeRedis fake([&](const auto& words) -> std::optional<std::string> {
            if (words[0] == "INFO") return "";
            if (on.load()) return "-" + std::string(row.error) + "\r\n";
            return ":3\r\n";
        });
        auto options = quick(fake.url());
        options.command_timeout = 2s;
        options.time_allowed = 2s;
        idem::RedisStore store(options);
        const idem::Key key{"s", "k"};
        const auto request = idem_test::release_of(key, idem_test::random_owner(), 1);
        const auto reply = idem::finish_one(store, request);
        CHECK(reply.trouble.kind == row.kind);
        CHECK(reply.trouble.may_have_applied == row.may_have_applied);
        on.store(false);
        CHECK_FALSE(idem::finish_one(store, request).trouble);
    }
}

TEST_CASE("Redis: a server that is no master any more is asked for on a new connection",
          "[integration][redis]") {
    const FakeRedis demoted([](const auto& words) -> std::optional<std::string> {
        if (words[0] == "INFO") return "";
        return "-READONLY You can't write against a read only replica.\r\n";
    });
    auto options = quick(demoted.url());
    options.time_allowed = 20s;
    idem::RedisStore store(options);
    const idem::Key key{"s", "k"};
    const auto request = idem_test::release_of(key, idem_test::random_owner(), 1);
    CHECK(idem::finish_one(store, request).trouble.kind == Trouble::Kind::unavailable);
    CHECK(demoted.accepted() > 2);  // each try had its own
}

TEST_CASE("Redis: what a later item of its key has overtaken is not sent again",
          "[integration][redis]") {
    int releases = 0;
    const FakeRedis forgetful([&](const auto& words) -> std::optional<std::string> {
        if (!words[0].starts_with("EVAL")) return "";
        return ++releases == 1 ? "-NOSCRIPT No matching script.\r\n" : ":3\r\n";
    });
    idem::RedisStore store(quick(forgetful.url()));
    const idem::Key key{"s", "k"};
    const std::array requests = {idem_test::release_of(key, idem_test::owner_of(1), 1),
                                 idem_test::release_of(key, idem_test::owner_of(2), 2)};
    std::array<idem::FinishReply, 2> replies;
    store.finish(requests, replies);
    CHECK(replies[0].trouble.kind == Trouble::Kind::unavailable);
    CHECK_FALSE(replies[0].trouble.may_have_applied);
    CHECK(replies[1].state == idem::State::released);
    CHECK(releases == 2);
}

TEST_CASE("Redis: a reply too many is not kept for the next request", "[integration][redis]") {
    const FakeRedis talkative([](const auto& words) -> std::optional<std::string> {
        return words[0] == "INFO" ? "" : ":3\r\n:4\r\n";
    });
    idem::RedisStore store(quick(talkative.url()));
    const idem::Key key{"s", "k"};
    const auto request = idem_test::release_of(key, idem_test::random_owner(), 1);
    for (int i = 1; i <= 3; ++i) {
        CHECK(idem::finish_one(store, request).state == idem::State::released);
        CHECK(talkative.accepted() == i);
    }
}

TEST_CASE("Redis: replicas are not asked on a connection that broke in the middle (R25)",
          "[integration][redis]") {
    std::atomic<int> answered{0};
    std::atomic<bool> waited{false};
    const FakeRedis fake([&](const auto& words) -> std::optional<std::string> {
        if (words[0] == "WAIT") waited.store(true);
        if (words[0] != "EVALSHA" || answered.fetch_add(1) != 0) return "";  // falls silent
        return ":3\r\n";
    });
    auto options = quick(fake.url());
    options.replicas = 1;
    idem::RedisStore store(options);
    const idem::Key one{"s", "1"};
    const idem::Key two{"s", "2"};
    const auto owner = idem_test::random_owner();
    const std::vector<idem::FinishRequest> requests = {idem_test::release_of(one, owner, 1),
                                                       idem_test::release_of(two, owner, 1)};
    std::vector<idem::FinishReply> replies(requests.size());
    store.finish(requests, replies);
    CHECK(answered.load() > 1);
    CHECK(replies[0].trouble.kind == Trouble::Kind::unavailable);
    CHECK(replies[1].trouble.may_have_applied);
    CHECK_FALSE(waited.load());
}

TEST_CASE("Redis: a claim in doubt that then finds the server full is in doubt (R107, R109)",
          "[integration][redis]") {
    std::atomic<int> asked{0};
    const FakeRedis fake([&](const auto& words) -> std::optional<std::string> {
        if (words[0] != "EVALSHA") return "";
        if (asked.fetch_add(1) == 0) return std::nullopt;  // it is gone before it answers
        return "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
    });
    idem::RedisStore store(quick(fake.url()));
    const auto reply =
        idem::claim_one(store, idem_test::claim_of({"s", "k"}, idem_test::random_owner()));
    CHECK(asked.load() == 2);
    CHECK(reply.trouble.full);
    CHECK(reply.trouble.may_have_applied);
}

TEST_CASE("Redis: what of a batch is left when the time is over is not sent",
          "[integration][redis]") {
    std::atomic<int> asked{0};
    const FakeRedis silent([&](const auto& words) -> std::optional<std::string> {
        if (words[0] == "EVALSHA") ++asked;
        return "";
    });
    auto options = quick(silent.url());
    options.command_timeout = options.time_allowed;  // the first write takes all of it
    idem::RedisStore store(options);
    std::vector<idem::Key> keys;
    std::vector<idem::ClaimRequest> claims;
    for (int i = 0; i < 1500; ++i) keys.push_back({"s", std::to_string(i)});
    for (const auto& key : keys)
        claims.push_back(idem_test::claim_of(key, idem_test::random_owner()));
    std::vector<idem::ClaimReply> replies(claims.size());
    store.claim(claims, replies);
    CHECK(asked.load() <= 500);
    CHECK(replies.front().trouble.may_have_applied);
    CHECK(replies.back().trouble.kind == Trouble::Kind::unavailable);
    CHECK_FALSE(replies.back().trouble.may_have_applied);
}

TEST_CASE("Redis: a reply that makes no sense is trouble, never an answer",
          "[integration][redis]") {
    for (const std::string reply :
         {":3\r\n", "$-1\r\n", "$0\r\n\r\n", "*0\r\n", "+OK\r\n", "$9\r\n\xFF\1\1\1\1\1\1\1\1\r\n",
          "$9\r\n\x03\1\1\1\1\1\1\1\1\r\n", ":-1\r\n", "$8\r\n\1\1\1\1\1\1\1\1\r\n"}) {
        const FakeRedis fake([&](const auto& words) -> std::optional<std::string> {
            return words[0] == "INFO" ? "" : reply;
        });
        idem::RedisStore store(quick(fake.url()));
        const auto got =
            idem::claim_one(store, idem_test::claim_of({"s", "k"}, idem_test::random_owner()));
        INFO(reply);
        CHECK(got.trouble.kind == Trouble::Kind::schema);
        CHECK(got.trouble.may_have_applied);
    }
}

/// Claim, complete and read again by one store over the gate: all must come true.
void go_through(const TcpGate& gate, idem::RedisOptions options) {
    options.url = "redis://127.0.0.1:" + std::to_string(gate.port());
    idem::RedisStore store(options);
    const idem::Key key{"s", "k"};
    const auto owner = idem_test::random_owner();
    const auto claimed = idem::claim_one(store, idem_test::claim_of(key, owner));
    CHECK(claimed.trouble.message == "");
    CHECK(claimed.kind == idem::ClaimKind::acquired);
    CHECK(claimed.attempt == 1);
    const auto done =
        idem::finish_one(store, idem_test::complete_of(key, owner, claimed.fence, "result"));
    CHECK(done.trouble.message == "");
    CHECK_FALSE(done.lost);
    const auto again = idem::claim_one(store, idem_test::claim_of(key, idem_test::random_owner()));
    CHECK(again.kind == idem::ClaimKind::completed);
    CHECK(again.result == "result");
}

/// How many bytes the whole conversation takes, one way.
std::uint64_t length_of(Direction way) {
    std::uint64_t length = 0;
    for (int times = 0; times < 2; ++times) {  // the first one may have to bring the scripts along
        const TcpGate gate(shared_redis().port());
        go_through(gate, idem_test::options_for(""));
        length = gate.bytes(way);
    }
    return length;
}

TEST_CASE("Redis: a connection cut after any byte, either way, loses nothing and repeats nothing",
          "[integration][redis]") {
    for (const auto way : {Direction::to_client, Direction::to_server}) {
        const auto length = length_of(way);
        std::size_t cuts = 0;
        // The login is long and dull: a step through it, then every byte.
        for (std::uint64_t at = 0; at < length; at += (length - at > 450 ? 61 : 1)) {
            TcpGate gate(shared_redis().port());
            gate.arm({.way = way, .act = GateAct::close, .after = at});
            INFO("cut after " << at << " of " << length);
            go_through(gate, idem_test::options_for(""));
            // INFO tells numbers, and not always with as many digits.
            CHECK((gate.fired() == 1 || length - at < 16));
            ++cuts;
        }
        CHECK(cuts > 400);
    }
}

TEST_CASE("Redis: a connection that falls silent is given up, and no reply of it is taken later",
          "[integration][redis]") {
    for (const auto way : {Direction::to_client, Direction::to_server}) {
        const auto length = length_of(way);
        // In each of the three exchanges, and in the middle of what they carry.
        for (std::uint64_t left = 10; left < 450; left += 55) {
            TcpGate gate(shared_redis().port());
            gate.arm({.way = way, .act = GateAct::swallow, .after = length - left});
            INFO("silent " << left << " before the end");
            auto options = idem_test::options_for("");
            options.command_timeout = 150ms;
            go_through(gate, options);
            CHECK(gate.fired() == 1);
        }
    }
}

TEST_CASE(
    "Redis: a child that was forked gets a usage error and leaves its parent's sockets be (R112)",
    "[integration][redis][fork]") {
    idem::RedisStore store(idem_test::options_for(shared_redis().url()));
    CHECK(works(store));
    CHECK(idem_test::in_child([&] {
              const auto reply = idem::claim_one(
                  store, idem_test::claim_of({"s", "k"}, idem_test::random_owner()));
              if (reply.trouble.kind != Trouble::Kind::usage) return false;
              if (store.watch(idem_test::view_of({"s", "k"}), [] {}) != nullptr) return false;
              idem::RedisStore own(idem_test::options_for(shared_redis().url()));
              return works(own);
          }) == "");
    const auto before = store.traffic().round_trips;
    CHECK(works(store));
    CHECK(store.traffic().round_trips == before + 2);
}

TEST_CASE("Redis: a child may let a store go whose callers were waiting when it was forked",
          "[integration][redis][fork]") {
    RedisServer server;
    auto options = idem_test::options_for(server.url());
    options.connections = 1;
    std::optional<idem::RedisStore> store(options);
    CHECK(works(*store));
    std::vector<std::jthread> callers;
    callers.emplace_back([&] { (void)RedisCli(server.url())({"DEBUG", "SLEEP", "0.3"}); });
    for (int i = 0; i < 4; ++i) {
        callers.emplace_back([&] {
            for (int times = 0; times < 50; ++times)
                (void)idem::find_one(*store, idem_test::view_of({"s", "k"}));
        });
    }
    for (int i = 0; i < 5; ++i)
        CHECK(idem_test::in_child([&] {
                  store.reset();
                  return true;
              }) == "");
    for (auto& caller : callers) caller.join();
    CHECK(works(*store));
}

}  // namespace redis_wire_test
