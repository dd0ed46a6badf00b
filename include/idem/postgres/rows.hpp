#ifndef IDEM_POSTGRES_ROWS_HPP
#define IDEM_POSTGRES_ROWS_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <idem/apply.hpp>
#include <idem/postgres/connection.hpp>
#include <idem/postgres/requests.hpp>
#include <idem/postgres/sql_table.hpp>

/// Rows of the server as records and replies.
namespace idem::inline v0_1::postgres {

/// The columns of one row, or the fields of a composite in one of them, one after the other. A
/// field that is NULL, or of another size than its type has, makes the row `bad`; nothing is read
/// past an end.
class RowReader {
public:
    RowReader(const Result& result, int row, int column) noexcept
        : result_(&result), row_(row), column_(column) {}
    /// Binary: the number of fields, then of each its type, its length (-1 is NULL) and its bytes.
    explicit RowReader(std::string_view composite) noexcept : left_(composite) {
        if (!take_number()) bad_ = true;
    }

    [[nodiscard]] bool bad() const noexcept { return bad_; }

    template <class T, class Stored>
    void number(T& into, bool optional = false) noexcept {
        const auto field = next(optional);
        if (!field) return;
        const auto value = read_number<Stored>(*field);
        if (!value || (std::is_unsigned_v<T> && *value < 0 && !std::is_same_v<T, Fence>) ||
            (sizeof(T) < sizeof(Stored) &&
             *value > static_cast<Stored>(std::numeric_limits<T>::max()))) {
            bad_ = true;
            return;
        }
        into = static_cast<T>(*value);
    }
    void time(Instant& into, bool optional = false) noexcept {
        std::int64_t micros = 0;
        number<std::int64_t, std::int64_t>(micros, optional);
        into = Instant(Duration(micros));
    }
    void time(Duration& into, bool optional = false) noexcept {
        std::int64_t micros = 0;
        number<std::int64_t, std::int64_t>(micros, optional);
        into = Duration(micros);
    }
    void flag(bool& into, bool optional = false) noexcept {
        const auto field = next(optional);
        if (field) into = *field == std::string_view("\1", 1);
    }
    /// An enumerator between two others, stored as a smallint.
    template <class Enum>
    void word(Enum& into, Enum first, Enum last, bool optional = false) noexcept {
        std::int16_t value = static_cast<std::int16_t>(first);
        number<std::int16_t, std::int16_t>(value, optional);
        if (value < static_cast<std::int16_t>(first) || value > static_cast<std::int16_t>(last))
            bad_ = true;
        else
            into = static_cast<Enum>(value);
    }
    void bytes(std::string& into, bool optional = false) {
        if (const auto field = next(optional)) into = *field;
    }
    void owner(Owner& into, bool optional = false) noexcept {
        const auto field = next(optional);
        if (!field) return;
        if (field->size() != into.bytes.size()) {
            bad_ = true;
            return;
        }
        std::memcpy(into.bytes.data(), field->data(), field->size());
    }
    void fingerprint(Fingerprint& into, bool optional = false) noexcept {
        const auto print = Fingerprint::from_stored(next(optional).value_or(""));
        if (!print) bad_ = true;
        if (print) into = *print;
    }
    [[nodiscard]] std::string_view raw() noexcept { return next(false).value_or(""); }

private:
    [[nodiscard]] std::optional<std::string_view> next(bool optional) noexcept {
        const auto field =
            result_ != nullptr ? result_->field(row_, column_++) : next_of_composite();
        if (!field && !optional) bad_ = true;
        return field;
    }
    [[nodiscard]] std::optional<std::int32_t> take_number() noexcept {
        const auto number = read_number<std::int32_t>(left_.substr(0, 4));
        left_.remove_prefix(std::min<std::size_t>(left_.size(), 4));
        return number;
    }
    [[nodiscard]] std::optional<std::string_view> next_of_composite() noexcept {
        const auto type = take_number();
        const auto length = take_number();
        if (!type || !length || *length < -1 || *length > static_cast<std::int64_t>(left_.size()))
            bad_ = true;
        if (bad_ || *length == -1) return std::nullopt;
        const auto field = left_.substr(0, static_cast<std::size_t>(*length));
        left_.remove_prefix(field.size());
        return field;
    }

