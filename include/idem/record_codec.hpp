#ifndef IDEM_RECORD_CODEC_HPP
#define IDEM_RECORD_CODEC_HPP

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include <idem/detail/bytes.hpp>
#include <idem/record.hpp>

namespace idem::inline v0_1 {

/// The stored form of a whole record, for stores that keep one as bytes.
///
///     magic C1 | major | minor | state | flags | orphan | result kind | failure class
///     fields, by ascending tag: tag byte, length as varint, bytes
///     check: FNV-1a of all before, 32 bits, least significant byte first
///
/// Numbers are little-endian without leading zeros; a field that is zero or empty is left out.
/// Upgrade rule: within a major format readers skip flags and fields they do not know, so records
/// of the minor versions before and after are read and written. What would make an older reader
/// act wrongly gets a new major, and a record of a newer major is never replayed or overwritten.
namespace record_format {

inline constexpr unsigned char magic = 0xC1;  ///< In no UTF-8 text, so text is never a record.
inline constexpr unsigned char major = 1;
inline constexpr unsigned char minor = 0;

enum class Tag : unsigned char {
    max_attempts = 1,
    max_crashes = 2,
    codec_tag = 3,
    codec_version = 4,
    attempt = 5,
    crashes = 6,
    fence = 7,
    owner = 8,
    fingerprint = 9,
    created = 10,
    started = 11,
    completed = 12,
    lease_end = 13,
    retention_end = 14,
    validity_end = 15,
    result = 16,
    failure_code = 17,
    failure_message = 18,
    checkpoint = 19,
    resource = 20,
};

enum Flag : unsigned char { token = 1, bound = 2, verify = 4, takeover = 8 };

[[nodiscard]] constexpr std::uint32_t check_of(std::string_view bytes) noexcept {
    std::uint32_t hash = 2166136261U;
    for (char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
    return hash;
}

}  // namespace record_format

/// What bytes under a key turned out to be. Anything but `record` is schema trouble.
struct DecodedRecord {
    enum class Kind : std::uint8_t {
        record,
        garbage,  ///< Truncated, damaged, or never a record.
        newer,    ///< Of a major format this version does not know.
    };

    Kind kind = Kind::garbage;
    RecordHeader header{};
    Payload payload{};

    [[nodiscard]] explicit operator bool() const noexcept { return kind == Kind::record; }
    [[nodiscard]] const char* trouble() const noexcept {
        return kind == Kind::newer ? "the record was written by a newer version of the library"
                                   : "the bytes under this key are no record";
    }
};

namespace detail {

class RecordWriter {
public:
    using Tag = record_format::Tag;

    explicit RecordWriter(std::string& out) noexcept : out_(out) {}

