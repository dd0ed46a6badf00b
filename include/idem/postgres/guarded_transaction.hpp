#ifndef IDEM_POSTGRES_GUARDED_TRANSACTION_HPP
#define IDEM_POSTGRES_GUARDED_TRANSACTION_HPP

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <idem/clock.hpp>
#include <idem/error.hpp>
#include <idem/guard_state.hpp>
#include <idem/options.hpp>
#include <idem/postgres/connection.hpp>
#include <idem/postgres/requests.hpp>
#include <idem/postgres/rows.hpp>
#include <idem/postgres/sql.hpp>
#include <idem/postgres/sql_settle.hpp>

namespace idem::inline v0_1 {

/// Settings of `transact`. Durations are positive and at most ten years, `wait` may be 0.
struct TransactionOptions {
    /// Where `PostgresStore::create_schema` made the table.
    std::string schema = "idem";
    std::string table = "records";
    /// How long it waits for another transaction that holds the key; then it is `in_progress`.
    Duration wait = std::chrono::seconds{1};
    /// How long the answer is kept. For an audit: years.
    Duration retention = std::chrono::hours{24};
    /// How long a final or unknown failure is kept.
    Duration held_retention = std::chrono::hours{24 * 30};
    /// For each request to the server, besides `wait`; and for finding out about a commit whose
    /// answer was lost.
    Duration time_allowed = std::chrono::seconds{5};
    std::size_t result_bytes_max = std::size_t{1} << 20U;
    Component component = Component::call;
    bool redeem_only = false;  ///< Only an issued token may be claimed.
    Classify classify{};
};

namespace postgres {

inline void check(const TransactionOptions& o) {
    idem::detail::check_duration(o.retention, "TransactionOptions::retention");
    idem::detail::check_duration(o.held_retention, "TransactionOptions::held_retention");
    idem::detail::check_duration(o.time_allowed, "TransactionOptions::time_allowed");
    if (o.wait < Duration{} || o.wait > std::chrono::hours{24})
        throw UsageError("TransactionOptions::wait must be 0 to a day");
}

/// The connection string that the user's connection was made with, every host of it.
[[nodiscard]] inline std::string conninfo_of(PGconn* connection) {
    struct Free {
        void operator()(PQconninfoOption* o) const noexcept { PQconninfoFree(o); }
    };
    const std::unique_ptr<PQconninfoOption, Free> options(PQconninfo(connection));
    std::string out;
    for (const auto* at = options.get(); at != nullptr && at->keyword != nullptr; ++at) {
        const std::string_view keyword = at->keyword;
        const std::string_view value = at->val == nullptr ? "" : at->val;
        if (value.empty() || (keyword == "target_session_attrs" && value == "any")) continue;
        out += std::string(keyword) + "='";
        for (const char c : value) out += (c == '\'' || c == '\\' ? "\\" : "") + std::string(1, c);
        out += "' ";
    }
    return out;
}

/// A claim, the user's rows and the result in one transaction: of its own where the connection is
/// idle, else under a savepoint in the one that the caller has begun. For one thread.
class GuardedTransaction {
public:
    GuardedTransaction(PGconn* connection, const Key& key, const TransactionOptions& options)
        : raw_(connection),
          wire_(Connection::borrow(connection)),
          options_(options),
          names_(options.schema, options.table, ""),
          key_(options.component, key),
          owner_(idem::detail::new_owner()) {
        validate(key_);
        check(options);
        const auto status = PQtransactionStatus(raw_);
        if (PQpipelineStatus(raw_) != PQ_PIPELINE_OFF || status == PQTRANS_ACTIVE)
            throw UsageError("transact: the connection is in the middle of something else");
        if (status == PQTRANS_INERROR)
            throw UsageError("transact: the transaction on this connection has failed already");
        if (status == PQTRANS_UNKNOWN) throw UnavailableError("transact: the connection is broken");
        own_ = status == PQTRANS_IDLE;
    }

