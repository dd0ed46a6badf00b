#ifndef IDEM_REDIS_REQUESTS_HPP
#define IDEM_REDIS_REQUESTS_HPP

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <idem/apply.hpp>
#include <idem/detail/bytes.hpp>
#include <idem/operation.hpp>
#include <idem/redis/connection.hpp>
#include <idem/redis/layout.hpp>
#include <idem/redis/script.hpp>

/// The requests of the port as the scripts' arguments, and the scripts' answers as its replies.
namespace idem::inline v0_1::redis {

/// One item on its way: what is sent, and what came back. Refers to the request's bytes.
struct Call {
    Operation operation = Operation::claim;
    std::string name{};                       ///< The Redis key.
    std::string packed{};                     ///< ARGV[1]: all that has a fixed place.
    std::array<std::string_view, 5> bytes{};  ///< ARGV[2] and on: what has not.
    std::size_t bytes_count = 0;
    bool with_value = false;  ///< Followed by a native GET: Lua would pay for each byte.

    std::optional<Reply> reply{};
    std::optional<Reply> value{};
    std::optional<Fault> fault{};

    [[nodiscard]] std::size_t weight() const noexcept {
        std::size_t sum = 200 + name.size() + packed.size();
        for (const auto part : bytes) sum += part.size();
        return sum;
    }
};

namespace detail {

/// Appends what the scripts take apart by struct.unpack.
class Packer {
public:
    explicit Packer(std::string& out) noexcept : out_(out) { out_.clear(); }

