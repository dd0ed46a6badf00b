// Two layers on real servers, Redis in front and PostgreSQL behind: whatever becomes of Redis, no
// key runs twice and no answer is given that PostgreSQL never had.

#include <chrono>
#include <csignal>
#include <cstdint>
#include <random>
#include <string>
#include <utility>

#include <idem/idem.hpp>

#include "support/catch.hpp"
#include "support/ctl.hpp"
#include "support/held_to_promises.hpp"
#include "support/layered_world.hpp"
#include "support/postgres_world.hpp"
#include "support/redis_requests.hpp"
#include "support/redis_world.hpp"
#include "support/storm.hpp"
#include "support/tcp_gate.hpp"

namespace both_tiered_test {

using namespace std::chrono_literals;
using idem_test::PostgresBench;
using idem_test::RedisCli;
using idem_test::RedisServer;
using idem_test::shared_redis;
using idem_test::shared_server;

using Back = idem::CombiningStore<idem::PostgresStore>;
using Tiered = idem::TieredStore<idem::RedisFront, Back>;

/// Both servers on clocks that are moved by hand, and a cache over all.
class AllLayersWorld : public idem_test::PostgresWorld {
public:
    AllLayersWorld(PostgresBench& bench, RedisCli& cli)
        : PostgresWorld(bench),
          redis_(shared_redis().url(), cli),
          tiered_(idem::RedisFront(redis_.options(shared_redis().url()), 60s),
                  Back(PostgresWorld::store()), {.front_ttl = 1h}),
          cached_(tiered_, {.max_age = 1h, .clock = [this] { return now(); }}) {
        redis_.advance(now() - redis_.now());
    }
    ~AllLayersWorld() = default;
    AllLayersWorld(const AllLayersWorld&) = delete;  // its clock refers to it
    AllLayersWorld& operator=(const AllLayersWorld&) = delete;

    [[nodiscard]] idem::CachedStore<Tiered>& store() { return cached_; }
    void advance(idem::Duration by) {
        PostgresWorld::advance(by);
        redis_.advance(by);
    }

    [[nodiscard]] bool answers_repeats() {
        return idem_test::answers_repeats(tiered_, [&] { return tiered_.usage().front_answers; }) &&
               idem_test::answers_repeats(cached_, [&] { return cached_.usage().hits; });
    }

private:
    idem_test::RedisWorld redis_;
    Tiered tiered_;
    idem::CachedStore<Tiered> cached_;
};

TEST_CASE("conformance: a cache over Redis over combined PostgreSQL keeps every promise",
          "[integration][redis]") {
    PostgresBench bench(shared_server().conninfo(), shared_server().conninfo());
    RedisCli cli(shared_redis().url());
    idem_test::held_to_promises("all layers", [&] { return AllLayersWorld(bench, cli); },
                                {.seed = std::random_device{}(), .histories = 40, .shrinks = 100});
    AllLayersWorld world(bench, cli);
    CHECK(world.answers_repeats());
}

/// Two layers of one's own, of which Redis is about to suffer.
struct Layers {
    explicit Layers(const std::string& redis_url, idem::Duration front_ttl = 5min)
        : front(front_options(redis_url), 200ms),
          back(bench.options(shared_server().conninfo(), 8)),
          store(front, Back(back), {.front_ttl = front_ttl, .pause_min = 1ms, .pause_max = 20ms}) {}

    [[nodiscard]] static idem::RedisOptions front_options(const std::string& url) {
        idem::RedisOptions out;
        out.url = url;
        out.prefix = "tiered:";
        out.command_timeout = out.connect_timeout = 100ms;
        return out;
    }

