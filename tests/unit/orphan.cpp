// Goal: what a vanished holder left behind is run again, held for a person or asked about, as the
// stricter of the policies says, and a job that kills its workers ends. Method: holders that detach
// and never come back, on a clock that is moved by hand.

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/expected.hpp"
#include "support/features.hpp"

using namespace idem_test;
using namespace std::chrono_literals;

namespace orphan_test {

using idem::EventKind;
using idem::Execution;
using idem::FailureClass;
using idem::GuardOptions;
using idem::Key;
using idem::Orphan;
using idem::OutcomeKind;
using idem::State;
using idem::Verdict;

/// A holder takes the key by the guard's policy and vanishes; its lease is over.
idem::Ticket vanish(Stage& stage, SpyGuard& guard, const Key& k = key()) {
    auto ticket = claimed<int>(guard.claim<int>(k, {})).detach(1s);
    stage.clock.advance(31s);
    return ticket;
}

/// What became of the late holder's result: whether it was recorded.
bool late_truth(Stage& stage, const idem::Ticket& ticket, idem::FinishKind kind) {
    std::string bytes;
    idem::Codec<int>::encode(77, bytes);
    idem::FinishRequest request;
    request.key = idem::KeyView(idem::Component::call, ticket.key());
    request.owner = ticket.owner();
    request.fence = ticket.fence();
    request.kind = kind;
    request.lease = 30s;
    request.retention = 24h;
    request.held_retention = 24h * 30;
    request.result_kind = idem::ResultKind::value;
    request.codec = idem::codec_id<int>();
    request.result = bytes;
    request.failure = FailureClass::final;
    return !idem::finish_one(stage.store, request).lost;
}

TEST_CASE("rerun: the next caller takes over with a higher fence", "[orphan]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    const auto gone = vanish(stage, guard);
    stage.log.clear();
    const auto outcome = guard.run(key(), {}, [&](Execution& execution) {
        CHECK(execution.takeover());
        CHECK(execution.attempt() == 2);
        CHECK(execution.fence() > gone.fence());
        return 5;
    });
    CHECK(outcome.takeover());
    CHECK(outcome.recorded());
    CHECK(guard.find(key())->header.crashes == 1);
    CHECK(stage.log.kinds() == "takeover executed");
    CHECK_FALSE(late_truth(stage, gone, idem::FinishKind::complete));
    CHECK(guard.run(key(), {}, [] { return 0; }).value() == 5);
}

TEST_CASE("one lapsed holder is taken over by one caller", "[orphan][race]") {
    for (int round = 0; round < 50; ++round) {
        Stage stage;
        SpyGuard guard = stage.guard();
        (void)vanish(stage, guard);
        std::atomic<int> ran = 0;
        std::vector<std::jthread> threads;
        for (int t = 0; t < 4; ++t)
            threads.emplace_back([&] { (void)guard.run(key(), {}, [&] { return ++ran; }); });
        threads.clear();
        CHECK(ran == 1);
    }
}

TEST_CASE("hold: nobody runs it until a person has said what happened", "[orphan]") {
    Stage stage;
    SpyGuard guard = stage.guard({.orphan = Orphan::hold});
    (void)vanish(stage, guard);
    stage.log.clear();
    bool ran = false;
    for (int i = 0; i < 3; ++i) {
        const auto outcome = guard.run(key(), {}, [&] {
            ran = true;
            return 1;
        });
        CHECK(outcome.kind() == OutcomeKind::unknown);
        CHECK_FALSE(outcome.has_value());
    }
    CHECK_FALSE(ran);
    CHECK(stage.log.kinds() == "unknown unknown unknown");
    stage.clock.advance(24h * 29);  // longer than any answer is kept
    CHECK(guard.run(key(), {}, [] { return 1; }).kind() == OutcomeKind::unknown);
}

TEST_CASE("held keys are found and listed", "[orphan]") {
    Stage stage;
    SpyGuard guard = stage.guard({.orphan = Orphan::hold});
    for (const char* id : {"a", "b"}) {
        (void)vanish(stage, guard, key(id));
        (void)guard.run(key(id), {}, [] { return 1; });
    }
    (void)guard.run(key("fine"), {}, [] { return 1; });
    (void)vanish(stage, guard, key("lapsed"));
    const auto held = guard.list({.state = State::unknown});
    REQUIRE(held.records.size() == 2);
    for (const auto& record : held.records) {
        CHECK(record.component == idem::Component::call);
        CHECK((record.key == key("a") || record.key == key("b")));
        CHECK(record.header.state == State::unknown);
        CHECK(record.header.crashes == 1);
    }
    const auto stuck = guard.list({.lapsed = true});
    REQUIRE(stuck.records.size() == 1);
    CHECK(stuck.records[0].key == key("lapsed"));
    CHECK(stuck.records[0].lapsed);
    CHECK(guard.find(key("lapsed"))->lapsed);
    CHECK(guard.list({.tenant = "other", .state = State::unknown}).records.empty());
}

TEST_CASE("resolve: a person says that it has happened, or that it has not", "[orphan]") {
    Stage stage;
    SpyGuard guard = stage.guard({.orphan = Orphan::hold});
    const auto gone = vanish(stage, guard);
    (void)guard.run(key(), {}, [] { return 1; });
    const auto seen = guard.find(key())->header.fence;
    stage.log.clear();
    CHECK_FALSE(guard.resolve(key(), seen + 1, idem::Resolution::done(9)));
    CHECK_FALSE(guard.resolve(key("nobody"), seen, idem::Resolution::done(9)));
    CHECK(stage.log.kinds().empty());
    SECTION("done") {
        CHECK(guard.resolve(key(), seen, idem::Resolution::done(9)));
        CHECK_FALSE(guard.resolve(key(), seen, idem::Resolution::rerun()));  // as it was seen
        const auto replay = guard.run(key(), {}, [] { return 1; });
        CHECK(replay.replayed());
        CHECK(replay.value() == 9);
    }
    SECTION("rerun") {
        CHECK(guard.resolve(key(), seen, idem::Resolution::rerun()));
        const auto again = guard.run(key(), {}, [](Execution& e) { return e.takeover() ? 1 : 2; });
        CHECK(again.executed());
        CHECK(again.value() == 2);  // what is settled is no orphan any more
        CHECK(again.fence() > seen);
    }
    CHECK(stage.log.of(EventKind::resolved).size() == 1);
    CHECK(stage.log.of(EventKind::resolved).at(0).fence == seen);
    CHECK_FALSE(late_truth(stage, gone, idem::FinishKind::complete));  // the old holder is too late
}

TEST_CASE("a held call without a result is resolved without one", "[orphan]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    std::move(claimed<void>(guard.claim<void>(key(), {}))).quarantine();
    CHECK(guard.resolve(key(), guard.find(key())->header.fence, idem::Resolution::done()));
    CHECK(guard.run(key(), {}, [] {}).replayed());
}

TEST_CASE("late truth beats a guess: a held record takes its holder's answer", "[orphan]") {
    Stage stage;
    SpyGuard guard = stage.guard({.orphan = Orphan::hold});
    const auto gone = vanish(stage, guard);
    CHECK(guard.run(key(), {}, [] { return 1; }).kind() == OutcomeKind::unknown);
    SECTION("it was done") {
        CHECK(late_truth(stage, gone, idem::FinishKind::complete));
        CHECK(guard.run(key(), {}, [] { return 1; }).value() == 77);
    }
    SECTION("it failed") {
        CHECK(late_truth(stage, gone, idem::FinishKind::fail));
        CHECK(guard.run(key(), {}, [] { return 1; }).kind() == OutcomeKind::failed);
    }
    SECTION("that it wants to try again is no truth") {
        CHECK_FALSE(late_truth(stage, gone, idem::FinishKind::release));
        CHECK(guard.run(key(), {}, [] { return 1; }).kind() == OutcomeKind::unknown);
    }
}

// --- verify -------------------------------------------------------------------------------------

struct Asked {
    int times = 0;
    Key key{};
    idem::Fence fence = 0;
    bool held = false;
    bool takeover = false;

