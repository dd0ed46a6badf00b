// What many threads ask at once leaves as one batch, and nobody's answer depends on the others.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <idem/idem.hpp>
#include <idem/testing/faulty_store.hpp>

#include "support/catch.hpp"
#include "support/child.hpp"
#include "support/eventually.hpp"
#include "support/hooked_store.hpp"
#include "support/requests.hpp"

namespace combining_test {

using namespace std::chrono_literals;
using idem::ClaimKind;
using idem::CombiningStore;
using idem::MemoryStore;
using idem::testing::StoreCall;
using idem_test::claim_of;
using idem_test::complete_of;
using idem_test::eventually;
using idem_test::owner_of;

/// Holds up what comes to it until it is opened.
class Barrier {
public:
    void pass() {
        ++arrived_;
        opened_.wait();
    }
    void open() { open_.set_value(); }
    [[nodiscard]] int arrived() const { return arrived_; }

private:
    std::atomic<int> arrived_{0};
    std::promise<void> open_{};
    std::shared_future<void> opened_{open_.get_future().share()};
};

/// A store whose first call is held up, and callers that queue up behind it one by one.
class Bench {
public:
    using Faulty = idem::testing::FaultyStore<MemoryStore>;

    explicit Bench(idem::CombiningOptions options = {}) : store(faulty, options) {
        faulty.before([this](StoreCall) {
            if (!first_.exchange(false)) return;
            barrier_.pass();
        });
        start([this] { (void)idem::claim_one(store, claim_of(leader_, 1)); });
        REQUIRE(eventually([&] { return barrier_.arrived() == 1; }));
    }
    ~Bench() { finish(); }
    Bench(const Bench&) = delete;
    Bench& operator=(const Bench&) = delete;

    /// Comes when everyone before it has queued up.
    void queue_up(std::function<void()> work) {
        const auto before = store.usage().waiting;
        start(std::move(work));
        REQUIRE(eventually([&] { return store.usage().waiting == before + 1; }));
    }
    void claim(std::size_t i, const idem::Key& key) {
        queue_up([this, i, key] {
            auto reply = idem::claim_one(store, claim_of(key, owner_of(100 + i)));
            const std::lock_guard lock(mutex_);
            replies.at(i) = std::move(reply);
        });
    }
    void start(std::function<void()> work) { threads_.emplace_back(std::move(work)); }
    void finish() {
        if (threads_.empty()) return;
        barrier_.open();
        for (auto& thread : threads_) thread.join();
        threads_.clear();
    }
    [[nodiscard]] std::size_t claims() const { return faulty.calls(StoreCall::claim); }

