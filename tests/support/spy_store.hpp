#ifndef IDEM_TESTS_SUPPORT_SPY_STORE_HPP
#define IDEM_TESTS_SUPPORT_SPY_STORE_HPP

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include <idem/memory/store.hpp>
#include <idem/store.hpp>

namespace idem_test {

/// What becomes of one batch on its way.
enum class Way {
    pass,
    refuse,       ///< It never leaves: nothing is written.
    lose_answer,  ///< It is carried out, and nobody hears of it.
    raise,        ///< Something that is no std::exception is thrown; nothing is written.
};

/// An embedded store that counts the batches it gets, and lets a test stop or spoil whole batches.
/// A handle as every store is. What a hook refers to must outlive the background's use of it.
class SpyStore {
public:
    template <class Request>
    using Hook = std::function<Way(std::span<const Request>)>;

    explicit SpyStore(idem::MemoryOptions options = {}, idem::Duration time_allowed = {})
        : shared_(std::make_shared<Shared>(std::move(options), time_allowed)) {}

    void on_claim(Hook<idem::ClaimRequest> hook) { set(shared_->claims, std::move(hook)); }
    void on_finish(Hook<idem::FinishRequest> hook) { set(shared_->finishes, std::move(hook)); }
    void on_renew(Hook<idem::RenewRequest> hook) { set(shared_->renewals, std::move(hook)); }

    /// Batches that have been answered.
    [[nodiscard]] std::size_t claims() const { return shared_->claims.count.load(); }
    [[nodiscard]] std::size_t finishes() const { return shared_->finishes.count.load(); }
    [[nodiscard]] std::size_t renewals() const { return shared_->renewals.count.load(); }
    [[nodiscard]] std::size_t calls() const { return claims() + finishes() + renewals(); }

    void claim(std::span<const idem::ClaimRequest> requests, std::span<idem::ClaimReply> replies) {
        batch(shared_->claims, requests, replies, &idem::MemoryStore::claim);
    }
    void finish(std::span<const idem::FinishRequest> requests,
                std::span<idem::FinishReply> replies) {
        batch(shared_->finishes, requests, replies, &idem::MemoryStore::finish);
    }
    void renew(std::span<const idem::RenewRequest> requests, std::span<idem::RenewReply> replies) {
        batch(shared_->renewals, requests, replies, &idem::MemoryStore::renew);
    }
    void issue(std::span<const idem::IssueRequest> requests, std::span<idem::IssueReply> replies) {
        shared_->store.issue(requests, replies);
    }
    void resolve(std::span<const idem::ResolveRequest> requests,
                 std::span<idem::ResolveReply> replies) {
        unless_down(shared_->down, replies, [&] { shared_->store.resolve(requests, replies); });
    }
    void reap(std::span<const idem::ReapRequest> requests, std::span<idem::ReapReply> replies) {
        shared_->store.reap(requests, replies);
    }
    void find(std::span<const idem::KeyView> keys, std::span<idem::FindReply> replies) {
        unless_down(shared_->down, replies, [&] {
            unless_down(shared_->finds_down, replies, [&] { shared_->store.find(keys, replies); });
        });
    }
    void forget(std::span<const idem::ForgetRequest> requests,
                std::span<idem::ForgetReply> replies) {
        unless_down(shared_->down, replies, [&] { shared_->store.forget(requests, replies); });
    }
    [[nodiscard]] idem::ListPage list(const idem::ListQuery& query) {
        idem::ListPage page;
        unless_down(shared_->down, std::span(&page, 1), [&] { page = shared_->store.list(query); });
        return page;
    }
    [[nodiscard]] idem::PurgeReply purge(std::size_t limit) { return shared_->store.purge(limit); }
    [[nodiscard]] idem::Duration time_allowed() const { return shared_->time_allowed; }

    /// Cuts off what a guard asks, or puts it back.
    void down(bool now) { shared_->down.store(now); }
    /// The same for `find` alone.
    void finds_down(bool now) { shared_->finds_down.store(now); }

private:
    template <class Request>
    struct Operation {
        Hook<Request> hook{};
        std::atomic<std::size_t> count{0};
    };
    struct Shared {
        Shared(idem::MemoryOptions o, idem::Duration t) : store(std::move(o)), time_allowed(t) {}
        idem::MemoryStore store;
        idem::Duration time_allowed;
        std::atomic<bool> down{false};
        std::atomic<bool> finds_down{false};
        std::mutex mutex{};
        Operation<idem::ClaimRequest> claims{};
        Operation<idem::FinishRequest> finishes{};
        Operation<idem::RenewRequest> renewals{};
    };

    template <class Request>
    void set(Operation<Request>& operation, Hook<Request> hook) {
        std::scoped_lock const lock(shared_->mutex);
        operation.hook = std::move(hook);
    }

    template <class Reply, class Ask>
    static void unless_down(const std::atomic<bool>& down, std::span<Reply> replies, Ask ask) {
        if (!down.load()) return ask();
        for (auto& reply : replies) {
            reply = {};
            reply.trouble = idem::Trouble::unavailable("the wire is cut", false);
        }
    }

    template <class Request, class Reply, class Call>
    void batch(Operation<Request>& operation, std::span<const Request> requests,
               std::span<Reply> replies, Call call) {
        const Hook<Request> hook = [&] {
            std::scoped_lock const lock(shared_->mutex);
            return operation.hook;
        }();
        Way way = hook ? hook(requests) : Way::pass;
        if (shared_->down.load()) way = Way::refuse;
        if (way == Way::pass || way == Way::lose_answer) (shared_->store.*call)(requests, replies);
        for (auto& reply : replies) {
            if (way != Way::refuse && way != Way::lose_answer) break;
            reply = {};
            reply.trouble = idem::Trouble::unavailable("the wire is cut", way == Way::lose_answer);
        }
        operation.count.fetch_add(1);
        if (way == Way::raise) throw 17;
    }

    std::shared_ptr<Shared> shared_;
};

static_assert(idem::store<SpyStore>);

}  // namespace idem_test

#endif
