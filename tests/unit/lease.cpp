// Goal: a lock has one holder, who keeps it while he works and learns in time that he does not.
// Method: the promises that every store keeps, on the embedded one; then what needs its real clock.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <idem/lease.hpp>
#include <idem/memory/store.hpp>

#include "support/catch.hpp"
#include "support/child.hpp"
#include "support/layered_world.hpp"
#include "support/lease_promises.hpp"

using namespace idem_test;
using namespace std::chrono_literals;

namespace lease_test {

TEST_CASE("memory: a lease lock keeps its promises", "[lease]") {
    MemoryWorld world;
    locks_keep_their_promises(world, 2'500);
}

TEST_CASE("a lock made without options works", "[lease]") {
    idem::MemoryStore store;
    idem::LeaseLock lock(store);
    auto lease = lock.try_acquire(lock_key);
    REQUIRE(lease);
    CHECK_FALSE(lock.try_acquire(lock_key));
    auto moved = std::move(lease);
    lease = lock.try_acquire({.scope = "lock", .id = "another"});
    REQUIRE(lease);
    *moved = *std::move(lease);  // the one that is overwritten is released
    CHECK(moved->key().id == "another");
    CHECK(lock.try_acquire(lock_key));
}

TEST_CASE("options of a lock that cannot work are refused, by name", "[lease]") {
    const auto message = [](idem::LeaseOptions options, idem::Duration time_allowed = {}) {
        try {
            const SpyStore store({}, time_allowed);
            (void)idem::LeaseLock(store, std::move(options));
        } catch (const idem::UsageError& e) {
            return std::string(e.what());
        }
        return std::string();
    };
    const auto names = [](const std::string& text, const char* name) {
        return text.find(name) != std::string::npos;
    };
    for (const idem::Duration bad :
         {idem::Duration(0), idem::Duration(-1), idem::duration_max + 1us, idem::Duration::max()}) {
        CHECK(names(message({.lease = bad}), "LeaseOptions::lease"));
        CHECK(names(message({.lease = bad, .heartbeat = false}), "LeaseOptions::lease"));
        CHECK(names(message({.retention = bad}), "LeaseOptions::retention"));
    }
    CHECK(names(message({.lease = 9ms}), "LeaseOptions::lease"));
    CHECK(message({.lease = 1us, .heartbeat = false}).empty());
    CHECK(names(message({.lease = 3s}, 1001ms), "LeaseOptions::lease"));
    CHECK(message({.lease = 3s}, 1s).empty());
    CHECK(names(message({.lease = 3s, .max_hold = 2s}), "LeaseOptions::max_hold"));
    CHECK(names(message({.max_hold = -1s}), "LeaseOptions::max_hold"));
    CHECK(message({.lease = 3s, .max_hold = 3s}).empty());
    idem::LeaseLock lock(SpyStore{});
    CHECK_THROWS_AS(lock.try_acquire({.scope = "", .id = "x"}), idem::UsageError);
    CHECK_THROWS_AS(lock.acquire(lock_key, -1s), idem::UsageError);
}

TEST_CASE("those that wait look at odd times, within half of a pause", "[lease]") {
    std::set<idem::Duration> pauses;
    for (int i = 0; i < 200; ++i) pauses.insert(idem::detail::jittered(200ms));
    CHECK(*pauses.begin() >= 100ms);
    CHECK(*pauses.rbegin() <= 200ms);
    CHECK(pauses.size() > 100);
}

TEST_CASE("a forked child neither holds its parent's lock nor releases it", "[lease][fork]") {
    SpyStore store;
    idem::LeaseLock lock(store);
    auto lease = lock.try_acquire(lock_key);
    REQUIRE(lease);
    CHECK(in_child([&] {
              const auto asked = store.calls();
              const bool none = !lease->held() && lease->lost() == idem::LostReason::process &&
                                lease->stop_token().stop_requested() && !lease->release();
              return none && store.calls() == asked;
          }) == "");
    CHECK(lease->held());
    CHECK_FALSE(lock.try_acquire(lock_key));
}

TEST_CASE("locks that nobody holds are forgotten with their retention", "[lease]") {
    MemoryWorld world;
    idem::LeaseLock lock(world.store(), {.retention = 1min});
    for (int i = 0; i < 1'000; ++i)
        REQUIRE(lock.try_acquire({.scope = "lock", .id = std::to_string(i)}));
    world.advance(1min);
    while (world.store().purge(10'000).more) {
    }
    CHECK(lock.guard().list().records.empty());
}

TEST_CASE("while a store stalls no lock has two holders, and each that is lost is told once",
          "[lease]") {
    static constexpr idem::Duration lease_time = 100ms;
    constexpr std::size_t count = 200;
    SpyStore store;
    const unsigned seed = std::random_device{}();
    INFO("seed " << seed);
    store.on_renew([random = std::make_shared<std::mt19937>(seed)](auto) {
        if ((*random)() % 3 == 0) outlast(4 * lease_time / 5);  // one thread renews
        return Way::pass;
    });
    std::atomic<int> told{0};
    idem::LeaseLock<SpyStore> lock(
        store, {.lease = lease_time, .on_loss = [&](const auto&, auto) { ++told; }});
    idem::LeaseLock<SpyStore> contender(store, {.lease = 1h});
    std::vector<std::optional<idem::Lease>> held(count);
    int acquired = 0;
    int lost = 0;
    int two_holders = 0;
    const auto end = idem::LocalClock::now() + 20 * lease_time;
    while (idem::LocalClock::now() < end) {
        for (std::size_t i = 0; i < count; ++i) {
            const idem::Key key{"stall", std::to_string(i)};
            if (const auto taken = contender.try_acquire(key); !taken) continue;
            two_holders += held[i] && held[i]->held() ? 1 : 0;
            lost += held[i] ? 1 : 0;
            held[i].reset();
            try {
                held[i] = lock.try_acquire(key);
                acquired += held[i] ? 1 : 0;
            } catch (const idem::UnavailableError&) {  // starved for a lease
            }
        }
    }
    store.on_renew({});
    CHECK(two_holders == 0);
    CHECK(lost > 0);
    int still_held = 0;
    for (auto& lease : held) {
        still_held += lease && lease->held() ? 1 : 0;
        lease.reset();
    }
    CHECK(told == acquired - still_held);
}

}  // namespace lease_test
