#ifndef IDEM_TESTING_MEMORY_FRONT_HPP
#define IDEM_TESTING_MEMORY_FRONT_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <idem/layered/front.hpp>
#include <idem/testing/manual_clock.hpp>

namespace idem::inline v0_1::testing {

enum class FrontCall : std::uint8_t { get, put, bury };

/// A front in this process's memory that can be down, wiped, or set back to old data, for tests of
/// `TieredStore`. A handle: copies share everything. Safe to use from any thread; a hook runs in
/// the calling thread, without a lock.
class MemoryFront {
public:
    struct Entry {
        Fence fence = 0;
        Instant ends{};
        std::optional<std::string> bytes{};  ///< Nothing: a tombstone.

        friend bool operator==(const Entry&, const Entry&) = default;
    };
    using Entries = std::map<std::string, Entry>;
    /// Called before each call. False: it fails, and nothing is done.
    using Hook = std::function<bool(FrontCall)>;

    explicit MemoryFront(StoreClock clock) : shared_(std::make_shared<Shared>()) {
        shared_->clock = std::move(clock);
    }

    void before(Hook hook) {
        const std::lock_guard lock(shared_->mutex);
        shared_->hook = std::move(hook);
    }
    void fail_all(bool down) {
        before([down](FrontCall) { return !down; });
    }
    [[nodiscard]] Entries entries() const {
        const std::lock_guard lock(shared_->mutex);
        return shared_->entries;
    }
    /// Empty: wiped. What `entries` gave earlier: restarted with old data.
    void restart_with(Entries entries) {
        const std::lock_guard lock(shared_->mutex);
        shared_->entries = std::move(entries);
    }
    [[nodiscard]] std::size_t calls() const {
        const std::lock_guard lock(shared_->mutex);
        return shared_->calls;
    }

    // --- the port --------------------------------------------------------------------------------

    void get(std::span<const KeyView> keys, std::span<FrontGot> got) {
        each(FrontCall::get, got.size(), [&](std::size_t i, bool good, Instant now) {
            if (!good) {
                got[i].trouble = down();
                return;
            }
            got[i].now = now;
            const auto at = shared_->entries.find(name(keys[i]));
            if (at == shared_->entries.end() || now >= at->second.ends) return;
            got[i].bytes = at->second.bytes;
            got[i].ends = at->second.ends;
        });
    }
    void put(std::span<const FrontPut> puts, std::span<Trouble> troubles) {
        each(FrontCall::put, puts.size(), [&](std::size_t i, bool good, Instant now) {
            if (!good) {
                troubles[i] = down();
            } else if (now < puts[i].ends && !stands(name(puts[i].key), puts[i].fence, now)) {
                shared_->entries[name(puts[i].key)] = {puts[i].fence, puts[i].ends,
                                                       std::string(puts[i].bytes)};
            }
        });
    }
    void bury(std::span<const FrontBury> buries, std::span<Trouble> troubles) {
        each(FrontCall::bury, buries.size(), [&](std::size_t i, bool good, Instant now) {
            const auto key = name(buries[i].key);
            if (!good) {
                troubles[i] = down();
            } else if (buries[i].fence == 0) {
                const auto at = shared_->entries.find(key);
                if (at != shared_->entries.end() && at->second.bytes) shared_->entries.erase(at);
            } else if (!stands(key, buries[i].fence + 1, now)) {
                shared_->entries[key] = {buries[i].fence, now + buries[i].lasts, std::nullopt};
            }
        });
    }
    [[nodiscard]] Duration time_allowed() const noexcept { return std::chrono::milliseconds{1}; }

private:
    struct Shared {
        mutable std::mutex mutex{};
        StoreClock clock{};
        Hook hook{};
        Entries entries{};
        std::size_t calls = 0;
    };

    [[nodiscard]] static std::string name(const KeyView& key) {
        std::string out;
        encode_key(key, out);
        return out;
    }
    [[nodiscard]] static Trouble down() { return Trouble::unavailable("the front is down", true); }
    /// With this fence or a higher one.
    [[nodiscard]] bool stands(const std::string& key, Fence fence, Instant now) const {
        const auto at = shared_->entries.find(key);
        return at != shared_->entries.end() && now < at->second.ends && at->second.fence >= fence;
    }
    template <class Do>
    void each(FrontCall call, std::size_t count, Do&& one) {
        Hook hook;
        {
            const std::lock_guard lock(shared_->mutex);
            ++shared_->calls;
            hook = shared_->hook;
        }
        const bool good = !hook || hook(call);
        const std::lock_guard lock(shared_->mutex);
        const Instant now = shared_->clock();
        for (std::size_t i = 0; i < count; ++i) one(i, good, now);
    }

    std::shared_ptr<Shared> shared_;
};

static_assert(front<MemoryFront>);

}  // namespace idem::inline v0_1::testing

#endif
