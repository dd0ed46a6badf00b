// The front may forget, never invent: whatever becomes of it, the back alone decides.

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <idem/idem.hpp>
#include <idem/testing/conformance_diff.hpp>
#include <idem/testing/faulty_store.hpp>
#include <idem/testing/manual_clock.hpp>
#include <idem/testing/memory_front.hpp>

#include "support/catch.hpp"
#include "support/eventually.hpp"
#include "support/front_promises.hpp"
#include "support/requests.hpp"

namespace tiered_test {

using namespace std::chrono_literals;
using idem::ClaimKind;
using idem::testing::FrontCall;
using idem::testing::MemoryFront;
using idem::testing::StoreCall;
using idem_test::claim_of;
using idem_test::complete_of;
using idem_test::eventually;
using idem_test::outlast;

const idem::Fingerprint print = idem::Fingerprint::of_bytes("request");

struct Bench {
    using Back = idem::testing::FaultyStore<idem::MemoryStore>;

    explicit Bench(idem::TieredOptions options = {}) : options_(std::move(options)) {
        options_.notice = [this](std::string_view text) {
            const std::lock_guard lock(mutex_);
            notices.emplace_back(text);
        };
        store.emplace(front, back, options_);
    }

    idem::ClaimReply claim(const idem::Key& key, std::uint64_t owner,
                           const idem::Fingerprint& fingerprint = print) {
        auto request = claim_of(key, owner);
        request.fingerprint = fingerprint;
        return idem::claim_one(*store, request);
    }
    /// Done by owner 1 with this result.
    idem::Fence finished(const idem::Key& key, const std::string& result = "result") {
        const auto reply = claim(key, 1);
        REQUIRE(reply.kind == ClaimKind::acquired);
        auto request = complete_of(key, idem_test::owner_of(1), reply.fence, result);
        request.resource = "made";
        REQUIRE_FALSE(idem::finish_one(*store, request).lost);
        return reply.fence;
    }
    idem::ForgetReply forget(const idem::Key& key) {
        idem::ForgetRequest request;
        request.key = idem_test::view_of(key);
        request.lease = 30s;
        return idem::forget_one(*store, request);
    }
    [[nodiscard]] std::size_t asked() const { return back.calls(StoreCall::claim); }

