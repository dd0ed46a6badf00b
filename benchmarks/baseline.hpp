#ifndef IDEM_BENCHMARKS_BASELINE_HPP
#define IDEM_BENCHMARKS_BASELINE_HPP

// What a careful engineer would write without the library: it remembers results, and checks
// nothing. Every ratio of the report is against one of these.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include <openssl/evp.h>
#include <openssl/sha.h>

namespace bench {

/// 64 shards of std::unordered_map behind a std::mutex each. No owner, no fence, no expiry.
class ShardedMap {
public:
    struct Entry {
        std::uint8_t state = 0;
        std::array<char, 32> fingerprint{};
        std::string result{};
    };

    explicit ShardedMap(std::size_t reserve = 0) {
        for (auto& shard : shards_) shard.map.reserve(reserve / shards_.size());
    }

    /// True where the key was not there.
    bool insert(const std::string& key) {
        Shard& shard = of(key);
        const std::lock_guard lock(shard.mutex);
        return shard.map.try_emplace(key).second;
    }
    void update(const std::string& key, std::string_view result) {
        Shard& shard = of(key);
        const std::lock_guard lock(shard.mutex);
        Entry& entry = shard.map.find(key)->second;
        entry.state = 1;
        entry.result = result;
    }
    /// Empty where there is none.
    [[nodiscard]] std::string find(const std::string& key) {
        Shard& shard = of(key);
        const std::lock_guard lock(shard.mutex);
        const auto at = shard.map.find(key);
        return at == shard.map.end() ? std::string() : at->second.result;
    }

private:
    struct alignas(128) Shard {
        std::mutex mutex{};
        std::unordered_map<std::string, Entry> map{};
    };

    [[nodiscard]] Shard& of(const std::string& key) {
        return shards_[std::hash<std::string>{}(key) >> 58U];
    }

    std::array<Shard, 64> shards_{};
};

/// SHA-256 as fast as OpenSSL 3 does it: the context kept, the algorithm fetched once.
[[nodiscard]] inline std::array<unsigned char, 32> sha256_reused(std::string_view bytes) {
    static EVP_MD* const md = EVP_MD_fetch(nullptr, "SHA256", nullptr);
    thread_local EVP_MD_CTX* const context = EVP_MD_CTX_new();
    std::array<unsigned char, 32> out{};
    EVP_DigestInit_ex2(context, md, nullptr);
    EVP_DigestUpdate(context, bytes.data(), bytes.size());
    EVP_DigestFinal_ex(context, out.data(), nullptr);
    return out;
}

/// SHA-256 as most programs call it.
[[nodiscard]] inline std::array<unsigned char, 32> sha256_plain(std::string_view bytes) {
    std::array<unsigned char, 32> out{};
    SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), out.data());
    return out;
}

}  // namespace bench

#endif
