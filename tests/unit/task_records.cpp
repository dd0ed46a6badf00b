// The steps of a state machine on the embedded store, and over stores of stores.

#include <chrono>
#include <string>
#include <thread>

#include <idem/memory/store.hpp>
#include <idem/task_records.hpp>

#include "support/catch.hpp"
#include "support/layered_world.hpp"
#include "support/lease_promises.hpp"
#include "support/task_promises.hpp"

namespace task_records_test {

using namespace idem_test;
using namespace std::chrono_literals;

TEST_CASE("memory: tasks keep their promises", "[tasks]") {
    MemoryWorld world;
    tasks_keep_their_promises(world);
}

TEMPLATE_TEST_CASE("tasks keep their promises over a store of stores", "[tasks]",
                   EncryptedWorld<CombiningWorld<MemoryWorld>>, CachedWorld<MemoryWorld>,
                   TieredWorld<MemoryWorld>) {
    TestType world;
    tasks_go_their_way_once(world);
    tasks_are_left_where_they_wait(world);
    vanished_workers_lose_their_task(world);
}

TEST_CASE("tasks: M67 a worker that renews keeps its task, however long it takes", "[tasks]") {
    const idem::MemoryStore store;
    idem::TaskOptions options;
    options.lease = 300ms;
    idem::TaskRecords<Job, idem::MemoryStore> tasks(store, Job::failed, options);
    int scene = 0;
    CHECK(in_some_scene([&] {
        const std::string id = std::to_string(++scene);
        const auto task = begun(tasks, id);
        const auto until = idem::LocalClock::now() + 4 * options.lease;
        while (idem::LocalClock::now() < until && task.held()) std::this_thread::yield();
        return task.held() && refused(tasks, id).held;
    }));
}

TEST_CASE("tasks: options that cannot be right are named", "[tasks]") {
    const auto refused_for = [](auto change) {
        idem::TaskOptions options;
        change(options);
        try {
            const idem::TaskRecords<Job, idem::MemoryStore> one(idem::MemoryStore(), Job::failed,
                                                                options);
        } catch (const idem::UsageError& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    CHECK(refused_for([](auto&) {}).empty());
    CHECK(refused_for([](auto& o) { o.lease = 1us; }).find("TaskOptions::lease") == 0);
    CHECK(refused_for([](auto& o) { o.retention = 0s; }).find("TaskOptions::retention") == 0);
    CHECK(refused_for([](auto& o) {
              o.held_retention = -1s;
          }).find("TaskOptions::held_retention") == 0);
    CHECK_FALSE(refused_for([](auto& o) { o.scope.clear(); }).empty());
    CHECK_THROWS_AS((idem::TaskRecords<Job, idem::MemoryStore>(idem::MemoryStore(), Job::running)),
                    idem::UsageError);
}

}  // namespace task_records_test
