// Goal: a claim whose work ends elsewhere is finished exactly once, by whoever has it: this thread,
// another one, or another process days later. Method: every way to end one, and every way to end
// one that is not there any more.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "support/catch.hpp"
#include "support/features.hpp"

using namespace idem_test;
using namespace std::chrono_literals;

namespace two_phase_test {

using idem::FailureClass;
using idem::LostReason;
using idem::OutcomeKind;
using idem::State;

template <class R>
[[nodiscard]] idem::Outcome<R> answered(std::variant<idem::Claim<R>, idem::Outcome<R>> answer) {
    return std::get<idem::Outcome<R>>(std::move(answer));
}

TEST_CASE("a completed claim is replayed to everybody", "[two_phase]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    const auto request = idem::Fingerprint::of_bytes("a");
    auto claim = claimed<std::string>(guard.claim<std::string>(key(), request));
    CHECK(claim.key() == key());
    CHECK(claim.attempt() == 1);
    CHECK(claim.fence() == guard.find(key())->header.fence);
    CHECK_FALSE(claim.takeover());
    CHECK(claim.held());
    CHECK_FALSE(claim.stop_token().stop_requested());
    claim.execution().resource("order/7");

    const auto repeat = answered<std::string>(guard.claim<std::string>(key(), request));
    CHECK(repeat.kind() == OutcomeKind::in_progress);
    const auto pending = claim.pending();
    CHECK(pending.kind() == repeat.kind());
    CHECK(pending.attempt() == repeat.attempt());
    CHECK(pending.fence() == repeat.fence());
    CHECK(pending.takeover() == repeat.takeover());
    CHECK(pending.retry_after() == guard.options().lease);
    CHECK(answered<std::string>(guard.claim<std::string>(key(), idem::Fingerprint::of_bytes("b")))
              .kind() == OutcomeKind::mismatch);

    const auto fence = claim.fence();
    const auto outcome = std::move(claim).complete("done");
    CHECK(outcome.executed());
    CHECK(outcome.recorded());
    CHECK(outcome.value() == "done");
    CHECK(outcome.fence() == fence);
    CHECK(outcome.resource_id() == "order/7");
    const auto replay = answered<std::string>(guard.claim<std::string>(key(), request));
    CHECK(replay.replayed());
    CHECK(replay.value() == "done");
    CHECK(replay.resource_id() == "order/7");
    CHECK(guard.run(key(), request, [] { return std::string("again"); }).value() == "done");
}

TEST_CASE("a claim without a result is completed without one", "[two_phase]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    auto claim = claimed<void>(guard.claim<void>(key(), {}));
    CHECK(std::move(claim).complete().recorded());
    CHECK(guard.run(key(), {}, [] {}).replayed());
}

TEST_CASE("a failed claim is settled by the failure's class", "[two_phase]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    const auto fail = [&](idem::Failure failure) {
        claimed<int>(guard.claim<int>(key(), {})).execution().resource("made/1");
        auto claim = claimed<int>(guard.claim<int>(key(), {}));
        std::move(claim).fail(failure);
        return guard.find(key())->header.state;
    };
    CHECK(fail({FailureClass::retryable, "busy", "later"}) == State::released);
    CHECK(guard.find(key())->failure() == idem::Failure{FailureClass::retryable, "busy", "later"});
    CHECK(fail({FailureClass::final, "422", "never"}) == State::failed);
    const auto replay = guard.run(key(), {}, [] { return 1; });
    CHECK(replay.kind() == OutcomeKind::failed);
    CHECK(replay.failure() == idem::Failure{FailureClass::final, "422", "never"});
    REQUIRE(guard.forget(key()));
    CHECK(fail({FailureClass::unknown, "504", "who knows"}) == State::unknown);
    CHECK(guard.run(key(), {}, [] { return 1; }).kind() == OutcomeKind::unknown);
}

