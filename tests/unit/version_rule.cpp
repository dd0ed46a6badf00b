// Goal: which version is the later one never depends on the order of arrival. Method: tables for
// each rule; then every order in which a few messages can come, against the highest of them.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <idem/version_rule.hpp>

#include "support/catch.hpp"

namespace version_rule_test {

using idem::EqualVersions;
using idem::GateStep;
using idem::VersionVerdict;

struct Encoder {
    static constexpr std::string_view name = "encoder";
};
using Version = idem::Version<Encoder>;
using State = idem::GateState<Encoder>;

constexpr auto refuse = EqualVersions::refuse;
constexpr auto by_rank = EqualVersions::higher_rank;

TEST_CASE("a higher number is newer, whatever the rank", "[versions]") {
    for (const auto rule : {refuse, by_rank}) {
        const Version two{.number = 2, .rank = 5};
        CHECK(compare(Version{.number = 3}, two, rule) == VersionVerdict::newer);
        CHECK(compare(Version{.number = 1, .rank = 9}, two, rule) == VersionVerdict::older);
        CHECK(compare(Version{.number = ~0ULL}, two, rule) == VersionVerdict::newer);
        CHECK(compare(two, two, rule) == VersionVerdict::same);
    }
}

TEST_CASE("equal numbers follow the declared rule", "[versions]") {
    const Version two{.number = 2, .rank = 5};
    const Version higher{.number = 2, .rank = 6};
    CHECK(compare(higher, two, by_rank) == VersionVerdict::newer);
    CHECK(compare(two, higher, by_rank) == VersionVerdict::older);
    CHECK(compare(higher, two, refuse) == VersionVerdict::same);
    CHECK(compare(two, higher, refuse) == VersionVerdict::same);
}

TEST_CASE("without a number the rank alone decides", "[versions]") {
    const Version none{.rank = 1};
    for (const auto& other : {Version{.rank = 1}, Version{.number = 7, .rank = 1}}) {
        CHECK(compare(none, other, by_rank) == VersionVerdict::same);
        CHECK(compare(other, none, by_rank) == VersionVerdict::same);
    }
    CHECK(compare(Version{.rank = 2}, Version{.number = 7, .rank = 1}, by_rank) ==
          VersionVerdict::newer);
    CHECK(compare(Version{.number = 7, .rank = 0}, none, by_rank) == VersionVerdict::older);
}

TEST_CASE("a terminal state absorbs what comes after, with a number or without", "[versions]") {
    const Version succeeded{.number = 3, .rank = 2, .terminal = true};
    for (const auto rule : {refuse, by_rank}) {
        CHECK(compare(Version{.number = 4, .rank = 9}, succeeded, rule) ==
              VersionVerdict::absorbed);
        CHECK(compare(Version{.rank = 1}, succeeded, rule) == VersionVerdict::absorbed);
        CHECK(compare(Version{.number = 3, .rank = 1}, succeeded, rule) ==
              VersionVerdict::absorbed);
        CHECK(compare(succeeded, succeeded, rule) == VersionVerdict::same);
        CHECK(compare(Version{.epoch = 1, .number = 1}, succeeded, rule) == VersionVerdict::newer);
    }
}

TEST_CASE("what is of an older run is stale, also before the new one has sent anything",
          "[versions]") {
    const State begun{.epoch = 2};
    CHECK(judge(begun, Version{.epoch = 1, .number = 99}, refuse) == VersionVerdict::older);
    CHECK(judge(begun, Version{.epoch = 2, .number = 0}, refuse) == VersionVerdict::newer);
    CHECK(judge(begun, Version{.epoch = 3, .number = 0}, refuse) == VersionVerdict::newer);
}

TEST_CASE("below a version that may be half done nothing is applied; it, or above, is",
          "[versions]") {
    State state{.applied = Version{.number = 2}, .attempting = Version{.number = 5, .rank = 1}};
    CHECK(step_for(state, Version{.number = 2}, refuse) == GateStep::stale);
    CHECK(step_for(state, Version{.number = 4}, refuse) == GateStep::wait);
    CHECK(step_for(state, Version{.number = 5, .rank = 0}, by_rank) == GateStep::wait);
    CHECK(step_for(state, Version{.number = 5, .rank = 1}, by_rank) == GateStep::apply);
    CHECK(step_for(state, Version{.number = 6}, refuse) == GateStep::apply);
    CHECK(step_for(state, Version{.epoch = 1, .number = 1}, refuse) == GateStep::apply);
    state.attempting->terminal = true;  // it may have ended the run
    CHECK(step_for(state, Version{.number = 6}, refuse) == GateStep::wait);
    CHECK(step_for(state, *state.attempting, refuse) == GateStep::apply);
    CHECK(step_for(state, Version{.epoch = 1, .number = 1}, refuse) == GateStep::apply);
}

TEST_CASE("a version without a number does not make the gate forget the last one", "[versions]") {
    const State state{.applied = Version{.number = 4, .rank = 1}};
    const State after = applied(state, Version{.rank = 2});
    CHECK(after.applied == Version{.number = 4, .rank = 2});
    CHECK(judge(after, Version{.number = 3, .rank = 3}, by_rank) == VersionVerdict::older);
    CHECK(applied(state, Version{.epoch = 1, .rank = 0}).applied->number == std::nullopt);
}

/// Offers the messages in this order; checks that what is applied only rises.
[[nodiscard]] State after_all(const std::vector<Version>& messages, EqualVersions rule) {
    State state;
    for (const Version& message : messages) {
        if (step_for(state, message, rule) != GateStep::apply) continue;
        if (state.applied) CHECK(compare(message, *state.applied, rule) == VersionVerdict::newer);
        state = applied(state, message);
    }
    return state;
}

TEST_CASE("in whatever order messages come, the same one is applied last", "[versions]") {
    struct Row {
        EqualVersions rule;
        std::vector<Version> messages;
        Version last;
    };
    const Version ended{.number = 3, .rank = 2, .terminal = true};
    const std::vector<Row> rows = {
        {refuse,
         {{.number = 1}, {.number = 2}, {.number = 2}, {.number = 3}, {.number = 4}},
         {.number = 4}},
        {by_rank,
         {{.number = 1},
          {.number = 1, .rank = 1},
          {.number = 1, .rank = 2},
          {.number = 0},
          {.number = 1, .rank = 1}},
         {.number = 1, .rank = 2}},
        {by_rank,
         {{.rank = 0}, {.rank = 1}, {.rank = 1}, {.rank = 2, .terminal = true}},
         {.rank = 2, .terminal = true}},
        {refuse, {{.number = 1}, {.number = 2}, ended}, ended},
        {refuse,
         {{.number = 9},
          {.epoch = 1, .number = 1},
          {.epoch = 1, .number = 2},
          {.number = 99, .terminal = true}},
         {.epoch = 1, .number = 2}},
    };
    for (const Row& row : rows) {
        std::vector<std::size_t> order;
        for (std::size_t i = 0; i < row.messages.size(); ++i) order.push_back(i);
        do {
            std::vector<Version> messages;
            for (const auto i : order) messages.push_back(row.messages[i]);
            CHECK(after_all(messages, row.rule).applied == row.last);
        } while (std::next_permutation(order.begin(), order.end()));
    }
}

TEST_CASE("what a gate stores keeps its bytes, and damaged ones are told", "[versions][golden]") {
    const State state{.epoch = 2,
                      .applied = Version{.epoch = 2, .number = 0x0102, .rank = 3},
                      .attempting = Version{.epoch = 3, .rank = 4, .terminal = true}};
    const std::string bytes = idem::detail::encode_gate(state);
    CHECK(idem::detail::hex(bytes) ==
          "01"
          "0200000000000000"
          "03"
          "01"
          "0200000000000000"
          "0201000000000000"
          "03000000"
          "02"
          "0300000000000000"
          "0000000000000000"
          "04000000");
    CHECK(idem::detail::decode_gate<Encoder>(bytes) == state);
    CHECK(idem::detail::decode_gate<Encoder>("") == State{});
    CHECK(idem::detail::decode_gate<Encoder>(idem::detail::encode_gate(State{.epoch = 7})) ==
          State{.epoch = 7});
    for (std::size_t size = 1; size < bytes.size(); ++size)
        CHECK_FALSE(idem::detail::decode_gate<Encoder>(bytes.substr(0, size)));
    CHECK_FALSE(idem::detail::decode_gate<Encoder>(bytes + '\0'));
    for (const std::size_t at : {0U, 9U, 10U, 31U}) {
        std::string damaged = bytes;
        damaged[at] = '\x44';
        CHECK_FALSE(idem::detail::decode_gate<Encoder>(damaged));
    }
}

}  // namespace version_rule_test
