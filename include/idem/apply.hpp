#ifndef IDEM_APPLY_HPP
#define IDEM_APPLY_HPP

#include <optional>
#include <string_view>
#include <utility>

#include <idem/protocol.hpp>

/// The transitions of `protocol.hpp` carried out on a whole record, for stores that can hold one
/// as a value: what each answer makes of the opaque bytes, and which reply the caller gets. The
/// caller holds whatever makes the step atomic, reads the store's clock under it, and stores
/// `record` where the step says so.
namespace idem::inline v0_1::protocol {

struct Record {
    RecordHeader header{};
    Payload payload{};

    friend bool operator==(const Record&, const Record&) = default;
};

/// What is under a key; nothing where there is nothing, not even something past its retention.
using Slot = std::optional<Record>;

template <class Reply>
struct Step {
    Reply reply{};
    bool write = false;  ///< The slot has changed and must be stored before the reply leaves.
};

namespace detail {

/// The bytes that a request brings for the parts that an answer takes from it.
struct Brought {
    std::string_view result{};
    std::string_view failure_code{};
    std::string_view failure_message{};
    std::string_view checkpoint{};
    std::string_view resource{};
};

inline void change(std::string& part, Part how, std::string_view bytes) {
    if (how == Part::clear) part.clear();
    if (how == Part::take) part = bytes;
}

[[nodiscard]] inline const RecordHeader* header_of(const Slot& slot) noexcept {
    return slot ? &slot->header : nullptr;
}

/// @return whether anything is to be stored.
inline bool store_change(Slot& slot, const RecordHeader& header, const Change& what,
                         const Brought& bytes) {
    if (!what.write) return false;
    if (!slot) slot.emplace();
    slot->header = header;
    Payload& payload = slot->payload;
    change(payload.result, what.result, bytes.result);
    change(payload.failure_code, what.failure,
           bytes.failure_code.substr(0, Failure::code_bytes_max));
    change(payload.failure_message, what.failure,
           bytes.failure_message.substr(0, Failure::message_bytes_max));
    change(payload.checkpoint, what.checkpoint, bytes.checkpoint);
    change(payload.resource, what.resource, bytes.resource);
    return true;
}

[[nodiscard]] inline State state_after(const RecordHeader& record, bool exists) noexcept {
    return exists ? record.state : State::forgotten;
}

}  // namespace detail

/// Fills a new reply to a claim from its answer and the opaque bytes as they are afterwards. Counts
/// and times of any record found; fence, flags, checkpoint for `acquired`; the result and whose it
/// is for `completed`; the failure for `failed` and `unknown`; the resource for these four. No more
/// is shown: a mismatch must not hand out another request's data. `Bytes` is a `Payload`, which is
/// moved from where it may be, or views of one.
template <class Bytes>
void fill_reply(ClaimReply& reply, const ClaimAnswer& answer, Bytes&& payload) {
    const RecordHeader& record = answer.record;
    reply.kind = answer.kind;
    if (answer.kind == ClaimKind::absent) return;
    reply.attempt = record.attempt;
    reply.crashes = record.crashes;
    reply.created = record.created;
    reply.started = record.started;
    reply.completed = record.completed;
    reply.lease_left = answer.lease_left;
    switch (answer.kind) {
        case ClaimKind::acquired:
            reply.verify = record.verify;
            reply.takeover = record.takeover;
            reply.fence = record.fence;
            reply.checkpoint = payload.checkpoint;
            reply.resource = payload.resource;
            break;
        case ClaimKind::completed:
            reply.fence = record.fence;
            reply.owner = record.owner;
            reply.fingerprint = record.fingerprint;
            reply.token = record.token;
            reply.retention_left = answer.retention_left;
            reply.result_kind = record.result;
            reply.codec = record.codec;
            reply.result = std::forward<Bytes>(payload).result;
            reply.resource = std::forward<Bytes>(payload).resource;
            break;
        case ClaimKind::failed:
        case ClaimKind::unknown:
            reply.failure.kind = record.failure;
            reply.failure.code = payload.failure_code;
            reply.failure.message = payload.failure_message;
            reply.resource = payload.resource;
            break;
        default: break;
    }
}

[[nodiscard]] inline Step<ClaimReply> apply(Slot& slot, const ClaimRequest& request, Instant now) {
    const auto answer = claim(detail::header_of(slot), request, now);
    const bool write = detail::store_change(slot, answer.record, answer.change, {});
    Step<ClaimReply> step{{}, write};
    fill_reply(step.reply, answer, slot ? slot->payload : Payload{});
    return step;
}

[[nodiscard]] inline Step<FinishReply> apply(Slot& slot, const FinishRequest& request,
                                             Instant now) {
    const auto answer = finish(detail::header_of(slot), request, now);
    const bool write =
        detail::store_change(slot, answer.record, answer.change,
                             {request.result, request.failure_code, request.failure_message,
                              request.checkpoint.value_or(""), request.resource.value_or("")});
    return {{answer.lost, answer.reason, detail::state_after(answer.record, answer.exists), {}},
            write};
}

[[nodiscard]] inline Step<RenewReply> apply(Slot& slot, const RenewRequest& request, Instant now) {
    const auto answer = renew(detail::header_of(slot), request, now);
    const bool write = detail::store_change(
        slot, answer.record, answer.change,
        {{}, {}, {}, request.checkpoint.value_or(""), request.resource.value_or("")});
    return {{answer.lost, answer.reason, answer.lease_left, {}}, write};
}

[[nodiscard]] inline Step<IssueReply> apply(Slot& slot, const IssueRequest& request, Instant now) {
    const auto answer = issue(detail::header_of(slot), request, now);
    const bool write = detail::store_change(slot, answer.record, answer.change, {});
    return {{answer.done, {}}, write};
}

[[nodiscard]] inline Step<ResolveReply> apply(Slot& slot, const ResolveRequest& request,
                                              Instant now) {
    const auto answer = resolve(detail::header_of(slot), request, now);
    const bool write =
        detail::store_change(slot, answer.record, answer.change, {request.result, {}, {}, {}, {}});
    return {{answer.done, detail::state_after(answer.record, answer.exists), {}}, write};
}

[[nodiscard]] inline Step<ReapReply> apply(Slot& slot, const ReapRequest& request, Instant now) {
    const auto answer = reap(detail::header_of(slot), request, now);
    const bool write = detail::store_change(slot, answer.record, answer.change, {});
    return {{answer.done, detail::state_after(answer.record, answer.exists), {}}, write};
}

[[nodiscard]] inline Step<ForgetReply> apply(Slot& slot, const ForgetRequest& request,
                                             Instant now) {
    const auto answer = forget(detail::header_of(slot), request, now);
    const bool write = detail::store_change(slot, answer.record, answer.change, {});
    return {{answer.done, answer.record.fence, {}}, write};
}

/// A record as `find` and `list` show it.
[[nodiscard]] inline RecordView view_of(const KeyView& key, Record record, Instant now) {
    RecordView view{key.component, key.key(), record.header, std::move(record.payload), false, {}};
    if (view.header.state != State::running) return view;
    view.lapsed = lapsed(view.header, now);
    view.lease_left = view.lapsed ? Duration{} : view.header.lease_end - now;
    return view;
}

/// Whether a visible record is among those that a query asks for.
[[nodiscard]] inline bool matches(const ListQuery& query, const KeyView& key,
                                  const RecordHeader& record, Instant now) noexcept {
    return (!query.component || *query.component == key.component) &&
           (!query.scope || *query.scope == key.scope) &&
           (!query.tenant || *query.tenant == key.tenant) &&
           (!query.state || *query.state == record.state) &&
           (!query.lapsed || *query.lapsed == lapsed(record, now)) &&
           (!query.created_before || now - record.created >= *query.created_before);
}

}  // namespace idem::inline v0_1::protocol

#endif