TEST_CASE("a released claim lets the next one run, counted", "[two_phase]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    std::move(claimed<int>(guard.claim<int>(key(), {}))).release();
    auto again = claimed<int>(guard.claim<int>(key(), {}));
    CHECK(again.attempt() == 2);
    CHECK_FALSE(again.takeover());
}

TEST_CASE("a quarantined claim waits for a person", "[two_phase]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    std::move(claimed<int>(guard.claim<int>(key(), {}))).quarantine("the gateway timed out");
    const auto held = guard.find(key());
    CHECK(held->header.state == State::unknown);
    CHECK(held->failure().message == "the gateway timed out");
    CHECK(held->failure().kind == FailureClass::unknown);
    CHECK(guard.resolve(key(), held->header.fence, idem::Resolution::done(9)));
    CHECK(guard.run(key(), {}, [] { return 1; }).value() == 9);
}

TEST_CASE("a claim that is dropped is released, with one request", "[two_phase]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    { auto dropped = claimed<int>(guard.claim<int>(key(), {})); }
    CHECK(stage.store.finishes() == 1);
    CHECK(guard.find(key())->header.state == State::released);

    auto kept = claimed<int>(guard.claim<int>(key(), {}));
    auto over = claimed<int>(guard.claim<int>(key("other"), {}));
    over = std::move(kept);  // what was there before is dropped
    CHECK(guard.find(key("other"))->header.state == State::released);
    CHECK(guard.find(key())->header.state == State::running);
    auto& self = over;
    over = std::move(self);
    CHECK(over.held());
    CHECK(std::move(over).complete(1).recorded());
}

TEST_CASE("a destructor survives a store that is away, also while another exception is on its way",
          "[two_phase]") {
    const Way way = GENERATE(Way::refuse, Way::lose_answer, Way::raise);
    Stage stage;
    SpyGuard guard = stage.guard();
    stage.store.on_finish([=](auto) { return way; });
    try {
        auto dropped = claimed<int>(guard.claim<int>(key(), {}));
        throw std::string("the caller's own");
    } catch (const std::string& e) {
        CHECK(e == "the caller's own");
    }
    stage.store.on_finish({});
    CHECK(eventually([&] { return guard.health().unrecorded == 0; }));  // left to the background
    CHECK(guard.find(key())->header.state == State::released);
}

TEST_CASE("a claim that has been finished, detached or moved from says so", "[two_phase]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    auto claim = claimed<int>(guard.claim<int>(key(), {}));
    auto moved = std::move(claim);
    const auto all_refuse = [](idem::Claim<int>& spent) {
        CHECK_THROWS_AS(spent.key(), idem::UsageError);
        CHECK_THROWS_AS(spent.fence(), idem::UsageError);
        CHECK_THROWS_AS(spent.attempt(), idem::UsageError);
        CHECK_THROWS_AS(spent.takeover(), idem::UsageError);
        CHECK_THROWS_AS(spent.held(), idem::UsageError);
        CHECK_THROWS_AS(spent.stop_token(), idem::UsageError);
        CHECK_THROWS_AS(spent.execution(), idem::UsageError);
        CHECK_THROWS_AS(std::move(spent).complete(1), idem::UsageError);
        CHECK_THROWS_AS(std::move(spent).fail({}), idem::UsageError);
        CHECK_THROWS_AS(std::move(spent).release(), idem::UsageError);
        CHECK_THROWS_AS(std::move(spent).quarantine(), idem::UsageError);
        CHECK_THROWS_AS(std::move(spent).detach(1s), idem::UsageError);
    };
    all_refuse(claim);  // NOLINT: that is the question
    CHECK(std::move(moved).complete(1).recorded());
    all_refuse(moved);  // NOLINT
    CHECK(stage.store.finishes() == 1);
    auto detached = claimed<int>(guard.claim<int>(key("other"), {}));
    (void)std::move(detached).detach(1h);
    all_refuse(detached);  // NOLINT
    CHECK(guard.find(key("other"))->header.state == State::running);
}

