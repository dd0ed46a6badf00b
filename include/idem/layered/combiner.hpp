#ifndef IDEM_LAYERED_COMBINER_HPP
#define IDEM_LAYERED_COMBINER_HPP

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <idem/clock.hpp>
#include <idem/detail/chunk.hpp>
#include <idem/detail/no_cancel.hpp>
#include <idem/operation.hpp>

namespace idem::inline v0_1::detail {

/// What a combiner has done so far.
struct CombinerCounts {
    std::uint64_t items = 0;    ///< Requests of callers.
    std::uint64_t batches = 0;  ///< Calls of the store that they took.
    std::size_t waiting = 0;    ///< Callers in the queue now.
};

/// Makes one batch of what many threads ask at the same moment. Whoever comes while nothing is
/// under way goes at once; whoever comes meanwhile queues up, and the first in the queue carries
/// for all behind it as soon as the way is free. No thread of its own; each caller stays until its
/// own answer is there, so the bytes that its requests refer to live long enough.
///
/// Only for operations that may be repeated: where the batch of another fails by an exception,
/// each one in it asks again for itself.
template <class Request, class Reply>
class Combiner {
public:
    Combiner(ChunkLimits limits, std::size_t under_way_max, std::size_t queue_max)
        : limits_(limits), under_way_max_(under_way_max), queue_max_(queue_max) {}

    Combiner(const Combiner&) = delete;
    Combiner& operator=(const Combiner&) = delete;
    ~Combiner() = default;

    /// `ask(requests, replies)` is one call of the store. Whoever has not been taken along within
    /// `patience` gets `unavailable`: nothing was sent for it.
    template <class Ask>
    void operator()(std::span<const Request> requests, std::span<Reply> replies,
                    std::optional<Duration> patience, Ask&& ask) {
        items_.fetch_add(requests.size(), std::memory_order_relaxed);
        Caller caller{.requests = requests, .replies = replies, .weight = weight_of_all(requests)};
        // As large as a batch may be, or more than one may wait: it needs nobody's company.
        if (requests.size() >= limits_.items || caller.weight >= limits_.bytes)
            return alone(caller, ask);
        const NoCancel no_cancel;  // others hold on to what is on this stack
        switch (enter(caller)) {
            case Entry::free: {
                const Turn turn(*this);
                return alone(caller, ask);
            }
            case Entry::full: return alone(caller, ask);
            case Entry::queued: break;
        }
        switch (wait(caller, patience)) {
            case Part::queued: return give_up(replies);
            case Part::answered: return;
            case Part::carries:
                if (carried(caller, ask)) return;
                break;
            case Part::taken:  // never left in it
            case Part::left_alone: break;
        }
        alone(caller, ask);
    }

    [[nodiscard]] CombinerCounts counts() const {
        const std::lock_guard lock(mutex_);
        return {items_.load(std::memory_order_relaxed), batches_.load(std::memory_order_relaxed),
                queued_};
    }

private:
    enum class Entry : std::uint8_t { free, full, queued };
    enum class Part : std::uint8_t {
        queued,      ///< Nobody has it yet: it may still leave.
        taken,       ///< In somebody's batch, which must end first.
        carries,     ///< Its own turn to carry.
        answered,    ///< Its replies are there.
        left_alone,  ///< The batch it was in came to nothing.
    };

    /// One call, on its caller's stack. `part` leaves `queued` only under both mutexes.
    struct Caller {
        std::span<const Request> requests{};
        std::span<Reply> replies{};
        std::size_t weight = 0;
        Caller* next = nullptr;
        Part part = Part::queued;
        std::mutex mutex{};
        std::condition_variable changed{};

        void become(Part now) {
            const std::lock_guard lock(mutex);
            part = now;
            // Under the mutex: the caller is gone as soon as it has seen the change.
            if (now != Part::taken) changed.notify_one();
        }
    };

    /// The right to have a batch under way. Passed on to the first in the queue, whatever happens.
    class Turn {
    public:
        explicit Turn(Combiner& of) noexcept : of_(of) {}
        Turn(const Turn&) = delete;
        Turn& operator=(const Turn&) = delete;
        ~Turn() { of_.pass_on(); }

    private:
        Combiner& of_;
    };

    /// Callers that were taken along. Whoever has no answer when this ends is left alone.
    class Company {
    public:
        Company() = default;
        Company(const Company&) = delete;
        Company& operator=(const Company&) = delete;
        ~Company() {
            while (Caller* caller = pop()) caller->become(Part::left_alone);
        }
        void push(Caller* caller) noexcept {
            caller->next = nullptr;
            (last_ == nullptr ? first_ : last_->next) = caller;
            last_ = caller;
        }
        [[nodiscard]] Caller* pop() noexcept {
            Caller* caller = first_;
            if (caller != nullptr) first_ = caller->next;
            return caller;
        }

