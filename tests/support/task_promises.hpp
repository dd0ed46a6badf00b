#ifndef IDEM_TESTS_SUPPORT_TASK_PROMISES_HPP
#define IDEM_TESTS_SUPPORT_TASK_PROMISES_HPP

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <idem/reaper.hpp>
#include <idem/task_records.hpp>

#include "support/catch.hpp"
#include "support/eventually.hpp"
#include "support/features.hpp"
#include "support/hooked_store.hpp"
#include "support/jobs.hpp"

/// What tasks promise on any store. A world has a store whose clock the test moves; each question
/// has tasks of its own.
namespace idem_test {

using HeldJob = idem::HeldTask<Job>;
using JobStanding = idem::TaskStanding<Job>;

/// Long enough for what the test does, and no renewal in between: a lapse is the test's.
[[nodiscard]] inline idem::TaskOptions task_options(std::string scope) {
    idem::TaskOptions out;
    out.scope = std::move(scope);
    out.lease = std::chrono::hours{1};
    out.heartbeat = false;
    out.max_crashes = 2;
    return out;
}
[[nodiscard]] inline idem::GuardOptions task_guard_options() {
    idem::GuardOptions out;
    out.lease = std::chrono::hours{1};
    out.heartbeat = false;
    return out;
}
template <class Store>
[[nodiscard]] auto tasks_on(const Store& store, std::string scope) {
    return idem::TaskRecords<Job, Store>(store, Job::failed, task_options(std::move(scope)));
}

template <class Tasks>
[[nodiscard]] HeldJob begun(Tasks& tasks, const std::string& id) {
    auto answer = tasks.begin(id, Job::pending, Job::running);
    REQUIRE(std::holds_alternative<HeldJob>(answer));
    return std::get<HeldJob>(std::move(answer));
}
/// Begun, and a step further.
template <class Tasks>
[[nodiscard]] HeldJob checking(Tasks& tasks, const std::string& id) {
    auto task = begun(tasks, id);
    CHECK(task.move(Job::checking) == idem::StepKind::taken);
    return task;
}
template <class Tasks>
[[nodiscard]] JobStanding refused(Tasks& tasks, const std::string& id) {
    auto answer = tasks.begin(id, Job::pending, Job::running);
    REQUIRE(std::holds_alternative<JobStanding>(answer));
    return std::get<JobStanding>(answer);
}

template <class World>
void tasks_go_their_way_once(World& world) {
    auto tasks = tasks_on(world.store(), "way");
    auto others = tasks_on(world.store(), "way");
    CHECK_FALSE(tasks.find("clip"));
    auto task = begun(tasks, "clip");
    CHECK(task.state() == Job::running);
    CHECK(task.attempt() == 1);
    CHECK_FALSE(task.takeover());
    CHECK(refused(others, "clip").state == Job::running);
    CHECK(refused(others, "clip").held);
    CHECK_THROWS_AS(task.move(Job::succeeded), idem::UsageError);  // not yet checked
    CHECK_THROWS_AS(task.leave(Job::failed), idem::UsageError);
    CHECK(task.move(Job::checking) == idem::StepKind::taken);
    CHECK(others.find("clip")->state == Job::checking);
    CHECK(task.move(Job::succeeded) == idem::StepKind::taken);
    CHECK_FALSE(task.is_open());
    for (auto* each : {&tasks, &others}) {  // a terminal state absorbs (M79)
        CHECK(refused(*each, "clip").state == Job::succeeded);
        CHECK_FALSE(refused(*each, "clip").held);
    }
    CHECK(tasks.find("clip")->attempt == 1);
    CHECK_THROWS_AS(tasks.begin("x", Job::pending, Job::succeeded), idem::UsageError);
    CHECK_FALSE(tasks.find("x"));
}

template <class World>
void tasks_are_left_where_they_wait(World& world) {
    auto tasks = tasks_on(world.store(), "wait");
    const auto first = [&] {
        auto task = checking(tasks, "clip");
        const auto fence = task.fence();
        CHECK(task.leave(Job::pending));
        return fence;
    }();
    CHECK(tasks.find("clip")->state == Job::pending);
    CHECK_FALSE(tasks.find("clip")->held);
    {
        auto task = begun(tasks, "clip");
        CHECK(task.attempt() == 2);
        CHECK(task.fence() > first);
        CHECK_FALSE(task.takeover());
        CHECK(task.move(Job::checking) == idem::StepKind::taken);
    }  // dropped: it waits where it was begun from
    CHECK(tasks.find("clip")->state == Job::pending);
    // From a state in which it does not stand nobody gets it, and nothing is counted.
    const auto wrong = tasks.begin("clip", Job::running, Job::checking);
    CHECK(std::get<JobStanding>(wrong).state == Job::pending);
    CHECK(tasks.find("clip")->attempt == 2);
    CHECK(begun(tasks, "clip").attempt() == 3);
    CHECK(begun(tasks, "handed on").leave(Job::checking));
    CHECK(refused(tasks, "handed on").state == Job::checking);
    CHECK_FALSE(refused(tasks, "handed on").held);
    CHECK(std::holds_alternative<HeldJob>(tasks.begin("handed on", Job::checking, Job::pending)));
    CHECK(tasks.find("handed on")->state == Job::checking);
}

template <class World>
void vanished_workers_lose_their_task(World& world) {
    using namespace std::chrono_literals;
    auto tasks = tasks_on(world.store(), "vanish");
    auto paused = checking(tasks, "clip");
    world.advance(1h);
    auto next = begun(tasks, "clip");  // from where it waited, not from where the other one was
    CHECK(next.takeover());
    CHECK(next.fence() > paused.fence());
    CHECK(paused.move(Job::succeeded) == idem::StepKind::lost);  // M70
    CHECK(tasks.find("clip")->state == Job::running);
    CHECK(tasks.find("clip")->crashes == 1);
    world.advance(1h);
    // The second crash is the last one that is allowed (M71, M73).
    CHECK(refused(tasks, "clip").state == Job::failed);
    CHECK(next.move(Job::checking) == idem::StepKind::lost);
    CHECK(tasks.find("clip")->state == Job::failed);
}

template <class World>
void reapers_settle_tasks(World& world) {
    using namespace std::chrono_literals;
    auto tasks = tasks_on(world.store(), "reaped");
    auto paused = checking(tasks, "clip");
    idem::Reaper reaper(world.store(), "reaped", {.component = idem::Component::task});
    CHECK(reaper.pass().released == 0);
    world.advance(1h);
    CHECK(reaper.pass().released == 1);
    CHECK(tasks.find("clip")->state == Job::pending);
    CHECK_FALSE(tasks.find("clip")->held);
    CHECK(paused.move(Job::succeeded) == idem::StepKind::lost);
    (void)begun(tasks, "clip").leave(Job::pending);
}

template <class World>
void many_workers_share_tasks(World& world) {
    auto tasks = tasks_on(world.store(), "many");
    constexpr int count = 20;
    std::atomic<int> ended{0};
    std::atomic<int> overlaps{0};
    std::vector<std::atomic<int>> at_it(count);
    {
        std::vector<std::jthread> workers;
        for (int me = 0; me < 4; ++me)
            workers.emplace_back([&, me] {
                for (int turn = 0; turn < count; ++turn) {
                    const int id = (turn + 5 * me) % count;
                    auto answer = tasks.begin(std::to_string(id), Job::pending, Job::running);
                    auto* const task = std::get_if<HeldJob>(&answer);
                    if (task == nullptr) continue;
                    overlaps += ++at_it[static_cast<std::size_t>(id)] == 1 ? 0 : 1;
                    if (task->move(Job::checking) == idem::StepKind::taken &&
                        task->move(Job::succeeded) == idem::StepKind::taken)
                        ++ended;
                }
            });
    }
    CHECK(overlaps == 0);
    CHECK(ended == count);
}

template <class World>
void trouble_with_a_step_is_told(World& world) {
    HookedStore hooked(world.store());
    auto tasks = tasks_on(hooked, "trouble");
    for (const Wire wire : {Wire::refused, Wire::lost}) {
        hooked.on_renew([wire](const auto&) { return wire; });
        CHECK_THROWS_AS(tasks.begin("clip", Job::pending, Job::running), idem::UnavailableError);
        hooked.on_renew({});
        CHECK_FALSE(tasks.find("clip")->held);
        CHECK(tasks.find("clip")->state == Job::pending);
    }
    auto task = begun(tasks, "clip");
    for (const Wire wire : {Wire::refused, Wire::lost}) {
        hooked.on_renew([wire](const auto&) { return wire; });
        CHECK_THROWS_AS(task.move(Job::checking), idem::UnavailableError);
        CHECK(task.state() == Job::running);
    }
    hooked.on_renew({});
    CHECK(task.move(Job::checking) == idem::StepKind::taken);
    hooked.on_finish([](const auto&) { return Wire::refused; });
    CHECK(task.move(Job::succeeded) == idem::StepKind::unrecorded);
    hooked.on_finish({});
    CHECK(eventually([&] { return tasks.find("clip")->state == Job::succeeded; }));
}

template <class World>
void tasks_of_another_machine_are_schema_trouble(World& world) {
    auto tasks = tasks_on(world.store(), "schema");
    const idem::Key key = tasks.key_of("odd");
    idem::IdempotencyGuard guard(world.store(), task_guard_options(), idem::Component::task);
    auto claim = claimed<int>(guard.template claim<int>(key, {}));
    CHECK(std::move(claim).release("transcending\npending"));
    CHECK_THROWS_AS(tasks.begin("odd", Job::pending, Job::running), idem::SchemaError);
    CHECK_THROWS_AS(tasks.find("odd"), idem::SchemaError);
    CHECK_FALSE(guard.find(key)->header.state == idem::State::running);  // nobody holds it
}

template <class World>
void tasks_keep_their_promises(World& world) {
    tasks_go_their_way_once(world);
    tasks_are_left_where_they_wait(world);
    vanished_workers_lose_their_task(world);
    reapers_settle_tasks(world);
    many_workers_share_tasks(world);
    trouble_with_a_step_is_told(world);
    tasks_of_another_machine_are_schema_trouble(world);
}

}  // namespace idem_test

#endif
