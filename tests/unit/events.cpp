// Goal: every decision is one event that says where, what, who and how long, and seeing changes
// nothing. Method: one scene per kind, and the whole sequence of what it told.

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <idem/token.hpp>

#include "support/catch.hpp"
#include "support/features.hpp"

using namespace idem_test;
using namespace std::chrono_literals;

namespace events_test {

using idem::EventKind;
using idem::Execution;
using idem::Fingerprint;
using idem::LostReason;
using idem::RunOptions;

const idem::KeyView call_key(idem::Component::call, "order.place", "42", "acme");

/// A scene: what is made ready without being seen, and one call that is.
struct Scene {
    std::string name;
    std::string told;  ///< The whole sequence.
    std::function<void(Stage&)> before{};
    std::function<void(Stage&, SpyGuard&)> call{};
    idem::GuardOptions options{};
};

void run(SpyGuard& guard, const std::function<int(Execution&)>& handler,
         const Fingerprint& fingerprint = {}, RunOptions options = {}) {
    options.request_id = "req-7";
    try {
        (void)guard.run(key(), fingerprint, options, handler);
    } catch (const std::exception&) {
    }
}

int one(Execution&) {
    return 1;
}
int busy(Execution&) {
    throw std::runtime_error("busy");
}
int never(Execution&) {
    throw idem::FinalError("422", "never");
}
int doubt(Execution&) {
    throw idem::UnknownOutcomeError("504");
}

/// A guard that nobody watches, for what went before.
void first(Stage& stage, const std::function<int(Execution&)>& handler) {
    SpyGuard quiet(stage.store);
    try {
        (void)quiet.run(key(), Fingerprint::of_bytes("a"), handler);
    } catch (const std::exception&) {
    }
}

void hold_it(Stage& stage, idem::Duration lease) {
    (void)claimed<int>(SpyGuard(stage.store).claim<int>(key(), {})).detach(lease);
}

void lapse(Stage& stage) {
    hold_it(stage, 1s);
    stage.clock.advance(31s);
}

std::vector<Scene> scenes() {
    const auto nothing = [](Stage&) {};
    const auto just = [](std::function<int(Execution&)> handler) {
        return [handler = std::move(handler)](Stage&, SpyGuard& guard) { run(guard, handler); };
    };
    const auto other = [](Stage&, SpyGuard& guard) { run(guard, one, Fingerprint::of_bytes("b")); };
    const auto redeem = [](Stage&, SpyGuard& guard) { run(guard, one, {}, {.redeem_only = true}); };
    const auto cancel = [](Stage&, SpyGuard& guard) {
        std::stop_source stop;
        stop.request_stop();
        run(guard, one, {}, {.wait = 1h, .stop_token = stop.get_token()});
    };
    const auto away = [](Stage& stage) { stage.store.down(true); };
    const auto after = [](std::function<int(Execution&)> handler) {
        return [handler = std::move(handler)](Stage& stage) { first(stage, handler); };
    };
    const idem::GuardOptions holds{.orphan = idem::Orphan::hold};
    const idem::GuardOptions unprotected{.store_down = idem::StoreDown::run_unprotected};
    return {
        {"executed", "executed", nothing, just(one)},
        {"released", "released", nothing, just(busy)},
        {"failed now", "failed", nothing, just(never)},
        {"unknown now", "unknown", nothing, just(doubt)},
        {"replayed", "replayed", after(one), just(one)},
        {"failed before", "failed", after(never), just(one)},
        {"unknown before", "unknown", after(doubt), just(one)},
        {"mismatch", "mismatch", after(one), other},
        {"in progress", "in_progress", [](Stage& s) { hold_it(s, 1h); }, just(one)},
        {"cancelled", "cancelled", [](Stage& s) { hold_it(s, 1h); }, cancel},
        {"absent", "absent", nothing, redeem},
        {"takeover", "takeover executed", lapse, just(one)},
        {"held orphan", "unknown", lapse, just(one), holds},
        {"too large", "result_not_kept executed", nothing, just(one), {.result_bytes_max = 1}},
        {"store away", "store_error", away, just(one)},
        {"unprotected", "store_error ran_unprotected", away, just(one), unprotected},
        {"unprotected and failed", "store_error ran_unprotected", away, just(busy), unprotected},
    };
}

TEST_CASE("each call tells one decision, with all that belongs to it", "[events]") {
    for (const Scene& scene : scenes()) {
        CAPTURE(scene.name);
        Stage stage;
        scene.before(stage);
        SpyGuard guard = stage.guard(scene.options);
        stage.store.on_claim([](auto) {
            idem_test::outlast(1ms);
            return Way::pass;
        });
        scene.call(stage, guard);
        CHECK(stage.log.kinds() == scene.told);
        for (const auto& event : stage.log.all()) {
            CHECK(event.component == idem::Component::call);
            CHECK(event.scope == "order.place");
            CHECK(event.tenant == "acme");
            CHECK(event.key_hash == idem::key_hash(call_key));
            CHECK(event.raw_id.empty());
            CHECK(event.request_id == "req-7");
            CHECK(event.duration >= 1ms);
        }
    }
}

TEST_CASE("what ran is told with fence and attempt, and what failed with its class", "[events]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    const auto last = [&] { return stage.log.all().back(); };
    run(guard, busy);
    CHECK(last().fence == guard.find(key())->header.fence);
    CHECK(last().attempt == 1);
    CHECK(last().failure == idem::FailureClass::retryable);
    CHECK(last().detail == "busy");
    run(guard, one);
    CHECK(last().fence == guard.find(key())->header.fence);
    CHECK(last().attempt == 2);
    CHECK(last().failure == idem::FailureClass::none);
    run(guard, one);
    CHECK(last().kind == EventKind::replayed);
    CHECK(last().attempt == 2);
}

TEST_CASE("a duration runs from the begin of the call to the decision", "[events]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    const auto begin = idem::LocalClock::now();
    run(guard, [](Execution&) {
        idem_test::outlast(5ms);
        return 1;
    });
    const auto whole = idem::LocalClock::now() - begin;
    CHECK(stage.log.all().at(0).duration >= 5ms);
    CHECK(stage.log.all().at(0).duration <= whole);
}

TEST_CASE("a result that the store does not take is one event, and one when it does", "[events]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    stage.store.on_finish([](auto) { return Way::refuse; });
    run(guard, one);
    CHECK(stage.log.kinds() == "unrecorded");
    CHECK(stage.log.all().at(0).attempt == 1);
    CHECK(stage.log.all().at(0).request_id == "req-7");
    CHECK(stage.log.all().at(0).detail == "the wire is cut");
    stage.store.on_finish({});
    REQUIRE(eventually([&] { return guard.health().unrecorded == 0; }));
    CHECK(stage.log.kinds() == "unrecorded recorded_late");
    CHECK(stage.log.all().at(1).fence == stage.log.all().at(0).fence);
    CHECK(stage.log.all().at(1).key_hash == idem::key_hash(call_key));
}

TEST_CASE("a rollback that does not reach the store is told as such, then as done", "[events]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    stage.store.on_finish([](auto) { return Way::refuse; });
    run(guard, busy);
    CHECK(stage.log.kinds() == "rollback_failed");
    stage.store.on_finish({});
    REQUIRE(eventually([&] { return guard.health().unrecorded == 0; }));
    CHECK(stage.log.kinds() == "rollback_failed released");
}

TEST_CASE("a result that is given up is told", "[events]") {
    Stage stage;
    SpyGuard guard = stage.guard({.record_retry = 1us});
    stage.store.on_finish([](auto) { return Way::refuse; });
    run(guard, one);
    REQUIRE(eventually([&] { return guard.health().unrecorded == 0; }));
    CHECK(stage.log.kinds() == "unrecorded record_abandoned");
    stage.store.on_finish({});
}

TEST_CASE("a claim that was taken away is told with the reason", "[events]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    run(guard, [&](Execution& execution) {
        stage.clock.advance(31s);
        (void)claimed<int>(SpyGuard(stage.store).claim<int>(key(), {})).detach(1h);
        CHECK_THROWS_AS(execution.checkpoint("x"), idem::LeaseLostError);
        return 1;
    });
    CHECK(stage.log.kinds() == "lease_lost unrecorded");
    for (const auto& event : stage.log.all()) {
        CHECK(event.lost == LostReason::other_owner);
        CHECK(event.attempt == 1);
        CHECK(event.request_id == "req-7");
        CHECK(event.fence > 0);
    }
}

