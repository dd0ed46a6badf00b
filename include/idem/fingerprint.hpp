#ifndef IDEM_FINGERPRINT_HPP
#define IDEM_FINGERPRINT_HPP

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

#include <idem/detail/canonical.hpp>
#include <idem/detail/sha256.hpp>
#include <idem/error.hpp>

namespace idem::inline v0_1 {

/// What the request under a key was: 32 bytes of digest behind one byte that says how they came
/// about. Default-constructed: none, and none conflicts with nothing.
/// Fingerprints of two algorithms are never equal, so an upgrade cannot make a false match.
class Fingerprint {
public:
    /// Stored values; a new way of hashing gets a new one.
    enum class Algorithm : std::uint8_t {
        none = 0,
        sha256_bytes = 1,
        sha256_fields = 2,
        hmac_sha256_bytes = 3,
        hmac_sha256_fields = 4,
    };
    static constexpr std::size_t size = 33;

    Fingerprint() = default;

    /// SHA-256 of the bytes as they are. Two spellings of one JSON document differ.
    [[nodiscard]] static Fingerprint of_bytes(std::string_view request) {
        return {Algorithm::sha256_bytes, detail::sha256(request)};
    }

    /// SHA-256 of typed, length-prefixed fields; the rules are those of `content_key`.
    template <class... Fields>
    [[nodiscard]] static Fingerprint of(const Fields&... fields) {
        static_assert(sizeof...(Fields) > 0, "idem: a fingerprint needs at least one field");
        detail::LentSha256 hash;
        detail::CanonicalSink sink(*hash);
        (detail::put_canonical(sink, fields), ...);
        sink.flush();
        return {Algorithm::sha256_fields, hash->finish()};
    }

    /// SHA-256 of a file of any size, read as a stream in constant memory. Equal to `of_bytes` of
    /// its content. @throws std::filesystem::filesystem_error where it cannot be read to its end.
    [[nodiscard]] static Fingerprint of_file(const std::filesystem::path& path);

    /// The stored form: empty for none, else 33 bytes.
    [[nodiscard]] std::string_view stored() const noexcept {
        return present() ? std::string_view(raw_.data(), raw_.size()) : std::string_view();
    }
    /// Nothing for bytes that no version so far wrote, but for the algorithm byte, which may be
    /// newer: such a fingerprint equals only itself.
    [[nodiscard]] static std::optional<Fingerprint> from_stored(std::string_view bytes) noexcept {
        if (bytes.empty()) return Fingerprint{};
        if (bytes.size() != size || bytes.front() == 0) return std::nullopt;
        Fingerprint out;
        std::memcpy(out.raw_.data(), bytes.data(), size);
        return out;
    }

    [[nodiscard]] bool present() const noexcept { return raw_[0] != 0; }
    [[nodiscard]] Algorithm algorithm() const noexcept {
        return static_cast<Algorithm>(static_cast<unsigned char>(raw_[0]));
    }
    [[nodiscard]] std::string_view digest() const noexcept { return {raw_.data() + 1, size - 1}; }
    friend bool operator==(const Fingerprint&, const Fingerprint&) = default;

private:
    friend class FingerprintHasher;

    Fingerprint(Algorithm algorithm, const detail::Digest& digest) noexcept {
        raw_[0] = static_cast<char>(algorithm);
        std::memcpy(raw_.data() + 1, digest.data(), digest.size());
    }

    std::array<char, size> raw_{};
};

/// Fingerprints a request piece by piece: a stream, or fields met one after the other.
/// With a secret it computes HMAC-SHA-256, so that who reads the store cannot guess small requests.
/// One object is for one thread at a time.
class FingerprintHasher {
public:
    FingerprintHasher() = default;

    /// @throws UsageError for a secret of fewer than 16 bytes.
    [[nodiscard]] static FingerprintHasher keyed(std::string_view secret) {
        if (secret.size() < 16) throw UsageError("FingerprintHasher: a secret needs 16 bytes");
        FingerprintHasher out;
        out.hash_.emplace<detail::HmacSha256>(secret);
        return out;
    }

    /// Adds raw bytes. Pieces join: how a stream was cut does not matter.
    /// @throws UsageError after `field`.
    FingerprintHasher& bytes(std::string_view piece) {
        enter(Mode::bytes);
        std::visit([&](auto& hash) { hash.update(piece); }, hash_);
        return *this;
    }

    /// Adds one typed field. @throws UsageError after `bytes`.
    template <class Field>
    FingerprintHasher& field(const Field& value) {
        enter(Mode::fields);
        std::visit(
            [&](auto& hash) {
                detail::CanonicalSink sink(hash);
                detail::put_canonical(sink, value);
                sink.flush();
            },
            hash_);
        return *this;
    }

    /// The fingerprint of all that was added; the hasher is spent.
    [[nodiscard]] Fingerprint finish() {
        using Algorithm = Fingerprint::Algorithm;
        const bool keyed = std::holds_alternative<detail::HmacSha256>(hash_);
        const bool fields = mode_ == Mode::fields;
        enter(Mode::spent);
        const auto digest = std::visit([](auto& hash) { return hash.finish(); }, hash_);
        if (keyed)
            return {fields ? Algorithm::hmac_sha256_fields : Algorithm::hmac_sha256_bytes, digest};
        return {fields ? Algorithm::sha256_fields : Algorithm::sha256_bytes, digest};
    }

private:
    enum class Mode : std::uint8_t { fresh, bytes, fields, spent };

    void enter(Mode next) {
        const bool joins = mode_ == Mode::fresh || mode_ == next || next == Mode::spent;
        if (mode_ == Mode::spent || !joins)
            throw UsageError("FingerprintHasher: bytes and fields do not mix, and finish ends it");
        mode_ = next;
    }

    std::variant<detail::Sha256, detail::HmacSha256> hash_{};
    Mode mode_ = Mode::fresh;
};

inline Fingerprint Fingerprint::of_file(const std::filesystem::path& path) {
    const auto fail = [&](int error) -> Fingerprint {
        throw std::filesystem::filesystem_error("idem: cannot fingerprint", path,
                                                std::error_code(error, std::generic_category()));
    };
    struct Close {
        void operator()(std::FILE* f) const noexcept { std::fclose(f); }
    };
    const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "rb"));
    if (!file) return fail(errno);
    FingerprintHasher hasher;
    std::string buffer(std::size_t{256} * 1024, '\0');
    for (;;) {
        const auto count = std::fread(buffer.data(), 1, buffer.size(), file.get());
        if (count > 0) hasher.bytes({buffer.data(), count});
        if (count == buffer.size()) continue;
        if (std::ferror(file.get()) != 0) return fail(errno != 0 ? errno : EIO);
        break;
    }
    hasher.bytes({});  // an empty file is the fingerprint of no bytes, not of no fields
    return hasher.finish();
}

}  // namespace idem::inline v0_1

#endif
