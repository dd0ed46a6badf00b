// Goal: a one-time token is redeemed once, by the one it is for, and everybody else learns what
// became of it. Method: race for it, misuse it, and let it expire by a clock moved by hand.

#include <atomic>
#include <barrier>
#include <chrono>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <idem/token.hpp>

#include "support/catch.hpp"
#include "support/features.hpp"

using namespace idem_test;
using namespace std::chrono_literals;

namespace token_test {

using idem::Fingerprint;
using idem::OutcomeKind;
using idem::State;
using Issuer = idem::TokenIssuer<SpyStore>;

[[nodiscard]] Issuer issuer(const Stage& stage, idem::TokenOptions options = {}) {
    if (!options.guard.events) options.guard.events = stage.log.observer();
    return Issuer(stage.store, "order.place", std::move(options));
}

[[nodiscard]] idem::Key key_of(const std::string& token, const std::string& tenant = "") {
    return {.scope = "order.place", .id = token, .tenant = tenant};
}

TEST_CASE("every token is another one, of 128 bits", "[token]") {
    Stage stage;
    auto tokens = issuer(stage);
    std::set<std::string> seen;
    for (int i = 0; i < 1'000; ++i) {
        const auto token = tokens.issue();
        CHECK(token.size() == 32);
        CHECK(token.find_first_not_of("0123456789abcdef") == std::string::npos);
        seen.insert(token);
    }
    CHECK(seen.size() == 1'000);
}

TEST_CASE("a token is redeemed once, and its repeat gets the first answer and its time",
          "[token]") {
    Stage stage;
    auto tokens = issuer(stage);
    const auto token = tokens.issue("acme");
    CHECK(tokens.guard().find(key_of(token, "acme"))->header.state == State::issued);
    stage.clock.advance(1min);
    const auto used = stage.clock.now();
    const auto request = Fingerprint::of_bytes("a");
    const auto first = tokens.redeem(token, "acme", request, [] { return std::string("made"); });
    CHECK(first.executed());
    CHECK(first.attempt() == 1);
    stage.clock.advance(1h);
    const auto repeat = tokens.redeem(token, "acme", request, [] { return std::string("again"); });
    CHECK(repeat.replayed());
    CHECK(repeat.value() == "made");
    CHECK(repeat.first_used() == used);
    CHECK(tokens.redeem(token, "acme", Fingerprint::of_bytes("b"), [] { return std::string(); })
              .kind() == OutcomeKind::mismatch);
}

TEST_CASE("of 64 redemptions at once one runs; 63 learn that it was used, and when",
          "[token][race]") {
    const bool waits = GENERATE(true, false);
    CAPTURE(waits);
    Stage stage;
    auto tokens = issuer(stage);
    const auto token = tokens.issue();
    stage.clock.advance(1s);
    const auto used = stage.clock.now();
    constexpr int callers = 64;
    std::barrier start(callers);
    std::atomic<int> ran = 0;
    std::atomic<int> told = 0;
    std::atomic<int> executed = 0;
    std::atomic<int> wrong = 0;
    Gate all_told;
    const auto handler = [&] {
        ++ran;
        if (!waits && !all_told.wait()) ++wrong;  // the others meet it running
        return 7;
    };
    std::vector<std::jthread> threads;
    for (int t = 0; t < callers; ++t) {
        threads.emplace_back([&] {
            start.arrive_and_wait();
            const idem::RunOptions options{.wait = waits ? 10min : 0s};
            const auto outcome = tokens.redeem(token, {}, {}, options, handler);
            if (outcome.executed()) {
                ++executed;
                return;
            }
            const auto expected = waits ? OutcomeKind::replayed : OutcomeKind::in_progress;
            if (outcome.kind() != expected || outcome.first_used() != used) ++wrong;
            if (waits && outcome.value() != 7) ++wrong;
            if (++told == callers - 1) all_told.open();
        });
    }
    threads.clear();
    CHECK(ran == 1);
    CHECK(executed == 1);
    CHECK(told == callers - 1);
    CHECK(wrong == 0);
}

TEST_CASE("a request that fails before its effect gives the token back", "[token]") {
    Stage stage;
    auto tokens = issuer(stage);
    const auto token = tokens.issue();
    const auto bad = Fingerprint::of_bytes("{\"quantity\": -1}");
    const auto refuses = [](idem::Execution& execution) -> int {
        execution.checkpoint("of the bad request");
        throw std::invalid_argument("quantity");
    };
    CHECK_THROWS_AS(tokens.redeem(token, {}, bad, refuses), std::invalid_argument);
    const auto record = tokens.guard().find(key_of(token));
    CHECK(record->header.state == State::issued);
    CHECK_FALSE(record->header.fingerprint.present());  // with its binding only
    CHECK(record->payload.checkpoint.empty());
    // The corrected request is another one, and may have it.
    const auto good = Fingerprint::of_bytes("{\"quantity\": 1}");
    CHECK(tokens.redeem(token, {}, good, [] { return 1; }).executed());
}

TEST_CASE("a failure that is final burns the token", "[token]") {
    Stage stage;
    auto tokens = issuer(stage);
    const auto token = tokens.issue();
    const auto used = stage.clock.now();
    const auto fails = []() -> int { throw idem::FinalError("card", "refused"); };
    CHECK_THROWS_AS(tokens.redeem(token, {}, {}, fails), idem::FinalError);
    stage.clock.advance(1min);
    const auto repeat = tokens.redeem(token, {}, {}, [] { return 1; });
    CHECK(repeat.kind() == OutcomeKind::failed);
    CHECK(repeat.failure().code == "card");
    CHECK(repeat.first_used() == used);
}

TEST_CASE("an effect that may have happened keeps the token for a person", "[token]") {
    Stage stage;
    auto tokens = issuer(stage);
    const auto token = tokens.issue();
    const auto doubts = []() -> int { throw idem::UnknownOutcomeError("504"); };
    CHECK_THROWS_AS(tokens.redeem(token, {}, {}, doubts), idem::UnknownOutcomeError);
    CHECK(tokens.redeem(token, {}, {}, [] { return 1; }).kind() == OutcomeKind::unknown);
    // Resolved to rerun, it is as it was issued.
    const auto held = tokens.guard().find(key_of(token));
    CHECK(tokens.guard().resolve(key_of(token), held->header.fence, idem::Resolution::rerun()));
    CHECK(tokens.guard().find(key_of(token))->header.state == State::issued);
    CHECK(tokens.redeem(token, {}, {}, [] { return 1; }).executed());
}

TEST_CASE("a token of another tenant or scope is absent, and not consumed", "[token]") {
    Stage stage;
    auto tokens = issuer(stage);
    auto other_scope = Issuer(stage.store, "order.cancel");
    const auto token = tokens.issue("acme");
    bool ran = false;
    const auto handler = [&] { return ran = true; };
    CHECK(tokens.redeem(token, "evil", {}, handler).kind() == OutcomeKind::absent);
    CHECK(tokens.redeem(token, "", {}, handler).kind() == OutcomeKind::absent);
    CHECK(other_scope.redeem(token, "acme", {}, handler).kind() == OutcomeKind::absent);
    CHECK_FALSE(ran);
    CHECK(tokens.redeem(token, "acme", {}, handler).executed());
}

TEST_CASE("a token is bound to the request it was issued for", "[token]") {
    Stage stage;
    auto tokens = issuer(stage);
    const auto bound = Fingerprint::of_bytes("the order");
    const auto token = tokens.issue({}, bound);
    bool ran = false;
    const auto handler = [&] { return ran = true; };
    CHECK(tokens.redeem(token, {}, Fingerprint::of_bytes("another"), handler).kind() ==
          OutcomeKind::mismatch);
    CHECK_FALSE(ran);
    CHECK(tokens.guard().find(key_of(token))->header.state == State::issued);
    const auto fails = []() -> bool { throw std::runtime_error("busy"); };
    CHECK_THROWS_AS(tokens.redeem(token, {}, bound, fails), std::runtime_error);
    CHECK(tokens.redeem(token, {}, Fingerprint::of_bytes("another"), handler).kind() ==
          OutcomeKind::mismatch);  // the binding has survived the failure
    CHECK(tokens.redeem(token, {}, bound, handler).executed());
}

TEST_CASE("unknown, expired and used are told apart", "[token]") {
    Stage stage;
    auto tokens = issuer(stage, {.validity = 10min, .guard = {.retention = 1h}});
    const auto late = tokens.issue();
    const auto used = tokens.issue();
    const auto in_time = tokens.issue();
    const auto handler = [] { return 1; };
    const auto kind = [&](const std::string& token) {
        return tokens.redeem(token, {}, {}, handler).kind();
    };
    CHECK(kind(used) == OutcomeKind::executed);
    stage.clock.advance(10min - 1us);
    CHECK(kind(in_time) == OutcomeKind::executed);
    stage.clock.advance(1us);  // valid before its end, not at it
    CHECK(kind(late) == OutcomeKind::expired);
    CHECK(kind(used) == OutcomeKind::replayed);
    CHECK(kind(std::string(32, '0')) == OutcomeKind::absent);
    stage.clock.advance(1h - 1us);  // past its validity it is remembered for the retention
    CHECK(kind(late) == OutcomeKind::expired);
    stage.clock.advance(1us);
    CHECK(kind(late) == OutcomeKind::absent);
}

TEST_CASE("what no issuer ever made is absent, whatever it is", "[token]") {
    Stage stage;
    auto tokens = issuer(stage);
    const auto issued = tokens.issue();
    bool ran = false;
    const std::vector<std::string> made_up{"",
                                           "x",
                                           issued.substr(1),
                                           issued + "0",
                                           issued + std::string(1, '\0'),
                                           std::string(255, 'a'),
                                           std::string(256, 'a'),
                                           std::string(100'000, 'a'),
                                           std::string("\0\r\n'\"%{}", 8)};
    for (const auto& token : made_up) {
        CAPTURE(token.size());
        CHECK(tokens.redeem(token, {}, {}, [&] { return ran = true; }).kind() ==
              OutcomeKind::absent);
        CHECK(std::get<idem::Outcome<int>>(tokens.reserve<int>(token)).kind() ==
              OutcomeKind::absent);
        CHECK_FALSE(tokens.revoke(token));
    }
    CHECK_FALSE(ran);
    CHECK(tokens.redeem(issued, {}, {}, [] { return 1; }).executed());
}

TEST_CASE("a token that was used while it was valid is not expired afterwards", "[token]") {
    Stage stage;
    auto tokens = issuer(stage, {.validity = 1min});
    const auto token = tokens.issue();
    auto claim = claimed<int>(tokens.reserve<int>(token));
    stage.clock.advance(25s);
    claim.execution().checkpoint("on");
    stage.clock.advance(25s);
    claim.execution().checkpoint("on and on");
    stage.clock.advance(25s);
    CHECK(std::move(claim).complete(3).recorded());
    CHECK(tokens.redeem(token, {}, {}, [] { return 1; }).value() == 3);
}

// --- reserve and confirm ------------------------------------------------------------------------

TEST_CASE("a reserved token is nobody else's until it is confirmed", "[token]") {
    Stage stage;
    auto tokens = issuer(stage);
    const auto token = tokens.issue();
    const auto reserved = stage.clock.now();
    auto claim = claimed<int>(tokens.reserve<int>(token));
    stage.clock.advance(1s);
    const auto meanwhile = tokens.redeem(token, {}, {}, [] { return 1; });
    CHECK(meanwhile.kind() == OutcomeKind::in_progress);
    CHECK(meanwhile.first_used() == reserved);
    CHECK(std::move(claim).complete(7).recorded());
    const auto repeat = std::get<idem::Outcome<int>>(tokens.reserve<int>(token));
    CHECK(repeat.replayed());
    CHECK(repeat.value() == 7);
    CHECK(repeat.first_used() == reserved);
}

TEST_CASE("a reservation comes back by release, by a failure, and by the end of its lease",
          "[token]") {
    Stage stage;
    auto tokens = issuer(stage, {.validity = 1h});
    const auto token = tokens.issue();
    std::move(claimed<int>(tokens.reserve<int>(token))).release();
    std::move(claimed<int>(tokens.reserve<int>(token)))
        .fail({idem::FailureClass::retryable, "busy", ""});
    { auto dropped = claimed<int>(tokens.reserve<int>(token)); }
    (void)claimed<int>(tokens.reserve<int>(token)).detach(1s);
    stage.clock.advance(31s);
    auto again = claimed<int>(tokens.reserve<int>(token));
    CHECK(again.takeover());
    CHECK(std::move(again).complete(1).recorded());
}

TEST_CASE("a reservation that is given back after the validity is expired", "[token]") {
    Stage stage;
    auto tokens = issuer(stage, {.validity = 10s});
    const auto token = tokens.issue();
    auto claim = claimed<int>(tokens.reserve<int>(token));
    stage.clock.advance(20s);
    std::move(claim).release();
    CHECK(tokens.redeem(token, {}, {}, [] { return 1; }).kind() == OutcomeKind::expired);
    const auto vanishes = tokens.issue();
    (void)claimed<int>(tokens.reserve<int>(vanishes)).detach(1s);
    stage.clock.advance(31s);
    CHECK(tokens.redeem(vanishes, {}, {}, [] { return 1; }).kind() == OutcomeKind::expired);
}

TEST_CASE("a reservation is detached, and confirmed where the callback arrives", "[token]") {
    Stage stage;
    auto tokens = issuer(stage);
    const auto token = tokens.issue("acme");
    const auto text = claimed<int>(tokens.reserve<int>(token, "acme")).detach(24h).to_string();
    stage.clock.advance(23h);
    auto resumed = issuer(stage).guard().resume<int>(idem::Ticket::parse(text));
    CHECK(std::move(resumed).complete(5).recorded());
    CHECK(tokens.redeem(token, "acme", {}, [] { return 1; }).value() == 5);
    CHECK_THROWS_AS(stage.guard().resume<int>(idem::Ticket::parse(text)), idem::UsageError);
}

TEST_CASE("a revoked token is absent", "[token]") {
    Stage stage;
    auto tokens = issuer(stage);
    const auto token = tokens.issue();
    CHECK(tokens.revoke(token));
    CHECK_FALSE(tokens.revoke(token));
    CHECK(tokens.redeem(token, {}, {}, [] { return 1; }).kind() == OutcomeKind::absent);
}

TEST_CASE("a store that is away neither redeems nor consumes", "[token]") {
    Stage stage;
    auto tokens = issuer(stage);
    const auto token = tokens.issue();
    stage.store.down(true);
    bool ran = false;
    CHECK_THROWS_AS(tokens.redeem(token, {}, {}, [&] { return ran = true; }),
                    idem::UnavailableError);
    stage.store.down(false);
    CHECK_FALSE(ran);
    CHECK(tokens.redeem(token, {}, {}, [] { return true; }).attempt() == 1);
}

TEST_CASE("a claim whose answer was lost gives its token back", "[token]") {
    Stage stage;
    auto tokens = issuer(stage);
    const auto token = tokens.issue();
    stage.store.on_claim([](auto) { return Way::lose_answer; });
    CHECK_THROWS_AS(tokens.redeem(token, {}, {}, [] { return 1; }), idem::UnavailableError);
    stage.store.on_claim({});
    CHECK(eventually([&] { return tokens.guard().health().unrecorded == 0; }));
    CHECK(tokens.guard().find(key_of(token))->header.state == State::issued);
    CHECK(tokens.redeem(token, {}, {}, [] { return 1; }).attempt() == 1);
}

TEST_CASE("tokens and guarded calls of one name never meet", "[token]") {
    Stage stage;
    auto tokens = issuer(stage);
    const auto token = tokens.issue();
    CHECK(stage.guard().run(key_of(token), {}, [] { return 1; }).executed());
    CHECK(tokens.redeem(token, {}, {}, [] { return 2; }).executed());
    // And "redeem only" never makes a key where none was issued.
    const idem::RunOptions options{.redeem_only = true};
    CHECK(stage.guard().run(key("never"), {}, options, [] { return 1; }).kind() ==
          OutcomeKind::absent);
    CHECK_FALSE(stage.guard().find(key("never")));
}

TEST_CASE("an issuer that cannot work says which of its settings", "[token]") {
    Stage stage;
    const auto message = [&](const std::string& scope, idem::TokenOptions options) -> std::string {
        try {
            (void)Issuer(stage.store, scope, std::move(options));
        } catch (const idem::UsageError& e) {
            return e.what();
        }
        return "";
    };
    CHECK(message("", {}).find("scope") != std::string::npos);
    CHECK(message(std::string(256, 's'), {}).find("scope") != std::string::npos);
    for (const idem::Duration bad :
         {idem::Duration(0), idem::Duration(-1), idem::duration_max + 1us})
        CHECK(message("s", {.validity = bad}).find("TokenOptions::validity") != std::string::npos);
    CHECK(message("s", {.guard = {.retention = 0s}}).find("GuardOptions::retention") !=
          std::string::npos);
    CHECK(message("s", {.validity = 1us}).empty());
    Issuer tokens(stage.store, "s");
    CHECK_THROWS_AS(tokens.issue(std::string(256, 't')), idem::UsageError);
}

}  // namespace token_test
