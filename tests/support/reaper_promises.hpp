#ifndef IDEM_TESTS_SUPPORT_REAPER_PROMISES_HPP
#define IDEM_TESTS_SUPPORT_REAPER_PROMISES_HPP

#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include <idem/guard_state.hpp>
#include <idem/reaper.hpp>

#include "support/catch.hpp"

/// What a reaper promises on any store. A world has a store whose clock the test moves; each
/// question has a scope of its own.
namespace idem_test {

template <class World>
class ReaperStage {
public:
    ReaperStage(World& w, std::string name) : world(w), scope(std::move(name)) {}

    [[nodiscard]] auto reaper(idem::ReaperOptions options = {}) const {
        return idem::Reaper(world.store(), scope, std::move(options));
    }
    [[nodiscard]] idem::Key key(const std::string& id) const { return {scope, id}; }
    /// A holder that says nothing more from here on.
    idem::ClaimReply claim(const std::string& id, idem::Duration lease,
                           idem::Orphan orphan = idem::Orphan::rerun) const {
        const idem::Key of = key(id);
        idem::ClaimRequest request;
        request.key = {idem::Component::call, of};
        request.owner = idem::detail::new_owner();
        request.lease = lease;
        request.retention = request.held_retention = std::chrono::hours{1000};
        request.policy.orphan = orphan;
        request.policy.max_crashes = 2;
        const auto reply = idem::claim_one(world.store(), request);
        owner = request.owner;
        return reply;
    }
    [[nodiscard]] idem::RecordHeader header(const std::string& id) const {
        const idem::Key of = key(id);
        const auto found = idem::find_one(world.store(), {idem::Component::call, of});
        REQUIRE(found.record.has_value());
        return found.record->header;
    }