    private:
        Caller* first_ = nullptr;
        Caller* last_ = nullptr;
    };

    [[nodiscard]] static std::size_t weight_of_all(std::span<const Request> requests) {
        std::size_t sum = 0;
        for (const Request& request : requests) sum += weight_of(request);
        return sum;
    }
    static void give_up(std::span<Reply> replies) {
        for (Reply& reply : replies)
            reply.trouble = Trouble::unavailable(
                "the time allowed was over before others' requests had gone out", false);
    }

    template <class Ask>
    void alone(Caller& caller, Ask& ask) {
        batches_.fetch_add(1, std::memory_order_relaxed);
        ask(caller.requests, caller.replies);
    }

    [[nodiscard]] Entry enter(Caller& caller) {
        const std::lock_guard lock(mutex_);
        if (first_ == nullptr && under_way_ < under_way_max_) {
            ++under_way_;
            return Entry::free;
        }
        if (queued_ >= queue_max_) return Entry::full;
        (last_ == nullptr ? first_ : last_->next) = &caller;
        last_ = &caller;
        ++queued_;
        return Entry::queued;
    }

    /// Until the caller's part is settled, or it has left the queue out of impatience.
    [[nodiscard]] Part wait(Caller& caller, std::optional<Duration> patience) {
        const auto settled = [&] {
            return caller.part != Part::queued && caller.part != Part::taken;
        };
        std::unique_lock lock(caller.mutex);
        if (patience && !caller.changed.wait_for(lock, *patience, settled)) {
            lock.unlock();
            if (left_queue(caller)) return Part::queued;
            lock.lock();
        }
        caller.changed.wait(lock, settled);
        return caller.part;
    }
    [[nodiscard]] bool left_queue(Caller& caller) {
        const std::lock_guard lock(mutex_);
        Caller* before = nullptr;
        for (Caller* at = first_; at != nullptr; before = std::exchange(at, at->next)) {
            if (at != &caller) continue;
            (before == nullptr ? first_ : before->next) = at->next;
            if (last_ == at) last_ = before;
            --queued_;
            return true;
        }
        return false;
    }
    [[nodiscard]] Caller* pop() {
        Caller* caller = first_;
        first_ = caller->next;
        if (first_ == nullptr) last_ = nullptr;
        --queued_;
        return caller;
    }

    void pass_on() {
        const std::lock_guard lock(mutex_);
        if (first_ == nullptr) {
            --under_way_;
        } else {
            pop()->become(Part::carries);
        }
    }

    /// False where the batch came to nothing: then its carrier is left alone as everybody in it.
    template <class Ask>
    [[nodiscard]] bool carried(Caller& caller, Ask& ask) {
        Company company;
        std::vector<Reply> replies;
        try {
            const Turn turn(*this);
            std::vector<Request> requests;
            requests.reserve(limits_.items);
            add(requests, caller);
            take_along(caller, company, requests);
            replies.resize(requests.size());
            batches_.fetch_add(1, std::memory_order_relaxed);
            ask(std::span<const Request>(requests), std::span(replies));
        } catch (...) {  // one item too large for the memory must not cost the others their answer
            return false;
        }
        // The next batch may be under way by now.
        auto from = replies.begin();
        hand_out(from, caller);
        while (Caller* other = company.pop()) {
            hand_out(from, *other);
            other->become(Part::answered);
        }
        return true;
    }
    static void add(std::vector<Request>& requests, const Caller& caller) {
        requests.insert(requests.end(), caller.requests.begin(), caller.requests.end());
    }
    static void hand_out(typename std::vector<Reply>::iterator& from, Caller& caller) {
        const auto end = from + std::ssize(caller.replies);
        std::move(from, end, caller.replies.begin());
        from = end;
    }
    /// As many of those behind as one batch may hold.
    void take_along(const Caller& caller, Company& company, std::vector<Request>& requests) {
        std::size_t weight = caller.weight;
        const std::lock_guard lock(mutex_);
        while (first_ != nullptr && requests.size() + first_->requests.size() <= limits_.items &&
               weight + first_->weight <= limits_.bytes) {
            weight += first_->weight;
            add(requests, *first_);  // has its room already
            Caller* taken = pop();
            taken->become(Part::taken);
            company.push(taken);
        }
    }

    const ChunkLimits limits_;
    const std::size_t under_way_max_;
    const std::size_t queue_max_;
    mutable std::mutex mutex_{};
    Caller* first_ = nullptr;
    Caller* last_ = nullptr;
    std::size_t queued_ = 0;
    std::size_t under_way_ = 0;
    std::atomic<std::uint64_t> items_{0};
    std::atomic<std::uint64_t> batches_{0};
};

}  // namespace idem::inline v0_1::detail

#endif