TEST_CASE("garbage under a key is an event and an error", "[events]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    first(stage, one);
    CHECK_THROWS_AS(guard.run(key(), {}, [] { return std::string(); }), idem::CodecError);
    CHECK(stage.log.kinds() == "schema_error");
}

TEST_CASE("what is done to a key by hand is told", "[events]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    first(stage, doubt);
    (void)guard.resolve(key(), guard.find(key())->header.fence, idem::Resolution::rerun());
    (void)guard.forget(key());
    (void)guard.forget(key());  // there is none any more
    (void)guard.drain(1ms);
    CHECK(stage.log.kinds() == "resolved forgotten drained");
    CHECK(stage.log.all().at(0).key_hash == idem::key_hash(call_key));
    CHECK(stage.log.all().at(2).key_hash.empty());
}

TEST_CASE("two-phase claims and batches tell the same as calls", "[events]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    const RunOptions options{.request_id = "req-8"};
    lapse(stage);
    {
        std::string gone = "req-8";  // the caller's bytes need not outlive the call
        RunOptions passing{.request_id = gone};
        auto claim = claimed<int>(guard.claim<int>(key(), {}, passing));
        passing.request_id.assign(5, 'x');
        (void)std::move(claim).complete(1);
    }
    (void)guard.claim<int>(key(), {}, options);
    CHECK(stage.log.kinds() == "takeover claimed executed replayed");
    for (const auto& event : stage.log.all()) CHECK(event.request_id == "req-8");
    stage.log.clear();
    { auto dropped = claimed<int>(guard.claim<int>(key("dropped"), {}, options)); }
    CHECK(stage.log.kinds() == "claimed released");
    stage.log.clear();
    const auto a = Fingerprint::of_bytes("a");
    const std::vector<idem::BatchCall> calls{{key("a"), a, "1"},
                                             {key("a"), a, "2"},
                                             {key("a"), Fingerprint::of_bytes("b"), "3"},
                                             {key("42"), {}, "4"}};
    (void)guard.run_batch(calls, [](Execution&, std::size_t) { return 1; });
    CHECK(stage.log.kinds() == "replayed executed replayed mismatch");
    CHECK(stage.log.all().at(0).request_id == "4");
    CHECK(stage.log.all().at(1).request_id == "1");
    CHECK(stage.log.all().at(2).request_id == "2");
    CHECK(stage.log.all().at(3).request_id == "3");
}

