// Goal: a repeat is answered from memory as the store would answer it, to the last byte, and never
// once this process has said or heard that the result is gone. Method: a store beneath that is
// counted, and steps in at any moment.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <idem/any_store.hpp>
#include <idem/layered/cached.hpp>
#include <idem/memory/store.hpp>
#include <idem/testing/faulty_store.hpp>
#include <idem/testing/manual_clock.hpp>
#include <idem/token.hpp>

#include "support/catch.hpp"
#include "support/child.hpp"
#include "support/expect.hpp"
#include "support/features.hpp"
#include "support/requests.hpp"

using namespace idem_test;
using namespace std::chrono_literals;

namespace cached_store_test {

using idem::ClaimKind;
using idem::ClaimReply;
using idem::ClaimRequest;
using idem::Fence;
using idem::Fingerprint;
using idem::Key;
using idem::MemoryStore;
using idem::testing::StoreCall;
using Faulty = idem::testing::FaultyStore<MemoryStore>;
using Cached = idem::CachedStore<Faulty>;

const Key the_key = key();  // requests only refer to their keys
const Key other_key = key("43");
const Fingerprint request_p = Fingerprint::of_bytes("P");
const Fingerprint request_q = Fingerprint::of_bytes("Q");

ClaimRequest repeat(std::uint64_t owner, const Key& k = the_key,
                    const Fingerprint& fingerprint = request_p) {
    auto out = claim_of(k, owner);
    out.fingerprint = fingerprint;
    return out;
}

/// A store beneath whose claims are counted, on a clock that stands still, and the cached one.
struct Place {
    idem::testing::ManualClock clock{};
    Faulty inner{MemoryStore({.clock = clock})};
    Cached store;

    explicit Place(idem::CacheOptions options = {})
        : store(inner, (options.clock = clock, std::move(options))) {}

