// Field cases of claiming, takeover and ownership, asked of the guard over the memory store.
//
// Left to other suites:
//   R25  failover of a replicated server: there is no replica in one process
// R7 and R14 are asked for what they mean here; their Redis scripts and slots are Redis's suite.
// R109 (a claim whose answer was lost) is here too, for the guard's half of it.

#include <atomic>
#include <barrier>
#include <cstddef>
#include <future>
#include <latch>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <idem/testing/model_store.hpp>

#include "support/catch.hpp"
#include "support/eventually.hpp"
#include "support/field.hpp"

namespace field_claiming_test {

using namespace std::chrono_literals;
using idem::ClaimKind;
using idem::Duration;
using idem::EventKind;
using idem::Execution;
using idem::LostReason;
using idem::OutcomeKind;
using idem_test::Bench;
using idem_test::for_ever;
using idem_test::Holder;
using idem_test::field_key;
using idem_test::lease;
using idem_test::retention;
using idem_test::tick;
using idem_test::Wire;

// What the callers of one key were told, summed over all rounds.
struct Tally {
    std::atomic<int> executed{0};
    std::atomic<int> replayed{0};
    std::atomic<int> in_progress{0};
    std::atomic<int> other{0};
    std::atomic<int> wrong_value{0};

    void add(const idem::Outcome<int>& outcome, int winner) {
        switch (outcome.kind()) {
            case OutcomeKind::executed: executed.fetch_add(1); break;
            case OutcomeKind::replayed: replayed.fetch_add(1); break;
            case OutcomeKind::in_progress: in_progress.fetch_add(1); break;
            default: other.fetch_add(1);
        }
        if (outcome.has_value() && outcome.value() != winner) wrong_value.fetch_add(1);
    }
};

// Every other round the callers wait for the answer, so that all of them must get it.
TEST_CASE("R1: of 64 callers with one fresh key behind a barrier exactly one runs") {
    constexpr int threads = 64;
    const int rounds = idem_test::rounds(10'000);
    idem::IdempotencyGuard guard(idem::MemoryStore{});
    struct Round {
        std::atomic<int> runs{0};
        std::atomic<int> winner{-1};
    };
    std::vector<Round> round(static_cast<std::size_t>(rounds));
    Tally hasty;
    Tally patient;
    std::barrier gate(threads);
    std::atomic<int> thrown{0};

    const auto caller = [&](int me) {
        for (int r = 0; r < rounds; ++r) {
            auto& here = round[static_cast<std::size_t>(r)];
            const bool waits = r % 2 == 1;
            const auto k = field_key("R1." + std::to_string(r));
            idem::RunOptions options;
            options.wait = waits ? for_ever : Duration{};
            gate.arrive_and_wait();
            try {
                const auto outcome = guard.run(k, {}, options, [&] {
                    here.runs.fetch_add(1);
                    here.winner.store(me);
                    return me;
                });
                (waits ? patient : hasty).add(outcome, here.winner.load());
            } catch (...) {
                thrown.fetch_add(1);
            }
        }
    };
    {
        std::vector<std::jthread> callers;
        for (int i = 0; i < threads; ++i) callers.emplace_back(caller, i);
    }
    int once = 0;
    for (const auto& r : round) once += r.runs.load() == 1 ? 1 : 0;
    CHECK(once == rounds);
    CHECK(thrown == 0);
    CHECK(hasty.executed + patient.executed == rounds);
    CHECK(patient.replayed == rounds / 2 * (threads - 1));
    CHECK(hasty.replayed + hasty.in_progress == (rounds - rounds / 2) * (threads - 1));
    CHECK(hasty.other + patient.other + patient.in_progress == 0);
    CHECK(hasty.wrong_value + patient.wrong_value == 0);
}

TEST_CASE("R2: two claims that both saw nothing: one is acquired and stays the owner") {
    Bench b;
    int one_won = 0;
    int winner_stands = 0;
    const int rounds = idem_test::rounds(1'000);
    std::barrier gate(2);
    std::vector<Holder<idem::MemoryStore>> holders[2];
    std::vector<idem::ClaimReply> replies[2];
    for (int side = 0; side < 2; ++side) {
        for (int r = 0; r < rounds; ++r)
            holders[side].emplace_back(b.memory, field_key("R2." + std::to_string(r)));
        replies[side].resize(static_cast<std::size_t>(rounds));
    }
    const auto claimant = [&](int side) {
        for (std::size_t r = 0; r < holders[side].size(); ++r) {
            auto& me = holders[side][r];
            const bool absent = !idem::find_one(me.store, me.view()).record;
            gate.arrive_and_wait();  // both have looked
            if (absent) replies[side][r] = me.claim();
        }
    };
    {
        std::jthread const other(claimant, 1);
        claimant(0);
    }
    for (std::size_t r = 0; r < replies[0].size(); ++r) {
        const bool first = replies[0][r].kind == ClaimKind::acquired;
        const bool second = replies[1][r].kind == ClaimKind::acquired;
        one_won += first != second ? 1 : 0;
        CHECK((first ? replies[1] : replies[0])[r].kind == ClaimKind::in_progress);
        const auto found = b.find(holders[0][r].key);
        winner_stands += found && found->header.owner == holders[first ? 0 : 1][r].owner ? 1 : 0;
    }
    CHECK(one_won == rounds);
    CHECK(winner_stands == rounds);
}

TEST_CASE("R4: a claim seen as lapsed is not taken over once its result is in") {
    Bench b;
    auto guard = b.guard();
    Holder a(b.memory, field_key("R4"));
    REQUIRE(a.claim().kind == ClaimKind::acquired);
    b.clock.advance(lease);
    const auto seen = b.find(a.key);
    REQUIRE(seen);
    REQUIRE(seen->lapsed);
    REQUIRE_FALSE(a.complete(7).lost);

    SECTION("by a caller") {
        const auto outcome = guard.run(a.key, {}, [] { return 8; });
        CHECK(outcome.kind() == OutcomeKind::replayed);
        CHECK(outcome.value() == 7);
    }
    SECTION("by a reaper") {
        const auto reply = idem::reap_one(b.memory, {.key = a.view(),
                                                     .seen_fence = seen->header.fence,
                                                     .retention = retention,
                                                     .held_retention = retention});
        CHECK_FALSE(reply.reaped);
        CHECK(b.find(a.key)->header.state == idem::State::succeeded);
    }
}

TEST_CASE("R4: of a late holder and two that take over only one ever owns") {
    Bench b;
    auto guard = b.guard();
    const int rounds = idem_test::rounds(2'000);
    int late_won = 0;
    for (int r = 0; r < rounds; ++r) {
        Holder a(b.memory, field_key("R4." + std::to_string(r)));
        REQUIRE(a.claim().kind == ClaimKind::acquired);
        b.clock.advance(lease);
        std::latch gate(3);
        std::atomic<int> runs{0};
        const auto taker = [&](int value) {
            gate.arrive_and_wait();
            return guard.run(a.key, {}, [&] {
                runs.fetch_add(1);
                return value;
            });
        };
        auto one = std::async(std::launch::async, taker, 1);
        auto two = std::async(std::launch::async, taker, 2);
        gate.arrive_and_wait();
        const bool recorded = !a.complete(0).lost;
        const auto first = one.get();
        const auto second = two.get();
        late_won += recorded ? 1 : 0;
        REQUIRE(runs + (recorded ? 1 : 0) == 1);
        const auto last = guard.run(a.key, {}, [] { return -1; });
        REQUIRE(last.replayed());
        REQUIRE(last.value() == (recorded ? 0 : first.executed() ? 1 : 2));
        for (const auto& outcome : {first, second})
            if (outcome.has_value()) REQUIRE(outcome.value() == last.value());
    }
    INFO("the late holder was in time in " << late_won << " of " << rounds << " rounds");
    CHECK(late_won <= rounds);
}

TEST_CASE("R5: a stale owner's completion changes nothing, and it is told") {
    Bench b;
    auto guard = b.guard({.heartbeat = false});
    auto made = guard.claim<std::string>(field_key("R5"), {});
    auto& a = std::get<idem::Claim<std::string>>(made);
    b.clock.advance(lease);

    std::optional<idem::Outcome<std::string>> late;
    idem::RecordHeader before;
    idem::RecordHeader after;
    const auto taken = guard.run(field_key("R5"), {}, [&](Execution& execution) {
        CHECK(execution.takeover());
        CHECK(execution.attempt() == 2);
        before = b.find(field_key("R5"))->header;
        late.emplace(std::move(a).complete("A"));
        after = b.find(field_key("R5"))->header;
        return std::string("B");
    });
    REQUIRE(late);
    CHECK(late->kind() == OutcomeKind::executed);
    CHECK(late->value() == "A");
    CHECK_FALSE(late->recorded());
    CHECK(late->unrecorded_reason() == idem::UnrecordedReason::lost);
    CHECK(late->details().lost == LostReason::other_owner);
    CHECK(before == after);
    CHECK(taken.recorded());
    CHECK(taken.fence() > late->fence());
    CHECK(b.events.wait_for(EventKind::unrecorded).lost == LostReason::other_owner);

    const auto replay = guard.run(field_key("R5"), {}, [] { return std::string("C"); });
    CHECK(replay.replayed());
    CHECK(replay.value() == "B");
}

TEST_CASE("R7: a release between whose check and step the lease was retaken is lost") {
    Bench b;
    Holder a(b.memory, field_key("R7"));
    Holder other(b.memory, field_key("R7"));
    REQUIRE(a.claim().kind == ClaimKind::acquired);
    CHECK(b.find(a.key)->header.owner == a.owner);  // the check, by the client
    b.clock.advance(lease);
    REQUIRE(other.claim().kind == ClaimKind::acquired);
    const auto before = b.find(a.key)->header;
    const auto reply = a.release();
    CHECK(reply.lost);
    CHECK(reply.reason == LostReason::other_owner);
    CHECK(b.find(a.key)->header == before);
    CHECK(before.owner == other.owner);
}

TEST_CASE("R8: a renewal that arrives after a takeover is refused, and the holder is told") {
    Bench b;
    auto guard = b.guard();
    const auto thief = std::make_shared<Holder<idem::MemoryStore>>(b.memory, field_key("R8"));
    b.store.on_renew([&, thief](const idem::RenewRequest&) {
        b.clock.advance(lease);
        CHECK(thief->claim().kind == ClaimKind::acquired);
        return Wire::good;
    });
    std::vector<LostReason> told;
    const auto outcome = guard.run(field_key("R8"), {}, [&](Execution& execution) {
        execution.on_lost([&](LostReason reason) { told.push_back(reason); });
        CHECK(execution.held());
        CHECK_THROWS_AS(execution.checkpoint("half"), idem::LeaseLostError);
        CHECK_FALSE(execution.held());
        CHECK(execution.stop_token().stop_requested());
        CHECK(b.store.renewals() == 1);
        CHECK_THROWS_AS(execution.checkpoint("more"), idem::LeaseLostError);
        CHECK(b.store.renewals() == 1);  // a lost claim is not asked about again
        return 1;
    });
    CHECK(told == std::vector{LostReason::other_owner});
    CHECK_FALSE(outcome.recorded());
    CHECK(outcome.details().lost == LostReason::other_owner);
    CHECK(b.events.count(EventKind::lease_lost) == 1);
    const auto record = b.find(field_key("R8"));
    CHECK(record->header.owner == thief->owner);
    CHECK(record->header.fence == thief->fence);
    CHECK(record->payload.checkpoint.empty());
}

// A renewal is held up until another has taken over, and then goes its way.
bool renew_after_takeover() {
    Bench b;
    auto guard = b.guard({.lease = 150ms});
    const auto thief =
        std::make_shared<Holder<idem::MemoryStore>>(b.memory, field_key("R8.heartbeat"));
    b.store.on_renew([clock = b.clock, thief](const idem::RenewRequest& request) {
        if (request.owner == thief->owner) return Wire::good;
        clock.advance(lease);
        (void)thief->claim();
        return Wire::good;
    });
    std::atomic<int> told{0};
    const auto outcome = guard.run(field_key("R8.heartbeat"), {}, [&](Execution& execution) {
        std::latch lost(1);
        execution.on_lost([&](LostReason) {
            told.fetch_add(1);
            lost.count_down();
        });
        lost.wait();
        CHECK_FALSE(execution.held());
        CHECK(execution.stop_token().stop_requested());
        return 1;
    });
    if (thief->fence == 0) return false;  // it lapsed here before any renewal was sent
    CHECK(told == 1);
    CHECK_FALSE(outcome.recorded());
    CHECK(b.find(field_key("R8.heartbeat"))->header.owner == thief->owner);
    CHECK(b.events.count(EventKind::lease_lost) == 1);
    return true;
}

TEST_CASE("R8: the heartbeat's renewal that arrives after a takeover never takes the lease back") {
    CHECK(idem_test::some_trial_counts(renew_after_takeover));
}

// The store's clock moves on by most of a lease after each renewal, so that without the heartbeat
// the lease would be over many times.
bool outlive_the_lease() {
    Bench b;
    auto guard = b.guard({.lease = 150ms});
    b.store.after_renew([clock = b.clock](const auto&, const auto&) { clock.advance(100ms); });
    std::atomic<int> runs{0};
    bool held = true;
    const auto outcome = guard.run(field_key("R10"), {}, [&](Execution& execution) {
        runs.fetch_add(1);
        while (b.store.renewals() < 8 && execution.held()) {
            const auto duplicate =
                guard.run(field_key("R10"), {}, [&] { return runs.fetch_add(1); });
            if (execution.held()) CHECK(duplicate.kind() == OutcomeKind::in_progress);
            idem_test::outlast(1ms);
        }
        held = execution.held();
        return 1;
    });
    if (!held) return false;
    CHECK(runs == 1);
    CHECK(outcome.recorded());
    CHECK(outcome.attempt() == 1);
    CHECK(b.clock.now() - idem::testing::ManualClock::start >= 5 * 150ms);
    return true;
}

TEST_CASE("R10: a handler that outlives its lease many times runs once while duplicates arrive") {
    CHECK(idem_test::some_trial_counts(outlive_the_lease));
}

TEST_CASE("R11: work longer than its lease is recorded where nobody took over") {
    Bench b;
    auto guard = b.guard({.heartbeat = false});
    const auto outcome = guard.run(field_key("R11"), {}, [&] {
        b.clock.advance(2 * lease);
        return 11;
    });
    CHECK(outcome.executed());
    CHECK(outcome.recorded());
    const auto replay = guard.run(field_key("R11"), {}, [] { return 12; });
    CHECK(replay.replayed());
    CHECK(replay.value() == 11);
}

TEST_CASE("R11: work that outlasts its record too is told so, never silence") {
    Bench b;
    auto guard = b.guard({.heartbeat = false});
    const auto outcome = guard.run(field_key("R11.gone"), {}, [&] {
        b.clock.advance(lease + retention);
        return 11;
    });
    CHECK(outcome.executed());
    CHECK(outcome.value() == 11);
    CHECK_FALSE(outcome.recorded());
    CHECK(outcome.details().lost == LostReason::gone);
    CHECK(b.events.wait_for(EventKind::unrecorded).lost == LostReason::gone);
    CHECK(b.events.count(EventKind::executed) == 0);
}

// One question for all stores: the same claim, the same lease.
template <class Store>
void takeover_at_lease_end(const Store& store, const idem::testing::ManualClock& clock) {
    Holder a(store, field_key("R13"));
    Holder other(store, field_key("R13"));
    REQUIRE(a.claim().kind == ClaimKind::acquired);
    clock.advance(lease - tick);
    const auto early = other.claim();
    CHECK(early.kind == ClaimKind::in_progress);
    CHECK(early.lease_left == tick);
    clock.advance(tick);
    const auto taken = other.claim();
    CHECK(taken.kind == ClaimKind::acquired);
    CHECK(taken.takeover);
    CHECK(taken.attempt == 2);
    CHECK(taken.crashes == 1);
    CHECK(taken.fence > a.fence);
}

TEST_CASE("R13: every store lets a claim be taken over at the same moment") {
    const idem::testing::ManualClock clock;
    takeover_at_lease_end(idem::MemoryStore(idem::MemoryOptions{.clock = clock}), clock);
    takeover_at_lease_end(idem::testing::ModelStore(clock), clock);
}

TEST_CASE("R14: the fence of a key grows across takeover, forget, expiry and purge") {
    Bench b;
    idem::Fence highest = 0;
    const auto acquire = [&] {
        Holder holder(b.memory, field_key("R14"));
        REQUIRE(holder.claim().kind == ClaimKind::acquired);
        CHECK(holder.fence > highest);
        highest = holder.fence;
        return holder;
    };
    (void)acquire();
    b.clock.advance(lease);  // taken over
    auto holder = acquire();
    CHECK_FALSE(holder.release().lost);
    holder = acquire();
    REQUIRE(idem::forget_one(b.memory, {.key = holder.view(), .lease = lease}).existed);
    holder = acquire();
    CHECK(holder.complete(1).lost == false);
    b.clock.advance(retention);
    while (b.memory.purge(100).more) {
    }
    CHECK(b.memory.usage().records == 0);
    (void)acquire();
}

TEST_CASE("R16: a guarded call inside a guarded call completes its own key") {
    Bench b;
    auto guard = b.guard();
    const auto outer = guard.run(field_key("R16.outer"), {}, [&] {
        const auto inner =
            guard.run(field_key("R16.inner"), {}, [] { return std::string("inner"); });
        CHECK(inner.executed());
        CHECK(inner.recorded());
        CHECK(b.find(field_key("R16.outer"))->header.state == idem::State::running);
        return "outer of " + inner.value();
    });
    CHECK(outer.executed());
    CHECK(outer.recorded());
    const auto again = [&](const char* id) {
        return guard.run(field_key(id), {}, [] { return std::string("again"); });
    };
    CHECK(again("R16.inner").value() == "inner");
    CHECK(again("R16.outer").value() == "outer of inner");
    CHECK(again("R16.outer").replayed());
}

TEST_CASE("R16: an inner call that throws rolls back its own key and no other") {
    Bench b;
    auto guard = b.guard();
    const auto outer = guard.run(field_key("R16.whole"), {}, [&] {
        const auto inner = [&] {
            return guard.run(field_key("R16.part"), {},
                             []() -> int { throw std::runtime_error("no"); });
        };
        CHECK_THROWS_AS(inner(), std::runtime_error);
        CHECK(b.find(field_key("R16.part"))->header.state == idem::State::released);
        CHECK(b.find(field_key("R16.whole"))->header.state == idem::State::running);
        return 1;
    });
    CHECK(outer.recorded());
}

TEST_CASE(
    "R16: a handler that calls its own key is told in_progress and does not wait for itself") {
    Bench b;
    auto guard = b.guard();
    const Duration wait = GENERATE(Duration{}, for_ever);
    idem::RunOptions options;
    options.wait = wait;
    int runs = 0;
    const auto outcome = guard.run(field_key("R16.own"), {}, options, [&] {
        ++runs;
        const auto own = guard.run(field_key("R16.own"), {}, options, [&] { return ++runs; });
        CHECK(own.kind() == OutcomeKind::in_progress);
        CHECK(own.retry_after() == lease);
        // Also from deeper down, and through another guard of the same store.
        auto second = b.guard();
        const auto deeper = guard.run(field_key("R16.between"), {}, options, [&] {
            return second.run(field_key("R16.own"), {}, options, [&] { return ++runs; }).executed();
        });
        CHECK_FALSE(deeper.value());
        return runs;
    });
    CHECK(outcome.executed());
    CHECK(runs == 1);
}

TEST_CASE("R16: a batch handler that calls a key of its own batch does not wait for itself") {
    Bench b;
    auto guard = b.guard({.wait = for_ever});
    const std::vector<idem::BatchCall> calls{{.key = field_key("R16.x")},
                                             {.key = field_key("R16.y")}};
    const auto ask = [&](const char* id) {
        const auto own = guard.run(field_key(id), {}, [] { return 0; });
        CHECK(own.kind() == OutcomeKind::in_progress);
        return 1;
    };
    SECTION("one call for all") {
        const auto outcomes = guard.run_batch(calls, [&](std::span<Execution* const> executions) {
            return std::vector<int>(executions.size(), ask("R16.x") + ask("R16.y") - 1);
        });
        CHECK(outcomes[0].get().executed());
        CHECK(outcomes[1].get().executed());
    }
    SECTION("one call for each") {
        const auto outcomes = guard.run_batch(
            calls, [&](Execution&, std::size_t i) { return i == 0 ? ask("R16.x") : ask("R16.y"); });
        CHECK(outcomes[0].get().executed());
        CHECK(outcomes[1].get().executed());
    }
    // Afterwards nothing is left behind on this thread.
    CHECK(guard.run(field_key("R16.x"), {}, [] { return 2; }).replayed());
}

TEST_CASE("R16: the same key in another store is another key, and is waited for") {
    Bench one;
    Bench two;
    two.clock.advance(1s);
    auto outer = one.guard();
    auto inner = two.guard({.wait = for_ever});
    std::latch taken(1);
    auto holder = std::async(std::launch::async, [&] {
        return inner.run(field_key("R16.twice"), {}, [&] {
            taken.count_down();
            two.store.wait_for_claims(3);  // its own, and two looks of the one that waits
            return 2;
        });
    });
    taken.wait();
    const auto outcome = outer.run(field_key("R16.twice"), {}, [&] {
        const auto other = inner.run(field_key("R16.twice"), {}, [] { return 3; });
        CHECK(other.replayed());
        while (two.store.claims() < 3)
            (void)inner.run(field_key("R16.twice"), {}, [] { return 4; });
        return other.has_value() ? other.value() : -1;
    });
    CHECK(outcome.value() == 2);
    CHECK(holder.get().executed());
}

TEST_CASE("R17: two guards on one store each go by their own options") {
    Bench b;
    idem_test::Recorder seen[2];
    auto small = b.guard({.lease = 10s,
                          .retention = 1h,
                          .result_bytes_max = 4,
                          .max_attempts = 3,
                          .events = seen[0].observer()});
    auto large =
        b.guard({.lease = 20s, .retention = 2h, .max_attempts = 7, .events = seen[1].observer()});
    const bool small_first = GENERATE(true, false);
    const auto look = [&](auto& guard, const char* id, Duration its_lease, std::uint16_t its_cap) {
        const auto outcome = guard.run(field_key(id), {}, [&] {
            const auto header = b.find(field_key(id))->header;
            CHECK(header.lease_end - header.started == its_lease);
            CHECK(header.policy.max_attempts == its_cap);
            return std::string("eight by");
        });
        CHECK(outcome.executed());
        const auto header = b.find(field_key(id))->header;
        return std::pair(header.retention_end - header.completed, header.result);
    };
    if (!small_first) (void)look(large, "R17.warm", 20s, 7);
    CHECK(look(small, "R17.a", 10s, 3) == std::pair(Duration(1h), idem::ResultKind::too_large));
    CHECK(look(large, "R17.b", 20s, 7) == std::pair(Duration(2h), idem::ResultKind::value));
    CHECK(seen[0].count(EventKind::executed) == 1);
    CHECK(seen[1].count(EventKind::executed) == (small_first ? 1U : 2U));
}

TEST_CASE("R17: guards that differ in scope are never served each other's result") {
    Bench b;
    auto one = b.guard();
    auto two = b.guard();
    const auto first = one.run({.scope = "a", .id = "R17"}, {}, [] { return 1; });
    const auto second = two.run({.scope = "b", .id = "R17"}, {}, [] { return 2; });
    CHECK(first.value() == 1);
    CHECK(second.executed());
    CHECK(second.value() == 2);
    idem::IdempotencyGuard lease_lock(b.store, {}, idem::Component::lease);
    CHECK(lease_lock.run({.scope = "a", .id = "R17"}, {}, [] { return 3; }).executed());
}

// What becomes of the holder between the loser's claim and its next look.
enum class Fate { completed, released, lapsed, expired };

TEST_CASE("R19: a loser whose record is gone on its next look claims anew, or replays") {
    Bench b;
    const Fate fate = GENERATE(Fate::completed, Fate::released, Fate::lapsed, Fate::expired);
    auto guard = b.guard({.wait = for_ever});
    const auto holder = std::make_shared<Holder<idem::MemoryStore>>(b.memory, field_key("R19"));
    REQUIRE(holder->claim().kind == ClaimKind::acquired);
    b.store.after_claim([=, clock = b.clock](const auto&, const idem::ClaimReply& reply) {
        if (reply.kind != ClaimKind::in_progress) return;
        if (fate == Fate::completed) (void)holder->complete(7);
        if (fate == Fate::released) (void)holder->release();
        if (fate == Fate::lapsed) clock.advance(lease);
        if (fate == Fate::expired) clock.advance(lease + retention);
    });
    const auto outcome = guard.run(field_key("R19"), {}, [&](Execution& execution) {
        // R20: it runs only as the owner of a new claim.
        const auto record = b.find(field_key("R19"));
        CHECK(record->header.state == idem::State::running);
        CHECK(record->header.fence == execution.fence());
        CHECK_FALSE(record->header.owner == holder->owner);
        CHECK(execution.fence() > holder->fence);
        CHECK(execution.takeover() == (fate == Fate::lapsed));
        return 8;
    });
    CHECK(outcome.kind() ==
          (fate == Fate::completed ? OutcomeKind::replayed : OutcomeKind::executed));
    CHECK(outcome.value() == (fate == Fate::completed ? 7 : 8));
    CHECK(b.store.claims() == 2);  // bounded: one more look was enough
}

TEST_CASE("R20: of many losers of an expired record one runs, and only under its claim") {
    Bench b;
    auto guard = b.guard({.wait = for_ever});
    Holder holder(b.memory, field_key("R20"));
    REQUIRE(holder.claim().kind == ClaimKind::acquired);
    std::atomic<int> runs{0};
    std::atomic<int> without_claim{0};
    std::atomic<int> ones{0};
    {
        std::vector<std::jthread> losers;
        for (int i = 0; i < 8; ++i) {
            losers.emplace_back([&] {
                const auto outcome = guard.run(field_key("R20"), {}, [&](Execution& execution) {
                    const auto record = b.find(field_key("R20"));
                    if (!record || record->header.fence != execution.fence() ||
                        record->header.state != idem::State::running)
                        without_claim.fetch_add(1);
                    return runs.fetch_add(1) + 1;
                });
                ones.fetch_add(outcome.value());
            });
        }
        b.store.wait_for_claims(16);
        CHECK(runs == 0);
        b.clock.advance(lease + retention);
    }
    CHECK(runs == 1);
    CHECK(ones == 8);
    CHECK(without_claim == 0);
}

TEST_CASE("R22: a waiter whose budget outlasts the holder replays") {
    Bench b;
    auto guard = b.guard();
    std::latch taken(1);
    auto holder = std::async(std::launch::async, [&] {
        return guard.run(field_key("R22"), {}, [&] {
            taken.count_down();
            b.store.wait_for_claims(6);  // the waiter has polled, not looked once
            return 22;
        });
    });
    taken.wait();
    idem::RunOptions options;
    options.wait = for_ever;
    const auto waiter = guard.run(field_key("R22"), {}, options, [] { return 23; });
    CHECK(waiter.replayed());
    CHECK(waiter.value() == 22);
    CHECK(holder.get().executed());
}

TEST_CASE("R23: a finished record is answered by the first look, whatever the budget") {
    Bench b;
    auto guard = b.guard({.wait = for_ever});
    (void)guard.run(field_key("R23"), {}, [] { return 1; });
    const auto before = b.store.claims();
    CHECK(guard.run(field_key("R23"), {}, [] { return 2; }).replayed());
    CHECK(b.store.claims() == before + 1);
}

TEST_CASE("R109: a claim whose answer was lost is given back, and its key is free at once") {
    Bench b;
    auto guard = b.guard();
    const auto cuts = std::make_shared<std::atomic<int>>(1);
    const Wire how = GENERATE(Wire::lost, Wire::bad_alloc, Wire::thrown);
    b.store.on_claim([cuts, how](const idem::ClaimRequest&) {
        return cuts->fetch_sub(1) > 0 ? how : Wire::good;
    });
    int runs = 0;
    const auto call = [&] { return guard.run(field_key("R109"), {}, [&] { return ++runs; }); };
    if (how == Wire::lost) {
        try {
            (void)call();
            FAIL("the call went through");
        } catch (const idem::UnavailableError& e) {
            CHECK(e.may_have_applied());
        }
    } else if (how == Wire::bad_alloc) {
        CHECK_THROWS_AS(call(), std::bad_alloc);
    } else {
        CHECK_THROWS_AS(call(), int);
    }
    CHECK(runs == 0);
    (void)b.events.wait_for(EventKind::released);  // by the background; the clock stands still
    const auto again = call();
    CHECK(again.executed());
    CHECK(again.attempt() == 1);  // given back uncounted
    CHECK_FALSE(again.takeover());
    CHECK(runs == 1);
}

TEST_CASE("R109: a claim that only arrives after it was given back acquires nothing") {
    Bench b;
    Holder late(b.memory, field_key("R109.late"));
    auto release = late.finish_request(idem::FinishKind::release);
    release.counted = false;
    CHECK_FALSE(idem::finish_one(b.memory, release).lost);
    CHECK(late.claim().kind == ClaimKind::stale);
    CHECK(b.guard().run(field_key("R109.late"), {}, [] { return 1; }).executed());
    CHECK(late.claim().kind == ClaimKind::completed);
}

TEST_CASE("R109: the same claim again is recognised and runs once") {
    Bench b;
    Holder a(b.memory, field_key("R109.again"));
    const auto first = a.claim();
    b.clock.advance(lease / 2);
    const auto second = a.claim();
    CHECK(second.kind == ClaimKind::acquired);
    CHECK(second.fence == first.fence);
    CHECK(second.attempt == 1);
    CHECK(second.lease_left == lease);
    b.clock.advance(2 * lease);  // lapsed, and nobody took over
    const auto third = a.claim();
    CHECK(third.kind == ClaimKind::acquired);
    CHECK(third.fence == first.fence);
    CHECK(third.crashes == 0);
}

TEST_CASE("R109: a caller that meets its own ended claim claims again as a new owner") {
    Bench b;
    const auto seen = std::make_shared<std::vector<idem::Owner>>();
    b.store.on_claim([seen, memory = b.memory](const idem::ClaimRequest& request) mutable {
        seen->push_back(request.owner);
        if (seen->size() > 1) return Wire::good;
        idem::FinishRequest release;  // of a copy of this claim that was given up
        release.key = request.key;
        release.owner = request.owner;
        release.kind = idem::FinishKind::release;
        release.counted = false;
        release.lease = request.lease;
        release.retention = request.retention;
        (void)idem::finish_one(memory, release);
        return Wire::good;
    });
    CHECK(b.guard().run(field_key("R109.stale"), {}, [] { return 1; }).executed());
    REQUIRE(seen->size() == 2);
    CHECK_FALSE((*seen)[0] == (*seen)[1]);
}

}  // namespace field_claiming_test