    Faulty faulty{MemoryStore()};
    CombiningStore<Faulty> store;
    std::vector<idem::ClaimReply> replies{std::vector<idem::ClaimReply>(20)};

private:
    const idem::Key leader_{"s", "leader"};
    Barrier barrier_{};
    std::atomic<bool> first_{true};
    std::mutex mutex_{};
    std::vector<std::jthread> threads_{};
};

TEST_CASE("combining: what comes while a call is under way leaves as one batch") {
    Bench b;
    for (std::size_t i = 0; i < 20; ++i) b.claim(i, {"s", std::to_string(i)});
    b.finish();
    CHECK(b.claims() == 2);
    for (const auto& reply : b.replies) CHECK(reply.kind == ClaimKind::acquired);
    const auto usage = b.store.usage();
    CHECK(usage.items == 21);
    CHECK(usage.batches == 2);
    CHECK(usage.waiting == 0);
}

TEST_CASE("combining: a caller that is alone goes straight through") {
    idem::testing::FaultyStore<MemoryStore> faulty{MemoryStore()};
    CombiningStore store(faulty);
    const idem::Key key{"s", "k"};
    const auto claim = claim_of(key, 1);
    const auto acquired = idem::claim_one(store, claim);
    CHECK(acquired.kind == ClaimKind::acquired);
    CHECK_FALSE(idem::finish_one(store, complete_of(claim, acquired.fence, "r")).lost);
    CHECK(idem::find_one(store, claim.key).record->payload.result == "r");
    CHECK(faulty.calls() == 3);
    CHECK(store.usage().batches == 3);
}

TEST_CASE("combining: of claims of one key in one batch the first to come is acquired") {
    Bench b;
    for (std::size_t i = 0; i < 20; ++i) b.claim(i, {"s", "hot"});
    b.finish();
    CHECK(b.claims() == 2);
    CHECK(b.replies[0].kind == ClaimKind::acquired);
    for (std::size_t i = 1; i < 20; ++i) CHECK(b.replies[i].kind == ClaimKind::in_progress);
}

TEST_CASE("combining: callers leave in the order they came in, however small the batches") {
    Bench b({.items_max = 7});
    // Of one key, so that the store itself says who was first.
    for (std::size_t i = 0; i < 20; ++i) b.claim(i, {"s", std::to_string(i / 10)});
    b.finish();
    CHECK(b.claims() == 4);  // 1, 7, 7, 6
    for (std::size_t i = 0; i < 20; ++i)
        CHECK(b.replies[i].kind == (i % 10 == 0 ? ClaimKind::acquired : ClaimKind::in_progress));
}

TEST_CASE("combining: a batch is bounded in bytes too") {
    Bench b({.bytes_max = 10'000});
    const std::string large(4'000, 'x');
    std::vector<idem::Key> keys;
    for (int i = 0; i < 4; ++i) keys.push_back({"s", std::to_string(i)});
    // Finishes have a queue of their own: the first one is held up by the second barrier.
    Barrier barrier;
    std::atomic<bool> first{true};
    b.faulty.before([&](StoreCall call) {
        if (call == StoreCall::finish && first.exchange(false)) barrier.pass();
    });
    std::atomic<int> lost{0};
    const auto complete = [&](const idem::Key& key) {
        if (idem::finish_one(b.store, complete_of(key, owner_of(1), 1, large)).lost) ++lost;
    };
    b.start([&] { complete(keys[0]); });
    REQUIRE(eventually([&] { return barrier.arrived() == 1; }));
    for (const auto& key : keys) b.queue_up([&] { complete(key); });
    barrier.open();
    b.finish();
    CHECK(b.faulty.calls(StoreCall::finish) == 3);  // 1, 2, 2
    CHECK(lost == 5);
}

TEST_CASE("combining: what is wrong with one caller's request is its own trouble") {
    Bench b;
    b.claim(0, {"s", "good"});
    b.claim(1, {"", "bad"});
    b.claim(2, {"s", "good too"});
    b.finish();
    CHECK(b.claims() == 2);
    CHECK(b.replies[0].kind == ClaimKind::acquired);
    CHECK(b.replies[1].trouble.kind == idem::Trouble::Kind::usage);
    CHECK(b.replies[2].kind == ClaimKind::acquired);
    CHECK_FALSE(b.replies[2].trouble);
}

TEST_CASE("combining: a batch that ends in an exception is asked again by each for itself") {
    Bench b;
    for (std::size_t i = 0; i < 5; ++i) b.claim(i, {"s", std::to_string(i)});
    b.faulty.fail_call(2, idem::testing::Fault::throws, StoreCall::claim);  // 1: the one held up
    b.finish();
    CHECK(b.claims() == 1 + 1 + 5);
    for (std::size_t i = 0; i < 5; ++i) CHECK(b.replies[i].kind == ClaimKind::acquired);
}

TEST_CASE("combining: an exception reaches the caller whose own call it was, and only that one") {
    idem::testing::FaultyStore<MemoryStore> faulty{MemoryStore()};
    CombiningStore store(faulty);
    faulty.fail_call(1, idem::testing::Fault::throws);
    const idem::Key key{"s", "k"};
    CHECK_THROWS_AS(idem::claim_one(store, claim_of(key, 1)), std::bad_alloc);
    CHECK(idem::claim_one(store, claim_of(key, 2)).kind == ClaimKind::acquired);
}

TEST_CASE("combining: an answer lost for a batch is in doubt for each in it, and for no other") {
    Bench b;
    for (std::size_t i = 0; i < 5; ++i) b.claim(i, {"s", std::to_string(i)});
    b.faulty.fail_call(2, idem::testing::Fault::reply_lost, StoreCall::claim);
    b.finish();
    for (std::size_t i = 0; i < 5; ++i) CHECK(b.replies[i].trouble.may_have_applied);
    const idem::Key key{"s", "after"};
    CHECK(idem::claim_one(b.store, claim_of(key, 9)).kind == ClaimKind::acquired);
}

TEST_CASE("combining: who comes to a full queue, or is a batch already, goes by itself") {
    Bench b({.items_max = 3, .queue_max = 2});
    b.claim(0, {"s", "0"});
    b.claim(1, {"s", "1"});
    const idem::Key third{"s", "2"};
    CHECK(idem::claim_one(b.store, claim_of(third, 7)).kind == ClaimKind::acquired);
    CHECK(b.claims() == 1);  // the one held up is not counted yet

    const std::vector<idem::Key> keys = {{"s", "a"}, {"s", "b"}, {"s", "c"}};
    std::vector<idem::ClaimRequest> batch;
    for (const auto& key : keys) batch.push_back(claim_of(key, 8));
    std::vector<idem::ClaimReply> replies(batch.size());
    b.store.claim(batch, replies);
    CHECK(b.claims() == 2);
    for (const auto& reply : replies) CHECK(reply.kind == ClaimKind::acquired);
}

TEST_CASE("combining: who has waited as long as a request may take leaves, and nothing was sent") {
    Barrier barrier;
    std::atomic<bool> first{true};
    idem_test::HookedStore hooked(MemoryStore(), 10ms);
    hooked.on_claim([&](const idem::ClaimRequest&) {
        if (first.exchange(false)) barrier.pass();
        return idem_test::Wire::good;
    });
    CombiningStore store(hooked);
    CHECK(store.time_allowed() == 20ms);
    const idem::Key leader{"s", "leader"};
    const idem::Key key{"s", "k"};
    std::jthread held_up([&] { (void)idem::claim_one(store, claim_of(leader, 1)); });
    REQUIRE(eventually([&] { return barrier.arrived() == 1; }));
    const auto reply = idem::claim_one(store, claim_of(key, 2));
    CHECK(reply.trouble.kind == idem::Trouble::Kind::unavailable);
    CHECK_FALSE(reply.trouble.may_have_applied);
    CHECK(store.usage().waiting == 0);
    barrier.open();
    held_up.join();
    CHECK(hooked.claims() == 1);
    CHECK(idem::claim_one(store, claim_of(key, 3)).kind == ClaimKind::acquired);
}

TEST_CASE("combining: many threads with many keys each get the answer to their own question") {
    CombiningStore store{MemoryStore()};
    constexpr int threads = 16;
    std::atomic<int> wrong{0};
    std::vector<std::jthread> all;
    for (int t = 0; t < threads; ++t) {
        all.emplace_back([&, t] {
            for (int i = 0; i < 200; ++i) {
                const idem::Key key{"s", std::to_string(t) + "/" + std::to_string(i)};
                const auto claim = claim_of(key, static_cast<std::uint64_t>(t * 1000 + i + 1));
                const auto reply = idem::claim_one(store, claim);
                if (reply.kind != ClaimKind::acquired) ++wrong;
                if (idem::finish_one(store, complete_of(claim, reply.fence, key.id)).lost) ++wrong;
                const auto again = idem::claim_one(store, claim_of(key, 999'999));
                if (again.kind != ClaimKind::completed || again.result != key.id) ++wrong;
                const auto found = idem::find_one(store, claim.key);
                if (!found.record || found.record->key.id != key.id) ++wrong;
            }
        });
    }
    for (auto& thread : all) thread.join();
    CHECK(wrong == 0);
    CHECK(store.usage().items == threads * 200 * 4);
}

TEST_CASE("combining: of many threads with one key one runs, and all get its result") {
    CombiningStore store{MemoryStore()};
    idem::IdempotencyGuard<CombiningStore<MemoryStore>> guard(store, {.wait = 1h});
    std::atomic<int> runs{0};
    std::atomic<int> right{0};
    std::vector<std::jthread> all;
    for (int t = 0; t < 16; ++t) {
        all.emplace_back([&] {
            const auto outcome = guard.run(idem::Key{"s", "hot"}, {}, [&] { return ++runs; });
            if (outcome.value() == 1) ++right;
        });
    }
    for (auto& thread : all) thread.join();
    CHECK(runs == 1);
    CHECK(right == 16);
}

TEST_CASE("combining: a forked child is told by the store below, whatever its parent was at",
          "[fork]") {
    Bench b;
    b.claim(0, {"s", "waits"});
    const auto said = idem_test::in_child([&] {
        const idem::Key key{"s", "k"};
        const auto reply = idem::claim_one(b.store, claim_of(key, 5));
        return reply.trouble.kind == idem::Trouble::Kind::usage;
    });
    CHECK(said == "");
    b.finish();
    CHECK(b.replies[0].kind == ClaimKind::acquired);
}

TEST_CASE("combining: limits of zero are refused by name") {
    CHECK_THROWS_WITH(CombiningStore(MemoryStore(), {.items_max = 0}),
                      Catch::Contains("items_max"));
    CHECK_THROWS_WITH(CombiningStore(MemoryStore(), {.under_way_max = 0}),
                      Catch::Contains("under_way_max"));
}

}  // namespace combining_test