    /// Runs and completes a key as owner 1. @return its fence.
    Fence complete(const Key& k = the_key, const std::string& result = "result",
                   std::uint64_t owner = 1) {
        const auto claim = repeat(owner, k);
        const auto claimed = idem::claim_one(inner, claim);
        REQUIRE(claimed.kind == ClaimKind::acquired);
        auto finish = complete_of(claim, claimed.fence, result);
        finish.codec = {7, 3};
        finish.resource = "job-1";
        REQUIRE_FALSE(idem::finish_one(inner, finish).lost);
        return claimed.fence;
    }
    ClaimReply ask(const ClaimRequest& request) { return idem::claim_one(store, request); }
    /// Whether the store beneath was asked.
    bool asks(const ClaimRequest& request, ClaimReply* reply = nullptr) {
        const auto before = inner.calls(StoreCall::claim);
        const auto got = ask(request);
        if (reply != nullptr) *reply = got;
        return inner.calls(StoreCall::claim) != before;
    }
    /// Completed, and in the cache.
    void warm(const Key& k = the_key, const std::string& result = "result") {
        complete(k, result);
        REQUIRE(asks(repeat(2, k)));
        REQUIRE_FALSE(asks(repeat(3, k)));
    }
};

auto all_of(const ClaimReply& r) {
    return std::tuple(r.kind, r.verify, r.takeover, r.result_kind, r.codec.tag, r.codec.version,
                      r.attempt, r.crashes, r.fence, r.owner, r.retention_left, r.lease_left,
                      r.created, r.started, r.completed, r.failure, r.result, r.checkpoint,
                      r.resource, r.trouble.kind, r.trouble.message);
}

TEST_CASE("a cached repeat is what the store would answer, to the last byte", "[cached]") {
    for (const std::string& result :
         {std::string("result"), std::string(), std::string(256, '\0')}) {
        Place place;
        (void)idem::claim_one(place.inner, claim_of(the_key, 9));  // vanishes
        place.clock.advance(31s);
        place.complete(the_key, result);
        place.clock.advance(1s);
        REQUIRE(place.asks(repeat(2)));
        place.clock.advance(7s);
        ClaimReply cached;
        REQUIRE_FALSE(place.asks(repeat(3), &cached));
        const auto plain = idem::claim_one(place.inner, repeat(3));
        CHECK(all_of(cached) == all_of(plain));
        CHECK(cached.kind == ClaimKind::completed);
        CHECK(cached.result == result);
        CHECK(cached.crashes == 1);
    }
}

TEST_CASE("only the same request is answered from memory", "[cached]") {
    const auto goes_on = [](const ClaimRequest& request, ClaimKind kind) {
        Place place;  // each of its own: an answer of another kind drops what is kept
        place.warm();
        ClaimReply reply;
        CHECK(place.asks(request, &reply));
        CHECK(reply.kind == kind);
    };
    goes_on(repeat(4, the_key, request_q), ClaimKind::mismatch);
    goes_on(repeat(4, the_key, Fingerprint{}), ClaimKind::completed);
    auto older = repeat(4);
    older.fingerprint_before = request_q;
    goes_on(older, ClaimKind::completed);
    auto redeem = repeat(4);
    redeem.redeem_only = true;
    goes_on(redeem, ClaimKind::absent);
    goes_on(repeat(1), ClaimKind::stale);  // the last owner's delayed claim
    auto lease = repeat(4);
    lease.key.component = idem::Component::lease;
    goes_on(lease, ClaimKind::acquired);
    for (const Key& k :
         {key("43"), Key{"order.place", "42", "acme2"}, Key{"order.plac", "e42", "acme"}})
        goes_on(repeat(4, k), ClaimKind::acquired);
}

TEST_CASE("what the store has not compared is not kept", "[cached]") {
    for (const bool before : {false, true}) {
        Place place;
        place.complete();
        auto unfit = repeat(2, the_key, before ? request_p : Fingerprint{});
        if (before) unfit.fingerprint_before = request_q;
        CHECK(place.asks(unfit));
        CHECK(place.asks(repeat(3)));
        CHECK_FALSE(place.asks(repeat(4)));
    }
}

TEST_CASE("a redeemed token is answered to those who only redeem", "[cached]") {
    Place place;
    idem::IssueRequest issue{view_of(the_key), {}, owner_of(8), 1h, 1h};
    REQUIRE(idem::issue_one(place.inner, issue).issued);
    const auto redeem = [](std::uint64_t owner) {
        auto out = repeat(owner);
        out.redeem_only = true;
        return out;
    };
    const auto claimed = idem::claim_one(place.inner, redeem(1));
    REQUIRE_FALSE(
        idem::finish_one(place.inner, complete_of(the_key, owner_of(1), claimed.fence, "r")).lost);
    CHECK(place.asks(repeat(2)));  // kept, by one who would have made it
    CHECK(place.asks(redeem(3)));  // is asked for again, and kept as a token's
    CHECK_FALSE(place.asks(redeem(4)));
    CHECK_FALSE(place.asks(repeat(5)));
}

TEST_CASE("a result is answered until its age or its retention ends", "[cached]") {
    Place place({.max_age = 10s});
    place.warm();
    place.clock.advance(10s - 1us);
    CHECK_FALSE(place.asks(repeat(4)));
    place.clock.advance(1us);
    CHECK(place.asks(repeat(4)));
    place.clock.advance(-1s);  // a clock that ran backwards says nothing about ages
    CHECK(place.asks(repeat(5)));

    Place kept({.max_age = 24h});
    kept.warm();  // its retention is one hour
    kept.clock.advance(1h - 1us);
    CHECK_FALSE(kept.asks(repeat(4)));
    kept.clock.advance(1us);
    ClaimReply reply;
    CHECK(kept.asks(repeat(4), &reply));
    CHECK(reply.kind == ClaimKind::acquired);
}

TEST_CASE("ages are counted from before the store was asked", "[cached]") {
    Place place({.max_age = 10s});
    place.complete();
    place.inner.after([&](StoreCall call) {
        if (call == StoreCall::claim) place.clock.advance(8s);
    });
    CHECK(place.asks(repeat(2)));
    place.inner.after({});
    place.clock.advance(1s);
    CHECK_FALSE(place.asks(repeat(3)));
    place.clock.advance(1s);
    CHECK(place.asks(repeat(4)));
}

TEST_CASE("what is done through the handle is seen at once", "[cached]") {
    struct Row {
        const char* what;
        void (*act)(Cached& store);
    };
    const Row rows[] = {
        {"forget",
         [](Cached& s) {
             (void)idem::forget_one(s, {view_of(the_key), 30s});
         }},
        {"resolve",
         [](Cached& s) {
             idem::ResolveRequest request;
             request.key = view_of(the_key);
             (void)idem::resolve_one(s, request);
         }},
        {"issue",
         [](Cached& s) {
             (void)idem::issue_one(s, {view_of(the_key), {}, owner_of(8), 1h, 1h});
         }},
        {"finish",
         [](Cached& s) { (void)idem::finish_one(s, release_of(the_key, owner_of(8), 1)); }},
        {"mismatch", [](Cached& s) { (void)idem::claim_one(s, repeat(8, the_key, request_q)); }},
    };
    for (const auto& row : rows) {
        for (const bool throws : {false, true}) {
            CAPTURE(row.what, throws);
            Place place;
            place.warm();
            Cached copy = place.store;
            if (throws && row.what != std::string("mismatch")) {
                place.inner.fail_call(1, idem::testing::Fault::throws);
                CHECK_THROWS_AS(row.act(copy), std::bad_alloc);
            } else {
                row.act(copy);
            }
            CHECK(place.asks(repeat(4)));
        }
    }
}

TEST_CASE("a forget whose answer was lost is seen", "[cached]") {
    Place place;
    place.warm();
    place.inner.fail_call(1, idem::testing::Fault::reply_lost);
    CHECK(idem::forget_one(place.store, {view_of(the_key), 30s}).trouble.may_have_applied);
    CHECK(place.ask(repeat(4)).kind == ClaimKind::acquired);
}

TEST_CASE("a result under way does not survive a forget", "[cached]") {
    // At each moment at which the claim is with the store: before it is answered, and after.
    Place place;
    place.complete();
    place.inner.after([&](StoreCall call) {
        if (call != StoreCall::claim) return;
        place.inner.after({});
        (void)idem::forget_one(place.store, {view_of(the_key), 30s});
    });
    CHECK(place.ask(repeat(2)).kind == ClaimKind::completed);
    CHECK(place.store.usage().entries == 0);
    CHECK(place.ask(repeat(3)).kind == ClaimKind::acquired);
}

TEST_CASE("an older answer is not kept over a newer one", "[cached]") {
    Place place;
    place.complete();
    place.inner.after([&](StoreCall call) {  // another process forgets it, this one runs it again
        if (call != StoreCall::claim) return;
        place.inner.after({});
        (void)idem::forget_one(place.inner, {view_of(the_key), 30s});
        CHECK(place.ask(repeat(3)).kind == ClaimKind::acquired);
    });
    CHECK(place.ask(repeat(2)).kind == ClaimKind::completed);
    CHECK(place.ask(repeat(4)).kind == ClaimKind::in_progress);
}

TEST_CASE("another process's forget is seen when the age has passed", "[cached]") {
    Place place({.max_age = 10s});
    place.warm();
    CHECK(idem::forget_one(place.inner, {view_of(the_key), 30s}).existed);
    CHECK(place.ask(repeat(4)).kind == ClaimKind::completed);  // as it is documented
    place.clock.advance(10s);
    CHECK(place.ask(repeat(4)).kind == ClaimKind::acquired);
}

TEST_CASE("a batch is answered in order, and asks the store for the rest at once", "[cached]") {
    Place place;
    place.warm();
    place.complete(other_key, "other");
    const Key fresh = key("fresh");
    const std::vector<ClaimRequest> batch{repeat(10),  // here
                                          repeat(11, fresh),
                                          repeat(12, fresh),  // runs; then is in progress
                                          repeat(13, other_key),
                                          repeat(14, other_key),  // both from the store
                                          repeat(15),             // here
                                          repeat(16, the_key, request_q),
                                          repeat(17)};  // mismatch; then no more from here
    const auto calls = place.inner.calls(StoreCall::claim);
    const auto hits = place.store.usage().hits;
    std::vector<ClaimReply> replies(batch.size());
    place.store.claim(batch, replies);
    CHECK(place.inner.calls(StoreCall::claim) == calls + 1);
    CHECK(place.store.usage().hits == hits + 2);
    const std::vector<ClaimKind> kinds{
        ClaimKind::completed, ClaimKind::acquired,  ClaimKind::in_progress, ClaimKind::completed,
        ClaimKind::completed, ClaimKind::completed, ClaimKind::mismatch,    ClaimKind::completed};
    for (std::size_t i = 0; i < batch.size(); ++i) {
        CAPTURE(i);
        CHECK(replies[i].kind == kinds[i]);
        if (kinds[i] == ClaimKind::completed)
            CHECK(replies[i].result == (batch[i].key == view_of(other_key) ? "other" : "result"));
    }
    CHECK_FALSE(place.asks(repeat(20, other_key)));
    place.store.claim({}, {});
}

TEST_CASE("trouble is the caller's, and keeps nothing and drops nothing", "[cached]") {
    Place place;
    place.complete();
    place.inner.fail_call(1, idem::testing::Fault::refused);
    CHECK(place.ask(repeat(2)).trouble);
    CHECK(place.store.usage().entries == 0);
    CHECK(place.asks(repeat(2)));
    place.inner.fail_all(idem::testing::Fault::refused);
    CHECK(place.ask(repeat(3)).result == "result");  // the store may be away
    CHECK(place.ask(repeat(3, the_key, request_q)).trouble);
    CHECK(place.ask(repeat(4)).result == "result");
}

TEST_CASE("the cache keeps within its bytes, and keeps what is asked for", "[cached]") {
    constexpr std::size_t bytes_max = std::size_t{1} << 20U;
    Place place({.bytes_max = bytes_max, .max_age = 1h});
    const Key hot = key("hot");
    place.warm(hot, "hot");
    constexpr int many = 4000;
    int answered = 0;
    for (int i = 0; i < many; ++i) {
        const Key k = key("id" + std::to_string(i));
        place.complete(k, std::string(300, 'r'));
        (void)place.ask(repeat(2, k));
        CHECK(place.store.usage().bytes <= bytes_max);
        answered += place.asks(repeat(3, hot)) ? 0 : 1;
    }
    const auto usage = place.store.usage();
    CHECK(usage.entries > bytes_max / 2000);
    CHECK(usage.entries < many);
    CHECK(answered == many);
    for (int i = 0; i < many; ++i) {
        const Key k = key("id" + std::to_string(i));
        (void)idem::forget_one(place.store, {view_of(k), 30s});
    }
    CHECK(place.store.usage().entries == 1);
}

TEST_CASE("bytes are counted as they are allocated and given back", "[cached]") {
    Place place;
    place.warm(the_key, std::string(10'000, 'r'));
    CHECK(place.store.usage().bytes > 10'000);
    CHECK(place.store.usage().bytes < 12'000);
    place.clock.advance(11s);
    CHECK(place.asks(repeat(4)));  // replaced, not added
    CHECK(place.store.usage().entries == 1);
    CHECK(place.store.usage().bytes < 12'000);
    (void)idem::forget_one(place.store, {view_of(the_key), 30s});
    CHECK(place.store.usage().entries == 0);
    CHECK(place.store.usage().bytes < 1'000);  // the table
}

TEST_CASE("a result larger than its share is not kept", "[cached]") {
    Place place({.bytes_max = std::size_t{64} << 20U});
    place.warm(the_key, std::string(250'000, 'r'));
    place.complete(other_key, std::string(270'000, 'r'));
    CHECK(place.asks(repeat(2, other_key)));
    CHECK(place.asks(repeat(3, other_key)));
    CHECK(place.store.usage().entries == 1);
}

TEST_CASE("hits and misses are counted", "[cached]") {
    Place place;
    place.complete();
    for (std::uint64_t owner = 2; owner < 7; ++owner) (void)place.ask(repeat(owner));
    (void)place.ask(claim_of(the_key, 9));
    const auto usage = place.store.usage();
    CHECK(usage.hits == 4);
    CHECK(usage.misses == 2);
    CHECK(usage.entries == 1);
}

TEST_CASE("options that make no cache are refused by name", "[cached]") {
    using Catch::Matchers::Contains;
    const auto make = [](idem::CacheOptions options) {
        return idem::CachedStore<MemoryStore>(MemoryStore(), std::move(options));
    };
    CHECK_THROWS_WITH(make({.bytes_max = 0}), Contains("bytes_max"));
    CHECK_THROWS_WITH(make({.max_age = 0s}), Contains("max_age"));
    CHECK_THROWS_AS(make({.max_age = 24h * 4000}), idem::UsageError);
    CHECK(make({}).usage().entries == 0);  // by the machine's clock
}

TEST_CASE("by the machine's clock too a repeat is answered from memory", "[cached]") {
    idem::CachedStore<Faulty> store(Faulty{MemoryStore()}, {.max_age = 1h});
    idem::IdempotencyGuard guard(store);
    CHECK(guard.run(the_key, request_p, [] { return 7; }).executed());
    for (int i = 0; i < 3; ++i) CHECK(guard.run(the_key, request_p, [] { return 8; }).value() == 7);
    CHECK(store.usage().hits == 2);
    CHECK(guard.forget(the_key));
    CHECK(guard.run(the_key, request_p, [] { return 9; }).executed());
}

TEST_CASE("while one forgets and runs again, nobody is answered what was before",
          "[cached][race]") {
    idem::CachedStore<MemoryStore> store{MemoryStore()};
    constexpr int rounds = 500;
    std::atomic<bool> done{false};
    Expect expect;
    const auto read = [&](std::uint64_t first_owner) {
        int latest = -1;
        for (std::uint64_t i = 0; !done; ++i) {
            const auto claim = repeat(first_owner + i);
            const auto reply = idem::claim_one(store, claim);
            if (reply.kind == ClaimKind::acquired)
                (void)idem::finish_one(store, release_of(the_key, claim.owner, reply.fence));
            if (reply.kind != ClaimKind::completed) continue;
            const int now = std::stoi(reply.result);
            expect(now >= latest);
            latest = now;
        }
    };
    std::vector<std::jthread> readers;
    for (std::uint64_t i = 1; i <= 3; ++i) readers.emplace_back(read, i << 40U);
    std::uint64_t owner = 1;
    for (int round = 0; round < rounds; ++round) {
        (void)idem::forget_one(store, {view_of(the_key), 30s});
        for (;;) {
            const auto claim = repeat(++owner);
            const auto reply = idem::claim_one(store, claim);
            expect(reply.kind != ClaimKind::completed);  // it has been forgotten
            if (reply.kind != ClaimKind::acquired) {
                std::this_thread::yield();
                continue;
            }
            (void)idem::finish_one(store, complete_of(claim, reply.fence, std::to_string(round)));
            break;
        }
        for (int i = 0; i < 20; ++i) std::this_thread::yield();  // time to be read
    }
    done = true;
    for (auto& reader : readers) reader.join();
    CHECK(expect.failed() == 0);
    CHECK(store.usage().hits > 0);
}

TEST_CASE("a child of fork neither hangs at the cache nor answers from it", "[cached][fork]") {
    Place place;
    place.warm();
    std::jthread busy([&](const std::stop_token& stop) {  // some fork finds this thread inside
        for (std::uint64_t owner = 100; !stop.stop_requested(); ++owner)
            (void)place.ask(repeat(owner));
    });
    for (int i = 0; i < 20; ++i) {
        CHECK(in_child([&] {
                  const auto reply = idem::claim_one(place.store, repeat(4));
                  (void)idem::forget_one(place.store, {view_of(the_key), 30s});
                  return reply.trouble.kind == idem::Trouble::Kind::usage &&
                         place.store.usage().hits == 0;
              }) == "");
    }
    busy.request_stop();
    busy.join();
    CHECK_FALSE(place.asks(repeat(5)));
}

TEST_CASE("a child of fork may let the last handle go", "[cached][fork]") {
    auto place = std::make_unique<Place>();
    place->warm();
    CHECK(in_child([&] {
              place.reset();
              return true;
          }) == "");
}

TEST_CASE("a store behind one type can be cached, and the cache be behind one type", "[cached]") {
    idem::CachedStore store(idem::open_store("memory://"));
    static_assert(std::is_same_v<decltype(store), idem::CachedStore<idem::AnyStore>>);
    static_assert(!std::is_constructible_v<idem::AnyStore, int>);
    idem::AnyStore any(store);
    idem::IdempotencyGuard guard(any);
    for (int i = 0; i < 3; ++i)
        CHECK(guard.run(the_key, request_p, [&] { return i; }).value() == 0);
    CHECK(store.usage().hits == 1);
}

TEST_CASE("cached: notices and the time allowed are those of the store beneath", "[cached]") {
    struct Telling : MemoryStore {
        Telling() : MemoryStore(idem::MemoryOptions{}) {}
        [[nodiscard]] idem::Duration time_allowed() const { return 3s; }
        [[nodiscard]] std::shared_ptr<void> watch(const idem::KeyView& k,
                                                  const std::function<void()>& notice) {
            return k.id == "42" ? std::make_shared<std::function<void()>>(notice) : nullptr;
        }
    };
    idem::CachedStore<Telling> told{Telling()};
    CHECK(told.time_allowed() == 3s);
    CHECK(told.watch(view_of(the_key), [] {}) != nullptr);
    CHECK(told.watch(view_of(other_key), [] {}) == nullptr);
    idem::CachedStore<MemoryStore> untold{MemoryStore()};
    CHECK(untold.watch(view_of(the_key), [] {}) == nullptr);
    CHECK(untold.time_allowed() == 0s);
}

}  // namespace cached_store_test
