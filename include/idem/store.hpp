#ifndef IDEM_STORE_HPP
#define IDEM_STORE_HPP

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include <idem/operation.hpp>

namespace idem::inline v0_1 {

/// A place that remembers keys. Everything in this library stands on these ten operations; a type
/// that has them, and keeps the promises below, gets the guard and every component at once.
/// `idem::testing::conformance` asks for each promise by its number.
///
///  1. Handle: a copy names the same records and keeps them alive. All members may be called from
///     any thread at once.
///  2. Atomic: each item is one atomic step on one key, decided as `protocol.hpp` decides it, by
///     the store's own clock. Of any number of concurrent claims of a key one is acquired.
///  3. Batches: replies have the size of requests, arrive default-constructed, and answer by
///     position. The same key twice in a batch acts as if sent one after the other.
///  4. Trouble: what could not be done is in the item's `trouble` and harms no other item. An
///     operation throws only `std::bad_alloc`. With `may_have_applied` false nothing was written.
///     An operation ends, within `time_allowed()` where the store has it: one that hangs keeps
///     the heartbeat from every other store's leases.
///  5. Retry: the same claim, finish, renew or issue again, after its answer was lost, answers as
///     the first did (an issue over a tombstone is refused then, and stands). resolve, reap and
///     forget again change nothing, and the state in the answer says how things stand.
///  6. Bytes: keys, results, checkpoints and resource ids of any bytes come back as they were.
///  7. Fences of a key grow with every acquisition, across expiry and forget too.
///  8. Expiry: a record past its retention is nothing, whether or not it has been removed, and is
///     removed in the end without being read.
///  9. No eviction: a record within its retention is never dropped to make room. A store that is
///     full answers a new key with `unavailable`; finish, renew and forget go on, if need be
///     keeping the result as `no_room`.
/// 10. Garbage or a newer format under a key is `schema` trouble; it is never overwritten.
/// 11. list: pages by cursor; a key that is not touched meanwhile appears once (in Redis at least
///     once). purge: at most `limit` removals, safe from many processes at once.
///
/// A store may have two members more; where it has not, the guard does without:
///
///     Duration time_allowed() const;  // how long one request may take in the worst case
///
///     // Asks to be told when the key is settled by any process, from before this returns until
///     // the handle goes. `notice` is called from a thread of the store, any number of times,
///     // needlessly too, never after the handle is gone; it must not call the store. Null where
///     // no notices can come: the caller polls. Never throws, takes no longer than one request.
///     std::shared_ptr<void> watch(const KeyView& key, std::function<void()> notice);
template <class S>
concept store = std::copy_constructible<S> &&
    requires(S& s, std::span<const ClaimRequest> claims, std::span<ClaimReply> claimed,
             std::span<const FinishRequest> finishes, std::span<FinishReply> finished,
             std::span<const RenewRequest> renews, std::span<RenewReply> renewed,
             std::span<const IssueRequest> issues, std::span<IssueReply> issued,
             std::span<const ResolveRequest> resolves, std::span<ResolveReply> resolved,
             std::span<const ReapRequest> reaps, std::span<ReapReply> reaped,
             std::span<const KeyView> keys, std::span<FindReply> found,
             std::span<const ForgetRequest> forgets, std::span<ForgetReply> forgotten,
             const ListQuery& query, std::size_t limit) {
    { s.claim(claims, claimed) } -> std::same_as<void>;
    { s.finish(finishes, finished) } -> std::same_as<void>;
    { s.renew(renews, renewed) } -> std::same_as<void>;
    { s.issue(issues, issued) } -> std::same_as<void>;
    { s.resolve(resolves, resolved) } -> std::same_as<void>;
    { s.reap(reaps, reaped) } -> std::same_as<void>;
    { s.find(keys, found) } -> std::same_as<void>;
    { s.forget(forgets, forgotten) } -> std::same_as<void>;
    { s.list(query) } -> std::same_as<ListPage>;
    { s.purge(limit) } -> std::same_as<PurgeReply>;
};

/// `Store::watch` where there is one; else null, as where no notices can come.
template <class Store>
[[nodiscard]] std::shared_ptr<void> watch_with(Store& s, const KeyView& key,
                                               std::function<void()> notice) {
    if constexpr (requires {
                      {
                          s.watch(key, std::move(notice))
                          } -> std::convertible_to<std::shared_ptr<void>>;
                  }) {
        return s.watch(key, std::move(notice));
    } else {
        return nullptr;
    }
}

/// `Store::time_allowed` where there is one; else zero.
template <class Store>
[[nodiscard]] Duration time_allowed_by(const Store& s) {
    if constexpr (requires {
                      { s.time_allowed() } -> std::convertible_to<Duration>;
                  }) {
        return s.time_allowed();
    } else {
        return Duration::zero();
    }
}

/// A batch of one, for callers that have a single key. Trouble is in the reply as in any batch.
template <store Store>
[[nodiscard]] ClaimReply claim_one(Store& s, const ClaimRequest& request) {
    ClaimReply reply;
    s.claim(std::span(&request, 1), std::span(&reply, 1));
    return reply;
}
template <store Store>
[[nodiscard]] FinishReply finish_one(Store& s, const FinishRequest& request) {
    FinishReply reply;
    s.finish(std::span(&request, 1), std::span(&reply, 1));
    return reply;
}
template <store Store>
[[nodiscard]] RenewReply renew_one(Store& s, const RenewRequest& request) {
    RenewReply reply;
    s.renew(std::span(&request, 1), std::span(&reply, 1));
    return reply;
}
template <store Store>
[[nodiscard]] IssueReply issue_one(Store& s, const IssueRequest& request) {
    IssueReply reply;
    s.issue(std::span(&request, 1), std::span(&reply, 1));
    return reply;
}
template <store Store>
[[nodiscard]] ResolveReply resolve_one(Store& s, const ResolveRequest& request) {
    ResolveReply reply;
    s.resolve(std::span(&request, 1), std::span(&reply, 1));
    return reply;
}
template <store Store>
[[nodiscard]] ReapReply reap_one(Store& s, const ReapRequest& request) {
    ReapReply reply;
    s.reap(std::span(&request, 1), std::span(&reply, 1));
    return reply;
}
template <store Store>
[[nodiscard]] FindReply find_one(Store& s, const KeyView& key) {
    FindReply reply;
    s.find(std::span(&key, 1), std::span(&reply, 1));
    return reply;
}
template <store Store>
[[nodiscard]] ForgetReply forget_one(Store& s, const ForgetRequest& request) {
    ForgetReply reply;
    s.forget(std::span(&request, 1), std::span(&reply, 1));
    return reply;
}

}  // namespace idem::inline v0_1

#endif
