#ifndef IDEM_TESTING_CONFORMANCE_BASE_HPP
#define IDEM_TESTING_CONFORMANCE_BASE_HPP

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <idem/apply.hpp>
#include <idem/detail/bytes.hpp>
#include <idem/store.hpp>

namespace idem::inline v0_1::testing::conformance {

/// What the kit needs of the store under test: a store of its own, empty or shared, and power over
/// the clock that the store decides by. Optional members widen or narrow what is asked:
///
///     std::string prefix()               goes before every scope, so that one server can be shared
///     Duration slack()                   the clock does not stand still: times may differ by this
///     bool list_may_repeat()             list shows a key at least once instead of once
///     std::size_t message_bytes_max()    the store cuts the message of a failure even shorter
///     bool expires_unasked()             the store removes by itself; purge may count nothing
///     void put_raw(KeyView, string_view) puts garbage where the key's record is kept
///     bool holds_garbage()               put_raw does something
template <class W>
concept world = requires(W& w, Duration by) {
    w.store();
    requires store<std::remove_cvref_t<decltype(w.store())>>;
    w.advance(by);
    { w.now() } -> std::convertible_to<Instant>;
};

template <class W>
[[nodiscard]] std::string prefix_of(W& world) {
    if constexpr (requires { world.prefix(); }) return world.prefix();
    return {};
}
template <class W>
[[nodiscard]] Duration slack_of(W& world) {
    if constexpr (requires { world.slack(); }) return world.slack();
    return {};
}
template <class W>
[[nodiscard]] bool list_may_repeat(W& world) {
    if constexpr (requires { world.list_may_repeat(); }) return world.list_may_repeat();
    return false;
}
template <class W>
[[nodiscard]] bool expires_unasked(W& world) {
    if constexpr (requires { world.expires_unasked(); }) return world.expires_unasked();
    return false;
}
template <class W>
[[nodiscard]] std::size_t message_bytes_max_of(W& world) {
    if constexpr (requires { world.message_bytes_max(); }) return world.message_bytes_max();
    return Failure::message_bytes_max;
}
template <class W>
concept holds_garbage = requires(W& world, const KeyView& key, std::string_view bytes) {
    world.put_raw(key, bytes);
};
/// Whether `put_raw` does anything, where the world says so.
template <class W>
[[nodiscard]] bool puts_garbage(W& world) {
    if constexpr (requires { world.holds_garbage(); }) return world.holds_garbage();
    return true;
}

/// Thrown inside the kit where a promise is broken; never leaves it.
class Broken final : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

inline void expect(bool holds, const std::string& what) {
    if (!holds) throw Broken(what);
}

[[nodiscard]] inline std::string show(std::string_view bytes) {
    std::string out = "'";
    for (char c : bytes) {
        const bool plain = c >= ' ' && c <= '~' && c != '\\' && c != '\'';
        out += plain ? std::string(1, c) : "\\x" + idem::detail::hex({&c, 1});
    }
    return out + "'";
}
[[nodiscard]] inline std::string show(std::integral auto value) {
    return std::to_string(value);
}
[[nodiscard]] inline std::string show(Duration value) {
    return std::to_string(value.count()) + "us";
}
[[nodiscard]] inline std::string show(Instant value) {
    return show(value.time_since_epoch());
}
[[nodiscard]] inline std::string show(const Owner& owner) {
    return idem::detail::hex(owner.stored().substr(0, 4));
}
template <class Enum>
requires std::is_enum_v<Enum>
[[nodiscard]] std::string show(Enum value) {
    return to_string(value);
}

template <class T>
void expect_equal(const T& is, const std::type_identity_t<T>& should, const std::string& what) {
    if (!(is == should)) throw Broken(what + " is " + show(is) + " and should be " + show(should));
}

/// A store and its clock, with requests filled in as far as a promise does not care.
template <world World>
class Bench {
public:
    static constexpr Duration lease = std::chrono::seconds{30};
    static constexpr Duration long_lease = std::chrono::minutes{5};  ///< Above any minimum.
    static constexpr Duration retention = std::chrono::hours{1};
    static constexpr Duration held_retention = std::chrono::hours{5};
    static constexpr Duration validity = std::chrono::minutes{10};

    explicit Bench(World& w) : world(w), prefix_(prefix_of(w)), slack_(slack_of(w)) {}

    World& world;

    [[nodiscard]] auto& store() { return world.store(); }
    [[nodiscard]] Duration slack() const noexcept { return slack_; }
    [[nodiscard]] bool exact() const noexcept { return slack_ == Duration{}; }
    void advance(Duration by) { world.advance(by); }
    void lapse() { advance(lease + std::chrono::seconds{1} + slack_); }
    void expire() { advance(lease + retention + held_retention + std::chrono::seconds{1}); }

    /// Lives as long as the bench: requests only refer to their keys.
    [[nodiscard]] const Key& key(std::string_view id = "k", std::string_view scope = "s") {
        const std::lock_guard lock(mutex_);
        auto& made = keys_[{std::string(id), std::string(scope)}];
        if (!made) made.emplace(Key{prefix_ + std::string(scope), std::string(id), "tenant"});
        return *made;
    }
    /// One of many owners; the same number is the same owner.
    [[nodiscard]] static Owner owner(std::uint64_t number) {
        Owner out;
        std::uint64_t bits = number * 0x9E3779B97F4A7C15U + 0x632BE59BD9B4E019U;
        for (auto& byte : out.bytes) {
            bits ^= bits >> 29U;
            bits *= 0xBF58476D1CE4E5B9U;
            byte = static_cast<char>(bits >> 56U);
        }
        out.bytes[0] = static_cast<char>(number);
        out.bytes[15] = 1;
        return out;
    }
    [[nodiscard]] static KeyView view(const Key& key, Component component = Component::call) {
        return {component, key};
    }

