// Goal: options are aggregates that can be written field by field, and a value that cannot work is
// refused before anything happens, by the field's name.

#include <chrono>
#include <cstdint>
#include <exception>
#include <limits>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <idem/memory/store.hpp>
#include <idem/token.hpp>

#include "support/catch.hpp"
#include "support/features.hpp"

using namespace idem_test;
using namespace std::chrono_literals;

namespace options_test {

using idem::Duration;
using idem::GuardOptions;
using idem::RunOptions;

const std::vector<Duration> not_positive_or_too_long{Duration{0}, Duration{-1}, Duration::min(),
                                                     idem::duration_max + 1us, Duration::max()};

template <class Make>
[[nodiscard]] std::string refusal(Make&& make) {
    try {
        make();
    } catch (const idem::UsageError& e) {
        return e.what();
    }
    return "";
}

[[nodiscard]] std::string refusal_of(const GuardOptions& options) {
    return refusal([&] { (void)SpyGuard(SpyStore(), options); });
}

TEST_CASE("every option can be written by its name, in this order", "[options]") {
    const GuardOptions guard{
        .lease = 1min,
        .retention = 2h,
        .held_retention = 3h,
        .wait = 4s,
        .result_bytes_max = 5,
        .heartbeat = false,
        .max_hold = 5min,
        .orphan = idem::Orphan::verify,
        .store_down = idem::StoreDown::run_unprotected,
        .max_attempts = 6,
        .max_crashes = 7,
        .classify = [](std::exception_ptr) { return std::optional<idem::Failure>(); },
        .verify = [](const idem::Key&, idem::Execution&) { return idem::Verdict::not_done(); },
        .record_retry = 8min,
        .events = [](const idem::Event&) {},
        .event_raw_ids = true,
        .concurrency_max = 9,
    };
    CHECK(refusal_of(guard).empty());
    const RunOptions run{
        .lease = 1min,
        .retention = 2h,
        .wait = 3s,
        .request_id = "req",
        .stop_token = std::stop_token(),
        .redeem_only = true,
        .fingerprint_before = idem::Fingerprint::of_bytes("before"),
    };
    CHECK(SpyGuard(SpyStore(), guard).run(key(), {}, run, [] { return 1; }).kind() ==
          idem::OutcomeKind::absent);
    const idem::TokenOptions token{.validity = 1min, .guard = guard};
    CHECK_NOTHROW(idem::TokenIssuer<SpyStore>(SpyStore(), "s", token));
    const idem::MemoryOptions memory{
        .records_max = 1, .bytes_max = 2, .reserve = 3, .clock = idem::detail::boot_clock_now};
    CHECK_NOTHROW(idem::MemoryStore(memory));
    const idem::ListQuery query{.component = idem::Component::call,
                                .scope = "s",
                                .tenant = "t",
                                .state = idem::State::unknown,
                                .lapsed = true,
                                .created_before = 1s,
                                .limit = 10,
                                .cursor = ""};
    CHECK(SpyGuard(SpyStore()).list(query).records.empty());
    const idem::BatchCall call{.key = key(), .fingerprint = {}, .request_id = "req"};
    CHECK(call.key == key());
}

TEST_CASE("what is not written has the documented default", "[options]") {
    const GuardOptions options;
    CHECK(options.lease == 30s);
    CHECK(options.retention == 24h);
    CHECK(options.held_retention == 24h * 30);
    CHECK(options.wait == 0s);
    CHECK(options.result_bytes_max == 1U << 20U);
    CHECK(options.heartbeat);
    CHECK(options.max_hold == 0s);
    CHECK(options.orphan == idem::Orphan::rerun);
    CHECK(options.store_down == idem::StoreDown::refuse);
    CHECK(options.max_attempts == 0);
    CHECK(options.max_crashes == 5);
    CHECK(options.concurrency_max == 0);
    CHECK_FALSE(options.event_raw_ids);
    CHECK(refusal_of(options).empty());
    CHECK(SpyGuard(SpyStore()).run(key(), {}, {}, [] { return 1; }).executed());
}

TEST_CASE("a duration that cannot work is refused by its name", "[options]") {
    const std::vector<std::pair<std::string, Duration GuardOptions::*>> fields{
        {"GuardOptions::lease", &GuardOptions::lease},
        {"GuardOptions::retention", &GuardOptions::retention},
        {"GuardOptions::held_retention", &GuardOptions::held_retention},
        {"GuardOptions::record_retry", &GuardOptions::record_retry},
    };
    for (const auto& [name, field] : fields) {
        for (const Duration bad : not_positive_or_too_long) {
            GuardOptions options;
            options.*field = bad;
            CAPTURE(name, bad.count());
            CHECK(refusal_of(options).find(name) == 0);
        }
        GuardOptions longest;
        longest.*field = idem::duration_max;
        CHECK(refusal_of(longest).empty());
    }
    for (const Duration bad : {Duration{-1}, Duration::min(), idem::duration_max + 1us})
        CHECK(refusal_of({.wait = bad}).find("GuardOptions::wait") == 0);
    CHECK(refusal_of({.wait = idem::duration_max}).empty());
    for (const Duration bad : not_positive_or_too_long)
        CHECK((bad == 0s || refusal_of({.max_hold = bad}).find("GuardOptions::max_hold") == 0));
    CHECK(refusal_of({.lease = 3s, .max_hold = 2999ms}).find("GuardOptions::max_hold") == 0);
    CHECK(refusal_of({.lease = 3s, .max_hold = 3s}).empty());
}

TEST_CASE("a duration of one call that cannot work is refused before the store is asked",
          "[options]") {
    SpyStore store;
    SpyGuard guard(store);
    const auto refused = [&](const RunOptions& options) {
        const auto by_run = refusal([&] { (void)guard.run(key(), {}, options, [] {}); });
        const auto by_claim = refusal([&] { (void)guard.claim<int>(key(), {}, options); });
        CHECK(by_run == by_claim);
        return by_run;
    };
    for (const Duration bad : not_positive_or_too_long) {
        CAPTURE(bad.count());
        CHECK(refused({.lease = bad}).find("RunOptions::lease") == 0);
        CHECK(refused({.retention = bad}).find("RunOptions::retention") == 0);
    }
    for (const Duration bad : {Duration{-1}, Duration::min(), idem::duration_max + 1us})
        CHECK(refused({.wait = bad}).find("RunOptions::wait") == 0);
    CHECK(store.calls() == 0);
}

TEST_CASE("a lease that no heartbeat can keep is refused, unless there is none", "[options]") {
    CHECK(refusal_of({.lease = 10ms - 1us}).find("GuardOptions::lease") == 0);
    CHECK(refusal_of({.lease = 10ms - 1us}).find("GuardOptions::heartbeat") != std::string::npos);
    CHECK(refusal_of({.lease = 10ms}).empty());
    CHECK(refusal_of({.lease = 1us, .heartbeat = false}).empty());
    SpyGuard beats((SpyStore()));
    SpyGuard quiet(SpyStore(), {.heartbeat = false});
    const RunOptions brief{.lease = 1us};
    CHECK(refusal([&] { (void)beats.claim<int>(key(), {}, brief); }).find("RunOptions::lease") ==
          0);
    CHECK(refusal([&] { (void)quiet.claim<int>(key(), {}, brief); }).empty());
}

TEST_CASE("a lease too short for the store is refused, for the guard and for one call",
          "[options]") {
    const SpyStore slow({}, 3s);
    const auto of_guard = [&](Duration lease, bool heartbeat) {
        return refusal([&] { (void)SpyGuard(slow, {.lease = lease, .heartbeat = heartbeat}); });
    };
    CHECK(of_guard(9s - 1us, true).find("GuardOptions::lease") == 0);
    CHECK(of_guard(9s, true).empty());
    CHECK(of_guard(1s, false).empty());
    SpyGuard guard(slow);
    const auto of_call = [&](Duration lease) {
        return refusal([&] { (void)guard.claim<int>(key(), {}, {.lease = lease}); });
    };
    CHECK(of_call(9s - 1us).find("RunOptions::lease") == 0);
    CHECK(of_call(9s).empty());
}

TEST_CASE("verify without somebody to ask is refused by both names", "[options]") {
    const auto what = refusal_of({.orphan = idem::Orphan::verify});
    CHECK(what.find("GuardOptions::orphan") != std::string::npos);
    CHECK(what.find("GuardOptions::verify") != std::string::npos);
}

TEST_CASE("lease and retention of one call reach the store", "[options]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    const RunOptions options{.lease = 2h, .retention = 48h};
    auto claim = claimed<int>(guard.claim<int>(key(), {}, options));
    CHECK(guard.find(key())->lease_left == 2h);
    (void)std::move(claim).complete(1);
    CHECK(guard.find(key())->header.retention_end == stage.clock.now() + 48h);
    stage.clock.advance(48h - 1us);
    CHECK(guard.run(key(), {}, [] { return 2; }).value() == 1);
    stage.clock.advance(1us);
    CHECK(guard.run(key(), {}, [] { return 2; }).executed());
}

TEST_CASE("an answer is kept for a day by default, a lease ends by itself", "[options]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    (void)guard.run(key(), {}, [] { return 1; });
    stage.clock.advance(24h - 1us);
    CHECK(guard.run(key(), {}, [] { return 2; }).replayed());
    (void)claimed<int>(guard.claim<int>(key("gone"), {})).detach(1us);
    stage.clock.advance(30s - 1us);
    CHECK(guard.run(key("gone"), {}, [] { return 2; }).kind() == idem::OutcomeKind::in_progress);
    stage.clock.advance(1us);
    CHECK(guard.run(key("gone"), {}, [] { return 2; }).takeover());
}

}  // namespace options_test