    PostgresBench bench{shared_server().conninfo(), shared_server().conninfo()};
    idem::RedisFront front;
    idem::PostgresStore back;
    Tiered store;
};
using Storm = idem_test::Storm<Tiered>;

/// Goes on while Redis is disturbed so many times, answers from the front in the end, and has run
/// nothing twice.
template <class Disturb>
void survives(Layers& layers, int times, const Disturb& disturb) {
    Storm storm(layers.store);
    REQUIRE(storm.goes_on());
    for (int i = 0; i < times; ++i) {
        disturb();
        CHECK(storm.goes_on());
    }
    const auto before = layers.store.usage().front_answers;
    CHECK(idem_test::eventually([&] { return layers.store.usage().front_answers > before + 16; }));
    storm.check();
}

TEST_CASE("two layers: Redis is wiped again and again, and nothing runs twice",
          "[integration][redis][storm]") {
    RedisServer server;
    RedisCli cli(server.url());
    Layers layers(server.url());
    survives(layers, 30, [&] { (void)cli({"FLUSHALL"}); });
    CHECK(idem_test::without_ttl(cli) == "");
}

TEST_CASE("two layers: Redis is killed, and comes back with old data",
          "[integration][redis][storm]") {
    RedisServer server({"--appendonly", "yes", "--appendfsync", "no"});
    Layers layers(server.url());
    survives(layers, 3, [&] {
        server.end(SIGKILL);
        CHECK(idem_test::eventually([&] { return layers.store.usage().front_paused; }));
        server.start();
    });
}

TEST_CASE("two layers: Redis stands still, and PostgreSQL carries on",
          "[integration][redis][storm]") {
    RedisServer server;
    Layers layers(server.url());
    survives(layers, 3, [&] {
        server.signal(SIGSTOP);
        CHECK(idem_test::eventually([&] { return layers.store.usage().front_paused; }));
        server.signal(SIGCONT);
    });
}

TEST_CASE("two layers: Redis evicts what it likes", "[integration][redis][storm]") {
    RedisServer server({"--maxmemory", "2mb", "--maxmemory-policy", "allkeys-random"});
    RedisCli cli(server.url());
    Layers layers(server.url());
    survives(layers, 20, [&] {
        for (int i = 0; i < 40; ++i)
            (void)cli({"SET", "fill" + std::to_string(i), std::string(100'000, 'x'), "PX", "9999"});
    });
    CHECK(std::stol(cli.info("stats", "evicted_keys")) > 0);
}

TEST_CASE("two layers: what passes to and from Redis is cut, delayed and swallowed",
          "[integration][redis][storm]") {
    RedisServer server;
    idem_test::TcpGate gate(server.port());
    Layers layers("redis://127.0.0.1:" + std::to_string(gate.port()));
    std::mt19937 random(std::random_device{}());
    survives(layers, 40, [&] {
        idem_test::GateFault fault;
        fault.way = static_cast<idem_test::Direction>(random() % 2);
        fault.act = static_cast<idem_test::GateAct>(random() % 5);
        fault.after = random() % 400;
        fault.pause = std::chrono::milliseconds(random() % 150);
        gate.arm(fault);
        CHECK(idem_test::eventually([&] { return gate.fired() > 0; }));
        gate.disarm();
        gate.reset_all();
    });
}

TEST_CASE("two layers: PostgreSQL is away, and what is finished is still answered",
          "[integration][redis]") {
    Layers layers(shared_redis().url());
    idem_test::TcpGate gate(shared_server().port());
    auto options = layers.bench.options("host=127.0.0.1 port=" + std::to_string(gate.port()) +
                                            " user=postgres password=secret dbname=postgres",
                                        4);
    options.connect_timeout = options.statement_timeout = 200ms;
    options.lock_timeout = 100ms;
    options.time_allowed = 400ms;
    Tiered store(layers.front, Back(idem::PostgresStore(options)));
    idem::IdempotencyGuard<Tiered> guard(store);
    const idem::Key key{"s", layers.bench.schema()};
    CHECK(guard.run(key, {}, [] { return 1; }).executed());
    CHECK(guard.run(key, {}, [] { return 2; }).value() == 1);
    gate.refuse();
    gate.reset_all();
    CHECK(guard.run(key, {}, [] { return 3; }).value() == 1);
    CHECK_THROWS_AS(guard.run(idem::Key{"s", "new"}, {}, [] { return 4; }), idem::UnavailableError);
    gate.accept_again();
    CHECK(idem_test::eventually([&] {
        try {
            return guard.run(idem::Key{"s", "new"}, {}, [] { return 5; }).value() == 5;
        } catch (const idem::UnavailableError&) {
            return false;
        }
    }));
}

TEST_CASE("two layers: a repeat costs Redis one round trip, a first call one more than the back",
          "[integration][redis]") {
    Layers layers(shared_redis().url());
    idem::IdempotencyGuard<Tiered> guard(layers.store, {.lease = 1h});
    const auto run = [&](const std::string& id) {
        return guard.run(idem::Key{layers.bench.schema(), id}, {}, [] { return 1; });
    };
    (void)run("warm");
    const auto trips = [&](auto&& action) {
        const auto before = layers.front.traffic().round_trips;
        action();
        return layers.front.traffic().round_trips - before;
    };
    CHECK(trips([&] { CHECK(run("k").executed()); }) == 1);
    CHECK(trips([&] { CHECK(run("k").replayed()); }) == 2);  // and fills the front
    const auto back = layers.store.usage().back_answers;
    CHECK(trips([&] { CHECK(run("k").replayed()); }) == 1);
    CHECK(layers.store.usage().back_answers == back);
}

TEST_CASE("idemctl looks at both layers, erases in both, and says where one is away",
          "[integration][redis]") {
    const std::string back = "127.0.0.1:" + std::to_string(shared_server().port()) +
                             "/postgres?idem_schema=ctl_" + idem_test::fresh_schema();
    idem::PostgresStore(
        idem::postgres::options_of(*idem::detail::parse_url("postgres://postgres:secret@" + back)))
        .create_schema();
    const auto url = [&](int redis_port) {
        return "redis+postgres://postgres:secret@" + back + "&front=redis%3A%2F%2F127.0.0.1%3A" +
               std::to_string(redis_port);
    };
    const std::string both = url(shared_redis().port());
    auto store = idem::open_store(both);
    idem::IdempotencyGuard<idem::AnyStore> guard(store);
    const auto run = [&] {
        return guard.run(idem::Key{"two.layers", "k", "t"}, {}, [] { return 1; });
    };
    CHECK(run().executed());
    CHECK(run().replayed());
    CHECK(run().replayed());
    const idem_test::Ctl ctl(both);
    CHECK(ctl({"list", "--scope", "two.layers"}).says("succeeded"));
    CHECK(ctl({"check"}).says("front"));
    CHECK(ctl({"forget", "--tenant", "t", "--yes"}).status == 0);
    CHECK(run().executed());
    const auto away = idem_test::Ctl(url(1))({"check"});
    CHECK(away.says("degraded, the back carries on alone"));
    CHECK(away.status == 1);
    CHECK_FALSE(away.says("secret"));
}

}  // namespace both_tiered_test