    idem::testing::ManualClock clock{};
    MemoryFront front{clock};
    Back back{idem::MemoryStore({.clock = clock})};
    std::vector<std::string> notices{};
    std::optional<idem::TieredStore<MemoryFront, Back>> store{};

private:
    idem::TieredOptions options_;
    std::mutex mutex_{};
};

const idem::Key key{"s", "k", "tenant"};

TEST_CASE("tiered: the first repeat fills the front, and the next ones do not reach the back") {
    Bench b;
    b.finished(key);
    CHECK(b.front.calls() == 1);  // one look: a first call writes nothing there
    CHECK(b.front.entries().empty());
    const auto first = b.claim(key, 2);
    CHECK(first.result == "result");
    CHECK(b.asked() == 2);
    const auto second = b.claim(key, 3);
    CHECK(b.asked() == 2);
    idem::testing::conformance::Diff diff(idem::Duration::zero());
    compare(diff, first, second);
    CHECK(diff.text() == "");
    CHECK(second.resource == "made");
    CHECK(b.store->usage().front_answers == 1);
    CHECK(b.store->usage().back_answers == 2);
}

TEST_CASE("tiered: the front answers as the back would, another request and a delayed copy too") {
    Bench b;
    b.finished(key);
    (void)b.claim(key, 2);
    const auto before = b.asked();
    CHECK(b.claim(key, 3, idem::Fingerprint::of_bytes("other")).kind == ClaimKind::mismatch);
    CHECK(b.claim(key, 3, idem::Fingerprint::of_bytes("other")).result.empty());
    CHECK(b.claim(key, 1).kind == ClaimKind::stale);
    CHECK(b.claim(key, 3, {}).kind == ClaimKind::completed);
    auto redeem = claim_of(key, 4);
    redeem.redeem_only = true;
    CHECK(idem::claim_one(*b.store, redeem).kind == ClaimKind::absent);
    CHECK(b.asked() == before);
}

TEST_CASE("tiered: a record without a fingerprint matches every request from the front too") {
    Bench b;
    const auto reply = b.claim(key, 1, {});
    (void)idem::finish_one(*b.store,
                           complete_of(key, idem_test::owner_of(1), reply.fence, "result"));
    CHECK(b.claim(key, 2).kind == ClaimKind::completed);
    CHECK(b.claim(key, 3, idem::Fingerprint::of_bytes("other")).kind == ClaimKind::completed);
    CHECK(b.asked() == 2);
}

TEST_CASE("tiered: the front holds nothing that the back has not said is finished (M32)") {
    Bench b;
    CHECK(b.claim(key, 1).kind == ClaimKind::acquired);
    CHECK(b.claim(key, 2).kind == ClaimKind::in_progress);
    CHECK(b.claim(key, 2, idem::Fingerprint::of_bytes("other")).kind == ClaimKind::mismatch);
    auto late = complete_of(key, idem_test::owner_of(9), 7, "of a stranger");
    CHECK(idem::finish_one(*b.store, late).lost);
    const idem::Key refused{"s", "refused"};
    b.back.fail_call(1, idem::testing::Fault::refused, StoreCall::claim);
    CHECK(b.claim(refused, 1).trouble);
    CHECK(b.front.entries().empty());
    CHECK(b.claim(refused, 2).kind ==
          ClaimKind::acquired);  // and it is processed when it comes again
}

TEST_CASE("tiered: a wiped front costs a look at the back and no second run") {
    Bench b;
    idem::IdempotencyGuard guard(*b.store);
    int runs = 0;
    for (int i = 0; i < 6; ++i) {
        CHECK(guard.run(key, print, [&] { return ++runs; }).value() == 1);
        b.front.restart_with({});
    }
    CHECK(runs == 1);
}

TEST_CASE("tiered: with its front down the back carries on, it is told, and it heals by itself") {
    Bench b({.pause_min = 1ms, .pause_max = 1ms});
    b.front.fail_all(true);
    b.finished(key);
    CHECK(b.claim(key, 2).result == "result");
    CHECK(b.store->usage().front_paused);
    REQUIRE(b.notices.size() == 1);
    CHECK(b.notices[0].find("the front is down") != std::string::npos);
    b.front.fail_all(false);
    CHECK(eventually([&] { return b.claim(key, 3).result == "result" && b.notices.size() == 2; }));
    CHECK_FALSE(b.store->usage().front_paused);
    CHECK(eventually([&] {
        (void)b.claim(key, 4);
        return b.store->usage().front_answers > 0;
    }));
}

TEST_CASE("tiered: a front that failed is left alone for a while, not asked by every call") {
    Bench b({.pause_min = 1h, .pause_max = 1h});
    b.front.fail_all(true);
    for (std::uint64_t i = 1; i <= 20; ++i) (void)b.claim({"s", std::to_string(i)}, 1);
    CHECK(b.front.calls() == 1);
    CHECK(b.store->usage().front_failures == 1);
}

TEST_CASE("tiered: with its back down what is finished is still answered, and nothing else runs") {
    Bench b;
    b.finished(key);
    (void)b.claim(key, 2);
    b.back.fail_all(idem::testing::Fault::refused);
    CHECK(b.claim(key, 3).result == "result");
    idem::IdempotencyGuard guard(*b.store);
    int runs = 0;
    CHECK_THROWS_AS(guard.run(idem::Key{"s", "new"}, print, [&] { return ++runs; }),
                    idem::UnavailableError);
    CHECK(runs == 0);
}

TEST_CASE("tiered: what is forgotten is forgotten in both, at once") {
    Bench b;
    b.finished(key);
    (void)b.claim(key, 2);
    CHECK(b.forget(key).existed);
    CHECK(b.claim(key, 3).kind == ClaimKind::acquired);
}

TEST_CASE("tiered: a copy that was on its way while its key was forgotten does not come back") {
    Bench b;
    b.finished(key, "old");
    b.front.before([&](FrontCall call) {
        if (call == FrontCall::put) CHECK(b.forget(key).existed);
        return true;
    });
    CHECK(b.claim(key, 2).result == "old");
    b.front.before({});
    CHECK(b.claim(key, 3).kind == ClaimKind::acquired);
}

TEST_CASE("tiered: a key forgotten once more keeps out what was on its way before the first time") {
    Bench b({.front_ttl = 5min});
    b.finished(key, "old");
    b.front.before([&](FrontCall call) {
        if (call != FrontCall::put) return true;
        b.front.before({});
        CHECK(b.forget(key).existed);
        b.clock.advance(61s);  // the back's own tombstone is over
        CHECK(b.forget(key).fence == 0);
        return true;
    });
    CHECK(b.claim(key, 2).result == "old");
    CHECK(b.claim(key, 3).kind == ClaimKind::acquired);
}

TEST_CASE("tiered: one call that fails for many keys is one failure") {
    Bench b({.pause_min = 1h, .pause_max = 8h});
    std::vector<idem::Key> keys;
    std::vector<idem::ForgetRequest> requests(20);
    for (int i = 0; i < 20; ++i) keys.push_back({"s", std::to_string(i)});
    for (std::size_t i = 0; i < 20; ++i) requests[i].key = idem_test::view_of(keys[i]);
    b.front.fail_all(true);
    std::vector<idem::ForgetReply> replies(20);
    b.store->forget(requests, replies);
    for (const auto& reply : replies) CHECK(reply.trouble);
    CHECK(b.store->usage().front_failures == 1);
}

TEST_CASE(
    "tiered: a front that some calls find well and some do not is used again when it is well") {
    Bench b({.pause_min = idem::Duration{1}, .pause_max = idem::Duration{50}});
    b.finished(key);
    (void)b.claim(key, 2);
    std::atomic<int> calls{0};
    std::atomic<bool> well{false};
    b.front.before([&](FrontCall) { return well.load() || ++calls % 3 != 0; });
    std::vector<std::jthread> threads;
    for (std::uint64_t t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            for (std::uint64_t i = 0; i < 2000; ++i)
                (void)idem::claim_one(*b.store, claim_of(key, 10 + t));
        });
    for (auto& thread : threads) thread.join();
    well = true;
    CHECK(eventually([&] {
        (void)b.claim(key, 5);
        return !b.store->usage().front_paused;
    }));
    const auto before = b.store->usage().front_answers;
    for (int i = 0; i < 100; ++i) CHECK(b.claim(key, 6).result == "result");
    CHECK(b.store->usage().front_answers == before + 100);
}

