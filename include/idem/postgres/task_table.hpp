#ifndef IDEM_POSTGRES_TASK_TABLE_HPP
#define IDEM_POSTGRES_TASK_TABLE_HPP

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <idem/clock.hpp>
#include <idem/error.hpp>
#include <idem/options.hpp>
#include <idem/postgres/connection.hpp>
#include <idem/postgres/sql.hpp>
#include <idem/record.hpp>
#include <idem/state_machine.hpp>

namespace idem::inline v0_1 {

/// Settings of a `TaskTable`. Durations are positive and at most ten years.
struct TaskTableOptions {
    std::string schema = "public";
    std::string table = "tasks";
    std::string id = "id";         ///< The column of the primary key.
    std::string id_type = "text";  ///< Its type, as SQL names it: "bigint", "uuid".
    /// How long a worker may be silent before its task may be taken from it.
    Duration lease = std::chrono::seconds{30};
    /// A lapsed task is given back only this many times the P99 of finished ones after its start...
    std::uint32_t patience = 3;
    /// ...and not before this long after it, while too few have finished to know.
    Duration patience_min = std::chrono::minutes{1};
    std::uint32_t max_crashes = 5;  ///< At so many vanished workers a task is given up. 0: never.
    /// For each request to the server.
    Duration time_allowed = std::chrono::seconds{5};
};

/// A task as a worker knows it. The fence grows each time one takes it.
template <class State>
struct Task {
    std::string id{};
    State state = StateMachine<State>::initial();
    Fence fence = 0;
    std::uint32_t attempt = 0;
    std::uint32_t crashes = 0;
};

enum class MoveKind : std::uint8_t {
    moved,   ///< It is there now: by this call, or by the same one before it.
    lost,    ///< Somebody else was faster, or it is at its end: `task` says how it stands.
    absent,  ///< There is no such task.
};

template <class State>
struct MoveOutcome {
    MoveKind kind = MoveKind::absent;
    Task<State> task{};  ///< As it is now.
};

/// What a pass of the reaper has done.
template <class State>
struct ReapedTasks {
    std::vector<Task<State>> given_back{};
    std::vector<Task<State>> given_up{};  ///< Too many workers have vanished over them.
    /// The table would not take the step (a constraint of yours, a trigger), and why. They stay as
    /// they are and are tried again by each pass, without holding up the others.
    std::vector<std::pair<std::string, std::string>> parked{};
};

/// The steps of a `StateMachine` in a table of yours, each one conditional UPDATE on your
/// connection, in your transaction where there is one: whoever was second changes nothing and is
/// told how the task stands. A terminal state absorbs. Work is held by a lease and a fence, as a
/// claim is: a worker that was paused past its lease, and whose task went to another, changes
/// nothing any more. The state is stored by its name, times in microseconds since 1970, by the
/// server's clock. Any thread, one for each connection. What was committed survives as the table
/// does; a worker that crashes leaves its task to `reap`.
template <class State>
class TaskTable {
    using Machine = StateMachine<State>;

public:
    /// Does no I/O. @throws UsageError for options that cannot be right.
    explicit TaskTable(TaskTableOptions options = {})
        : options_((check(options), std::move(options))),
          names_(options_.schema, options_.table, ""),
          id_(postgres::Names::quoted(options_.id)) {}

    /// The statement that gives a table of yours the columns that are needed: idem_state,
    /// idem_fence, idem_attempt, idem_crashes, idem_started, idem_finished, idem_lease_end. Rows
    /// that are there begin in the first state.
    [[nodiscard]] std::string add_columns_text() const {
        return names_.fill(
            "ALTER TABLE {table} ADD COLUMN IF NOT EXISTS idem_state text NOT NULL DEFAULT " +
            postgres::Names::literal(std::string(Machine::name(Machine::initial()))) +
            ", ADD COLUMN IF NOT EXISTS idem_fence bigint NOT NULL DEFAULT 0"
            ", ADD COLUMN IF NOT EXISTS idem_attempt bigint NOT NULL DEFAULT 0"
            ", ADD COLUMN IF NOT EXISTS idem_crashes bigint NOT NULL DEFAULT 0"
            ", ADD COLUMN IF NOT EXISTS idem_started bigint NOT NULL DEFAULT 0"
            ", ADD COLUMN IF NOT EXISTS idem_finished bigint NOT NULL DEFAULT 0"
            ", ADD COLUMN IF NOT EXISTS idem_lease_end bigint NOT NULL DEFAULT 0");
    }

