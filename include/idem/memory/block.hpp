#ifndef IDEM_MEMORY_BLOCK_HPP
#define IDEM_MEMORY_BLOCK_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <string_view>

#include <idem/record.hpp>

/// The inside of `MemoryStore`: not for direct use.
namespace idem::inline v0_1::memory {

/// The opaque bytes of a record, wherever they are.
struct Parts {
    std::string_view result{};
    std::string_view failure_code{};
    std::string_view failure_message{};
    std::string_view checkpoint{};
    std::string_view resource{};

    [[nodiscard]] std::array<std::string_view, 4> extras() const noexcept {
        return {failure_code, failure_message, checkpoint, resource};
    }
    /// What a record rarely has costs nothing where it has none.
    [[nodiscard]] std::size_t extras_size() const noexcept {
        std::size_t text = 0;
        for (const auto part : extras()) text += part.size();
        return text == 0 ? 0 : 4 * sizeof(std::uint32_t) + text;
    }
};

/// One record in one allocation: this head, then the encoded key, the fingerprint,
/// the instants that need a word of their own, the extras, and the result with room behind it.
///
/// A first acquisition begins with fence, `created` and `started` all equal: the two instants are
/// written only where they differ. No finish, renew or forget makes that part grow, so that they
/// can always be written in place, whatever memory is left.
struct Block {
    std::uint64_t fence;
    std::int64_t completed;
    std::int64_t lease_end;
    std::int64_t retention_end;
    std::array<char, 16> owner;
    std::uint32_t attempt;
    std::uint32_t crashes;
    std::uint32_t codec_tag;
    std::uint32_t result_size;
    std::uint32_t capacity;  ///< Bytes of the allocation, this head included.
    std::uint16_t max_attempts;
    std::uint16_t max_crashes;
    std::uint16_t key_size;
    std::uint8_t state_result;    ///< State, and the kind of result above it.
    std::uint8_t orphan_failure;  ///< Policy for orphans, and the class of failure above it.
    std::uint8_t flags;
    std::uint8_t words;
    std::uint8_t codec_version;

    static constexpr std::uint8_t token = 1, bound = 2, verify = 4, takeover = 8;
    static constexpr std::uint8_t created_word = 1, started_word = 2, validity_word = 4;
    static constexpr std::uint8_t never_started = 8, has_extras = 16, has_fingerprint = 32;

    [[nodiscard]] const char* bytes() const noexcept {
        return reinterpret_cast<const char*>(this) + sizeof(Block);
    }
    [[nodiscard]] char* bytes() noexcept { return reinterpret_cast<char*>(this) + sizeof(Block); }
    [[nodiscard]] std::string_view key() const noexcept { return {bytes(), key_size}; }

    [[nodiscard]] bool is(const KeyView& wanted) const noexcept;
    [[nodiscard]] RecordHeader header() const noexcept;
    [[nodiscard]] Parts parts() const noexcept;

    /// Where the extras begin, counted from `bytes`.
    [[nodiscard]] std::size_t extras_at() const noexcept { return key_size + meta_size(words); }

    /// All but the key. `record` has to fit; a part that lies in this block has to stay where it
    /// is.
    void write(const RecordHeader& record, const Parts& parts) noexcept;

