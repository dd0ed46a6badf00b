#ifndef IDEM_DETAIL_HASH_HPP
#define IDEM_DETAIL_HASH_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string_view>

namespace idem::inline v0_1::detail {

/// A hash for tables in memory, seeded with random bits: ids are text of strangers, who could
/// otherwise send keys that all fall into one place. Multiply-and-fold, as wyhash does it.
/// Never stored, and different in every object.
class SeededHash {
public:
    SeededHash() {
        std::random_device random;
        const auto word = [&] { return std::uint64_t{random()} << 32U | random(); };
        seed_ = word();
        secret_ = word();
    }

    /// Starts with something short, for example the lengths of the parts that follow.
    [[nodiscard]] std::uint64_t begin(std::uint64_t head) const noexcept {
        return fold(seed_ ^ head, secret_);
    }

    /// Takes in one part. Two parts do not join by themselves: `begin` with their lengths.
    [[nodiscard]] std::uint64_t add(std::uint64_t state, std::string_view part) const noexcept {
        const char* at = part.data();
        std::size_t left = part.size();
        for (; left > 16; left -= 16, at += 16) {
            state = fold(read<std::uint64_t>(at) ^ secret_, read<std::uint64_t>(at + 8) ^ state);
        }
        std::uint64_t a = 0;
        std::uint64_t b = 0;
        if (left >= 8) {
            a = read<std::uint64_t>(at);
            b = read<std::uint64_t>(at + left - 8);
        } else if (left >= 4) {
            a = read<std::uint32_t>(at);
            b = read<std::uint32_t>(at + left - 4);
        } else {
            for (std::size_t i = 0; i < left; ++i) a = a << 8U | static_cast<unsigned char>(at[i]);
        }
        return fold(a ^ secret_, b ^ state);
    }

    [[nodiscard]] std::uint64_t end(std::uint64_t state) const noexcept {
        return fold(state ^ secret_, seed_ | 1U);
    }

    /// Of a `KeyView`, part by part.
    template <class Key>
    [[nodiscard]] std::uint64_t of_key(const Key& key) const noexcept {
        const std::uint64_t head = std::uint64_t{static_cast<std::uint8_t>(key.component)} << 32U |
                                   key.scope.size() << 16U | key.tenant.size() << 8U |
                                   key.id.size();
        auto state = add(begin(head), key.scope);
        if (!key.tenant.empty()) state = add(state, key.tenant);
        return end(add(state, key.id));
    }

private:
    template <class Word>
    [[nodiscard]] static std::uint64_t read(const char* at) noexcept {
        Word word;
        std::memcpy(&word, at, sizeof word);
        return word;
    }
    [[nodiscard]] static std::uint64_t fold(std::uint64_t a, std::uint64_t b) noexcept {
        __extension__ using Wide = unsigned __int128;
        const Wide product = static_cast<Wide>(a) * b;
        return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64U);
    }

    std::uint64_t seed_ = 0;
    std::uint64_t secret_ = 0;
};

}  // namespace idem::inline v0_1::detail

#endif