TEST_CASE("a claim is finished by another thread than the one that made it", "[two_phase]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    auto claim = claimed<int>(guard.claim<int>(key(), {}));
    bool recorded = false;
    std::thread([&recorded, claim = std::move(claim)]() mutable {
        recorded = claim.held() && std::move(claim).complete(7).recorded();
    }).join();
    CHECK(recorded);
    CHECK(guard.run(key(), {}, [] { return 0; }).value() == 7);
}

TEST_CASE("a completion that cannot be recorded hands the value on and is tried again",
          "[two_phase]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    auto claim = claimed<int>(guard.claim<int>(key(), {}));
    stage.store.on_finish([](auto) { return Way::refuse; });
    const auto outcome = std::move(claim).complete(7);
    CHECK(outcome.value() == 7);
    CHECK_FALSE(outcome.recorded());
    CHECK(outcome.unrecorded_reason() == idem::UnrecordedReason::unavailable);
    stage.store.on_finish({});
    CHECK(eventually([&] { return guard.health().unrecorded == 0; }));
    CHECK(guard.run(key(), {}, [] { return 0; }).value() == 7);
}

TEST_CASE("an unprotected claim says so, and asks the store for nothing", "[two_phase]") {
    Stage stage;
    SpyGuard guard = stage.guard({.store_down = idem::StoreDown::run_unprotected});
    stage.store.down(true);
    const auto claim = [&] { return claimed<int>(guard.claim<int>(key(), {})); };
    auto done = claim();
    CHECK_FALSE(done.held());
    const auto outcome = std::move(done).complete(7);
    CHECK(outcome.executed());
    CHECK(outcome.value() == 7);
    CHECK_FALSE(outcome.protected_run());
    CHECK(outcome.unrecorded_reason() == idem::UnrecordedReason::unprotected);
    std::move(claim()).release();
    std::move(claim()).fail({FailureClass::final, "x", "y"});
    { auto dropped = claim(); }
    CHECK_THROWS_AS(std::move(claim()).detach(1h), idem::LeaseLostError);
    CHECK(stage.store.finishes() == 0);
    CHECK(stage.store.renewals() == 0);
    stage.store.down(false);
    CHECK_FALSE(guard.find(key()));
}

// --- tickets ------------------------------------------------------------------------------------

[[nodiscard]] std::vector<idem::Ticket> tickets() {
    const std::string any_bytes("\0\xFF\r\n{}%'\"\x80", 10);
    const std::string longest(255, 'x');
    idem::Owner owner;
    owner.bytes.fill('\x7F');
    owner.bytes[0] = '\0';
    std::vector<idem::Ticket> made;
    for (const auto component : idem::components)
        made.push_back({component, key(), owner, 1});
    made.push_back({idem::Component::call, {any_bytes, any_bytes, any_bytes}, owner, ~0ULL});
    made.push_back({idem::Component::call, {longest, longest, longest}, owner, 1ULL << 63U});
    made.push_back({idem::Component::call, {"s", "i", ""}, idem::Owner{}, 0});
    return made;
}

TEST_CASE("a ticket's text brings back the same ticket", "[ticket]") {
    for (const auto& ticket : tickets()) {
        const auto text = ticket.to_string();
        CAPTURE(text);
        CHECK(text.find_first_not_of("0123456789abcdef") == std::string::npos);
        const auto back = idem::Ticket::parse(text);
        CHECK(back == ticket);
        CHECK(back.component() == ticket.component());
        CHECK(back.key() == ticket.key());
        CHECK(back.owner() == ticket.owner());
        CHECK(back.fence() == ticket.fence());
    }
}

