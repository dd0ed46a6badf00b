// Goal: on SIGTERM nothing new begins, what runs may end, and what cannot end is left to its lease;
// and whoever asks for the guard's health learns what is wrong. Method: hold a call in each of its
// phases while the guard is drained.

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/features.hpp"

using namespace idem_test;
using namespace std::chrono_literals;

namespace drain_test {

using idem::EventKind;

constexpr idem::Duration for_ever = 10min;

[[nodiscard]] idem::Key held_elsewhere(Stage& stage) {
    (void)claimed<int>(SpyGuard(stage.store).claim<int>(key("elsewhere"), {})).detach(1h);
    return key("elsewhere");
}

[[nodiscard]] bool mentions(const std::string& text, const std::string& word) {
    return text.find(word) != std::string::npos;
}

TEST_CASE("a drained guard takes no new work and asks the store for none", "[drain]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    SpyGuard copy = guard;
    CHECK(guard.drain(for_ever).complete);
    CHECK(stage.log.kinds() == "drained");
    const auto before = stage.store.calls();
    bool ran = false;
    const std::vector<idem::BatchCall> calls{{key()}};
    CHECK_THROWS_AS(guard.run(key(), {}, [&] { ran = true; }), idem::UnavailableError);
    CHECK_THROWS_AS(guard.claim<int>(key(), {}), idem::UnavailableError);
    CHECK_THROWS_AS(
        guard.run_batch(calls, [&](idem::Execution&, std::size_t) { return ran = true; }),
        idem::UnavailableError);
    CHECK_THROWS_AS(copy.run(key(), {}, [&] { ran = true; }), idem::UnavailableError);
    CHECK_FALSE(ran);
    CHECK(stage.store.calls() == before);
    CHECK(stage.log.kinds() == "drained refused refused refused refused");
    // Another guard on the same store is another matter.
    CHECK(stage.guard().run(key(), {}, [] { return 1; }).executed());
}

TEST_CASE("drain waits for a running handler", "[drain]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    Gate begun;
    Gate end;
    auto running = std::async(std::launch::async, [&] {
        return guard.run(key(), {}, [&](idem::Execution& execution) {
            begun.open();
            end.wait();
            return execution.stop_token().stop_requested() ? 1 : 7;
        });
    });
    REQUIRE(begun.wait());
    auto report = std::async(std::launch::async, [&] { return guard.drain(for_ever); });
    REQUIRE(eventually([&] { return guard.health().draining; }));
    CHECK(report.wait_for(20ms) == std::future_status::timeout);
    CHECK(guard.health().running == 1);
    end.open();
    const auto left = report.get();
    CHECK(running.get().recorded());
    CHECK(left.complete);
    CHECK(left.running == 0);
    CHECK(left.unrecorded == 0);
    CHECK(stage.guard().run(key(), {}, [] { return 0; }).value() == 7);  // it was not asked to stop
}

TEST_CASE("at the deadline a handler is asked to stop, and keeps its lease", "[drain]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    std::optional<idem::DrainReport> report;
    const auto outcome = guard.run(key(), {}, [&](idem::Execution& execution) {
        const auto early = execution.stop_token();
        CHECK_FALSE(early.stop_requested());
        report = guard.drain(1ms);
        CHECK(early.stop_requested());
        CHECK(execution.stop_token().stop_requested());
        CHECK(execution.held());
        execution.checkpoint("as far as this");
        return 3;
    });
    REQUIRE(report);
    CHECK_FALSE(report->complete);
    CHECK(report->running == 1);
    CHECK(outcome.recorded());
    CHECK(guard.drain(for_ever).complete);
}

TEST_CASE("a loss after drain's stop is still told", "[drain][lost]") {
    Stage stage;
    SpyGuard guard = stage.guard({.lease = 900ms});
    auto claim = claimed<int>(guard.claim<int>(key(), {}));
    std::atomic<int> told = 0;
    claim.execution().on_lost(
        [&](idem::LostReason why) { told += why == idem::LostReason::forgotten ? 1 : 1'000; });
    const auto stop = claim.stop_token();
    CHECK_FALSE(guard.drain(1ms).complete);
    CHECK(stop.stop_requested());
    CHECK(told == 0);  // to be asked to stop is no loss
    CHECK(claim.held());
    REQUIRE(stage.guard().forget(key()));
    CHECK(eventually([&] { return told == 1; }));
    CHECK_FALSE(claim.held());
}

TEST_CASE("a call that waits for another holder gives up when the guard is drained", "[drain]") {
    Stage stage;
    const auto busy = held_elsewhere(stage);
    SpyGuard guard = stage.guard({.wait = for_ever});
    std::atomic<bool> ran = false;
    auto waiting = std::async(std::launch::async,
                              [&] { return guard.run(busy, {}, [&] { return ran = true; }); });
    const auto before = stage.store.claims();
    REQUIRE(eventually([&] { return stage.store.claims() >= before + 3; }));  // it polls
    CHECK(guard.drain(for_ever).complete);
    const auto outcome = waiting.get();
    CHECK(outcome.kind() == idem::OutcomeKind::in_progress);
    CHECK(outcome.retry_after() > 0s);
    CHECK_FALSE(ran);
    CHECK(guard.find(busy)->header.attempt == 1);
}

TEST_CASE("a claim that comes through while the guard is drained is given back uncounted",
          "[drain]") {
    const int form = GENERATE(0, 1, 2, 3);
    CAPTURE(form);
    Stage stage;
    SpyGuard guard = stage.guard();
    std::atomic<bool> ran = false;
    std::atomic<int> drains = 0;
    stage.store.on_claim([&](auto) {  // SIGTERM arrives while the request is on the wire
        if (drains++ == 0) CHECK_FALSE(guard.drain(1ms).complete);
        return Way::pass;
    });
    const std::vector<idem::BatchCall> calls{{key()}};
    const auto call = [&] {
        switch (form) {
            case 0: (void)guard.run(key(), {}, [&] { return ran = true; }); break;
            case 1: (void)guard.claim<bool>(key(), {}); break;
            case 2:
                (void)guard
                    .run_batch(calls, [&](idem::Execution&, std::size_t) { return ran = true; })
                    .at(0)
                    .get();
                break;
            default:
                (void)guard
                    .run_batch(calls,
                               [&](std::span<idem::Execution* const> all) {
                                   ran = true;
                                   return std::vector<int>(all.size());
                               })
                    .at(0)
                    .get();
        }
    };
    CHECK_THROWS_AS(call(), idem::UnavailableError);
    CHECK_FALSE(ran);
    const auto record = guard.find(key());
    REQUIRE(record);
    CHECK(record->header.state == idem::State::released);
    CHECK(record->header.attempt == 0);
    CHECK(guard.drain(for_ever).complete);
    CHECK(stage.guard().run(key(), {}, [] { return true; }).attempt() == 1);
}

TEST_CASE("a handler that drains its guard inside a batch leaves the rest unbegun", "[drain]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    const std::vector<idem::BatchCall> calls{{key("a")}, {key("b")}, {key("c")}};
    int runs = 0;
    const auto out = guard.run_batch(calls, [&](idem::Execution&, std::size_t) {
        if (++runs == 1) (void)guard.drain(1ms);
        return runs;
    });
    CHECK(runs == 1);
    CHECK(out[0].get().recorded());
    CHECK_THROWS_AS(out[1].get(), idem::UnavailableError);
    CHECK_THROWS_AS(out[2].get(), idem::UnavailableError);
    CHECK(guard.find(key("c"))->header.attempt == 0);
}

TEST_CASE("drain waits for open claims, and not for detached ones", "[drain]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    auto claim = claimed<int>(guard.claim<int>(key(), {}));
    const auto stop = claim.stop_token();
    const auto early = guard.drain(1ms);
    CHECK_FALSE(early.complete);
    CHECK(early.running == 1);
    CHECK(stop.stop_requested());
    auto report = std::async(std::launch::async, [&] { return guard.drain(for_ever); });
    CHECK(report.wait_for(20ms) == std::future_status::timeout);
    const int how = GENERATE(0, 1, 2);
    switch (how) {
        case 0: CHECK(std::move(claim).complete(1).recorded()); break;
        case 1: std::move(claim).release(); break;
        default: (void)std::move(claim).detach(1h);
    }
    CHECK(report.get().complete);
}

TEST_CASE("drain waits for results that are still to be recorded", "[drain]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    stage.store.on_finish([](auto) { return Way::refuse; });
    const auto outcome = guard.run(key(), {}, [] { return 7; });
    CHECK_FALSE(outcome.recorded());
    const auto early = guard.drain(1ms);
    CHECK_FALSE(early.complete);
    CHECK(early.running == 0);
    CHECK(early.unrecorded == 1);
    CHECK(guard.find(key())->header.state == idem::State::running);  // left to its lease

    auto report = std::async(std::launch::async, [&] { return guard.drain(for_ever); });
    CHECK(report.wait_for(20ms) == std::future_status::timeout);
    stage.store.on_finish({});
    CHECK(report.get().complete);
    CHECK(stage.guard().run(key(), {}, [] { return 0; }).value() == 7);
    CHECK(stage.log.of(EventKind::recorded_late).size() == 1);
}

// --- health -------------------------------------------------------------------------------------

TEST_CASE("health is silent while all is well, and counts what runs", "[health]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    CHECK(guard.health().ok());
    CHECK(guard.health().running == 0);
    (void)guard.run(key(), {}, [&] {
        CHECK(guard.health().running == 1);
        auto claim = claimed<int>(guard.claim<int>(key("open"), {}));
        CHECK(guard.health().running == 2);
    });
    CHECK(guard.health().running == 0);
    CHECK(guard.health().ok());
    CHECK_FALSE(guard.health().draining);
}

TEST_CASE("health says in words what is wrong, each by itself", "[health]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    stage.store.on_finish([](auto) { return Way::refuse; });
    (void)guard.run(key("a"), {}, [] { return 1; });
    (void)guard.run(key("b"), {}, [] { return 1; });
    auto health = guard.health();
    REQUIRE(health.problems.size() == 1);
    CHECK(mentions(health.problems[0], "2 finishes"));
    CHECK(health.unrecorded == 2);

    (void)guard.drain(1ms);
    stage.store.down(true);
    health = guard.health();
    CHECK_FALSE(health.ok());
    CHECK(health.draining);
    REQUIRE(health.problems.size() == 3);
    CHECK(mentions(health.problems[0], "store"));
    CHECK(mentions(health.problems[0], "the wire is cut"));  // in the store's own words
    CHECK(mentions(health.problems[1], "draining"));

    stage.store.down(false);
    stage.store.on_finish({});
    CHECK(guard.drain(for_ever).complete);
    CHECK(guard.health().problems.size() == 1);
}

// --- the cap ------------------------------------------------------------------------------------

[[nodiscard]] idem::Key in_scope(const std::string& scope, const std::string& id) {
    return {.scope = scope, .id = id};
}

TEST_CASE("the cap counts calls per scope, and refuses before the store is asked", "[cap]") {
    Stage stage;
    SpyGuard guard = stage.guard({.concurrency_max = 2});
    bool ran = false;
    (void)guard.run(in_scope("video", "1"), {}, [&] {
        (void)guard.run(in_scope("video", "2"), {}, [&] {
            const auto before = stage.store.calls();
            try {
                (void)guard.run(in_scope("video", "3"), {}, [&] { ran = true; });
                FAIL("the third one ran");
            } catch (const idem::UnavailableError& e) {
                CHECK(mentions(e.what(), "GuardOptions::concurrency_max"));
                CHECK_FALSE(e.may_have_applied());
            }
            CHECK_THROWS_AS(guard.claim<int>(in_scope("video", "4"), {}), idem::UnavailableError);
            CHECK(stage.store.calls() == before);
            CHECK(stage.log.kinds() == "refused refused");
            CHECK(guard.run(in_scope("audio", "1"), {}, [] { return 1; }).executed());
        });
        CHECK(guard.run(in_scope("video", "3"), {}, [] { return 1; }).executed());
    });
    CHECK_FALSE(ran);
    CHECK(guard.health().running == 0);
}

TEST_CASE("a place under the cap comes back however the call ends", "[cap]") {
    Stage stage;
    SpyGuard guard = stage.guard({.concurrency_max = 1});
    const auto fails = []() -> int { throw std::runtime_error("no"); };
    for (int round = 0; round < 3; ++round) {
        CHECK_THROWS_AS(guard.run(in_scope("video", "1"), {}, fails), std::runtime_error);
        stage.store.down(true);
        CHECK_THROWS_AS(guard.run(in_scope("video", "1"), {}, fails), idem::UnavailableError);
        stage.store.down(false);
    }
    CHECK(guard.run(in_scope("video", "1"), {}, [] { return 1; }).executed());
    CHECK(guard.run(in_scope("video", "1"), {}, [] { return 2; }).replayed());
}

TEST_CASE("an open claim keeps its place under the cap until it is finished", "[cap]") {
    Stage stage;
    SpyGuard guard = stage.guard({.concurrency_max = 1});
    const int how = GENERATE(0, 1, 2, 3);
    CAPTURE(how);
    {
        auto claim = claimed<int>(guard.claim<int>(in_scope("video", "1"), {}));
        CHECK_THROWS_AS(guard.run(in_scope("video", "2"), {}, [] { return 1; }),
                        idem::UnavailableError);
        CHECK(guard.run(in_scope("audio", "2"), {}, [] { return 1; }).executed());
        switch (how) {
            case 0: (void)std::move(claim).complete(1); break;
            case 1: std::move(claim).release(); break;
            case 2: (void)std::move(claim).detach(1h); break;
            default: break;
        }
    }
    CHECK(guard.run(in_scope("video", "2"), {}, [] { return 1; }).executed());
}

TEST_CASE("a batch takes a place for each of its items, or none", "[cap]") {
    Stage stage;
    SpyGuard guard = stage.guard({.concurrency_max = 2});
    const auto handler = [](idem::Execution&, std::size_t i) { return static_cast<int>(i); };
    const std::vector<idem::BatchCall> three{
        {in_scope("video", "1")}, {in_scope("video", "2")}, {in_scope("video", "3")}};
    CHECK_THROWS_AS(guard.run_batch(three, handler), idem::UnavailableError);
    CHECK(stage.store.calls() == 0);
    const std::vector<idem::BatchCall> two{
        {in_scope("video", "1")}, {in_scope("video", "2")}, {in_scope("video", "2")}};
    CHECK(guard.run_batch(two, handler)[1].get().executed());
    CHECK(guard.health().running == 0);
}

TEST_CASE("under load the cap is never exceeded", "[cap][race]") {
    Stage stage;
    SpyGuard guard = stage.guard({.concurrency_max = 3});
    std::atomic<int> running = 0;
    std::atomic<int> most = 0;
    std::atomic<int> refused = 0;
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < 200; ++i) {
                try {
                    const auto k = in_scope("video", std::to_string(t) + "." + std::to_string(i));
                    (void)guard.run(k, {}, [&] {
                        const int now = ++running;
                        for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);)
                            ;
                        std::this_thread::yield();
                        --running;
                    });
                } catch (const idem::UnavailableError&) {
                    ++refused;
                }
            }
        });
    }
    threads.clear();
    CHECK(most <= 3);
    CHECK(most >= 1);
    CHECK(guard.health().running == 0);
}

TEST_CASE("a drain without end waits, and stops nobody", "[drain]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    std::future<bool> drained;
    (void)guard.run(key(), {}, [&](idem::Execution& execution) {
        drained = std::async(std::launch::async,
                             [&] { return guard.drain(idem::Duration::max()).complete; });
        CHECK(eventually([&] { return guard.health().draining; }));
        CHECK(drained.wait_for(20ms) == std::future_status::timeout);
        CHECK_FALSE(execution.stop_token().stop_requested());
    });
    CHECK(drained.get());
}

}  // namespace drain_test
