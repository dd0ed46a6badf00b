#ifndef IDEM_CODEC_JSON_HPP
#define IDEM_CODEC_JSON_HPP

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <idem/codec.hpp>
#include <idem/fingerprint.hpp>

// For users of nlohmann/json; includes nothing of it. Include both, in any order.

namespace idem::inline v0_1 {

/// `nlohmann::json`, `ordered_json`, and types that look like them.
template <class J>
concept json_value = requires(const J& json, const std::string& text) {
    { J::parse(text) } -> std::same_as<J>;
    { json.dump() } -> std::convertible_to<std::string>;
    { json.is_object() } -> std::same_as<bool>;
    { json.is_number_unsigned() } -> std::same_as<bool>;
    json.items();
};

/// How deep arrays and objects may stand in each other. Both fingerprint and codec go down by
/// recursion, the parser does not: a client's body of nothing but '[' would end the process.
inline constexpr std::size_t json_depth_max = 512;

namespace detail {

template <json_value J>
[[nodiscard]] bool nests_within(const J& json, std::size_t depth) {
    if (!json.is_object() && !json.is_array()) return true;
    if (depth == 0) return false;
    return std::all_of(json.begin(), json.end(),
                       [&](const J& value) { return nests_within(value, depth - 1); });
}

}  // namespace detail

/// Stored as JSON text. Text that is not UTF-8, or nested deeper than `json_depth_max`, does not
/// encode: `ResultKind::not_encodable`.
template <json_value J>
struct Codec<J> {
    static constexpr std::uint32_t tag = codec_tag("json");
    static constexpr std::uint8_t version = 1;
    static void encode(const J& value, std::string& out) {
        if (!detail::nests_within(value, json_depth_max))
            throw CodecError("the JSON value is nested too deep to be stored");
        out += value.dump();
    }
    static J decode(std::string_view bytes, std::uint8_t) {
        try {
            return J::parse(std::string(bytes));
        } catch (const std::exception& e) {
            throw CodecError(std::string("the stored result is not JSON: ") + e.what());
        }
    }
};

namespace detail {

template <json_value J>
void add_json(FingerprintHasher& hasher, const J& json) {
    if (json.is_object()) {
        std::vector<std::pair<std::string, const J*>> members;
        for (const auto& item : json.items()) members.emplace_back(item.key(), &item.value());
        std::sort(members.begin(), members.end(),
                  [](const auto& a, const auto& b) { return a.first < b.first; });
        hasher.field("{").field(members.size());
        for (const auto& [name, value] : members) {
            hasher.field(name);
            add_json(hasher, *value);
        }
    } else if (json.is_array()) {
        hasher.field("[").field(json.size());
        for (const auto& value : json) add_json(hasher, value);
    } else if (json.is_string()) {
        hasher.field("\"").field(json.template get<std::string>());
    } else if (json.is_boolean()) {
        hasher.field(json.template get<bool>());
    } else if (json.is_number_float()) {
        hasher.field(json.template get<double>());
    } else if (json.is_number_unsigned()) {
        hasher.field(json.template get<std::uint64_t>());
    } else if (json.is_number()) {
        const auto number = json.template get<std::int64_t>();
        if (number < 0) return void(hasher.field(number));
        hasher.field(static_cast<std::uint64_t>(number));
    } else {
        hasher.field(nullptr);
    }
}

}  // namespace detail

/// The fingerprint of what a JSON document says, however it is spelt: the order of members, white
/// space and escapes do not count. 1 and 1.0 differ, null and a missing member differ. Numbers are
/// what the parser made of them: two that fall on one double are equal; where that matters take
/// `Fingerprint::of_bytes` of the text. Never equal to a fingerprint of the raw text.
/// @throws UsageError for JSON nested deeper than `json_depth_max`: answer it as a bad request.
template <json_value J>
[[nodiscard]] Fingerprint json_fingerprint(const J& json) {
    if (!detail::nests_within(json, json_depth_max))
        throw UsageError("json_fingerprint: nested deeper than " + std::to_string(json_depth_max));
    FingerprintHasher hasher;
    detail::add_json(hasher, json);
    return hasher.finish();
}

}  // namespace idem::inline v0_1

#endif
