#ifndef IDEM_POSTGRES_AUDIT_HPP
#define IDEM_POSTGRES_AUDIT_HPP

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <idem/options.hpp>
#include <idem/postgres/purging.hpp>
#include <idem/postgres/store.hpp>

namespace idem::inline v0_1 {

/// Which records are meant: those that fit all that is set.
struct AuditQuery {
    std::optional<Component> component{};
    std::optional<std::string> scope{};
    std::optional<std::string> tenant{};
    std::optional<State> state{};  ///< Of `count` only.
    Duration older_than{};         ///< Since it was made (`count`) or finished (`purge`).
};

struct AuditCount {
    std::uint64_t records = 0;
    Duration oldest{};  ///< Ages since the key was first claimed, by the server's clock; 0: none.
    Duration newest{};
};

/// Asks a table of processed ids how much it remembers and since when, and takes out what is old
/// enough. The table is the store's own: ids that an audit needs are kept by a long `retention`,
/// of ten years at most, whether a guard or `transact` wrote them. Any thread may call any member.
/// Nothing is kept in this process.
class PostgresAudit {
public:
    explicit PostgresAudit(const PostgresStore& store)
        : state_(store.state_), count_(postgres::State::statement(count_text(state_->names()))) {}

    /// Looks at every row: seconds for some millions. A query that needs longer than
    /// `time_allowed` is ended. @throws UnavailableError, SchemaError, UsageError.
    [[nodiscard]] AuditCount count(const AuditQuery& query = {},
                                   Duration time_allowed = std::chrono::minutes{1}) {
        using postgres::Type;
        using postgres::Value;
        postgres::Params p;
        p.add(Type::int8, Value::number(std::int64_t{query.older_than.count()}));
        postgres::Filter{{}, query.component, query.scope, query.tenant}.add_to(p);
        p.add(Type::int2,
              query.state ? Value::number(static_cast<std::int16_t>(*query.state)) : Value::null());
        const auto answer = state_->ask(count_, p, true, time_allowed);
        if (answer.fault) postgres::trouble_of(*answer.fault).raise();
        const auto number = [&](int column) {
            return answer.result.number<std::int64_t>(0, column).value_or(0);
        };
        return {static_cast<std::uint64_t>(number(0)), Duration(number(1)), Duration(number(2))};
    }

    /// Removes at most `limit` records that have been finished, well or for good badly, for longer
    /// than `query.older_than`, though their retention may not have ended: a repeat of theirs runs
    /// again. What runs, is held for a person or was rolled back is left to its own retention.
    /// In bounded transactions that wait for nobody; goes on where the last call ended.
    /// @throws UsageError for a query without an age, or with a state.
    [[nodiscard]] PurgeReply purge(const AuditQuery& query, std::size_t limit) {
        detail::check_duration(query.older_than, "AuditQuery::older_than");
        if (query.state) throw UsageError("AuditQuery::state is not for purge");
        return postgres::purge(*state_, limit,
                               {query.older_than, query.component, query.scope, query.tenant},
                               *block_);
    }

private:
    std::shared_ptr<postgres::State> state_;
    postgres::Statement count_;
    std::shared_ptr<std::atomic<std::int64_t>> block_ =
        std::make_shared<std::atomic<std::int64_t>>(0);
};

}  // namespace idem::inline v0_1

#endif
