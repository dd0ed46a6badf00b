#ifndef IDEM_LAYERED_CACHED_HPP
#define IDEM_LAYERED_CACHED_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include <idem/detail/fork.hpp>
#include <idem/layered/nesting.hpp>
#include <idem/layered/result_cache.hpp>
#include <idem/store.hpp>

namespace idem::inline v0_1 {

struct CacheOptions {
    /// Of all that is allocated for results. The largest one kept is a 256th of it: 256 KiB.
    std::size_t bytes_max = std::size_t{64} << 20U;

    /// How long another process's `forget` may go unseen here. A result's retention ends it sooner.
    Duration max_age = std::chrono::seconds{10};

    /// What ages are counted by. Empty: this machine's boot clock (CLOCK_BOOTTIME).
    StoreClock clock{};
};

/// What a `CachedStore` holds, and has done so far.
struct CacheUsage {
    std::uint64_t hits = 0;    ///< Claims that were answered here.
    std::uint64_t misses = 0;  ///< Claims that went to the store.
    std::size_t entries = 0;   ///< Those past their age too, until they make room.
    std::size_t bytes = 0;     ///< As `CacheOptions::bytes_max` counts them.
};

/// Answers repeats of finished calls from this process's memory, as the store would: without it
/// each impatient client costs a round trip. Only a claim of the same request, by its fingerprint,
/// is answered here; all else goes to the store, and what is done through this handle is seen at
/// once. Another process's `forget` is seen after `max_age`: until then a repeat here gets the
/// forgotten result. A handle; any thread may call any member at any time. A crash loses nothing
/// that is not in the store. After fork a child passes everything on to the store below.
template <class Store>
class CachedStore {
public:
    static_assert(store<Store>, "CachedStore<Store>: Store is no idem::store");
    static_assert(!detail::is_layer<Store, CachedStore>, "idem: this store is cached already");

    /// @throws UsageError for a size or an age of zero, or an age of more than ten years.
    explicit CachedStore(Store inner, CacheOptions options = {})
        : inner_(std::move(inner)), state_(make_state(std::move(options))) {}

    void claim(std::span<const ClaimRequest> requests, std::span<ClaimReply> replies) {
        if (!state_->made_in.here()) return inner_.claim(requests, replies);
        const Instant sent = state_->now();
        if (requests.size() != 1) return claim_batch(requests, replies, sent);
        auto place = state_->cache.place(requests[0].key);
        if (state_->cache.answer(requests[0], place, sent, true, replies[0])) return;
        inner_.claim(requests, replies);
        learn(requests[0], replies[0], place, sent);
    }

    void finish(std::span<const FinishRequest> requests, std::span<FinishReply> replies) {
        const Dropped<FinishRequest> dropped(*state_, requests);
        inner_.finish(requests, replies);
    }
    void renew(std::span<const RenewRequest> requests, std::span<RenewReply> replies) {
        inner_.renew(requests, replies);
    }
    void issue(std::span<const IssueRequest> requests, std::span<IssueReply> replies) {
        const Dropped<IssueRequest> dropped(*state_, requests);
        inner_.issue(requests, replies);
    }
    void resolve(std::span<const ResolveRequest> requests, std::span<ResolveReply> replies) {
        const Dropped<ResolveRequest> dropped(*state_, requests);
        inner_.resolve(requests, replies);
    }
    void reap(std::span<const ReapRequest> requests, std::span<ReapReply> replies) {
        inner_.reap(requests, replies);
    }
    void find(std::span<const KeyView> keys, std::span<FindReply> replies) {
        inner_.find(keys, replies);
    }
    void forget(std::span<const ForgetRequest> requests, std::span<ForgetReply> replies) {
        const Dropped<ForgetRequest> dropped(*state_, requests);
        inner_.forget(requests, replies);
    }
    [[nodiscard]] ListPage list(const ListQuery& query) { return inner_.list(query); }
    [[nodiscard]] PurgeReply purge(std::size_t limit) { return inner_.purge(limit); }

