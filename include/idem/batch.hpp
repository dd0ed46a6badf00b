#ifndef IDEM_BATCH_HPP
#define IDEM_BATCH_HPP

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <idem/claim.hpp>
#include <idem/detail/fork.hpp>
#include <idem/running.hpp>

namespace idem::inline v0_1 {

/// One item of `run_batch`.
struct BatchCall {
    Key key;
    Fingerprint fingerprint{};
    std::string request_id{};
};

namespace detail {

template <class Handler>
concept item_handler = std::invocable<Handler, Execution&, std::size_t>;
template <class Handler>
concept batch_handler = std::invocable<Handler, std::span<Execution* const>>;

template <class Handler>
struct BatchResult {};
template <item_handler Handler>
struct BatchResult<Handler>
    : CheckedResult<std::invoke_result_t<Handler, Execution&, std::size_t>> {};
template <batch_handler Handler>
struct BatchResult<Handler>
    : CheckedResult<
          typename std::invoke_result_t<Handler, std::span<Execution* const>>::value_type> {};

/// A batch under way: claims in one request, runs what was acquired, answers the rest. Does not
/// wait for keys that are in progress elsewhere.
template <class V>
class Batch {
public:
    using Value = typename Outcome<V>::Value;

    Batch(GuardState& guard, std::span<const BatchCall> calls)
        : guard_(guard), items_(calls.size()), outcomes_(calls.size()) {
        const auto begin = LocalClock::now();
        const GuardOptions& options = guard.options();
        for (std::size_t i = 0; i < calls.size(); ++i) {
            const KeyView given(guard.component(), calls[i].key);
            validate(given);
            Item& item = items_[i];
            const auto [first, fresh] = firsts_.emplace(encode_key(given), i);
            item.first = first->second;
            item.request_id = calls[i].request_id;
            // Refers to nothing of the caller's: a handler may change what it was called with.
            item.call.emplace(Call{.guard = guard,
                                   .key = decode_key(first->first).value(),
                                   .fingerprint = calls[i].fingerprint,
                                   .lease = options.lease,
                                   .retention = options.retention,
                                   .request_id = item.request_id,
                                   .begin = begin});
            if (!fresh) continue;
            item.admission = std::make_unique<Admission>(*item.call);
            fresh_.push_back(i);
        }
    }

    /// What was claimed and not begun is given back, whatever ended the batch.
    ~Batch() {
        if (generation_ != process_generation()) return;  // they are the parent's
        for (const std::size_t i : acquired_) {
            Item& item = items_[i];
            if (item.begun || item.claimed.unprotected) continue;
            if (!item.live) {
                give_back(*item.call, item.claimed);
            } else {
                roll_back(*item.call, *item.live, nullptr,
                          {FailureClass::retryable, "not begun", {}}, false);
            }
        }
    }
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

    /// One request for all distinct keys.
    void claim() {
        std::vector<ClaimRequest> requests;
        std::vector<ClaimReply> replies(fresh_.size());
        for (const std::size_t i : fresh_) {
            items_[i].claimed.owner = new_owner();
            requests.push_back(claim_request(*items_[i].call, items_[i].claimed.owner));
        }
        const auto sent = LocalClock::now();
        try {
            guard_.claim(requests, replies);
        } catch (...) {
            for (const std::size_t i : fresh_)
                give_up_claim(*items_[i].call, items_[i].claimed.owner);
            throw;
        }
        for (std::size_t n = 0; n < fresh_.size(); ++n) {
            Item& item = items_[fresh_[n]];
            item.claimed.reply = std::move(replies[n]);
            item.claimed.sent = sent;
            sort_in(fresh_[n]);
        }
    }

    /// All are entered before the first one runs: their leases are renewed while they wait.
    template <class Handler>
    void run_each(Handler& handler) {
        const auto entered = enter_all();
        RunningTogether here;  // one's handler that waited for another would wait for itself
        for (const std::size_t i : entered) here.add(items_[i].call->key, items_[i].claimed.reply);
        for (const std::size_t i : entered) {
            Item& item = items_[i];
            guarded(i, [&]() -> std::optional<Outcome<V>> {
                const auto one = [&](Execution& execution) {
                    return std::invoke(handler, execution, i);
                };
                item.begun = true;
                return run_entered<V>(*item.call, *item.admission, item.claimed.reply, *item.live,
                                      *item.execution, one);
            });
            item.live->leave();
        }
    }

    /// One call of the handler for all that was acquired; then each result is recorded.
    template <class Handler>
    void run_together(Handler& handler) {
        std::vector<std::size_t> ready;
        std::vector<Execution*> executions;
        RunningTogether here;
        for (const std::size_t i : enter_all()) {
            Item& item = items_[i];
            item.begun = true;
            guarded(i, [&]() -> std::optional<Outcome<V>> {
                begin_or_refuse(*item.call, *item.admission, *item.live);
                here.add(item.call->key, item.claimed.reply);
                if (item.claimed.reply.verify) {
                    if (auto verified =
                            verify<V>(*item.call, *item.admission, *item.live, *item.execution))
                        return verified;
                }
                executions.push_back(&*item.execution);
                ready.push_back(i);
                item.begun = false;
                return std::nullopt;
            });
        }
        if (ready.empty()) return;
        for (const std::size_t i : ready) items_[i].begun = true;
        using Results = std::invoke_result_t<Handler&, std::span<Execution* const>>;
        std::optional<Results> results;
        try {
            results.emplace(std::invoke(handler, std::span<Execution* const>(executions)));
        } catch (...) {
            const auto error = std::current_exception();
            const Failure failure = failure_of(guard_.options(), error);
            for (const std::size_t i : ready) {
                roll_back(*items_[i].call, *items_[i].live, &*items_[i].execution, failure);
                outcomes_[i].error = error;
            }
            if (!error) throw;  // not C++'s: a cancelled thread, which must go on unwinding
            return;
        }
        settle_all(ready, *results);
    }

