#ifndef IDEM_TESTS_SUPPORT_LEASE_PROMISES_HPP
#define IDEM_TESTS_SUPPORT_LEASE_PROMISES_HPP

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <idem/fenced_file.hpp>
#include <idem/lease.hpp>

#include "support/catch.hpp"
#include "support/eventually.hpp"
#include "support/features.hpp"
#include "support/folder.hpp"
#include "support/hooked_store.hpp"
#include "support/stopped_holder.hpp"

/// What a lock promises on any store. A world has a store whose clock stands still until the test
/// moves it; what the holder counts by itself goes by this machine's clock.
namespace idem_test {

inline const idem::Key lock_key{"lock", "{a} \n\xFF{}", "t{"};
inline constexpr idem::Duration lock_lease = std::chrono::milliseconds{600};
inline constexpr idem::Duration for_hours = std::chrono::hours{1};

/// Who is told of a loss, and how often. A handle.
struct LossTold {
    struct Shared {
        std::atomic<int> count{0};
        std::atomic<idem::LostReason> reason{idem::LostReason::none};
    };
    std::shared_ptr<Shared> shared = std::make_shared<Shared>();

    void operator()(const idem::Key& key, idem::LostReason why) const {
        shared->reason = why;
        shared->count += key == lock_key ? 1 : 1'000;
    }
    [[nodiscard]] bool once() const {
        return eventually([&] { return shared->count > 0; }) && shared->count == 1;
    }
};

template <class World>
struct LeaseStage {
    using Raw = std::remove_cvref_t<decltype(std::declval<World&>().store())>;
    using Store = HookedStore<Raw>;
    using Lock = idem::LeaseLock<Store>;

    explicit LeaseStage(World& w) : world(w), store(w.store()) {}

    [[nodiscard]] Lock lock(idem::LeaseOptions options = {}) const {
        options.on_loss = told;
        return Lock(store, std::move(options));
    }
    /// As another process would have it: by the store alone.
    [[nodiscard]] idem::LeaseLock<Raw> other() const {
        return idem::LeaseLock<Raw>(world.store(), {.lease = for_hours});
    }
    [[nodiscard]] std::optional<idem::RecordView> find(const idem::Key& key = lock_key) const {
        return idem::find_one(world.store(), {idem::Component::lease, key}).record;
    }