    GuardedTransaction(const GuardedTransaction&) = delete;
    GuardedTransaction& operator=(const GuardedTransaction&) = delete;
    /// What was thrown on the way must not leave a transaction open: the next call on this
    /// connection would take it for its caller's.
    ~GuardedTransaction() {
        if (open_) undo();
    }

    /// Begins and claims. Whatever the answer, the connection is usable after it; one that is not
    /// `acquired` has ended what was begun. @throws ConflictError, UnavailableError, SchemaError.
    [[nodiscard]] ClaimReply claim(const Fingerprint& fingerprint) {
        ClaimRequest request{.key = key_, .fingerprint = fingerprint, .owner = owner_};
        request.lease = claim_lease;
        request.retention = options_.retention;
        request.held_retention = options_.held_retention;
        request.redeem_only = options_.redeem_only;
        const auto wait = std::chrono::ceil<std::chrono::milliseconds>(options_.wait);
        const Params params = params_of(request, std::max<std::int64_t>(wait.count(), 1));
        const Statement statement = {{}, call_text(names_, claim_operation, Form::one)};
        const LocalInstant begun = LocalClock::now();
        for (;;) {
            Answer answer = wire_.run_between(own_ ? "BEGIN" : "SAVEPOINT idem_claim", statement,
                                              params, false, "SAVEPOINT idem_work",
                                              begun + options_.wait + options_.time_allowed);
            open_ = true;
            ClaimReply reply = take<ClaimReply>(answer, request);
            if (!answer.fault) {
                fence_ = reply.fence;
                if (reply.trouble || reply.kind != ClaimKind::acquired) end();
                reply.trouble.raise();
                return reply;
            }
            undo();
            if (answer.fault->is(code::lock_timeout)) {
                reply.kind = ClaimKind::in_progress;
                return reply;
            }
            // With a transaction of its own the next try sees who has won.
            const bool conflict = answer.fault->code.starts_with("40");
            if (!conflict || !own_ || LocalClock::now() - begun >= options_.wait)
                raise(*answer.fault);
        }
    }

    /// Records in the same transaction; where it is this call's own, commits it. @throws as `claim`
    /// does, and UsageError where the handler has ended or broken the transaction: then nothing of
    /// it is left. UnavailableError with `may_have_applied`: nobody could say whether it was.
    void finish(FinishRequest request) {
        const auto status = PQtransactionStatus(raw_);
        if (status == PQTRANS_IDLE)
            throw UsageError("transact: the handler has ended the transaction that it ran in");
        if (status == PQTRANS_ACTIVE)
            throw UsageError("transact: the handler has left a query unfinished");
        request.key = key_;
        request.owner = owner_;
        request.fence = fence_;
        request.lease = claim_lease;
        request.retention = options_.retention;
        request.held_retention = options_.held_retention;
        const Statement statement = {{},
                                     call_text(names_, finish_operation, Form::one) +
                                         ", pg_catalog.pg_current_xact_id()::text"};
        Answer answer = wire_.run(statement, params_of(request, 1), false, soon());
        const FinishReply reply = take<FinishReply>(answer, request);
        if (answer.fault || reply.trouble || reply.lost) {
            undo();
            if (answer.fault && answer.fault->is("25P02"))
                throw UsageError("transact: a statement of the handler failed, and it went on");
            if (answer.fault) raise(*answer.fault);
            reply.trouble.raise();
            throw LeaseLostError("transact: the claim is gone", reply.reason);
        }
        xid_ = answer.result.field(0, answer.result.columns() - 1).value_or("");
        end();
    }

    /// Back to where the handler began; the claim stands.
    [[nodiscard]] bool undo_work() noexcept { return said("ROLLBACK TO SAVEPOINT idem_work"); }
    /// Back to before the claim. Where it fails the connection is of no more use.
    void undo() noexcept {
        open_ = false;
        if (PQtransactionStatus(raw_) == PQTRANS_IDLE) return;  // the server has done so
        if (own_) {
            (void)said("ROLLBACK");
        } else {
            (void)said("ROLLBACK TO SAVEPOINT idem_claim; RELEASE SAVEPOINT idem_claim");
        }
    }

private:
    /// Seen by others only where a handler commits by itself.
    static constexpr Duration claim_lease = std::chrono::seconds{30};