    const Result* result_ = nullptr;
    int row_ = 0;
    int column_ = 0;
    std::string_view left_{};
    bool bad_ = false;
};

/// A whole row of the table, by the order of `columns`.
struct TableRow {
    std::string digest{};
    Component component = Component::call;
    Key key{};
    protocol::Record record{};
    std::string trouble{};  ///< Why it is no record; empty where it is one.
};

namespace detail {

inline void read_component(RowReader& in, TableRow& row) {
    const auto letter = in.raw();
    if (letter.size() == 1) row.component = static_cast<Component>(letter[0]);
}

inline void read_name(RowReader& in, std::string& into, std::string& trouble) {
    auto name = unescape(in.raw());
    if (!name) trouble = "the row's name is none that this library writes";
    if (name) into = *std::move(name);
}

}  // namespace detail

[[nodiscard]] inline TableRow read_row(const Result& result, int number, int column) {
    TableRow row;
    RecordHeader& h = row.record.header;
    Payload& p = row.record.payload;
    std::int16_t format = 0;
    RowReader in(result, number, column);
    in.number<Fence, std::int64_t>(h.fence);
    for (Instant* at :
         {&h.created, &h.started, &h.completed, &h.lease_end, &h.retention_end, &h.validity_end})
        in.time(*at);
    std::int64_t waited_until = 0;  // of the waiters, not of the record
    in.number<std::int64_t, std::int64_t>(waited_until);
    in.number<std::uint32_t, std::int64_t>(h.attempt);
    in.number<std::uint32_t, std::int64_t>(h.crashes);
    in.number<std::uint32_t, std::int64_t>(h.codec.tag);
    in.number<std::uint16_t, std::int32_t>(h.policy.max_attempts);
    in.number<std::uint16_t, std::int32_t>(h.policy.max_crashes);
    in.number<std::int16_t, std::int16_t>(format);
    in.word(h.state, State::issued, State::forgotten);
    in.word(h.policy.orphan, Orphan::rerun, Orphan::hold);
    in.word(h.result, ResultKind::none, ResultKind::no_room);
    in.word(h.failure, FailureClass::none, FailureClass::exhausted);
    in.number<std::uint8_t, std::int16_t>(h.codec.version);
    in.bytes(row.digest);
    in.owner(h.owner);
    detail::read_component(in, row);
    for (bool* flag : {&h.token, &h.bound, &h.verify, &h.takeover}) in.flag(*flag);
    in.fingerprint(h.fingerprint);
    for (std::string* name : {&row.key.scope, &row.key.tenant, &row.key.id})
        detail::read_name(in, *name, row.trouble);
    for (std::string* part :
         {&p.result, &p.failure_code, &p.failure_message, &p.checkpoint, &p.resource})
        in.bytes(*part);
    if (in.bad()) row.trouble = "the row under this key is no record";
    if (format != schema_version)
        row.trouble = "the record was written by a newer version of the library";
    return row;
}

/// Somebody's transaction holds the row; where a try before was in doubt, that may be this one.
[[nodiscard]] inline Trouble locked_row(bool doubt) {
    return Trouble::unavailable("an open transaction holds the row of this key", doubt);
}

/// What a function says was wrong with a row.
[[nodiscard]] inline std::optional<Trouble> row_trouble(RowTrouble trouble) {
    switch (trouble) {
        case RowTrouble::newer:
            return Trouble::schema("the record was written by a newer version of the library");
        case RowTrouble::collision:
            return Trouble::schema("another key has the same digest; neither can be trusted");
        case RowTrouble::garbage: return Trouble::schema("the row under this key is no record");
        case RowTrouble::locked: return locked_row(false);
    }
    return std::nullopt;
}

[[nodiscard]] inline bool read_reply(RowReader& in, ClaimReply& reply) {
    in.word(reply.kind, ClaimKind::acquired, ClaimKind::expired);
    in.number<std::uint32_t, std::int64_t>(reply.attempt, true);
    in.number<std::uint32_t, std::int64_t>(reply.crashes, true);
    for (Instant* at : {&reply.created, &reply.started, &reply.completed}) in.time(*at, true);
    in.time(reply.lease_left, true);
    in.flag(reply.verify, true);
    in.flag(reply.takeover, true);
    in.number<Fence, std::int64_t>(reply.fence, true);
    in.owner(reply.owner, true);
    in.fingerprint(reply.fingerprint, true);
    in.flag(reply.token, true);
    in.time(reply.retention_left, true);
    in.bytes(reply.checkpoint, true);
    in.bytes(reply.resource, true);
    in.word(reply.result_kind, ResultKind::none, ResultKind::no_room, true);
    in.number<std::uint32_t, std::int64_t>(reply.codec.tag, true);
    in.number<std::uint8_t, std::int16_t>(reply.codec.version, true);
    in.bytes(reply.result, true);
    in.word(reply.failure.kind, FailureClass::none, FailureClass::exhausted, true);
    in.bytes(reply.failure.code, true);
    in.bytes(reply.failure.message, true);
    return !in.bad();
}
[[nodiscard]] inline bool read_reply(RowReader& in, FinishReply& reply) {
    in.flag(reply.lost);
    in.word(reply.reason, LostReason::none, LostReason::gone);
    in.word(reply.state, State::issued, State::forgotten);
    return !in.bad();
}
[[nodiscard]] inline bool read_reply(RowReader& in, RenewReply& reply) {
    in.flag(reply.lost);
    in.word(reply.reason, LostReason::none, LostReason::gone);
    in.time(reply.lease_left);
    return !in.bad();
}
[[nodiscard]] inline bool read_done(RowReader& in, bool& done, State& state) {
    in.flag(done);
    in.word(state, State::issued, State::forgotten);
    return !in.bad();
}
[[nodiscard]] inline bool read_reply(RowReader& in, IssueReply& reply) {
    State ignored{};
    return read_done(in, reply.issued, ignored);
}
[[nodiscard]] inline bool read_reply(RowReader& in, ResolveReply& reply) {
    return read_done(in, reply.resolved, reply.state);
}
[[nodiscard]] inline bool read_reply(RowReader& in, ReapReply& reply) {
    return read_done(in, reply.reaped, reply.state);
}
[[nodiscard]] inline bool read_reply(RowReader& in, ForgetReply& reply) {
    State ignored{};
    in.flag(reply.existed);
    in.word(ignored, State::issued, State::forgotten);
    in.number<Fence, std::int64_t>(reply.fence);
    return !in.bad();
}

/// The reply to an item that was made at once.
[[nodiscard]] inline bool read_made(RowReader& in, const ClaimRequest& request, ClaimReply& reply) {
    reply.kind = ClaimKind::acquired;
    reply.attempt = 1;
    reply.lease_left = request.lease;
    in.time(reply.created);
    reply.started = reply.created;
    in.number<Fence, std::int64_t>(reply.fence);
    return !in.bad();
}
[[nodiscard]] inline bool read_made(RowReader&, const FinishRequest&, FinishReply& reply) {
    reply.state = State::succeeded;
    return true;
}
template <class Request, class Reply>
[[nodiscard]] bool read_made(RowReader&, const Request&, Reply&) noexcept {
    return false;  // there is no such statement
}

enum class Read : std::uint8_t { fine, locked, nonsense };

/// Reads the reply in one row of what a call gives.
template <class Request, class Reply>
[[nodiscard]] Read read_answer(const Result& result, int row, const Request& request,
                               Reply& reply) {
    reply = Reply{};
    if (result.field(row, 0)) {
        RowReader in(result, row, 1);
        return read_made(in, request, reply) ? Read::fine : Read::nonsense;
    }
    RowReader in(result.field(row, reply_column).value_or(""));
    std::int16_t trouble = 0;
    in.number<std::int16_t, std::int16_t>(trouble, true);
    if (static_cast<RowTrouble>(trouble) == RowTrouble::locked) return Read::locked;
    if (auto wrong = row_trouble(static_cast<RowTrouble>(trouble))) {
        reply.trouble = *std::move(wrong);
        return Read::fine;
    }
    return read_reply(in, reply) ? Read::fine : Read::nonsense;
}

/// Which row answers which of the items: one that was made by its key, the rest in their order.
/// Empty where the rows do not fit the items.
template <class Request>
[[nodiscard]] std::vector<int> rows_of(const Result& result, const Items<Request>& items) {
    const std::size_t count = items.which.size();
    std::vector<int> rows(count, -1);
    if (result.rows() != static_cast<int>(count)) return {};
    const auto key = [&](std::size_t k) -> std::string_view {
        return items.digests[items.which[k]];
    };
    std::vector<int> rest;
    std::size_t at = 0;
    for (int row = 0; row < result.rows(); ++row) {
        const auto made = result.field(row, 0);
        if (!made) {
            rest.push_back(row);
            continue;
        }
        // Mostly they come in the order of the keys; of equal ones the first was made.
        if (at >= count || key(at) > *made) at = 0;
        while (at < count && key(at) < *made) ++at;
        if (at >= count || key(at) != *made || rows[at] != -1) return {};
        rows[at] = row;
    }
    auto next = rest.begin();
    for (int& row : rows)
        if (row == -1) row = *next++;
    return rows;
}

}  // namespace idem::inline v0_1::postgres

#endif