TEST_CASE("tiered: a copy that was longer on its way than it may live is dead on arrival") {
    Bench b({.front_ttl = 5min});
    b.finished(key, "old");
    b.front.before([&](FrontCall call) {
        if (call == FrontCall::put) b.clock.advance(5min);
        return true;
    });
    (void)b.claim(key, 2);
    CHECK(b.front.entries().empty());
}

TEST_CASE("tiered: a newer result is not taken away by a late forget of the older one") {
    Bench b;
    b.finished(key, "old");
    b.front.before([&](FrontCall call) {
        if (call != FrontCall::bury) return true;
        b.front.before({});
        const auto again = b.claim(key, 5);
        REQUIRE(again.kind == ClaimKind::acquired);
        (void)idem::finish_one(*b.store,
                               complete_of(key, idem_test::owner_of(5), again.fence, "new"));
        CHECK(b.claim(key, 6).result == "new");  // fills the front
        return true;
    });
    CHECK(b.forget(key).existed);
    const auto before = b.asked();
    CHECK(b.claim(key, 7).result == "new");
    CHECK(b.asked() == before);
}

TEST_CASE("tiered: a forget that the front was not told of says so, and is done when repeated") {
    Bench b({.front_ttl = 5min});
    b.finished(key);
    (void)b.claim(key, 2);
    b.front.fail_all(true);
    const auto reply = b.forget(key);
    CHECK(reply.existed);
    CHECK(reply.trouble.kind == idem::Trouble::Kind::unavailable);
    CHECK(reply.trouble.may_have_applied);
    b.front.fail_all(false);
    CHECK_FALSE(b.forget(key).trouble);  // tells the front, however it was left alone
    CHECK(b.front.entries().size() == 1);
    CHECK_FALSE(b.front.entries().begin()->second.bytes);
}