    /// Takes a task from `from` to `to` and holds it there: attempt + 1, a new fence, a lease. Of
    /// all that try at once one has it. Where the answer is lost nobody has, until `reap`. `from`
    /// is a state in which tasks wait: one that is held there is taken from its holder.
    /// @throws UsageError for a step that the machine has not; UnavailableError; SchemaError for a
    /// table without the columns; ConflictError: roll your transaction back and try it again.
    [[nodiscard]] MoveOutcome<State> begin(PGconn* connection, const std::string& id, State from,
                                           State to) const {
        detail::check_step(from, to);
        postgres::Params p = params(id, {Machine::name(to), Machine::name(from)});
        p.add(postgres::Type::int8, postgres::Value::number(std::int64_t{options_.lease.count()}));
        return outcome(connection, id, p,
                       "UPDATE {table} t SET idem_state = $2, idem_attempt = idem_attempt + 1,"
                       " idem_fence = greatest(idem_fence + 1, {now}), idem_started = {now},"
                       " idem_finished = 0, idem_lease_end = {now} + $4"
                       " WHERE {key} = {id} AND idem_state = $3 RETURNING {columns}");
    }

    /// Takes a task that is held a step further; a terminal state ends it. The same again answers
    /// as the first did. Throws as `begin`.
    [[nodiscard]] MoveOutcome<State> move(PGconn* connection, const Task<State>& task,
                                          State to) const {
        detail::check_step(task.state, to);
        postgres::Params p = params(task.id, {Machine::name(to), Machine::name(task.state)});
        p.add(postgres::Type::int8, postgres::Value::number(static_cast<std::int64_t>(task.fence)));
        const std::string ends = Machine::terminal(to) ? "idem_finished = {now}, idem_lease_end = 0"
                                                       : "idem_finished = 0";
        auto out = outcome(connection, task.id, p,
                           "UPDATE {table} t SET idem_state = $2, " + ends +
                               " WHERE {key} = {id} AND idem_state = $3 AND idem_fence = $4"
                               " RETURNING {columns}");
        if (out.kind == MoveKind::lost && out.task.fence == task.fence && out.task.state == to)
            out.kind = MoveKind::moved;
        return out;
    }

    /// Holds it for another lease. `lost` where it is not this worker's any more: stop. Throws as
    /// `begin`.
    [[nodiscard]] MoveOutcome<State> renew(PGconn* connection, const Task<State>& task) const {
        postgres::Params p = params(task.id, {Machine::name(task.state)});
        p.add(postgres::Type::int8, postgres::Value::number(static_cast<std::int64_t>(task.fence)));
        p.add(postgres::Type::int8, postgres::Value::number(std::int64_t{options_.lease.count()}));
        return outcome(
            connection, task.id, p,
            "UPDATE {table} t SET idem_lease_end = greatest(idem_lease_end, {now} + $4)"
            " WHERE {key} = {id} AND idem_state = $2 AND idem_fence = $3 AND idem_lease_end > 0"
            " RETURNING {columns}");
    }

    /// How a task stands. Throws as `begin`.
    [[nodiscard]] std::optional<Task<State>> find(PGconn* connection, const std::string& id) const {
        const auto answer =
            ask(connection, "SELECT {columns} FROM {table} t WHERE {key} = {id}", params(id, {}));
        if (answer.result.rows() == 0) return std::nullopt;
        return read(answer.result, 0);
    }

    /// The time within which 99 of 100 finished tasks were done, of the last thousand; nothing
    /// where fewer than twenty are known. Throws as `begin`.
    [[nodiscard]] std::optional<Duration> p99(PGconn* connection) const {
        const auto answer =
            ask(connection,
                "SELECT (percentile_disc(0.99) WITHIN GROUP (ORDER BY took))::bigint, count(*)"
                " FROM (SELECT idem_finished - idem_started AS took FROM {table}"
                " WHERE idem_finished > 0 AND idem_started > 0"
                " ORDER BY idem_finished DESC LIMIT 1000) t",
                {});
        const auto count = answer.result.template number<std::int64_t>(0, 1).value_or(0);
        const auto took = answer.result.template number<std::int64_t>(0, 0);
        if (count < 20 || !took) return std::nullopt;
        return Duration(*took);
    }

