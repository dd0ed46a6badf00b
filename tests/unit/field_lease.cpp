// Field cases of leases, TTLs and clocks, asked of the guard over the memory store.
//
// Left to other suites:
//   R43  a broker's visibility timeout: there is no consumer in the guard

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <time.h>

#include <idem/any_store.hpp>
#include <idem/token.hpp>

#include "support/catch.hpp"
#include "support/eventually.hpp"
#include "support/field.hpp"

namespace field_lease_test {

using namespace std::chrono_literals;
using idem::ClaimKind;
using idem::Duration;
using idem::Execution;
using idem::GuardOptions;
using idem::Instant;
using idem::OutcomeKind;
using idem::RunOptions;
using idem::UsageError;
using idem_test::Bench;
using idem_test::eventually;
using idem_test::held_retention;
using idem_test::Holder;
using idem_test::field_key;
using idem_test::lease;
using idem_test::Memory;
using idem_test::retention;
using idem_test::tick;

TEST_CASE("R26: a crashed holder blocks its key for its lease, not for the result's retention") {
    Bench b;
    auto guard = b.guard({.retention = 24h});
    Holder dead(b.memory, field_key("R26"));
    REQUIRE(dead.claim({.lease = 200ms}).kind == ClaimKind::acquired);
    b.clock.advance(199ms);
    CHECK(guard.run(field_key("R26"), {}, [] { return 1; }).kind() == OutcomeKind::in_progress);
    b.clock.advance(101ms);
    const auto outcome = guard.run(field_key("R26"), {}, [] { return 2; });
    CHECK(outcome.executed());
    CHECK(outcome.takeover());
    CHECK(outcome.attempt() == 2);
    b.clock.advance(23h);
    CHECK(guard.run(field_key("R26"), {}, [] { return 3; }).value() == 2);
}

TEST_CASE("R28: a lease of nothing or less is over at once, never without an end") {
    Bench b;
    const Duration none = GENERATE(Duration{0}, Duration{-1}, Duration{-1h});
    Holder a(b.memory, field_key("R28"));
    idem::ClaimRequest request;  // past the guard, which refuses it
    request.key = a.view();
    request.owner = a.owner;
    request.lease = none;
    request.retention = retention;
    REQUIRE(idem::claim_one(b.memory, request).kind == ClaimKind::acquired);
    const auto record = b.find(a.key);
    REQUIRE(record);
    CHECK(record->lapsed);
    CHECK(record->lease_left == Duration{});
    CHECK(b.guard().run(a.key, {}, [] { return 1; }).takeover());
}

TEST_CASE("R28: what is left of a lease is never negative, and at its end it is over") {
    Bench b;
    Holder a(b.memory, field_key("R28.left"));
    REQUIRE(a.claim().kind == ClaimKind::acquired);
    b.clock.advance(lease - tick);
    CHECK(b.find(a.key)->lease_left == tick);
    CHECK_FALSE(b.find(a.key)->lapsed);
    b.clock.advance(tick);
    CHECK(b.find(a.key)->lease_left == Duration{});
    CHECK(b.find(a.key)->lapsed);
    b.clock.advance(1h);
    CHECK(b.find(a.key)->lease_left == Duration{});
}

TEST_CASE("R29: a lease is classified right however far its end is away") {
    const Duration distance = GENERATE(Duration{1}, Duration{1ms}, Duration{1s}, Duration{1h});
    const Duration whole = GENERATE(Duration{1h + 1s}, Duration{24h * 365});
    Bench b;
    Holder a(b.memory, field_key("R29"));
    REQUIRE(a.claim({.lease = whole}).kind == ClaimKind::acquired);
    b.clock.advance(whole - distance);
    const auto before = b.guard().run(a.key, {}, [] { return 1; });
    CHECK(before.kind() == OutcomeKind::in_progress);
    CHECK(before.retry_after() == distance);
    b.clock.advance(2 * distance);
    CHECK(b.guard().run(a.key, {}, [] { return 2; }).takeover());
}

// Units cannot be mixed up: what would lose something, or is no number of microseconds at all, is
// no Duration.
static_assert(!std::is_convertible_v<std::chrono::nanoseconds, Duration>);
static_assert(!std::is_convertible_v<std::chrono::duration<double>, Duration>);
static_assert(!std::is_convertible_v<int, Duration>);
static_assert(!std::is_convertible_v<double, Duration>);
static_assert(std::is_convertible_v<std::chrono::hours, Duration>);

TEST_CASE("R31: a lease as long as the user wants: nobody takes over before its end") {
    Bench b;
    auto guard = b.guard();
    RunOptions options;
    options.lease = 1h;
    auto made = guard.claim<int>(field_key("R31"), {}, options);
    auto& claim = std::get<idem::Claim<int>>(made);
    claim.execution().stop_heartbeat();  // as if its process had died
    b.clock.advance(1h - tick);
    CHECK(guard.run(field_key("R31"), {}, [] { return 1; }).kind() == OutcomeKind::in_progress);
    b.clock.advance(tick);
    CHECK(guard.run(field_key("R31"), {}, [] { return 2; }).takeover());
}

// --- R32: durations that cannot work ------------------------------------------------------------

// The message of the UsageError that `step` throws; empty where it throws none.
std::string refusal(const std::function<void()>& step) {
    try {
        step();
        return {};
    } catch (const UsageError& e) {
        return e.what();
    }
}

// What every duration that must be positive and at most ten years refuses.
std::vector<Duration> impossible() {
    return {Duration{0},
            Duration{-1},
            Duration::min(),
            idem::duration_max + tick,
            std::chrono::duration_cast<Duration>(24h * 366 * 12),
            Duration::max()};
}

struct Field {
    const char* name;
    std::function<void(GuardOptions&, Duration)> set;
};

TEST_CASE("R32: a guard refuses a duration that cannot work, and names the field") {
    const std::vector<Field> fields{
        {"GuardOptions::lease", [](auto& o, Duration d) { o.lease = d; }},
        {"GuardOptions::retention", [](auto& o, Duration d) { o.retention = d; }},
        {"GuardOptions::held_retention", [](auto& o, Duration d) { o.held_retention = d; }},
        {"GuardOptions::record_retry", [](auto& o, Duration d) { o.record_retry = d; }},
    };
    Bench b;
    const bool heartbeat = GENERATE(true, false);
    for (const Field& field : fields) {
        for (const Duration value : impossible()) {
            GuardOptions options{.heartbeat = heartbeat};
            field.set(options, value);
            INFO(field.name << " = " << value.count());
            const auto message = refusal([&] { (void)b.guard(options); });
            CHECK(message.find(field.name) != std::string::npos);
        }
        GuardOptions options{.heartbeat = heartbeat};
        field.set(options, idem::duration_max);
        CHECK(refusal([&] { (void)b.guard(options); }).empty());
    }
    for (const Duration wait : {Duration{-1}, Duration::min(), Duration::max()}) {
        const auto message = refusal([&] { (void)b.guard({.wait = wait}); });
        CHECK(message.find("GuardOptions::wait") != std::string::npos);
    }
}

TEST_CASE("R32: a call refuses a duration that cannot work, before anything is stored") {
    Bench b;
    auto guard = b.guard();
    int runs = 0;
    const auto refused = [&](const RunOptions& options, const char* name) {
        const auto run = refusal(
            [&] { (void)guard.run(field_key("R32"), {}, options, [&] { return ++runs; }); });
        const auto claim = refusal([&] { (void)guard.claim<int>(field_key("R32"), {}, options); });
        CHECK(run.find(name) != std::string::npos);
        CHECK(claim.find(name) != std::string::npos);
    };
    for (const Duration value : impossible()) {
        INFO(value.count());
        RunOptions bad_lease;
        bad_lease.lease = value;
        refused(bad_lease, "RunOptions::lease");
        RunOptions bad_retention;
        bad_retention.retention = value;
        refused(bad_retention, "RunOptions::retention");
        if (value == Duration{0}) continue;
        RunOptions bad_wait;
        bad_wait.wait = value;
        refused(bad_wait, "RunOptions::wait");
    }
    CHECK(runs == 0);
    CHECK(b.store.claims() == 0);
    CHECK(b.memory.usage().records == 0);
}

TEST_CASE("R32: the longest durations work to their last microsecond") {
    Bench b;
    RunOptions options;
    options.lease = idem::duration_max;
    options.retention = idem::duration_max;
    auto guard = b.guard({.held_retention = idem::duration_max, .orphan = idem::Orphan::hold});
    (void)guard.run(field_key("R32.max"), {}, options, [&] {
        const auto header = b.find(field_key("R32.max"))->header;
        CHECK(header.lease_end - header.started == idem::duration_max);
        CHECK(header.retention_end > header.lease_end);
        return 1;
    });
    b.clock.advance(idem::duration_max - tick);
    CHECK(guard.run(field_key("R32.max"), {}, [] { return 2; }).replayed());
    b.clock.advance(tick);
    CHECK(guard.run(field_key("R32.max"), {}, [] { return 2; }).executed());
}

TEST_CASE("R32: a lease that no heartbeat can keep is refused where there is one") {
    Bench b;
    const auto message = refusal([&] { (void)b.guard({.lease = 10ms - tick}); });
    CHECK(message.find("GuardOptions::lease") != std::string::npos);
    CHECK(refusal([&] { (void)b.guard({.lease = 10ms}); }).empty());

    auto guard = b.guard();
    RunOptions shorter;
    shorter.lease = 10ms - tick;
    const auto call = [&](auto& of) {
        return refusal([&] { (void)of.run(field_key("R32.beat"), {}, shorter, [] { return 1; }); });
    };
    CHECK(call(guard).find("RunOptions::lease") != std::string::npos);
    CHECK(b.store.claims() == 0);

    CHECK(refusal([&] { (void)b.guard({.lease = 1us, .heartbeat = false}); }).empty());
    auto without = b.guard({.heartbeat = false});
    CHECK(idem_test::some_trial_counts([&] { return call(without).empty(); }));
}

TEST_CASE("R32: a store slower than a third of the lease is refused where there is a heartbeat") {
    Bench b;
    const Memory slow(b.memory, 2s);  // one request may take that long
    const auto make = [](const auto& store, Duration value, bool heartbeat) {
        return refusal(
            [&] { (void)idem::IdempotencyGuard(store, {.lease = value, .heartbeat = heartbeat}); });
    };
    CHECK(make(slow, 6s - tick, true).find("GuardOptions::lease") != std::string::npos);
    CHECK(make(slow, 6s, true).empty());
    CHECK(make(slow, 6s - tick, false).empty());
    CHECK(make(idem::AnyStore(slow), 6s - tick, true).find("GuardOptions::lease") !=
          std::string::npos);

    idem::IdempotencyGuard guard(slow);
    RunOptions shorter;
    shorter.lease = 6s - tick;
    const auto run =
        refusal([&] { (void)guard.run(field_key("R32.slow"), {}, shorter, [] { return 1; }); });
    CHECK(run.find("RunOptions::lease") != std::string::npos);
    const auto claim = refusal([&] { (void)guard.claim<int>(field_key("R32.slow"), {}, shorter); });
    CHECK(claim.find("RunOptions::lease") != std::string::npos);
    CHECK(slow.claims() == 0);
    shorter.lease = 6s;
    CHECK(guard.run(field_key("R32.slow"), {}, shorter, [] { return 1; }).recorded());
}

TEST_CASE("R32: tokens and detached claims refuse the same durations") {
    Bench b;
    auto guard = b.guard();
    for (const Duration value : impossible()) {
        INFO(value.count());
        const auto issuer =
            refusal([&] { (void)idem::TokenIssuer(b.store, "field.token", {.validity = value}); });
        CHECK(issuer.find("TokenOptions::validity") != std::string::npos);

        auto made = guard.claim<int>(field_key("R32.detach"), {});
        auto& claim = std::get<idem::Claim<int>>(made);
        const auto detach = refusal([&] { (void)std::move(claim).detach(value); });
        CHECK(detach.find("detach") != std::string::npos);
        CHECK(claim.held());  // it is still open here
    }
}

// --- records end --------------------------------------------------------------------------------

// One random request of any kind on one of a few keys.
void random_step(std::mt19937_64& random, idem::MemoryStore& store,
                 std::vector<Holder<idem::MemoryStore>>& holders) {
    auto& holder = holders[random() % holders.size()];
    const auto some = [&](Duration most) {
        return Duration(
            1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most.count())));
    };
    switch (random() % 9) {
        case 0: holder.owner = idem::detail::new_owner(); [[fallthrough]];
        case 1: (void)holder.claim({.lease = some(lease), .retention = some(1h)}); break;
        case 2: (void)holder.complete(1); break;
        case 3: (void)holder.release(); break;
        case 4: (void)holder.renew(); break;
        case 5: (void)idem::finish_one(store, holder.finish_request(idem::FinishKind::fail)); break;
        case 6:
            (void)idem::finish_one(store, holder.finish_request(idem::FinishKind::quarantine));
            break;
        case 7: (void)idem::forget_one(store, {.key = holder.view(), .lease = lease}); break;
        default:
            (void)idem::issue_one(store, {.key = holder.view(),
                                          .owner = holder.owner,
                                          .validity = some(1h),
                                          .retention = some(1h)});
    }
}

