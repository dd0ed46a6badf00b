#ifndef IDEM_STATE_MACHINE_HPP
#define IDEM_STATE_MACHINE_HPP

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include <idem/error.hpp>

namespace idem::inline v0_1 {

/// A state and its name in tables, events and drawings: letters, digits and '_'.
template <class State>
struct NamedState {
    State state;
    std::string_view name;
};
template <class State>
NamedState(State, const char*) -> NamedState<State>;

/// A step that may be taken. Every other one is refused before any I/O.
template <class State>
struct Transition {
    State from;
    State to;
};
template <class State>
Transition(State, State) -> Transition<State>;

/// The states of an enumeration of yours, the one where everything begins first, and the steps
/// between them, as data:
///     template <> struct idem::StateTable<Job> {
///         static constexpr std::array states = {
///             idem::NamedState{Job::pending, "pending"}, idem::NamedState{Job::done, "done"}};
///         static constexpr std::array transitions = {
///             idem::Transition{Job::pending, Job::done}}; };
template <class State>
struct StateTable;

namespace detail {

template <class State>
using TableOf = StateTable<State>;

template <class State>
concept has_state_table = requires {
    TableOf<State>::states.front().name;
    TableOf<State>::transitions.front().from;
};

/// Where a state stands in its table; one past the last where it does not.
template <class State>
[[nodiscard]] constexpr std::size_t place_of(State state) noexcept {
    std::size_t at = 0;
    for (const auto& known : TableOf<State>::states) {
        if (known.state == state) break;
        ++at;
    }
    return at;
}
template <class State>
[[nodiscard]] constexpr bool leaves(State state) noexcept {
    for (const auto& step : TableOf<State>::transitions)
        if (step.from == state) return true;
    return false;
}
[[nodiscard]] constexpr bool is_state_name(std::string_view name) noexcept {
    for (const char c : name)
        if (c != '_' && !(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') &&
            !(c >= '0' && c <= '9'))
            return false;
    return !name.empty();
}

template <class State>
[[nodiscard]] constexpr bool names_are_good() noexcept {
    const auto& states = TableOf<State>::states;
    for (std::size_t i = 0; i < states.size(); ++i) {
        if (!is_state_name(states[i].name) || place_of(states[i].state) != i) return false;
        for (std::size_t j = 0; j < i; ++j)
            if (states[i].name == states[j].name) return false;
    }
    return true;
}
template <class State>
[[nodiscard]] constexpr bool steps_are_between_known_states() noexcept {
    for (const auto& step : TableOf<State>::transitions)
        if (place_of(step.from) == TableOf<State>::states.size() ||
            place_of(step.to) == TableOf<State>::states.size())
            return false;
    return true;
}
template <class State>
[[nodiscard]] constexpr bool steps_differ() noexcept {
    const auto& steps = TableOf<State>::transitions;
    for (std::size_t i = 0; i < steps.size(); ++i) {
        if (steps[i].from == steps[i].to) return false;
        for (std::size_t j = 0; j < i; ++j)
            if (steps[i].from == steps[j].from && steps[i].to == steps[j].to) return false;
    }
    return true;
}

/// Of each state whether a walk gets there: forward from the first, or backward from the terminal
/// ones.
template <class State, bool forward>
[[nodiscard]] constexpr bool all_are_met() noexcept {
    constexpr std::size_t count = TableOf<State>::states.size();
    std::array<bool, count> met{};
    for (std::size_t i = 0; i < count; ++i)
        met[i] = forward ? i == 0 : !leaves(TableOf<State>::states[i].state);
    for (std::size_t round = 0; round < count; ++round)
        for (const auto& step : TableOf<State>::transitions) {
            const std::size_t from = place_of(forward ? step.from : step.to);
            const std::size_t to = place_of(forward ? step.to : step.from);
            met[to] = met[to] || met[from];
        }
    for (const bool one : met)
        if (!one) return false;
    return true;
}

}  // namespace detail

/// What may become of what, from the `StateTable` of an enumeration; what cannot be right there
/// does not compile. A state that no step leaves is terminal: it absorbs whatever comes later. All
/// members are pure; `TaskRecords` takes the steps on a store, `TaskTable` in a table of yours.
template <class State>
class StateMachine {
    static_assert(detail::has_state_table<State>,
                  "idem: specialise idem::StateTable for this enumeration");
    static_assert(detail::names_are_good<State>(),
                  "idem: each state is there once, with a name of its own of letters, digits, '_'");
    static_assert(detail::steps_are_between_known_states<State>(),
                  "idem: a transition leads from or to a state that is not among the states");
    static_assert(detail::steps_differ<State>(),
                  "idem: a transition is there twice, or leads from a state to itself");
    static_assert(detail::all_are_met<State, true>(),
                  "idem: a state cannot be reached from the first one");
    static_assert(detail::all_are_met<State, false>(),
                  "idem: no way leads from a state to a terminal one: it could never end");
    using Table = StateTable<State>;

public:
    [[nodiscard]] static constexpr State initial() noexcept { return Table::states.front().state; }
    [[nodiscard]] static constexpr bool terminal(State state) noexcept {
        return !detail::leaves(state);
    }
    [[nodiscard]] static constexpr bool allowed(State from, State to) noexcept {
        for (const auto& step : Table::transitions)
            if (step.from == from && step.to == to) return true;
        return false;
    }
    /// "invalid" for a number that is no state.
    [[nodiscard]] static constexpr std::string_view name(State state) noexcept {
        const auto at = detail::place_of(state);
        return at < Table::states.size() ? Table::states[at].name : "invalid";
    }
    [[nodiscard]] static constexpr std::optional<State> parse(std::string_view name) noexcept {
        for (const auto& known : Table::states)
            if (known.name == name) return known.state;
        return std::nullopt;
    }

    /// As a state diagram of Mermaid (`stateDiagram-v2`), for documents.
    [[nodiscard]] static std::string mermaid() {
        std::string out = "stateDiagram-v2\n    [*] --> " + std::string(name(initial())) + "\n";
        for (const auto& step : Table::transitions)
            out +=
                "    " + std::string(name(step.from)) + " --> " + std::string(name(step.to)) + "\n";
        for (const auto& known : Table::states)
            if (terminal(known.state)) out += "    " + std::string(known.name) + " --> [*]\n";
        return out;
    }
};

namespace detail {

/// @throws UsageError for a step that the machine has not.
template <class State>
void check_step(State from, State to) {
    using Machine = StateMachine<State>;
    if (Machine::allowed(from, to)) return;
    throw UsageError("no transition leads from " + std::string(Machine::name(from)) + " to " +
                     std::string(Machine::name(to)));
}

}  // namespace detail

}  // namespace idem::inline v0_1

#endif
