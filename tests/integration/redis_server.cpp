// A server in trouble: read only, without its replicas, busy, unable to save; and the store's own
// comings and goings.

#include <chrono>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <idem/idem.hpp>

#include "support/catch.hpp"
#include "support/child.hpp"
#include "support/eventually.hpp"
#include "support/redis_requests.hpp"

namespace redis_server_test {

using namespace std::chrono_literals;
using idem::ClaimKind;
using idem::Trouble;
using idem_test::claim_of;
using idem_test::complete_of;
using idem_test::eventually;
using idem_test::options_for;
using idem_test::quick;
using idem_test::random_owner;
using idem_test::RedisCli;
using idem_test::RedisServer;
using idem_test::shared_redis;
using idem_test::view_of;

idem::ClaimReply claim(idem::RedisStore& store, const idem::Key& key) {
    return idem::claim_one(store, claim_of(key, random_owner()));
}

/// A master and its replica, in step.
struct Pair {
    RedisServer master{};
    RedisServer replica{{"--replicaof", "127.0.0.1 " + std::to_string(master.port()),
                         "--repl-diskless-sync-delay", "0"}};

    Pair() {
        RedisCli cli(replica.url());
        REQUIRE(eventually([&] { return cli.info("replication", "master_link_status") == "up"; }));
    }
};

TEST_CASE("Redis: a read-only replica is unavailable until it is promoted, and fences grow (M25)",
          "[integration][redis]") {
    Pair pair;
    idem::RedisStore master(options_for(pair.master.url(), "idem:"));
    const idem::Key key{"s", "k"};
    const auto owner = random_owner();
    const auto first = idem::claim_one(master, claim_of(key, owner));
    REQUIRE(first.kind == ClaimKind::acquired);
    RedisCli cli(pair.replica.url());
    REQUIRE(eventually([&] {
        return cli({"EXISTS", idem::redis::name_of("idem:", view_of(key))}) == "1";
    }));
    auto options = quick(pair.replica.url());
    options.prefix = "idem:";
    idem::RedisStore replica(options);
    const auto refused = claim(replica, {"s", "other"});
    CHECK(refused.trouble.kind == Trouble::Kind::unavailable);
    CHECK_FALSE(refused.trouble.may_have_applied);
    CHECK(refused.trouble.message.find("READONLY") != std::string::npos);
    // The master dies; what it acknowledged last never arrived.
    pair.master.end(SIGKILL);
    (void)cli({"REPLICAOF", "NO", "ONE"});
    (void)cli({"DEL", idem::redis::name_of("idem:", view_of(key))});
    const auto second = claim(replica, key);
    CHECK(second.kind == ClaimKind::acquired);
    CHECK(second.fence > first.fence);
    CHECK(idem::finish_one(replica, complete_of(key, owner, first.fence, "late")).lost);
}

TEST_CASE("Redis: a claim that too few replicas have is undone (R25)", "[integration][redis]") {
    Pair pair;
    auto options = options_for(pair.master.url());
    options.replicas = 1;
    options.replica_timeout = 4s;  // a replica that is there may take its time
    idem::RedisStore store(options);
    options.replica_timeout = 200ms;
    idem::RedisStore hasty(options);
    const idem::Key key{"s", "k"};
    const auto owner = random_owner();
    const auto held = idem::claim_one(store, claim_of(key, owner));
    CHECK(held.trouble.message == "");
    CHECK(held.kind == ClaimKind::acquired);
    CHECK(idem::finish_one(store, complete_of(key, owner, held.fence, "r")).trouble.message == "");
    // A repeat writes nothing and waits for nobody.
    const auto before = store.traffic();
    CHECK(claim(store, key).result == "r");
    CHECK(store.traffic().commands == before.commands + 1);

    const auto running = idem::claim_one(store, claim_of({"s", "running"}, owner));
    CHECK(running.kind == ClaimKind::acquired);
    pair.replica.signal(SIGSTOP);
    const auto refused = claim(hasty, {"s", "new"});
    CHECK(refused.trouble.kind == Trouble::Kind::unavailable);
    CHECK_FALSE(refused.trouble.may_have_applied);
    CHECK(refused.trouble.message.find("0 of 1 replicas") != std::string::npos);
    const auto found = idem::find_one(store, view_of({"s", "new"}));
    REQUIRE(found.record.has_value());
    CHECK(found.record->header.state == idem::State::released);
    CHECK(found.record->header.attempt == 0);
    const auto finished =
        idem::finish_one(hasty, complete_of({"s", "running"}, owner, running.fence, "r"));
    CHECK(finished.trouble.kind == Trouble::Kind::unavailable);
    CHECK(finished.trouble.may_have_applied);
    pair.replica.signal(SIGCONT);
    CHECK(idem::finish_one(store, complete_of({"s", "running"}, owner, running.fence, "r"))
              .trouble.message == "");
    const auto again = claim(store, {"s", "new"});
    CHECK(again.kind == ClaimKind::acquired);
    CHECK(again.attempt == 1);
}

TEST_CASE("Redis: an answer that grants nothing needs no replica (R25)", "[integration][redis]") {
    RedisServer server;
    auto options = options_for(server.url(), "definite:");
    idem::RedisStore alone(options);
    options.replicas = 1;
    options.replica_timeout = 50ms;
    idem::RedisStore store(options);
    for (const auto kind : {idem::FinishKind::fail, idem::FinishKind::quarantine}) {
        const idem::Key key{"s", to_string(kind)};
        const auto owner = random_owner();
        const auto held = idem::claim_one(alone, claim_of(key, owner));
        auto finish = complete_of(key, owner, held.fence, "");
        finish.kind = kind;
        finish.result_kind = idem::ResultKind::none;
        REQUIRE_FALSE(idem::finish_one(alone, finish).lost);
        const auto reply = claim(store, key);
        CHECK_FALSE(reply.trouble);
        CHECK(reply.kind ==
              (kind == idem::FinishKind::fail ? ClaimKind::failed : ClaimKind::unknown));
    }
    CHECK(claim(store, {"s", "new"}).trouble.kind == Trouble::Kind::unavailable);
}

TEST_CASE("Redis: a server that is busy with a script is unavailable in time, and works again",
          "[integration][redis]") {
    RedisServer server({"--busy-reply-threshold", "20"});
    auto options = quick(server.url());
    options.command_timeout = 3s;  // it answers, but it is busy
    options.time_allowed = 4s;
    idem::RedisStore store(options);
    (void)claim(store, {"s", "warm"});
    std::jthread endless([&] {
        RedisCli cli(server.url());
        try {
            (void)cli({"EVAL", "while true do end", "0"});
        } catch (const std::runtime_error&) {  // killed
        }
    });
    RedisCli cli(server.url());
    REQUIRE(eventually([&] {
        try {
            (void)cli({"GET", "x"});
            return false;
        } catch (const std::runtime_error& error) {
            return std::string(error.what()).starts_with("BUSY");
        }
    }));
    const auto refused = claim(store, {"s", "k"});
    CHECK(refused.trouble.kind == Trouble::Kind::unavailable);
    CHECK(refused.trouble.message.find("BUSY") != std::string::npos);
    CHECK_FALSE(refused.trouble.may_have_applied);
    (void)cli({"SCRIPT", "KILL"});
    endless.join();
    CHECK(claim(store, {"s", "k"}).kind == ClaimKind::acquired);
}

TEST_CASE("Redis: a server that cannot save is unavailable, and works again",
          "[integration][redis]") {
    RedisServer server;
    RedisCli cli(server.url());
    idem::RedisStore store(quick(server.url()));
    const idem::Key done{"s", "done"};
    const auto owner = random_owner();
    const auto held = idem::claim_one(store, claim_of(done, owner));
    CHECK_FALSE(idem::finish_one(store, complete_of(done, owner, held.fence, "r")).lost);
    // The folder goes away under the server: its next save fails.
    (void)cli({"CONFIG", "SET", "save", "3600 1"});
    const std::filesystem::path folder = std::filesystem::path(server.socket()).parent_path();
    const std::filesystem::path aside = folder.string() + ".aside";
    std::filesystem::rename(folder, aside);
    std::filesystem::create_directory(folder);
    std::filesystem::remove_all(aside);
    (void)cli({"BGSAVE"});
    REQUIRE(eventually([&] { return cli.info("persistence", "rdb_last_bgsave_status") == "err"; }));
    const auto refused = claim(store, {"s", "k"});
    CHECK(refused.trouble.kind == Trouble::Kind::unavailable);
    CHECK(refused.trouble.message.find("MISCONF") != std::string::npos);
    CHECK_FALSE(refused.trouble.may_have_applied);
    (void)cli({"CONFIG", "SET", "dir", folder.string()});
    (void)cli({"BGSAVE"});
    REQUIRE(eventually([&] { return cli.info("persistence", "rdb_last_bgsave_status") == "ok"; }));
    CHECK(claim(store, {"s", "k"}).kind == ClaimKind::acquired);
    CHECK(claim(store, done).result == "r");
}

TEST_CASE(
    "Redis: an idle connection that the server closed costs one reconnect and nothing else "
    "(R110)",
    "[integration][redis]") {
    RedisServer server;
    RedisCli cli(server.url());
    auto options = quick(server.url());
    idem::RedisStore store(options);
    (void)claim(store, {"s", "warm"});
    for (int i = 0; i < 20; ++i) {
        (void)cli({"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"});
        const auto before = store.traffic();
        const auto reply = claim(store, {"s", std::to_string(i)});
        CHECK(reply.trouble.message == "");
        CHECK(reply.kind == ClaimKind::acquired);
        CHECK(store.traffic().round_trips == before.round_trips + 1);
    }
}

TEST_CASE("Redis: a thousand stores come and go and leave nothing", "[integration][redis]") {
    RedisServer server;
    RedisCli cli(server.url());
    const auto descriptors = [] {
        return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
    };
    const auto clients = [&] { return cli.info("clients", "connected_clients"); };
    const auto cycle = [&](int i) {
        idem::RedisStore store(options_for(server.url(), "cycle:"));
        const idem::Key key{"s", std::to_string(i)};
        const auto owner = random_owner();
        const auto copy = store;
        const auto watch = i % 50 == 0 ? store.watch(view_of(key), [] {}) : nullptr;
        const auto reply = idem::claim_one(store, claim_of(key, owner));
        REQUIRE(reply.kind == ClaimKind::acquired);
        REQUIRE_FALSE(idem::finish_one(store, complete_of(key, owner, reply.fence, "r")).lost);
    };
    cycle(-50);
    const auto before = descriptors();
    const auto threads = idem_test::thread_count();
    for (int i = 0; i < 1000; ++i) cycle(i);
    CHECK(descriptors() <= before);  // the first cycle's may have gone late
    CHECK(idem_test::thread_count() <= threads);
    CHECK(eventually([&] { return clients() == "1"; }));
    CHECK(idem_test::without_ttl(cli) == "");
}

TEST_CASE("Redis: what the whole suite has left behind will go by itself", "[integration][redis]") {
    RedisCli cli(shared_redis().url());
    idem::RedisStore store(options_for(shared_redis().url()));
    (void)claim(store, {"s", "k"});
    CHECK(std::stol(cli({"DBSIZE"})) > 0);
    CHECK(idem_test::without_ttl(cli) == "");
}

}  // namespace redis_server_test