    World& world;
    std::string scope;
    mutable idem::Owner owner{};  ///< Of the last claim.
};

template <class World>
void only_what_has_lapsed_is_reaped(World& world) {
    using namespace std::chrono_literals;
    const ReaperStage stage(world, "lapse");
    const ReaperStage other(world, "lapse2");
    auto reaper = stage.reaper();
    for (const char* id : {"a", "b", "renewed"}) (void)stage.claim(id, 10min);
    const idem::Key renewed = stage.key("renewed");
    const auto fence = stage.header("renewed").fence;
    (void)other.claim("a", 10min);
    (void)stage.claim("live", 30min);
    CHECK(reaper.pass().released == 0);
    world.advance(9min);
    CHECK_FALSE(idem::renew_one(
                    world.store(),
                    {{idem::Component::call, renewed}, stage.header("renewed").owner, fence, 10min})
                    .lost);
    world.advance(1min);
    CHECK(reaper.pass().released == 2);
    CHECK(stage.header("a").state == idem::State::released);
    CHECK(stage.header("a").crashes == 1);
    CHECK(stage.header("live").state == idem::State::running);
    CHECK(stage.header("renewed").state == idem::State::running);
    CHECK(other.header("a").state == idem::State::running);
    CHECK(reaper.pass().released == 0);
    const auto again = stage.claim("a", 10min);
    CHECK(again.kind == idem::ClaimKind::acquired);
    CHECK(again.attempt == 2);
    world.advance(10min);
    CHECK(reaper.pass().given_up == 1);  // the second crash is the last one that is allowed
    CHECK(stage.header("a").state == idem::State::failed);
}

template <class World>
void each_is_settled_by_its_policy(World& world) {
    using namespace std::chrono_literals;
    const ReaperStage stage(world, "policy");
    auto reaper = stage.reaper();
    (void)stage.claim("hold", 10min, idem::Orphan::hold);
    (void)stage.claim("verify", 10min, idem::Orphan::verify);
    (void)stage.claim("rerun", 10min);
    world.advance(10min);
    const auto report = reaper.pass();
    CHECK(report.held == 1);
    CHECK(report.left >= 1);
    CHECK(report.released == 1);
    CHECK(report.unreadable == 0);
    CHECK(stage.header("hold").state == idem::State::unknown);
    CHECK(stage.header("verify").state == idem::State::running);
}

template <class World>
void the_usual_time_is_waited_for(World& world) {
    using namespace std::chrono_literals;
    const ReaperStage stage(world, "usual");
    auto reaper = stage.reaper();
    CHECK_FALSE(reaper.p99());
    std::vector<std::pair<idem::Owner, idem::Fence>> open;
    for (int i = 0; i < 100; ++i) {
        const auto reply = stage.claim("done" + std::to_string(i), 1000min);
        open.emplace_back(stage.owner, reply.fence);
    }
    for (int i = 0; i < 100; ++i) {  // the slowest takes 100 minutes, the one before it 99
        world.advance(1min);
        const idem::Key key = stage.key("done" + std::to_string(i));
        idem::FinishRequest finish;
        finish.key = {idem::Component::call, key};
        finish.owner = open[static_cast<std::size_t>(i)].first;
        finish.fence = open[static_cast<std::size_t>(i)].second;
        finish.kind = idem::FinishKind::complete;
        finish.retention = 1000h;
        finish.held_retention = 1000h;
        finish.lease = 1000min;
        REQUIRE_FALSE(idem::finish_one(world.store(), finish).lost);
    }
    CHECK(reaper.p99().value() >= 99min);
    CHECK(reaper.p99().value() <= 100min);
    // Three times that, counted from the start; two hundred are the lease.
    (void)stage.claim("slow", 200min);
    world.advance(200min);
    const auto seen = idem::LocalClock::now();
    CHECK(reaper.pass(10, seen).waiting >= 1);
    CHECK(reaper.pass(10, seen + 96min).waiting >= 1);
    CHECK(stage.header("slow").state == idem::State::running);
    // Another process has seen nothing of it yet, and waits anew.
    CHECK(stage.reaper().pass(10, seen + 101min).released == 0);
    CHECK(reaper.pass(10, seen + 101min).released == 1);
    CHECK(stage.header("slow").state == idem::State::released);
}

template <class World>
void who_renews_after_a_lapse_has_not_waited(World& world) {
    using namespace std::chrono_literals;
    const ReaperStage stage(world, "late renewal");
    auto reaper = stage.reaper({.patience_min = 60min});
    const idem::Key key = stage.key("slow");
    (void)stage.claim("slow", 10min);
    world.advance(10min);
    const auto seen = idem::LocalClock::now();
    CHECK(reaper.pass(10, seen).waiting == 1);
    const auto header = stage.header("slow");
    CHECK_FALSE(idem::renew_one(world.store(),
                                {{idem::Component::call, key}, header.owner, header.fence, 10min})
                    .lost);
    world.advance(10min);  // 20 minutes in all, whatever was waited for before
    CHECK(reaper.pass(10, seen + 55min).waiting == 1);
    CHECK(reaper.pass(10, seen + 90min).waiting == 1);
    CHECK(reaper.pass(10, seen + 95min).released == 1);
}

template <class World>
void what_is_left_starves_nobody(World& world) {
    using namespace std::chrono_literals;
    const ReaperStage stage(world, "many");
    auto reaper = stage.reaper();
    for (int i = 0; i < 250; ++i)
        (void)stage.claim("v" + std::to_string(i), 10min, idem::Orphan::verify);
    for (int i = 0; i < 3; ++i) (void)stage.claim("r" + std::to_string(i), 10min);
    world.advance(10min);
    CHECK(reaper.pass(3).released == 3);
    // A limit is kept, and what is behind it comes next.
    for (int i = 0; i < 5; ++i) (void)stage.claim("s" + std::to_string(i), 10min);
    world.advance(10min);
    CHECK(reaper.pass(4).released == 4);
    CHECK(reaper.pass(4).released == 1);
}

template <class World>
void several_reapers_settle_each_once(World& world) {
    using namespace std::chrono_literals;
    const ReaperStage stage(world, "several");
    constexpr int count = 120;
    for (int i = 0; i < count; ++i) (void)stage.claim(std::to_string(i), 10min);
    world.advance(10min);
    std::atomic<std::size_t> released{0};
    {
        std::vector<std::jthread> threads;
        for (int t = 0; t < 4; ++t)
            threads.emplace_back([&] { released += stage.reaper().pass().released; });
    }
    CHECK(released == count);
    for (int i = 0; i < count; ++i) CHECK(stage.header(std::to_string(i)).crashes == 1);
}

template <class World>
void reapers_keep_their_promises(World& world) {
    only_what_has_lapsed_is_reaped(world);
    each_is_settled_by_its_policy(world);
    the_usual_time_is_waited_for(world);
    who_renews_after_a_lapse_has_not_waited(world);
    what_is_left_starves_nobody(world);
    several_reapers_settle_each_once(world);
}

}  // namespace idem_test

#endif