    idem::Verify answers(Verdict verdict) {
        return [this, verdict](const Key& k, Execution& execution) {
            ++times;
            key = k;
            fence = execution.fence();
            held = execution.held();
            takeover = execution.takeover();
            return verdict;
        };
    }
};

TEST_CASE("verify: done is recorded and replayed, and nothing runs", "[orphan][verify]") {
    Stage stage;
    Asked asked;
    SpyGuard guard =
        stage.guard({.orphan = Orphan::verify, .verify = asked.answers(Verdict::done(11))});
    const auto gone = vanish(stage, guard);
    stage.log.clear();
    bool ran = false;
    const auto handler = [&] {
        ran = true;
        return 0;
    };
    const auto outcome = guard.run(key(), {}, handler);
    CHECK(outcome.replayed());
    CHECK(outcome.value() == 11);
    CHECK(outcome.recorded());
    CHECK_FALSE(ran);
    CHECK(asked.times == 1);
    CHECK(asked.key == key());
    CHECK(asked.fence > gone.fence());
    CHECK(asked.held);
    CHECK(asked.takeover);
    CHECK(stage.log.kinds() == "takeover replayed");
    CHECK(guard.run(key(), {}, handler).value() == 11);
    CHECK(asked.times == 1);
    CHECK_FALSE(ran);
}

TEST_CASE("verify: not done runs the handler, under the same claim", "[orphan][verify]") {
    Stage stage;
    Asked asked;
    SpyGuard guard =
        stage.guard({.orphan = Orphan::verify, .verify = asked.answers(Verdict::not_done())});
    (void)vanish(stage, guard);
    const auto outcome = guard.run(key(), {}, [&](Execution& execution) {
        CHECK(execution.fence() == asked.fence);
        return 4;
    });
    CHECK(outcome.executed());
    CHECK(outcome.attempt() == 2);
    CHECK(guard.find(key())->header.crashes == 1);
}

TEST_CASE("verify: whoever cannot tell, or throws, leaves it to a person", "[orphan][verify]") {
    const int how = GENERATE(0, 1, 2);
    CAPTURE(how);
    Stage stage;
    SpyGuard guard =
        stage.guard({.orphan = Orphan::verify, .verify = [=](const Key&, Execution&) -> Verdict {
                         if (how == 1) throw std::runtime_error("gateway down");
                         if (how == 2) throw 42;
                         return Verdict::cannot_tell();
                     }});
    (void)vanish(stage, guard);
    bool ran = false;
    const auto call = [&] { return guard.run(key(), {}, [&] { return ran = true; }); };
    if (how == 2) {
        CHECK_THROWS_AS(call(), int);
    } else {
        const auto outcome = call();
        CHECK(outcome.kind() == OutcomeKind::unknown);
        CHECK(outcome.failure().kind == FailureClass::unknown);
        if (how == 1) CHECK(outcome.failure().message.find("gateway down") != std::string::npos);
    }
    CHECK_FALSE(ran);
    CHECK(guard.find(key())->header.state == State::unknown);
    CHECK(call().kind() == OutcomeKind::unknown);
    CHECK_FALSE(ran);
}

TEST_CASE("verify: a result of another type is refused and the record held", "[orphan][verify]") {
    Stage stage;
    Asked asked;
    SpyGuard guard = stage.guard(
        {.orphan = Orphan::verify, .verify = asked.answers(Verdict::done(std::string("text")))});
    (void)vanish(stage, guard);
    bool ran = false;
    const auto handler = [&] {
        ran = true;
        return 1;
    };
    CHECK_THROWS_AS(guard.run(key(), {}, handler), idem::UsageError);
    CHECK_FALSE(ran);
    CHECK(guard.find(key())->header.state == State::unknown);
}

TEST_CASE("verify works for two-phase claims and batches", "[orphan][verify]") {
    Stage stage;
    const auto by_id = [](const Key& k, Execution&) {
        return k.id == "done" ? Verdict::done(3) : Verdict::not_done();
    };
    SpyGuard guard = stage.guard({.orphan = Orphan::verify, .verify = by_id});
    for (const char* id : {"done", "not"}) (void)vanish(stage, guard, key(id));
    stage.clock.advance(1min);
    SECTION("two phases") {
        auto done = guard.claim<int>(key("done"), {});
        CHECK(std::get<idem::Outcome<int>>(done).value() == 3);
        auto open = claimed<int>(guard.claim<int>(key("not"), {}));
        CHECK(open.takeover());
        CHECK(std::move(open).complete(4).recorded());
    }
    SECTION("batch, one by one") {
        const std::vector<idem::BatchCall> calls{{key("done")}, {key("not")}};
        const auto out = guard.run_batch(calls, [](Execution&, std::size_t) { return 4; });
        CHECK(out[0].get().value() == 3);
        CHECK(out[0].get().replayed());
        CHECK(out[1].get().executed());
    }
    SECTION("batch, in one pass") {
        const std::vector<idem::BatchCall> calls{{key("done")}, {key("not")}};
        const auto out = guard.run_batch(
            calls, [](std::span<Execution* const> all) { return std::vector<int>(all.size(), 4); });
        CHECK(out[0].get().value() == 3);
        CHECK(out[1].get().value() == 4);
    }
    CHECK(guard.run(key("done"), {}, [] { return 0; }).value() == 3);
    CHECK(guard.run(key("not"), {}, [] { return 0; }).value() == 4);
}

TEST_CASE("a claimant that cannot verify leaves a verify record to a person", "[orphan][verify]") {
    Stage stage;
    Asked asked;
    SpyGuard verifies =
        stage.guard({.orphan = Orphan::verify, .verify = asked.answers(Verdict::not_done())});
    (void)vanish(stage, verifies);
    bool ran = false;
    const auto outcome = stage.guard().run(key(), {}, [&] { return ran = true; });
    CHECK(outcome.kind() == OutcomeKind::unknown);
    CHECK_FALSE(ran);
    CHECK(asked.times == 0);
}

TEST_CASE("of two guards' policies the stricter one counts, whoever came first", "[orphan]") {
    const auto of = [](Orphan orphan) {
        GuardOptions options{.orphan = orphan};
        if (orphan == Orphan::verify)
            options.verify = [](const Key&, Execution&) { return Verdict::done(1); };
        return options;
    };
    const auto first = GENERATE(Orphan::rerun, Orphan::verify, Orphan::hold);
    const auto second = GENERATE(Orphan::rerun, Orphan::verify, Orphan::hold);
    CAPTURE(to_string(first), to_string(second));
    Stage stage;
    SpyGuard a = stage.guard(of(first));
    SpyGuard b = stage.guard(of(second));
    (void)vanish(stage, a);
    const auto kind = b.run(key(), {}, [] { return 2; }).kind();
    const bool holds = first == Orphan::hold || second == Orphan::hold ||
                       (first == Orphan::verify && second == Orphan::rerun);  // b cannot ask
    const bool asks = second == Orphan::verify;
    CHECK(kind == (holds  ? OutcomeKind::unknown
                   : asks ? OutcomeKind::replayed
                          : OutcomeKind::executed));
}

// --- caps ---------------------------------------------------------------------------------------

TEST_CASE("a job that kills its workers becomes a dead letter", "[orphan][caps]") {
    Stage stage;
    SpyGuard guard = stage.guard({.max_crashes = 3});
    for (int i = 0; i < 3; ++i) (void)vanish(stage, guard);  // it kills three workers
    bool ran = false;
    const auto outcome = guard.run(key(), {}, [&] { return ran = true; });
    CHECK(outcome.kind() == OutcomeKind::failed);
    CHECK(outcome.failure().kind == FailureClass::exhausted);
    CHECK_FALSE(ran);
    CHECK(guard.find(key())->header.crashes == 3);
    CHECK(guard.list({.state = State::failed}).records.size() == 1);
}

TEST_CASE("by default five crashes are the end, and 0 means no end", "[orphan][caps]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    for (int i = 0; i < 5; ++i) (void)vanish(stage, guard);
    CHECK(guard.run(key(), {}, [] { return 1; }).kind() == OutcomeKind::failed);
    SpyGuard endless = stage.guard({.max_crashes = 0});
    for (int i = 0; i < 20; ++i) (void)vanish(stage, endless, key("endless"));
    CHECK(endless.run(key("endless"), {}, [] { return 1; }).executed());
}

TEST_CASE("at the cap of attempts a failure becomes a dead letter", "[orphan][caps]") {
    Stage stage;
    SpyGuard guard = stage.guard({.max_attempts = 3});
    const auto fails = []() -> int { throw std::runtime_error("busy"); };
    for (int i = 0; i < 2; ++i) {
        CHECK_THROWS_AS(guard.run(key(), {}, fails), std::runtime_error);
        CHECK(guard.find(key())->header.state == State::released);
    }
    stage.log.clear();
    CHECK_THROWS_AS(guard.run(key(), {}, fails), std::runtime_error);
    CHECK(stage.log.kinds() == "failed");
    const auto outcome = guard.run(key(), {}, [] { return 1; });
    CHECK(outcome.kind() == OutcomeKind::failed);
    CHECK(outcome.failure().kind == FailureClass::exhausted);
    CHECK(outcome.failure().message == "busy");  // the last cause stays
    CHECK(outcome.attempt() == 3);
}

TEST_CASE("an orphan at the cap of attempts is not run once more", "[orphan][caps]") {
    Stage stage;
    SpyGuard guard = stage.guard({.max_attempts = 1, .max_crashes = 0});
    (void)vanish(stage, guard);
    CHECK(guard.run(key(), {}, [] { return 1; }).kind() == OutcomeKind::failed);
}

TEST_CASE("a graceful shutdown counts as neither attempt nor crash", "[orphan][caps]") {
    Stage stage;
    for (int i = 0; i < 10; ++i) {
        SpyGuard guard = stage.guard({.max_attempts = 2});
        stage.store.on_claim([&](auto) {
            (void)guard.drain(1ms);
            return Way::pass;
        });
        CHECK_THROWS_AS(guard.run(key(), {}, [] { return 1; }), idem::UnavailableError);
        stage.store.on_claim({});
    }
    const auto outcome = stage.guard({.max_attempts = 2}).run(key(), {}, [] { return 1; });
    CHECK(outcome.executed());
    CHECK(outcome.attempt() == 1);
    CHECK(stage.guard().find(key())->header.crashes == 0);
}

TEST_CASE("of two guards' caps the lower one counts", "[orphan][caps]") {
    Stage stage;
    SpyGuard loose = stage.guard({.max_crashes = 9});
    SpyGuard strict = stage.guard({.max_crashes = 2});
    (void)vanish(stage, strict);
    (void)vanish(stage, loose);
    CHECK(loose.run(key(), {}, [] { return 1; }).kind() == OutcomeKind::failed);
}

TEST_CASE("under hold and verify the cap ends in a held record", "[orphan][caps]") {
    Stage stage;
    Asked asked;
    SpyGuard guard = stage.guard(
        {.orphan = Orphan::verify, .max_crashes = 1, .verify = asked.answers(Verdict::not_done())});
    (void)vanish(stage, guard);
    CHECK(guard.run(key(), {}, [] { return 1; }).kind() == OutcomeKind::unknown);
    CHECK(asked.times == 0);
}

TEST_CASE("verify: a claim that was lost while it asked is not run", "[orphan][verify]") {
    Stage stage;
    const auto slow = [&](const Key& k, Execution&) {
        REQUIRE(SpyGuard(stage.store).forget(k));
        SpyGuard other = stage.guard(
            {.orphan = Orphan::verify, .verify = [](auto&, auto&) { return Verdict::not_done(); }});
        CHECK(other.run(k, {}, [] { return 1; }).executed());
        return Verdict::not_done();
    };
    SpyGuard guard =
        stage.guard({.lease = 300ms, .orphan = Orphan::verify, .verify = [&](auto& k, auto& e) {
                         auto verdict = slow(k, e);
                         CHECK(eventually([&] { return !e.held(); }));
                         return verdict;
                     }});
    (void)vanish(stage, guard);
    bool ran = false;
    SECTION("call") {
        CHECK_THROWS_AS(guard.run(key(), {}, [&] { ran = true; }), idem::UnavailableError);
    }
    SECTION("two phases") {
        CHECK_THROWS_AS(guard.claim<int>(key(), {}), idem::UnavailableError);
    }
    SECTION("batch, one by one") {
        const std::vector<idem::BatchCall> calls{{key()}};
        const auto out =
            guard.run_batch(calls, [&](Execution&, std::size_t) { return ran = true; });
        CHECK_THROWS_AS(out[0].get(), idem::UnavailableError);
    }
    SECTION("batch, in one pass") {
        const std::vector<idem::BatchCall> calls{{key()}};
        const auto out = guard.run_batch(calls, [&](std::span<Execution* const> all) {
            ran = true;
            return std::vector<int>(all.size(), 4);
        });
        CHECK_THROWS_AS(out[0].get(), idem::UnavailableError);
    }
    CHECK_FALSE(ran);
    CHECK(guard.run(key(), {}, [] { return 0; }).value() == 1);
}

TEST_CASE("verify: a result over the limit is recorded as completed without it",
          "[orphan][verify]") {
    Stage stage;
    SpyGuard guard =
        stage.guard({.result_bytes_max = 4, .orphan = Orphan::verify, .verify = [](auto&, auto&) {
                         return Verdict::done(std::string("large"));
                     }});
    (void)vanish(stage, guard);
    CHECK(guard.run(key(), {}, [] { return std::string(); }).value() == "large");
    const auto repeat = guard.run(key(), {}, [] { return std::string(); });
    CHECK(repeat.replayed());
    CHECK(repeat.details().result == idem::ResultKind::too_large);
}

TEST_CASE("a failure says whether it is on record, and whether it was the last attempt",
          "[orphan][caps]") {
    Stage stage;
    SpyGuard guard = stage.guard({.max_attempts = 2});
    const auto fails = [] { return Expected<int, std::string>::fail("no"); };
    const auto first = guard.run(key(), {}, fails);
    CHECK(first.failure().kind == FailureClass::retryable);
    CHECK(first.recorded());
    const auto last = guard.run(key(), {}, fails);
    CHECK(last.failure().kind == FailureClass::exhausted);
    CHECK(last.recorded());
    stage.store.on_finish([](auto) { return Way::refuse; });
    const auto refused = guard.run(key("other"), {}, fails);
    CHECK(refused.failure().kind == FailureClass::retryable);
    CHECK_FALSE(refused.recorded());
    CHECK(refused.unrecorded_reason() == idem::UnrecordedReason::unavailable);
    stage.store.on_finish({});
}

}  // namespace orphan_test