    [[nodiscard]] ClaimRequest claim_request(const Key& key, std::uint64_t who) const {
        ClaimRequest out;
        out.key = view(key);
        out.owner = owner(who);
        out.lease = lease;
        out.retention = retention;
        out.held_retention = held_retention;
        return out;
    }
    [[nodiscard]] FinishRequest finish_request(const Key& key, std::uint64_t who, Fence fence,
                                               FinishKind kind) const {
        FinishRequest out;
        out.key = view(key);
        out.owner = owner(who);
        out.fence = fence;
        out.kind = kind;
        out.lease = lease;
        out.retention = retention;
        out.held_retention = held_retention;
        if (kind == FinishKind::complete) out.result_kind = ResultKind::value;
        if (kind == FinishKind::complete) out.codec = {0xFEEDF00DU, 3};
        if (kind == FinishKind::complete) out.result = "result";
        if (kind == FinishKind::quarantine) out.failure = FailureClass::unknown;
        if (kind == FinishKind::release) out.failure = FailureClass::retryable;
        if (kind == FinishKind::complete) return out;
        out.failure_code = "code";
        out.failure_message = "message";
        return out;
    }
    [[nodiscard]] RenewRequest renew_request(const Key& key, std::uint64_t who, Fence fence) const {
        return {view(key), owner(who), fence, lease, {}, {}};
    }
    [[nodiscard]] IssueRequest issue_request(const Key& key, std::uint64_t who) const {
        return {view(key), {}, owner(who), validity, retention};
    }
    [[nodiscard]] ReapRequest reap_request(const Key& key, Fence seen) const {
        return {view(key), seen, retention, held_retention};
    }

    /// Sends a batch of one; trouble breaks the promise.
    ClaimReply send(const ClaimRequest& r) { return untroubled(claim_one(store(), r)); }
    FinishReply send(const FinishRequest& r) { return untroubled(finish_one(store(), r)); }
    RenewReply send(const RenewRequest& r) { return untroubled(renew_one(store(), r)); }
    IssueReply send(const IssueRequest& r) { return untroubled(issue_one(store(), r)); }
    ResolveReply send(const ResolveRequest& r) { return untroubled(resolve_one(store(), r)); }
    ReapReply send(const ReapRequest& r) { return untroubled(reap_one(store(), r)); }
    ForgetReply send(const ForgetRequest& r) { return untroubled(forget_one(store(), r)); }

    ClaimReply claim(const Key& key, std::uint64_t who) { return send(claim_request(key, who)); }
    FinishReply finish(const Key& key, std::uint64_t who, Fence fence, FinishKind kind) {
        return send(finish_request(key, who, fence, kind));
    }
    /// Claims what must be free. @return the fence.
    Fence acquire(const Key& key, std::uint64_t who) { return acquire(claim_request(key, who)); }
    Fence acquire(const ClaimRequest& request) {
        const auto reply = send(request);
        expect_equal(reply.kind, ClaimKind::acquired, "a claim that must be acquired");
        return reply.fence;
    }
    /// Brings a fresh key into a finished state, as owner `who`. @return its fence.
    Fence settle(const Key& key, std::uint64_t who, FinishKind kind) {
        const Fence fence = acquire(key, who);
        expect(!finish(key, who, fence, kind).lost, "the holder's own finish was lost");
        return fence;
    }
    bool forget(const Key& key) { return send(ForgetRequest{view(key), lease}).existed; }
    /// Forgets it for the first or for a later time. @return the fence of the tombstone.
    Fence forget_again(const Key& key) { return send(ForgetRequest{view(key), lease}).fence; }

    [[nodiscard]] std::optional<RecordView> find(const Key& key) {
        return untroubled(find_one(store(), view(key))).record;
    }
    [[nodiscard]] RecordView must_find(const Key& key) {
        auto found = find(key);
        expect(found.has_value(), "find shows no record where there must be one");
        return *std::move(found);
    }
    void expect_state(const Key& key, State state) {
        expect_equal(must_find(key).header.state, state, "the state on record");
    }
    /// Does something that must not change the record.
    template <class Action>
    void untouched(const Key& key, Action&& action) {
        const auto before = must_find(key);
        action();
        const auto after = must_find(key);
        expect(before.header == after.header && before.payload == after.payload,
               "the record was changed by a request that must not touch it");
    }

    [[nodiscard]] bool near(Duration a, Duration b) const {
        return (a < b ? b - a : a - b) <= slack_;
    }
    [[nodiscard]] bool near(Instant a, Instant b) const {
        return near(a.time_since_epoch(), b.time_since_epoch());
    }
    void expect_near(auto is, decltype(is) should, const std::string& what) const {
        if (!near(is, should))
            throw Broken(what + " is " + show(is) + " and should be " + show(should));
    }
    /// How far an instant lies ahead of the store's clock.
    void expect_left(Instant end, Duration should, const std::string& what) {
        expect_near(end - world.now(), should, what);
    }

private:
    template <class Reply>
    static Reply untroubled(Reply reply) {
        if (reply.trouble) throw Broken("trouble: " + reply.trouble.message);
        return reply;
    }

    std::string prefix_;
    Duration slack_;
    std::mutex mutex_{};
    std::map<std::pair<std::string, std::string>, std::optional<Key>> keys_{};
};

/// One promise of a store: its number in `store.hpp`, its sentence, and what asks for it.
template <world World>
struct Promise {
    int number = 0;
    const char* sentence = "";
    void (*ask)(Bench<World>&) = nullptr;
};

template <world World>
using Promises = std::vector<Promise<World>>;

}  // namespace idem::inline v0_1::testing::conformance

#endif