TEST_CASE("a text that is no ticket is refused, and so is every damaged one", "[ticket]") {
    for (const std::string_view garbage : {"", "0", "00", "ticket", "zz", "  ", "\xFF\xFF"})
        CHECK_THROWS_AS(idem::Ticket::parse(garbage), idem::UsageError);
    CHECK_THROWS_AS(idem::Ticket::parse(std::string(10'000, 'a')), idem::UsageError);
    for (const auto& ticket : tickets()) {
        const auto text = ticket.to_string();
        for (std::size_t size = 0; size < text.size(); ++size) {
            CAPTURE(text, size);
            CHECK_THROWS_AS(idem::Ticket::parse(text.substr(0, size)), idem::UsageError);
            CHECK_THROWS_AS(idem::Ticket::parse(text.substr(text.size() - size)), idem::UsageError);
            auto other = text;
            other[size] = other[size] == '0' ? '1' : '0';
            CHECK_THROWS_AS(idem::Ticket::parse(other), idem::UsageError);
        }
        CHECK_THROWS_AS(idem::Ticket::parse(text + "00"), idem::UsageError);
        CHECK_THROWS_AS(idem::Ticket::parse(text + text), idem::UsageError);
    }
}

TEST_CASE("a detached claim is finished days later by another process", "[ticket]") {
    Stage stage;
    SpyGuard here = stage.guard();
    auto claim = claimed<std::string>(here.claim<std::string>(key(), {}));
    claim.execution().resource("video/7");
    claim.execution().checkpoint("sent to the encoder");
    const auto fence = claim.fence();
    const std::string text = std::move(claim).detach(72h).to_string();
    CHECK(stage.store.finishes() == 0);  // nothing was released

    SpyGuard there(stage.store);
    stage.clock.advance(48h);
    const auto repeat = there.run(key(), {}, [] { return std::string("again"); });
    CHECK(repeat.kind() == OutcomeKind::in_progress);
    CHECK(repeat.retry_after() == 24h);

    auto resumed = there.resume<std::string>(idem::Ticket::parse(text));
    CHECK(resumed.held());
    CHECK(resumed.fence() == fence);
    CHECK(resumed.attempt() == 1);
    CHECK_FALSE(resumed.takeover());
    CHECK(resumed.execution().checkpoint() == "sent to the encoder");
    CHECK(resumed.execution().resource() == "video/7");
    CHECK(std::move(resumed).complete("encoded").recorded());
    const auto replay = here.run(key(), {}, [] { return std::string("again"); });
    CHECK(replay.value() == "encoded");
    CHECK(replay.resource_id() == "video/7");
}

TEST_CASE("detaching and resuming never shorten a lease", "[ticket]") {
    Stage stage;
    SpyGuard guard = stage.guard({.lease = 1h});
    const auto ticket = claimed<int>(guard.claim<int>(key(), {})).detach(1s);
    CHECK(guard.find(key())->lease_left == 1h);
    auto resumed = stage.guard({.lease = 1s}).resume<int>(ticket);
    CHECK(guard.find(key())->lease_left == 1h);
    (void)std::move(resumed).detach(2h);
    CHECK(guard.find(key())->lease_left == 2h);
}

TEST_CASE("a ticket whose deadline has passed still stands until somebody takes over", "[ticket]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    const auto ticket = claimed<int>(guard.claim<int>(key(), {})).detach(1h);
    stage.clock.advance(2h);
    auto resumed = guard.resume<int>(ticket);
    CHECK(resumed.held());
    CHECK(guard.run(key(), {}, [] { return 1; }).kind() == OutcomeKind::in_progress);
    CHECK(std::move(resumed).complete(5).recorded());
}

TEST_CASE("resuming what is lost says why", "[ticket]") {
    const auto how = GENERATE(LostReason::other_owner, LostReason::finished, LostReason::forgotten,
                              LostReason::gone);
    CAPTURE(to_string(how));
    Stage stage;
    SpyGuard guard = stage.guard();
    const auto ticket = claimed<int>(guard.claim<int>(key(), {})).detach(1h);
    std::optional<idem::Claim<int>> other;
    stage.clock.advance(2h);
    switch (how) {
        case LostReason::other_owner:
            other.emplace(claimed<int>(guard.claim<int>(key(), {})));
            CHECK(other->takeover());
            break;
        case LostReason::finished: (void)guard.run(key(), {}, [] { return 2; }); break;
        case LostReason::forgotten: REQUIRE(guard.forget(key())); break;
        default: stage.clock.advance(24h);
    }
    const auto before = guard.find(key());
    try {
        (void)guard.resume<int>(ticket);
        FAIL("it was resumed");
    } catch (const idem::LeaseLostError& e) {
        CHECK(e.reason() == how);
    }
    const auto after = guard.find(key());
    REQUIRE(before.has_value() == after.has_value());
    if (before) CHECK(before->header == after->header);
}

TEST_CASE("a ticket that was used up is lost, however it was finished", "[ticket]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    const auto ticket = claimed<int>(guard.claim<int>(key(), {})).detach(1h);
    const int how = GENERATE(0, 1, 2);
    auto resumed = guard.resume<int>(ticket);
    switch (how) {
        case 0: (void)std::move(resumed).complete(1); break;
        case 1: std::move(resumed).release(); break;
        default: std::move(resumed).quarantine();
    }
    CHECK_THROWS_AS(guard.resume<int>(ticket), idem::LeaseLostError);
}

TEST_CASE("a ticket of another component is refused before the store is asked", "[ticket]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    const idem::Ticket ticket(idem::Component::token, key(), idem::Owner{}, 1);
    CHECK_THROWS_AS(guard.resume<int>(ticket), idem::UsageError);
    CHECK(stage.store.calls() == 0);
}

TEST_CASE("a detach that does not reach the store leaves the claim open", "[ticket]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    auto claim = claimed<int>(guard.claim<int>(key(), {}));
    const Way way = GENERATE(Way::refuse, Way::lose_answer);
    stage.store.on_renew([=](auto) { return way; });
    CHECK_THROWS_AS(std::move(claim).detach(1h), idem::UnavailableError);
    stage.store.on_renew({});
    CHECK_THROWS_AS(std::move(claim).detach(0s), idem::UsageError);
    CHECK_THROWS_AS(std::move(claim).detach(-1s), idem::UsageError);
    CHECK(claim.held());
    const auto ticket = std::move(claim).detach(1h);
    stage.store.on_renew([=](auto) { return way; });
    CHECK_THROWS_AS(guard.resume<int>(ticket), idem::UnavailableError);
    stage.store.on_renew({});
    CHECK(guard.resume<int>(ticket).held());  // and can be resumed once the store is back
}

TEST_CASE("detaching a claim that the store gave to another says so", "[ticket]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    auto claim = claimed<int>(guard.claim<int>(key(), {}));
    stage.clock.advance(31s);
    auto other = claimed<int>(stage.guard().claim<int>(key(), {}));
    const auto stop = claim.stop_token();
    try {
        (void)std::move(claim).detach(1h);
        FAIL("it was detached");
    } catch (const idem::LeaseLostError& e) {
        CHECK(e.reason() == LostReason::other_owner);
    }
    CHECK(stop.stop_requested());
    CHECK(std::move(other).complete(2).recorded());
}

TEST_CASE("a resumed claim lives by the options it is resumed with", "[ticket]") {
    Stage stage;
    SpyGuard guard = stage.guard({.retention = 24h});
    const auto ticket = claimed<int>(guard.claim<int>(key(), {}, {.retention = 720h})).detach(1h);
    (void)guard.resume<int>(ticket, {.retention = 720h}).complete(7);
    stage.clock.advance(719h);
    CHECK(guard.run(key(), {}, [] { return 8; }).value() == 7);
}

TEST_CASE("a resume that cannot read what was noted does not go on without it", "[ticket]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    auto claim = claimed<int>(guard.claim<int>(key(), {}));
    claim.execution().checkpoint("charged the card");
    const auto ticket = std::move(claim).detach(1h);
    stage.store.finds_down(true);
    CHECK_THROWS_AS(guard.resume<int>(ticket), idem::UnavailableError);
    stage.store.finds_down(false);
    CHECK(guard.resume<int>(ticket).execution().checkpoint() == "charged the card");
}

}  // namespace two_phase_test
