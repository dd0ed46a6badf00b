#ifndef IDEM_DETAIL_RESOLVE_HPP
#define IDEM_DETAIL_RESOLVE_HPP

#include <algorithm>
#include <array>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <netdb.h>
#include <sys/socket.h>

#include <idem/clock.hpp>
#include <idem/detail/fork.hpp>

// glibc looks names up on a thread of its own, whose small stack ThreadSanitizer overruns.
#if defined(__GLIBC__) && !defined(__SANITIZE_THREAD__)
#define IDEM_RESOLVES_ASIDE
#endif
#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#undef IDEM_RESOLVES_ASIDE
#endif
#endif

namespace idem::inline v0_1::detail {

struct Resolved {
    std::vector<std::string> addresses{};  ///< Numeric, in the resolver's order.
    std::string error{};                   ///< Why there are none.
};

[[nodiscard]] inline std::vector<std::string> numeric_addresses(const addrinfo* list) {
    std::vector<std::string> out;
    for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
        std::array<char, NI_MAXHOST> text{};
        if (getnameinfo(at->ai_addr, at->ai_addrlen, text.data(), text.size(), nullptr, 0,
                        NI_NUMERICHOST) != 0)
            continue;
        std::string address = text.data();
        if (std::find(out.begin(), out.end(), address) == out.end())
            out.push_back(std::move(address));
    }
    return out;
}

[[nodiscard]] inline addrinfo stream_hints(int flags) noexcept {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags;
    return hints;
}

/// Here the resolver's own time limit is the only one.
[[nodiscard]] inline Resolved look_up_here(const std::string& host) {
    const addrinfo hints = stream_hints(AI_ADDRCONFIG);
    addrinfo* list = nullptr;
    if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &list); error != 0)
        return {{}, gai_strerror(error)};
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(list, freeaddrinfo);
    return {numeric_addresses(list), {}};
}

#ifdef IDEM_RESOLVES_ASIDE
/// A look-up that outlives its caller where the name server does not answer: glibc's own thread
/// goes on writing into it, so it is kept until that has ended.
struct LookUp {
    std::string host{};
    addrinfo hints = stream_hints(AI_ADDRCONFIG);
    gaicb request{};

    [[nodiscard]] bool ended() noexcept { return gai_error(&request) != EAI_INPROGRESS; }
    LookUp() = default;
    LookUp(const LookUp&) = delete;
    LookUp& operator=(const LookUp&) = delete;
    ~LookUp() {
        if (request.ar_result != nullptr) freeaddrinfo(request.ar_result);
    }
};

struct [[gnu::visibility("hidden")]] AbandonedLookUps {
    /// Never destroyed: glibc's thread may still write when static objects go.
    static AbandonedLookUps& instance() {
        static auto* const all = new AbandonedLookUps;
        return *all;
    }
    void keep(std::unique_ptr<LookUp> look_up) {
        const std::lock_guard lock(mutex);
        kept.remove_if([](const auto& old) { return old->ended(); });
        kept.push_back(std::move(look_up));
    }
    std::mutex mutex{};
    std::list<std::unique_ptr<LookUp>> kept{};
};

[[nodiscard]] inline Resolved look_up(const std::string& host, LocalInstant deadline) {
    // glibc counts its idle threads across fork: a child would wait for one that it has not.
    if (process_generation() != 1) return look_up_here(host);
    auto look_up = std::make_unique<LookUp>();
    look_up->host = host;
    look_up->request.ar_name = look_up->host.c_str();
    look_up->request.ar_request = &look_up->hints;
    std::array<gaicb*, 1> requests = {&look_up->request};
    if (const int error = getaddrinfo_a(GAI_NOWAIT, requests.data(), 1, nullptr); error != 0)
        return {{}, gai_strerror(error)};
    while (!look_up->ended()) {
        const auto left = deadline - LocalClock::now();
        if (left <= left.zero()) break;
        const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
        const timespec wait{seconds.count(), (left - seconds).count()};
        const std::array<const gaicb*, 1> waited = {&look_up->request};
        (void)gai_suspend(waited.data(), 1, &wait);
    }
    if (!look_up->ended()) {
        (void)gai_cancel(&look_up->request);
        AbandonedLookUps::instance().keep(std::move(look_up));
        return {{}, "the name was not resolved in the time allowed"};
    }
    const int error = gai_error(&look_up->request);
    if (error != 0) return {{}, gai_strerror(error)};
    return {numeric_addresses(look_up->request.ar_result), {}};
}
#else
[[nodiscard]] inline Resolved look_up(const std::string& host, LocalInstant) {
    return look_up_here(host);
}
#endif

/// The addresses of a host, within the time allowed: a plain look-up has no limit, and a
/// dead name server would hold a claim up for half a minute.
[[nodiscard]] inline Resolved resolve(const std::string& host, LocalInstant deadline) {
    const addrinfo hints = stream_hints(AI_NUMERICHOST);
    addrinfo* list = nullptr;
    if (getaddrinfo(host.c_str(), nullptr, &hints, &list) == 0) {
        const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(list, freeaddrinfo);
        return {numeric_addresses(list), {}};
    }
    Resolved out = look_up(host, deadline);
    if (out.addresses.empty() && out.error.empty()) out.error = "the name has no address";
    return out;
}

}  // namespace idem::inline v0_1::detail

#undef IDEM_RESOLVES_ASIDE

#endif
