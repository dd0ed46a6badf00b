#ifndef IDEM_TESTING_FAULTY_STORE_HPP
#define IDEM_TESTING_FAULTY_STORE_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <idem/store.hpp>

namespace idem::inline v0_1::testing {

/// The operations of the port, for counting and for choosing which ones fail.
enum class StoreCall : std::uint8_t {
    claim,
    finish,
    renew,
    issue,
    resolve,
    reap,
    find,
    forget,
    list,
    purge,
    count_,
};

/// What goes wrong with a call.
enum class Fault : std::uint8_t {
    none,
    refused,     ///< Not applied, and known not to be.
    not_sent,    ///< Not applied, but the caller cannot know that.
    reply_lost,  ///< Applied, and the caller cannot know that.
    throws,      ///< Not applied; `std::bad_alloc`, the one exception a store may throw.
};

/// A store that fails on demand, around any store: the k-th call from now, or every call while a
/// switch is on, of all operations or of one. Counts the calls, and runs a hook before and after
/// each, so that a test can let another caller in at that very moment.
/// A handle; safe for use from any thread, the hooks too, which run without a lock.
template <store Store>
class FaultyStore {
public:
    using Hook = std::function<void(StoreCall)>;

    explicit FaultyStore(Store inner)
        : inner_(std::move(inner)), shared_(std::make_shared<Shared>()) {}

    /// Fails one call, the `number`-th from now (1 is the next), of `only` or of any operation.
    /// Replaces what was set before.
    void fail_call(std::size_t number, Fault fault, std::optional<StoreCall> only = {}) {
        const std::lock_guard lock(shared_->mutex);
        shared_->countdown = number;
        shared_->one = {fault, only};
    }
    /// Fails every call of `only`, or of any operation, until `heal`.
    void fail_all(Fault fault, std::optional<StoreCall> only = {}) {
        const std::lock_guard lock(shared_->mutex);
        shared_->all = {fault, only};
    }
    void heal() {
        const std::lock_guard lock(shared_->mutex);
        shared_->countdown = 0;
        shared_->all = {};
    }
    void before(Hook hook) {
        const std::lock_guard lock(shared_->mutex);
        shared_->before = std::move(hook);
    }
    void after(Hook hook) {
        const std::lock_guard lock(shared_->mutex);
        shared_->after = std::move(hook);
    }
    /// Calls so far, those that failed included; a batch is one call.
    [[nodiscard]] std::size_t calls(StoreCall call) const {
        const std::lock_guard lock(shared_->mutex);
        return shared_->calls[static_cast<std::size_t>(call)];
    }
    [[nodiscard]] std::size_t calls() const {
        const std::lock_guard lock(shared_->mutex);
        std::size_t sum = 0;
        for (const auto count : shared_->calls) sum += count;
        return sum;
    }
    [[nodiscard]] std::size_t faults() const {
        const std::lock_guard lock(shared_->mutex);
        return shared_->faults;
    }
    [[nodiscard]] Store& inner() noexcept { return inner_; }

    // --- the port --------------------------------------------------------------------------------

    void claim(std::span<const ClaimRequest> requests, std::span<ClaimReply> replies) {
        each(StoreCall::claim, replies, [&] { inner_.claim(requests, replies); });
    }
    void finish(std::span<const FinishRequest> requests, std::span<FinishReply> replies) {
        each(StoreCall::finish, replies, [&] { inner_.finish(requests, replies); });
    }
    void renew(std::span<const RenewRequest> requests, std::span<RenewReply> replies) {
        each(StoreCall::renew, replies, [&] { inner_.renew(requests, replies); });
    }
    void issue(std::span<const IssueRequest> requests, std::span<IssueReply> replies) {
        each(StoreCall::issue, replies, [&] { inner_.issue(requests, replies); });
    }
    void resolve(std::span<const ResolveRequest> requests, std::span<ResolveReply> replies) {
        each(StoreCall::resolve, replies, [&] { inner_.resolve(requests, replies); });
    }
    void reap(std::span<const ReapRequest> requests, std::span<ReapReply> replies) {
        each(StoreCall::reap, replies, [&] { inner_.reap(requests, replies); });
    }
    void find(std::span<const KeyView> keys, std::span<FindReply> replies) {
        each(StoreCall::find, replies, [&] { inner_.find(keys, replies); });
    }
    void forget(std::span<const ForgetRequest> requests, std::span<ForgetReply> replies) {
        each(StoreCall::forget, replies, [&] { inner_.forget(requests, replies); });
    }
    [[nodiscard]] ListPage list(const ListQuery& query) {
        ListPage page;
        each(StoreCall::list, std::span(&page, 1), [&] { page = inner_.list(query); });
        return page;
    }
    [[nodiscard]] PurgeReply purge(std::size_t limit) {
        PurgeReply reply;
        each(StoreCall::purge, std::span(&reply, 1), [&] { reply = inner_.purge(limit); });
        return reply;
    }

private:
    struct Plan {
        Fault fault = Fault::none;
        std::optional<StoreCall> only{};

        [[nodiscard]] bool meets(StoreCall call) const noexcept {
            return fault != Fault::none && (!only || *only == call);
        }
    };
    struct Shared {
        std::mutex mutex{};
        std::array<std::size_t, static_cast<std::size_t>(StoreCall::count_)> calls{};
        std::size_t faults = 0;
        std::size_t countdown = 0;
        Plan one{};
        Plan all{};
        Hook before{};
        Hook after{};
    };

    [[nodiscard]] Fault next_fault(StoreCall call) {
        const std::lock_guard lock(shared_->mutex);
        ++shared_->calls[static_cast<std::size_t>(call)];
        Fault fault = shared_->all.meets(call) ? shared_->all.fault : Fault::none;
        if (shared_->countdown > 0 && shared_->one.meets(call) && --shared_->countdown == 0)
            fault = shared_->one.fault;
        if (fault != Fault::none) ++shared_->faults;
        return fault;
    }

    void run_hook(Hook Shared::*which, StoreCall call) {
        Hook hook;
        {
            const std::lock_guard lock(shared_->mutex);
            hook = (*shared_).*which;
        }
        if (hook) hook(call);
    }

    template <class Reply, class Do>
    void each(StoreCall call, std::span<Reply> replies, Do&& really) {
        run_hook(&Shared::before, call);
        const Fault fault = next_fault(call);
        if (fault == Fault::throws) throw std::bad_alloc{};
        if (fault == Fault::none || fault == Fault::reply_lost) really();
        if (fault != Fault::none) {
            for (Reply& reply : replies) {
                reply = Reply{};
                reply.trouble =
                    Trouble::unavailable("a fault of the test", fault != Fault::refused);
            }
        }
        run_hook(&Shared::after, call);
    }

    Store inner_;
    std::shared_ptr<Shared> shared_;
};

}  // namespace idem::inline v0_1::testing

#endif
