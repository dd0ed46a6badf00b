#ifndef IDEM_DETAIL_RANDOM_HPP
#define IDEM_DETAIL_RANDOM_HPP

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>

#include <sys/random.h>

#include <idem/detail/fork.hpp>

namespace idem::inline v0_1::detail {

inline void system_random(char* out, std::size_t size) {
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

/// Fills `out` (at most 256 bytes) with unguessable bytes. One system call serves many owners: a
/// call each would cost more than a whole claim in memory. Bytes are used once and wiped, and the
/// buffer of a forked child is never the parent's.
inline void fill_random(char* out, std::size_t size) {
    struct Buffer {
        std::array<char, 1024> bytes;
        std::size_t used = 1024;
        MadeIn filled{};
    };
    thread_local Buffer buffer;
    if (!buffer.filled.here() || buffer.bytes.size() - buffer.used < size) {
        system_random(buffer.bytes.data(), buffer.bytes.size());
        buffer.used = 0;
        buffer.filled = MadeIn();
    }
    std::memcpy(out, buffer.bytes.data() + buffer.used, size);
    std::memset(buffer.bytes.data() + buffer.used, 0, size);
    buffer.used += size;
}

}  // namespace idem::inline v0_1::detail

#endif