    /// Gives back, to `back`, what is held in `running` though its lease has ended and its time is
    /// over (`TaskTableOptions::patience`); to `dead` where too many workers have vanished over it.
    /// One that is renewed is left alone, one that is locked to the next pass. Moves at most
    /// `limit` tasks, the longest lapsed first, each in a transaction of its own, so that one that
    /// cannot be moved holds up no other; several reapers at once take each task once. Each move
    /// raises the fence. Begins and ends on an idle connection. @throws UsageError where it is not
    /// idle, or for a step that the machine has not; else as `begin`.
    ReapedTasks<State> reap(PGconn* connection, State running, State back, State dead,
                            std::size_t limit = 100) const {
        detail::check_step(running, back);
        detail::check_step(running, dead);
        if (PQtransactionStatus(connection) != PQTRANS_IDLE)
            throw UsageError("TaskTable::reap: the connection is in a transaction");
        const Duration patience = patience_now(connection);
        ReapedTasks<State> out;
        const auto left = [&] { return limit - out.given_back.size() - out.given_up.size(); };
        for (Lapsed page; left() > 0;) {
            const std::size_t asked = std::min<std::size_t>(left(), 1000);
            page = lapsed(connection, running, patience, asked, page);
            for (const auto& task : page.tasks) reap_one(connection, task, back, dead, out);
            if (page.tasks.size() < asked) break;
        }
        return out;
    }

private:
    static void check(const TaskTableOptions& o) {
        detail::check_duration(o.lease, "TaskTableOptions::lease");
        detail::check_duration(o.patience_min, "TaskTableOptions::patience_min");
        detail::check_duration(o.time_allowed, "TaskTableOptions::time_allowed");
        if (o.id.empty()) throw UsageError("TaskTableOptions::id is empty");
        for (const char c : o.id_type)
            if (c != ' ' && (c < 'a' || c > 'z') && (c < '0' || c > '9'))
                throw UsageError("TaskTableOptions::id_type is no name of a type");
    }

    [[nodiscard]] static postgres::Params params(const std::string& id,
                                                 std::initializer_list<std::string_view> texts) {
        postgres::Params p;
        p.add(postgres::Type::text, postgres::Value::bytes(id));
        for (const auto text : texts) p.add(postgres::Type::text, postgres::Value::bytes(text));
        return p;
    }
    [[nodiscard]] std::string filled(std::string text) const {
        return names_.fill(std::move(text), {{"{key}", "t." + id_},
                                             {"{id}", "$1::text::" + options_.id_type},
                                             {"{columns}", "t." + id_ +
                                                               "::text, t.idem_state, t.idem_fence,"
                                                               " t.idem_attempt, t.idem_crashes"}});
    }
    /// @throws where the server did not do it.
    [[nodiscard]] postgres::Answer ask(PGconn* connection, const std::string& text,
                                       const postgres::Params& p) const {
        auto answer = try_to(connection, text, p);
        if (answer.fault) raise(*answer.fault);
        return answer;
    }
    [[nodiscard]] postgres::Answer try_to(PGconn* connection, const std::string& text,
                                          const postgres::Params& p) const {
        auto wire = postgres::Connection::borrow(connection);
        return wire.run({{}, filled(text)}, p, false, LocalClock::now() + options_.time_allowed);
    }
    [[noreturn]] static void raise(const postgres::Fault& fault) {
        if (fault.code.starts_with("40")) throw ConflictError(fault.message);
        if (fault.code.starts_with("42")) throw SchemaError(fault.message);
        postgres::trouble_of(fault).raise();
        throw UnavailableError(fault.message, fault.may_have_applied);
    }

    [[nodiscard]] static Task<State> read(const postgres::Result& result, int row) {
        const auto number = [&](int column) {
            return result.template number<std::int64_t>(row, column).value_or(0);
        };
        const auto name = result.field(row, 1).value_or("");
        const auto state = Machine::parse(name);
        if (!state)
            throw SchemaError("a task is in the state \"" + std::string(name) +
                              "\", which this machine has not");
        return {std::string(result.field(row, 0).value_or("")), *state,
                static_cast<Fence>(number(2)), static_cast<std::uint32_t>(number(3)),
                static_cast<std::uint32_t>(number(4))};
    }
    [[nodiscard]] MoveOutcome<State> outcome(PGconn* connection, const std::string& id,
                                             const postgres::Params& p,
                                             const std::string& text) const {
        const auto answer = ask(connection, text, p);
        if (answer.result.rows() == 1) return {MoveKind::moved, read(answer.result, 0)};
        const auto now = find(connection, id);
        if (!now) return {};
        return {MoveKind::lost, *now};
    }