TEST_CASE("R34: after any history every record still has an end, and none outlives it") {
    const auto seed = std::random_device{}();
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    Bench b;
    std::vector<Holder<idem::MemoryStore>> holders;
    for (int i = 0; i < 40; ++i)
        holders.emplace_back(b.memory, field_key("R34." + std::to_string(i)));
    int seen = 0;
    for (int step = 0; step < 5'000; ++step) {
        random_step(random, b.memory, holders);
        b.clock.advance(Duration(static_cast<std::int64_t>(random() % 2'000'000)));
        const auto& some = holders[random() % holders.size()];
        const auto record = b.find(some.key);
        if (!record) continue;
        ++seen;
        REQUIRE(record->header.retention_end > b.clock.now());
        REQUIRE(record->header.retention_end - b.clock.now() <=
                2 * lease + retention + held_retention);
    }
    CHECK(seen > 0);
    CHECK(b.memory.usage().records > 0);
    b.clock.advance(2 * lease + retention + held_retention);
    while (b.memory.purge(7).more) {
    }
    CHECK(b.memory.usage().records == 0);
}

TEST_CASE("R35: a record past its retention is nothing, though nobody has removed it") {
    Bench b;
    auto guard = b.guard({.retention = 1h});
    (void)guard.run(field_key("R35"), {}, [] { return 1; });
    b.clock.advance(1h - tick);
    CHECK(guard.find(field_key("R35")));
    CHECK(guard.list().records.size() == 1);
    CHECK(guard.run(field_key("R35"), {}, [] { return 2; }).replayed());
    b.clock.advance(tick);
    CHECK(b.memory.usage().records == 1);  // it lies there still
    CHECK_FALSE(guard.find(field_key("R35")));
    CHECK(guard.list().records.empty());
    CHECK_FALSE(guard.forget(field_key("R35")));
    const auto outcome = guard.run(field_key("R35"), {}, [] { return 2; });
    CHECK(outcome.executed());
    CHECK(outcome.attempt() == 1);
}

