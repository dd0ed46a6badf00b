#ifndef IDEM_GUARD_STATE_HPP
#define IDEM_GUARD_STATE_HPP

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <idem/detail/fork.hpp>
#include <idem/detail/no_cancel.hpp>
#include <idem/detail/random.hpp>
#include <idem/events.hpp>
#include <idem/operation.hpp>
#include <idem/options.hpp>
#include <idem/store.hpp>

namespace idem::inline v0_1::detail {

[[nodiscard]] inline Owner new_owner() {
    Owner owner;
    fill_random(owner.bytes.data(), owner.bytes.size());
    return owner;
}

/// Names a key in this process's wait hub. Collisions cost a needless look at the store.
[[nodiscard]] inline std::size_t wait_hash(const KeyView& key) noexcept {
    constexpr std::hash<std::string_view> hash{};
    return hash(key.id) ^ (hash(key.scope) * 31 + hash(key.tenant) * 131);
}

/// What an exception stands for that a store has let out; to be called where it is caught. The
/// request may have been applied before.
[[nodiscard]] inline Trouble caught_trouble() noexcept {
    try {
        try {
            throw;
        } catch (const std::exception& e) {
            return Trouble::unavailable(e.what(), true);
        } catch (...) {
            return Trouble::unavailable("the store threw", true);
        }
    } catch (...) {  // no memory for its text
        return {Trouble::Kind::unavailable, true, {}};
    }
}

[[nodiscard]] inline EventKind event_of(const Trouble& trouble) noexcept {
    return trouble.kind == Trouble::Kind::schema ? EventKind::schema_error : EventKind::store_error;
}

/// Three requests at their slowest must fit into a lease, or no heartbeat could keep it.
template <store Store>
void check_lease_for(const Store& store, Duration lease, const char* name) {
    if (time_allowed_by(store) > lease / 3)
        throw UsageError(std::string(name) +
                         " is too short for this store: one request may take more than a third of "
                         "it, and the heartbeat could not keep the lease");
}

/// Of a component that stands on a guard: all that its lease must be.
template <store Store>
void check_lease(const Store& store, Duration lease, bool heartbeat, const char* name) {
    check_lease(lease, heartbeat, name);
    if (heartbeat) check_lease_for(store, lease, name);
}

/// Counts calls under way without a cache line that all threads write.
class CallCounter {
public:
    [[nodiscard]] std::size_t enter() noexcept {
        static std::atomic<std::size_t> threads{0};
        thread_local const std::size_t mine = threads.fetch_add(1);
        const std::size_t at = mine % counts_.size();
        counts_[at].value.fetch_add(1);
        return at;
    }
    void leave(std::size_t at) noexcept { counts_[at].value.fetch_sub(1); }
    [[nodiscard]] std::size_t sum() const noexcept {
        std::int64_t sum = 0;
        for (const auto& count : counts_) sum += count.value.load();
        return sum > 0 ? static_cast<std::size_t>(sum) : 0;
    }

private:
    struct alignas(64) Count {
        std::atomic<std::int64_t> value{0};
    };
    std::array<Count, 16> counts_{};
};

/// What a guard, its claims and the background share, whatever the store's type. It owns a handle
/// of the store, so the user's may go first.
class GuardState : public std::enable_shared_from_this<GuardState> {
public:
    GuardState(GuardOptions options, Component component)
        : options_(std::move(options)), component_(component) {}
    virtual ~GuardState() {
        for (Traffic* at = traffic_.load(); at != nullptr;) {
            Traffic* const before = at->before;
            // A lock that was held at a fork stays held: what it guards may be half done.
            const bool whole = at->scopes_mutex.try_lock();
            if (whole) at->scopes_mutex.unlock();
            if (whole) delete at;
            at = before;
        }
    }
    GuardState(const GuardState&) = delete;
    GuardState& operator=(const GuardState&) = delete;

    virtual void claim(std::span<const ClaimRequest> requests, std::span<ClaimReply> replies) = 0;
    virtual void finish(std::span<const FinishRequest> requests,
                        std::span<FinishReply> replies) = 0;
    virtual void renew(std::span<const RenewRequest> requests, std::span<RenewReply> replies) = 0;
    [[nodiscard]] virtual FindReply find(const KeyView& key) = 0;
    /// Null where the store cannot tell of what other processes settle.
    [[nodiscard]] virtual std::shared_ptr<void> watch(const KeyView& key,
                                                      std::function<void()> notice) = 0;

    [[nodiscard]] const GuardOptions& options() const noexcept { return options_; }
    [[nodiscard]] Component component() const noexcept { return component_; }

    /// Calls and counts of this process; a forked child begins with none.
    struct Traffic {
        MadeIn made_in{};
        Traffic* before = nullptr;  ///< Of the process this is a fork of; calls of it may return.
        std::atomic<bool> draining{false};
        CallCounter calls{};
        std::atomic<std::size_t> claims{0};      ///< Two-phase claims that are alive.
        std::atomic<std::size_t> unrecorded{0};  ///< Finishes left to the background.
        std::mutex scopes_mutex{};
        std::map<std::string, std::size_t, std::less<>> scopes{};
    };
    [[nodiscard]] Traffic& traffic() {
        Traffic* now = traffic_.load(std::memory_order_acquire);
        if (now->made_in.here()) [[likely]]
            return *now;
        auto* fresh = new Traffic;  // the parent's is left as it is: its lock may be held for ever
        fresh->before = now;
        if (traffic_.compare_exchange_strong(now, fresh)) return *fresh;
        delete fresh;
        return *now;
    }

    /// Tells the observer; costs one test where there is none. Never throws.
    void tell(EventKind kind, const KeyView& key, Event event = {}) const noexcept {
        if (options_.events) [[unlikely]]
            tell_observer(kind, key, event);
    }
    [[nodiscard]] bool observed() const noexcept { return static_cast<bool>(options_.events); }

private:
    void tell_observer(EventKind kind, const KeyView& key, Event& event) const noexcept {
        const NoCancel shield;
        try {
            const std::string hash = key.id.empty() ? std::string() : key_hash(key);
            event.kind = kind;
            event.component = key.component;
            event.scope = key.scope;
            event.tenant = key.tenant;
            event.key_hash = hash;
            if (options_.event_raw_ids) event.raw_id = key.id;
            options_.events(event);
        } catch (...) {  // an observer must not change what happens
        }
    }

    GuardOptions options_;
    Component component_;
    std::atomic<Traffic*> traffic_{new Traffic};
};

template <store Store>
class GuardStateOf final : public GuardState {
public:
    GuardStateOf(Store store, GuardOptions options, Component component)
        : GuardState(std::move(options), component), store_(std::move(store)) {}

    void claim(std::span<const ClaimRequest> requests, std::span<ClaimReply> replies) override {
        store_.claim(requests, replies);
    }
    void finish(std::span<const FinishRequest> requests, std::span<FinishReply> replies) override {
        store_.finish(requests, replies);
    }
    void renew(std::span<const RenewRequest> requests, std::span<RenewReply> replies) override {
        store_.renew(requests, replies);
    }
    [[nodiscard]] FindReply find(const KeyView& key) override { return find_one(store_, key); }
    [[nodiscard]] std::shared_ptr<void> watch(const KeyView& key,
                                              std::function<void()> notice) override {
        return watch_with(store_, key, std::move(notice));
    }
    [[nodiscard]] Store& store() noexcept { return store_; }

private:
    Store store_;
};

}  // namespace idem::inline v0_1::detail

#endif
