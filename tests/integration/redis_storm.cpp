// Sixteen threads on one store while the server is killed, stopped, paused, flushed and cut off:
// no wrong or foreign reply, no lost result, and all goes on without a new store.

#include <chrono>
#include <csignal>
#include <functional>

#include "support/catch.hpp"
#include "support/redis_requests.hpp"
#include "support/storm.hpp"

namespace redis_storm_test {

using namespace std::chrono_literals;
using idem_test::RedisCli;
using idem_test::RedisServer;

using Storm = idem_test::Storm<idem::RedisStore>;

idem::RedisOptions stormy(const RedisServer& server) {
    auto options = idem_test::quick(server.url());
    options.connections = 8;
    options.command_timeout = 200ms;
    return options;
}

/// Disturbs so many times, and asks each time that it goes on afterwards.
void disturb(RedisServer& server, int times, const std::function<void(Storm&, RedisCli&)>& what) {
    Storm storm{idem::RedisStore(stormy(server))};
    RedisCli cli(server.url());
    REQUIRE(storm.goes_on());
    for (int i = 0; i < times; ++i) {
        what(storm, cli);
        CHECK(storm.goes_on());
    }
    storm.check();
    CHECK(idem_test::without_ttl(cli) == "");
}

TEST_CASE("Redis: sixteen threads, and scripts are flushed", "[integration][redis][storm]") {
    RedisServer server;
    disturb(server, 50, [](Storm&, RedisCli& cli) { (void)cli({"SCRIPT", "FLUSH"}); });
}

TEST_CASE("Redis: sixteen threads, and clients are killed", "[integration][redis][storm]") {
    RedisServer server;
    disturb(server, 30, [](Storm&, RedisCli& cli) {
        (void)cli({"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"});
    });
}

TEST_CASE("Redis: sixteen threads, and clients are paused", "[integration][redis][storm]") {
    RedisServer server;
    int round = 0;
    disturb(server, 6, [&](Storm&, RedisCli& cli) {
        (void)cli({"CLIENT", "PAUSE", "300", ++round % 2 == 0 ? "ALL" : "WRITE"});
    });
}

TEST_CASE("Redis: sixteen threads, and the server sleeps", "[integration][redis][storm]") {
    RedisServer server;
    disturb(server, 4, [](Storm&, RedisCli& cli) { (void)cli({"DEBUG", "SLEEP", "0.4"}); });
}

TEST_CASE("Redis: sixteen threads, and the server's process is stopped and goes on",
          "[integration][redis][storm]") {
    RedisServer server;
    disturb(server, 4, [&](Storm& storm, RedisCli&) {
        server.signal(SIGSTOP);
        CHECK(storm.is_hurt());
        server.signal(SIGCONT);
    });
}

TEST_CASE("Redis: sixteen threads, and the server is killed and comes back with its log",
          "[integration][redis][storm]") {
    RedisServer server({"--appendonly", "yes", "--appendfsync", "always"});
    Storm storm{idem::RedisStore(stormy(server))};
    REQUIRE(storm.goes_on());
    for (int i = 0; i < 3; ++i) {
        server.end(SIGKILL);
        CHECK(storm.is_hurt());
        server.start();
        CHECK(storm.goes_on());
    }
    storm.check();
    RedisCli cli(server.url());
    CHECK(idem_test::without_ttl(cli) == "");
}

}  // namespace redis_storm_test