    [[nodiscard]] LocalInstant soon() const { return LocalClock::now() + options_.time_allowed; }

    template <class Request>
    [[nodiscard]] static Params params_of(const Request& request, std::int64_t wait_ms) {
        const std::string digest = digest_of(request.key);
        const std::size_t first = 0;
        const Items<Request> items{std::span(&request, 1), std::span(&digest, 1),
                                   std::span(&first, 1), false};
        Params params;
        items.add_keys(params);
        add_fields(items, params);
        params.add(Type::text, Value::bytes(std::to_string(wait_ms)));
        return params;
    }

    template <class Reply, class Request>
    [[nodiscard]] static Reply take(Answer& answer, const Request& request) {
        Reply reply;
        if (answer.fault) return reply;
        if (answer.result.rows() != 1) {
            answer.fault = Fault::of(code::nonsense, "a reply of another length");
        } else if (read_answer(answer.result, 0, request, reply) != Read::fine) {
            answer.fault = Fault::of(code::nonsense, "a reply that makes no sense");
        }
        return reply;
    }

    /// Nothing has been committed: that is what every one of these says.
    [[noreturn]] static void raise(Fault fault) {
        fault.may_have_applied = false;
        if (fault.code.starts_with("40")) throw ConflictError(fault.message);
        trouble_of(fault).raise();
        throw UnavailableError(fault.message);
    }

    [[nodiscard]] bool said(const char* text) noexcept {
        try {
            return !wire_.script(text, soon()).fault;
        } catch (...) {
            return false;
        }
    }

    /// What was claimed or found stays, as far as the transaction around it does.
    void end() {
        open_ = false;
        const Answer answer =
            wire_.script(own_ ? "COMMIT" : "RELEASE SAVEPOINT idem_claim", soon());
        if (!answer.fault) return;
        if (!own_ || !answer.fault->may_have_applied) {
            undo();
            raise(*answer.fault);
        }
        if (xid_.empty()) raise(*answer.fault);  // it held nothing of the caller's
        learn_fate(*answer.fault);
    }

    /// A commit was sent, and its answer did not come. The server knows: by the row, or by the
    /// number of the transaction while that is remembered.
    void learn_fate(const Fault& lost) {
        const LocalInstant deadline = soon();
        const Conninfo info(conninfo_of(raw_));
        Params params;
        params.add(Type::uuid, Value::bytes(digest_of(key_)));
        params.add(Type::uuid, Value::bytes(owner_.stored()));
        params.add(Type::text, Value::bytes(xid_));
        const Statement look = {
            {},
            names_.fill("SELECT EXISTS (SELECT FROM {table} t WHERE t.key = $1 AND t.owner = $2"
                        " AND t.state <> 2), pg_catalog.pg_xact_status($3::xid8)")};
        for (; LocalClock::now() < deadline;
             std::this_thread::sleep_for(std::chrono::milliseconds{10})) {
            Fault fault;
            auto other = Connection::open(info, deadline, fault);
            if (!other) continue;
            const Answer answer = other->run(look, params, false, deadline);
            // A number that this server has not come to: it never saw the transaction.
            const bool unheard = answer.fault && answer.fault->is("22023");
            const auto status = answer.fault ? "" : answer.result.field(0, 1).value_or("");
            if (!answer.fault && (answer.result.flag(0, 0) || status == "committed")) return;
            if (unheard || status == "aborted")
                throw UnavailableError(lost.message + "; the transaction was rolled back");
        }
        throw UnavailableError(lost.message + "; whether it was committed could not be learnt",
                               true);
    }

    PGconn* raw_;
    Connection wire_;
    const TransactionOptions& options_;
    Names names_;
    KeyView key_;
    Owner owner_;
    Fence fence_ = 0;
    std::string xid_{};
    bool own_ = false;
    bool open_ = false;  ///< Begun, and neither ended nor undone.
};

}  // namespace postgres

}  // namespace idem::inline v0_1

#endif
