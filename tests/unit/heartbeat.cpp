// Goal: a claim is kept for as long as its holder works, by one thread and one batch per guard and
// period, whatever the store does. Method: count and stop the batches on their way; leases are real
// here and nowhere else, and no assertion depends on how fast the machine is.

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/child.hpp"
#include "support/features.hpp"

using namespace idem_test;
using namespace std::chrono_literals;

namespace heartbeat_test {

/// Tries a scene that a starved machine may spoil, until it was not spoiled.
template <class Scene>
[[nodiscard]] bool in_some_run(Scene&& scene) {
    for (int run = 0; run < 20; ++run)
        if (scene(run)) return true;
    return false;
}

TEST_CASE("no thread starts before the first claim that needs one", "[heartbeat]") {
    CHECK(in_child([] {
              const auto before = thread_count();
              SpyStore store;
              SpyGuard quiet(store, {.heartbeat = false});
              (void)quiet.run(key("done"), {}, [] { return 1; });
              auto open = claimed<int>(quiet.claim<int>(key("open"), {}));
              (void)std::move(open).complete(2);
              if (thread_count() != before) return false;  // not without a heartbeat

              SpyGuard guard(store);
              (void)guard.run(key("done"), {}, [] { return 3; });
              (void)guard.find(key("done"));
              (void)guard.health();
              if (thread_count() != before) return false;  // not for a replay

              auto first = claimed<int>(guard.claim<int>(key("first"), {}));
              return thread_count() == before + 1;
          }) == "");
}

TEST_CASE("however many claims there are, they share the threads", "[heartbeat]") {
    CHECK(in_child([] {
              const auto before = thread_count();
              SpyStore store;
              SpyGuard a(store, {.lease = 60ms});
              SpyGuard b(store, {.lease = 60ms});
              std::vector<idem::Claim<int>> open;
              for (int i = 0; i < 100; ++i) {
                  open.push_back(claimed<int>(a.claim<int>(key("a" + std::to_string(i)), {})));
                  open.push_back(claimed<int>(b.claim<int>(key("b" + std::to_string(i)), {})));
              }
              const bool renewed = eventually([&] { return store.renewals() >= 6; });
              // One renews, one watches the deadlines while a request is on the wire.
              return renewed && thread_count() <= before + 2;
          }) == "");
}

/// What a store saw of renewal batches, by the scope of their first key.
struct Batches {
    std::mutex mutex{};
    std::size_t mixed = 0;
    std::map<std::string, std::vector<idem::LocalInstant>> when{};
    std::map<std::string, std::set<std::string>> renewed{};