TEST_CASE("R37: a record that is released long after its lease is kept from that moment on") {
    Bench b;
    Holder a(b.memory, field_key("R37"));
    REQUIRE(a.claim({.retention = 1h}).kind == ClaimKind::acquired);
    b.clock.advance(lease + 1h - tick);  // the last moment of its claim's retention
    auto release = a.finish_request(idem::FinishKind::release);
    release.retention = 1h;
    REQUIRE_FALSE(idem::finish_one(b.memory, release).lost);
    b.clock.advance(1h - tick);
    CHECK(b.memory.purge(100).removed == 0);
    CHECK(b.find(a.key)->header.attempt == 1);
    b.clock.advance(tick);
    CHECK(b.memory.purge(100).removed == 1);
}

TEST_CASE("R38: purge removes what is past its retention, and no orphan before that") {
    Bench b;
    Holder orphan(b.memory, field_key("R38.orphan"));
    Holder gone(b.memory, field_key("R38.gone"));
    Holder live(b.memory, field_key("R38.live"));
    REQUIRE(orphan.claim({.retention = 2h}).kind == ClaimKind::acquired);
    REQUIRE(gone.claim({.retention = 1h}).kind == ClaimKind::acquired);
    b.clock.advance(lease + 1h);
    CHECK(b.memory.purge(100).removed == 1);
    REQUIRE(live.claim().kind == ClaimKind::acquired);
    CHECK(b.memory.purge(100).removed == 0);
    CHECK(b.find(orphan.key)->lapsed);
    CHECK_FALSE(b.find(gone.key));
    CHECK_FALSE(b.find(live.key)->lapsed);
    CHECK(b.memory.usage().records == 2);
}