    Packer& byte(auto value) { return fixed(static_cast<std::uint64_t>(value), 1); }
    Packer& fixed(std::uint64_t value, std::size_t width) {
        idem::detail::put_fixed(out_, value, width);
        return *this;
    }
    /// Never negative, and never what seven bytes do not hold.
    Packer& duration(Duration value) {
        return fixed(static_cast<std::uint64_t>(std::clamp<Duration::rep>(
                         value.count(), 0, 2 * Duration(duration_max).count())),
                     7);
    }
    /// One that no record of this store can have stays one that none has.
    Packer& fence(Fence value) { return fixed(std::min(value, (Fence{1} << 56U) - 1), 7); }
    Packer& owner(const Owner& value) {
        out_ += value.stored();
        return *this;
    }
    /// 33 bytes, zero where there is none.
    Packer& fingerprint(const Fingerprint& value) {
        out_ += value.stored();
        if (!value.present()) out_.append(Fingerprint::size, '\0');
        return *this;
    }
    Packer& bytes(std::string_view value) {
        out_ += value;
        return *this;
    }

private:
    std::string& out_;
};

[[nodiscard]] inline unsigned flags_of(bool one, bool two, bool four = false) noexcept {
    return (one ? 1U : 0U) + (two ? 2U : 0U) + (four ? 4U : 0U);
}

inline void set_bytes(Call& call, std::initializer_list<std::string_view> parts) {
    call.bytes_count = 0;
    for (const auto part : parts) call.bytes[call.bytes_count++] = part;
}

}  // namespace detail

inline void pack(const ClaimRequest& r, Call& call) {
    call.operation = Operation::claim;
    detail::Packer(call.packed)
        .byte(detail::flags_of(r.can_verify, r.redeem_only))
        .byte(r.policy.orphan)
        .fixed(r.policy.max_attempts, 2)
        .fixed(r.policy.max_crashes, 2)
        .duration(r.lease)
        .duration(r.retention)
        .duration(r.held_retention)
        .owner(r.owner)
        .fingerprint(r.fingerprint)
        .bytes(r.fingerprint_before.stored());
}

inline void pack(const FinishRequest& r, Call& call) {
    call.operation = Operation::finish;
    detail::Packer(call.packed)
        .byte(r.kind)
        .byte(detail::flags_of(r.counted, r.checkpoint.has_value(), r.resource.has_value()))
        .byte(r.result_kind)
        .byte(r.failure)
        .fixed(r.codec.tag, 4)
        .byte(r.codec.version)
        .fence(r.fence)
        .duration(r.lease)
        .duration(r.retention)
        .duration(r.held_retention)
        .owner(r.owner);
    const auto result = r.kind == FinishKind::complete ? r.result : std::string_view();
    if (r.kind == FinishKind::complete && !r.checkpoint && !r.resource)
        return detail::set_bytes(call, {result});
    detail::set_bytes(call, {result, r.failure_code.substr(0, Failure::code_bytes_max),
                             r.failure_message.substr(0, Failure::message_bytes_max),
                             r.checkpoint.value_or(""), r.resource.value_or("")});
}

inline void pack(const RenewRequest& r, Call& call) {
    call.operation = Operation::renew;
    detail::Packer(call.packed)
        .byte(detail::flags_of(r.checkpoint.has_value(), r.resource.has_value()))
        .fence(r.fence)
        .duration(r.lease)
        .owner(r.owner);
    if (r.checkpoint || r.resource)
        detail::set_bytes(call, {r.checkpoint.value_or(""), r.resource.value_or("")});
}

inline void pack(const IssueRequest& r, Call& call) {
    call.operation = Operation::issue;
    detail::Packer(call.packed)
        .duration(r.validity)
        .duration(r.retention)
        .owner(r.owner)
        .bytes(r.binding.stored());
}

inline void pack(const ResolveRequest& r, Call& call) {
    call.operation = Operation::resolve;
    detail::Packer(call.packed)
        .byte(r.succeeded ? 1 : 0)
        .byte(r.result_kind)
        .fixed(r.codec.tag, 4)
        .byte(r.codec.version)
        .fence(r.seen_fence)
        .duration(r.retention);
    detail::set_bytes(call, {r.result});
}

inline void pack(const ReapRequest& r, Call& call) {
    call.operation = Operation::reap;
    detail::Packer(call.packed)
        .fence(r.seen_fence)
        .duration(r.retention)
        .duration(r.held_retention);
}

inline void pack(const ForgetRequest& r, Call& call) {
    call.operation = Operation::forget;
    detail::Packer(call.packed).fence(r.seen_fence).duration(r.lease);
}

/// Whether the same again, after its answer was lost, answers as the first did.
template <class Request>
inline constexpr bool repeatable =
    !std::same_as<Request, ResolveRequest> && !std::same_as<Request, ReapRequest> &&
    !std::same_as<Request, ForgetRequest>;

enum class Read : std::uint8_t {
    done,
    again,     ///< The record did not pass through Lua, and its value is not here or is another's.
    nonsense,  ///< The answer has not the form it must have.
};

namespace detail {

[[nodiscard]] inline std::optional<std::int64_t> number_in(const Call& call, std::int64_t low,
                                                           std::int64_t high) noexcept {
    const auto number = call.reply->integer();
    if (!number || *number < low || *number > high) return std::nullopt;
    return number;
}

/// 8 × upper + state.
struct Settled {
    unsigned upper = 0;
    State state = State::forgotten;
};
[[nodiscard]] inline std::optional<Settled> settled_in(const Call& call, unsigned upper_max) {
    const auto number = number_in(call, 1, 8 * static_cast<std::int64_t>(upper_max) + 7);
    if (!number || *number % 8 == 0) return std::nullopt;
    return Settled{static_cast<unsigned>(*number / 8), static_cast<State>(*number % 8)};
}

}  // namespace detail

/// Whether a claim met a record that is too long to pass through Lua.
[[nodiscard]] inline bool left_out(const Call& call) {
    const auto text = call.reply ? call.reply->text() : std::nullopt;
    return text && !text->empty() && static_cast<unsigned char>(text->front()) >= 128;
}

[[nodiscard]] inline Read read_reply(const Call& call, ClaimReply& reply) {
    const auto text = call.reply->text();
    if (!text || text->size() < 8) return Read::nonsense;
    idem::detail::ByteReader in(*text);
    const auto kind = in.fixed(1).value_or(255);
    const auto now = detail::take_instant(in);
    const bool left_out = kind >= 128;
    if (kind % 128 > 8 || !now) return Read::nonsense;
    protocol::ClaimAnswer answer;
    answer.kind = static_cast<ClaimKind>(kind % 128);
    std::optional<LaidOut> record(std::in_place);
    if (left_out) {
        const auto value = call.value ? call.value->text() : std::nullopt;
        if (!value || !value->starts_with(in.rest())) return Read::again;
        record = read_record(*value);
        if (!record) return Read::again;
    } else if (in.rest().size() == layout::fixed_bytes) {
        if (const auto header = read_fixed(in.rest())) {
            record->header = *header;
        } else {
            record.reset();
        }
    } else if (answer.kind != ClaimKind::absent) {
        record = read_record(in.rest());
    }
    if (!record) return Read::nonsense;
    answer.record = record->header;
    if (answer.kind == ClaimKind::acquired || answer.kind == ClaimKind::in_progress)
        answer.lease_left = answer.record.lease_end - *now;
    answer.retention_left = answer.record.retention_end - *now;
    protocol::fill_reply(reply, answer, std::move(record->payload));
    return Read::done;
}

[[nodiscard]] inline Read read_reply(const Call& call, FinishReply& reply) {
    const auto settled = detail::settled_in(call, 4);
    if (!settled) return Read::nonsense;
    reply = {settled->upper != 0, static_cast<LostReason>(settled->upper), settled->state, {}};
    return Read::done;
}

[[nodiscard]] inline Read read_reply(const Call& call, RenewReply& reply) {
    const auto left = detail::number_in(call, -4, 2 * Duration(duration_max).count());
    if (!left) return Read::nonsense;
    if (*left < 0) {
        reply = {true, static_cast<LostReason>(-*left), {}, {}};
    } else {
        reply = {false, LostReason::none, Duration(*left), {}};
    }
    return Read::done;
}

[[nodiscard]] inline Read read_reply(const Call& call, IssueReply& reply) {
    const auto number = detail::number_in(call, 0, 1);
    if (!number) return Read::nonsense;
    reply = {*number == 1, {}};
    return Read::done;
}

[[nodiscard]] inline Read read_reply(const Call& call, ResolveReply& reply) {
    const auto settled = detail::settled_in(call, 1);
    if (!settled) return Read::nonsense;
    reply = {settled->upper == 1, settled->state, {}};
    return Read::done;
}

[[nodiscard]] inline Read read_reply(const Call& call, ReapReply& reply) {
    const auto settled = detail::settled_in(call, 1);
    if (!settled) return Read::nonsense;
    reply = {settled->upper == 1, settled->state, {}};
    return Read::done;
}

[[nodiscard]] inline Read read_reply(const Call& call, ForgetReply& reply) {
    const auto text = call.reply->text();
    if (!text || text->size() != 8) return Read::nonsense;
    idem::detail::ByteReader in(*text);
    const auto existed = in.fixed(1).value_or(2);
    if (existed > 1) return Read::nonsense;
    reply = {existed == 1, in.fixed(7).value_or(0), {}};
    return Read::done;
}

/// Whether the answer says that something may have been written, which replicas must have then.
[[nodiscard]] inline bool wrote(const Call& call) {
    if (!call.reply || call.reply->is_error()) return false;
    if (call.operation != Operation::claim) return true;
    const auto text = call.reply->text();
    if (!text || text->empty()) return false;
    // What has ended stays so, with or without the record; nothing runs for it.
    return static_cast<ClaimKind>(text->front()) == ClaimKind::acquired;
}

}  // namespace idem::inline v0_1::redis

#endif