    [[nodiscard]] static std::uint8_t words_of(const RecordHeader& record) noexcept;
    /// Bytes behind the key and before the extras.
    [[nodiscard]] static std::size_t meta_size(std::uint8_t words) noexcept {
        const auto has = [&](std::uint8_t word) { return (words & word) != 0 ? 1U : 0U; };
        return has(has_fingerprint) * Fingerprint::size +
               (has(created_word) + has(started_word) + has(validity_word)) * sizeof(std::int64_t);
    }
    [[nodiscard]] static std::size_t meta_size(const RecordHeader& record) noexcept {
        return meta_size(words_of(record));
    }
    [[nodiscard]] static std::size_t size_of(std::size_t key_size, const RecordHeader& record,
                                             const Parts& parts) noexcept {
        return sizeof(Block) + key_size + meta_size(record) + parts.extras_size() +
               parts.result.size();
    }
};
static_assert(sizeof(Block) == 80);

namespace detail {

[[nodiscard]] inline std::int64_t micros(Instant at) noexcept {
    return at.time_since_epoch().count();
}
[[nodiscard]] inline Instant instant(std::int64_t micros) noexcept {
    return Instant(Duration(micros));
}
[[nodiscard]] inline std::uint8_t pair(std::uint8_t low, std::uint8_t high) noexcept {
    return static_cast<std::uint8_t>(low | high << 4U);
}
[[nodiscard]] inline std::uint8_t low(std::uint8_t both) noexcept {
    return both & 15U;
}
[[nodiscard]] inline std::uint8_t high(std::uint8_t both) noexcept {
    return static_cast<std::uint8_t>(both >> 4U);
}

/// Writes one piece after the other; moves, for a piece may already be where it belongs.
class Pen {
public:
    explicit Pen(char* at) noexcept : at_(at) {}
    void put(std::string_view piece) noexcept {
        if (!piece.empty()) std::memmove(at_, piece.data(), piece.size());
        at_ += piece.size();
    }
    template <class Word>
    void word(Word value) noexcept {
        std::memcpy(at_, &value, sizeof value);
        at_ += sizeof value;
    }

private:
    char* at_;
};

template <class Word>
[[nodiscard]] Word take(const char*& at) noexcept {
    Word value;
    std::memcpy(&value, at, sizeof value);
    at += sizeof value;
    return value;
}

}  // namespace detail

[[nodiscard]] inline std::size_t encoded_size(const KeyView& key) noexcept {
    return 3 + key.scope.size() + key.tenant.size() + key.id.size();
}

/// As `encode_key` does it, without a string.
inline void write_key(const KeyView& key, char* out) noexcept {
    detail::Pen pen(out);
    pen.word(static_cast<char>(key.component));
    for (const auto part : {key.scope, key.tenant}) {
        pen.word(static_cast<char>(part.size()));
        pen.put(part);
    }
    pen.put(key.id);
}

inline bool Block::is(const KeyView& wanted) const noexcept {
    if (key_size != encoded_size(wanted)) return false;
    const char* at = bytes();
    if (*at++ != static_cast<char>(wanted.component)) return false;
    for (const auto part : {wanted.scope, wanted.tenant}) {
        if (*at++ != static_cast<char>(part.size())) return false;
        if (!part.empty() && std::memcmp(at, part.data(), part.size()) != 0) return false;
        at += part.size();
    }
    return std::memcmp(at, wanted.id.data(), wanted.id.size()) == 0;
}

inline std::uint8_t Block::words_of(const RecordHeader& record) noexcept {
    const auto differs = [&](Instant at) {
        return static_cast<std::uint64_t>(detail::micros(at)) != record.fence;
    };
    unsigned words = 0;
    if (differs(record.created)) words |= created_word;
    if (differs(record.started))
        words |= record.started == Instant{} ? never_started : started_word;
    if (record.validity_end != Instant{}) words |= validity_word;
    if (record.fingerprint.present()) words |= has_fingerprint;
    return static_cast<std::uint8_t>(words);
}

/// Every field in one initialiser: a header that is zeroed first and copied afterwards would take
/// longer than all the rest of a lookup.
inline RecordHeader Block::header() const noexcept {
    using detail::instant;
    const auto flag = [this](std::uint8_t bit) { return (flags & bit) != 0; };
    const char* at = bytes() + key_size;
    const char* const stored = at;
    if ((words & has_fingerprint) != 0) at += Fingerprint::size;
    const auto own = [&](std::uint8_t word, std::uint64_t otherwise) {
        const bool is_own = (words & word) != 0;
        return instant(is_own ? detail::take<std::int64_t>(at)
                              : static_cast<std::int64_t>(otherwise));
    };
    const Instant made = own(created_word, fence);
    const Instant begun = own(started_word, (words & never_started) != 0 ? 0 : fence);
    const Instant valid = own(validity_word, 0);
    return {.state = static_cast<State>(detail::low(state_result)),
            .token = flag(token),
            .bound = flag(bound),
            .verify = flag(verify),
            .takeover = flag(takeover),
            .policy = {static_cast<Orphan>(detail::low(orphan_failure)), max_attempts, max_crashes},
            .result = static_cast<ResultKind>(detail::high(state_result)),
            .codec = {codec_tag, codec_version},
            .failure = static_cast<FailureClass>(detail::high(orphan_failure)),
            .attempt = attempt,
            .crashes = crashes,
            .fence = fence,
            .owner = {owner},
            .fingerprint = (words & has_fingerprint) != 0
                               ? *Fingerprint::from_stored({stored, Fingerprint::size})
                               : Fingerprint{},
            .created = made,
            .started = begun,
            .completed = instant(completed),
            .lease_end = instant(lease_end),
            .retention_end = instant(retention_end),
            .validity_end = valid};
}

inline Parts Block::parts() const noexcept {
    Parts out;
    const char* at = bytes() + extras_at();
    if ((words & has_extras) != 0) {
        std::array<std::size_t, 4> sizes{};
        for (auto& size : sizes) size = detail::take<std::uint32_t>(at);
        std::size_t i = 0;
        for (auto* part :
             {&out.failure_code, &out.failure_message, &out.checkpoint, &out.resource}) {
            *part = {at, sizes[i]};
            at += sizes[i++];
        }
    }
    out.result = {at, result_size};
    return out;
}

inline void Block::write(const RecordHeader& record, const Parts& parts) noexcept {
    using detail::micros;
    const auto flag = [](bool set, std::uint8_t bit) { return set ? unsigned{bit} : 0U; };
    const bool extras = parts.extras_size() != 0;
    fence = record.fence;
    completed = micros(record.completed);
    lease_end = micros(record.lease_end);
    retention_end = micros(record.retention_end);
    owner = record.owner.bytes;
    attempt = record.attempt;
    crashes = record.crashes;
    codec_tag = record.codec.tag;
    codec_version = record.codec.version;
    result_size = static_cast<std::uint32_t>(parts.result.size());
    max_attempts = record.policy.max_attempts;
    max_crashes = record.policy.max_crashes;
    state_result = detail::pair(static_cast<std::uint8_t>(record.state),
                                static_cast<std::uint8_t>(record.result));
    orphan_failure = detail::pair(static_cast<std::uint8_t>(record.policy.orphan),
                                  static_cast<std::uint8_t>(record.failure));
    flags =
        static_cast<std::uint8_t>(flag(record.token, token) | flag(record.bound, bound) |
                                  flag(record.verify, verify) | flag(record.takeover, takeover));
    words = static_cast<std::uint8_t>(words_of(record) | flag(extras, has_extras));

    detail::Pen pen(bytes() + key_size);
    pen.put(record.fingerprint.stored());
    if ((words & created_word) != 0) pen.word(micros(record.created));
    if ((words & started_word) != 0) pen.word(micros(record.started));
    if ((words & validity_word) != 0) pen.word(micros(record.validity_end));
    if (extras) {
        for (const auto part : parts.extras()) pen.word(static_cast<std::uint32_t>(part.size()));
        for (const auto part : parts.extras()) pen.put(part);
    }
    pen.put(parts.result);
}

/// What the allocator takes for so many bytes (glibc: a word more, in steps of 16).
[[nodiscard]] constexpr std::size_t chunk_of(std::size_t size) noexcept {
    return (size + sizeof(std::size_t) + 15) / 16 * 16;
}

inline constexpr std::size_t block_size_max = std::numeric_limits<std::uint32_t>::max() - 64;

/// A block of at least so many bytes, without content; null where there is no memory.
[[nodiscard]] inline Block* make_block(std::size_t size, std::size_t key_size) noexcept {
    const std::size_t capacity = chunk_of(size) - sizeof(std::size_t);
    void* const memory = ::operator new(capacity, std::nothrow);
    if (memory == nullptr) return nullptr;
    auto* const block = ::new (memory) Block{};
    block->capacity = static_cast<std::uint32_t>(capacity);
    block->key_size = static_cast<std::uint16_t>(key_size);
    return block;
}

inline void free_block(Block* block) noexcept {
    ::operator delete(block);
}

}  // namespace idem::inline v0_1::memory

#endif
