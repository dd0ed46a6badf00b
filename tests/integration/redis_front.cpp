// Redis as the fast layer of two: the higher fence stands, and what is late is dead.

#include <chrono>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/front_promises.hpp"
#include "support/redis_requests.hpp"
#include "support/redis_world.hpp"

namespace redis_front_test {

using namespace std::chrono_literals;
using idem_test::RedisCli;
using idem_test::RedisServer;
using idem_test::shared_redis;

TEST_CASE("Redis keeps every promise of a front", "[integration][redis]") {
    RedisCli cli(shared_redis().url());
    idem_test::RedisWorld world(shared_redis().url(), cli);
    idem_test::FrontPromises promises(idem::RedisFront(world.options(shared_redis().url()), 60s),
                                      [&](idem::Duration by) { world.advance(by); });
    promises.ask();
    CHECK(idem_test::without_ttl(cli) == "");
}

TEST_CASE("Redis as a front: many keys are one round trip, and a store's own keys are not its",
          "[integration][redis]") {
    const auto options = idem_test::options_for(shared_redis().url());
    idem::RedisFront front(options, 9s);
    idem::RedisStore store(options);
    const idem::Key mine{"s", "store's"};
    (void)idem::claim_one(store, idem_test::claim_of(mine, idem_test::random_owner()));
    std::vector<idem::Key> keys;
    for (int i = 0; i < 20; ++i) keys.push_back({"s", std::to_string(i)});
    keys.push_back(mine);
    std::vector<idem::KeyView> views;
    for (const auto& key : keys) views.push_back(idem_test::view_of(key));
    std::vector<idem::FrontGot> got(keys.size());
    front.get(views, got);
    CHECK(front.traffic().round_trips == 1);
    std::vector<idem::FrontBury> buries;
    for (const auto& view : views) buries.push_back({view, 1, 1min});
    std::vector<idem::Trouble> troubles(buries.size());
    front.bury(buries, troubles);
    CHECK(front.traffic().round_trips == 2);
    for (const auto& one : got) {
        CHECK_FALSE(one.bytes);
        CHECK(one.now > idem::Instant{});
        CHECK_FALSE(one.trouble);
    }
}

TEST_CASE("Redis as a front: what is not a front's is nothing, and a wrong type is trouble",
          "[integration][redis]") {
    RedisServer server;
    RedisCli cli(server.url());
    auto options = idem_test::options_for(server.url(), "p:");
    idem::RedisFront front(options, 9s);
    const idem::Key key{"s", "k"};
    const auto view = idem_test::view_of(key);
    const std::string name = idem::redis::name_of("p:front:", view);
    const auto get = [&] {
        idem::FrontGot got;
        front.get(std::span(&view, 1), std::span(&got, 1));
        return got;
    };
    for (const std::string& garbage : {std::string("x"), std::string(40, 'x'), std::string("")}) {
        (void)cli({"SET", name, garbage, "PX", "60000"});
        CHECK_FALSE(get().bytes);
    }
    (void)cli({"DEL", name});
    (void)cli({"RPUSH", name, "x"});
    CHECK_FALSE(get().bytes);
    const idem::FrontPut put{view, 5, get().now + 1min, "bytes"};
    idem::Trouble trouble;
    front.put(std::span(&put, 1), std::span(&trouble, 1));
    CHECK(trouble.kind == idem::Trouble::Kind::schema);
    (void)cli({"DEL", name});
}

TEST_CASE("Redis as a front: away, it says so within its short time", "[integration][redis]") {
    idem::RedisFront front({.url = "redis://127.0.0.1:1"});
    CHECK(front.time_allowed() == 250ms);
    const idem::Key key{"s", "k"};
    const auto view = idem_test::view_of(key);
    idem::FrontGot got;
    front.get(std::span(&view, 1), std::span(&got, 1));
    CHECK(got.trouble.kind == idem::Trouble::Kind::unavailable);
    const idem::FrontBury bury{view, 5, 1min};
    idem::Trouble trouble;
    front.bury(std::span(&bury, 1), std::span(&trouble, 1));
    CHECK(trouble.kind == idem::Trouble::Kind::unavailable);
}

}  // namespace redis_front_test
