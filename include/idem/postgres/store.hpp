#ifndef IDEM_POSTGRES_STORE_HPP
#define IDEM_POSTGRES_STORE_HPP

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <idem/detail/chunk.hpp>
#include <idem/postgres/purging.hpp>
#include <idem/postgres/requests.hpp>
#include <idem/postgres/rows.hpp>
#include <idem/postgres/state.hpp>
#include <idem/store.hpp>

namespace idem::inline v0_1 {

/// Remembers keys in a table of PostgreSQL 13 or later: one row a key, decided by its unique
/// index, one round trip for each request or batch. Models `idem::store`; its comment numbers the
/// promises. A handle: copies share the connections, which are closed with the last copy. Any
/// thread may call any member at any time. Whatever was answered survives a crash of this process,
/// and of the server as far as its synchronous_commit says. After fork a child gets `UsageError`.
class PostgresStore {
public:
    /// Does no I/O: a service may start before its database. The first request looks at the table
    /// and refuses, naming it, what is not as `create_schema` made it; `verify` does so at once.
    /// @throws UsageError for options that cannot be right.
    explicit PostgresStore(PostgresOptions options)
        : state_(std::make_shared<postgres::State>(std::move(options))) {}

    /// Makes schema, table, functions and view, or brings them to this version; what is recorded
    /// stays. Needs the rights to do so, which the store itself does not. Safe to run at any time,
    /// from many processes at once. @throws SchemaError, UnavailableError, UsageError.
    void create_schema() {
        const auto answer = state_->run_script(postgres::create_text(state_->names()));
        if (answer.fault) postgres::trouble_of(*answer.fault).raise();
        verify();
    }

    /// Looks at table, columns, types, unique index, privileges and functions.
    /// @throws SchemaError, naming what is wrong; UnavailableError, UsageError.
    void verify() {
        if (const auto fault = state_->look()) postgres::trouble_of(*fault).raise();
    }

    void claim(std::span<const ClaimRequest> requests, std::span<ClaimReply> replies) {
        each(postgres::claim_operation, true, requests, replies);
        state_->look_first().learn(replies);
    }
    void finish(std::span<const FinishRequest> requests, std::span<FinishReply> replies) {
        each(postgres::finish_operation, true, requests, replies);
    }
    void renew(std::span<const RenewRequest> requests, std::span<RenewReply> replies) {
        each(postgres::renew_operation, true, requests, replies);
    }
    void issue(std::span<const IssueRequest> requests, std::span<IssueReply> replies) {
        each(postgres::issue_operation, true, requests, replies);
    }
    // Of these three the same again answers otherwise than the first did: not sent twice.
    void resolve(std::span<const ResolveRequest> requests, std::span<ResolveReply> replies) {
        each(postgres::resolve_operation, false, requests, replies);
    }
    void reap(std::span<const ReapRequest> requests, std::span<ReapReply> replies) {
        each(postgres::reap_operation, false, requests, replies);
    }
    void forget(std::span<const ForgetRequest> requests, std::span<ForgetReply> replies) {
        each(postgres::forget_operation, false, requests, replies);
    }

    void find(std::span<const KeyView> keys, std::span<FindReply> replies);

    /// In the order of the keys' digests. A page ends where 10,000 rows have been looked at. A row
    /// that cannot be read is left out and is `trouble` of its page; the pages go on behind it.
    [[nodiscard]] ListPage list(const ListQuery& query);

    /// In transactions of at most 1,000 rows, leaving out what somebody holds; two purgers do not
    /// wait for each other. Goes on where the last call of this store ended.
    [[nodiscard]] PurgeReply purge(std::size_t limit);

    /// How long one request may take in the worst case.
    [[nodiscard]] Duration time_allowed() const noexcept { return state_->options().time_allowed; }

    /// As the comment of `store` says. Null behind a pooler, without a connection, and in a child
    /// of the process.
    [[nodiscard]] std::shared_ptr<void> watch(const KeyView& key,
                                              std::function<void()> notice) noexcept {
        try {
            if (!key.valid()) return nullptr;
            return state_->watch(postgres::digest_of(key), std::move(notice));
        } catch (...) {  // no memory, or no thread to be had
            return nullptr;
        }
    }

private:
    friend class PostgresAudit;
    using Fault = postgres::Fault;

