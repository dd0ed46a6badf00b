// The steps of a state machine in a table of the user's, on the user's connection.

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <idem/postgres/task_table.hpp>

#include "support/catch.hpp"
#include "support/jobs.hpp"
#include "support/postgres_user.hpp"

namespace postgres_tasks_test {

using namespace std::chrono_literals;
using idem::MoveKind;
using idem_test::Job;
using idem_test::shared_server;
using idem_test::UserConnection;
using Tasks = idem::TaskTable<Job>;

/// A table of the user's with some tasks in it.
class Place {
public:
    explicit Place(std::uint32_t max_crashes = 5)
        : schema_(idem_test::fresh_schema()),
          sql_(shared_server().conninfo()),
          tasks_(options(max_crashes)) {
        CHECK(sql_("CREATE SCHEMA " + schema_) == "");
        CHECK(sql_("CREATE TABLE " + table() + " (id bigint PRIMARY KEY, name text)") == "");
        CHECK(sql_(tasks_.add_columns_text()) == "");
        CHECK(sql_(tasks_.add_columns_text()) == "");  // again
    }
    [[nodiscard]] idem::TaskTableOptions options(std::uint32_t max_crashes = 5) const {
        idem::TaskTableOptions out;
        out.schema = schema_;
        out.id_type = "bigint";
        out.lease = 1h;
        out.max_crashes = max_crashes;
        out.time_allowed = 60s;
        return out;
    }
    [[nodiscard]] std::string table() const { return schema_ + ".tasks"; }
    void add(const std::string& id) {
        CHECK(sql_("INSERT INTO " + table() + " VALUES (" + id + ", 'clip')") == "");
    }
    /// Its lease is over, and its time is.
    void lapse(const std::string& id) {
        CHECK(sql_("UPDATE " + table() +
                   " SET idem_lease_end = 1, idem_started = 1 WHERE id = " + id) == "");
    }
    [[nodiscard]] PGconn* connection() const { return sql_.get(); }
    [[nodiscard]] const UserConnection& sql() const { return sql_; }
    [[nodiscard]] const Tasks& tasks() const { return tasks_; }
    [[nodiscard]] idem::Task<Job> begun(const std::string& id) {
        add(id);
        const auto out = tasks_.begin(connection(), id, Job::pending, Job::running);
        REQUIRE(out.kind == MoveKind::moved);
        return out.task;
    }
    [[nodiscard]] idem::ReapedTasks<Job> reap(std::size_t limit = 100) {
        return tasks_.reap(connection(), Job::running, Job::pending, Job::failed, limit);
    }

private:
    std::string schema_;
    UserConnection sql_;
    Tasks tasks_;
};

TEST_CASE("tasks: each step is taken once, and the second is told how the task stands",
          "[integration][postgres][tasks]") {
    Place place;
    const UserConnection other(shared_server().conninfo());
    auto task = place.begun("7");
    CHECK(task.id == "7");
    CHECK(task.attempt == 1);
    CHECK(task.fence > 0);
    const auto late = place.tasks().begin(other.get(), "7", Job::pending, Job::running);
    CHECK(late.kind == MoveKind::lost);
    CHECK(late.task.state == Job::running);
    CHECK(late.task.fence == task.fence);
    const auto checking = place.tasks().move(place.connection(), task, Job::checking);
    CHECK(checking.kind == MoveKind::moved);
    // The same again, its answer lost, is the same step.
    CHECK(place.tasks().move(place.connection(), task, Job::checking).kind == MoveKind::moved);
    CHECK(place.tasks().move(place.connection(), task, Job::failed).kind == MoveKind::lost);
    CHECK(place.tasks().move(place.connection(), checking.task, Job::succeeded).kind ==
          MoveKind::moved);
    CHECK(place.tasks().begin(place.connection(), "8", Job::pending, Job::running).kind ==
          MoveKind::absent);
    CHECK_FALSE(place.tasks().find(place.connection(), "8"));
}

TEST_CASE("tasks: a terminal state absorbs what comes later", "[integration][postgres][tasks]") {
    Place place;
    auto task = place.begun("1");
    CHECK(place.tasks().move(place.connection(), task, Job::failed).kind == MoveKind::moved);
    for (int again = 0; again < 2; ++again) {
        CHECK(place.tasks().begin(place.connection(), "1", Job::pending, Job::running).kind ==
              MoveKind::lost);
        CHECK(place.tasks().move(place.connection(), task, Job::checking).task.state ==
              Job::failed);
        CHECK(place.tasks().renew(place.connection(), task).kind == MoveKind::lost);
    }
    CHECK(place.reap().given_back.empty());
    CHECK_THROWS_AS(place.tasks().move(place.connection(), task, Job::succeeded),
                    idem::UsageError);  // no such step
    task.state = Job::failed;
    CHECK_THROWS_AS(place.tasks().move(place.connection(), task, Job::running), idem::UsageError);
}

TEST_CASE("tasks: of many that begin one task at once one has it",
          "[integration][postgres][tasks]") {
    Place place;
    for (int i = 0; i < 20; ++i) place.add(std::to_string(i));
    std::atomic<int> had{0};
    {
        std::vector<std::jthread> workers;
        for (int me = 0; me < 8; ++me)
            workers.emplace_back([&] {
                const UserConnection mine(shared_server().conninfo());
                for (int i = 0; i < 20; ++i)
                    had += place.tasks()
                                       .begin(mine.get(), std::to_string(i), Job::pending,
                                              Job::running)
                                       .kind == MoveKind::moved
                               ? 1
                               : 0;
            });
    }
    CHECK(had == 20);
}

TEST_CASE("tasks: a step is part of the caller's transaction", "[integration][postgres][tasks]") {
    Place place;
    auto task = place.begun("1");
    CHECK(place.sql()("BEGIN") == "");
    CHECK(place.tasks().move(place.connection(), task, Job::checking).kind == MoveKind::moved);
    CHECK(place.sql()("UPDATE " + place.table() + " SET name = 'done'") == "");
    CHECK(place.sql()("ROLLBACK") == "");
    CHECK(place.tasks().find(place.connection(), "1")->state == Job::running);
    CHECK(place.sql()("SELECT name FROM " + place.table()) == "clip");
}

TEST_CASE(
    "tasks: M70 a worker whose task was reaped changes nothing any more, and its fence is below",
    "[integration][postgres][tasks]") {
    Place place;
    const auto first = place.begun("1");
    place.lapse("1");
    const auto reaped = place.reap();
    REQUIRE(reaped.given_back.size() == 1);
    CHECK(reaped.given_back[0].state == Job::pending);
    CHECK(reaped.given_back[0].crashes == 1);
    CHECK(place.tasks().renew(place.connection(), first).kind == MoveKind::lost);
    const auto second = place.tasks().begin(place.connection(), "1", Job::pending, Job::running);
    REQUIRE(second.kind == MoveKind::moved);
    CHECK(second.task.fence > first.fence);
    CHECK(second.task.attempt == 2);
    CHECK(place.tasks().move(place.connection(), first, Job::checking).kind == MoveKind::lost);
    CHECK(place.tasks().move(place.connection(), second.task, Job::checking).kind ==
          MoveKind::moved);
}

TEST_CASE("tasks: M67 M68 what is renewed, or has only begun, is not reaped",
          "[integration][postgres][tasks]") {
    Place place;
    const auto renewed = place.begun("1");
    place.lapse("1");
    REQUIRE(place.tasks().renew(place.connection(), renewed).kind == MoveKind::moved);
    (void)place.begun("2");  // its lease is over, but its usual time is not
    CHECK(place.sql()("UPDATE " + place.table() + " SET idem_lease_end = 1 WHERE id = 2") == "");
    CHECK(place.reap().given_back.empty());
    place.lapse("2");
    CHECK(place.reap().given_back.size() == 1);
    CHECK(place.tasks().find(place.connection(), "1")->state == Job::running);
}

TEST_CASE("tasks: the time that is usual is measured, and waited for three times over",
          "[integration][postgres][tasks]") {
    Place place;
    CHECK_FALSE(place.tasks().p99(place.connection()));
    CHECK(place.sql()("INSERT INTO " + place.table() +
                      " (id, idem_state, idem_started, idem_finished) SELECT 1000 + n, 'succeeded',"
                      " 1000000, 1000000 + n * 60000000::bigint FROM generate_series(1, 100) n") ==
          "");
    CHECK(place.tasks().p99(place.connection()) == 99min);
    (void)place.begun("1");
    const auto started = [&](const std::string& ago) {
        CHECK(place.sql()("UPDATE " + place.table() +
                          " SET idem_lease_end = 1, idem_started ="
                          " (extract(epoch FROM now() - interval '" +
                          ago + "') * 1000000)::bigint WHERE id = 1") == "");
    };
    started("290 minutes");  // three times 99 are 297
    CHECK(place.reap().given_back.empty());
    started("300 minutes");
    CHECK(place.reap().given_back.size() == 1);
}

TEST_CASE("tasks: M71 M73 a task over which workers vanish again and again is given up",
          "[integration][postgres][tasks]") {
    Place place(3);
    place.add("1");
    for (int crash = 1; crash <= 3; ++crash) {
        REQUIRE(place.tasks().begin(place.connection(), "1", Job::pending, Job::running).kind ==
                MoveKind::moved);
        place.lapse("1");
        const auto reaped = place.reap();
        CHECK(reaped.given_back.size() == (crash < 3 ? 1U : 0U));
        CHECK(reaped.given_up.size() == (crash < 3 ? 0U : 1U));
    }
    CHECK(place.tasks().find(place.connection(), "1")->state == Job::failed);
    // Who gives it back in an orderly way does not vanish.
    const auto polite = place.begun("2");
    for (int i = 0; i < 2; ++i) {
        auto held =
            i == 0 ? polite
                   : place.tasks().begin(place.connection(), "2", Job::pending, Job::running).task;
        CHECK(place.tasks().move(place.connection(), held, Job::pending).task.crashes == 0);
    }
}

TEST_CASE("tasks: M64 M74 one that cannot be given back is parked, and the others go on",
          "[integration][postgres][tasks]") {
    Place place;
    CHECK(place.sql()("ALTER TABLE " + place.table() +
                      " ADD CHECK (name <> 'stuck' OR idem_crashes = 0)") == "");
    const auto bring = [&](const std::string& id) {
        (void)place.begun(id);
        place.lapse(id);
    };
    bring("1");
    bring("2");
    bring("3");
    CHECK(place.sql()("UPDATE " + place.table() +
                      " SET name = 'stuck', idem_lease_end = 0 WHERE id = 2") == "");
    CHECK(place.sql()("BEGIN") == "");
    CHECK_THROWS_AS(place.reap(), idem::UsageError);
    CHECK(place.sql()("ROLLBACK") == "");
    for (int pass = 0; pass < 3; ++pass) {
        const auto reaped = place.reap(1);  // the one that is stuck comes first
        REQUIRE(reaped.parked.size() == 1);
        CHECK(reaped.parked[0].first == "2");
        CHECK(reaped.parked[0].second.find("check") != std::string::npos);
        CHECK(reaped.given_back.size() == (pass < 2 ? 1 : 0));
    }
    CHECK(place.tasks().find(place.connection(), "2")->crashes == 0);
}

TEST_CASE("tasks: M64 M74 whatever a trigger says of one, and however many, the others go on",
          "[integration][postgres][tasks]") {
    Place place;
    // No UPDATE of an odd one goes through; with the same end of the lease, ids count.
    CHECK(place.sql()("CREATE FUNCTION " + place.table() +
                      "_refuse() RETURNS trigger LANGUAGE plpgsql AS"
                      " $$ BEGIN RAISE EXCEPTION 'not this one' USING ERRCODE = '22012'; END $$") ==
          "");
    constexpr int count = 30;
    for (int id = 1; id <= count; ++id) (void)place.begun(std::to_string(id));
    CHECK(place.sql()("UPDATE " + place.table() + " SET idem_lease_end = 1, idem_started = 1") ==
          "");
    CHECK(place.sql()("CREATE TRIGGER refuse BEFORE UPDATE ON " + place.table() +
                      " FOR EACH ROW WHEN (OLD.id % 2 = 1) EXECUTE FUNCTION " + place.table() +
                      "_refuse()") == "");
    const auto some = place.reap(4);
    CHECK(some.given_back.size() == 4);
    CHECK(some.parked.size() <= 5);
    const auto rest = place.reap(100);
    CHECK(rest.given_back.size() == count / 2 - 4);
    CHECK(rest.parked.size() == count / 2);
    CHECK(place.reap(4).given_back.empty());
}

TEST_CASE("tasks: a reaper leaves alone what somebody has locked",
          "[integration][postgres][tasks]") {
    Place place;
    const auto held = place.begun("1");
    (void)place.begun("2");
    place.lapse("1");
    place.lapse("2");
    const UserConnection other(shared_server().conninfo());
    CHECK(other("BEGIN") == "");
    CHECK(other("SELECT name FROM " + place.table() + " WHERE id = 1 FOR UPDATE") == "clip");
    const auto reaped = place.reap();
    REQUIRE(reaped.given_back.size() == 1);
    CHECK(reaped.given_back[0].id == "2");
    CHECK(reaped.parked.empty());
    CHECK(other("ROLLBACK") == "");
    const auto next = place.reap();
    REQUIRE(next.given_back.size() == 1);
    CHECK(next.given_back[0].id == "1");
    CHECK(next.given_back[0].fence > held.fence);
}

TEST_CASE("tasks: several reapers at once give each task back once",
          "[integration][postgres][tasks]") {
    Place place;
    constexpr int count = 40;
    for (int i = 0; i < count; ++i) (void)place.begun(std::to_string(i));
    CHECK(place.sql()("UPDATE " + place.table() + " SET idem_lease_end = 1, idem_started = 1") ==
          "");
    std::atomic<int> given_back{0};
    {
        std::vector<std::jthread> reapers;
        for (int me = 0; me < 4; ++me)
            reapers.emplace_back([&] {
                const UserConnection mine(shared_server().conninfo());
                for (int pass = 0; pass < 4; ++pass)
                    given_back += static_cast<int>(
                        place.tasks()
                            .reap(mine.get(), Job::running, Job::pending, Job::failed, 15)
                            .given_back.size());
            });
    }
    CHECK(given_back == count);
    CHECK(place.sql()("SELECT max(idem_crashes) FROM " + place.table()) == "1");
}

TEST_CASE("tasks: what cannot be is refused by its own error", "[integration][postgres][tasks]") {
    Place place;
    CHECK(place.sql()("INSERT INTO " + place.table() +
                      " (id, name, idem_state) VALUES (1, 'x', 'transcending')") == "");
    CHECK_THROWS_AS(place.tasks().find(place.connection(), "1"), idem::SchemaError);
    idem::TaskTableOptions options = place.options();
    options.table = "nothing";
    CHECK_THROWS_AS(Tasks(options).find(place.connection(), "1"), idem::SchemaError);
    options.id_type = "text; DROP TABLE x";
    CHECK_THROWS_AS(Tasks(options), idem::UsageError);
    options = place.options();
    options.lease = 0s;
    CHECK_THROWS_AS(Tasks(options), idem::UsageError);
    const UserConnection gone(shared_server().conninfo());
    CHECK(place.sql()("SELECT pg_terminate_backend(" + std::to_string(gone.process()) +
                      ", 5000)") == "t");
    CHECK_THROWS_AS(place.tasks().find(gone.get(), "1"), idem::UnavailableError);
}

TEST_CASE("tasks: a worker that was stopped past its lease writes nothing into the table",
          "[integration][postgres][tasks][fork]") {
    Place place;
    place.add("1");
    const pid_t worker = fork();
    REQUIRE(worker >= 0);
    if (worker == 0) {
        alarm(120);
        const UserConnection mine(shared_server().conninfo());
        const auto held = place.tasks().begin(mine.get(), "1", Job::pending, Job::running);
        (void)raise(SIGSTOP);
        const auto done = place.tasks().move(mine.get(), held.task, Job::checking);
        _exit(held.kind == MoveKind::moved && done.kind == MoveKind::lost ? 0 : 1);
    }
    int status = 0;
    REQUIRE(waitpid(worker, &status, WUNTRACED) == worker);
    REQUIRE(WIFSTOPPED(status));
    place.lapse("1");
    CHECK(place.reap().given_back.size() == 1);
    const auto next = place.tasks().begin(place.connection(), "1", Job::pending, Job::running);
    CHECK(next.kind == MoveKind::moved);
    CHECK(kill(worker, SIGCONT) == 0);
    REQUIRE(waitpid(worker, &status, 0) == worker);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(place.tasks().find(place.connection(), "1")->fence == next.task.fence);
    CHECK(place.tasks().find(place.connection(), "1")->state == Job::running);
}

}  // namespace postgres_tasks_test
