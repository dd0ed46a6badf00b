// Goal: what the store would not take at once reaches it in the end, and neither one finish that
// keeps failing nor a long queue takes that from the others. Method: a store that refuses finishes
// by key, or all of them, until it is well again.

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <idem/guard.hpp>
#include <idem/memory/store.hpp>

#include "support/catch.hpp"
#include "support/features.hpp"
#include "support/hooked_store.hpp"

using namespace idem_test;
using namespace std::chrono_literals;

namespace late_finish_test {

using idem::EventKind;
using Hooked = HookedStore<idem::MemoryStore>;

TEST_CASE("a finish that keeps failing does not stand in the way of the others", "[late]") {
    idem::testing::ManualClock const clock;
    Hooked store(idem::MemoryStore({.clock = clock}));
    EventLog log;
    idem::IdempotencyGuard guard(store, {.events = log.observer()});
    const auto outage = std::make_shared<std::atomic<bool>>(true);
    store.on_finish([outage](const idem::FinishRequest& request) {
        return *outage || request.key.id == "poison" ? Wire::refused : Wire::good;
    });
    (void)guard.run(key("poison"), {}, [] { return 0; });
    for (int i = 0; i < 10; ++i) CHECK(!guard.run(key(std::to_string(i)), {}, [] {}).recorded());
    *outage = false;
    CHECK(eventually([&] { return guard.health().unrecorded == 1; }));
    CHECK(log.of(EventKind::recorded_late).size() == 10);
    for (int i = 0; i < 10; ++i) CHECK(guard.run(key(std::to_string(i)), {}, [] {}).replayed());
    store.on_finish({});
    CHECK(eventually([&] { return guard.health().unrecorded == 0; }));
    CHECK(guard.run(key("poison"), {}, [] { return 1; }).value() == 0);
}

TEST_CASE("after an outage finishes go out in batches, and renewals get their turn", "[late]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    constexpr idem::Duration lease = 900ms;
    SpyGuard other = stage.guard({.lease = lease});
    stage.store.on_finish([](auto) { return Way::refuse; });
    for (int i = 0; i < 250; ++i) (void)guard.run(key(std::to_string(i)), {}, [] {});
    const auto live = claimed<int>(other.claim<int>(key("live"), {}));
    const auto sizes = std::make_shared<std::vector<std::size_t>>();
    const auto before = std::make_shared<std::vector<std::size_t>>();
    stage.store.on_finish([=, store = stage.store](auto requests) {
        sizes->push_back(requests.size());
        before->push_back(store.renewals());
        outlast(lease / 3);  // until the live claim is due
        return Way::pass;
    });
    CHECK(eventually([&] { return guard.health().unrecorded == 0; }));
    stage.store.on_finish({});
    CHECK(*std::max_element(sizes->begin(), sizes->end()) == 100);
    CHECK(before->back() > before->front());
    CHECK(stage.log.of(EventKind::lease_lost).empty());
    CHECK(live.held());
}

TEST_CASE("a result that finds no room to wait is recorded without its value", "[late]") {
    Stage stage;
    SpyGuard guard = stage.guard({.result_bytes_max = std::size_t{40} << 20U});
    stage.store.on_finish([](auto) { return Way::refuse; });
    const std::string large(std::size_t{33} << 20U, 'x');
    for (const char* id : {"first", "second"}) (void)guard.run(key(id), {}, [&] { return large; });
    CHECK(guard.health().unrecorded == 2);
    CHECK(stage.log.of(EventKind::record_abandoned).empty());
    stage.store.on_finish({});
    CHECK(eventually([&] { return guard.health().unrecorded == 0; }));
    CHECK(guard.run(key("first"), {}, [] { return std::string(); }).value() == large);
    const auto second = guard.run(key("second"), {}, [] { return std::string(); });
    CHECK(second.replayed());
    CHECK(second.details().result == idem::ResultKind::no_room);
}

TEST_CASE("what is recorded late says for whom, and a late release that lost is no release",
          "[late]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    stage.store.on_finish([](auto) { return Way::refuse; });
    (void)guard.run(key("done"), {}, {.request_id = "r1"}, [] {});
    CHECK_THROWS_AS(guard.run(key("lost"), {}, {.request_id = "r2"}, []() -> int { throw 1; }),
                    int);
    REQUIRE(SpyGuard(stage.store).forget(key("lost")));
    stage.log.clear();
    stage.store.on_finish({});
    CHECK(eventually([&] { return guard.health().unrecorded == 0; }));
    const auto late = stage.log.of(EventKind::recorded_late);
    REQUIRE(late.size() == 1);
    CHECK(late[0].request_id == "r1");
    CHECK(stage.log.of(EventKind::released).empty());
    const auto lost = stage.log.of(EventKind::unrecorded);
    REQUIRE(lost.size() == 1);
    CHECK(lost[0].request_id == "r2");
    CHECK(lost[0].lost == idem::LostReason::forgotten);
}

}  // namespace late_finish_test