TEST_CASE("an expired token is told", "[events]") {
    Stage stage;
    idem::TokenIssuer tokens(stage.store, "order.place",
                             {.validity = 1s, .guard = {.events = stage.log.observer()}});
    const auto token = tokens.issue("acme");
    stage.clock.advance(1s);
    (void)tokens.redeem(token, "acme", {}, [] { return 1; });
    CHECK(stage.log.kinds() == "expired");
    CHECK(stage.log.all().at(0).component == idem::Component::token);
}

TEST_CASE("ids stay out of events unless they are asked for", "[events]") {
    Stage stage;
    SpyGuard guard = stage.guard({.event_raw_ids = true});
    run(guard, one);
    CHECK(stage.log.all().at(0).raw_id == "42");
    CHECK(stage.log.all().at(0).key_hash == idem::key_hash(call_key));
}

TEST_CASE("an observer that throws changes nothing", "[events]") {
    for (const Scene& scene : scenes()) {
        CAPTURE(scene.name);
        const auto outcome_with = [&](idem::Observer observer) {
            Stage stage;
            scene.before(stage);
            auto options = scene.options;
            options.events = std::move(observer);
            SpyGuard guard = stage.guard(options);
            scene.call(stage, guard);
            stage.store.down(false);
            const auto left = guard.find(key());
            auto told = std::pair(left.has_value(), left ? left->header.state : idem::State{});
            return told;
        };
        int seen = 0;
        const auto quiet = outcome_with([](const idem::Event&) {});
        CHECK(outcome_with([&](const idem::Event&) {
                  ++seen;
                  throw std::runtime_error("the log is full");
              }) == quiet);
        CHECK(outcome_with([](const idem::Event&) { throw 42; }) == quiet);
        CHECK(seen > 0);
    }
}

TEST_CASE("an observer may ask the guard", "[events]") {
    Stage stage;
    std::atomic<int> found = 0;
    SpyGuard* asked = nullptr;
    SpyGuard guard = stage.guard({.events = [&](const idem::Event&) {
        found += asked != nullptr && asked->find(key()) ? 1 : 0;
    }});
    asked = &guard;
    run(guard, one);
    CHECK(found == 1);
}

TEST_CASE("a claim that goes its own way is told at each turn", "[events]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    const auto ticket = claimed<int>(guard.claim<int>(key(), {})).detach(1h);
    (void)guard.resume<int>(ticket).complete(1);
    CHECK(stage.log.kinds() == "claimed detached resumed executed");
    for (const auto& event : stage.log.all()) CHECK(event.fence == ticket.fence());
}

TEST_CASE("a store that cannot be asked is told for every question", "[events]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    stage.store.down(true);
    CHECK_THROWS_AS(guard.find(key()), idem::UnavailableError);
    CHECK_THROWS_AS(guard.forget(key()), idem::UnavailableError);
    CHECK_THROWS_AS(guard.list(), idem::UnavailableError);
    CHECK_THROWS_AS(guard.resolve(key(), 1, idem::Resolution::rerun()), idem::UnavailableError);
    CHECK(stage.log.kinds() == "store_error store_error store_error store_error");
}

}  // namespace events_test