TEST_CASE("tiered: a front set back to old data answers it no longer than its time") {
    Bench b({.front_ttl = 5min});
    b.finished(key, "old");
    (void)b.claim(key, 2);
    const auto old = b.front.entries();
    CHECK(b.forget(key).existed);
    b.front.restart_with(old);
    CHECK(b.claim(key, 3).result == "old");  // the stated limit
    b.clock.advance(5min);
    CHECK(b.claim(key, 4).kind == ClaimKind::acquired);
}

TEST_CASE("tiered: nothing is answered past its retention") {
    Bench b({.front_ttl = 2h});
    b.finished(key);  // kept for an hour
    CHECK(b.claim(key, 2).retention_left == 1h);
    b.clock.advance(59min);
    const auto before = b.asked();
    CHECK(b.claim(key, 3).retention_left == 1min);
    CHECK(b.asked() == before);
    b.clock.advance(1min);
    CHECK(b.claim(key, 4).kind == ClaimKind::acquired);
}

TEST_CASE("tiered: a front that takes no copies still answers, and is not asked to each time") {
    Bench b({.pause_max = 1h});
    const idem::Key later{"s", "later"};
    b.finished(key);
    b.finished(later);
    int puts = 0;
    b.front.before([&](FrontCall call) {
        if (call == FrontCall::put) ++puts;
        return call != FrontCall::put;
    });
    CHECK(b.claim(key, 2).result == "result");
    CHECK(b.claim(later, 2).result == "result");
    CHECK(puts == 1);
    CHECK_FALSE(b.store->usage().front_paused);
    CHECK(b.notices.size() == 1);
}

TEST_CASE("tiered: a result that is too large for the front stays in the back") {
    Bench b({.front_bytes_max = 10});
    b.finished(key, "eleven byte");
    CHECK(b.claim(key, 2).result == "eleven byte");
    CHECK(b.front.entries().empty());
    CHECK(b.claim(key, 3).result == "eleven byte");
}

TEST_CASE("tiered: what is no record in the front is the back's to answer") {
    Bench b;
    b.finished(key);
    (void)b.claim(key, 2);
    auto damaged = b.front.entries();
    damaged.begin()->second.bytes = "garbage";
    b.front.restart_with(damaged);
    CHECK(b.claim(key, 3).result == "result");
}

TEST_CASE("tiered: of a batch each item is answered from where it is known") {
    Bench b;
    const idem::Key known{"s", "known"};
    const idem::Key fresh{"s", "fresh"};
    const idem::Key bad{"", "bad"};
    b.finished(known);
    (void)b.claim(known, 2);
    std::vector<idem::ClaimRequest> batch = {claim_of(fresh, 3), claim_of(bad, 4),
                                             claim_of(known, 5), claim_of(fresh, 6)};
    std::vector<idem::ClaimReply> replies(batch.size());
    b.store->claim(batch, replies);
    CHECK(replies[0].kind == ClaimKind::acquired);
    CHECK(replies[1].trouble.kind == idem::Trouble::Kind::usage);
    CHECK(replies[2].result == "result");
    CHECK(replies[3].kind == ClaimKind::in_progress);
}

TEST_CASE("tiered: durations that cannot be right are refused by name") {
    CHECK_THROWS_WITH(Bench({.front_ttl = 0s}), Catch::Contains("front_ttl"));
}

TEST_CASE("tiered: the front of the tests keeps every promise of a front") {
    const idem::testing::ManualClock clock;
    idem_test::FrontPromises promises(MemoryFront(clock),
                                      [&](idem::Duration by) { clock.advance(by); });
    promises.ask();
}

}  // namespace tiered_test
