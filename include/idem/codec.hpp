#ifndef IDEM_CODEC_HPP
#define IDEM_CODEC_HPP

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <idem/detail/bytes.hpp>
#include <idem/error.hpp>
#include <idem/record.hpp>

namespace idem::inline v0_1 {

/// The tag of a codec, from a name written by hand (FNV-1a, 32 bits). Never `typeid`: names of two
/// compilers differ, and a stored result outlives the build that wrote it.
[[nodiscard]] constexpr std::uint32_t codec_tag(std::string_view name) noexcept {
    std::uint32_t hash = 2166136261U;
    for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
    return hash;
}

/// How a result of type `T` becomes bytes. Specialise it for a type of your own:
///
///     template <> struct idem::Codec<Receipt> {
///         static constexpr std::uint32_t tag = idem::codec_tag("shop.Receipt");
///         static constexpr std::uint8_t version = 1;
///         static void encode(const Receipt& receipt, std::string& out);
///         static Receipt decode(std::string_view bytes, std::uint8_t version);
///     };
///
/// `encode` appends; `decode` gets the version that wrote the bytes and throws `CodecError` where
/// it cannot read them. Built in: text, bytes (`std::vector<std::byte>`), arithmetic types, enums,
/// optional, pair, tuple, vector, and aggregates that name their members:
///
///     struct Job { std::string id; int width; static constexpr auto idem_fields =
///         std::tuple{&Job::id, &Job::width}; };
///
/// Two aggregates whose members are of equal types, and two enums of one underlying type, read as
/// each other. An `idem_name` ("shop.Job") keeps an aggregate apart, and lets members be added at
/// the end of `idem_fields`: older bytes leave them defaulted. Without it that is another type.
template <class T>
struct Codec {};

/// A type that can be stored as a result. References and views cannot: what they refer to is gone
/// when the answer is replayed.
template <class T>
concept codable = requires(const T& value, std::string& out, std::string_view bytes) {
    { Codec<T>::tag } -> std::convertible_to<std::uint32_t>;
    { Codec<T>::version } -> std::convertible_to<std::uint8_t>;
    Codec<T>::encode(value, out);
    { Codec<T>::decode(bytes, std::uint8_t{}) } -> std::convertible_to<T>;
};

template <class T>
[[nodiscard]] constexpr CodecId codec_id() noexcept {
    return {Codec<T>::tag, Codec<T>::version};
}

/// The value that was stored. @throws CodecError where another codec wrote it, or a newer version.
template <codable T>
[[nodiscard]] T decode_result(CodecId id, std::string_view bytes) {
    if (id.tag != Codec<T>::tag)
        throw CodecError("the stored result is of another type than the one asked for");
    if (id.version > Codec<T>::version)
        throw CodecError("the stored result was written by a newer version of its codec");
    return Codec<T>::decode(bytes, id.version);
}

namespace detail {

inline constexpr std::uint32_t mix_tags(std::uint32_t a, std::uint32_t b) noexcept {
    return (a ^ (b + 0x9E3779B9U + (a << 6U) + (a >> 2U))) * 16777619U;
}

[[noreturn]] inline void throw_truncated() {
    throw CodecError("the stored result is truncated or not of this type");
}

template <class T>
[[nodiscard]] T or_truncated(std::optional<T> value) {
    if (!value) throw_truncated();
    return *std::move(value);
}

inline void expect_end(const ByteReader& in) {
    if (!in.at_end()) throw CodecError("the stored result has bytes left over");
}

/// A part of a larger value: version, length, bytes, so that each codec reads only its own.
template <codable T>
void put_part(const T& value, std::string& out) {
    out += static_cast<char>(Codec<T>::version);
    std::string bytes;
    Codec<T>::encode(value, bytes);
    put_bytes(out, bytes);
}

template <codable T>
[[nodiscard]] T get_part(ByteReader& in) {
    const auto version = static_cast<std::uint8_t>(or_truncated(in.fixed(1)));
    if (version > Codec<T>::version)
        throw CodecError("a part of the stored result was written by a newer version");
    return Codec<T>::decode(or_truncated(in.bytes()), version);
}

template <class T>
concept named_aggregate = requires {
    T::idem_fields;
};

}  // namespace detail

template <>
struct Codec<std::string> {
    static constexpr std::uint32_t tag = codec_tag("text");
    static constexpr std::uint8_t version = 1;
    static void encode(const std::string& value, std::string& out) { out += value; }
    static std::string decode(std::string_view bytes, std::uint8_t) { return std::string(bytes); }
};

template <>
struct Codec<std::vector<std::byte>> {
    static constexpr std::uint32_t tag = codec_tag("bytes");
    static constexpr std::uint8_t version = 1;
    static void encode(const std::vector<std::byte>& value, std::string& out) {
        out.append(reinterpret_cast<const char*>(value.data()), value.size());
    }
    static std::vector<std::byte> decode(std::string_view bytes, std::uint8_t) {
        const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
        return {data, data + bytes.size()};
    }
};

template <>
struct Codec<std::monostate> {
    static constexpr std::uint32_t tag = codec_tag("void");
    static constexpr std::uint8_t version = 1;
    static void encode(const std::monostate&, std::string&) {}
    static std::monostate decode(std::string_view bytes, std::uint8_t) {
        detail::expect_end(detail::ByteReader(bytes));
        return {};
    }
};

/// Integers of one width and signedness share a tag with each other and with no one else.
template <class T>
requires(std::integral<T> || std::floating_point<T>) && (sizeof(T) <= 8) struct Codec<T> {
    static constexpr std::uint32_t tag =
        detail::mix_tags(codec_tag(std::same_as<T, bool>     ? "bool"
                                   : std::floating_point<T>  ? "float"
                                   : std::signed_integral<T> ? "signed"
                                                             : "unsigned"),
                         sizeof(T));
    static constexpr std::uint8_t version = 1;
    static void encode(const T& value, std::string& out) {
        if constexpr (std::floating_point<T>) {
            using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
            detail::put_fixed(out, std::bit_cast<Bits>(value), sizeof(T));
        } else {
            detail::put_fixed(out, static_cast<std::uint64_t>(value), sizeof(T));
        }
    }
    static T decode(std::string_view bytes, std::uint8_t) {
        detail::ByteReader in(bytes);
        const auto bits = detail::or_truncated(in.fixed(sizeof(T)));
        detail::expect_end(in);
        if constexpr (std::floating_point<T>) {
            using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
            return std::bit_cast<T>(static_cast<Bits>(bits));
        } else {
            return static_cast<T>(bits);
        }
    }
};

template <class T>
requires std::is_enum_v<T>
struct Codec<T> {
    using Number = Codec<std::underlying_type_t<T>>;
    static constexpr std::uint32_t tag = detail::mix_tags(codec_tag("enum"), Number::tag);
    static constexpr std::uint8_t version = 1;
    static void encode(const T& value, std::string& out) {
        Number::encode(static_cast<std::underlying_type_t<T>>(value), out);
    }
    static T decode(std::string_view bytes, std::uint8_t v) {
        return static_cast<T>(Number::decode(bytes, v));
    }
};

template <codable T>
struct Codec<std::optional<T>> {
    static constexpr std::uint32_t tag = detail::mix_tags(codec_tag("optional"), Codec<T>::tag);
    static constexpr std::uint8_t version = 1;
    static void encode(const std::optional<T>& value, std::string& out) {
        if (value) detail::put_part(*value, out);
    }
    static std::optional<T> decode(std::string_view bytes, std::uint8_t) {
        if (bytes.empty()) return std::nullopt;
        detail::ByteReader in(bytes);
        std::optional<T> out(detail::get_part<T>(in));
        detail::expect_end(in);
        return out;
    }
};

template <codable T>
struct Codec<std::vector<T>> {
    static constexpr std::uint32_t tag = detail::mix_tags(codec_tag("vector"), Codec<T>::tag);
    static constexpr std::uint8_t version = 1;
    static void encode(const std::vector<T>& value, std::string& out) {
        for (const T& item : value) detail::put_part<T>(item, out);
    }
    static std::vector<T> decode(std::string_view bytes, std::uint8_t) {
        std::vector<T> out;
        detail::ByteReader in(bytes);
        while (!in.at_end()) out.push_back(detail::get_part<T>(in));
        return out;
    }
};

template <codable... T>
struct Codec<std::tuple<T...>> {
    static constexpr std::uint32_t tag = [] {
        std::uint32_t mixed = codec_tag("tuple");
        ((mixed = detail::mix_tags(mixed, Codec<T>::tag)), ...);
        return mixed;
    }();
    static constexpr std::uint8_t version = 1;
    static void encode(const std::tuple<T...>& value, std::string& out) {
        std::apply([&](const T&... parts) { (detail::put_part(parts, out), ...); }, value);
    }
    static std::tuple<T...> decode(std::string_view bytes, std::uint8_t) {
        detail::ByteReader in(bytes);
        std::tuple<T...> out{detail::get_part<T>(in)...};  // braces: first to last
        detail::expect_end(in);
        return out;
    }
};

template <codable A, codable B>
struct Codec<std::pair<A, B>> {
    using Tuple = Codec<std::tuple<A, B>>;
    static constexpr std::uint32_t tag = detail::mix_tags(codec_tag("pair"), Tuple::tag);
    static constexpr std::uint8_t version = 1;
    static void encode(const std::pair<A, B>& value, std::string& out) {
        detail::put_part(value.first, out);
        detail::put_part(value.second, out);
    }
    static std::pair<A, B> decode(std::string_view bytes, std::uint8_t v) {
        auto [a, b] = Tuple::decode(bytes, v);
        return {std::move(a), std::move(b)};
    }
};

template <detail::named_aggregate T>
struct Codec<T> {
    template <class M>
    struct Member;
    template <class C, class M>
    struct Member<M C::*> {
        using Type = M;
    };
    template <class P>
    using MemberType = typename Member<std::remove_cvref_t<P>>::Type;

    static constexpr std::uint32_t tag = [] {
        if constexpr (requires { T::idem_name; }) return codec_tag(T::idem_name);
        std::uint32_t mixed = codec_tag("aggregate");
        std::apply(
            [&](auto... members) {
                ((mixed = detail::mix_tags(mixed, Codec<MemberType<decltype(members)>>::tag)), ...);
            },
            T::idem_fields);
        return mixed;
    }();
    static constexpr std::uint8_t version = 1;
    static void encode(const T& value, std::string& out) {
        std::apply([&](auto... members) { (detail::put_part(value.*members, out), ...); },
                   T::idem_fields);
    }
    static T decode(std::string_view bytes, std::uint8_t) {
        T out{};
        detail::ByteReader in(bytes);
        const auto read = [&](auto member) {
            if (in.at_end()) return;  // written before this member was added
            out.*member = detail::get_part<MemberType<decltype(member)>>(in);
        };
        std::apply([&](auto... members) { (read(members), ...); }, T::idem_fields);
        detail::expect_end(in);
        return out;
    }
};

}  // namespace idem::inline v0_1

#endif
