#ifndef IDEM_DETAIL_HTTP_TEXT_HPP
#define IDEM_DETAIL_HTTP_TEXT_HPP

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace idem::inline v0_1::detail {

[[nodiscard]] constexpr bool is_digit(char c) noexcept {
    return c >= '0' && c <= '9';
}

/// Whatever the locale is; `std::isalpha` asks it.
[[nodiscard]] constexpr bool is_alpha(char c) noexcept {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

[[nodiscard]] constexpr char to_lower(char c) noexcept {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

/// Names of header fields are compared so (RFC 9110 section 5.1).
[[nodiscard]] inline bool equal_ignoring_case(std::string_view a, std::string_view b) noexcept {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](char x, char y) { return to_lower(x) == to_lower(y); });
}

/// White space around a field value, and around the members of a list, is no part of it
/// (RFC 9110 sections 5.5 and 5.6.1).
[[nodiscard]] inline std::string_view without_outer_space(std::string_view text) noexcept {
    const auto first = text.find_first_not_of(" \t");
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// A token: what a field name must be (RFC 9110 sections 5.1 and 5.6.2).
[[nodiscard]] inline bool is_token(std::string_view text) noexcept {
    static constexpr std::string_view marks = "!#$%&'*+-.^_`|~";
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
        return is_alpha(c) || is_digit(c) || marks.find(c) != std::string_view::npos;
    });
}

/// Can be sent as one field value: no CR, LF, NUL or other control but a tab (RFC 9110
/// section 5.5). With a line break it would start a header, or a response, of its own.
[[nodiscard]] inline bool is_field_value(std::string_view text) noexcept {
    return std::all_of(text.begin(), text.end(), [](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return c == '\t' || (byte >= 0x20U && byte != 0x7FU);
    });
}

/// `text` with every byte that no URI may hold as %XX (RFC 3986 section 2); what is one already
/// stays as it is. Safe in a header and between the angle brackets of a Link.
[[nodiscard]] inline std::string uri_text(std::string_view text) {
    static constexpr std::string_view marks = "-._~:/?#[]@!$&'()*+,;=%";
    static constexpr char digits[] = "0123456789ABCDEF";
    std::string out;
    out.reserve(text.size());
    for (char c : text) {
        if (is_alpha(c) || is_digit(c) || marks.find(c) != std::string_view::npos) {
            out += c;
            continue;
        }
        const auto byte = static_cast<unsigned char>(c);
        out += '%';
        out += digits[byte >> 4U];
        out += digits[byte & 15U];
    }
    return out;
}

/// A moment as RFC 3339 section 5.6 has it, in UTC: 2026-01-02T03:04:05.000006Z. Empty for zero
/// ("not yet") and for years that its four digits cannot hold.
[[nodiscard]] inline std::string rfc3339(std::chrono::sys_time<std::chrono::microseconds> moment) {
    using std::chrono::sys_days;
    using std::chrono::year;
    // Days 0000-01-01 and 9999-12-31: beyond them the calendar arithmetic may overflow.
    constexpr auto first = sys_days{year{0} / 1 / 1};
    constexpr auto last = sys_days{year{9999} / 12 / 31};
    const auto day = std::chrono::floor<std::chrono::days>(moment);
    if (moment == decltype(moment){} || day < first || day > last) return {};
    const std::chrono::year_month_day date(day);
    const std::chrono::hh_mm_ss time(moment - day);
    const auto padded = [](std::int64_t value, std::size_t width) {
        const std::string text = std::to_string(value);
        return text.size() < width ? std::string(width - text.size(), '0') + text : text;
    };
    return padded(static_cast<int>(date.year()), 4) + '-' +
           padded(static_cast<unsigned>(date.month()), 2) + '-' +
           padded(static_cast<unsigned>(date.day()), 2) + 'T' + padded(time.hours().count(), 2) +
           ':' + padded(time.minutes().count(), 2) + ':' + padded(time.seconds().count(), 2) + '.' +
           padded(time.subseconds().count(), 6) + 'Z';
}

}  // namespace idem::inline v0_1::detail

#endif
