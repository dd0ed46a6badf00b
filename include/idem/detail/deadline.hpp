#ifndef IDEM_DETAIL_DEADLINE_HPP
#define IDEM_DETAIL_DEADLINE_HPP

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>

#include <poll.h>

#include <idem/clock.hpp>
#include <idem/detail/random.hpp>

/// What must be over by an instant, in front of a server.
namespace idem::inline v0_1::detail {

/// Where the first of so many things to be tried must be given up, so that the last has time too.
[[nodiscard]] inline LocalInstant share_of(LocalInstant deadline, std::size_t parts) noexcept {
    const auto now = LocalClock::now();
    const auto left = std::max(deadline - now, LocalInstant::duration::zero());
    return now + left / static_cast<std::int64_t>(parts);
}

/// Until the descriptor is ready, or so broken that using it will say why. False: the deadline.
[[nodiscard]] inline bool await(int fd, short events, LocalInstant deadline) noexcept {
    for (;;) {
        const auto left = deadline - LocalClock::now();
        if (left <= left.zero()) return false;
        const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
        pollfd at{fd, events, 0};
        const int ready = ::poll(&at, 1, static_cast<int>(std::min<std::int64_t>(ms, 60'000)));
        if (ready > 0 || (ready < 0 && errno != EINTR)) return true;
    }
}

/// Before the try after so many: longer each time, up to 128 ms, and never the same for two, or
/// those that met would meet again.
inline void pause_after(int tries, LocalInstant deadline) {
    std::uint16_t noise = 0;
    fill_random(reinterpret_cast<char*>(&noise), sizeof noise);
    const auto most = std::chrono::milliseconds{1} * (1 << std::min(tries, 7));
    const auto left = deadline - LocalClock::now();
    const auto wait = std::min<LocalInstant::duration>(most * noise / 65536, left);
    if (wait > wait.zero()) std::this_thread::sleep_for(wait);
}

}  // namespace idem::inline v0_1::detail

#endif
