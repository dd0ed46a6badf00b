#ifndef IDEM_LAYERED_COMBINING_HPP
#define IDEM_LAYERED_COMBINING_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <idem/detail/fork.hpp>
#include <idem/layered/combiner.hpp>
#include <idem/layered/nesting.hpp>
#include <idem/store.hpp>

namespace idem::inline v0_1 {

struct CombiningOptions {
    /// Of one batch. More makes each caller wait for the others' bytes.
    std::size_t items_max = 200;
    std::size_t bytes_max = std::size_t{1} << 20U;

    /// Batches of one operation under way at once. More spread the load thinner.
    std::size_t under_way_max = 1;

    /// Callers that wait for one operation's turn; whoever comes then asks the store by itself.
    std::size_t queue_max = 10'000;
};

/// What a `CombiningStore` has done so far.
struct CombiningUsage {
    std::uint64_t items = 0;    ///< Requests of callers.
    std::uint64_t batches = 0;  ///< Calls of the store below that they took.
    std::size_t waiting = 0;    ///< Callers that wait for their turn now.
};

/// Combines what many threads ask a remote store at the same moment into one batch: a busy service
/// gets pipelining without a thread more and without any caller knowing. A caller that is alone
/// goes straight through. What one caller asks never harms another's: its trouble is its own, and
/// a batch that ends in an exception is asked again by each for itself. Goes right over the remote
/// store, below caches. A handle; any thread may call any member at any time. Nothing is kept here
/// that a crash could lose. After fork a child is passed to the store below, which says so.
template <class Store>
class CombiningStore {
public:
    static_assert(store<Store>, "CombiningStore<Store>: Store is no idem::store");
    static_assert(!detail::is_layer<Store, idem::CombiningStore>,
                  "CombiningStore over CombiningStore: one queue is enough");
    static_assert(!detail::is_layer<Store, CachedStore>,
                  "CachedStore goes over CombiningStore: what it answers need not queue up");

    /// @throws UsageError for a limit of zero.
    explicit CombiningStore(Store inner, CombiningOptions options = {})
        : inner_(std::move(inner)), state_(std::make_shared<State>(check(options))) {}

    void claim(std::span<const ClaimRequest> requests, std::span<ClaimReply> replies) {
        combine(state_->claims, requests, replies,
                [this](auto some, auto answers) { inner_.claim(some, answers); });
    }
    void finish(std::span<const FinishRequest> requests, std::span<FinishReply> replies) {
        combine(state_->finishes, requests, replies,
                [this](auto some, auto answers) { inner_.finish(some, answers); });
    }
    void renew(std::span<const RenewRequest> requests, std::span<RenewReply> replies) {
        combine(state_->renewals, requests, replies,
                [this](auto some, auto answers) { inner_.renew(some, answers); });
    }
    void issue(std::span<const IssueRequest> requests, std::span<IssueReply> replies) {
        combine(state_->issues, requests, replies,
                [this](auto some, auto answers) { inner_.issue(some, answers); });
    }
    void find(std::span<const KeyView> keys, std::span<FindReply> replies) {
        combine(state_->finds, keys, replies,
                [this](auto some, auto answers) { inner_.find(some, answers); });
    }

    // People and sweepers ask these, seldom; and they must not be repeated unasked.
    void resolve(std::span<const ResolveRequest> requests, std::span<ResolveReply> replies) {
        inner_.resolve(requests, replies);
    }
    void reap(std::span<const ReapRequest> requests, std::span<ReapReply> replies) {
        inner_.reap(requests, replies);
    }
    void forget(std::span<const ForgetRequest> requests, std::span<ForgetReply> replies) {
        inner_.forget(requests, replies);
    }
    [[nodiscard]] ListPage list(const ListQuery& query) { return inner_.list(query); }
    [[nodiscard]] PurgeReply purge(std::size_t limit) { return inner_.purge(limit); }

    /// One request's time in the queue, and one batch's. Zero where the store below does not say.
    [[nodiscard]] Duration time_allowed() const { return 2 * time_allowed_by(inner_); }
    [[nodiscard]] std::shared_ptr<void> watch(const KeyView& key, std::function<void()> notice) {
        return watch_with(inner_, key, std::move(notice));
    }

    /// Of a store that was made before fork: nothing.
    [[nodiscard]] CombiningUsage usage() const {
        CombiningUsage sum;
        if (!state_->made_in.here()) return sum;
        const auto add = [&](const detail::CombinerCounts& counts) {
            sum.items += counts.items;
            sum.batches += counts.batches;
            sum.waiting += counts.waiting;
        };
        add(state_->claims.counts());
        add(state_->finishes.counts());
        add(state_->renewals.counts());
        add(state_->issues.counts());
        add(state_->finds.counts());
        return sum;
    }

private:
    struct State {
        explicit State(const CombiningOptions& o)
            : claims(limits(o), o.under_way_max, o.queue_max),
              finishes(limits(o), o.under_way_max, o.queue_max),
              renewals(limits(o), o.under_way_max, o.queue_max),
              issues(limits(o), o.under_way_max, o.queue_max),
              finds(limits(o), o.under_way_max, o.queue_max) {}

        detail::Combiner<ClaimRequest, ClaimReply> claims;
        detail::Combiner<FinishRequest, FinishReply> finishes;
        detail::Combiner<RenewRequest, RenewReply> renewals;
        detail::Combiner<IssueRequest, IssueReply> issues;
        detail::Combiner<KeyView, FindReply> finds;
        detail::MadeIn made_in{};
    };

    [[nodiscard]] static detail::ChunkLimits limits(const CombiningOptions& options) noexcept {
        return {.items = options.items_max, .bytes = options.bytes_max};
    }
    [[nodiscard]] static const CombiningOptions& check(const CombiningOptions& options) {
        for (const auto& [value, name] :
             {std::pair{options.items_max, "items_max"}, std::pair{options.bytes_max, "bytes_max"},
              std::pair{options.under_way_max, "under_way_max"}})
            if (value == 0) throw UsageError(std::string("CombiningOptions::") + name + " is 0");
        return options;
    }

    template <class Request, class Reply, class Ask>
    void combine(detail::Combiner<Request, Reply>& combiner, std::span<const Request> requests,
                 std::span<Reply> replies, Ask ask) {
        if (requests.empty()) return;
        // The parent's threads, which a child has not, may hold the combiner's locks.
        if (!state_->made_in.here()) return ask(requests, replies);
        const Duration allowed = time_allowed_by(inner_);
        combiner(requests, replies,
                 allowed > allowed.zero() ? std::optional(allowed) : std::nullopt, ask);
    }

    Store inner_;
    std::shared_ptr<State> state_;
};

}  // namespace idem::inline v0_1

#endif