    /// Zero where the store below does not say.
    [[nodiscard]] Duration time_allowed() const { return time_allowed_by(inner_); }
    [[nodiscard]] std::shared_ptr<void> watch(const KeyView& key, std::function<void()> notice) {
        return watch_with(inner_, key, std::move(notice));
    }

    /// Of a store that was made before fork: nothing.
    [[nodiscard]] CacheUsage usage() const {
        CacheUsage sum;
        if (!state_->made_in.here()) return sum;
        state_->cache.each_shard([&](auto hits, auto misses, auto entries, auto bytes) {
            sum.hits += hits;
            sum.misses += misses;
            sum.entries += entries;
            sum.bytes += bytes;
        });
        return sum;
    }

private:
    using Place = detail::ResultCache::Place;

    struct State {
        explicit State(CacheOptions options)
            : clock(options.clock ? std::move(options.clock) : StoreClock(detail::boot_clock_now)),
              cache(options.bytes_max, options.max_age) {}

        [[nodiscard]] Instant now() const { return clock(); }

        StoreClock clock;
        detail::ResultCache cache;
        detail::MadeIn made_in{};
    };

    /// Drops the keys of a change once the store has answered, or has thrown.
    template <class Request>
    class Dropped {
    public:
        Dropped(State& state, std::span<const Request> requests) noexcept
            : state_(state), requests_(requests) {}
        ~Dropped() {
            if (!state_.made_in.here()) return;
            for (const auto& request : requests_) state_.cache.drop(request.key);
        }
        Dropped(const Dropped&) = delete;
        Dropped& operator=(const Dropped&) = delete;

    private:
        State& state_;
        std::span<const Request> requests_;
    };

    [[nodiscard]] static std::shared_ptr<State> make_state(CacheOptions options) {
        if (options.bytes_max == 0) throw UsageError("CacheOptions::bytes_max is 0");
        if (options.max_age <= Duration{} || options.max_age > duration_max)
            throw UsageError("CacheOptions::max_age must be positive, and ten years at most");
        // A child of fork leaves it: a thread that does not exist there may have been changing it.
        return {new State(std::move(options)), [](State* state) {
                    if (state->made_in.here()) delete state;
                }};
    }

    /// What is not answered here goes on as one batch, in its order. A key of which one claim went
    /// on is not answered here any more: it is as if they had been sent one after the other.
    void claim_batch(std::span<const ClaimRequest> requests, std::span<ClaimReply> replies,
                     Instant sent) {
        std::vector<std::size_t> which;
        std::vector<Place> places;
        std::unordered_set<std::uint64_t> gone_on;
        for (std::size_t i = 0; i < requests.size(); ++i) {
            auto place = state_->cache.place(requests[i].key);
            const bool look = !gone_on.contains(place.hash);
            if (state_->cache.answer(requests[i], place, sent, look, replies[i])) continue;
            gone_on.insert(place.hash);
            which.push_back(i);
            places.push_back(place);
        }
        if (which.empty()) return;
        std::vector<ClaimRequest> asked;
        asked.reserve(which.size());
        for (const std::size_t i : which) asked.push_back(requests[i]);
        std::vector<ClaimReply> answers(which.size());
        inner_.claim(asked, answers);
        for (std::size_t i = 0; i < which.size(); ++i) {
            learn(asked[i], answers[i], places[i], sent);
            replies[which[i]] = std::move(answers[i]);
        }
    }

    void learn(const ClaimRequest& request, const ClaimReply& reply, const Place& place,
               Instant sent) {
        if (reply.trouble) return;
        if (reply.kind != ClaimKind::completed) {
            state_->cache.drop(request.key, place.hash);
        } else if (detail::ResultCache::takes(request)) {
            state_->cache.keep(request, reply, place, sent);
        }
    }

    Store inner_;
    std::shared_ptr<State> state_;
};

}  // namespace idem::inline v0_1

#endif
