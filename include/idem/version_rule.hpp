#ifndef IDEM_VERSION_RULE_HPP
#define IDEM_VERSION_RULE_HPP

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <idem/detail/bytes.hpp>

/// Which of two versions of one stream is the later one, and what a gate makes of it. Pure: no I/O,
/// no clock. Never the order of arrival.
namespace idem::inline v0_1 {

/// Who numbers versions: a type of the user's own that names itself, `struct Transcoder { static
/// constexpr std::string_view name = "transcoder"; };`. The name is part of the stored key.
template <class S>
concept version_source = requires {
    { S::name } -> std::convertible_to<std::string_view>;
};

/// What a source says of one state of a stream. Versions of two sources are two types: their
/// numbers count by two clocks, and nothing here compares them.
template <version_source Source>
struct Version {
    /// The run: the second transcode of an asset comes after all of the first, whatever its
    /// numbers.
    std::uint64_t epoch = 0;
    /// Grows within a run. Without one the rank alone decides.
    std::optional<std::uint64_t> number{};
    /// Of the state, where numbers are equal or missing: queued 0, processing 1, succeeded 2.
    std::uint32_t rank = 0;
    /// Absorbs: once applied, nothing else of its run is.
    bool terminal = false;

    friend bool operator==(const Version&, const Version&) = default;
};

/// What to do with a version whose number has been applied already.
enum class EqualVersions : std::uint8_t {
    refuse,       ///< It is the same message again. Every version must have a number.
    higher_rank,  ///< It is applied where its rank is higher.
};

enum class VersionVerdict : std::uint8_t {
    newer,
    same,      ///< Applied already.
    older,     ///< Below what was applied, or of an older run.
    absorbed,  ///< The run has ended.
};

[[nodiscard]] constexpr const char* to_string(VersionVerdict verdict) noexcept {
    switch (verdict) {
        case VersionVerdict::newer: return "newer";
        case VersionVerdict::same: return "same";
        case VersionVerdict::older: return "older";
        case VersionVerdict::absorbed: return "absorbed";
    }
    return "invalid";
}

/// How `offered` stands to one that came before it.
template <version_source Source>
[[nodiscard]] constexpr VersionVerdict compare(const Version<Source>& offered,
                                               const Version<Source>& before,
                                               EqualVersions rule) noexcept {
    if (offered.epoch != before.epoch)
        return offered.epoch > before.epoch ? VersionVerdict::newer : VersionVerdict::older;
    const bool numbered = offered.number && before.number;
    const bool equal = !numbered || *offered.number == *before.number;
    if (before.terminal)
        return equal && offered.rank == before.rank ? VersionVerdict::same
                                                    : VersionVerdict::absorbed;
    if (!equal)
        return *offered.number > *before.number ? VersionVerdict::newer : VersionVerdict::older;
    if (rule == EqualVersions::refuse || offered.rank == before.rank) return VersionVerdict::same;
    return offered.rank > before.rank ? VersionVerdict::newer : VersionVerdict::older;
}

/// What a gate remembers of a stream.
template <version_source Source>
struct GateState {
    std::uint64_t epoch = 0;  ///< The current run; what is of an older one is stale.
    std::optional<Version<Source>> applied{};
    /// Somebody began with it, and vanished: it may be half done.
    std::optional<Version<Source>> attempting{};

    friend bool operator==(const GateState&, const GateState&) = default;
};

enum class GateStep : std::uint8_t {
    apply,
    stale,
    wait,  ///< It is below one that may be half done, and must not land after it.
};

template <version_source Source>
[[nodiscard]] constexpr VersionVerdict judge(const GateState<Source>& state,
                                             const Version<Source>& offered,
                                             EqualVersions rule) noexcept {
    if (offered.epoch < state.epoch) return VersionVerdict::older;
    if (!state.applied) return VersionVerdict::newer;
    return compare(offered, *state.applied, rule);
}

template <version_source Source>
[[nodiscard]] constexpr GateStep step_for(const GateState<Source>& state,
                                          const Version<Source>& offered,
                                          EqualVersions rule) noexcept {
    if (judge(state, offered, rule) != VersionVerdict::newer) return GateStep::stale;
    if (!state.attempting) return GateStep::apply;
    const VersionVerdict reached = compare(offered, *state.attempting, rule);
    const bool settles = reached == VersionVerdict::newer || reached == VersionVerdict::same;
    return settles ? GateStep::apply : GateStep::wait;
}

/// After `version` was applied. One without a number does not make the gate forget the last.
template <version_source Source>
[[nodiscard]] constexpr GateState<Source> applied(const GateState<Source>& state,
                                                  Version<Source> version) noexcept {
    const bool same_run = state.applied && state.applied->epoch == version.epoch;
    if (!version.number && same_run) version.number = state.applied->number;
    return {version.epoch, version, std::nullopt};
}

namespace detail {

template <version_source Source>
void put_version(std::string& out, const Version<Source>& version) {
    put_fixed(out, (version.number ? 1U : 0U) | (version.terminal ? 2U : 0U), 1);
    put_fixed(out, version.epoch, 8);
    put_fixed(out, version.number.value_or(0), 8);
    put_fixed(out, version.rank, 4);
}

template <version_source Source>
[[nodiscard]] std::optional<Version<Source>> take_version(ByteReader& in) {
    const auto flags = in.fixed(1);
    const auto epoch = in.fixed(8);
    const auto number = in.fixed(8);
    const auto rank = in.fixed(4);
    if (!flags || !epoch || !number || !rank || *flags > 3) return std::nullopt;
    Version<Source> out{.epoch = *epoch, .rank = static_cast<std::uint32_t>(*rank)};
    if ((*flags & 1U) != 0) out.number = *number;
    out.terminal = (*flags & 2U) != 0;
    return out;
}

/// The checkpoint of a gate's record. Part of the stored format, pinned by golden tests.
template <version_source Source>
[[nodiscard]] std::string encode_gate(const GateState<Source>& state) {
    std::string out(1, '\1');
    put_fixed(out, state.epoch, 8);
    put_fixed(out, (state.applied ? 1U : 0U) | (state.attempting ? 2U : 0U), 1);
    if (state.applied) put_version(out, *state.applied);
    if (state.attempting) put_version(out, *state.attempting);
    return out;
}

/// Nothing for bytes that `encode_gate` cannot have written; none at all are a gate's beginning.
template <version_source Source>
[[nodiscard]] std::optional<GateState<Source>> decode_gate(std::string_view bytes) {
    GateState<Source> out;
    if (bytes.empty()) return out;
    ByteReader in(bytes);
    const auto format = in.fixed(1);
    const auto epoch = in.fixed(8);
    const auto parts = in.fixed(1);
    if (!format || !epoch || !parts || *format != 1 || *parts > 3) return std::nullopt;
    out.epoch = *epoch;
    if ((*parts & 1U) != 0 && !(out.applied = take_version<Source>(in))) return std::nullopt;
    if ((*parts & 2U) != 0 && !(out.attempting = take_version<Source>(in))) return std::nullopt;
    return in.at_end() ? std::optional(out) : std::nullopt;
}

}  // namespace detail

}  // namespace idem::inline v0_1

#endif
