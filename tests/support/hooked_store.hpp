#ifndef IDEM_TESTS_SUPPORT_HOOKED_STORE_HPP
#define IDEM_TESTS_SUPPORT_HOOKED_STORE_HPP

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include <idem/store.hpp>

namespace idem_test {

/// What the wire does to one request.
enum class Wire {
    good,
    refused,    ///< It never leaves: nothing is written.
    lost,       ///< It is carried out, and the answer does not come back.
    bad_alloc,  ///< The store throws; nothing is written.
    thrown,     ///< It is carried out, then something that is no std::exception is thrown.
};

/// A store that lets a test step in before and after each claim, finish and renewal. A handle, as
/// any store; hooks are called outside its lock, by whichever thread asks the store. What a hook
/// refers to must outlive every guard's background work: capture shared pointers by value.
template <idem::store Store>
class HookedStore {
public:
    template <class Request>
    using Before = std::function<Wire(const Request&)>;
    template <class Request, class Reply>
    using After = std::function<void(const Request&, const Reply&)>;

    explicit HookedStore(Store store, idem::Duration time_allowed = {})
        : shared_(std::make_shared<Shared>(std::move(store), time_allowed)) {}

    void on_claim(Before<idem::ClaimRequest> hook) { set(shared_->claims.before, hook); }
    void on_finish(Before<idem::FinishRequest> hook) { set(shared_->finishes.before, hook); }
    void on_renew(Before<idem::RenewRequest> hook) { set(shared_->renewals.before, hook); }
    void after_claim(After<idem::ClaimRequest, idem::ClaimReply> hook) {
        set(shared_->claims.after, hook);
    }
    void after_renew(After<idem::RenewRequest, idem::RenewReply> hook) {
        set(shared_->renewals.after, hook);
    }

    /// Requests so far that have been answered, in whatever way.
    [[nodiscard]] std::size_t claims() const { return count(shared_->claims); }
    [[nodiscard]] std::size_t finishes() const { return count(shared_->finishes); }
    [[nodiscard]] std::size_t renewals() const { return count(shared_->renewals); }
    void wait_for_claims(std::size_t number) const { wait(shared_->claims, number); }
    void wait_for_finishes(std::size_t number) const { wait(shared_->finishes, number); }
    void wait_for_renewals(std::size_t number) const { wait(shared_->renewals, number); }

    // --- the store ------------------------------------------------------------------------------

    void claim(std::span<const idem::ClaimRequest> requests, std::span<idem::ClaimReply> replies) {
        each(shared_->claims, requests, replies,
             [&](const auto& request) { return idem::claim_one(shared_->store, request); });
    }
    void finish(std::span<const idem::FinishRequest> requests,
                std::span<idem::FinishReply> replies) {
        each(shared_->finishes, requests, replies,
             [&](const auto& request) { return idem::finish_one(shared_->store, request); });
    }
    void renew(std::span<const idem::RenewRequest> requests, std::span<idem::RenewReply> replies) {
        each(shared_->renewals, requests, replies,
             [&](const auto& request) { return idem::renew_one(shared_->store, request); });
    }
    void issue(std::span<const idem::IssueRequest> requests, std::span<idem::IssueReply> replies) {
        shared_->store.issue(requests, replies);
    }
    void resolve(std::span<const idem::ResolveRequest> requests,
                 std::span<idem::ResolveReply> replies) {
        shared_->store.resolve(requests, replies);
    }
    void reap(std::span<const idem::ReapRequest> requests, std::span<idem::ReapReply> replies) {
        shared_->store.reap(requests, replies);
    }
    void find(std::span<const idem::KeyView> keys, std::span<idem::FindReply> replies) {
        shared_->store.find(keys, replies);
    }
    void forget(std::span<const idem::ForgetRequest> requests,
                std::span<idem::ForgetReply> replies) {
        shared_->store.forget(requests, replies);
    }
    [[nodiscard]] idem::ListPage list(const idem::ListQuery& query) {
        return shared_->store.list(query);
    }
    [[nodiscard]] idem::PurgeReply purge(std::size_t limit) { return shared_->store.purge(limit); }
    [[nodiscard]] idem::Duration time_allowed() const { return shared_->time_allowed; }

private:
    template <class Request, class Reply>
    struct Operation {
        Before<Request> before{};
        After<Request, Reply> after{};
        std::size_t count = 0;
    };
    struct Shared {
        Shared(Store s, idem::Duration t) : store(std::move(s)), time_allowed(t) {}
        Store store;
        idem::Duration time_allowed;
        std::mutex mutex{};
        std::condition_variable counted{};
        Operation<idem::ClaimRequest, idem::ClaimReply> claims{};
        Operation<idem::FinishRequest, idem::FinishReply> finishes{};
        Operation<idem::RenewRequest, idem::RenewReply> renewals{};
    };

    template <class Hook>
    void set(Hook& place, Hook& hook) {
        std::scoped_lock const lock(shared_->mutex);
        place = std::move(hook);
    }
    template <class Op>
    [[nodiscard]] std::size_t count(const Op& operation) const {
        std::scoped_lock const lock(shared_->mutex);
        return operation.count;
    }
    template <class Op>
    void wait(const Op& operation, std::size_t number) const {
        std::unique_lock lock(shared_->mutex);
        shared_->counted.wait(lock, [&] { return operation.count >= number; });
    }

    template <class Op, class Request, class Reply, class Ask>
    void each(Op& operation, std::span<const Request> requests, std::span<Reply> replies, Ask ask) {
        for (std::size_t i = 0; i < requests.size(); ++i) {
            const auto [before, after] = [&] {
                std::scoped_lock const lock(shared_->mutex);
                return std::pair(operation.before, operation.after);
            }();
            const Wire wire = before ? before(requests[i]) : Wire::good;
            replies[i] = Reply{};
            if (wire == Wire::good || wire == Wire::lost || wire == Wire::thrown)
                replies[i] = ask(requests[i]);
            if (wire == Wire::good && after) after(requests[i], replies[i]);
            if (wire == Wire::refused || wire == Wire::lost) {
                replies[i] = Reply{};
                replies[i].trouble =
                    idem::Trouble::unavailable("the wire is cut", wire == Wire::lost);
            }
            {
                std::scoped_lock const lock(shared_->mutex);
                ++operation.count;
            }
            shared_->counted.notify_all();
            if (wire == Wire::bad_alloc) throw std::bad_alloc{};
            if (wire == Wire::thrown) throw 17;
        }
    }

    std::shared_ptr<Shared> shared_;
};

}  // namespace idem_test

#endif
