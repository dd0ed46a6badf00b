// Goal: a holder that is not the holder any more learns it, once, with the reason, whatever the
// wire does; and a lost handle never comes back. Method: real leases, in which the store is made to
// say that the claim is lost, or to say nothing.

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/child.hpp"
#include "support/features.hpp"

using namespace idem_test;
using namespace std::chrono_literals;

namespace lease_loss_test {

using idem::EventKind;
using idem::LostReason;

constexpr idem::Duration lease = 900ms;  // renewed at 300 ms: time enough even where time is short

/// Who is told of a loss, and how often.
struct Told {
    std::atomic<int> count = 0;
    std::atomic<LostReason> reason = LostReason::none;

    void operator()(LostReason why) {
        reason = why;
        ++count;
    }
};

/// Makes the store say of the claim of `key()` what is asked.
void take_away(Stage& stage, LostReason how) {
    SpyGuard other(stage.store);
    switch (how) {
        case LostReason::other_owner: {
            stage.clock.advance(lease);
            auto taken = claimed<int>(other.claim<int>(key(), {}));
            REQUIRE(taken.takeover());
            (void)std::move(taken).detach(1h);
            break;
        }
        case LostReason::finished:
            stage.clock.advance(lease);
            REQUIRE(other.run(key(), {}, [] { return 2; }).recorded());
            break;
        case LostReason::forgotten: REQUIRE(other.forget(key())); break;
        case LostReason::gone: stage.clock.advance(lease + 24h); break;
        default: stage.store.on_renew([](auto) { return Way::refuse; });
    }
}

TEST_CASE("a lost lease is told exactly once, with its reason", "[heartbeat][lost]") {
    const auto how = GENERATE(LostReason::other_owner, LostReason::finished, LostReason::forgotten,
                              LostReason::gone, LostReason::lapsed);
    CAPTURE(to_string(how));
    Stage stage;
    SpyGuard guard = stage.guard({.lease = lease});
    Told told;
    auto claim = claimed<int>(guard.claim<int>(key(), {}));
    claim.execution().on_lost([&](LostReason why) { told(why); });
    const auto stop = claim.stop_token();
    CHECK(claim.held());
    take_away(stage, how);

    REQUIRE(eventually([&] { return told.count > 0; }));
    CHECK(told.reason == how);
    CHECK(stop.stop_requested());
    CHECK_FALSE(claim.held());
    CHECK(stage.log.of(EventKind::lease_lost).size() == 1);
    CHECK(stage.log.of(EventKind::lease_lost).at(0).lost == how);
    CHECK(stage.log.of(EventKind::lease_lost).at(0).fence == claim.fence());

    // The store works again, and others are renewed: this handle stays lost and is told no more.
    auto renewed = std::make_shared<std::atomic<int>>(0);
    stage.store.on_renew([=](std::span<const idem::RenewRequest> requests) {
        for (const auto& request : requests)
            renewed->fetch_add(request.key == idem::KeyView(idem::Component::call, key()) ? 1'000
                                                                                          : 1);
        return Way::pass;
    });
    auto next = claimed<int>(guard.claim<int>(key("next"), {}));
    REQUIRE(eventually([&] { return renewed->load() >= 2; }));
    CHECK(renewed->load() < 1'000);  // nobody renews what is lost
    CHECK(next.held());
    CHECK_FALSE(claim.held());
    CHECK(told.count == 1);
    Told late;
    claim.execution().on_lost([&](LostReason why) { late(why); });
    CHECK(late.count == 1);  // who asks later is told at once
    CHECK(late.reason == how);
    (void)std::move(next).release();
}

// Answers a claim as if only so much of its lease were left.
class NearTheEnd : public idem::MemoryStore {
public:
    NearTheEnd(const idem::testing::ManualClock& clock, idem::Duration left)
        : MemoryStore({.clock = clock}), left_(left) {}

    void claim(std::span<const idem::ClaimRequest> requests, std::span<idem::ClaimReply> replies) {
        MemoryStore::claim(requests, replies);
        for (auto& reply : replies) reply.lease_left = left_;
    }

private:
    idem::Duration left_;
};

TEST_CASE("a renewed claim is given up a tenth of its lease before the lease ends",
          "[heartbeat][lost]") {
    // Hours, of which none passes: nothing here depends on how fast this machine is.
    const auto held_with = [](idem::Duration left, bool heartbeat) {
        const idem::testing::ManualClock clock;
        const NearTheEnd store(clock, left);
        idem::IdempotencyGuard<NearTheEnd> guard(store, {.lease = 100h, .heartbeat = heartbeat});
        auto claim = claimed<int>(guard.claim<int>(key(), {}));
        const bool held = claim.held();
        CHECK(guard.find(key())->lease_left > 0h);  // nobody else may begin yet
        std::move(claim).release();
        return held;
    };
    CHECK(held_with(11h, true));
    CHECK_FALSE(held_with(9h, true));
    CHECK(held_with(9h, false));  // who does not renew has asked for the whole lease
}

TEST_CASE("after a lapse the same process takes the key again, and that is renewed",
          "[heartbeat][lost]") {
    Stage stage;
    SpyGuard guard = stage.guard({.lease = lease});
    auto lapsed = claimed<int>(guard.claim<int>(key(), {}));
    stage.store.on_renew([](auto) { return Way::refuse; });
    REQUIRE(eventually([&] { return !lapsed.held(); }));
    stage.store.on_renew({});
    stage.clock.advance(lease);
    auto again = claimed<int>(guard.claim<int>(key(), {}));
    CHECK(again.takeover());
    CHECK(again.fence() > lapsed.fence());
    const auto seen = stage.store.renewals();
    CHECK(eventually([&] { return stage.store.renewals() >= seen + 3; }));
    CHECK_FALSE(lapsed.held());
    CHECK(std::move(lapsed).complete(1).details().lost == LostReason::other_owner);
    CHECK(std::move(again).complete(2).recorded());
}

TEST_CASE("a store that hangs does not keep the loss from being told", "[heartbeat][lost]") {
    Stage stage;
    auto on_wire = std::make_shared<Gate>();
    auto answer = std::make_shared<Gate>();
    SpyGuard guard = stage.guard({.lease = 2s});  // a machine that stands still for a third of it
    auto told = std::make_shared<Told>();
    const std::shared_ptr<void> whatever_comes(nullptr, [=](void*) { answer->open(); });
    stage.store.on_renew([=](auto) {
        on_wire->open();
        while (!answer->wait()) {  // longer than the check below has patience
        }
        return Way::pass;
    });
    auto claim = claimed<int>(guard.claim<int>(key(), {}));
    const auto stop = claim.stop_token();
    claim.execution().on_lost([told](LostReason why) { (*told)(why); });
    REQUIRE(on_wire->wait());
    CHECK(eventually([&] { return told->count == 1; }));  // and the request is still on the wire
    CHECK(told->reason == LostReason::lapsed);
    CHECK(stop.stop_requested());
    CHECK_FALSE(claim.held());
    answer->open();
    stage.store.on_renew({});
    const auto seen = stage.store.renewals();
    auto next = claimed<int>(guard.claim<int>(key("next"), {}));
    CHECK(eventually([&] { return stage.store.renewals() > seen; }));
    CHECK(told->count == 1);
    CHECK_FALSE(claim.held());  // the late answer said yes; lost is lost
}

TEST_CASE("a loss callback may end its own claim", "[heartbeat][lost]") {
    Stage stage;
    SpyGuard guard = stage.guard({.lease = lease});
    std::optional<idem::Claim<int>> claim(claimed<int>(guard.claim<int>(key(), {})));
    Gate ended;
    claim->execution().on_lost([&, big = std::string(1'000, 'x')](LostReason) {
        claim.reset();  // destroys this very callback while it runs
        ended.open();
    });
    REQUIRE(SpyGuard(stage.store).forget(key()));
    CHECK(ended.wait());
}

TEST_CASE("leaving waits for a loss callback that is running", "[heartbeat][lost]") {
    Stage stage;
    SpyGuard guard = stage.guard({.lease = lease});
    auto claim = claimed<int>(guard.claim<int>(key(), {}));
    Gate begun;
    std::atomic<bool> over = false;
    claim.execution().on_lost([&](LostReason) {
        begun.open();
        idem_test::outlast(20ms);
        over = true;
    });
    REQUIRE(SpyGuard(stage.store).forget(key()));
    REQUIRE(begun.wait());
    (void)std::move(claim).complete(1);
    CHECK(over);  // what the callback refers to may go from here on
}

TEST_CASE("a loss callback that throws ends neither the process nor the others",
          "[heartbeat][lost]") {
    Stage stage;
    SpyGuard guard = stage.guard({.lease = lease});
    auto claim = claimed<int>(guard.claim<int>(key(), {}));
    auto other = claimed<int>(guard.claim<int>(key("other"), {}));
    Told told;
    Told other_told;
    claim.execution().on_lost([](LostReason) { throw std::runtime_error("from the callback"); });
    claim.execution().on_lost([&](LostReason why) { told(why); });
    other.execution().on_lost([&](LostReason why) { other_told(why); });
    REQUIRE(guard.forget(key()));
    REQUIRE(guard.forget(key("other")));
    CHECK(eventually([&] { return told.count == 1 && other_told.count == 1; }));
    CHECK_THROWS_AS(claim.execution().checkpoint("x"), idem::LeaseLostError);
}

TEST_CASE("who has stopped the heartbeat is told at the end of the lease", "[heartbeat][lost]") {
    Stage stage;
    SpyGuard guard = stage.guard({.lease = 300ms});
    auto claim = claimed<int>(guard.claim<int>(key(), {}));
    claim.execution().stop_heartbeat();
    Told told;
    claim.execution().on_lost([&](LostReason why) { told(why); });
    const auto stop = claim.stop_token();
    CHECK(eventually([&] { return told.count == 1; }));
    CHECK(told.reason == LostReason::lapsed);
    CHECK(eventually([&] { return stop.stop_requested(); }));
    CHECK_FALSE(claim.held());
    CHECK(stage.store.renewals() == 0);
}

TEST_CASE("without a heartbeat held() still tells the truth", "[heartbeat][lost]") {
    Stage stage;
    SpyGuard guard = stage.guard({.lease = 20ms, .heartbeat = false});
    auto claim = claimed<int>(guard.claim<int>(key(), {}));
    const auto stop = claim.stop_token();
    outlast(20ms);
    CHECK_FALSE(claim.held());
    // Whoever is first to see it tells; that may be the background, which is still at it.
    CHECK(eventually([&] { return stop.stop_requested(); }));
    CHECK(eventually([&] { return stage.log.of(EventKind::lease_lost).size() == 1; }));
}

TEST_CASE("a lease counts from before its request was sent", "[heartbeat][lost]") {
    Stage stage;
    stage.store.on_claim([](auto) {
        outlast(30ms);  // on its way
        return Way::pass;
    });
    SpyGuard guard = stage.guard({.lease = 30ms, .heartbeat = false});
    CHECK_FALSE(claimed<int>(guard.claim<int>(key("open"), {})).held());
    // And nothing begins under a lease that is over: somebody else may be at it already.
    bool ran = false;
    CHECK_THROWS_AS(guard.run(key(), {}, [&] { return ran = true; }), idem::UnavailableError);
    CHECK_FALSE(ran);
    CHECK(guard.find(key())->header.state == idem::State::released);
    CHECK(guard.find(key())->header.attempt == 0);
}

TEST_CASE("a lease known to be lost costs at most one request to leave", "[heartbeat][lost]") {
    const auto how = GENERATE(LostReason::lapsed, LostReason::forgotten);
    CAPTURE(to_string(how));
    const auto leave = GENERATE(0, 1, 2, 3);
    CAPTURE(leave);
    Stage stage;
    SpyGuard guard = stage.guard({.lease = 60ms});
    auto claim = claimed<int>(guard.claim<int>(key(), {}));
    take_away(stage, how);
    REQUIRE(eventually([&] { return !claim.held(); }));
    stage.store.down(true);  // no answer: nothing may be tried again
    const auto before = stage.store.finishes();
    switch (leave) {
        case 0: std::move(claim).release(); break;
        case 1: std::move(claim).fail({idem::FailureClass::final, "no", "never"}); break;
        case 2: std::move(claim).quarantine(); break;
        default: {
            auto gone = std::move(claim);
        }
    }
    CHECK(stage.store.finishes() <= before + 1);
    CHECK(guard.health().unrecorded == 0);
    stage.store.down(false);
}

TEST_CASE("a claim that is lost here is not detached or extended", "[heartbeat][lost]") {
    Stage stage;
    SpyGuard guard = stage.guard({.lease = 20ms, .heartbeat = false});
    auto claim = claimed<int>(guard.claim<int>(key(), {}));
    outlast(20ms);
    REQUIRE_FALSE(claim.held());
    // The store would still say yes: its clock stands. Local loss is final for the handle.
    const auto before = stage.store.renewals();
    try {
        (void)std::move(claim).detach(1h);
        FAIL("it was detached");
    } catch (const idem::LeaseLostError& e) {
        CHECK(e.reason() == LostReason::lapsed);
    }
    CHECK(stage.store.renewals() == before);
}

// --- checkpoints --------------------------------------------------------------------------------

TEST_CASE("a checkpoint and a resource id are handed to whoever takes over", "[checkpoint]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    const std::string bytes("part 7\0of 9", 11);
    {
        auto vanishes = claimed<int>(guard.claim<int>(key(), {}));
        CHECK(vanishes.execution().checkpoint().empty());
        vanishes.execution().resource("video/7");
        vanishes.execution().checkpoint(bytes);
        CHECK(vanishes.execution().checkpoint() == bytes);
        (void)std::move(vanishes).detach(1s);
    }
    stage.clock.advance(31s);
    const auto outcome = guard.run(key(), {}, [&](idem::Execution& execution) {
        CHECK(execution.takeover());
        CHECK(execution.checkpoint() == bytes);
        CHECK(execution.resource() == "video/7");
        return 1;
    });
    CHECK(outcome.takeover());
    CHECK(outcome.resource_id() == "video/7");
    const auto replay = guard.run(key(), {}, [] { return 2; });
    CHECK(replay.replayed());
    CHECK(replay.resource_id() == "video/7");
}

TEST_CASE("a rolled-back attempt hands its checkpoint to the next one", "[checkpoint]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    const auto request = idem::Fingerprint::of_bytes("a");
    const auto fails = [](idem::Execution& execution) -> int {
        execution.checkpoint("half");
        throw std::runtime_error("try again");
    };
    CHECK_THROWS_AS(guard.run(key(), request, fails), std::runtime_error);
    std::string seen;
    bool takeover = true;
    CHECK_THROWS_AS(guard.run(key(), request,
                              [&](idem::Execution& execution) -> int {
                                  seen = execution.checkpoint();
                                  takeover = execution.takeover();
                                  throw std::runtime_error("again");
                              }),
                    std::runtime_error);
    CHECK(seen == "half");
    CHECK_FALSE(takeover);
    // A corrected request must not go on from another one's half-done work.
    (void)guard.run(key(), idem::Fingerprint::of_bytes("b"), [&](idem::Execution& execution) {
        seen = execution.checkpoint();
        return 1;
    });
    CHECK(seen.empty());
}

TEST_CASE("a checkpoint renews the lease", "[checkpoint]") {
    Stage stage;
    SpyGuard guard = stage.guard({.lease = 10s});
    auto claim = claimed<int>(guard.claim<int>(key(), {}));
    stage.clock.advance(7s);
    claim.execution().checkpoint("on");
    CHECK(guard.find(key())->lease_left == 10s);
    CHECK(guard.find(key())->payload.checkpoint == "on");
    (void)std::move(claim).release();
}

TEST_CASE("a checkpoint of a lost claim says why and notes nothing", "[checkpoint]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    auto claim = claimed<int>(guard.claim<int>(key(), {}));
    stage.clock.advance(31s);
    auto other = claimed<int>(SpyGuard(stage.store).claim<int>(key(), {}));
    const auto stop = claim.stop_token();
    try {
        claim.execution().checkpoint("mine");
        FAIL("it was noted");
    } catch (const idem::LeaseLostError& e) {
        CHECK(e.reason() == LostReason::other_owner);
    }
    CHECK(stop.stop_requested());
    CHECK_FALSE(claim.held());
    CHECK(guard.find(key())->payload.checkpoint.empty());
    CHECK(claim.execution().checkpoint().empty());
    const auto asked = stage.store.renewals();
    CHECK_THROWS_AS(claim.execution().checkpoint("again"), idem::LeaseLostError);
    CHECK(stage.store.renewals() == asked);  // known to be lost: the store is not asked
}

TEST_CASE("a checkpoint that does not reach the store is not noted, and the claim stands",
          "[checkpoint]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    auto claim = claimed<int>(guard.claim<int>(key(), {}));
    stage.store.down(true);
    CHECK_THROWS_AS(claim.execution().checkpoint("x"), idem::UnavailableError);
    stage.store.down(false);
    CHECK(claim.execution().checkpoint().empty());
    CHECK(claim.held());
    claim.execution().checkpoint("y");
    CHECK(guard.find(key())->payload.checkpoint == "y");
    CHECK(std::move(claim).complete(1).recorded());
}

TEST_CASE("without a heartbeat the end of the lease is told too, unasked", "[heartbeat][lost]") {
    Stage stage;
    SpyGuard guard = stage.guard({.lease = 20ms, .heartbeat = false});
    Gate told;
    const auto outcome = guard.run(key(), {}, [&](idem::Execution& execution) {
        Gate stopped;
        const std::stop_callback stop(execution.stop_token(), [&] { stopped.open(); });
        execution.on_lost([&](LostReason) { told.open(); });
        return stopped.wait() && told.wait();
    });
    CHECK(outcome.value());
}

TEST_CASE("a loss callback may end the process", "[heartbeat][lost][fork]") {
    CHECK(in_child([] {
              Stage stage;
              SpyGuard guard = stage.guard({.lease = lease});
              auto claim = claimed<int>(guard.claim<int>(key(), {}));
              claim.execution().on_lost([](LostReason) { std::exit(0); });
              (void)SpyGuard(stage.store).forget(key());
              Gate never;
              return never.wait();
          }) == "");
}

}  // namespace lease_loss_test