    /// Of one statement: more gain nothing.
    static constexpr detail::ChunkLimits limits{.items = 500, .bytes = std::size_t{8} << 20U};

    /// Sorted by key, so that two batches never wait for each other crosswise; in statements of
    /// bounded size.
    template <class Request, class Reply>
    void each(const postgres::Operation& operation, bool repeatable,
              std::span<const Request> requests, std::span<Reply> replies) {
        std::vector<std::string> digests(requests.size());
        std::vector<std::size_t> order;
        order.reserve(requests.size());
        for (std::size_t i = 0; i < requests.size(); ++i) {
            if (requests[i].key.valid()) {
                digests[i] = postgres::digest_of(requests[i].key);
                order.push_back(i);
            } else {
                replies[i].trouble = KeyView::refusal();
            }
        }
        std::stable_sort(order.begin(), order.end(),
                         [&](std::size_t a, std::size_t b) { return digests[a] < digests[b]; });
        const LocalInstant deadline = state_->deadline();
        if constexpr (std::same_as<Request, ClaimRequest>)
            if (state_->look_first().pays()) look(requests, replies, digests, order, deadline);
        for (std::size_t at = 0; at < order.size();) {
            const auto end = detail::chunk_end(at, order.size(), limits, [&](std::size_t i) {
                return idem::detail::weight_of(requests[order[i]]);
            });
            some<Request>(operation, repeatable,
                          {requests, digests, std::span(order).subspan(at, end - at), end - at > 1},
                          replies, deadline);
            at = end;
        }
    }

    /// One statement: of values for a single item, of arrays for more.
    template <class Request, class Reply>
    void some(const postgres::Operation& operation, bool repeatable,
              const postgres::Items<Request>& items, std::span<Reply> replies,
              LocalInstant deadline) {
        auto form = items.arrays ? postgres::Form::batch : postgres::Form::one;
        auto answer = ask(operation, form, repeatable, items, deadline);
        const bool waited = answer.fault && answer.fault->is(postgres::code::lock_timeout);
        if (waited && !items.arrays)
            return locked(replies[items.which[0]], answer.fault->may_have_applied);
        if (waited && !answer.fault->may_have_applied)
            answer = ask(operation, postgres::Form::patient, repeatable, items, deadline);
        std::vector<int> rows;
        if (!answer.fault) rows = postgres::rows_of(answer.result, items);
        if (!answer.fault && rows.empty())
            answer.fault = Fault::of(postgres::code::nonsense, "a reply that fits no request");
        if (answer.fault && items.arrays && !answer.fault->may_have_applied &&
            blames_an_item(*answer.fault)) {
            for (std::size_t i = 0; i < items.which.size(); ++i)
                some<Request>(operation, repeatable,
                              {items.requests, items.digests, items.which.subspan(i, 1), false},
                              replies, deadline);
            return;
        }
        for (std::size_t i = 0; i < items.which.size(); ++i) {
            Reply& reply = replies[items.which[i]];
            if (answer.fault) {
                reply.trouble = postgres::trouble_of(*answer.fault);
                continue;
            }
            switch (read_answer(answer.result, rows[i], items.requests[items.which[i]], reply)) {
                case postgres::Read::fine: break;
                case postgres::Read::locked: locked(reply, answer.doubt); break;
                case postgres::Read::nonsense:
                    reply = Reply{};
                    reply.trouble = {Trouble::Kind::schema, true, "a reply that makes no sense"};
            }
        }
    }

    template <class Request>
    [[nodiscard]] postgres::Answer ask(const postgres::Operation& operation, postgres::Form form,
                                       bool repeatable, const postgres::Items<Request>& items,
                                       LocalInstant deadline) {
        // The second time round every locked item would wait again: hardly, then, and all of them
        // together no longer than a second.
        const std::size_t each = std::clamp<std::size_t>(1000 / items.which.size(), 1, 10);
        const std::string wait =
            form == postgres::Form::patient ? std::to_string(each) : state_->lock_wait();
        postgres::Params params;
        items.add_keys(params);
        postgres::add_fields(items, params);
        params.add(postgres::Type::text, postgres::Value::bytes(wait));
        return state_->ask(state_->call(operation, form), params, repeatable, deadline);
    }