    [[nodiscard]] Duration patience_now(PGconn* connection) const {
        const auto usual = p99(connection).value_or(Duration::zero());
        const Duration most = std::chrono::hours{24 * 3650};
        return std::max(options_.patience_min, usual > most / std::max(options_.patience, 1U)
                                                   ? most
                                                   : usual * options_.patience);
    }
    /// A page of what has lapsed, by the end of its lease.
    struct Lapsed {
        std::vector<Task<State>> tasks{};
        std::int64_t last_end = -1;
    };
    [[nodiscard]] Lapsed lapsed(PGconn* connection, State running, Duration patience,
                                std::size_t limit, const Lapsed& before) const {
        postgres::Params p;
        p.add(postgres::Type::text, before.tasks.empty()
                                        ? postgres::Value::null()
                                        : postgres::Value::bytes(before.tasks.back().id));
        p.add(postgres::Type::text, postgres::Value::bytes(Machine::name(running)));
        for (const std::int64_t number :
             {std::int64_t{patience.count()}, static_cast<std::int64_t>(limit), before.last_end})
            p.add(postgres::Type::int8, postgres::Value::number(number));
        const auto answer =
            ask(connection,
                "SELECT {columns}, t.idem_lease_end FROM {table} t WHERE t.idem_state = $2"
                " AND t.idem_lease_end <= {now} AND t.idem_started + $3 <= {now}"
                " AND (t.idem_lease_end > $5 OR t.idem_lease_end = $5 AND {key} > {id})"
                " ORDER BY t.idem_lease_end, {key} LIMIT $4",
                p);
        Lapsed out;
        for (int row = 0; row < answer.result.rows(); ++row) {
            out.tasks.push_back(read(answer.result, row));
            out.last_end = answer.result.template number<std::int64_t>(row, 5).value_or(0);
        }
        return out;
    }
    void reap_one(PGconn* connection, const Task<State>& task, State back, State dead,
                  ReapedTasks<State>& out) const {
        const bool give_up = options_.max_crashes != 0 && task.crashes + 1 >= options_.max_crashes;
        const State to = give_up ? dead : back;
        const auto fence = postgres::Value::number(static_cast<std::int64_t>(task.fence));
        postgres::Params p = params(task.id, {Machine::name(to), Machine::name(task.state)});
        p.add(postgres::Type::int8, fence);
        // Looks again at fence and lease: it may have been renewed, or reaped by another.
        const auto answer =
            try_to(connection,
                   "WITH free AS MATERIALIZED"
                   " (SELECT 1 FROM {table} t WHERE {key} = {id} FOR UPDATE SKIP LOCKED)"
                   " UPDATE {table} t SET idem_state = $2, idem_crashes = idem_crashes + 1,"
                   " idem_fence = greatest(idem_fence + 1, {now}), idem_lease_end = 0"
                   " WHERE {key} = {id} AND idem_state = $3 AND idem_fence = $4"
                   " AND idem_lease_end <= {now} AND (SELECT count(*) FROM free) > 0"
                   " RETURNING {columns}",
                   p);
        if (!answer.fault) {
            if (answer.result.rows() == 1)
                (give_up ? out.given_up : out.given_back).push_back(read(answer.result, 0));
            return;
        }
        if (answer.fault->code.starts_with("40")) return;  // in another's way: the next pass
        if (of_the_server(*answer.fault)) raise(*answer.fault);
        out.parked.emplace_back(task.id, answer.fault->message);
    }
    /// What stands in the way of every task, not of one (PostgreSQL manual, appendix A). Not by
    /// `fault_class`: what it does not know is the server's there, and a trigger of yours here.
    [[nodiscard]] static bool of_the_server(const postgres::Fault& fault) {
        for (const char* with : {"08", "25", "53", "57P", "58", "XX"})
            if (fault.code.starts_with(with)) return true;
        return fault.code.empty();
    }

    TaskTableOptions options_;
    postgres::Names names_;
    std::string id_;
};

}  // namespace idem::inline v0_1

#endif
