// Equal content under different keys: two operations, unless it is said that they are one.

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <idem/idem.hpp>
#include <idem/testing/faulty_store.hpp>

#include "support/catch.hpp"

namespace content_test {

using idem::MemoryStore;
using Watch = idem::ContentWatch<MemoryStore>;
using Guard = idem::IdempotencyGuard<MemoryStore>;

const auto content = idem::Fingerprint::of_bytes("the same film");
const auto other = idem::Fingerprint::of_bytes("another film");

struct Seen {
    idem::EventKind kind;
    std::string scope;
    std::string tenant;
    std::string hash;
    std::string raw_id;
};

TEST_CASE("content: the same under another key is counted, told, and still an operation") {
    std::vector<Seen> seen;
    Watch store(MemoryStore(), {.events = [&](const idem::Event& event) {
                    seen.push_back({event.kind, std::string(event.scope), std::string(event.tenant),
                                    std::string(event.key_hash), std::string(event.raw_id)});
                }});
    idem::IdempotencyGuard<Watch> guard(store);
    int runs = 0;
    const auto run = [&](const idem::Key& key, const idem::Fingerprint& print) {
        return guard.run(key, print, [&] { return ++runs; }).value();
    };
    CHECK(run({"s", "1", "t"}, content) == 1);
    CHECK(run({"s", "1", "t"}, content) == 1);
    CHECK(seen.empty());
    CHECK(run({"s", "2", "t"}, content) == 2);
    REQUIRE(seen.size() == 1);
    CHECK(seen[0].kind == idem::EventKind::duplicate_content);
    CHECK(seen[0].scope == "s");
    CHECK(seen[0].tenant == "t");
    CHECK(seen[0].hash == idem::key_hash({idem::Component::call, idem::Key{"s", "2", "t"}}));
    CHECK(seen[0].raw_id.empty());
    // Another scope, another tenant, other content, and none at all are nobody's duplicates.
    CHECK(run({"s2", "3", "t"}, content) == 3);
    CHECK(run({"s", "4", "t2"}, content) == 4);
    CHECK(run({"s", "5", "t"}, other) == 5);
    CHECK(run({"s", "6", "t"}, {}) == 6);
    CHECK(seen.size() == 1);
    CHECK(store.usage().watched == 5);
    CHECK(store.usage().duplicates == 1);
}

TEST_CASE("content: a key that failed and comes again is no duplicate of itself") {
    Watch store((MemoryStore()));
    idem::IdempotencyGuard<Watch> guard(store);
    const idem::Key key{"s", "k"};
    CHECK_THROWS_AS(guard.run(key, content, []() -> int { throw std::runtime_error("no"); }),
                    std::runtime_error);
    CHECK(guard.run(key, content, [] { return 1; }).executed());
    CHECK(store.usage().watched == 2);
    CHECK(store.usage().duplicates == 0);
}

TEST_CASE("content: a mark that cannot be made changes no answer") {
    using Faulty = idem::testing::FaultyStore<MemoryStore>;
    Faulty faulty{MemoryStore()};
    faulty.fail_all(idem::testing::Fault::refused, idem::testing::StoreCall::issue);
    idem::ContentWatch<Faulty> store(faulty, {.events = [](const idem::Event&) { throw 1; }});
    idem::IdempotencyGuard<idem::ContentWatch<Faulty>> guard(store);
    CHECK(guard.run(idem::Key{"s", "1"}, content, [] { return 1; }).executed());
    CHECK(store.usage().unknown == 1);
    faulty.heal();
    CHECK(guard.run(idem::Key{"s", "2"}, content, [] { return 1; }).executed());
    CHECK(guard.run(idem::Key{"s", "3"}, content, [] { return 1; }).executed());
    CHECK(store.usage().duplicates == 1);
}

TEST_CASE("content: nobody who leaves it out pays for it") {
    using Faulty = idem::testing::FaultyStore<MemoryStore>;
    Faulty faulty{MemoryStore()};
    idem::IdempotencyGuard<Faulty> guard(faulty);
    CHECK(guard.run(idem::Key{"s", "1"}, content, [] { return 1; }).executed());
    CHECK(faulty.calls() == 2);
}

TEST_CASE("content: coalesced, it runs once and every key has its result") {
    Guard guard((MemoryStore()));
    int runs = 0;
    const auto run = [&](const char* id, const idem::Fingerprint& print) {
        return idem::run_coalesced(guard, idem::Key{"s", id}, print, [&] { return ++runs; });
    };
    CHECK(run("1", content).executed());
    CHECK(run("2", content).replayed());
    CHECK(run("2", content).value() == 1);
    CHECK(run("1", content).value() == 1);
    CHECK(run("1", other).kind() == idem::OutcomeKind::mismatch);
    CHECK(run("3", other).value() == 2);
    CHECK(runs == 2);
    CHECK(guard.find(idem::Key{"s", "2"})->header.state == idem::State::succeeded);
    CHECK_THROWS_AS(run("4", {}), idem::UsageError);
}

TEST_CASE("content: coalesced, a failure is everybody's and a throw is the caller's") {
    Guard guard((MemoryStore()));
    const auto run = [&](const char* id, auto handler) {
        return idem::run_coalesced(guard, idem::Key{"s", id}, content, handler);
    };
    CHECK_THROWS_AS(run("1", []() -> int { throw std::runtime_error("once more"); }),
                    std::runtime_error);
    CHECK_THROWS_AS(run("2", []() -> int { throw idem::FinalError("no such codec", "codec"); }),
                    idem::FinalError);
    const auto failed = run("3", [] { return 1; });
    CHECK(failed.kind() == idem::OutcomeKind::failed);
    const auto first = run("1", [] { return 1; });
    CHECK(first.kind() == idem::OutcomeKind::failed);
    CHECK(guard.find(idem::Key{"s", "3"})->header.state == idem::State::failed);
}

TEST_CASE("content: coalesced, what another key holds up is no attempt of this one") {
    Guard guard(MemoryStore(), {.max_attempts = 2});
    const auto run = [&](const char* id, auto handler) {
        return idem::run_coalesced(guard, idem::Key{"s", id}, content, handler);
    };
    const auto outcome = run("1", [&] {
        for (int i = 0; i < 5; ++i)
            CHECK(run("2", [] { return 2; }).kind() == idem::OutcomeKind::in_progress);
        return 1;
    });
    CHECK(outcome.executed());
    CHECK(run("2", [] { return 2; }).value() == 1);
}

TEST_CASE("content: coalesced, only another key is a duplicate, and not of another component") {
    Watch store(MemoryStore(), {});
    idem::IdempotencyGuard<Watch> guard(store);
    const auto run = [&](const char* id, const idem::Fingerprint& print) {
        (void)idem::run_coalesced(guard, idem::Key{"s", id}, print, [] { return 1; });
    };
    run("1", content);
    run("2", other);
    CHECK(store.usage().duplicates == 0);
    run("3", content);
    CHECK(store.usage().duplicates == 1);
}

TEST_CASE("content: coalesced while it runs, another key is told so and may come again") {
    Guard guard((MemoryStore()));
    const auto run = [&](const char* id, auto handler) {
        return idem::run_coalesced(guard, idem::Key{"s", id}, content, handler);
    };
    const auto outcome = run("1", [&] {
        CHECK(run("2", [] { return 2; }).kind() == idem::OutcomeKind::in_progress);
        CHECK(guard.find(idem::Key{"s", "2"})->header.state == idem::State::released);
        return 1;
    });
    CHECK(outcome.value() == 1);
    CHECK(run("2", [] { return 2; }).value() == 1);
}

}  // namespace content_test
