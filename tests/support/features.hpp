#ifndef IDEM_TESTS_SUPPORT_FEATURES_HPP
#define IDEM_TESTS_SUPPORT_FEATURES_HPP

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <idem/guard.hpp>
#include <idem/testing/manual_clock.hpp>

#include "support/eventually.hpp"
#include "support/spy_store.hpp"

namespace idem_test {

using SpyGuard = idem::IdempotencyGuard<SpyStore>;

/// A door that opens once. A test that would otherwise hang gives up after minutes.
class Gate {
public:
    void open() {
        std::scoped_lock const lock(mutex_);
        open_ = true;
        changed_.notify_all();  // under the lock: whoever comes through may end it
    }
    /// False: it never opened.
    bool wait() {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, std::chrono::minutes{2}, [&] { return open_; });
    }
    [[nodiscard]] bool is_open() {
        std::scoped_lock const lock(mutex_);
        return open_;
    }

private:
    std::mutex mutex_{};
    std::condition_variable changed_{};
    bool open_ = false;
};

/// What guards told. A handle; any thread.
class EventLog {
public:
    struct Entry {
        idem::EventKind kind{};
        idem::Component component{};
        std::string scope{};
        std::string tenant{};
        std::string key_hash{};
        std::string raw_id{};
        std::string request_id{};
        idem::Fence fence = 0;
        std::uint32_t attempt = 0;
        idem::Duration duration{};
        idem::LostReason lost{};
        idem::FailureClass failure{};
        std::string detail{};
    };

    [[nodiscard]] idem::Observer observer() const {
        return [shared = shared_](const idem::Event& e) {
            std::scoped_lock const lock(shared->mutex);
            shared->entries.push_back(
                {e.kind, e.component, std::string(e.scope), std::string(e.tenant),
                 std::string(e.key_hash), std::string(e.raw_id), std::string(e.request_id), e.fence,
                 e.attempt, e.duration, e.lost, e.failure, std::string(e.detail)});
        };
    }
    [[nodiscard]] std::vector<Entry> all() const {
        std::scoped_lock const lock(shared_->mutex);
        return shared_->entries;
    }
    [[nodiscard]] std::vector<Entry> of(idem::EventKind kind) const {
        std::vector<Entry> found = all();
        std::erase_if(found, [&](const Entry& entry) { return entry.kind != kind; });
        return found;
    }
    /// Their names, one after the other: "takeover executed".
    [[nodiscard]] std::string kinds() const {
        std::string names;
        for (const Entry& entry : all())
            names += (names.empty() ? "" : " ") + std::string(idem::to_string(entry.kind));
        return names;
    }
    void clear() const {
        std::scoped_lock const lock(shared_->mutex);
        shared_->entries.clear();
    }

private:
    struct Shared {
        std::mutex mutex{};
        std::vector<Entry> entries{};
    };
    std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

/// A store on a clock that stands still, a log of events, and guards that tell it.
struct Stage {
    idem::testing::ManualClock clock{};
    SpyStore store{idem::MemoryOptions{.clock = clock}};
    EventLog log{};

    [[nodiscard]] SpyGuard guard(idem::GuardOptions options = {}) const {
        if (!options.events) options.events = log.observer();
        return SpyGuard(store, std::move(options));
    }
};

[[nodiscard]] inline idem::Key key(std::string id = "42") {
    return {.scope = "order.place", .id = std::move(id), .tenant = "acme"};
}

/// The claim, where there must be one.
template <class R>
[[nodiscard]] idem::Claim<R> claimed(std::variant<idem::Claim<R>, idem::Outcome<R>> answer) {
    return std::get<idem::Claim<R>>(std::move(answer));
}

}  // namespace idem_test

#endif
