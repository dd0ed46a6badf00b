#ifndef IDEM_POSTGRES_TRANSACTION_HPP
#define IDEM_POSTGRES_TRANSACTION_HPP

#include <concepts>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include <idem/claiming.hpp>
#include <idem/codec.hpp>
#include <idem/outcome.hpp>
#include <idem/postgres/guarded_transaction.hpp>
#include <idem/running.hpp>
#include <idem/settle.hpp>

namespace idem::inline v0_1 {

/// What a handler knows of the transaction that it runs in. Valid until it returns.
class Transaction {
public:
    Transaction(PGconn* connection, const ClaimReply& acquired)
        : connection_(connection), acquired_(acquired), resource_(acquired.resource) {}

    /// The caller's own connection: what is written on it commits and rolls back with the record.
    [[nodiscard]] PGconn* connection() const noexcept { return connection_; }
    /// Grows with every acquisition of the key, also over those that were rolled back.
    [[nodiscard]] Fence fence() const noexcept { return acquired_.fence; }
    [[nodiscard]] std::uint32_t attempt() const noexcept { return acquired_.attempt; }
    /// A holder outside of transactions vanished: its effect may have happened.
    [[nodiscard]] bool takeover() const noexcept { return acquired_.takeover; }

    /// The stable id of what this call makes (row id, URL); replayed with the result.
    void resource(std::string id) { resource_ = std::move(id); }
    [[nodiscard]] const std::string& resource() const noexcept { return resource_; }

private:
    PGconn* connection_;
    const ClaimReply& acquired_;
    std::string resource_;
};

namespace postgres::detail {

template <class Handler>
concept transaction_handler = std::invocable<Handler, Transaction&> || std::invocable<Handler>;

template <class Handler>
struct Returned : std::invoke_result<Handler> {};
template <std::invocable<Transaction&> Handler>
struct Returned<Handler> : std::invoke_result<Handler, Transaction&> {};

template <class Handler>
using ResultOf = typename idem::detail::CheckedResult<typename Returned<Handler>::type>::Type;

template <class Handler>
[[nodiscard]] auto call(Handler&& handler, Transaction& transaction) {
    const auto invoke = [&]() -> decltype(auto) {
        if constexpr (std::invocable<Handler, Transaction&>) {
            return std::invoke(std::forward<Handler>(handler), transaction);
        } else {
            return std::invoke(std::forward<Handler>(handler));
        }
    };
    if constexpr (std::is_void_v<decltype(invoke())>) {
        invoke();
        return std::monostate{};
    } else {
        return invoke();
    }
}

/// The handler's rows go; a final or unknown failure stays, a retryable one leaves nothing.
inline void settle_failure(GuardedTransaction& work, const Transaction& transaction,
                           const Failure& failure) {
    const bool kept = failure.kind == FailureClass::final || failure.kind == FailureClass::unknown;
    if (!kept || !work.undo_work()) return work.undo();
    FinishRequest request;
    request.kind = failure.kind == FailureClass::final ? FinishKind::fail : FinishKind::quarantine;
    request.failure = failure.kind;
    request.failure_code = failure.code;
    request.failure_message = failure.message;
    if (!transaction.resource().empty()) request.resource = transaction.resource();
    work.finish(request);
}

[[nodiscard]] inline OutcomeDetails details_of(const ClaimReply& acquired, OutcomeKind kind) {
    OutcomeDetails details;
    details.kind = kind;
    details.takeover = acquired.takeover;
    details.attempt = acquired.attempt;
    details.fence = acquired.fence;
    details.started = acquired.started;
    return details;
}

/// The answer to a call that did not get to run. @throws CodecError.
template <class V>
[[nodiscard]] Outcome<V> answer_of(ClaimReply reply) {
    using Value = typename Outcome<V>::Value;
    idem::detail::Claimed claimed{.reply = std::move(reply)};
    OutcomeDetails details = idem::detail::details_of(claimed);
    std::optional<Value> value;
    if (details.kind == OutcomeKind::replayed && details.result == ResultKind::value)
        value.emplace(decode_result<Value>(claimed.reply.codec, claimed.reply.result));
    return Outcome<V>(std::move(details), std::move(value));
}

/// Records what the handler returned.
template <class V, class R>
[[nodiscard]] Outcome<V> settle_returned(GuardedTransaction& work, const Transaction& transaction,
                                         const ClaimReply& acquired, R returned,
                                         std::size_t bytes_max) {
    if (auto failure = idem::detail::failure_in(returned);
        failure && failure->kind != FailureClass::none) {
        failure = idem::detail::cut(*std::move(failure));
        settle_failure(work, transaction, *failure);
        OutcomeDetails details =
            details_of(acquired, failure->kind == FailureClass::unknown ? OutcomeKind::unknown
                                                                        : OutcomeKind::failed);
        details.failure = *std::move(failure);
        return Outcome<V>(std::move(details));
    }
    using Value = typename Outcome<V>::Value;
    Value value = [&]() -> Value {
        if constexpr (!expected_like<R>) {
            return std::move(returned);
        } else if constexpr (std::is_void_v<V>) {
            return {};
        } else {
            return std::move(returned).value();
        }
    }();
    const auto encoded = idem::detail::encode_result(value, bytes_max);
    FinishRequest request;
    request.kind = FinishKind::complete;
    request.result_kind = encoded.kind;
    request.codec = encoded.codec;
    request.result = encoded.bytes;
    if (!transaction.resource().empty()) request.resource = transaction.resource();
    work.finish(request);
    OutcomeDetails details = details_of(acquired, OutcomeKind::executed);
    details.result = encoded.kind;
    details.resource = transaction.resource();
    return Outcome<V>(std::move(details), std::move(value));
}

}  // namespace postgres::detail

/// Runs `handler`, `R()` or `R(Transaction&)`, so that its rows on this connection, the claim of
/// the key and the result are there together or not at all: no crash falls between them, and no
/// lease is needed. On an idle connection this call begins and commits. Inside a transaction of the
/// caller's it works under a savepoint, and what it says holds once the caller has committed.
///
/// A repeat gets the first answer and leaves the caller's transaction usable. One that comes while
/// the first has not ended waits for it on the unique index, `wait` long: then it replays, or runs
/// where the first rolled back, or is `in_progress`. A throw of the handler undoes its rows and
/// reaches the caller unchanged; a final or unknown failure is recorded in their place.
/// A commit whose answer is lost is looked up on another connection: executed, or
/// `UnavailableError`; this one is then of no more use (`PQtransactionStatus` is not idle): close
/// it. The same where the handler has left a query, a COPY or a pipeline unfinished: nothing can be
/// rolled back on it any more. Effects outside of this database are not part of the transaction.
/// @throws ConflictError: at REPEATABLE READ or SERIALIZABLE a loser cannot see who won, or the
/// server chose this transaction to end a deadlock: roll back and run it again with the same key.
/// UnavailableError: nothing was committed, unless `may_have_applied`; a connection that broke is
/// for the caller to close. SchemaError, CodecError, UsageError.
/// For one thread at a time, as the connection is.
template <postgres::detail::transaction_handler Handler>
[[nodiscard]] auto transact(PGconn* connection, const Key& key, const Fingerprint& fingerprint,
                            const TransactionOptions& options, Handler&& handler) {
    using V = postgres::detail::ResultOf<Handler>;
    postgres::GuardedTransaction work(connection, key, options);
    const ClaimReply acquired = work.claim(fingerprint);
    if (acquired.kind != ClaimKind::acquired) return postgres::detail::answer_of<V>(acquired);
    Transaction transaction(connection, acquired);
    auto returned = [&] {
        try {
            return postgres::detail::call(std::forward<Handler>(handler), transaction);
        } catch (...) {
            try {
                const GuardOptions rules{.classify = options.classify};
                postgres::detail::settle_failure(
                    work, transaction, idem::detail::failure_of(rules, std::current_exception()));
            } catch (...) {  // trouble while rolling back never hides what the handler threw
                work.undo();
            }
            throw;
        }
    }();
    return postgres::detail::settle_returned<V>(work, transaction, acquired, std::move(returned),
                                                options.result_bytes_max);
}
template <postgres::detail::transaction_handler Handler>
[[nodiscard]] auto transact(PGconn* connection, const Key& key, const Fingerprint& fingerprint,
                            Handler&& handler) {
    return transact(connection, key, fingerprint, TransactionOptions{},
                    std::forward<Handler>(handler));
}

}  // namespace idem::inline v0_1

#endif