    idem_test::Way see(std::span<const idem::RenewRequest> requests) {
        std::scoped_lock const lock(mutex);
        const std::string scope(requests.front().key.scope);
        when[scope].push_back(idem::LocalClock::now());
        for (const auto& request : requests) {
            mixed += request.key.scope == scope ? 0 : 1;
            renewed[scope].insert(std::string(request.key.id));
        }
        return Way::pass;
    }
    std::size_t count(const std::string& scope) {
        std::scoped_lock const lock(mutex);
        return when[scope].size();
    }
};

TEST_CASE("ten thousand open claims cost one batch per guard and period", "[heartbeat]") {
    constexpr idem::Duration lease = 3s;
    SpyStore store;
    auto batches = std::make_shared<Batches>();
    store.on_renew([batches](auto requests) { return batches->see(requests); });
    SpyGuard many(store, {.lease = lease});
    SpyGuard few(store, {.lease = lease});
    std::vector<idem::Claim<int>> open;
    for (int i = 0; i < 10'000; ++i)
        open.push_back(
            claimed<int>(many.claim<int>({.scope = "many", .id = std::to_string(i)}, {})));
    for (int i = 0; i < 10; ++i)
        open.push_back(claimed<int>(few.claim<int>({.scope = "few", .id = std::to_string(i)}, {})));

    // From here on nothing is claimed. A renewal takes along whatever falls due in the next half
    // period, so that batches cannot begin closer than that, however the claims were spread.
    const auto begin = idem::LocalClock::now();
    const auto first = batches->count("many");
    const auto first_few = batches->count("few");
    REQUIRE(eventually([&] { return batches->count("many") >= first + 4; }));
    REQUIRE(eventually([&] { return batches->count("few") >= first_few + 2; }));
    store.on_renew({});
    std::scoped_lock const lock(batches->mutex);
    CHECK(batches->mixed == 0);
    CHECK(batches->renewed["many"].size() == 10'000);
    CHECK(batches->renewed["few"].size() == 10);
    const auto& when = batches->when["many"];
    const auto gaps = static_cast<int>(when.size() - first) - 2;  // the first one may be older
    CHECK(gaps * (lease / 6) <= when.back() - begin);
}

TEST_CASE("a handler that outlives its lease keeps it, and nobody else runs", "[heartbeat]") {
    constexpr idem::Duration lease = 150ms;
    CHECK(in_some_run([&](int run) {
        SpyStore store;
        SpyGuard guard(store, {.lease = lease});
        SpyGuard other(store, {.lease = lease});
        std::atomic<int> runs = 0;
        bool kept = false;
        int repeats = 0;
        const auto outcome = guard.run(key(), {}, [&](idem::Execution& execution) {
            ++runs;
            const auto begin = idem::LocalClock::now();
            while (execution.held() && idem::LocalClock::now() < begin + 3 * lease) {
                const auto repeat = other.run(key(), {}, [&] { return ++runs; });
                if (execution.held())
                    repeats += repeat.kind() == idem::OutcomeKind::in_progress ? 1 : 1'000'000;
                idem_test::outlast(5ms);
            }
            kept = execution.held();
            return run;
        });
        if (!kept) return false;  // starved: the lease was lost, and the holder was told
        CHECK(runs == 1);
        CHECK(repeats > 0);
        CHECK(repeats < 1'000'000);
        CHECK(outcome.recorded());
        return true;
    }));
}

TEST_CASE("a renewal that fails is tried again within the lease", "[heartbeat]") {
    constexpr idem::Duration lease = 600ms;
    const auto how = GENERATE(Way::refuse, Way::lose_answer, Way::raise);
    CAPTURE(static_cast<int>(how));
    CHECK(in_some_run([&](int) {
        SpyStore store;
        EventLog log;
        auto failures = std::make_shared<std::atomic<int>>(2);
        store.on_renew([=](auto) { return failures->fetch_sub(1) > 0 ? how : Way::pass; });
        SpyGuard guard(store, {.lease = lease, .events = log.observer()});
        const auto begin = idem::LocalClock::now();
        auto claim = claimed<int>(guard.claim<int>(key(), {}));
        if (!eventually([&] { return store.renewals() >= 3; })) return false;
        (void)eventually([&] { return !claim.held() || idem::LocalClock::now() >= begin + lease; });
        if (!claim.held()) return false;  // starved
        CHECK(log.of(idem::EventKind::store_error).size() == 2);
        CHECK(std::move(claim).complete(1).recorded());
        return true;
    }));
}

TEST_CASE("leaving while a renewal is on the wire waits for nothing", "[heartbeat]") {
    SpyStore store;
    auto on_wire = std::make_shared<Gate>();
    auto answer = std::make_shared<Gate>();
    store.on_renew([=](auto) {
        on_wire->open();
        answer->wait();
        return Way::pass;
    });
    SpyGuard guard(store, {.lease = 60ms});
    // The store's own lease lapses meanwhile; nobody takes over, so the holder still stands.
    auto stays = claimed<int>(guard.claim<int>(key("stays"), {}));
    auto leaves = claimed<int>(guard.claim<int>(key("leaves"), {}));
    REQUIRE(on_wire->wait());
    const auto outcome = std::move(leaves).complete(7);
    CHECK_FALSE(answer->is_open());
    CHECK(outcome.recorded());
    const auto before = guard.find(key("leaves"));
    answer->open();
    REQUIRE(eventually([&] { return store.renewals() >= 1; }));
    CHECK(guard.find(key("leaves"))->header == before->header);
    (void)std::move(stays).complete(1);
}

TEST_CASE("after its finish no renewal touches a record", "[heartbeat][race]") {
    constexpr int threads = 4;
    constexpr int per_thread = 2'500;
    SpyStore store;
    auto batches = std::make_shared<std::atomic<std::size_t>>(0);
    auto late = std::make_shared<std::atomic<int>>(0);
    auto finished = std::make_shared<std::atomic<int>>(0);
    store.on_renew([=](auto) {
        batches->fetch_add(1);
        const int before = finished->load();
        for (int i = 0; i < 50 && finished->load() < before + 3; ++i) std::this_thread::yield();
        late->fetch_add(finished->load() > before ? 1 : 0);  // some left while this was on its way
        return Way::pass;
    });
    SpyGuard guard(store, {.lease = 10ms});
    std::array<std::vector<std::pair<idem::Key, idem::RecordHeader>>, threads> finish{};
    std::vector<std::jthread> workers;
    for (std::size_t t = 0; t < threads; ++t) {
        workers.emplace_back([&, t] {
            for (int i = 0; i < per_thread; ++i) {
                const auto k = key(std::to_string(t) + "." + std::to_string(i));
                auto claim = claimed<int>(guard.claim<int>(k, {}));
                const auto seen = batches->load();
                const auto end = idem::LocalClock::now() + 20ms;
                while (i % 25 == 0 && batches->load() == seen && idem::LocalClock::now() < end)
                    std::this_thread::yield();
                (void)std::move(claim).complete(i);
                finished->fetch_add(1);
                finish[t].emplace_back(k, guard.find(k)->header);
            }
        });
    }
    workers.clear();
    CHECK(batches->load() > 0);
    CHECK(late->load() > 0);
    std::size_t touched = 0;
    for (const auto& done : finish)
        for (const auto& [k, header] : done) touched += guard.find(k)->header == header ? 0 : 1;
    CHECK(touched == 0);
}

TEST_CASE("claims, guard and background outlive the user's handle of the store", "[heartbeat]") {
    auto store = std::make_unique<SpyStore>();
    auto renewals = std::make_shared<std::atomic<int>>(0);
    store->on_renew([=](auto) {
        renewals->fetch_add(1);
        return Way::pass;
    });
    auto guard = std::make_unique<SpyGuard>(*store, idem::GuardOptions{.lease = 100ms});
    auto claim = claimed<int>(guard->claim<int>(key(), {}));
    store.reset();
    const auto seen = renewals->load();
    CHECK(eventually([&] { return renewals->load() > seen; }));
    CHECK(guard->run(key("other"), {}, [] { return 3; }).value() == 3);
    guard.reset();  // the guard may go before its claims, too
    CHECK(std::move(claim).complete(4).recorded());
}

TEST_CASE("what a store throws never ends the background thread", "[heartbeat]") {
    SpyStore store;
    SpyGuard guard(store, {.lease = 60ms});
    store.on_renew([](auto) { return Way::raise; });
    store.on_finish([](auto) { return Way::raise; });
    auto lost = claimed<int>(guard.claim<int>(key("lost"), {}));
    REQUIRE(eventually([&] { return store.renewals() >= 3; }));
    const auto late = guard.run(key("late"), {}, [] { return 5; });
    CHECK(late.value() == 5);
    CHECK(late.unrecorded_reason() == idem::UnrecordedReason::unavailable);
    const auto tried = store.finishes();
    REQUIRE(eventually([&] { return store.finishes() >= tried + 3; }));
    store.on_renew({});
    store.on_finish({});
    CHECK(eventually([&] { return guard.health().unrecorded == 0; }));
    CHECK(guard.find(key("late"))->header.state == idem::State::succeeded);

    // The same thread goes on renewing what is claimed from now on.
    const auto seen = store.renewals();
    auto claim = claimed<int>(guard.claim<int>(key("next"), {}));
    CHECK(eventually([&] { return store.renewals() > seen; }));
    (void)std::move(claim).release();
    (void)std::move(lost).release();
}

TEST_CASE("a handler's checkpoint is not undone by an older renewal's answer", "[heartbeat]") {
    // The renewal was sent before the checkpoint and is answered after it.
    constexpr idem::Duration lease = 900ms;
    CHECK(in_some_run([&](int) {
        SpyStore store;
        auto on_wire = std::make_shared<Gate>();
        auto answer = std::make_shared<Gate>();
        store.on_renew([=](std::span<const idem::RenewRequest> requests) {
            if (requests.front().checkpoint) return Way::pass;
            on_wire->open();
            answer->wait();
            return Way::pass;
        });
        SpyGuard guard(store, {.lease = lease});
        auto claim = claimed<int>(guard.claim<int>(key(), {}));
        if (!on_wire->wait()) return false;
        const auto renewal_sent_by = idem::LocalClock::now();
        const auto until = [&](auto instant) {
            (void)eventually([&] { return !claim.held() || idem::LocalClock::now() >= instant; });
        };
        until(renewal_sent_by + 2 * lease / 5);
        try {
            claim.execution().checkpoint("half way");
        } catch (const idem::LeaseLostError&) {  // starved
            answer->open();
            return false;
        }
        const auto noted = idem::LocalClock::now();
        until(renewal_sent_by + 23 * lease / 25);
        const bool was_held = claim.held();
        const auto answered = store.renewals();
        answer->open();
        (void)eventually([&] { return store.renewals() > answered; });
        idem_test::outlast(10ms);  // for the answer to be taken in
        const bool in_time = idem::LocalClock::now() < noted + 4 * lease / 5;
        const bool held = claim.held();
        (void)std::move(claim).release();
        if (!was_held || !in_time) return false;  // starved
        CHECK(held);
        return true;
    }));
}

}  // namespace heartbeat_test