    /// Whoever holds the row of a claim is at it, unless a try of this very claim may be.
    template <class Reply>
    static void locked(Reply& reply, bool doubt) {
        if constexpr (std::same_as<Reply, ClaimReply>) {
            if (!doubt) {
                reply.kind = ClaimKind::in_progress;
                return;
            }
        }
        reply.trouble = postgres::locked_row(doubt);
    }

    /// One item's bytes, or one damaged row, may have done it: the others must not suffer.
    [[nodiscard]] static bool blames_an_item(const Fault& fault) noexcept {
        for (const char* prefix : {"22", "23", "54", "P0", "XX001", "XX002"})
            if (fault.code.starts_with(prefix)) return true;
        return false;
    }

    /// Answers those of the claims that change nothing from a plain read. What is left stays in
    /// `order`, with everything behind it of the same key.
    void look(std::span<const ClaimRequest> requests, std::span<ClaimReply> replies,
              std::span<const std::string> digests, std::vector<std::size_t>& order,
              LocalInstant deadline);
    /// Reads the rows of the keys that are named and calls `use(i, Seen&)` for each.
    struct Seen {
        std::optional<postgres::TableRow> row{};
        Instant now{};
        Trouble trouble{};
    };
    template <class Use>
    void read_rows(std::span<const std::string> digests, std::span<const std::size_t> which,
                   LocalInstant deadline, Use&& use);

