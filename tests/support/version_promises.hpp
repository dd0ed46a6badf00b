#ifndef IDEM_TESTS_SUPPORT_VERSION_PROMISES_HPP
#define IDEM_TESTS_SUPPORT_VERSION_PROMISES_HPP

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <idem/version_gate.hpp>

#include "support/catch.hpp"
#include "support/eventually.hpp"
#include "support/features.hpp"
#include "support/hooked_store.hpp"

/// What a version gate promises on any store. A world has a store whose clock the test moves.
namespace idem_test {

struct Encoder {
    static constexpr std::string_view name = "encoder";
};
struct Storage {
    static constexpr std::string_view name = "storage";
};
using EncoderVersion = idem::Version<Encoder>;
using EncoderState = idem::GateState<Encoder>;

inline const idem::Stream asset{"asset {1}", "acme"};
inline constexpr idem::Duration gate_lease = std::chrono::hours{1};

template <class World>
struct GateStage {
    using Raw = std::remove_cvref_t<decltype(std::declval<World&>().store())>;
    using Store = HookedStore<Raw>;
    using Gate = idem::VersionGate<Store>;

    explicit GateStage(World& w) : world(w), store(w.store()) {}

    [[nodiscard]] Gate gate(idem::GateOptions options = {}) const {
        options.lease = gate_lease;
        options.events = log.observer();
        return Gate(store, std::move(options));
    }
    /// Applies it, if the gate lets it; what was applied is noted.
    idem::GateOutcome offer(Gate& gate, const EncoderVersion& version) {
        return gate.offer(asset, version, [&] { landed.push_back(version); });
    }
    /// A handler that began with this version and vanished.
    void vanish_at(const EncoderVersion& version) {
        auto state = gate().template state<Encoder>(asset);
        state.attempting = version;
        const idem::Key key{"encoder", asset.id, asset.tenant};
        idem::ClaimRequest claim;
        claim.key = {idem::Component::gate, key};
        claim.owner = idem::detail::new_owner();
        claim.lease = claim.retention = claim.held_retention = gate_lease;
        const auto claimed = idem::claim_one(world.store(), claim);
        REQUIRE(claimed.kind == idem::ClaimKind::acquired);
        const std::string bytes = idem::detail::encode_gate(state);
        REQUIRE_FALSE(idem::renew_one(world.store(), {.key = claim.key,
                                                      .owner = claim.owner,
                                                      .fence = claimed.fence,
                                                      .lease = gate_lease,
                                                      .checkpoint = bytes})
                          .lost);
        world.advance(gate_lease);
    }

