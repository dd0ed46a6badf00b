#ifndef IDEM_TASK_RECORDS_HPP
#define IDEM_TASK_RECORDS_HPP

#include <chrono>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <idem/claim.hpp>
#include <idem/clock.hpp>
#include <idem/codec.hpp>
#include <idem/error.hpp>
#include <idem/events.hpp>
#include <idem/guard.hpp>
#include <idem/key.hpp>
#include <idem/options.hpp>
#include <idem/outcome.hpp>
#include <idem/record.hpp>
#include <idem/state_machine.hpp>

namespace idem::inline v0_1 {

/// Settings of a `TaskRecords`. Durations are positive and at most ten years.
struct TaskOptions {
    std::string scope = "tasks";  ///< Tasks of two scopes never meet.
    /// How long a worker may be silent before its task may be taken from it.
    Duration lease = std::chrono::seconds{30};
    /// How long a task is remembered where it waits or has ended. One that is forgotten begins
    /// anew: longer than any task waits, or is asked for.
    Duration retention = std::chrono::hours{24 * 30};
    Duration held_retention = std::chrono::hours{24 * 30};  ///< Of one that is given up.
    std::uint16_t max_crashes = 5;  ///< At so many vanished workers it is given up. 0: never.
    bool heartbeat = true;          ///< Renews the lease. Off: the work must end within it.
    Observer events{};
};

/// How a task stands.
template <class State>
struct TaskStanding {
    State state = StateMachine<State>::initial();
    bool held = false;  ///< A worker is at it, or has vanished and its lease may still run.
    std::uint32_t attempt = 0;
    std::uint32_t crashes = 0;
};

enum class StepKind : std::uint8_t {
    taken,
    lost,        ///< Not this worker's any more. Stop; another may be at it.
    unrecorded,  ///< The store did not answer: tried again in the background.
};

namespace detail {

/// What a record notes of a task: where it is, and where it waits if its worker vanishes.
template <class State>
struct TaskNote {
    using Machine = StateMachine<State>;

    State state = Machine::initial();
    State waits = Machine::initial();

    [[nodiscard]] std::string text() const {
        return std::string(Machine::name(state)) + '\n' + std::string(Machine::name(waits));
    }
    /// Of a task that nobody has begun: the first state. @throws SchemaError.
    [[nodiscard]] static TaskNote parse(std::string_view text) {
        if (text.empty()) return {};
        const auto line = text.find('\n');
        if (line == std::string_view::npos) throw SchemaError("what is noted here is no task");
        return {state_named(text.substr(0, line)), state_named(text.substr(line + 1))};
    }
    [[nodiscard]] static State state_named(std::string_view name) {
        if (const auto state = Machine::parse(name)) return *state;
        throw SchemaError("a task is in the state \"" + std::string(name) +
                          "\", which this machine has not");
    }
};

}  // namespace detail

/// A task in a worker's hands: renewed by the heartbeat that guards share. Dropped it is released,
/// as an open claim is, and waits in the state from which it was begun. Movable between threads,
/// for one thread at a time. If the process dies the task waits there again at the end of its
/// lease.
template <class State>
class [[nodiscard]] HeldTask {
    using Machine = StateMachine<State>;
    using Note = detail::TaskNote<State>;

public:
    HeldTask(Claim<std::string> claim, State state, State waits)
        : claim_(std::move(claim)), note_{state, waits} {}

    [[nodiscard]] State state() const noexcept { return note_.state; }
    /// False once it has ended, was given back or moved from: nothing below may be asked then.
    [[nodiscard]] bool is_open() const noexcept { return claim_.is_open(); }
    /// True only while the lease stands by the local clock. True is no proof for what follows it:
    /// that is what the fence is for.
    [[nodiscard]] bool held() const { return claim_.held(); }
    [[nodiscard]] std::stop_token stop_token() const { return claim_.stop_token(); }
    /// Grows each time a worker takes the task.
    [[nodiscard]] Fence fence() const { return claim_.fence(); }
    [[nodiscard]] std::uint32_t attempt() const { return claim_.attempt(); }
    /// The last worker vanished: what it did may be half done.
    [[nodiscard]] bool takeover() const { return claim_.takeover(); }

