// What the guard promises, number by number as the contract counts them: one short test each, in
// one program that is quickly built, so that a fault put back by hand is soon noticed.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/catch.hpp"
#include "support/eventually.hpp"
#include "support/field.hpp"

namespace guard_promises_test {

using namespace std::chrono_literals;
using namespace idem_test;
using idem::Execution;
using idem::Fingerprint;
using idem::OutcomeKind;
using idem::State;

State state_of(Bench& b, const idem::Key& k) {
    const auto found = b.find(k);
    return found ? found->header.state : State::forgotten;
}

struct Odd {};  // no std::exception

const std::string text = "result";

TEST_CASE("guard 1: a handler that outlived its claim cannot record over the next holder") {
    Bench b;
    auto guard = b.guard();
    Holder next(b.memory, field_key("1"));
    const auto outcome = guard.run(field_key("1"), {}, [&] {
        b.clock.advance(lease + tick);
        REQUIRE(next.claim().kind == idem::ClaimKind::acquired);
        return text;
    });
    CHECK(outcome.executed());
    CHECK_FALSE(outcome.recorded());
    CHECK(outcome.unrecorded_reason() == idem::UnrecordedReason::lost);
    CHECK(outcome.details().lost == idem::LostReason::other_owner);
    CHECK(b.find(field_key("1"))->header.owner == next.owner);
    CHECK(b.events.count(idem::EventKind::unrecorded) == 1);
}

TEST_CASE("guard 1: whoever takes over is told so") {
    Bench b;
    auto guard = b.guard();
    Holder(b.memory, field_key("1")).claim();
    b.clock.advance(lease + tick);
    const auto outcome = guard.run(field_key("1"), {}, [&](Execution& execution) {
        CHECK(execution.takeover());
        CHECK(execution.attempt() == 2);
        return text;
    });
    CHECK(outcome.takeover());
    CHECK(outcome.attempt() == 2);
    CHECK(b.events.count(idem::EventKind::takeover) == 1);
}

TEST_CASE("guard 2: after one success the handler does not run again") {
    Bench b;
    auto guard = b.guard();
    int runs = 0;
    const auto handler = [&] { return ++runs; };
    CHECK(guard.run(field_key("2"), Fingerprint::of("P"), handler).value() == 1);
    const auto again = guard.run(field_key("2"), Fingerprint::of("P"), handler);
    CHECK(again.replayed());
    CHECK(again.value() == 1);
    CHECK(guard.run(field_key("2"), Fingerprint::of("Q"), handler).kind() == OutcomeKind::mismatch);
    CHECK(runs == 1);
}

TEST_CASE("guard 3: a throw of any type releases, and reaches the caller as it is") {
    Bench b;
    auto guard = b.guard();
    CHECK_THROWS_AS(guard.run(field_key("3"), {}, []() -> int { throw Odd{}; }), Odd);
    CHECK(state_of(b, field_key("3")) == State::released);
    CHECK_THROWS_AS(guard.run(field_key("3"), {}, []() -> int { throw std::runtime_error("x"); }),
                    std::runtime_error);
    CHECK(state_of(b, field_key("3")) == State::released);
    CHECK(guard.run(field_key("3"), {}, [] { return 3; }).attempt() == 3);
}

TEST_CASE("guard 3: a handler whose thread is unwound by force is released") {
    Bench b;
    struct Shared {
        Guard guard;
        bool entered = false;
    } shared{b.guard()};
    pthread_t thread{};
    const auto body = [](void* at) -> void* {
        auto& s = *static_cast<Shared*>(at);
        (void)s.guard.run(field_key("3"), {}, [&] {
            s.entered = true;
            pthread_exit(nullptr);
            return 1;
        });
        return nullptr;
    };
    REQUIRE(pthread_create(&thread, nullptr, body, &shared) == 0);
    pthread_join(thread, nullptr);
    CHECK(shared.entered);
    CHECK(state_of(b, field_key("3")) == State::released);
}

TEST_CASE("guard 3: a final failure is replayed, an unknown one is held") {
    Bench b;
    auto guard = b.guard();
    int runs = 0;
    CHECK_THROWS_AS(guard.run(field_key("f"), {},
                              [&]() -> int {
                                  ++runs;
                                  throw idem::FinalError("bad", "never works");
                              }),
                    idem::FinalError);
    const auto failed = guard.run(field_key("f"), {}, [&] { return ++runs; });
    CHECK(failed.kind() == OutcomeKind::failed);
    CHECK(failed.failure().code == "bad");
    CHECK_THROWS_AS(guard.run(field_key("u"), {},
                              [&]() -> int {
                                  ++runs;
                                  throw idem::UnknownOutcomeError("504");
                              }),
                    idem::UnknownOutcomeError);
    CHECK(guard.run(field_key("u"), {}, [&] { return ++runs; }).kind() == OutcomeKind::unknown);
    CHECK(runs == 2);
}

TEST_CASE("guard 3: classify has the first word on what was thrown") {
    Bench b;
    auto guard = b.guard({.classify = [](const std::exception_ptr&) {
        return std::optional(idem::Failure{idem::FailureClass::final, "422", "by classify"});
    }});
    int runs = 0;
    const auto handler = [&]() -> int {
        ++runs;
        throw std::runtime_error("x");
    };
    CHECK_THROWS_AS(guard.run(field_key("3"), {}, handler), std::runtime_error);
    CHECK(guard.run(field_key("3"), {}, handler).failure().code == "422");
    CHECK(runs == 1);
}

TEST_CASE("guard 3: trouble while rolling back is an event, never thrown over the handler's own") {
    Bench b;
    auto guard = b.guard();
    b.store.on_finish([](const idem::FinishRequest&) { return Wire::refused; });
    CHECK_THROWS_AS(guard.run(field_key("3"), {}, []() -> int { throw Odd{}; }), Odd);
    CHECK(b.events.count(idem::EventKind::rollback_failed) == 1);
    b.store.on_finish({});
    CHECK(eventually([&] { return state_of(b, field_key("3")) == State::released; }));
}

TEST_CASE("guard 4: a result that the store does not take now is recorded later, never released") {
    Bench b;
    auto guard = b.guard();
    b.store.on_finish([](const idem::FinishRequest&) { return Wire::refused; });
    const auto outcome = guard.run(field_key("4"), {}, [] { return text; });
    CHECK(outcome.executed());
    CHECK(outcome.value() == text);
    CHECK(outcome.unrecorded_reason() == idem::UnrecordedReason::unavailable);
    CHECK(state_of(b, field_key("4")) == State::running);
    CHECK(guard.health().unrecorded == 1);
    b.store.on_finish({});
    REQUIRE(eventually([&] { return state_of(b, field_key("4")) != State::running; }));
    CHECK(state_of(b, field_key("4")) == State::succeeded);
    CHECK(guard.run(field_key("4"), {}, [] { return std::string("again"); }).value() == text);
}

TEST_CASE("guard 4: until it is recorded the lease is kept") {
    Bench b;
    auto guard = b.guard({.lease = 90ms});
    b.store.on_finish([](const idem::FinishRequest&) { return Wire::refused; });
    CHECK_FALSE(guard.run(field_key("4"), {}, [] { return text; }).recorded());
    const auto before = b.store.renewals();
    CHECK(eventually([&] { return b.store.renewals() >= before + 3; }));
    b.store.on_finish({});
    CHECK(eventually([&] { return state_of(b, field_key("4")) == State::succeeded; }));
}

TEST_CASE("guard 5: where the store cannot be asked the handler does not run, unless chosen") {
    Bench b;
    b.store.on_claim([](const idem::ClaimRequest&) { return Wire::refused; });
    int runs = 0;
    const auto handler = [&] { return ++runs; };
    auto guard = b.guard();
    CHECK_THROWS_AS(guard.run(field_key("5"), {}, handler), idem::UnavailableError);
    CHECK(runs == 0);
    auto open = b.guard({.store_down = idem::StoreDown::run_unprotected});
    const auto outcome = open.run(field_key("5"), {}, handler);
    CHECK(runs == 1);
    CHECK_FALSE(outcome.protected_run());
    CHECK_FALSE(outcome.recorded());
    CHECK(b.events.count(idem::EventKind::ran_unprotected) == 1);
}

TEST_CASE("guard 5: a claim whose answer was lost is given back, and costs no attempt") {
    Bench b;
    auto guard = b.guard();
    b.store.on_claim([](const idem::ClaimRequest&) { return Wire::lost; });
    CHECK_THROWS_AS(guard.run(field_key("5"), {}, [] { return 1; }), idem::UnavailableError);
    b.store.on_claim({});
    REQUIRE(eventually([&] { return state_of(b, field_key("5")) == State::released; }));
    CHECK(b.find(field_key("5"))->header.attempt == 0);
    CHECK(guard.run(field_key("5"), {}, [] { return 1; }).attempt() == 1);
}

TEST_CASE("guard 6: a waiter looks once more before it gives up or sleeps") {
    Bench b;
    auto guard = b.guard();
    Holder holder(b.memory, field_key("6"));
    holder.claim();
    std::atomic<bool> done{false};
    // The holder completes after the first look, and by then the budget is used up.
    b.store.after_claim([&](const idem::ClaimRequest&, const idem::ClaimReply&) {
        if (done.exchange(true)) return;
        holder.complete(text);
        outlast(10ms);
    });
    const auto outcome = guard.run(field_key("6"), {}, {.wait = 10ms}, [] { return text; });
    CHECK(outcome.replayed());
}

TEST_CASE("guard 6: waiting ends with the result, not with the budget") {
    Bench b;
    auto guard = b.guard();
    Holder holder(b.memory, field_key("6"));
    holder.claim();
    std::jthread finisher([&] {
        b.store.wait_for_claims(2);
        holder.complete(text);
    });
    const auto outcome = guard.run(field_key("6"), {}, {.wait = for_ever}, [] { return text; });
    CHECK(outcome.replayed());
    CHECK(outcome.value() == text);
}

TEST_CASE("guard 6: a handler that calls its own key does not wait for itself") {
    Bench b;
    auto guard = b.guard({.wait = 10s});
    const auto begin = idem::LocalClock::now();
    const auto outer = guard.run(field_key("6"), {}, [&] {
        return guard.run(field_key("6"), {}, [] { return 1; }).kind() == OutcomeKind::in_progress;
    });
    CHECK(outer.value());
    CHECK(idem::LocalClock::now() - begin < 5s);
}

TEST_CASE("guard 6: a claim taken for one that has ended is made again as a new owner") {
    Bench b;
    auto guard = b.guard();
    std::atomic<int> claims{0};
    b.store.on_claim([&](const idem::ClaimRequest& request) {
        if (claims++ > 0) return Wire::good;
        Holder earlier(b.memory, field_key("6"));
        earlier.owner = request.owner;
        earlier.claim();
        earlier.release();
        return Wire::good;
    });
    CHECK(guard.run(field_key("6"), {}, [] { return 1; }).executed());
    CHECK(claims == 2);
}

TEST_CASE("guard 8: held ends with the lease by the local clock, and stays so") {
    Bench b;
    auto guard = b.guard({.lease = 20ms, .heartbeat = false});
    (void)guard.run(field_key("8"), {}, [&](Execution& execution) {
        const auto stop = execution.stop_token();
        outlast(20ms);
        CHECK_FALSE(execution.held());
        CHECK(eventually([&] { return stop.stop_requested(); }));
        return 1;
    });
}

TEST_CASE("guard 8: the local deadline counts from before the request left") {
    Bench b;
    auto guard = b.guard({.lease = 50ms, .heartbeat = false});
    b.store.after_claim([](const idem::ClaimRequest&, const idem::ClaimReply&) { outlast(50ms); });
    int runs = 0;
    CHECK_THROWS_AS(guard.run(field_key("8"), {}, [&] { return ++runs; }), idem::UnavailableError);
    CHECK(runs == 0);
    CHECK(state_of(b, field_key("8")) == State::released);
    CHECK(b.find(field_key("8"))->header.attempt == 0);
}

TEST_CASE("guard 8: a renewal answered after the lease ended does not bring it back") {
    Bench b;
    auto guard = b.guard({.lease = 100ms});
    b.store.on_renew([](const idem::RenewRequest&) {
        outlast(100ms);
        return Wire::good;
    });
    (void)guard.run(field_key("8"), {}, [&](Execution& execution) {
        const auto stop = execution.stop_token();
        CHECK(eventually([&] { return b.store.renewals() >= 1; }));
        CHECK(stop.stop_requested());
        // The answer has been taken in when the next renewal leaves.
        const auto next = guard.claim<int>(field_key("8.next"), {});
        const auto seen = b.store.renewals();
        CHECK(eventually([&] { return b.store.renewals() > seen; }));
        CHECK_FALSE(execution.held());
        return 1;
    });
}

TEST_CASE("guard 8: one renewal that failed is tried again before the lease is over") {
    Bench b;
    auto guard = b.guard({.lease = 1500ms});
    std::atomic<int> renewals{0};
    b.store.on_renew(
        [&](const idem::RenewRequest&) { return renewals++ == 0 ? Wire::refused : Wire::good; });
    (void)guard.run(field_key("8"), {}, [&](Execution& execution) {
        CHECK(eventually([&] { return b.store.renewals() >= 3 || !execution.held(); }));
        CHECK(execution.held());
        return 1;
    });
}

TEST_CASE("guard 8: a holder learns by its stop token and callback that it has lost, and why") {
    Bench b;
    auto guard = b.guard({.lease = 600ms});
    std::atomic<int> called{0};
    std::atomic<idem::LostReason> why{};
    (void)guard.run(field_key("8"), {}, [&](Execution& execution) {
        const auto stop = execution.stop_token();
        execution.on_lost([&](idem::LostReason reason) {
            why = reason;
            ++called;
        });
        CHECK(guard.forget(field_key("8")));
        CHECK(eventually([&] { return called > 0; }));
        CHECK(stop.stop_requested());
        CHECK_FALSE(execution.held());
        return 1;
    });
    CHECK(called == 1);
    CHECK(why == idem::LostReason::forgotten);
}

TEST_CASE("guard 8: a checkpoint under a lost claim throws, and local loss is final") {
    Bench b;
    auto guard = b.guard();
    (void)guard.run(field_key("8"), {}, [&](Execution& execution) {
        execution.checkpoint("half");
        CHECK(b.find(field_key("8"))->payload.checkpoint == "half");
        CHECK(guard.forget(field_key("8")));
        CHECK_THROWS_AS(execution.checkpoint("more"), idem::LeaseLostError);
        CHECK(execution.checkpoint() == "half");
        CHECK_FALSE(execution.held());
        return 1;
    });
}

TEST_CASE("guard 9: a claim that goes out of scope is released") {
    Bench b;
    auto guard = b.guard();
    {
        auto claim = guard.claim<int>(field_key("9"), {});
        REQUIRE(std::holds_alternative<idem::Claim<int>>(claim));
        CHECK(state_of(b, field_key("9")) == State::running);
    }
    CHECK(state_of(b, field_key("9")) == State::released);
}

TEST_CASE("guard 9: a child of fork holds nothing of its parent's") {
    Bench b;
    auto guard = b.guard();
    (void)guard.run(field_key("9"), {}, [&](Execution& execution) {
        const pid_t child = fork();
        if (child == 0) _exit(execution.held() ? 1 : 0);
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(status == 0);
        CHECK(execution.held());
        return 1;
    });
}

TEST_CASE("guard 10: a result over the limit is recorded as completed without it") {
    Bench b;
    auto guard = b.guard({.result_bytes_max = 10});
    int runs = 0;
    const auto handler = [&] {
        ++runs;
        return std::string(100, 'x');
    };
    const auto first = guard.run(field_key("10"), {}, handler);
    CHECK(first.value().size() == 100);
    CHECK(first.recorded());
    const auto again = guard.run(field_key("10"), {}, handler);
    CHECK(again.replayed());
    CHECK_FALSE(again.has_value());
    CHECK(again.details().result == idem::ResultKind::too_large);
    CHECK(runs == 1);
}

TEST_CASE("guard 12: a drain between claim and handler gives the claim back uncounted") {
    Bench b;
    auto guard = b.guard();
    std::atomic<bool> drained{false};
    b.store.after_claim([&](const idem::ClaimRequest&, const idem::ClaimReply&) {
        if (!drained.exchange(true)) (void)guard.drain(tick);
    });
    int runs = 0;
    CHECK_THROWS_AS(guard.run(field_key("12"), {}, [&] { return ++runs; }), idem::UnavailableError);
    CHECK(runs == 0);
    CHECK(state_of(b, field_key("12")) == State::released);
    CHECK(b.find(field_key("12"))->header.attempt == 0);
    CHECK_THROWS_AS(guard.run(field_key("12"), {}, [&] { return ++runs; }), idem::UnavailableError);
    CHECK(b.store.claims() == 1);
}

TEST_CASE("guard 12: a drain waits for what is still to be recorded") {
    Bench b;
    auto guard = b.guard();
    b.store.on_finish([](const idem::FinishRequest&) { return Wire::refused; });
    CHECK_FALSE(guard.run(field_key("12"), {}, [] { return text; }).recorded());
    const auto report = guard.drain(10ms);
    CHECK_FALSE(report.complete);
    CHECK(report.unrecorded == 1);
    b.store.on_finish({});
    CHECK(guard.drain(15s).complete);
    CHECK(state_of(b, field_key("12")) == State::succeeded);
}

TEST_CASE("guard 13: a full store refuses a new key, even where unprotected runs are chosen") {
    Memory store(idem::MemoryStore({.records_max = 1}));
    Guard guard(store, {.store_down = idem::StoreDown::run_unprotected});
    int runs = 0;
    const auto handler = [&] { return ++runs; };
    CHECK(guard.run(field_key("a"), {}, handler).recorded());
    CHECK_THROWS_AS(guard.run(field_key("b"), {}, handler), idem::UnavailableError);
    CHECK(guard.run(field_key("a"), {}, handler).replayed());
    CHECK(runs == 1);
}

TEST_CASE("guard 14: a detached claim is finished by its ticket, and by no other") {
    Bench b;
    auto guard = b.guard();
    auto claim = std::get<idem::Claim<std::string>>(guard.claim<std::string>(field_key("14"), {}));
    const auto ticket = std::move(claim).detach(1h);
    b.clock.advance(30min);
    CHECK(guard.run(field_key("14"), {}, [] { return text; }).kind() == OutcomeKind::in_progress);
    auto resumed = guard.resume<std::string>(idem::Ticket::parse(ticket.to_string()));
    CHECK(std::move(resumed).complete(text).recorded());
    CHECK_THROWS_AS(guard.resume<std::string>(ticket), idem::LeaseLostError);
}

TEST_CASE("guard 15: equal repeats inside a batch get the first one's answer") {
    Bench b;
    auto guard = b.guard();
    const std::vector<idem::BatchCall> calls = {{field_key("a"), Fingerprint::of("P")},
                                                {field_key("a"), Fingerprint::of("P")},
                                                {field_key("b"), Fingerprint::of("P")},
                                                {field_key("a"), Fingerprint::of("Q")}};
    int runs = 0;
    const auto answers = guard.run_batch(calls, [&](Execution&, std::size_t) { return ++runs; });
    REQUIRE(answers.size() == 4);
    CHECK(runs == 2);
    CHECK(answers[0].get().executed());
    CHECK(answers[1].get().replayed());
    CHECK(answers[1].get().value() == answers[0].get().value());
    CHECK(answers[2].get().executed());
    CHECK(answers[3].get().kind() == OutcomeKind::mismatch);
}

TEST_CASE("guard 15: every item of a batch claims as an owner of its own") {
    Bench b;
    auto guard = b.guard();
    auto owners = std::make_shared<std::set<std::string>>();
    b.store.on_claim([owners](const idem::ClaimRequest& request) {
        owners->emplace(request.owner.stored());
        return Wire::good;
    });
    const std::vector<idem::BatchCall> calls = {
        {field_key("a")}, {field_key("b")}, {field_key("c")}};
    (void)guard.run_batch(calls, [](Execution&, std::size_t) { return 1; });
    CHECK(owners->size() == 3);
}

TEST_CASE("guard 15: one item's failure is its own") {
    Bench b;
    auto guard = b.guard();
    const std::vector<idem::BatchCall> calls = {
        {field_key("a")}, {field_key("b")}, {field_key("c")}};
    const auto answers = guard.run_batch(calls, [](Execution&, std::size_t i) -> int {
        if (i == 1) throw Odd{};
        return 1;
    });
    CHECK(answers[0].get().executed());
    CHECK_THROWS_AS(answers[1].get(), Odd);
    CHECK(answers[2].get().executed());
    CHECK(state_of(b, field_key("b")) == State::released);
}

}  // namespace guard_promises_test
