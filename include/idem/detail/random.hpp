#ifndef IDEM_DETAIL_RANDOM_HPP
#define IDEM_DETAIL_RANDOM_HPP

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <system_error>

#include <openssl/evp.h>
#include <sys/random.h>

#include <idem/detail/fork.hpp>

namespace idem::inline v0_1::detail {

inline void system_random(unsigned char* out, std::size_t size) {
    while (size > 0) {
        const auto got = getrandom(out, size, 0);
        if (got < 0) {
            if (errno == EINTR) continue;
            throw std::system_error(errno, std::generic_category(), "getrandom");
        }
        out += got;
        size -= static_cast<std::size_t>(got);
    }
}

/// Unguessable bytes of one thread, some ten times cheaper than a system call for each owner:
/// AES-256 in counter mode, keyed by the kernel, its key replaced by its own output at every refill
/// (fast key erasure), so that bytes handed out cannot be computed from what is in memory later. A
/// forked child keys its own.
class RandomStream {
public:
    void fill(char* out, std::size_t size) {
        if (!keyed_ || !keyed_->here()) {
            system_random(buffer_.data(), key_bytes);
            keyed_.emplace();
            used_ = buffer_.size();
        }
        if (buffer_.size() - used_ < size) refill();
        std::memcpy(out, buffer_.data() + used_, size);
        std::memset(buffer_.data() + used_, 0, size);
        used_ += size;
    }

private:
    static constexpr std::size_t key_bytes = 32;

    void refill() {
        static EVP_CIPHER* const aes = EVP_CIPHER_fetch(nullptr, "AES-256-CTR", nullptr);
        if (!context_) context_.reset(EVP_CIPHER_CTX_new());
        constexpr std::array<unsigned char, 16> counter{};
        std::array<unsigned char, key_bytes> key{};
        std::memcpy(key.data(), buffer_.data(), key.size());
        buffer_.fill(0);
        int size = 0;
        const bool done =
            aes != nullptr && context_ &&
            EVP_EncryptInit_ex2(context_.get(), aes, key.data(), counter.data(), nullptr) == 1 &&
            EVP_EncryptUpdate(context_.get(), buffer_.data(), &size, buffer_.data(),
                              static_cast<int>(buffer_.size())) == 1;
        if (!done) {
            keyed_.reset();  // what is in the buffer is no key
            throw std::bad_alloc{};
        }
        used_ = key_bytes;  // the first bytes are the next key
    }

    struct Free {
        void operator()(EVP_CIPHER_CTX* c) const noexcept { EVP_CIPHER_CTX_free(c); }
    };
    std::unique_ptr<EVP_CIPHER_CTX, Free> context_{};
    std::array<unsigned char, 2048> buffer_{};
    std::size_t used_ = 0;
    std::optional<MadeIn> keyed_{};
};

/// Fills `out`, at most 1 KiB, with unguessable bytes.
[[gnu::visibility("hidden")]] inline void fill_random(char* out, std::size_t size) {
    thread_local RandomStream stream;
    stream.fill(out, size);
}

}  // namespace idem::inline v0_1::detail

#endif
