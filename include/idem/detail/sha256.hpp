#ifndef IDEM_DETAIL_SHA256_HPP
#define IDEM_DETAIL_SHA256_HPP

#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

namespace idem::inline v0_1::detail {

using Digest = std::array<std::byte, 32>;

[[nodiscard]] inline unsigned char* raw(Digest& digest) noexcept {
    return reinterpret_cast<unsigned char*>(digest.data());
}

/// Fetched once: OpenSSL 3 looks an algorithm up by name at every implicit fetch, which costs more
/// than hashing a small request. Never freed, so that it outlives every static destructor.
[[nodiscard]] inline const EVP_MD* sha256_md() {
    static EVP_MD* const md = EVP_MD_fetch(nullptr, "SHA256", nullptr);
    if (md == nullptr) throw std::bad_alloc{};
    return md;
}

/// A running SHA-256. Not for use by two threads at once.
class Sha256 {
public:
    Sha256() : context_(EVP_MD_CTX_new()) {
        if (!context_) throw std::bad_alloc{};
        reset();
    }

    void reset() {
        if (EVP_DigestInit_ex2(context_.get(), sha256_md(), nullptr) != 1) throw std::bad_alloc{};
    }
    void update(std::string_view bytes) {
        if (EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) != 1)
            throw std::bad_alloc{};
    }
    [[nodiscard]] Digest finish() {
        Digest out;
        if (EVP_DigestFinal_ex(context_.get(), raw(out), nullptr) != 1) throw std::bad_alloc{};
        return out;
    }

private:
    struct Free {
        void operator()(EVP_MD_CTX* c) const noexcept { EVP_MD_CTX_free(c); }
    };
    std::unique_ptr<EVP_MD_CTX, Free> context_;
};

/// This thread's context, lent out for one message: to make one costs more than hashing a small
/// request. A field that hashes while it is read finds it out, and gets one of its own.
class LentSha256 {
public:
    LentSha256() {
        if (hash_)
            hash_->reset();
        else
            hash_.emplace();
    }
    ~LentSha256() { kept() = std::move(hash_); }
    LentSha256(const LentSha256&) = delete;
    LentSha256& operator=(const LentSha256&) = delete;

    [[nodiscard]] Sha256& operator*() noexcept { return *hash_; }
    [[nodiscard]] Sha256* operator->() noexcept { return &*hash_; }

private:
    [[nodiscard]] static std::optional<Sha256>& kept() noexcept {
        thread_local std::optional<Sha256> hash;
        return hash;
    }

    std::optional<Sha256> hash_ = std::exchange(kept(), std::nullopt);
};

[[nodiscard]] inline Digest sha256(std::string_view bytes) {
    LentSha256 hash;
    hash->update(bytes);
    return hash->finish();
}

/// SHA-1 (RFC 3174): the name by which Redis knows a script. It protects nothing.
[[nodiscard]] inline std::array<std::byte, 20> sha1(std::string_view bytes) {
    std::array<std::byte, 20> out{};
    if (EVP_Q_digest(nullptr, "SHA1", nullptr, bytes.data(), bytes.size(),
                     reinterpret_cast<unsigned char*>(out.data()), nullptr) != 1)
        throw std::bad_alloc{};
    return out;
}

/// A running HMAC-SHA-256 (RFC 2104).
class HmacSha256 {
public:
    explicit HmacSha256(std::string_view secret) {
        static EVP_MAC* const hmac = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
        if (hmac == nullptr) throw std::bad_alloc{};
        context_.reset(EVP_MAC_CTX_new(hmac));
        char digest[] = "SHA256";
        OSSL_PARAM const params[] = {
            OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
            OSSL_PARAM_construct_end()};
        const auto* key = reinterpret_cast<const unsigned char*>(secret.data());
        if (!context_ || EVP_MAC_init(context_.get(), key, secret.size(), params) != 1)
            throw std::bad_alloc{};
    }

    void update(std::string_view bytes) {
        const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
        if (EVP_MAC_update(context_.get(), data, bytes.size()) != 1) throw std::bad_alloc{};
    }
    [[nodiscard]] Digest finish() {
        Digest out;
        std::size_t size = 0;
        if (EVP_MAC_final(context_.get(), raw(out), &size, out.size()) != 1) throw std::bad_alloc{};
        return out;
    }

private:
    struct Free {
        void operator()(EVP_MAC_CTX* c) const noexcept { EVP_MAC_CTX_free(c); }
    };
    std::unique_ptr<EVP_MAC_CTX, Free> context_{};
};

template <std::size_t N>
[[nodiscard]] std::string_view as_text(const std::array<std::byte, N>& digest) noexcept {
    return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace idem::inline v0_1::detail

#endif