TEST_CASE("R38: two that purge at once remove each record once, and nothing that stands") {
    Bench b;
    constexpr std::size_t each = 2'000;
    std::vector<Holder<idem::MemoryStore>> live;
    for (std::size_t i = 0; i < each; ++i) {
        Holder gone(b.memory, field_key("R38.gone." + std::to_string(i)));
        live.emplace_back(b.memory, field_key("R38.live." + std::to_string(i)));
        (void)gone.claim({.retention = 1h});
        (void)live.back().claim({.retention = 3h});
    }
    b.clock.advance(lease + 1h);
    std::atomic<std::size_t> removed{0};
    std::atomic<bool> over_limit{false};
    std::barrier gate(2);
    const auto purge = [&] {
        idem::MemoryStore store = b.memory;
        gate.arrive_and_wait();
        for (bool more = true; more;) {
            const auto reply = store.purge(10);
            if (reply.removed > 10) over_limit = true;
            removed.fetch_add(reply.removed);
            more = reply.more;
        }
    };
    {
        std::jthread const other(purge);
        purge();
    }
    CHECK(removed == each);
    CHECK_FALSE(over_limit);
    for (const auto& holder : live) REQUIRE(b.find(holder.key));
}

// --- whose clock --------------------------------------------------------------------------------

// One lease ends by this machine's clock, and only later by the store's.
bool lease_ends_here_first(Duration jump) {
    Bench b;
    b.clock.advance(jump);  // far from this machine's clock, in either direction
    auto one = b.guard({.lease = 100ms, .heartbeat = false});
    auto two = b.guard({.lease = 100ms, .heartbeat = false});
    const auto outcome = one.run(field_key("R40"), {}, [&](Execution& execution) {
        CHECK(eventually([&] { return !execution.held(); }));
        const auto other = two.run(field_key("R40"), {}, [] { return 2; });
        CHECK(other.kind() == OutcomeKind::in_progress);
        CHECK(other.retry_after() == 100ms);
        b.clock.advance(100ms);
        return two.run(field_key("R40"), {}, [] { return 2; }).takeover();
    });
    CHECK(outcome.value());
    CHECK_FALSE(outcome.recorded());
    return true;
}

