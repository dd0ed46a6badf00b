#ifndef IDEM_REDIS_LAYOUT_HPP
#define IDEM_REDIS_LAYOUT_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <idem/detail/bytes.hpp>
#include <idem/key.hpp>
#include <idem/record.hpp>

/// How a record lies in Redis: one string a key, which the scripts take apart at fixed places.
///
///     magic C2 | major | state | flags | orphan | result kind | failure class
///     max attempts 2 | max crashes 2 | codec tag 4 | codec version 1 | attempt 4 | crashes 4
///     fence 7 | owner 16 | created 7 | started 7 | completed 7 | lease end 7 | retention end 7
///     result length 4
///     then, as the flags say: fingerprint 33; validity end 7; the lengths (1, 2, 4, 4) and bytes
///     of failure code, failure message, checkpoint and resource; a length (2) and what a later
///     minor version added, which this one skips; last the result
///
/// Numbers are little-endian; microseconds take 7 bytes, which Lua's doubles hold exactly until
/// 2255. A string of a newer major is never replayed or overwritten.
namespace idem::inline v0_1::redis {

namespace layout {

inline constexpr unsigned char magic = 0xC2;  ///< In no UTF-8 text, so text is never a record.
inline constexpr unsigned char major = 1;
inline constexpr std::size_t fixed_bytes = 86;
/// What a script reads at first: past it Lua would pay for each byte of a result.
inline constexpr std::size_t read_bytes = 1024;

enum Flag : unsigned {
    token = 1,
    bound = 2,
    verify = 4,
    takeover = 8,
    fingerprint = 16,
    validity = 32,
    parts = 64,
    more = 128,
};

}  // namespace layout

/// A record as it was read.
struct LaidOut {
    RecordHeader header{};
    Payload payload{};
};

namespace detail {

[[nodiscard]] inline std::optional<Instant> take_instant(idem::detail::ByteReader& in) noexcept {
    const auto micros = in.fixed(7);
    if (!micros) return std::nullopt;
    return Instant(Duration(static_cast<std::int64_t>(*micros)));
}

template <class T>
[[nodiscard]] bool take(idem::detail::ByteReader& in, T& into, std::size_t width) noexcept {
    const auto value = in.fixed(width);
    if (!value) return false;
    into = static_cast<T>(*value);
    return true;
}

/// The fields at fixed places; `flags` and `result_bytes` say what comes behind them.
[[nodiscard]] inline bool take_fixed(idem::detail::ByteReader& in, RecordHeader& header,
                                     unsigned& flags, std::size_t& result_bytes) noexcept {
    const auto head = in.take(7);
    if (!head) return false;
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>((*head)[i]); };
    if (byte(0) != layout::magic || byte(1) != layout::major) return false;
    if (byte(2) < 1 || byte(2) > 7 || byte(4) > 2 || byte(5) > 4 || byte(6) > 4) return false;
    header.state = static_cast<State>(byte(2));
    flags = byte(3);
    header.token = (flags & layout::token) != 0;
    header.bound = (flags & layout::bound) != 0;
    header.verify = (flags & layout::verify) != 0;
    header.takeover = (flags & layout::takeover) != 0;
    header.policy.orphan = static_cast<Orphan>(byte(4));
    header.result = static_cast<ResultKind>(byte(5));
    header.failure = static_cast<FailureClass>(byte(6));
    if (!take(in, header.policy.max_attempts, 2) || !take(in, header.policy.max_crashes, 2) ||
        !take(in, header.codec.tag, 4) || !take(in, header.codec.version, 1) ||
        !take(in, header.attempt, 4) || !take(in, header.crashes, 4) || !take(in, header.fence, 7))
        return false;
    const auto owner = in.take(header.owner.bytes.size());
    if (!owner) return false;
    owner->copy(header.owner.bytes.data(), owner->size());
    for (Instant* at : {&header.created, &header.started, &header.completed, &header.lease_end,
                        &header.retention_end}) {
        const auto instant = take_instant(in);
        if (!instant) return false;
        *at = *instant;
    }
    return take(in, result_bytes, 4);
}

[[nodiscard]] inline bool take_parts(idem::detail::ByteReader& in, Payload& payload) {
    std::array<std::size_t, 4> sizes{};
    constexpr std::array<std::size_t, 4> widths = {1, 2, 4, 4};
    for (std::size_t i = 0; i < sizes.size(); ++i)
        if (!take(in, sizes[i], widths[i])) return false;
    const std::array<std::string*, 4> into = {&payload.failure_code, &payload.failure_message,
                                              &payload.checkpoint, &payload.resource};
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        const auto bytes = in.take(sizes[i]);
        if (!bytes) return false;
        *into[i] = *bytes;
    }
    return true;
}

}  // namespace detail