    /// Repeats of a key inside the batch get the first one's answer; another request a mismatch.
    [[nodiscard]] std::vector<BatchOutcome<V>> answers() && {
        for (std::size_t i = 0; i < items_.size(); ++i)
            if (items_[i].first != i) outcomes_[i] = repeat_of(i);
        return std::move(outcomes_);
    }

private:
    /// The claims of the batch, all of this thread; the last in goes out first.
    class RunningTogether {
    public:
        RunningTogether() = default;
        ~RunningTogether() {
            while (!here_.empty()) here_.pop_back();
        }
        RunningTogether(const RunningTogether&) = delete;
        RunningTogether& operator=(const RunningTogether&) = delete;
        void add(const KeyView& key, const ClaimReply& acquired) {
            here_.emplace_back(key, acquired);
        }

    private:
        std::list<RunningHere> here_{};
    };

    struct Item {
        std::string request_id{};
        std::optional<Call> call{};
        std::size_t first = 0;
        std::unique_ptr<Admission> admission{};
        Claimed claimed{};
        std::optional<LiveClaim> live{};
        std::optional<Execution> execution{};
        bool begun = false;  ///< From here on it is settled by what comes of it.
    };

    template <class Step>
    void guarded(std::size_t i, Step&& step) {
        try {
            if (std::optional<Outcome<V>> outcome = step())
                outcomes_[i].outcome.emplace(*std::move(outcome));
        } catch (...) {
            outcomes_[i].error = std::current_exception();
            if (!outcomes_[i].error) throw;  // a cancelled thread
        }
    }

    void sort_in(std::size_t i) {
        Item& item = items_[i];
        guarded(i, [&]() -> std::optional<Outcome<V>> {
            meet_trouble(*item.call, item.claimed);
            if (!item.claimed.unprotected && item.claimed.reply.kind != ClaimKind::acquired)
                return answer<V>(*item.call, item.claimed);
            acquired_.push_back(i);
            return std::nullopt;
        });
    }

    /// The items that are held from here on.
    [[nodiscard]] std::vector<std::size_t> enter_all() {
        std::vector<std::size_t> entered;
        for (const std::size_t i : acquired_) {
            guarded(i, [&]() -> std::optional<Outcome<V>> {
                Item& item = items_[i];
                const ClaimReply& reply = item.claimed.reply;
                tell_takeover(*item.call, reply);
                entered.push_back(i);
                try {
                    hold(*item.call, item.claimed,
                         [&] { item.live.emplace(guard_, terms_of(*item.call, item.claimed)); });
                } catch (...) {  // given back
                    entered.pop_back();
                    item.begun = true;
                    throw;
                }
                item.execution.emplace(*item.live, reply.attempt, reply.takeover, reply.checkpoint,
                                       reply.resource, i);
                return std::nullopt;
            });
        }
        return entered;
    }

    template <class Results>
    void settle_all(const std::vector<std::size_t>& ready, Results& results) {
        const bool fits = results.size() == ready.size();
        for (std::size_t n = 0; n < ready.size(); ++n) {
            Item& item = items_[ready[n]];
            guarded(ready[n], [&]() -> std::optional<Outcome<V>> {
                if (!fits) {
                    roll_back(*item.call, *item.live, &*item.execution,
                              {FailureClass::unknown, "batch_size",
                               "the batch handler gave another number of results"});
                    throw UsageError("a batch handler returns one result per execution");
                }
                return settle_or_hold<V>(*item.call, *item.live, *item.execution,
                                         std::move(results[n]));
            });
            item.live->leave();
        }
    }

    [[nodiscard]] BatchOutcome<V> repeat_of(std::size_t i) const {
        const Item& first = items_[items_[i].first];
        const Call& call = *items_[i].call;
        const bool both = call.fingerprint.present() && first.call->fingerprint.present();
        BatchOutcome<V> out;
        if (both && call.fingerprint != first.call->fingerprint) {
            OutcomeDetails details;
            details.kind = OutcomeKind::mismatch;
            out.outcome.emplace(std::move(details));
        } else if (const auto& given = outcomes_[items_[i].first]; given.error) {
            out.error = given.error;
        } else {
            OutcomeDetails details = given.outcome->details();
            if (details.kind == OutcomeKind::executed) details.kind = OutcomeKind::replayed;
            out.outcome.emplace(std::move(details), copy_of(*given.outcome));
        }
        if (out.outcome) call.tell(event_of(out.outcome->kind()), {.detail = "same batch"});
        return out;
    }

    [[nodiscard]] static std::optional<Value> copy_of(const Outcome<V>& given) {
        if (!given.has_value()) return std::nullopt;
        if constexpr (std::copy_constructible<Value>) {
            return given.value();
        } else {
            std::string bytes;
            Codec<Value>::encode(given.value(), bytes);
            return Codec<Value>::decode(bytes, Codec<Value>::version);
        }
    }

    GuardState& guard_;
    std::uint32_t generation_ = process_generation();
    std::vector<Item> items_;
    std::vector<BatchOutcome<V>> outcomes_;
    std::unordered_map<std::string, std::size_t> firsts_{};
    std::vector<std::size_t> fresh_{};
    std::vector<std::size_t> acquired_{};
};

}  // namespace detail

}  // namespace idem::inline v0_1

#endif