TEST_CASE("R40: only the store's clock decides; time that passes here takes no lease away") {
    const Duration jump = GENERATE(Duration{0}, Duration{1h}, Duration{-1h});
    CHECK(idem_test::some_trial_counts([&] { return lease_ends_here_first(jump); }));
}

TEST_CASE("R41: a wait ends on its own budget though the store's clock steps back") {
    Bench b;
    auto guard = b.guard();
    Holder holder(b.memory, field_key("R41"));
    REQUIRE(holder.claim().kind == ClaimKind::acquired);
    b.store.after_claim([clock = b.clock](const auto&, const auto&) { clock.advance(-1h); });
    RunOptions options;
    options.wait = 40ms;
    const auto begin = idem::LocalClock::now();
    const auto outcome = guard.run(field_key("R41"), {}, options, [] { return 1; });
    CHECK(idem::LocalClock::now() - begin >= 40ms);
    CHECK(outcome.kind() == OutcomeKind::in_progress);
    CHECK(b.store.claims() >= 3);  // it has polled meanwhile
}

TEST_CASE("R41: local deadlines are counted on a clock that nobody can set") {
    static_assert(idem::LocalClock::is_steady);
    const auto boot_time = [] {
        timespec t{};
        REQUIRE(clock_gettime(CLOCK_BOOTTIME, &t) == 0);
        return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
    };
    const auto before = boot_time();
    const auto now = idem::LocalClock::now().time_since_epoch();
    CHECK(before <= now);
    CHECK(now <= boot_time());
}

}  // namespace field_lease_test
