#ifndef IDEM_TESTS_SUPPORT_ORPHAN_HPP
#define IDEM_TESTS_SUPPORT_ORPHAN_HPP

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <idem/guard.hpp>

#include "support/catch.hpp"
#include "support/eventually.hpp"

/// What happens to a key whose holder was killed in the middle of its handler (M34, M35, M43), on
/// any store that processes share. A world has a store whose clock it moves.
namespace idem_test {

inline const idem::Key orphan_key{"s", "orphan", "t"};
inline constexpr idem::Duration orphan_lease = std::chrono::hours{1};

/// A child that claims the key by a store of its own, and is killed holding it.
template <class World, class MakeStore>
void die_holding(World& world, MakeStore&& make_store, idem::GuardOptions options) {
    options.lease = orphan_lease;
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        try {
            idem::IdempotencyGuard guard(make_store(), std::move(options));
            (void)guard.run(orphan_key, {}, [] {
                for (;;) pause();
            });
        } catch (const std::exception&) {  // its exit status tells
        }
        _exit(1);
    }
    REQUIRE(child > 0);
    idem::IdempotencyGuard observer(world.store(), {.lease = orphan_lease});
    CHECK(eventually([&] { return observer.find(orphan_key).has_value(); }));
    kill(child, SIGKILL);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
}

/// Nobody takes over before the lease has ended; then one of eight does.
template <class World, class MakeStore>
void taken_over_once(World& world, MakeStore&& make_store) {
    die_holding(world, make_store, {});
    idem::IdempotencyGuard guard(world.store(), {.lease = orphan_lease});
    CHECK(guard.run(orphan_key, {}, [] { return 1; }).kind() == idem::OutcomeKind::in_progress);
    world.advance(orphan_lease);
    std::atomic<int> takeovers{0};
    std::atomic<std::uint32_t> attempt{0};
    std::vector<std::jthread> threads;
    for (int me = 0; me < 8; ++me)
        threads.emplace_back([&] {
            const auto outcome =
                guard.run(orphan_key, {}, {.wait = std::chrono::minutes{1}}, [] { return 1; });
            if (!outcome.executed()) return;
            takeovers += outcome.takeover() ? 1 : 0;
            attempt = outcome.attempt();
        });
    for (auto& thread : threads) thread.join();
    CHECK(takeovers == 1);
    CHECK(attempt == 2);
}

/// Where the holder's policy was to hold, a person decides.
template <class World, class MakeStore>
void held_for_a_person(World& world, MakeStore&& make_store) {
    die_holding(world, make_store, {.orphan = idem::Orphan::hold});
    world.advance(orphan_lease);
    // Its own policy is to rerun: the stricter one counts.
    idem::IdempotencyGuard guard(world.store(), {.lease = orphan_lease});
    int runs = 0;
    const auto call = [&] { return guard.run(orphan_key, {}, [&] { return ++runs; }); };
    for (int i = 0; i < 3; ++i) CHECK(call().kind() == idem::OutcomeKind::unknown);
    CHECK(runs == 0);
    const auto seen = guard.find(orphan_key)->header.fence;
    CHECK(guard.resolve(orphan_key, seen, idem::Resolution::done(5)));
    CHECK(call().value() == 5);
}

}  // namespace idem_test

#endif