    void bytes(Tag tag, std::string_view value) {
        if (value.empty()) return;
        out_ += static_cast<char>(tag);
        put_bytes(out_, value);
    }
    void number(Tag tag, std::uint64_t value) {
        if (value == 0) return;
        std::size_t width = 1;
        while (width < 8 && (value >> (8 * width)) != 0) ++width;
        out_ += static_cast<char>(tag);
        put_varint(out_, width);
        put_fixed(out_, value, width);
    }
    void instant(Tag tag, Instant value) {
        number(tag, static_cast<std::uint64_t>(value.time_since_epoch().count()));
    }

private:
    std::string& out_;
};

template <class T>
[[nodiscard]] bool read_number(std::string_view bytes, T& into) noexcept {
    if (bytes.size() > 8) return false;
    const auto value = ByteReader(bytes).fixed(bytes.size()).value_or(0);
    if constexpr (std::is_unsigned_v<T>) {
        if (value > std::numeric_limits<T>::max()) return false;
    }
    into = static_cast<T>(value);
    return true;
}

[[nodiscard]] inline bool read_instant(std::string_view bytes, Instant& into) noexcept {
    std::int64_t micros = 0;
    if (!read_number(bytes, micros)) return false;
    into = Instant(Duration(micros));
    return true;
}

[[nodiscard]] inline bool read_field(record_format::Tag tag, std::string_view bytes,
                                     RecordHeader& header, Payload& payload) {
    using Tag = record_format::Tag;
    const auto text = [&](std::string& into) { return into = bytes, true; };
    switch (tag) {
        case Tag::max_attempts: return read_number(bytes, header.policy.max_attempts);
        case Tag::max_crashes: return read_number(bytes, header.policy.max_crashes);
        case Tag::codec_tag: return read_number(bytes, header.codec.tag);
        case Tag::codec_version: return read_number(bytes, header.codec.version);
        case Tag::attempt: return read_number(bytes, header.attempt);
        case Tag::crashes: return read_number(bytes, header.crashes);
        case Tag::fence: return read_number(bytes, header.fence);
        case Tag::owner:
            if (bytes.size() != header.owner.bytes.size()) return false;
            bytes.copy(header.owner.bytes.data(), bytes.size());
            return true;
        case Tag::fingerprint: {
            const auto print = Fingerprint::from_stored(bytes);
            if (!print) return false;
            header.fingerprint = *print;
            return true;
        }
        case Tag::created: return read_instant(bytes, header.created);
        case Tag::started: return read_instant(bytes, header.started);
        case Tag::completed: return read_instant(bytes, header.completed);
        case Tag::lease_end: return read_instant(bytes, header.lease_end);
        case Tag::retention_end: return read_instant(bytes, header.retention_end);
        case Tag::validity_end: return read_instant(bytes, header.validity_end);
        case Tag::result: return text(payload.result);
        case Tag::failure_code: return text(payload.failure_code);
        case Tag::failure_message: return text(payload.failure_message);
        case Tag::checkpoint: return text(payload.checkpoint);
        case Tag::resource: return text(payload.resource);
    }
    return true;  // an optional field of a later minor version
}

/// State, flags, orphan, result kind and failure class: one byte each, always there.
[[nodiscard]] inline bool read_head(ByteReader& in, RecordHeader& header) noexcept {
    const auto head = in.take(5);
    if (!head) return false;
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>((*head)[i]); };
    if (byte(0) < 1 || byte(0) > 7 || byte(2) > 2 || byte(3) > 4 || byte(4) > 4) return false;
    header.state = static_cast<State>(byte(0));
    header.token = (byte(1) & record_format::token) != 0;
    header.bound = (byte(1) & record_format::bound) != 0;
    header.verify = (byte(1) & record_format::verify) != 0;
    header.takeover = (byte(1) & record_format::takeover) != 0;
    header.policy.orphan = static_cast<Orphan>(byte(2));
    header.result = static_cast<ResultKind>(byte(3));
    header.failure = static_cast<FailureClass>(byte(4));
    return true;
}

}  // namespace detail

[[nodiscard]] inline std::string encode_record(const RecordHeader& header, const Payload& payload) {
    using Tag = record_format::Tag;
    const auto flag = [](bool set, record_format::Flag bit) { return set ? unsigned{bit} : 0U; };
    std::string out;
    out.reserve(160 + payload.result.size() + payload.failure_code.size() +
                payload.failure_message.size() + payload.checkpoint.size() +
                payload.resource.size());
    for (const unsigned byte :
         {unsigned{record_format::magic}, unsigned{record_format::major},
          unsigned{record_format::minor}, static_cast<unsigned>(header.state),
          flag(header.token, record_format::token) | flag(header.bound, record_format::bound) |
              flag(header.verify, record_format::verify) |
              flag(header.takeover, record_format::takeover),
          static_cast<unsigned>(header.policy.orphan), static_cast<unsigned>(header.result),
          static_cast<unsigned>(header.failure)})
        out += static_cast<char>(byte);
    detail::RecordWriter fields(out);
    fields.number(Tag::max_attempts, header.policy.max_attempts);
    fields.number(Tag::max_crashes, header.policy.max_crashes);
    fields.number(Tag::codec_tag, header.codec.tag);
    fields.number(Tag::codec_version, header.codec.version);
    fields.number(Tag::attempt, header.attempt);
    fields.number(Tag::crashes, header.crashes);
    fields.number(Tag::fence, header.fence);
    if (header.owner.present()) fields.bytes(Tag::owner, header.owner.stored());
    fields.bytes(Tag::fingerprint, header.fingerprint.stored());
    fields.instant(Tag::created, header.created);
    fields.instant(Tag::started, header.started);
    fields.instant(Tag::completed, header.completed);
    fields.instant(Tag::lease_end, header.lease_end);
    fields.instant(Tag::retention_end, header.retention_end);
    fields.instant(Tag::validity_end, header.validity_end);
    fields.bytes(Tag::result, payload.result);
    fields.bytes(Tag::failure_code, payload.failure_code);
    fields.bytes(Tag::failure_message, payload.failure_message);
    fields.bytes(Tag::checkpoint, payload.checkpoint);
    fields.bytes(Tag::resource, payload.resource);
    detail::put_fixed(out, record_format::check_of(out), 4);
    return out;
}

/// Reads what any version of this major format wrote. Never throws but for memory, never reads
/// past the end, and takes no damaged bytes for a record.
[[nodiscard]] inline DecodedRecord decode_record(std::string_view bytes) {
    using Kind = DecodedRecord::Kind;
    DecodedRecord out;
    detail::ByteReader start(bytes);
    const auto magic = start.fixed(1);
    const auto major = start.fixed(1);
    if (!magic || !major || *magic != record_format::magic || *major == 0) return out;
    if (*major > record_format::major) {
        out.kind = Kind::newer;
        return out;
    }
    if (bytes.size() < 12) return out;
    const auto body = bytes.substr(0, bytes.size() - 4);
    if (detail::ByteReader(bytes.substr(body.size())).fixed(4) != record_format::check_of(body))
        return out;
    detail::ByteReader in(body.substr(3));
    if (!detail::read_head(in, out.header)) return out;
    std::uint64_t last = 0;
    while (!in.at_end()) {
        const auto tag = in.fixed(1);
        const auto field = in.bytes();
        if (!tag || !field || *tag <= last) return out;
        last = *tag;
        if (!detail::read_field(static_cast<record_format::Tag>(*tag), *field, out.header,
                                out.payload))
            return out;
    }
    out.kind = Kind::record;
    return out;
}

}  // namespace idem::inline v0_1

#endif