/// The fields at fixed places alone, of a record whose rest was not sent.
[[nodiscard]] inline std::optional<RecordHeader> read_fixed(std::string_view bytes) noexcept {
    idem::detail::ByteReader in(bytes);
    RecordHeader header;
    unsigned flags = 0;
    std::size_t result_bytes = 0;
    if (!detail::take_fixed(in, header, flags, result_bytes)) return std::nullopt;
    return header;
}

/// A whole record; nothing for what is none: of another length than it says, of a newer major,
/// or never a record.
[[nodiscard]] inline std::optional<LaidOut> read_record(std::string_view bytes) {
    idem::detail::ByteReader in(bytes);
    LaidOut out;
    unsigned flags = 0;
    std::size_t result_bytes = 0;
    if (!detail::take_fixed(in, out.header, flags, result_bytes)) return std::nullopt;
    if ((flags & layout::fingerprint) != 0) {
        const auto print = Fingerprint::from_stored(in.take(Fingerprint::size).value_or("-"));
        if (!print) return std::nullopt;
        out.header.fingerprint = *print;
    }
    if ((flags & layout::validity) != 0) {
        const auto end = detail::take_instant(in);
        if (!end) return std::nullopt;
        out.header.validity_end = *end;
    }
    if ((flags & layout::parts) != 0 && !detail::take_parts(in, out.payload)) return std::nullopt;
    if ((flags & layout::more) != 0) {
        std::size_t size = 0;
        if (!detail::take(in, size, 2) || !in.take(size)) return std::nullopt;
    }
    if (in.rest().size() != result_bytes) return std::nullopt;
    out.payload.result = in.rest();
    return out;
}

/// What read_record would not take: is it of a newer version?
[[nodiscard]] inline bool is_newer(std::string_view bytes) noexcept {
    return bytes.size() >= 2 && static_cast<unsigned char>(bytes[0]) == layout::magic &&
           static_cast<unsigned char>(bytes[1]) > layout::major;
}
[[nodiscard]] inline const char* trouble_with(std::string_view bytes) noexcept {
    return is_newer(bytes) ? "the record was written by a newer version of the library"
                           : "the bytes under this key are no record";
}

/// prefix{tag}key: the tag, three letters from the key's hash, is what Redis Cluster chooses the
/// slot by. Braces in a user's text come behind it and choose nothing. Part of the stored format.
[[nodiscard]] inline std::string name_of(std::string_view prefix, const KeyView& key) {
    static constexpr char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    const std::size_t tag_at = prefix.size() + 1;
    std::string out;
    out.reserve(prefix.size() + 8 + key.scope.size() + key.tenant.size() + key.id.size());
    out += prefix;
    out += "{---}";
    encode_key(key, out);
    std::uint32_t hash = 2166136261U;  // FNV-1a
    for (const char c : std::string_view(out).substr(tag_at + 4))
        hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
    hash ^= hash >> 18U;
    for (std::size_t i = 0; i < 3; ++i, hash >>= 6U) out[tag_at + i] = letters[hash & 63U];
    return out;
}

/// The key that `name_of` wrote; it refers into `name`.
[[nodiscard]] inline std::optional<KeyView> key_of(std::string_view prefix,
                                                   std::string_view name) noexcept {
    if (!name.starts_with(prefix) || name.size() < prefix.size() + 5) return std::nullopt;
    name.remove_prefix(prefix.size());
    if (name[0] != '{' || name[4] != '}') return std::nullopt;
    return decode_key(name.substr(5));
}

}  // namespace idem::inline v0_1::redis

#endif
