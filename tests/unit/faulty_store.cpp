// The doubles that other tests lean on: a clock moved by hand, and a store that fails on demand.

#include <chrono>
#include <new>
#include <thread>
#include <vector>

#include <idem/testing/faulty_store.hpp>
#include <idem/testing/manual_clock.hpp>
#include <idem/testing/model_store.hpp>

#include "support/catch.hpp"

namespace faulty_store_test {

using namespace std::chrono_literals;
using idem::testing::Fault;
using idem::testing::FaultyStore;
using idem::testing::ManualClock;
using idem::testing::ModelStore;
using idem::testing::StoreCall;

static_assert(idem::store<ModelStore>);
static_assert(idem::store<FaultyStore<ModelStore>>);
static_assert(idem::store<FaultyStore<FaultyStore<ModelStore>>>);

const idem::Key key{"scope", "id"};

idem::ClaimRequest claim_by(char who) {
    idem::ClaimRequest out;
    out.key = idem::KeyView(idem::Component::call, key);
    out.owner.bytes[0] = who;
    out.lease = 30s;
    out.retention = out.held_retention = 1h;
    return out;
}

struct Setup {
    ManualClock clock{};
    FaultyStore<ModelStore> store{ModelStore(clock)};

    bool there() {
        return store.inner().get_raw(idem::KeyView(idem::Component::call, key)).has_value();
    }
};

TEST_CASE("manual clock: stands still, and all copies move together") {
    const ManualClock clock;
    const ManualClock copy = clock;
    const auto before = clock.now();
    CHECK(clock.now() == before);
    copy.advance(5s);
    CHECK(clock.now() - before == 5s);
    clock.advance(-1h);
    CHECK(copy.now() < before);
    const idem::StoreClock as_store_clock = clock;
    CHECK(as_store_clock() == copy.now());
}

TEST_CASE("faulty store: without a fault it is the store it wraps") {
    Setup s;
    CHECK(idem::claim_one(s.store, claim_by(1)).kind == idem::ClaimKind::acquired);
    CHECK(idem::claim_one(s.store, claim_by(2)).kind == idem::ClaimKind::in_progress);
    CHECK(s.store.calls(StoreCall::claim) == 2);
    CHECK(s.store.list({}).records.size() == 1);
    CHECK(s.store.purge(1).removed == 0);
    CHECK(s.store.calls() == 4);
    CHECK(s.store.faults() == 0);
}

TEST_CASE("faulty store: a fault says what it says and does what it does") {
    struct Row {
        Fault fault;
        bool applied;
        bool in_doubt;
    };
    for (const auto& row : {Row{Fault::refused, false, false}, Row{Fault::not_sent, false, true},
                            Row{Fault::reply_lost, true, true}}) {
        Setup s;
        s.store.fail_call(1, row.fault);
        const auto reply = idem::claim_one(s.store, claim_by(1));
        CHECK(reply.trouble.kind == idem::Trouble::Kind::unavailable);
        CHECK(reply.trouble.may_have_applied == row.in_doubt);
        CHECK(reply.fence == 0);
        CHECK(s.there() == row.applied);
        CHECK_FALSE(idem::claim_one(s.store, claim_by(1)).trouble);
    }
    Setup s;
    s.store.fail_call(1, Fault::throws);
    CHECK_THROWS_AS(idem::claim_one(s.store, claim_by(1)), std::bad_alloc);
    CHECK_FALSE(s.there());
}

TEST_CASE("faulty store: the k-th call fails, of one operation or of any") {
    Setup s;
    s.store.fail_call(2, Fault::refused, StoreCall::claim);
    CHECK_FALSE(idem::claim_one(s.store, claim_by(1)).trouble);
    CHECK_FALSE(idem::find_one(s.store, claim_by(1).key).trouble);
    CHECK(idem::claim_one(s.store, claim_by(1)).trouble);
    CHECK_FALSE(idem::claim_one(s.store, claim_by(1)).trouble);
    s.store.fail_all(Fault::refused, StoreCall::find);
    for (int i = 0; i < 3; ++i) CHECK(idem::find_one(s.store, claim_by(1).key).trouble);
    CHECK_FALSE(idem::claim_one(s.store, claim_by(1)).trouble);
    s.store.heal();
    CHECK_FALSE(idem::find_one(s.store, claim_by(1).key).trouble);
    CHECK(s.store.faults() == 4);
}

TEST_CASE("faulty store: a hook lets another caller in at the very moment") {
    Setup s;
    bool inside = false;
    s.store.before([&](StoreCall call) {
        if (call != StoreCall::claim || inside) return;
        inside = true;
        CHECK(idem::claim_one(s.store, claim_by(2)).kind == idem::ClaimKind::acquired);
        inside = false;
    });
    CHECK(idem::claim_one(s.store, claim_by(1)).kind == idem::ClaimKind::in_progress);
    s.store.before({});
    int after = 0;
    s.store.after([&](StoreCall) { ++after; });
    (void)idem::find_one(s.store, claim_by(1).key);
    CHECK(after == 1);
}

TEST_CASE("faulty store: many threads, one count") {
    Setup s;
    s.store.fail_call(50, Fault::refused);
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&] {
            for (int i = 0; i < 25; ++i) (void)idem::claim_one(s.store, claim_by(1));
        });
    for (auto& thread : threads) thread.join();
    CHECK(s.store.calls() == 100);
    CHECK(s.store.faults() == 1);
}

}  // namespace faulty_store_test
