#ifndef IDEM_DETAIL_JSON_HPP
#define IDEM_DETAIL_JSON_HPP

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace idem::inline v0_1::detail {

/// Length of the well-formed UTF-8 sequence that `text` starts with; 0 where there is none.
/// The ranges are those of RFC 3629 section 4: no overlong forms, no surrogates, nothing above
/// U+10FFFF. `text` is not empty.
[[nodiscard]] inline std::size_t utf8_sequence(std::string_view text) noexcept {
    const auto byte = [&](std::size_t i) -> unsigned {
        return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
    };
    const auto tail = [&](std::size_t i) { return byte(i) >= 0x80U && byte(i) <= 0xBFU; };
    const unsigned lead = byte(0);
    if (lead < 0x80U) return 1;
    if (lead >= 0xC2U && lead <= 0xDFU) return tail(1) ? 2 : 0;
    if (lead >= 0xE0U && lead <= 0xEFU) {
        const unsigned low = lead == 0xE0U ? 0xA0U : 0x80U;
        const unsigned high = lead == 0xEDU ? 0x9FU : 0xBFU;
        return byte(1) >= low && byte(1) <= high && tail(2) ? 3 : 0;
    }
    if (lead >= 0xF0U && lead <= 0xF4U) {
        const unsigned low = lead == 0xF0U ? 0x90U : 0x80U;
        const unsigned high = lead == 0xF4U ? 0x8FU : 0xBFU;
        return byte(1) >= low && byte(1) <= high && tail(2) && tail(3) ? 4 : 0;
    }
    return 0;
}

/// Appends `text` as a JSON string with its quotes (RFC 8259 section 7). Any bytes may come in:
/// controls are escaped, and each byte that is not UTF-8 becomes U+FFFD.
inline void put_json_string(std::string& out, std::string_view text) {
    static constexpr char digits[] = "0123456789abcdef";
    out += '"';
    while (!text.empty()) {
        const auto first = static_cast<unsigned char>(text.front());
        const std::size_t length = utf8_sequence(text);
        if (length == 0) {
            out += "\xEF\xBF\xBD";
        } else if (first == '"' || first == '\\') {
            out += '\\';
            out += text.front();
        } else if (first < 0x20U || first == 0x7FU) {
            out += "\\u00";
            out += digits[first >> 4U];
            out += digits[first & 15U];
        } else {
            out += text.substr(0, length);
        }
        text.remove_prefix(length == 0 ? 1 : length);
    }
    out += '"';
}

/// Writes one JSON object, member by member, in the order given. Names are not checked for
/// repetition.
class JsonObject {
public:
    JsonObject& text(std::string_view name, std::string_view value) {
        put_json_string(member(name), value);
        return *this;
    }
    /// As `text`, where there is something to say.
    JsonObject& text_unless_empty(std::string_view name, std::string_view value) {
        return value.empty() ? *this : text(name, value);
    }
    JsonObject& number(std::string_view name, std::int64_t value) {
        member(name) += std::to_string(value);
        return *this;
    }
    JsonObject& boolean(std::string_view name, bool value) {
        member(name) += value ? "true" : "false";
        return *this;
    }
    JsonObject& object(std::string_view name, JsonObject value) {
        member(name) += std::move(value).finish();
        return *this;
    }
    [[nodiscard]] std::string finish() && {
        out_ += '}';
        return std::move(out_);
    }

private:
    std::string& member(std::string_view name) {
        if (out_.size() > 1) out_ += ',';
        put_json_string(out_, name);
        out_ += ':';
        return out_;
    }

    std::string out_ = "{";
};

}  // namespace idem::inline v0_1::detail

#endif