    /// Takes it a step further; a terminal state ends it. The same again after trouble is safe.
    /// @throws UsageError for a step that the machine has not; UnavailableError: not known to be
    /// taken.
    StepKind move(State to) {
        detail::check_step(note_.state, to);
        if (Machine::terminal(to)) {
            const auto why =
                std::move(claim_).complete(std::string(Machine::name(to))).unrecorded_reason();
            if (why == UnrecordedReason::lost) return StepKind::lost;
            note_.state = to;
            return why == UnrecordedReason::none ? StepKind::taken : StepKind::unrecorded;
        }
        try {
            claim_.execution().checkpoint(Note{to, note_.waits}.text());
        } catch (const LeaseLostError&) {
            return StepKind::lost;
        }
        note_.state = to;
        return StepKind::taken;
    }
    /// Leaves it in a state where it waits for another worker. False: it was lost; or the store did
    /// not answer, and the background or the end of the lease frees it. @throws UsageError for a
    /// step that the machine has not, or to a terminal state.
    bool leave(State to) {
        detail::check_step(note_.state, to);
        if (Machine::terminal(to)) throw UsageError("a task ends by move, and is not left there");
        return std::move(claim_).release(Note{to, to}.text());
    }

private:
    Claim<std::string> claim_;
    Note note_;
};

/// The steps of a `StateMachine` as records of any store: a task is held by a claim, so that one
/// worker has it at a time, and each step is fenced. Whoever comes second is told how the task
/// stands; a terminal state absorbs. A task is there as soon as somebody begins it. Where your
/// rows and its steps must be one transaction, take `TaskTable`. Copyable; any thread may call any
/// member. Steps survive as the store does; a worker that vanishes leaves its task where it was
/// begun from, for the next `begin` or a `Reaper` of `Component::task`.
template <class State, store Store>
class TaskRecords {
    using Machine = StateMachine<State>;
    using Note = detail::TaskNote<State>;

public:
    /// `given_up`: where a task stands over which too many workers have vanished.
    /// @throws UsageError for options that cannot work, or a state that is not terminal.
    TaskRecords(const Store& store, State given_up, TaskOptions options = {})
        : guard_(store, guard_options(store, options), Component::task),
          scope_(std::move(options.scope)),
          given_up_(given_up) {
        if (!Machine::terminal(given_up))
            throw UsageError("TaskRecords: a task is given up in a terminal state");
        validate(KeyView(Component::task, scope_, "id", {}));
    }

    /// Takes a task that waits in `from` to `to` and holds it; else says how it stands. Of all that
    /// try at once one has it. @throws UsageError for a step that the machine has not, or to a
    /// terminal state; UnavailableError: nothing is held (what may have got through is freed in the
    /// background); SchemaError: the record is no task of this machine.
    [[nodiscard]] std::variant<HeldTask<State>, TaskStanding<State>> begin(
        const std::string& id, State from, State to, const std::string& tenant = {}) {
        detail::check_step(from, to);
        if (Machine::terminal(to)) throw UsageError("a task is not begun in a terminal state");
        const Key key = key_of(id, tenant);
        auto answer = guard_.template claim<std::string>(key, {});
        auto* const claim = std::get_if<Claim<std::string>>(&answer);
        if (claim == nullptr) return standing(std::get<Outcome<std::string>>(answer), key);
        const State waits = Note::parse(claim->execution().checkpoint()).waits;
        if (waits != from) {
            std::move(*claim).give_back();
            return find(id, tenant).value_or(TaskStanding<State>{waits});
        }
        try {
            claim->execution().checkpoint(Note{to, from}.text());
        } catch (const LeaseLostError&) {
            throw UnavailableError("the lease ended before its task could be begun");
        } catch (...) {  // it may have got there, and nothing has begun
            std::move(*claim).release(Note{from, from}.text());
            throw;
        }
        return HeldTask<State>(std::move(*claim), to, from);
    }

    /// How a task stands; nothing where nobody has begun it. @throws UnavailableError, SchemaError.
    [[nodiscard]] std::optional<TaskStanding<State>> find(const std::string& id,
                                                          const std::string& tenant = {}) {
        const auto found = guard_.find(key_of(id, tenant));
        if (!found) return std::nullopt;
        const RecordHeader& header = found->header;
        TaskStanding<State> out{Machine::initial(), false, header.attempt, header.crashes};
        switch (header.state) {
            case idem::State::succeeded:
                out.state = Note::state_named(
                    decode_result<std::string>(header.codec, found->payload.result));
                break;
            case idem::State::failed:
            case idem::State::unknown: out.state = given_up_; break;
            case idem::State::running:
                out.state = Note::parse(found->payload.checkpoint).state;
                out.held = true;
                break;
            default: out.state = Note::parse(found->payload.checkpoint).waits;
        }
        return out;
    }

    /// The key of a task, for `guard`.
    [[nodiscard]] Key key_of(std::string id, std::string tenant = {}) const {
        return {.scope = scope_, .id = std::move(id), .tenant = std::move(tenant)};
    }
    /// The guard beneath, for `list`, `forget`, `drain`.
    [[nodiscard]] IdempotencyGuard<Store>& guard() noexcept { return guard_; }

private:
    [[nodiscard]] static GuardOptions guard_options(const Store& store,
                                                    const TaskOptions& options) {
        detail::check_lease(store, options.lease, options.heartbeat, "TaskOptions::lease");
        detail::check_duration(options.retention, "TaskOptions::retention");
        detail::check_duration(options.held_retention, "TaskOptions::held_retention");
        GuardOptions out;
        out.lease = options.lease;
        out.retention = options.retention;
        out.held_retention = options.held_retention;
        out.heartbeat = options.heartbeat;
        out.max_crashes = options.max_crashes;
        out.events = options.events;
        return out;
    }

    [[nodiscard]] TaskStanding<State> standing(const Outcome<std::string>& outcome,
                                               const Key& key) {
        if (const auto now = find(key.id, key.tenant)) return *now;
        TaskStanding<State> out;  // it was forgotten meanwhile
        if (outcome.has_value()) out.state = Note::state_named(outcome.value());
        return out;
    }

    IdempotencyGuard<Store> guard_;
    std::string scope_;
    State given_up_;
};

}  // namespace idem::inline v0_1

#endif
