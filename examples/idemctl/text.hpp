#ifndef IDEMCTL_TEXT_HPP
#define IDEMCTL_TEXT_HPP

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <idem/clock.hpp>
#include <idem/detail/json.hpp>
#include <idem/detail/url.hpp>

namespace idemctl {

// --- bytes as text ------------------------------------------------------------------------------

/// What may follow each other on a terminal: one character as it is, or one escaped byte.
struct Piece {
    std::string text{};
    std::size_t bytes = 1;    ///< Of the source.
    std::size_t columns = 1;  ///< On a terminal.
};

[[nodiscard]] inline char32_t code_point(std::string_view sequence) noexcept {
    const auto lead = static_cast<unsigned char>(sequence[0]);
    char32_t out = sequence.size() == 1   ? lead
                   : sequence.size() == 2 ? lead & 0x1FU
                   : sequence.size() == 3 ? lead & 0x0FU
                                          : lead & 0x07U;
    for (const char c : sequence.substr(1)) out = out << 6U | (static_cast<unsigned char>(c) & 63U);
    return out;
}

/// Controls, what turns the direction of writing, and what cannot be seen.
[[nodiscard]] inline bool deceives(char32_t c) noexcept {
    const auto within = [c](char32_t from, char32_t to) { return c >= from && c <= to; };
    return c < 0x20 || within(0x7F, 0x9F) || c == 0xAD || c == 0x61C || within(0x200B, 0x200F) ||
           within(0x2028, 0x202E) || within(0x2060, 0x206F) || c == 0xFEFF ||
           within(0xFFF0, 0xFFFB) || within(0xE0000, 0xE0FFF);
}
/// Roughly, as terminals count; exact for everything that keys are usually made of.
[[nodiscard]] inline std::size_t columns_of(char32_t c) noexcept {
    const auto within = [c](char32_t from, char32_t to) { return c >= from && c <= to; };
    if (within(0x300, 0x36F) || within(0xFE00, 0xFE0F)) return 0;
    const bool wide = within(0x1100, 0x115F) || within(0x2E80, 0xA4CF) || within(0xAC00, 0xD7A3) ||
                      within(0xF900, 0xFAFF) || within(0xFE30, 0xFE6F) || within(0xFF00, 0xFF60) ||
                      within(0xFFE0, 0xFFE6) || within(0x1F300, 0x1FAFF) ||
                      within(0x20000, 0x3FFFD);
    return wide ? 2 : 1;
}

[[nodiscard]] inline std::string hex_byte(char c) {
    static constexpr char digits[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    return {'\\', 'x', digits[byte >> 4U], digits[byte & 15U]};
}

/// The first piece of `rest`, which is not empty.
[[nodiscard]] inline Piece next_piece(std::string_view rest, bool at_edge) {
    const char c = rest[0];
    const auto escaped = [](std::string text) {
        const std::size_t columns = text.size();
        return Piece{std::move(text), 1, columns};
    };
    if (c == '\\') return escaped("\\\\");
    if (c == '\n') return escaped("\\n");
    if (c == '\t') return escaped("\\t");
    if (c == '\r') return escaped("\\r");
    if (c == ' ' && at_edge) return escaped("\\x20");  // or nobody sees that it is there
    const std::size_t length = idem::detail::utf8_sequence(rest);
    if (length == 0) return escaped(hex_byte(c));
    const std::string_view sequence = rest.substr(0, length);
    const char32_t point = code_point(sequence);
    if (!deceives(point)) return {std::string(sequence), length, columns_of(point)};
    std::string text;
    for (const char byte : sequence) text += hex_byte(byte);
    return {text, length, text.size()};
}

/// Any bytes as one line of UTF-8 that a terminal shows as it is: everything else as \n, \t, \r,
/// \\ and \xHH. Injective, and `unescape` is its inverse. What needs more than `columns` is cut
/// and ends in an ellipsis.
[[nodiscard]] inline std::string escape(std::string_view bytes,
                                        std::size_t columns = std::string::npos) {
    std::string out;
    std::size_t used = 0;
    std::size_t kept = 0;  // as much of `out` as leaves room for an ellipsis
    for (std::size_t at = 0; at < bytes.size();) {
        Piece piece = next_piece(bytes.substr(at), at == 0 || at + 1 == bytes.size());
        at += piece.bytes;
        used += piece.columns;
        if (used > columns) return out.substr(0, kept) + "\u2026";
        out += piece.text;
        if (used < columns) kept = out.size();
    }
    return out;
}

/// The columns of what `escape` wrote.
[[nodiscard]] inline std::size_t width(std::string_view text) {
    std::size_t out = 0;
    while (!text.empty()) {
        const std::size_t length = idem::detail::utf8_sequence(text);
        out += length == 0 ? 1 : columns_of(code_point(text.substr(0, length)));
        text.remove_prefix(length == 0 ? 1 : length);
    }
    return out;
}

/// Nothing for a backslash that is followed by something else than `escape` writes.
[[nodiscard]] inline std::optional<std::string> unescape(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '\\') {
            out += text[i];
            continue;
        }
        const char kind = ++i < text.size() ? text[i] : '\0';
        if (kind == '\\') {
            out += '\\';
        } else if (kind == 'n') {
            out += '\n';
        } else if (kind == 't') {
            out += '\t';
        } else if (kind == 'r') {
            out += '\r';
        } else {
            if (kind != 'x' || i + 2 >= text.size()) return std::nullopt;
            const int high = idem::detail::hex_digit(text[i + 1]);
            const int low = idem::detail::hex_digit(text[i + 2]);
            if (high < 0 || low < 0) return std::nullopt;
            out += static_cast<char>(high * 16 + low);
            i += 2;
        }
    }
    return out;
}