    std::shared_ptr<postgres::State> state_;
};

static_assert(store<PostgresStore>);

template <class Use>
void PostgresStore::read_rows(std::span<const std::string> digests,
                              std::span<const std::size_t> which, LocalInstant deadline,
                              Use&& use) {
    using postgres::Form;
    using postgres::Type;
    using postgres::Value;
    const auto digest = [&](std::size_t k) { return Value::bytes(digests[which[k]]); };
    postgres::Params params;
    if (which.size() == 1) {
        params.add(Type::uuid, digest(0));
    } else {
        params.add_array(Type::uuid, which.size(), digest);
    }
    const auto& statement = state_->read(which.size() == 1 ? Form::one : Form::batch);
    const auto answer = state_->ask(statement, params, true, deadline);
    std::unordered_map<std::string, int> rows;
    const int count = answer.fault ? 0 : answer.result.rows();
    for (int row = 0; row < count; ++row)
        rows.emplace(answer.result.field(row, 1 + postgres::column_number("key")).value_or(""),
                     row);
    for (const auto i : which) {
        Seen seen;
        if (answer.fault) seen.trouble = postgres::trouble_of(*answer.fault);
        if (const auto at = rows.find(digests[i]); at != rows.end()) {
            const auto now = answer.result.number<std::int64_t>(at->second, 0).value_or(0);
            seen.now = Instant(Duration(now));
            seen.row = postgres::read_row(answer.result, at->second, 1);
            if (!seen.row->trouble.empty()) seen.trouble = Trouble::schema(seen.row->trouble);
        }
        use(i, seen);
    }
}

inline void PostgresStore::look(std::span<const ClaimRequest> requests,
                                std::span<ClaimReply> replies, std::span<const std::string> digests,
                                std::vector<std::size_t>& order, LocalInstant deadline) {
    std::vector<std::size_t> left;
    for (std::size_t at = 0; at < order.size(); at += limits.items) {
        const auto some = std::span(order).subspan(at, std::min(limits.items, order.size() - at));
        read_rows(digests, some, deadline, [&](std::size_t i, Seen& seen) {
            if (seen.trouble.kind == Trouble::Kind::unavailable) {
                replies[i].trouble = std::move(seen.trouble);
                return;
            }
            // Sorted by key: whatever the first of a key leaves to the step, the next ones do too.
            const bool behind = !left.empty() && digests[left.back()] == digests[i];
            const bool known =
                !seen.row || KeyView(seen.row->component, seen.row->key) == requests[i].key;
            if (behind || seen.trouble || !known ||
                !detail::answer_by_look(seen.row ? &seen.row->record.header : nullptr,
                                        seen.row ? std::move(seen.row->record.payload) : Payload{},
                                        seen.now, requests[i], replies[i]))
                left.push_back(i);
        });
    }
    order = std::move(left);
}

inline void PostgresStore::find(std::span<const KeyView> keys, std::span<FindReply> replies) {
    const LocalInstant deadline = state_->deadline();
    std::vector<std::string> digests(keys.size());
    std::vector<std::size_t> which;
    for (std::size_t i = 0; i < keys.size(); ++i) {
        replies[i] = {{}, keys[i].valid() ? Trouble{} : KeyView::refusal()};
        if (replies[i].trouble) continue;
        digests[i] = postgres::digest_of(keys[i]);
        which.push_back(i);
    }
    for (std::size_t at = 0; at < which.size(); at += limits.items) {
        const auto some = std::span(which).subspan(at, std::min(limits.items, which.size() - at));
        read_rows(digests, some, deadline, [&](std::size_t i, Seen& seen) {
            replies[i].trouble = std::move(seen.trouble);
            if (replies[i].trouble || !seen.row) return;
            if (KeyView(seen.row->component, seen.row->key) != keys[i]) {
                replies[i].trouble =
                    Trouble::schema("another key has the same digest; neither can be trusted");
            } else if (protocol::visible(&seen.row->record.header, seen.now)) {
                replies[i].record =
                    protocol::view_of(keys[i], std::move(seen.row->record), seen.now);
            }
        });
    }
}

inline ListPage PostgresStore::list(const ListQuery& query) {
    using postgres::Type;
    using postgres::Value;
    ListPage page;
    if (!query.cursor.empty() && query.cursor.size() != 16) {
        page.trouble = Trouble::usage("ListQuery::cursor is not from this store");
        return page;
    }
    const std::size_t limit = std::clamp<std::size_t>(query.limit, 1, postgres::looks_per_page);
    postgres::Params p;
    p.add(Type::uuid, query.cursor.empty() ? Value::null() : Value::bytes(query.cursor));
    p.add(Type::letter,
          query.component ? Value::letter(static_cast<char>(*query.component)) : Value::null());
    p.add(Type::text, query.scope ? Value::bytes(postgres::escape(*query.scope)) : Value::null());
    p.add(Type::text, query.tenant ? Value::bytes(postgres::escape(*query.tenant)) : Value::null());
    p.add(Type::int2,
          query.state ? Value::number(static_cast<std::int16_t>(*query.state)) : Value::null());
    p.add(Type::boolean, query.lapsed ? Value::boolean(*query.lapsed) : Value::null());
    p.add(Type::int8, query.created_before
                          ? Value::number(std::int64_t{query.created_before->count()})
                          : Value::null());
    p.add(Type::int8, Value::number(static_cast<std::int64_t>(limit)));
    const auto answer = state_->ask(state_->list(), p, true);
    if (answer.fault) {
        page.trouble = postgres::trouble_of(*answer.fault);
        return page;
    }
    const postgres::Result& result = answer.result;
    const Instant now(Duration(result.number<std::int64_t>(0, 0).value_or(0)));
    const auto looked = result.number<std::int64_t>(0, 1).value_or(0);
    if (looked >= postgres::looks_per_page) page.next = result.field(0, 2).value_or("");
    std::size_t hits = 0;
    std::string last;
    for (int number = 0; number < result.rows(); ++number) {
        if (!result.field(number, 3)) continue;  // the row that says there is none
        auto row = postgres::read_row(result, number, 3);
        ++hits;
        last = row.digest;
        if (!row.trouble.empty()) {
            page.trouble = Trouble::schema(row.trouble);
            continue;
        }
        const KeyView key(row.component, row.key);
        page.records.push_back(protocol::view_of(key, std::move(row.record), now));
    }
    if (hits == limit) page.next = last;
    return page;
}

inline PurgeReply PostgresStore::purge(std::size_t limit) {
    return postgres::purge(*state_, limit, {}, state_->purge_block());
}

}  // namespace idem::inline v0_1

#endif
