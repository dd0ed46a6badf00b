// Faults that users of comparable software met on Redis, asked of the real server. Those that need
// no more than one store, or a server in trouble, stand with it in the other files, by number.

#include <atomic>
#include <barrier>
#include <chrono>
#include <csignal>
#include <exception>
#include <iostream>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <idem/guard.hpp>

#include "support/catch.hpp"
#include "support/eventually.hpp"
#include "support/orphan.hpp"
#include "support/redis_requests.hpp"
#include "support/redis_world.hpp"

namespace redis_field_test {

using namespace std::chrono_literals;
using idem::ClaimKind;
using idem::LostReason;
using idem::OutcomeKind;
using idem_test::claim_of;
using idem_test::complete_of;
using idem_test::eventually;
using idem_test::options_for;
using idem_test::quick;
using idem_test::random_owner;
using idem_test::RedisCli;
using idem_test::RedisServer;
using idem_test::RedisWorld;
using idem_test::release_of;
using idem_test::shared_redis;
using idem_test::view_of;
using Guard = idem::IdempotencyGuard<idem::RedisStore>;

const idem::Key key{"s", "k", "t"};

idem::FinishRequest quarantine_of(const idem::Key& of, const idem::Owner& owner,
                                  idem::Fence fence) {
    auto out = complete_of(of, owner, fence, "");
    out.kind = idem::FinishKind::quarantine;
    out.result_kind = idem::ResultKind::none;
    return out;
}
idem::FinishRequest fail_of(const idem::Key& of, const idem::Owner& owner, idem::Fence fence) {
    auto out = release_of(of, owner, fence);
    out.kind = idem::FinishKind::fail;
    out.failure = idem::FailureClass::final;
    return out;
}

TEST_CASE("R1 R2 of 64 callers at one barrier one acquires, and the record is the winner's",
          "[integration][redis][field]") {
    idem::RedisStore store(options_for(shared_redis().url()));
    for (int round = 0; round < 20; ++round) {
        const idem::Key fresh{"race", std::to_string(round)};
        std::barrier start(64);
        std::atomic<int> acquired{0};
        std::mutex mutex;
        idem::Owner winner;
        std::vector<std::jthread> threads;
        for (int i = 0; i < 64; ++i)
            threads.emplace_back([&] {
                const auto owner = random_owner();
                start.arrive_and_wait();
                const auto reply = idem::claim_one(store, claim_of(fresh, owner));
                if (reply.kind != ClaimKind::acquired) return;
                ++acquired;
                const std::lock_guard lock(mutex);
                winner = owner;
            });
        for (auto& thread : threads) thread.join();
        CHECK(acquired == 1);
        CHECK(idem::find_one(store, view_of(fresh)).record->header.owner == winner);
    }
}

TEST_CASE("R5 R7 R8 M70 who was overtaken changes nothing: complete, release, renew, quarantine",
          "[integration][redis][field]") {
    RedisCli cli(shared_redis().url());
    RedisWorld world(shared_redis().url(), cli);
    auto& store = world.store();
    const auto old_owner = random_owner();
    const auto stalled = idem::claim_one(store, claim_of(key, old_owner));
    world.advance(31s);
    const auto owner = random_owner();
    const auto taken = idem::claim_one(store, claim_of(key, owner));
    REQUIRE(taken.kind == ClaimKind::acquired);
    CHECK(taken.attempt == 2);
    CHECK(taken.crashes == 1);
    CHECK(taken.fence > stalled.fence);
    const std::string name = idem::redis::name_of(world.key_prefix(), view_of(key));
    const std::string before = cli({"GET", name});
    for (const auto& finish :
         {complete_of(key, old_owner, stalled.fence, "stale"),
          complete_of(key, old_owner, taken.fence, "guessed"),
          complete_of(key, owner, stalled.fence, "of before"),
          release_of(key, old_owner, stalled.fence), quarantine_of(key, old_owner, stalled.fence),
          fail_of(key, old_owner, stalled.fence)})
        CHECK(idem::finish_one(store, finish).reason == LostReason::other_owner);
    const idem::RenewRequest renew{view_of(key), old_owner, stalled.fence, 1h, "mine", "mine"};
    CHECK(idem::renew_one(store, renew).reason == LostReason::other_owner);
    CHECK(cli({"GET", name}) == before);
    CHECK_FALSE(idem::finish_one(store, complete_of(key, owner, taken.fence, "r")).lost);
    CHECK(idem::claim_one(store, claim_of(key, random_owner())).result == "r");
}

TEST_CASE("R34 after any operations in any order no record is without a time to live",
          "[integration][redis][field]") {
    RedisServer server;
    RedisCli cli(server.url());
    RedisWorld world(server.url(), cli);
    auto& store = world.store();
    const unsigned seed = std::random_device{}();
    std::cout << "seed " << seed << '\n';
    INFO("seed " << seed);
    std::mt19937 random(seed);
    std::vector<idem::Owner> owners;
    for (int i = 0; i < 3; ++i) owners.push_back(random_owner());
    std::set<idem::State> reached;
    for (int step = 0; step < 4000; ++step) {
        const idem::Key some{"r", std::to_string(random() % 8)};
        const auto& owner = owners[random() % owners.size()];
        const auto found = idem::find_one(store, view_of(some));
        const idem::Fence fence = found.record ? found.record->header.fence : 0;
        switch (random() % 11) {
            case 0:
            case 1: {
                auto claim = claim_of(some, random() % 2 == 0 ? owner : random_owner());
                claim.policy.orphan = static_cast<idem::Orphan>(random() % 3);
                claim.policy.max_attempts = 3;
                claim.can_verify = random() % 2 == 0;
                (void)idem::claim_one(store, claim);
                break;
            }
            case 2: (void)idem::finish_one(store, complete_of(some, owner, fence, "r")); break;
            case 3: (void)idem::finish_one(store, fail_of(some, owner, fence)); break;
            case 4: (void)idem::finish_one(store, release_of(some, owner, fence)); break;
            case 5: (void)idem::finish_one(store, quarantine_of(some, owner, fence)); break;
            case 6:
                (void)idem::renew_one(store, {view_of(some), owner, fence, 40s, "half", {}});
                break;
            case 7: (void)idem::issue_one(store, {view_of(some), {}, owner, 1min, 1h}); break;
            case 8: {
                idem::ResolveRequest resolve;
                resolve.key = view_of(some);
                resolve.seen_fence = fence;
                resolve.retention = 1h;
                resolve.succeeded = random() % 2 == 0;
                (void)idem::resolve_one(store, resolve);
                break;
            }
            case 9: (void)idem::reap_one(store, {view_of(some), fence, 1h, 5h}); break;
            default:
                if (random() % 4 == 0) (void)idem::forget_one(store, {view_of(some), 1min});
                world.advance(random() % 3 == 0 ? 41s : 1s);
        }
        const auto name = idem::redis::name_of(world.key_prefix(), view_of(some));
        const long ttl = std::stol(cli({"PTTL", name}));
        CHECK((ttl > 0 || ttl == -2));  // -2: there is no such key
        if (const auto now = idem::find_one(store, view_of(some)).record)
            reached.insert(now->header.state);
    }
    CHECK(reached.size() == 6);  // a tombstone is found by nobody
    CHECK(idem_test::without_ttl(cli) == "");
}

TEST_CASE("R113 32 threads on one store get each their own answers",
          "[integration][redis][field]") {
    idem::RedisStore store(options_for(shared_redis().url()));
    Guard guard(store);
    std::atomic<int> wrong{0};
    std::atomic<int> shared_runs{0};
    std::vector<std::jthread> threads;
    for (int me = 0; me < 32; ++me)
        threads.emplace_back([&, me] {
            for (int i = 0; i < 30; ++i) {
                const auto mine = std::to_string(me) + "." + std::to_string(i);
                const auto outcome = guard.run(idem::Key{"own", mine}, {}, [&] { return mine; });
                if (!outcome.executed() || outcome.value() != mine) ++wrong;
                const auto all = guard.run(idem::Key{"all", std::to_string(i)}, {}, {.wait = 1min},
                                           [&] { return ++shared_runs, i; });
                if (!all.has_value() || all.value() != i) ++wrong;
                (void)idem::find_one(store, idem::KeyView(idem::Component::call, "own", mine, ""));
            }
        });
    for (auto& thread : threads) thread.join();
    CHECK(wrong == 0);
    CHECK(shared_runs == 30);
}

TEST_CASE("R115 who waits has the result within the budget though no notice ever comes",
          "[integration][redis][field]") {
    RedisServer server;
    RedisCli cli(server.url());
    // Its settling is told to nobody; the waiter's own subscription stands.
    (void)cli({"ACL", "SETUSER", "mute", "on", ">secret", "~*", "&*", "+@all", "-publish"});
    const std::string port = std::to_string(server.port());
    idem::RedisStore holder(options_for("redis://mute:secret@127.0.0.1:" + port, "idem:"));
    idem::RedisStore store(options_for(server.url(), "idem:"));
    const auto owner = random_owner();
    const auto held = idem::claim_one(holder, claim_of(key, owner));
    REQUIRE(held.kind == ClaimKind::acquired);
    std::atomic<bool> asked{false};
    auto kind = OutcomeKind::unknown;
    idem::Duration waited{};
    std::jthread waiter([&] {  // Catch2's own checks are for one thread
        Guard guard(store, {.wait = 1min});
        const auto from = idem::LocalClock::now();
        asked = true;
        kind = guard.run(key, {}, [] { return 0; }).kind();
        waited = std::chrono::duration_cast<idem::Duration>(idem::LocalClock::now() - from);
    });
    CHECK(eventually([&] { return asked && !cli({"PUBSUB", "CHANNELS"}).empty(); }));
    auto finish = complete_of(key, owner, held.fence, std::string("\5\0\0\0", 4));
    finish.codec = {idem::Codec<int>::tag, idem::Codec<int>::version};
    std::string result;
    idem::Codec<int>::encode(5, result);
    finish.result = result;
    CHECK_FALSE(idem::finish_one(holder, finish).lost);
    waiter.join();
    CHECK(kind == OutcomeKind::replayed);
    CHECK(waited < 50s);
}

TEST_CASE("M14 who waits for a held key asks a bounded number of times",
          "[integration][redis][field]") {
    idem::RedisStore store(options_for(shared_redis().url(), "m14:"));
    const auto held = idem::claim_one(store, claim_of(key, random_owner()));
    REQUIRE(held.kind == ClaimKind::acquired);
    idem::RedisStore waiting(options_for(shared_redis().url(), "m14:"));
    Guard guard(waiting, {.wait = 1s});
    CHECK(guard.run(key, {}, [] { return 0; }).kind() == OutcomeKind::in_progress);
    CHECK(waiting.traffic().commands <= 12);
}

TEST_CASE("Redis: M34 M43 R26 a holder killed in mid-body is taken over once, after its lease",
          "[integration][redis][field][fork]") {
    RedisCli cli(shared_redis().url());
    RedisWorld world(shared_redis().url(), cli);
    idem_test::taken_over_once(
        world, [&] { return idem::RedisStore(world.options(shared_redis().url())); });
}

TEST_CASE("Redis: M35 with the policy to hold a vanished holder's key is nobody's to run",
          "[integration][redis][field][fork]") {
    RedisCli cli(shared_redis().url());
    RedisWorld world(shared_redis().url(), cli);
    idem_test::held_for_a_person(
        world, [&] { return idem::RedisStore(world.options(shared_redis().url())); });
}

TEST_CASE("M1 R11 after an outage longer than its lease a holder has lost it, and the next lasts",
          "[integration][redis][field]") {
    RedisServer server;
    auto options = quick(server.url());
    options.command_timeout = 200ms;
    options.time_allowed = 300ms;
    idem::RedisStore store(options);
    Guard guard(store, {.lease = 1200ms});
    bool lapsed = false;
    const auto lost = guard.run(key, {}, [&](idem::Execution& execution) {
        server.signal(SIGSTOP);
        lapsed = eventually([&] { return !execution.held(); });
        server.signal(SIGCONT);
        return 1;
    });
    CHECK(lapsed);
    // Nobody took over: the late result stands, or the caller is told that it does not.
    CHECK(lost.value() == 1);
    if (lost.recorded()) CHECK(guard.run(key, {}, [] { return 2; }).value() == 1);
    const idem::Key next{"s", "next"};
    const auto kept = guard.run(next, {}, [&](idem::Execution& execution) {
        const auto lease_end = [&] { return guard.find(next)->header.lease_end; };
        const auto first = lease_end();
        CHECK(eventually([&] { return lease_end() >= first + 3 * 1200ms; }));
        const auto other = idem::claim_one(store, claim_of(next, random_owner()));
        CHECK(other.kind == ClaimKind::in_progress);
        return execution.held();
    });
    CHECK(kept.value());
    CHECK(kept.recorded());
}

TEST_CASE("M10 R98 a claim that goes while its server does not answer throws nothing, and is free",
          "[integration][redis][field]") {
    RedisServer server;
    auto options = quick(server.url());
    options.command_timeout = 200ms;
    options.time_allowed = 300ms;
    idem::RedisStore store(options);
    Guard guard(store, {.lease = 1s});
    const auto from = idem::LocalClock::now();
    const auto unwind = [&] {
        auto claimed = guard.claim<int>(key, {});
        REQUIRE(std::holds_alternative<idem::Claim<int>>(claimed));
        server.signal(SIGSTOP);
        throw std::logic_error("the caller's own");
    };
    CHECK_THROWS_AS(unwind(), std::logic_error);
    CHECK(idem::LocalClock::now() - from < 30s);
    server.signal(SIGCONT);
    CHECK(eventually([&] {
        const auto reply = idem::claim_one(store, claim_of(key, random_owner()));
        return reply.kind == ClaimKind::acquired && !reply.trouble;
    }));
}

}  // namespace redis_field_test
