#ifndef IDEM_DETAIL_BYTES_HPP
#define IDEM_DETAIL_BYTES_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace idem::inline v0_1::detail {

/// Appends `value` in `width` bytes, least significant first.
inline void put_fixed(std::string& out, std::uint64_t value, std::size_t width) {
    for (std::size_t i = 0; i < width; ++i, value >>= 8U) out += static_cast<char>(value & 0xFFU);
}

/// Appends `value` in 7-bit groups, least significant first (LEB128).
inline void put_varint(std::string& out, std::uint64_t value) {
    for (; value >= 0x80U; value >>= 7U) out += static_cast<char>((value & 0x7FU) | 0x80U);
    out += static_cast<char>(value);
}

/// Appends a length and the bytes.
inline void put_bytes(std::string& out, std::string_view bytes) {
    put_varint(out, bytes.size());
    out += bytes;
}

/// Reads what the functions above wrote. Every step answers nothing at the end of the input, so
/// that truncated bytes can never be read past their end.
class ByteReader {
public:
    explicit ByteReader(std::string_view bytes) noexcept : rest_(bytes) {}

    [[nodiscard]] bool at_end() const noexcept { return rest_.empty(); }
    [[nodiscard]] std::string_view rest() const noexcept { return rest_; }

    [[nodiscard]] std::optional<std::string_view> take(std::size_t count) noexcept {
        if (count > rest_.size()) return std::nullopt;
        const auto taken = rest_.substr(0, count);
        rest_.remove_prefix(count);
        return taken;
    }
    [[nodiscard]] std::optional<std::uint64_t> fixed(std::size_t width) noexcept {
        const auto bytes = take(width);
        if (!bytes) return std::nullopt;
        std::uint64_t value = 0;
        for (std::size_t i = width; i-- > 0;)
            value = value << 8U | static_cast<unsigned char>((*bytes)[i]);
        return value;
    }
    [[nodiscard]] std::optional<std::uint64_t> varint() noexcept {
        std::uint64_t value = 0;
        for (unsigned shift = 0; shift < 64; shift += 7) {
            const auto byte = fixed(1);
            if (!byte) return std::nullopt;
            if (shift == 63 && *byte > 1) return std::nullopt;  // would not fit 64 bits
            value |= (*byte & 0x7FU) << shift;
            if (*byte < 0x80U) return value;
        }
        return std::nullopt;
    }
    [[nodiscard]] std::optional<std::string_view> bytes() noexcept {
        const auto size = varint();
        if (!size || *size > rest_.size()) return std::nullopt;
        return take(static_cast<std::size_t>(*size));
    }

private:
    std::string_view rest_;
};

[[nodiscard]] inline std::string hex(std::string_view bytes) {
    static constexpr char digits[] = "0123456789abcdef";
    std::string out;
    out.reserve(bytes.size() * 2);
    for (char c : bytes) {
        const auto byte = static_cast<unsigned char>(c);
        out += digits[byte >> 4U];
        out += digits[byte & 15U];
    }
    return out;
}

/// The bytes of an even number of lower-case hex digits; nothing for any other text.
[[nodiscard]] inline std::optional<std::string> unhex(std::string_view text) {
    if (text.size() % 2 != 0) return std::nullopt;
    const auto digit = [](char c) -> int {
        if (c >= '0' && c <= '9') return c - '0';
        if (c >= 'a' && c <= 'f') return c - 'a' + 10;
        return -1;
    };
    std::string out;
    for (std::size_t i = 0; i < text.size(); i += 2) {
        const int high = digit(text[i]);
        const int low = digit(text[i + 1]);
        if (high < 0 || low < 0) return std::nullopt;
        out += static_cast<char>(high * 16 + low);
    }
    return out;
}

}  // namespace idem::inline v0_1::detail

#endif
