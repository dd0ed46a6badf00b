// Field cases of the in-memory store, of concurrency and of degraded mode, asked of the guard over
// the memory store. None is left out.

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/field.hpp"

namespace field_memory_test {

using namespace std::chrono_literals;
using idem::EventKind;
using idem::Execution;
using idem::LostReason;
using idem::OutcomeKind;
using idem::StoreDown;
using idem::UnrecordedReason;
using idem_test::Bench;
using idem_test::for_ever;
using idem_test::Holder;
using idem_test::field_key;
using idem_test::lease;
using idem_test::Wire;

TEST_CASE("R125: a million unique keys that expire leave a bounded store, though none is read") {
    Bench b;
    const int keys = idem_test::rounds(1'000'000);
    constexpr int alive = 1'000;  // as many as are within their retention at any moment
    std::uint64_t most_records = 0;
    std::uint64_t most_bytes = 0;
    idem::Key k = field_key("R125");
    for (int i = 0; i < keys; ++i) {
        k.id = "R125." + std::to_string(i);
        Holder<idem::MemoryStore> holder(b.memory, k);
        (void)holder.claim({.lease = 1s, .retention = 999s});
        b.clock.advance(1s);
        if (i % 1'000 != 0) continue;
        const auto usage = b.memory.usage();
        most_records = std::max(most_records, usage.records);
        most_bytes = std::max(most_bytes, usage.bytes);
    }
    INFO(most_records << " records and " << most_bytes << " bytes at most");
    CHECK(most_records <= 4 * alive);
    CHECK(most_bytes <= std::uint64_t{4} * alive * 1'000);
}

TEST_CASE("R125: a store that is full refuses new keys, drops none, and takes what holders say") {
    Bench b;
    const idem::MemoryStore full({.records_max = 2, .clock = b.clock});
    const idem_test::Recorder events;
    idem::IdempotencyGuard guard(full, {.events = events.observer()});
    auto made = guard.claim<int>(field_key("R125.held"), {});
    REQUIRE(guard.run(field_key("R125.done"), {}, [] { return 1; }).recorded());
    int runs = 0;
    const auto another = [&] {
        return guard.run(field_key("R125.new"), {}, [&] { return ++runs; });
    };
    CHECK_THROWS_AS(another(), idem::UnavailableError);
    CHECK(runs == 0);
    CHECK(events.count(EventKind::store_error) == 1);
    CHECK(guard.run(field_key("R125.done"), {}, [] { return 2; }).value() == 1);
    auto& claim = std::get<idem::Claim<int>>(made);
    claim.execution().checkpoint("still heard");
    CHECK(std::move(claim).complete(3).recorded());
    CHECK(guard.run(field_key("R125.held"), {}, [] { return 4; }).value() == 3);
    b.clock.advance(idem_test::retention);  // what has expired makes room by itself
    CHECK(another().executed());
}

TEST_CASE("R127: 32 threads over 10,000 keys leave nothing behind but the records") {
    Bench b;
    constexpr int threads = 32;
    const int keys = idem_test::rounds(10'000);
    auto guard = b.guard({.wait = for_ever, .concurrency_max = threads});
    std::vector<std::atomic<int>> runs(static_cast<std::size_t>(keys));
    std::atomic<int> wrong{0};
    std::barrier gate(threads);
    const auto caller = [&](int me) {
        gate.arrive_and_wait();
        for (int i = 0; i < keys; ++i) {
            const int n = (i + me % 4 * keys / 4) % keys;  // eight at a time begin with the same
            const auto outcome = guard.run(field_key("R127." + std::to_string(n)), {}, [&] {
                runs[static_cast<std::size_t>(n)].fetch_add(1);
                return n;
            });
            if (!outcome.has_value() || outcome.value() != n) wrong.fetch_add(1);
        }
    };
    {
        std::vector<std::jthread> callers;
        for (int i = 0; i < threads; ++i) callers.emplace_back(caller, i);
    }
    CHECK(wrong == 0);
    CHECK(std::all_of(runs.begin(), runs.end(), [](const auto& r) { return r == 1; }));
    CHECK(b.memory.usage().records == runs.size());
    CHECK(guard.health().running == 0);
    CHECK(guard.drain(idem::Duration{}).complete);
    b.clock.advance(idem_test::retention + lease);
    while (b.memory.purge(1'000).more) {
    }
    CHECK(b.memory.usage().records == 0);
    CHECK(b.memory.usage().bytes == 0);
}

TEST_CASE(
    "R127: a key that is claimed, released and forgotten by many at once runs one at a time") {
    Bench b;
    constexpr int threads = 8;
    auto guard = b.guard();
    std::atomic<int> inside{0};
    std::atomic<int> overlaps{0};
    std::barrier gate(threads);
    const int rounds = idem_test::rounds(4'000);
    const auto caller = [&](int me) {
        gate.arrive_and_wait();
        for (int i = 0; i < rounds; ++i) {
            const auto handler = [&]() -> int {
                if (inside.fetch_add(1) != 0) overlaps.fetch_add(1);
                inside.fetch_sub(1);
                if ((i + me) % 2 == 0) throw i;
                return me;
            };
            try {
                const auto outcome = guard.run(field_key("R127.one"), {}, handler);
                // Forgotten only once it has finished: nobody is inside then.
                if (outcome.executed()) (void)guard.forget(field_key("R127.one"));
            } catch (int) {
            }
        }
    };
    {
        std::vector<std::jthread> callers;
        for (int i = 0; i < threads; ++i) callers.emplace_back(caller, i);
    }
    CHECK(overlaps == 0);
    CHECK(guard.health().running == 0);
    CHECK(b.memory.usage().records == 1);
}

TEST_CASE("R128: a guard and a store with nothing configured work") {
    idem::MemoryStore store;
    idem::IdempotencyGuard guard(store);
    CHECK(guard.run({.scope = "s", .id = "R128"}, {}, [] { return 1; }).executed());
    CHECK(guard.run({.scope = "s", .id = "R128"}, {}, [] { return 2; }).value() == 1);
    CHECK(guard.run({.scope = "s", .id = "R128.void"}, {}, [] {}).executed());
    const auto throws = []() -> int { throw 1; };
    CHECK_THROWS_AS(guard.run({.scope = "s", .id = "R128.throws"}, {}, throws), int);
    CHECK_FALSE(guard.find({.scope = "s", .id = "R128.none"}));
    CHECK_FALSE(guard.forget({.scope = "s", .id = "R128.none"}));
    CHECK(guard.list().records.size() == 3);
    CHECK(guard.run_batch({}, [](Execution&, std::size_t) { return 1; }).empty());
    CHECK(guard.health().ok());
    CHECK(guard.drain(1s).complete);
    CHECK(store.purge(0).removed == 0);
}

TEST_CASE("R130: a store that cannot be reached: the handler does not run, and it is said") {
    Bench b;
    auto guard = b.guard();
    b.store.on_claim([](const auto&) { return Wire::refused; });
    int runs = 0;
    try {
        (void)guard.run(field_key("R130"), {}, [&] { return ++runs; });
        FAIL("the call went through");
    } catch (const idem::UnavailableError& e) {
        CHECK_FALSE(e.may_have_applied());
    }
    CHECK_THROWS_AS(guard.claim<int>(field_key("R130"), {}), idem::UnavailableError);
    const std::vector<idem::BatchCall> calls{{.key = field_key("R130")}};
    const auto outcomes = guard.run_batch(calls, [&](Execution&, std::size_t) { return ++runs; });
    CHECK_THROWS_AS(outcomes[0].get(), idem::UnavailableError);
    CHECK(runs == 0);
    CHECK(b.events.count(EventKind::store_error) == 3);
    CHECK(b.events.count(EventKind::ran_unprotected) == 0);
}

TEST_CASE("R130: by choice it runs once without a claim, and says so") {
    Bench b;
    auto guard = b.guard({.store_down = StoreDown::run_unprotected});
    const Wire how = GENERATE(Wire::refused, Wire::lost);
    b.store.on_claim([how](const auto&) { return how; });
    int runs = 0;
    const auto outcome = guard.run(field_key("R130.open"), {}, [&](Execution& execution) {
        CHECK_FALSE(execution.held());
        CHECK(execution.stop_token().stop_requested());
        CHECK_THROWS_AS(execution.checkpoint("x"), idem::LeaseLostError);
        return ++runs;
    });
    CHECK(outcome.executed());
    CHECK(outcome.value() == 1);
    CHECK(runs == 1);
    CHECK_FALSE(outcome.protected_run());
    CHECK_FALSE(outcome.recorded());
    CHECK(outcome.unrecorded_reason() == UnrecordedReason::unprotected);
    CHECK(b.events.count(EventKind::ran_unprotected) == 1);
    CHECK(b.events.count(EventKind::executed) == 0);
    if (how == Wire::refused) CHECK(b.store.finishes() == 0);
}

TEST_CASE("R130: an unprotected handler that throws, too, is told of, and its exception passes") {
    Bench b;
    auto guard = b.guard({.store_down = StoreDown::run_unprotected});
    b.store.on_claim([](const auto&) { return Wire::refused; });
    const auto throws = []() -> int { throw std::runtime_error("no"); };
    CHECK_THROWS_WITH(guard.run(field_key("R130.throws"), {}, throws), "no");
    CHECK(b.store.finishes() == 0);
    CHECK(b.events.count(EventKind::ran_unprotected) == 1);
}

TEST_CASE("R130: what runs unprotected in two phases and in batches says so as well") {
    Bench b;
    auto guard = b.guard({.store_down = StoreDown::run_unprotected});
    b.store.on_claim([](const auto&) { return Wire::refused; });
    auto made = guard.claim<int>(field_key("R130.claim"), {});
    auto& claim = std::get<idem::Claim<int>>(made);
    CHECK_FALSE(claim.held());
    const auto completed = std::move(claim).complete(1);
    CHECK_FALSE(completed.protected_run());
    CHECK_FALSE(completed.recorded());

    const std::vector<idem::BatchCall> calls{{.key = field_key("R130.x")},
                                             {.key = field_key("R130.y")}};
    const auto each = guard.run_batch(calls, [](Execution&, std::size_t) { return 1; });
    const auto together = guard.run_batch(calls, [](std::span<Execution* const> executions) {
        return std::vector<int>(executions.size(), 1);
    });
    for (const auto& outcome : {each[0], each[1], together[0], together[1]})
        CHECK_FALSE(outcome.get().protected_run());
    CHECK(b.events.count(EventKind::ran_unprotected) == 5);
    CHECK(b.store.finishes() == 0);
}

TEST_CASE("R130: garbage, a full store or a usage error never make a handler run unprotected") {
    Bench b;
    idem::IdempotencyGuard guard(idem::MemoryStore({.records_max = 1, .clock = b.clock}),
                                 {.store_down = StoreDown::run_unprotected});
    int runs = 0;
    CHECK_THROWS_AS(guard.run(field_key(""), {}, [&] { return ++runs; }), idem::UsageError);
    CHECK(guard.run(field_key("R130.one"), {}, [] { return 1; }).recorded());
    // Promise 13: a new key gets `UnavailableError` (full), never an unprotected run.
    CHECK_THROWS_AS(guard.run(field_key("R130.two"), {}, [&] { return ++runs; }),
                    idem::UnavailableError);
    const std::vector<idem::BatchCall> calls{{.key = field_key("R130.three")}};
    const auto outcomes = guard.run_batch(calls, [&](Execution&, std::size_t) { return ++runs; });
    CHECK_THROWS_AS(outcomes[0].get(), idem::UnavailableError);
    CHECK(runs == 0);
}

TEST_CASE("R131: nothing stands in for a store that is down: no memory of this process answers") {
    Bench b;
    const auto down = std::make_shared<std::atomic<bool>>(true);
    b.store.on_claim([down](const auto&) { return *down ? Wire::refused : Wire::good; });
    auto one = b.guard({.store_down = StoreDown::run_unprotected});
    auto two = b.guard({.store_down = StoreDown::run_unprotected});
    int runs = 0;
    const auto call = [&](auto& guard) {
        return guard.run(field_key("R131"), {}, [&] { return ++runs; });
    };
    for (auto* guard : {&one, &one, &two}) {
        const auto outcome = call(*guard);
        CHECK(outcome.executed());  // each one: nothing is pretended to be known
        CHECK_FALSE(outcome.protected_run());
    }
    CHECK(runs == 3);
    CHECK(b.memory.usage().records == 0);
    *down = false;
    CHECK(call(one).protected_run());
    CHECK(call(two).replayed());
    *down = true;
    CHECK_FALSE(call(one).protected_run());  // nor is an answer kept that was given before
    auto strict = b.guard();
    CHECK_THROWS_AS(call(strict), idem::UnavailableError);
}

TEST_CASE("R133: conflicts are no failures of the store, and are not tried again") {
    Bench b;
    auto guard = b.guard();
    const auto p = idem::Fingerprint::of_bytes("P");
    const auto q = idem::Fingerprint::of_bytes("Q");
    constexpr int callers = 64;
    const auto outcome = guard.run(field_key("R133"), p, [&] {
        const auto before = b.store.claims();
        std::atomic<int> in_progress{0};
        std::atomic<int> mismatch{0};
        {
            std::vector<std::jthread> threads;
            for (int i = 0; i < callers; ++i) {
                threads.emplace_back([&, same = i % 2 == 0] {
                    const auto other = guard.run(field_key("R133"), same ? p : q, [] { return 0; });
                    if (other.kind() == OutcomeKind::in_progress) in_progress.fetch_add(1);
                    if (other.kind() == OutcomeKind::mismatch) mismatch.fetch_add(1);
                });
            }
        }
        CHECK(in_progress == callers / 2);
        CHECK(mismatch == callers / 2);
        CHECK(b.store.claims() == before + callers);  // one look each
        return 1;
    });
    CHECK(outcome.recorded());
    CHECK(b.events.count(EventKind::store_error) == 0);
    CHECK(guard.health().ok());
    CHECK(guard.run(field_key("R133.other"), {}, [] { return 1; }).executed());
}

TEST_CASE("R133: waiters poll boundedly: their looks become rarer, and none holds the others up") {
    Bench b;
    auto guard = b.guard();
    Holder holder(b.memory, field_key("R133.wait"));
    (void)holder.claim();
    idem::RunOptions options;
    options.wait = 100ms;
    const auto outcome = guard.run(field_key("R133.wait"), {}, options, [] { return 1; });
    CHECK(outcome.kind() == OutcomeKind::in_progress);
    CHECK(b.store.claims() >= 2);
    CHECK(b.store.claims() <= 50);  // looking all the time would be thousands
}

}  // namespace field_memory_test
