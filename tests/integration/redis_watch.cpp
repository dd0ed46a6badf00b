// Notices of settled keys, across processes: subscribed before watch returns, from everything that
// settles a key, and never after the handle is gone.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/child.hpp"
#include "support/eventually.hpp"
#include "support/fake_redis.hpp"
#include "support/redis_requests.hpp"
#include "support/redis_world.hpp"

namespace redis_watch_test {

using namespace std::chrono_literals;
using idem::ClaimKind;
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

TEST_CASE("Redis: whatever settles a key is told to who watches it in another store",
          "[integration][redis]") {
    RedisCli cli(shared_redis().url());
    idem_test::RedisWorld world(shared_redis().url(), cli);
    idem::RedisStore& settler = world.store();
    idem::RedisStore watcher(world.options(shared_redis().url()));
    const idem::Key key{"s", "k"};
    std::atomic<int> notices{0};
    auto handle = watcher.watch(view_of(key), [&] { notices.fetch_add(1); });
    REQUIRE(handle != nullptr);
    const auto told = [&](const std::string& what, auto&& action) {
        INFO(what);
        const int before = notices.load();
        action();
        CHECK(eventually([&] { return notices.load() > before; }));
    };
    const auto hold = [&](idem::Policy policy = {}) {
        auto request = claim_of(key, random_owner());
        request.policy = policy;
        const auto reply = idem::claim_one(settler, request);
        REQUIRE(reply.kind == ClaimKind::acquired);
        return std::pair{request.owner, reply.fence};
    };
    for (const auto kind : {idem::FinishKind::release, idem::FinishKind::fail,
                            idem::FinishKind::quarantine, idem::FinishKind::complete}) {
        const auto held = hold();
        told(to_string(kind), [&] {
            auto finish = complete_of(key, held.first, held.second, "r");
            finish.kind = kind;
            CHECK_FALSE(idem::finish_one(settler, finish).lost);
        });
        told("forget", [&] { CHECK(idem::forget_one(settler, {view_of(key), 1s}).existed); });
    }
    const auto lapsed = hold();
    world.advance(31s);
    told("reap", [&] {
        CHECK(idem::reap_one(settler, {view_of(key), lapsed.second, 1h, 1h}).reaped);
    });
    (void)hold({idem::Orphan::hold, 0, 0});
    world.advance(31s);
    told("a claim that holds an orphan", [&] {
        CHECK(idem::claim_one(settler, claim_of(key, random_owner())).kind == ClaimKind::unknown);
    });
    told("resolve", [&] {
        idem::ResolveRequest resolve;
        resolve.key = view_of(key);
        resolve.seen_fence = idem::find_one(settler, view_of(key)).record->header.fence;
        resolve.retention = 1h;
        CHECK(idem::resolve_one(settler, resolve).resolved);
    });
    (void)idem::forget_one(settler, {view_of(key), 1s});  // with its stricter policy
    (void)hold({idem::Orphan::rerun, 0, 1});
    world.advance(31s);
    told("a claim that exhausts", [&] {
        CHECK(idem::claim_one(settler, claim_of(key, random_owner())).kind == ClaimKind::failed);
    });
}

TEST_CASE("Redis: the subscription stands before watch returns, so that no notice falls between",
          "[integration][redis]") {
    idem::RedisStore settler(options_for(shared_redis().url(), "watch:"));
    idem::RedisStore watcher(options_for(shared_redis().url(), "watch:"));
    RedisCli cli(shared_redis().url());
    for (int i = 0; i < 100; ++i) {
        const idem::Key key{"s", std::to_string(i)};
        const auto owner = random_owner();
        const auto reply = idem::claim_one(settler, claim_of(key, owner));
        std::atomic<bool> told{false};
        const auto handle = watcher.watch(view_of(key), [&] { told.store(true); });
        REQUIRE(handle != nullptr);
        if (i % 2 == 0) {
            const std::string name = idem::redis::name_of("watch:", view_of(key));
            CHECK(cli({"PUBLISH", name, ""}) == "1");  // so many heard it
            continue;
        }
        (void)idem::finish_one(settler, complete_of(key, owner, reply.fence, "r"));
        CHECK(eventually([&] { return told.load(); }));
    }
}

TEST_CASE("Redis: no notice comes once the handle is gone, and other keys are not told",
          "[integration][redis]") {
    idem::RedisStore store(options_for(shared_redis().url(), "gone:"));
    RedisCli cli(shared_redis().url());
    const idem::Key one{"s", "one"};
    const idem::Key two{"s", "two"};
    const std::string channel = idem::redis::name_of("gone:", view_of(one));
    for (int i = 0; i < 60; ++i) {
        std::atomic<bool> gone{false};
        std::atomic<bool> late{false};
        std::atomic<int> other{0};
        auto handle = store.watch(view_of(one), [&] { late.store(late.load() || gone.load()); });
        const auto beside = store.watch(view_of(two), [&] { other.fetch_add(1); });
        REQUIRE(handle != nullptr);
        REQUIRE(beside != nullptr);
        std::jthread noise([&] { (void)cli({"PUBLISH", channel, ""}); });
        handle.reset();
        gone.store(true);
        noise.join();
        CHECK_FALSE(late.load());
        CHECK(other.load() == 0);
    }
    // Two handles on one key: the one that stays is told.
    std::atomic<int> first{0};
    std::atomic<int> second{0};
    auto a = store.watch(view_of(one), [&] { first.fetch_add(1); });
    const auto b = store.watch(view_of(one), [&] { second.fetch_add(1); });
    a.reset();
    const int heard = first.load();
    const int before = second.load();  // a needless one may still be on its way
    (void)cli({"PUBLISH", channel, ""});
    CHECK(eventually([&] { return second.load() > before; }));
    CHECK(first.load() == heard);
    // A notice may let its own handle go.
    std::shared_ptr<void> own;
    std::atomic<bool> done{false};
    own = store.watch(view_of(two), [&] {
        own.reset();
        done.store(true);
    });
    (void)cli({"PUBLISH", idem::redis::name_of("gone:", view_of(two)), ""});
    CHECK(eventually([&] { return done.load(); }));
}

TEST_CASE("Redis: one thread and one connection listen for a store, while somebody watches",
          "[integration][redis]") {
    RedisServer server;
    RedisCli cli(server.url());
    idem::RedisStore store(options_for(server.url()));
    const auto threads = idem_test::thread_count();
    const auto subscribers = [&] {
        const std::string list = cli({"CLIENT", "LIST", "TYPE", "pubsub"});
        return std::count(list.begin(), list.end(), '\n');
    };
    {
        std::vector<std::shared_ptr<void>> handles;
        std::vector<std::jthread> callers;
        std::mutex mutex;
        for (int i = 0; i < 16; ++i) {
            callers.emplace_back([&, i] {
                auto handle = store.watch(view_of({"s", std::to_string(i)}), [] {});
                const std::lock_guard lock(mutex);
                handles.push_back(std::move(handle));
            });
        }
        for (auto& caller : callers) caller.join();
        for (const auto& handle : handles) CHECK(handle != nullptr);
        CHECK(idem_test::thread_count() == threads + 1);
        CHECK(subscribers() == 1);
    }
    CHECK(eventually([&] { return idem_test::thread_count() == threads && subscribers() == 0; }));
    CHECK(store.watch(view_of({"s", "again"}), [] {}) != nullptr);
}

TEST_CASE("Redis: a broken subscription is a notice to everybody, and is taken up again",
          "[integration][redis]") {
    RedisServer server;
    RedisCli cli(server.url());
    idem::RedisStore store(options_for(server.url(), "broken:"));
    const idem::Key key{"s", "k"};
    std::atomic<int> notices{0};
    const auto handle = store.watch(view_of(key), [&] { notices.fetch_add(1); });
    REQUIRE(handle != nullptr);
    (void)cli({"CLIENT", "KILL", "TYPE", "pubsub"});
    CHECK(eventually([&] { return notices.load() > 0; }));
    const std::string channel = idem::redis::name_of("broken:", view_of(key));
    CHECK(eventually([&] { return cli({"PUBLISH", channel, ""}) == "1"; }));
    const int before = notices.load();
    (void)cli({"PUBLISH", channel, ""});
    CHECK(eventually([&] { return notices.load() > before; }));
}

TEST_CASE("Redis: who watches on a connection that another waits on in vain is told",
          "[integration][redis]") {
    std::atomic<bool> confirmed{false};
    const idem_test::FakeRedis fake([&](const auto& words) -> std::optional<std::string> {
        if (words[0] != "SUBSCRIBE" || confirmed.exchange(true)) return "";  // falls silent
        return "*3\r\n" + idem_test::FakeRedis::bulk("subscribe") +
               idem_test::FakeRedis::bulk(words[1]) + ":1\r\n";
    });
    idem::RedisStore store(quick(fake.url()));
    std::atomic<int> notices{0};
    const auto first = store.watch(view_of({"s", "first"}), [&] { ++notices; });
    REQUIRE(first != nullptr);
    CHECK(store.watch(view_of({"s", "second"}), [] {}) == nullptr);
    CHECK(eventually([&] { return notices.load() > 0; }));
}

TEST_CASE("Redis: where no notices can come watch is null, in time", "[integration][redis]") {
    idem::RedisStore nobody(quick("redis://127.0.0.1:" + std::to_string(idem_test::free_port())));
    CHECK(nobody.watch(view_of({"s", "k"}), [] {}) == nullptr);
    const idem_test::FakeRedis silent([](const auto& words) -> std::optional<std::string> {
        return words[0] == "INFO" ? "" : "+OK\r\n";  // never a subscription
    });
    idem::RedisStore store(quick(silent.url()));
    CHECK(store.watch(view_of({"s", "k"}), [] {}) == nullptr);
    RedisServer server;
    (void)RedisCli(server.url())(
        {"ACL", "SETUSER", "app", "on", ">secret", "~*", "resetchannels", "+@all"});
    auto options = quick("redis://app:secret@127.0.0.1:" + std::to_string(server.port()));
    idem::RedisStore barred(options);
    const idem::Key key{"s", "k"};
    CHECK(barred.watch(view_of(key), [] {}) == nullptr);
    const auto owner = random_owner();  // and its own settling goes on without them
    const auto reply = idem::claim_one(barred, claim_of(key, owner));
    CHECK(idem::finish_one(barred, complete_of(key, owner, reply.fence, "r")).trouble.message ==
          "");
}

TEST_CASE("Redis: a handle may outlive its store, and a store its child",
          "[integration][redis][fork]") {
    std::shared_ptr<void> handle;
    {
        idem::RedisStore store(options_for(shared_redis().url()));
        handle = store.watch(view_of({"s", "k"}), [] {});
        REQUIRE(handle != nullptr);
        CHECK(idem_test::in_child([&] {
                  handle.reset();
                  return store.watch(view_of({"s", "k"}), [] {}) == nullptr;
              }) == "");
    }
    handle.reset();
    CHECK(handle == nullptr);
}

}  // namespace redis_watch_test
