#ifndef IDEM_DETAIL_CANONICAL_HPP
#define IDEM_DETAIL_CANONICAL_HPP

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <ranges>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace idem::inline v0_1::detail {

/// The one-byte kinds of the canonical encoding. Pinned by golden tests: a changed value would turn
/// every key and fingerprint in every store into another one.
enum class CanonicalKind : unsigned char {
    null = 'n',
    boolean = 'b',
    signed_integer = 'i',
    unsigned_integer = 'u',
    floating = 'f',
    text = 't',
    bytes = 'y',
    list = 'l',
};

template <class T>
concept text_like = std::convertible_to<const T&, std::string_view>;
template <class T>
concept byte_range = std::ranges::contiguous_range<const T> &&
    std::same_as<std::remove_cvref_t<std::ranges::range_reference_t<const T>>, std::byte>;
template <class T>
inline constexpr bool is_optional_v = false;
template <class T>
inline constexpr bool is_optional_v<std::optional<T>> = true;
/// Has a value that is written as null.
template <class T>
inline constexpr bool is_nullable_v = is_optional_v<T> || std::same_as<T, std::nullptr_t>;
template <class T>
inline constexpr bool is_char_array_v =
    std::is_bounded_array_v<T> && std::same_as<std::remove_extent_t<T>, char>;
template <class T>
concept tuple_like = requires {
    std::tuple_size<T>::value;
}
&&!std::ranges::range<T>;
template <class T>
concept unordered = requires {
    typename T::hasher;
};  // equal ones may iterate differently
template <class T>
inline constexpr bool no_canonical_form = false;

/// Collects small writes, so that a field costs a copy and not a call into the hash.
template <class Hash>
class CanonicalSink {
public:
    explicit CanonicalSink(Hash& hash) noexcept : hash_(hash) {}

    void write(std::string_view bytes) {
        if (bytes.size() > buffer_.size() - used_) flush();
        if (bytes.size() > buffer_.size()) return hash_.update(bytes);
        std::memcpy(buffer_.data() + used_, bytes.data(), bytes.size());
        used_ += bytes.size();
    }
    void flush() {
        if (used_ > 0) hash_.update({buffer_.data(), used_});
        used_ = 0;
    }

    /// Kind, length as 8 bytes, content: ("ab","c") and ("a","bc") can never meet.
    void put(CanonicalKind kind, std::string_view content) {
        head(kind, content.size());
        write(content);
    }
    void put_number(CanonicalKind kind, std::uint64_t value) {
        std::array<char, 9> out{static_cast<char>(kind)};
        for (std::size_t i = 1; i < 9; ++i, value >>= 8U) out[i] = static_cast<char>(value & 0xFFU);
        write({out.data(), out.size()});
    }
    void head(CanonicalKind kind, std::size_t count) { put_number(kind, count); }

private:
    Hash& hash_;
    std::array<char, 256> buffer_;
    std::size_t used_ = 0;
};

template <class Sink, class T>
void put_canonical(Sink& sink, const T& value) {
    using Kind = CanonicalKind;
    if constexpr (std::same_as<T, bool>) {
        sink.put_number(Kind::boolean, value ? 1 : 0);
    } else if constexpr (std::same_as<T, std::nullopt_t> || std::same_as<T, std::nullptr_t>) {
        sink.put_number(Kind::null, 0);
    } else if constexpr (std::is_enum_v<T>) {
        put_canonical(sink, static_cast<std::underlying_type_t<T>>(value));
    } else if constexpr (std::same_as<T, char>) {
        put_canonical(sink, static_cast<signed char>(value));  // whatever the platform's char is
    } else if constexpr (std::signed_integral<T> && sizeof(T) <= 8) {
        sink.put_number(Kind::signed_integer,
                        static_cast<std::uint64_t>(static_cast<std::int64_t>(value)));
    } else if constexpr (std::unsigned_integral<T> && sizeof(T) <= 8) {
        sink.put_number(Kind::unsigned_integer, value);
    } else if constexpr (std::same_as<T, double> || std::same_as<T, float>) {
        double number = static_cast<double>(value);
        if (number == 0.0) number = 0.0;  // -0.0 and 0.0 are the same number
        constexpr std::uint64_t nan = 0x7FF8'0000'0000'0000U;
        sink.put_number(Kind::floating,
                        number != number ? nan : std::bit_cast<std::uint64_t>(number));
    } else if constexpr (is_char_array_v<T>) {
        // A buffer may hold less than it has room for, or have no room left for the NUL.
        const std::string_view whole(value, std::extent_v<T>);
        sink.put(Kind::text, whole.substr(0, whole.find('\0')));
    } else if constexpr (text_like<T>) {
        sink.put(Kind::text, std::string_view(value));
    } else if constexpr (byte_range<T>) {
        sink.put(Kind::bytes, {reinterpret_cast<const char*>(std::ranges::data(value)),
                               std::ranges::size(value)});
    } else if constexpr (is_optional_v<T>) {
        if (!value) return put_canonical(sink, std::nullopt);
        if constexpr (is_nullable_v<typename T::value_type>) sink.head(Kind::list, 1);
        put_canonical(sink, *value);
    } else if constexpr (std::ranges::sized_range<const T> && !unordered<T>) {
        sink.head(Kind::list, std::ranges::size(value));
        for (const auto& item : value) put_canonical(sink, item);
    } else if constexpr (tuple_like<T>) {
        sink.head(Kind::list, std::tuple_size_v<T>);
        std::apply([&](const auto&... items) { (put_canonical(sink, items), ...); }, value);
    } else {
        static_assert(no_canonical_form<T>,
                      "idem: this type has no canonical form. Fields are bool, integers, enums, "
                      "float, double, text, ranges of std::byte, and optionals, tuples and ordered "
                      "ranges of these.");
    }
}

}  // namespace idem::inline v0_1::detail

#endif
