#ifndef IDEM_TESTS_SUPPORT_FIELD_HPP
#define IDEM_TESTS_SUPPORT_FIELD_HPP

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <idem/guard.hpp>
#include <idem/memory/store.hpp>
#include <idem/testing/manual_clock.hpp>

#include "support/hooked_store.hpp"

/// What the tests of field cases share: a store on a clock that is moved by hand, the events of a
/// guard, holders that vanish.
namespace idem_test {

/// The events that guards told, for as long as anybody refers to them. Any thread.
class Recorder {
public:
    struct Seen {
        idem::EventKind kind{};
        std::string scope{};
        std::string tenant{};
        std::string key_hash{};
        std::string raw_id{};
        std::string request_id{};
        std::string detail{};
        idem::Fence fence = 0;
        std::uint32_t attempt = 0;
        idem::LostReason lost{};
        idem::FailureClass failure{};
    };

    [[nodiscard]] idem::Observer observer() const {
        return [shared = shared_](const idem::Event& e) {
            {
                std::scoped_lock const lock(shared->mutex);
                shared->seen.push_back({e.kind, std::string(e.scope), std::string(e.tenant),
                                        std::string(e.key_hash), std::string(e.raw_id),
                                        std::string(e.request_id), std::string(e.detail), e.fence,
                                        e.attempt, e.lost, e.failure});
            }
            shared->changed.notify_all();
        };
    }
    [[nodiscard]] std::vector<Seen> all() const {
        std::scoped_lock const lock(shared_->mutex);
        return shared_->seen;
    }
    [[nodiscard]] std::size_t count(idem::EventKind kind) const {
        std::scoped_lock const lock(shared_->mutex);
        return count_of(kind);
    }
    /// The first event of a kind, as soon as there is one.
    [[nodiscard]] Seen wait_for(idem::EventKind kind, std::size_t number = 1) const {
        std::unique_lock lock(shared_->mutex);
        shared_->changed.wait(lock, [&] { return count_of(kind) >= number; });
        for (const Seen& seen : shared_->seen)
            if (seen.kind == kind) return seen;
        return {};
    }

private:
    struct Shared {
        std::mutex mutex{};
        std::condition_variable changed{};
        std::vector<Seen> seen{};
    };
    [[nodiscard]] std::size_t count_of(idem::EventKind kind) const {
        std::size_t count = 0;
        for (const Seen& seen : shared_->seen) count += seen.kind == kind ? 1 : 0;
        return count;
    }

    std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

using Memory = HookedStore<idem::MemoryStore>;
using Guard = idem::IdempotencyGuard<Memory>;

/// A memory store on a clock that stands still, with hooks, and the events of its guards.
struct Bench {
    idem::testing::ManualClock clock{};
    idem::MemoryStore memory{idem::MemoryOptions{.clock = clock}};
    Memory store{memory};
    Recorder events{};

    [[nodiscard]] Guard guard(idem::GuardOptions options = {}) const {
        if (!options.events) options.events = events.observer();
        return Guard(store, std::move(options));
    }
    [[nodiscard]] std::optional<idem::RecordView> find(const idem::Key& key) {
        return idem::find_one(memory, idem::KeyView(idem::Component::call, key)).record;
    }
};

[[nodiscard]] inline idem::Key field_key(std::string id) {
    return {.scope = "field.case", .id = std::move(id)};
}

inline constexpr idem::Duration lease = std::chrono::seconds{30};
inline constexpr idem::Duration retention = std::chrono::hours{24};
inline constexpr idem::Duration held_retention = std::chrono::hours{24 * 30};
/// A budget that no test uses up: what waits for longer hangs.
inline constexpr idem::Duration for_ever = std::chrono::hours{1};
inline constexpr idem::Duration tick{1};

/// A holder that talks to the store itself and may vanish at any point.
template <class Store>
struct Holder {
    Store store;
    idem::Key key;
    idem::Owner owner = idem::detail::new_owner();
    idem::Fence fence = 0;

    Holder(Store s, idem::Key k) : store(std::move(s)), key(std::move(k)) {}

    [[nodiscard]] idem::KeyView view() const { return {idem::Component::call, key}; }
    idem::ClaimReply claim(idem::ClaimRequest request = {}) {
        request.key = view();
        request.owner = owner;
        if (request.lease == idem::Duration{}) request.lease = lease;
        if (request.retention == idem::Duration{}) request.retention = retention;
        if (request.held_retention == idem::Duration{}) request.held_retention = held_retention;
        auto reply = idem::claim_one(store, request);
        if (reply.kind == idem::ClaimKind::acquired) fence = reply.fence;
        return reply;
    }
    template <class T>
    idem::FinishReply complete(const T& value) {
        std::string bytes;
        idem::Codec<T>::encode(value, bytes);
        auto request = finish_request(idem::FinishKind::complete);
        request.result_kind = idem::ResultKind::value;
        request.codec = idem::codec_id<T>();
        request.result = bytes;
        return idem::finish_one(store, request);
    }
    idem::FinishReply release() {
        return idem::finish_one(store, finish_request(idem::FinishKind::release));
    }
    idem::RenewReply renew() {
        return idem::renew_one(store,
                               {.key = view(), .owner = owner, .fence = fence, .lease = lease});
    }
    [[nodiscard]] idem::FinishRequest finish_request(idem::FinishKind kind) const {
        idem::FinishRequest request;
        request.key = view();
        request.owner = owner;
        request.fence = fence;
        request.kind = kind;
        request.lease = lease;
        request.retention = retention;
        request.held_retention = held_retention;
        return request;
    }
};
template <class Store>
Holder(Store, idem::Key) -> Holder<Store>;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool instrumented = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
inline constexpr bool instrumented = true;
#else
inline constexpr bool instrumented = false;
#endif
#else
inline constexpr bool instrumented = false;
#endif

/// Makes a trial whose leases are real until it counts. One in which the machine was too busy to
/// keep a lease says nothing: then the trial answers false, or was refused, and is made again.
template <class Trial>
[[nodiscard]] bool some_trial_counts(Trial trial) {
    for (int i = 0; i < 50; ++i) {
        try {
            if (trial()) return true;
        } catch (const idem::UnavailableError&) {  // the lease had ended before the handler began
        }
    }
    return false;
}

/// How often a race is run: fewer times where every access is watched, or as IDEM_ROUNDS says.
[[nodiscard]] inline int rounds(int plain) {
    if (const char* asked = std::getenv("IDEM_ROUNDS")) return std::max(1, std::atoi(asked));
    return instrumented ? std::max(1, plain / 10) : plain;
}

}  // namespace idem_test

#endif