    World& world;
    Store store;
    EventLog log{};
    std::vector<EncoderVersion> landed{};
};

[[nodiscard]] inline EncoderVersion numbered(std::uint64_t number) {
    return {.number = number};
}

template <class World>
void only_newer_versions_land(World& world) {
    using idem::GateKind;
    using idem::VersionVerdict;
    GateStage<World> stage(world);
    SECTION("a version lands once, above the last; what is stale is answered, and counted") {
        auto gate = stage.gate();
        const auto stale = [&](std::uint64_t number, VersionVerdict why) {
            const auto outcome = stage.offer(gate, numbered(number));
            return outcome.kind == GateKind::stale && outcome.verdict == why;
        };
        const auto first = stage.offer(gate, numbered(2));
        CHECK(first.kind == GateKind::applied);
        CHECK(first.recorded);
        CHECK(stale(2, VersionVerdict::same));
        CHECK(stale(1, VersionVerdict::older));
        CHECK(stage.offer(gate, numbered(5)).kind == GateKind::applied);
        CHECK(stale(3, VersionVerdict::older));
        CHECK(stage.landed == std::vector{numbered(2), numbered(5)});
        CHECK(stage.log.of(idem::EventKind::stale).size() == 3);
        CHECK(stage.log.of(idem::EventKind::stale).at(0).detail == "same");
        CHECK(stage.log.of(idem::EventKind::executed).size() == 2);
        CHECK(gate.template state<Encoder>(asset) == EncoderState{.applied = numbered(5)});
    }
    SECTION("a terminal state absorbs what comes late, though it has no version") {
        auto gate = stage.gate({.equal = idem::EqualVersions::higher_rank});
        const EncoderVersion processing{.rank = 1};
        const EncoderVersion succeeded{.rank = 2, .terminal = true};
        CHECK(stage.offer(gate, succeeded).kind == GateKind::applied);
        CHECK(stage.offer(gate, processing).verdict == VersionVerdict::absorbed);
        CHECK(stage.offer(gate, {.number = 9, .rank = 3}).verdict == VersionVerdict::absorbed);
        CHECK(stage.landed == std::vector{succeeded});
    }
    SECTION("the versions of two sources, streams or tenants never meet") {
        auto gate = stage.gate();
        CHECK(stage.offer(gate, numbered(9)).kind == GateKind::applied);
        int others = 0;
        const auto count = [&] { ++others; };
        (void)gate.offer(asset, idem::Version<Storage>{.number = 1}, count);
        (void)gate.offer({"asset 2", "acme"}, numbered(1), count);
        (void)gate.offer({asset.id, "other"}, numbered(1), count);
        CHECK(others == 3);
    }
    SECTION("once a new run has begun, the last one's messages are stale") {
        auto gate = stage.gate();
        CHECK(stage.offer(gate, {.epoch = 1, .number = 7}).kind == GateKind::applied);
        CHECK(gate.template begin<Encoder>(asset, 2));
        CHECK_FALSE(gate.template begin<Encoder>(asset, 2));
        CHECK_FALSE(gate.template begin<Encoder>(asset, 1));
        CHECK(stage.offer(gate, {.epoch = 1, .number = 8, .terminal = true}).verdict ==
              VersionVerdict::older);
        CHECK(stage.offer(gate, {.epoch = 2, .number = 1}).kind == GateKind::applied);
        CHECK(stage.landed.size() == 2);
    }
    SECTION("a gate forgets with its retention, counted from the last message") {
        auto gate = stage.gate({.retention = 2 * gate_lease});
        CHECK(stage.offer(gate, numbered(2)).kind == GateKind::applied);
        world.advance(2 * gate_lease - idem::Duration{1});
        CHECK(stage.offer(gate, numbered(1)).kind == GateKind::stale);
        world.advance(2 * gate_lease);
        CHECK(stage.offer(gate, numbered(1)).kind == GateKind::applied);
    }
}

template <class World>
void failures_leave_the_gate(World& world) {
    using idem::GateKind;
    GateStage<World> stage(world);
    SECTION("a handler that throws leaves the gate at what was applied") {
        auto gate = stage.gate();
        CHECK(stage.offer(gate, numbered(2)).kind == GateKind::applied);
        const auto fail = [&](std::uint64_t number) {
            CHECK_THROWS_WITH(gate.offer(asset, numbered(number),
                                         [] { throw std::runtime_error("the handler's own"); }),
                              "the handler's own");
        };
        fail(5);
        CHECK(gate.template state<Encoder>(asset) == EncoderState{.applied = numbered(2)});
        CHECK(stage.offer(gate, numbered(3)).kind == GateKind::applied);
        for (int i = 0; i < 7; ++i) fail(5);  // it is never a dead letter
        CHECK(stage.offer(gate, numbered(5)).kind == GateKind::applied);
        CHECK(stage.landed == std::vector{numbered(2), numbered(3), numbered(5)});
    }
    SECTION("below a version that may have landed nothing does, until it is settled") {
        auto gate = stage.gate();
        CHECK(stage.offer(gate, numbered(2)).kind == GateKind::applied);
        CHECK_THROWS_AS(gate.offer(asset, numbered(5),
                                   []() -> void { throw idem::UnknownOutcomeError("timeout"); }),
                        idem::UnknownOutcomeError);
        CHECK(stage.offer(gate, numbered(4)).kind == GateKind::retry_later);
        const bool happened = GENERATE(true, false);
        CHECK(gate.template settle<Encoder>(asset, happened));
        CHECK_FALSE(gate.template settle<Encoder>(asset, happened));
        CHECK(stage.offer(gate, numbered(4)).kind ==
              (happened ? GateKind::stale : GateKind::applied));
        CHECK(gate.template state<Encoder>(asset).applied == numbered(happened ? 5 : 4));
    }
    SECTION("below the version of a handler that vanished nothing lands; it, or above, does") {
        auto gate = stage.gate();
        CHECK(stage.offer(gate, numbered(2)).kind == GateKind::applied);
        stage.vanish_at(numbered(5));
        for (int i = 0; i < 3; ++i) {
            CHECK(stage.offer(gate, numbered(4)).kind == GateKind::retry_later);
            CHECK(stage.offer(gate, numbered(1)).kind == GateKind::stale);
        }
        const auto next = GENERATE(5U, 6U);
        // Where its own handler throws, what vanished is as open as before.
        CHECK_THROWS(gate.offer(asset, numbered(next), []() -> void { throw 1; }));
        CHECK(stage.offer(gate, numbered(4)).kind == GateKind::retry_later);
        CHECK(stage.offer(gate, numbered(next)).kind == GateKind::applied);
        CHECK(stage.offer(gate, numbered(4)).kind == GateKind::stale);
        CHECK(stage.landed == std::vector{numbered(2), numbered(next)});
        CHECK(gate.template state<Encoder>(asset) == EncoderState{.applied = numbered(next)});
    }
    SECTION(
        "where the attempt cannot be noted the handler does not run, and the gate is as before") {
        auto gate = stage.gate();
        CHECK(stage.offer(gate, numbered(2)).kind == GateKind::applied);
        const auto how = GENERATE(Wire::refused, Wire::lost);
        stage.store.on_renew([=](const auto&) { return how; });
        CHECK_THROWS_AS(stage.offer(gate, numbered(5)), idem::UnavailableError);
        stage.store.on_renew({});
        CHECK(gate.template state<Encoder>(asset) == EncoderState{.applied = numbered(2)});
        CHECK(stage.offer(gate, numbered(3)).kind == GateKind::applied);
        CHECK(stage.landed == std::vector{numbered(2), numbered(3)});
    }
    SECTION("what could not be noted at once is said, and noted in the background") {
        auto gate = stage.gate();
        auto failures = std::make_shared<std::atomic<int>>(3);
        stage.store.on_finish(
            [=](const auto&) { return failures->fetch_sub(1) > 0 ? Wire::refused : Wire::good; });
        const auto outcome = stage.offer(gate, numbered(2));
        CHECK(outcome.kind == GateKind::applied);
        CHECK_FALSE(outcome.recorded);
        CHECK(eventually([&] {
            return gate.template state<Encoder>(asset) == EncoderState{.applied = numbered(2)};
        }));
        CHECK(stage.offer(gate, numbered(2)).kind == GateKind::stale);
    }
    SECTION("who was overtaken while it ran does not move the gate back") {
        auto gate = stage.gate();
        const auto outcome = gate.offer(asset, numbered(5), [&] {
            world.advance(gate_lease);
            CHECK(stage.offer(gate, numbered(4)).kind == GateKind::retry_later);
            CHECK(stage.offer(gate, numbered(6)).kind == GateKind::applied);
        });
        CHECK(outcome.kind == GateKind::applied);
        CHECK_FALSE(outcome.recorded);
        CHECK(gate.template state<Encoder>(asset) == EncoderState{.applied = numbered(6)});
    }
    SECTION("what is under the key and is no gate is left alone") {
        auto gate = stage.gate();
        idem::IdempotencyGuard other(stage.store, {.lease = gate_lease}, idem::Component::gate);
        const idem::Key key{"encoder", asset.id, asset.tenant};
        CHECK_THROWS(other.run(key, {}, [](idem::Execution& execution) {
            execution.checkpoint("of another program");
            throw 1;
        }));
        CHECK_THROWS_AS(stage.offer(gate, numbered(1)), idem::SchemaError);
        CHECK(other.find(key)->payload.checkpoint == "of another program");
        CHECK(other.run(key, {}, [] { return 1; }).executed());
        CHECK_THROWS_AS(stage.offer(gate, numbered(1)), idem::SchemaError);
        CHECK(stage.landed.empty());
    }
}

template <class World>
void concurrent_versions_keep_their_order(World& world) {
    using idem::GateKind;
    GateStage<World> stage(world);
    SECTION("while a version is applied others wait, but for those that are stale anyhow") {
        auto gate = stage.gate();
        CHECK(stage.offer(gate, numbered(2)).kind == GateKind::applied);
        (void)gate.offer(asset, numbered(5), [&](idem::Execution& execution) {
            CHECK(execution.held());
            CHECK(stage.offer(gate, numbered(1)).kind == GateKind::stale);
            for (const std::uint64_t number : {4U, 5U, 6U}) {
                const auto outcome = stage.offer(gate, numbered(number));
                CHECK(outcome.kind == GateKind::retry_later);
                CHECK(outcome.retry_after > idem::Duration{});
            }
            CHECK_THROWS_AS(gate.template begin<Encoder>(asset, 1), idem::UnavailableError);
        });
        CHECK(stage.landed == std::vector{numbered(2)});
    }
    SECTION(
        "versions that come at once, in any order, land in rising order, and the last one does") {
        const unsigned seed = std::random_device{}();
        INFO("seed " << seed);
        auto gate = stage.gate({.wait = std::chrono::minutes{10}});
        std::mutex mutex;
        std::vector<std::uint64_t> landed;
        std::atomic<int> inside{0};
        std::atomic<int> wrong{0};
        std::vector<std::jthread> senders;
        for (unsigned t = 0; t < 6; ++t)
            senders.emplace_back([&, t] {
                std::mt19937 random(seed + t);
                std::vector<std::uint64_t> numbers{1, 2, 3, 4, 5, 6, 7, 8};
                std::shuffle(numbers.begin(), numbers.end(), random);
                for (const auto number : numbers) {
                    const auto outcome = gate.offer(asset, numbered(number), [&] {
                        wrong += ++inside == 1 ? 0 : 1;
                        std::this_thread::yield();
                        std::scoped_lock const lock(mutex);
                        landed.push_back(number);
                        --inside;
                    });
                    wrong += outcome.kind == GateKind::retry_later ? 1 : 0;
                }
            });
        senders.clear();
        CHECK(wrong == 0);
        CHECK(std::is_sorted(landed.begin(), landed.end(), std::less_equal<>{}));
        CHECK(landed.back() == 8);
    }
}

/// A process of its own dies in the middle of applying a version.
template <class World, class MakeStore>
void dead_handlers_hold_lower_versions_back(World& world, MakeStore&& make_store) {
    GateStage<World> stage(world);
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        try {
            idem::VersionGate gate(make_store(), {.lease = gate_lease});
            (void)gate.offer(asset, numbered(5), [] { _exit(7); });
        } catch (const std::exception& e) {
            (void)std::fprintf(stderr, "in the child: %s\n", e.what());
        }
        _exit(1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WEXITSTATUS(status) == 7);
    auto gate = stage.gate();
    CHECK(stage.offer(gate, numbered(6)).kind == idem::GateKind::retry_later);  // its lease
    world.advance(gate_lease);
    CHECK(stage.offer(gate, numbered(4)).kind == idem::GateKind::retry_later);  // its mark
    CHECK(stage.offer(gate, numbered(5)).kind == idem::GateKind::applied);
    CHECK(stage.offer(gate, numbered(4)).kind == idem::GateKind::stale);
    CHECK(stage.landed == std::vector{numbered(5)});
}

/// Every question of the suite, each in a fresh run of the test case that calls this.
template <class World>
void gates_keep_their_promises(World& world) {
    only_newer_versions_land(world);
    failures_leave_the_gate(world);
    concurrent_versions_keep_their_order(world);
}

}  // namespace idem_test

#endif
