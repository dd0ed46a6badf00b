#ifndef IDEM_REDIS_SHA1_HPP
#define IDEM_REDIS_SHA1_HPP

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <idem/detail/bytes.hpp>

namespace idem::inline v0_1::redis {

/// SHA-1 (RFC 3174) in hex: the name by which Redis knows a script. It protects nothing.
[[nodiscard]] inline std::string sha1_hex(std::string_view text) {
    std::string padded(text);
    padded += '\x80';
    while (padded.size() % 64 != 56) padded += '\0';
    const std::uint64_t bits = std::uint64_t{text.size()} * 8;
    for (unsigned shift = 64; shift > 0; shift -= 8)
        padded += static_cast<char>(bits >> (shift - 8) & 0xFFU);
    std::array<std::uint32_t, 5> h = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0};
    for (std::size_t block = 0; block < padded.size(); block += 64) {
        std::array<std::uint32_t, 80> w{};
        for (std::size_t i = 0; i < 64; ++i)
            w[i / 4] = w[i / 4] << 8U | static_cast<unsigned char>(padded[block + i]);
        for (std::size_t i = 16; i < 80; ++i)
            w[i] = std::rotl(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
        auto [a, b, c, d, e] = h;
        for (std::size_t i = 0; i < 80; ++i) {
            std::uint32_t f = b ^ c ^ d;
            std::uint32_t k = i < 40 ? 0x6ED9EBA1 : 0xCA62C1D6;
            if (i < 20) {
                f = (b & c) | (~b & d);
                k = 0x5A827999;
            } else if (i >= 40 && i < 60) {
                f = (b & c) | (b & d) | (c & d);
                k = 0x8F1BBCDC;
            }
            const std::uint32_t next = std::rotl(a, 5) + f + e + k + w[i];
            e = d;
            d = c;
            c = std::rotl(b, 30);
            b = a;
            a = next;
        }
        h = {h[0] + a, h[1] + b, h[2] + c, h[3] + d, h[4] + e};
    }
    std::string digest;
    for (const auto word : h)
        for (unsigned shift = 32; shift > 0; shift -= 8)
            digest += static_cast<char>(word >> (shift - 8) & 0xFFU);
    return idem::detail::hex(digest);
}

}  // namespace idem::inline v0_1::redis

#endif