// --- times --------------------------------------------------------------------------------------

/// This machine's wall clock: for ages that people read. The store's own clock decides.
[[nodiscard]] inline idem::Instant wall_clock() {
    return std::chrono::floor<idem::Duration>(std::chrono::system_clock::now());
}

/// RFC 3339 in UTC, to the millisecond; nothing for "not yet".
[[nodiscard]] inline std::string rfc3339(idem::Instant at) {
    if (at == idem::Instant{}) return {};
    const auto millis = std::chrono::floor<std::chrono::milliseconds>(at);
    const auto seconds = std::chrono::floor<std::chrono::seconds>(millis);
    const std::time_t whole = std::chrono::system_clock::to_time_t(seconds);
    std::tm parts{};
    if (::gmtime_r(&whole, &parts) == nullptr) return {};
    std::array<char, 64> text{};
    const std::size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S.", &parts);
    const std::string rest = std::to_string(1000 + (millis - seconds).count()).substr(1);
    return std::string(text.data(), size) + rest + "Z";
}

/// Its two largest units: "3d 04h", "2m 10s", "120ms". What is negative is nothing.
[[nodiscard]] inline std::string in_words(idem::Duration length) {
    const std::int64_t millis =
        std::max<std::int64_t>(0, std::chrono::floor<std::chrono::milliseconds>(length).count());
    if (millis < 1000) return std::to_string(millis) + "ms";
    const std::int64_t seconds = millis / 1000;
    const auto pair = [](std::int64_t large, const char* unit, std::int64_t small,
                         const char* smaller) {
        return std::to_string(large) + unit + " " + (small < 10 ? "0" : "") +
               std::to_string(small) + smaller;
    };
    if (seconds < 60) return std::to_string(seconds) + "s";
    if (seconds < 3600) return pair(seconds / 60, "m", seconds % 60, "s");
    if (seconds < 86'400) return pair(seconds / 3600, "h", seconds / 60 % 60, "m");
    return pair(seconds / 86'400, "d", seconds / 3600 % 24, "h");
}

/// A whole number and its unit: 500ms, 30s, 10m, 24h, 7d.
[[nodiscard]] inline std::optional<idem::Duration> duration_of(std::string_view text) {
    std::int64_t number = 0;
    const char* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, number);
    const std::string_view unit(at, static_cast<std::size_t>(end - at));
    const std::int64_t micros = unit == "ms"  ? 1'000
                                : unit == "s" ? 1'000'000
                                : unit == "m" ? 60'000'000
                                : unit == "h" ? 3'600'000'000
                                : unit == "d" ? 86'400'000'000
                                              : 0;
    if (error != std::errc{} || micros == 0 || number <= 0) return std::nullopt;
    if (number > idem::duration_max.count() / micros) return std::nullopt;
    return idem::Duration(number * micros);
}

/// "1 record", "2 records".
[[nodiscard]] inline std::string counted(std::size_t number, const std::string& what) {
    return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}

}  // namespace idemctl

#endif