    World& world;
    Store store;
    LossTold told{};
};

/// Tries a scene with real leases until the machine was not too busy to keep them.
template <class Scene>
[[nodiscard]] bool in_some_scene(Scene&& scene) {
    for (int i = 0; i < 20; ++i)
        if (scene()) return true;
    return false;
}

// --- holding ------------------------------------------------------------------------------------

template <class World>
void locks_are_held_by_one(World& world) {
    using namespace std::chrono_literals;
    LeaseStage<World> stage(world);
    SECTION("of many who want a lock one has it at a time, and each gets in") {
        auto lock = stage.lock({.lease = for_hours});
        std::atomic<int> inside{0};
        std::atomic<int> overlaps{0};
        std::atomic<int> entered{0};
        std::vector<std::jthread> threads;
        for (int i = 0; i < 8; ++i)
            threads.emplace_back([&] {
                for (int round = 0; round < 5; ++round) {
                    const auto lease = lock.acquire(lock_key, for_hours);
                    if (!lease) continue;
                    overlaps += ++inside == 1 ? 0 : 1;
                    std::this_thread::yield();
                    --inside;
                    ++entered;
                }
            });
        threads.clear();
        CHECK(overlaps == 0);
        CHECK(entered == 40);
    }
    SECTION("a lock and a guarded call of the same name are two things") {
        const auto lease = stage.other().try_acquire(lock_key);
        REQUIRE(lease);
        idem::IdempotencyGuard guard(stage.store);
        CHECK(guard.run(lock_key, {}, [] { return 1; }).executed());
        CHECK(lease->held());
    }
    SECTION("a lock is free after its release, and what was released is nobody's") {
        auto lock = stage.lock({.lease = for_hours});
        auto lease = lock.try_acquire(lock_key);
        REQUIRE(lease);
        CHECK(lease->held());
        CHECK(lease->key() == lock_key);
        CHECK_FALSE(lease->takeover());
        CHECK_FALSE(stage.other().try_acquire(lock_key));
        CHECK(lease->release());
        CHECK_FALSE(lease->held());
        CHECK_FALSE(lease->release());
        CHECK_THROWS_AS(lease->fence(), idem::UsageError);
        CHECK(stage.find()->header.state == idem::State::released);
        CHECK(stage.find()->header.failure == idem::FailureClass::none);
        CHECK(stage.other().try_acquire(lock_key));
        CHECK(stage.told.shared->count == 0);
    }
    SECTION("a lock is released by whichever thread has it") {
        auto lock = stage.lock({.lease = for_hours});
        auto lease = lock.try_acquire(lock_key);
        REQUIRE(lease);
        std::jthread([moved = std::move(*lease)]() mutable {
            const idem::Lease last = std::move(moved);
        }).join();
        CHECK_FALSE(lease->held());
        CHECK(stage.other().try_acquire(lock_key));
    }
    SECTION("fences grow over releases, lapses, forgetting and the end of the record") {
        auto lock = stage.lock({.lease = for_hours, .retention = 1h});
        idem::Fence last = 0;
        const auto next = [&] {
            auto lease = lock.try_acquire(lock_key);
            REQUIRE(lease);
            CHECK(lease->fence() > last);
            last = lease->fence();
            return lease;
        };
        next().reset();
        const auto lapsed = next();
        world.advance(for_hours);
        const auto forgotten = next();
        CHECK(forgotten->takeover());
        CHECK(lock.guard().forget(lock_key));
        const auto gone = next();
        world.advance(for_hours + 1h);
        CHECK_FALSE(stage.find());
        (void)next();
    }
    SECTION("a lock is never a dead letter, however many of its holders vanish") {
        auto lock = stage.lock({.lease = for_hours});
        std::vector<idem::Lease> vanished;
        for (int i = 0; i < 12; ++i) {
            auto lease = lock.try_acquire(lock_key);
            REQUIRE(lease);
            CHECK(lease->takeover() == (i > 0));
            vanished.push_back(*std::move(lease));
            world.advance(for_hours);
        }
        CHECK(stage.find()->header.crashes == 11);
    }
}

// --- losing -------------------------------------------------------------------------------------

/// Makes the store say of the lock what is asked.
template <class World>
void take_lock_away(LeaseStage<World>& stage, idem::LostReason how) {
    auto other = stage.other();
    switch (how) {
        case idem::LostReason::other_owner: {
            stage.world.advance(lock_lease);
            idem::ClaimRequest claim;
            claim.key = {idem::Component::lease, lock_key};
            claim.owner = idem::detail::new_owner();
            claim.lease = claim.retention = claim.held_retention = for_hours;
            REQUIRE(idem::claim_one(stage.world.store(), claim).takeover);
            break;
        }
        case idem::LostReason::finished:
            stage.world.advance(lock_lease);
            REQUIRE(other.try_acquire(lock_key));
            break;
        case idem::LostReason::forgotten: REQUIRE(other.guard().forget(lock_key)); break;
        case idem::LostReason::gone: stage.world.advance(lock_lease + std::chrono::hours{1}); break;
        default: stage.store.on_renew([](const auto&) { return Wire::refused; });
    }
}

template <class World>
void losses_are_told(World& world) {
    using idem::LostReason;
    SECTION("a lock that is lost is told once, with its reason, and never comes back") {
        const auto how = GENERATE(LostReason::other_owner, LostReason::finished,
                                  LostReason::forgotten, LostReason::gone, LostReason::lapsed);
        CAPTURE(to_string(how));
        CHECK(in_some_scene([&] {
            LeaseStage<World> stage(world);
            (void)stage.other().guard().forget(lock_key);
            auto lock = stage.lock({.lease = lock_lease});
            auto lease = lock.try_acquire(lock_key);
            REQUIRE(lease);
            CHECK(lease->lost() == LostReason::none);
            const auto stop = lease->stop_token();
            take_lock_away(stage, how);
            CHECK(stage.told.once());
            CHECK(stop.stop_requested());
            CHECK_FALSE(lease->held());
            // Too busy to ask the store within a lease: lost, but for another reason.
            const bool starved = lease->lost() == LostReason::lapsed && how != LostReason::lapsed;
            CHECK((starved || lease->lost() == how));
            CHECK(stage.told.shared->reason == lease->lost());
            stage.store.on_renew({});
            const auto renewals = stage.store.renewals();
            outlast(lock_lease / 2);
            CHECK_FALSE(lease->held());
            CHECK(stage.store.renewals() == renewals);
            CHECK_FALSE(lease->release());
            CHECK(stage.told.shared->count == 1);
            return !starved;
        }));
    }
    SECTION("what a renewal throws ends no thread: the work is told to stop") {
        LeaseStage<World> stage(world);
        auto lock = stage.lock({.lease = std::chrono::milliseconds{100}});
        stage.store.on_renew([](const auto&) { return Wire::thrown; });
        const auto lease = lock.try_acquire(lock_key);
        REQUIRE(lease);
        CHECK(stage.told.once());
        CHECK(stage.told.shared->reason == LostReason::lapsed);
        CHECK(lease->stop_token().stop_requested());
    }
    SECTION("a lock that is held for too long is renewed no more, told so, and free") {
        LeaseStage<World> stage(world);
        constexpr idem::Duration lease_time = std::chrono::milliseconds{300};
        CHECK(in_some_scene([&] {
            stage.told = {};
            auto lock = stage.lock({.lease = lease_time, .max_hold = 3 * lease_time});
            const auto from = idem::LocalClock::now();
            auto lease = lock.try_acquire(lock_key);
            REQUIRE(lease);
            CHECK(stage.told.once());
            if (lease->lost() == LostReason::lapsed) return false;  // starved
            CHECK(idem::LocalClock::now() >= from + 3 * lease_time);
            CHECK(lease->lost() == LostReason::max_hold);
            CHECK_FALSE(lease->held());
            const auto renewals = stage.store.renewals();
            CHECK(renewals > 0);
            CHECK_FALSE(stage.other().try_acquire(lock_key));
            outlast(lease_time);
            CHECK(stage.store.renewals() == renewals);
            world.advance(lease_time);
            CHECK(stage.other().try_acquire(lock_key));
            return true;
        }));
    }
    SECTION("after an outage longer than its lease the next lock on the key is renewed") {
        CHECK(in_some_scene([&] {
            LeaseStage<World> stage(world);
            auto lock = stage.lock({.lease = lock_lease});
            stage.store.on_renew([](const auto&) { return Wire::refused; });
            const auto lost = lock.try_acquire(lock_key);
            REQUIRE(lost);
            CHECK(stage.told.once());
            stage.store.on_renew({});
            world.advance(lock_lease);
            const auto next = lock.try_acquire(lock_key);
            REQUIRE(next);
            for (int half = 0; half < 6 && next->held(); ++half) {
                const auto lease_end = stage.find()->header.lease_end;
                world.advance(lock_lease / 2);
                (void)eventually(
                    [&] { return !next->held() || stage.find()->header.lease_end > lease_end; });
            }
            if (!next->held()) return false;  // starved
            CHECK_FALSE(stage.other().try_acquire(lock_key));
            return true;
        }));
    }
}

// --- releasing ----------------------------------------------------------------------------------

template <class World>
void releases_are_bounded(World& world) {
    LeaseStage<World> stage(world);
    SECTION("the release of a lock that is known to be lost asks the store once") {
        auto lock = stage.lock({.lease = std::chrono::milliseconds{100}});
        stage.store.on_renew([](const auto&) { return Wire::refused; });
        auto lease = lock.try_acquire(lock_key);
        REQUIRE(lease);
        CHECK(stage.told.once());
        stage.store.on_finish([](const auto&) { return Wire::refused; });
        CHECK_FALSE(lease->release());
        outlast(std::chrono::milliseconds{100});
        CHECK(stage.store.finishes() == 1);
    }
    SECTION(
        "a lock that goes while the store does not answer throws nothing, and is free in time") {
        auto lock = stage.lock({.lease = for_hours});
        stage.store.on_finish([](const auto&) { return Wire::thrown; });
        const auto unwind = [&] {
            const auto lease = lock.try_acquire(lock_key);
            stage.store.on_finish([](const auto&) { return Wire::refused; });
            throw std::logic_error("the holder's own");
        };
        CHECK_THROWS_WITH(unwind(), "the holder's own");
        CHECK_FALSE(stage.other().try_acquire(lock_key));
        world.advance(for_hours);
        // Nothing in this process stands in the way of another thread of it.
        std::optional<idem::Lease> taken;
        std::jthread([&] { taken = lock.try_acquire(lock_key); }).join();
        CHECK(taken);
        CHECK(taken->takeover());
    }
    SECTION("a release that the store did not take is made good in the background") {
        auto lock = stage.lock({.lease = for_hours});
        auto lease = lock.try_acquire(lock_key);
        REQUIRE(lease);
        auto failures = std::make_shared<std::atomic<int>>(3);
        stage.store.on_finish(
            [=](const auto&) { return failures->fetch_sub(1) > 0 ? Wire::refused : Wire::good; });
        CHECK_FALSE(lease->release());
        CHECK(eventually([&] { return stage.other().try_acquire(lock_key).has_value(); }));
    }
    SECTION("one who lost the lock does not release the next one's") {
        auto lock = stage.lock({.lease = for_hours});
        auto old = lock.try_acquire(lock_key);
        REQUIRE(old);
        world.advance(for_hours);
        const auto next = stage.other().try_acquire(lock_key);
        REQUIRE(next);
        CHECK_FALSE(old->release());
        CHECK(next->held());
        CHECK(stage.find()->header.fence == next->fence());
        CHECK(stage.find()->header.state == idem::State::running);
    }
}

// --- acquiring ----------------------------------------------------------------------------------

template <class World>
void acquires_are_bounded(World& world) {
    using namespace std::chrono_literals;
    LeaseStage<World> stage(world);
    SECTION("a lock asked for in vain is free again, and nobody renews it") {
        auto lock = stage.lock({.lease = 900ms});
        const auto how = GENERATE(Wire::lost, Wire::thrown);
        stage.store.on_claim([=](const auto&) { return how; });
        if (how == Wire::lost)
            CHECK_THROWS_AS(lock.acquire(lock_key, 1h), idem::UnavailableError);
        else
            CHECK_THROWS(lock.acquire(lock_key, 1h));
        stage.store.on_claim({});
        CHECK(eventually([&] { return stage.find()->header.state == idem::State::released; }));
        CHECK(stage.find()->header.attempt == 0);
        CHECK(stage.store.renewals() == 0);
        CHECK(stage.other().try_acquire(lock_key));
    }
    SECTION("who waits for a held lock asks a bounded number of times") {
        const auto held = stage.other().try_acquire(lock_key);
        REQUIRE(held);
        CHECK_FALSE(stage.lock({.lease = for_hours}).acquire(lock_key, 500ms));
        // Two looks before the first pause; from 1 ms on it doubles up to 100 ms at least.
        CHECK(stage.store.claims() <= 2 + 7 + 5);
        CHECK(stage.store.claims() > 2);
    }
    SECTION("who waits gets in at the release, long before the lease or the budget ends") {
        auto held = stage.other().try_acquire(lock_key);
        REQUIRE(held);
        std::atomic<bool> got{false};
        std::jthread waiter([&] { got = stage.other().acquire(lock_key, 1h).has_value(); });
        CHECK(held->release());
        waiter.join();
        CHECK(got);
    }
    SECTION("a stop ends the wait, and nothing is held") {
        auto held = stage.other().try_acquire(lock_key);
        REQUIRE(held);
        std::atomic<bool> got{true};
        std::jthread waiter([&](const std::stop_token& stop) {
            got = stage.lock({.lease = for_hours}).acquire(lock_key, 1h, stop).has_value();
        });
        stage.store.wait_for_claims(1);
        waiter.request_stop();
        waiter.join();
        CHECK_FALSE(got);
        CHECK(held->release());
        CHECK(stage.other().try_acquire(lock_key));
    }
    SECTION("a lease that was over before its answer came is given back, and no loss is told") {
        static constexpr idem::Duration lease_time = 100ms;
        auto lock = stage.lock({.lease = lease_time});
        stage.store.on_claim([](const auto&) {
            outlast(lease_time);
            return Wire::good;
        });
        CHECK_THROWS_AS(lock.try_acquire(lock_key), idem::UnavailableError);
        CHECK(stage.told.shared->count == 0);
        CHECK(stage.find()->header.attempt == 0);
        CHECK(stage.other().try_acquire(lock_key));
    }
    SECTION("one that stalls between asking and being heard is not the second holder") {
        auto lock = stage.lock({.lease = for_hours});
        auto asked = std::make_shared<Gate>();
        auto heard = std::make_shared<Gate>();
        stage.store.on_claim([=](const auto&) {
            asked->open();
            heard->wait();
            return Wire::good;
        });
        bool got = true;
        std::jthread stalled([&] { got = lock.try_acquire(lock_key).has_value(); });
        CHECK(asked->wait());
        world.advance(2 * for_hours);
        const auto held = stage.other().try_acquire(lock_key);
        CHECK(held);
        heard->open();
        stalled.join();
        CHECK_FALSE(got);
    }
    SECTION("what is under the key and is no lock is not taken") {
        const auto owner = idem::detail::new_owner();
        const idem::KeyView view(idem::Component::lease, lock_key);
        idem::ClaimRequest claim{.key = view, .owner = owner, .lease = 1h, .retention = 1h};
        claim.held_retention = 1h;
        const auto fence = idem::claim_one(world.store(), claim).fence;
        idem::FinishRequest finish;
        finish.key = view;
        finish.owner = owner;
        finish.fence = fence;
        finish.lease = finish.retention = finish.held_retention = 1h;
        REQUIRE_FALSE(idem::finish_one(world.store(), finish).lost);
        CHECK_THROWS_AS(stage.other().try_acquire(lock_key), idem::SchemaError);
    }
}

// --- after the release --------------------------------------------------------------------------

/// Locks and unlocks, many threads and keys, with renewals held up on their way.
template <class World>
void released_locks_stay_untouched(World& world, int loops) {
    using namespace std::chrono_literals;
    LeaseStage<World> stage(world);
    constexpr std::size_t threads = 4;
    struct Counts {
        std::atomic<std::size_t> renewals{0};
        std::atomic<int> late{0};
        std::atomic<int> released{0};
    };
    auto counts = std::make_shared<Counts>();
    stage.store.on_renew([=](const auto&) {
        counts->renewals.fetch_add(1);
        const int before = counts->released.load();
        for (int i = 0; i < 200 && counts->released.load() < before + 3; ++i)
            std::this_thread::yield();
        counts->late.fetch_add(counts->released.load() > before ? 1 : 0);
        return Wire::good;
    });
    auto lock = stage.lock({.lease = 10ms});
    std::vector<std::vector<std::pair<idem::Key, idem::RecordHeader>>> released(threads);
    std::atomic<int> refused{0};
    std::vector<std::jthread> workers;
    for (std::size_t t = 0; t < threads; ++t)
        workers.emplace_back([&, t] {
            for (int i = 0; i < loops; ++i) {
                const idem::Key key{"loop", std::to_string(t) + "." + std::to_string(i)};
                std::optional<idem::Lease> lease;
                try {
                    lease = lock.try_acquire(key);
                } catch (const idem::UnavailableError&) {  // starved for a lease
                    ++refused;
                    continue;
                }
                const auto seen = counts->renewals.load();
                const auto end = idem::LocalClock::now() + 20ms;
                while (i % 25 == 0 && counts->renewals.load() == seen &&
                       idem::LocalClock::now() < end)
                    std::this_thread::yield();
                lease.reset();
                ++counts->released;
                released[t].emplace_back(key, stage.find(key)->header);
            }
        });
    workers.clear();
    CHECK(counts->late > 0);
    CHECK(refused < loops);
    outlast(20ms);
    std::size_t touched = 0;
    for (const auto& of_one : released)
        for (const auto& [key, header] : of_one)
            touched += stage.find(key)->header == header ? 0 : 1;
    CHECK(touched == 0);
}

/// Every question of the suite, each in a fresh run of the test case that calls this.
template <class World>
void locks_keep_their_promises(World& world, int loops) {
    locks_are_held_by_one(world);
    losses_are_told(world);
    releases_are_bounded(world);
    acquires_are_bounded(world);
    SECTION("after its release no renewal touches a lock, though one was on its way") {
        released_locks_stay_untouched(world, loops);
    }
}

/// A process of its own, with a store of its own, is stopped past its lease and goes on.
template <class World, class MakeStore>
void stopped_holders_write_nothing(World& world, MakeStore&& make_store) {
    const Folder folder;
    const auto path = folder / "made";
    StoppedHolder old([&](const StoppedHolder::Go& go) {
        idem::LeaseLock lock(make_store(), {.lease = for_hours});
        const auto lease = lock.try_acquire(lock_key);
        idem::FencedFile file(path, lease.value().fence());
        file.write("of the first");
        go.ready();
        file.write("late");
    });
    REQUIRE(old.stopped());
    idem::LeaseLock lock(world.store(), {.lease = for_hours});
    CHECK_FALSE(lock.try_acquire(lock_key));
    world.advance(for_hours);
    const auto next = lock.try_acquire(lock_key);
    REQUIRE(next);
    CHECK(next->takeover());
    idem::FencedFile file(path, next->fence());
    CHECK(content_of(path) == "of the first");
    file.write("of the next");
    CHECK(old.goes_on() == StoppedHolder::refused);
    CHECK(content_of(path) == "of the next");
    CHECK(next->held());
}

}  // namespace idem_test

#endif
