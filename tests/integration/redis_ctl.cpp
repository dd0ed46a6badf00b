// The operator's program on Redis, by its command line.

#include <string>
#include <vector>

#include <idem/idem.hpp>
#include <idem/redis.hpp>

#include "support/catch.hpp"
#include "support/ctl.hpp"
#include "support/ctl_promises.hpp"
#include "support/readme.hpp"
#include "support/redis_requests.hpp"

namespace redis_ctl_test {

using idem_test::checked;
using idem_test::Ctl;
using idem_test::RedisCli;
using idem_test::RedisServer;
using idem_test::shared_redis;
using Promise = void (*)(const Ctl&, idem::AnyStore&);

void hold_to(Promise promise) {
    const auto url = shared_redis().url("?prefix=" + idem_test::fresh_prefix());
    auto store = idem::open_store(url);
    promise(Ctl(url), store);
}

TEST_CASE("idemctl finds what is stuck or held on Redis", "[integration][redis]") {
    hold_to(idem_test::ctl_finds_what_is_stuck);
}
TEST_CASE("idemctl shows all of a record on Redis", "[integration][redis]") {
    hold_to(idem_test::ctl_shows_all_of_a_record);
}
TEST_CASE("idemctl: no key on Redis harms a terminal or a reader of JSON", "[integration][redis]") {
    hold_to(idem_test::ctl_survives_any_key);
}
TEST_CASE("idemctl erases a tenant on Redis, once it was told to", "[integration][redis]") {
    hold_to(idem_test::ctl_erases_a_tenant);
}
TEST_CASE("idemctl settles what is held on Redis", "[integration][redis]") {
    hold_to(idem_test::ctl_settles_what_is_held);
}
TEST_CASE("idemctl says on Redis that somebody else was faster", "[integration][redis]") {
    hold_to(idem_test::ctl_says_that_it_lost);
}

TEST_CASE("idemctl: a record on Redis that cannot be read is named, and the rest is there",
          "[integration][redis]") {
    const std::string prefix = idem_test::fresh_prefix();
    const auto url = shared_redis().url("?prefix=" + prefix);
    auto store = idem::open_store(url);
    const idem::Key good{"s", "good", "t"};
    const idem::Key bad{"s", "bad", "t"};
    REQUIRE(idem::claim_one(store, idem_test::claim_of(good, 1)).fence != 0);
    RedisCli cli(shared_redis().url());
    (void)cli(
        {"SET", idem::redis::name_of(prefix, idem_test::view_of(bad)), "garbage", "EX", "600"});
    const Ctl ctl(url);
    const auto list = ctl({"list"});
    CHECK(list.status == 4);
    CHECK(list.says("good"));
    CHECK(list.says("idemctl: left out: "));
    CHECK(ctl(idem_test::with_key({"show"}, bad)).status == 4);
    const auto erased = ctl({"forget", "--tenant", "t", "--yes", "--json"});
    CHECK(erased.status == 4);
    CHECK(erased.json().at(0).at("forgotten") == 1);
    CHECK(erased.json().at(0).at("complete") == false);
}

TEST_CASE("idemctl check: a server as it must be is ok, and each lack is named",
          "[integration][redis]") {
    RedisServer server({"--appendonly", "yes", "--appendfsync", "always"});
    for (const auto& url : {server.url(), server.socket_url()}) {
        const auto run = Ctl(url)({"check"});
        INFO(run.out << run.err);
        CHECK(run.status == 0);
        CHECK(run.says("ok       reachable    "));
        CHECK(run.says("ok       eviction     noeviction"));
        CHECK(run.says("ok       persistence  appendonly, appendfsync always\n"));
        CHECK(run.says("ok       round trip   "));
    }
    const Ctl ctl(server.url());
    RedisCli cli(server.url());
    const std::string valkey = cli.info("server", "valkey_version");
    const std::string redis = cli.info("server", "redis_version");
    CHECK(ctl({"check"}).says((valkey.empty() ? "Redis " + redis : "Valkey " + valkey) + "\n"));
    CHECK(ctl({"list"}).status == 1);  // the probe was forgotten

    CHECK(ctl({"check"}).says("ok       memory       no maxmemory"));
    (void)cli({"CONFIG", "SET", "maxmemory", "1gb"});
    CHECK(ctl({"check"}).says(" % of maxmemory is used\n"));
    const auto used = std::stoll(cli.info("memory", "used_memory"));
    (void)cli({"CONFIG", "SET", "maxmemory", std::to_string(used + used / 20)});
    auto run = ctl({"check", "--json"});
    CHECK(checked(run)["memory"] == "warning");
    (void)cli({"CONFIG", "SET", "maxmemory", "0"});

    (void)cli({"CONFIG", "SET", "maxmemory-policy", "volatile-lru"});
    run = ctl({"check", "--json"});
    CHECK(run.status == 1);
    CHECK(checked(run)["eviction"] == "warning");
    CHECK(run.says("set noeviction"));
    (void)cli({"CONFIG", "SET", "maxmemory-policy", "noeviction"});
    (void)cli({"CONFIG", "SET", "appendfsync", "everysec"});
    run = ctl({"check", "--json"});
    CHECK(run.status == 1);
    CHECK(checked(run)["persistence"] == "warning");
    CHECK(run.says("appendfsync everysec"));
    (void)cli({"CONFIG", "SET", "appendonly", "no"});
    CHECK(ctl({"check"}).says("warning  persistence  appendonly is off"));

    (void)cli({"ACL", "SETUSER", "app", "reset", "on", ">secret", "~idem:*", "&idem:*", "+@all",
               "-eval", "-evalsha"});
    run = Ctl("redis://app:secret@127.0.0.1:" + std::to_string(server.port()))({"check", "--json"});
    CHECK(run.status == 4);
    CHECK(checked(run)["round trip"] == "failed");
    CHECK(run.says("NOPERM"));
    CHECK_FALSE(run.says("secret"));

    RedisServer replica({"--replicaof", "127.0.0.1 " + std::to_string(server.port())});
    run = Ctl(replica.url("?time_allowed_ms=1000"))({"check", "--json"});
    CHECK(run.status == 3);
    CHECK(checked(run)["role"] == "failed");
    CHECK(run.says("127.0.0.1:" + std::to_string(server.port())));
}

TEST_CASE("The README's Redis rights are enough for the store and for idemctl",
          "[integration][redis]") {
    const auto rights = idem_test::readme_lines("ACL SETUSER ");
    REQUIRE(rights.size() == 2);  // of a service; and what an operator has more
    RedisServer server;
    RedisCli cli(server.url());
    const std::string url = "redis://app:password@127.0.0.1:" + std::to_string(server.port());
    const auto allow = [&](const std::string& line) {
        const auto words = idem_test::words_of(line);
        const std::vector<std::string_view> views(words.begin(), words.end());
        idem::redis::Request request;
        request.command(views);
        const auto answers = cli.connection().exchange(request, idem_test::in_seconds(20));
        REQUIRE_FALSE(answers.replies.at(0).is_error());
    };
    allow(rights[0]);
    auto store = idem::open_store(url);
    const idem::Key key{"s", "k", "t"};
    (void)idem_test::hold(store, key);
    const Ctl ctl(url);
    CHECK(idem_test::listed(ctl, {"--state", "held"}) == std::set<std::string>{"k"});
    CHECK(ctl(idem_test::with_key({"resolve", "--rerun", "--yes"}, key)).status == 0);
    CHECK(ctl({"forget", "--tenant", "t", "--yes"}).status == 0);
    auto run = ctl({"check", "--json"});
    INFO(run.out);
    CHECK(run.status == 1);  // the server has no persistence, and tells no more of it
    CHECK(checked(run)["round trip"] == "ok");
    CHECK(checked(run)["server"] == "ok");
    CHECK(checked(run)["eviction"] == "ok");
    (void)cli({"CONFIG", "SET", "appendonly", "yes"});
    CHECK(ctl({"check"}).says("+config|get"));
    allow(rights[1]);
    CHECK(ctl({"check"}).says("appendfsync everysec"));
    CHECK(cli({"ACL", "GETUSER", "app"}).find("+@all") == std::string::npos);
}

TEST_CASE("Redis shows who is connected: idem, or the name that the URL has",
          "[integration][redis]") {
    RedisCli cli(shared_redis().url());
    const auto connected = [&](const std::string& name) {
        return cli({"CLIENT", "LIST"}).find(" name=" + name + " ") != std::string::npos;
    };
    auto store = idem::open_store(shared_redis().url("?prefix=" + idem_test::fresh_prefix()));
    REQUIRE_FALSE(store.list({}).trouble);
    CHECK(connected("idem"));
    CHECK_FALSE(connected("shop-front"));
    auto named = idem::open_store(shared_redis().url("?client_name=shop-front"));
    REQUIRE_FALSE(named.list({}).trouble);
    CHECK(connected("shop-front"));
}

TEST_CASE("idemctl: a server that is not there or does not let in, and no password told",
          "[integration][redis]") {
    const std::string nowhere = "127.0.0.1:" + std::to_string(idem_test::free_port());
    idem_test::ctl_cannot_get_in("redis://user:verysecret@" + nowhere, "verysecret");
    RedisServer server({"--requirepass", "right"});
    const std::string at = "127.0.0.1:" + std::to_string(server.port());
    idem_test::ctl_cannot_get_in("redis://:verysecret@" + at, "verysecret");
    CHECK(Ctl("redis://:right@" + at)({"list"}).status == 1);
}

}  // namespace redis_ctl_test
