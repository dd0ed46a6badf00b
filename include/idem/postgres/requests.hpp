#ifndef IDEM_POSTGRES_REQUESTS_HPP
#define IDEM_POSTGRES_REQUESTS_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <idem/detail/sha256.hpp>
#include <idem/operation.hpp>
#include <idem/postgres/sql_table.hpp>

/// Requests as parameters of the functions, in the order of their fields.
namespace idem::inline v0_1::postgres {

/// The first 16 bytes of SHA-256 over the key's stored form. 72 bytes of index for each row; the
/// key as text would need twice that. Two keys with one digest are found out by the row's own name.
[[nodiscard]] inline std::string digest_of(const KeyView& key) {
    const auto digest = idem::detail::sha256(encode_key(key));
    return std::string(idem::detail::as_text(digest).substr(0, 16));
}

/// The items of one statement: which requests, and the digests of their keys.
template <class Request>
struct Items {
    std::span<const Request> requests{};
    std::span<const std::string> digests{};  ///< Of all requests.
    std::span<const std::size_t> which{};    ///< Sorted by digest; equal ones in their order.
    bool arrays = false;

    template <class Make>
    void add(Params& params, Type type, Make&& make) const {
        if (!arrays) return params.add(type, make(requests[which[0]]));
        params.add_array(type, which.size(),
                         [&](std::size_t i) { return make(requests[which[i]]); });
    }
    void add_keys(Params& params) const {
        if (arrays) {
            params.add_array(Type::uuid, which.size(),
                             [&](std::size_t i) { return Value::bytes(digests[which[i]]); });
        } else {
            params.add(Type::uuid, Value::bytes(digests[which[0]]));
        }
        add(params, Type::letter,
            [](const Request& r) { return Value::letter(static_cast<char>(r.key.component)); });
        add(params, Type::text, [](const Request& r) { return Value::bytes(escape(r.key.scope)); });
        add(params, Type::text,
            [](const Request& r) { return Value::bytes(escape(r.key.tenant)); });
        add(params, Type::text, [](const Request& r) { return Value::bytes(escape(r.key.id)); });
    }
};

namespace detail {

[[nodiscard]] inline Value micros(Duration d) {
    return Value::number(static_cast<std::int64_t>(d.count()));
}
[[nodiscard]] inline Value fence(Fence f) {
    return Value::number(static_cast<std::int64_t>(f));
}
template <class Enum>
[[nodiscard]] Value word(Enum e) {
    return Value::number(static_cast<std::int16_t>(e));
}
template <class R>
void add_codec(const Items<R>& items, Params& p) {
    items.add(p, Type::int8,
              [](const R& r) { return Value::number(static_cast<std::int64_t>(r.codec.tag)); });
    items.add(p, Type::int2,
              [](const R& r) { return Value::number(std::int16_t{r.codec.version}); });
}

}  // namespace detail

inline void add_fields(const Items<ClaimRequest>& items, Params& p) {
    using R = ClaimRequest;
    items.add(p, Type::bytea, [](const R& r) { return Value::bytes(r.fingerprint.stored()); });
    items.add(p, Type::bytea,
              [](const R& r) { return Value::bytes(r.fingerprint_before.stored()); });
    items.add(p, Type::uuid, [](const R& r) { return Value::bytes(r.owner.stored()); });
    items.add(p, Type::int8, [](const R& r) { return detail::micros(r.lease); });
    items.add(p, Type::int8, [](const R& r) { return detail::micros(r.retention); });
    items.add(p, Type::int8, [](const R& r) { return detail::micros(r.held_retention); });
    items.add(p, Type::int2, [](const R& r) { return detail::word(r.policy.orphan); });
    items.add(p, Type::int4,
              [](const R& r) { return Value::number(std::int32_t{r.policy.max_attempts}); });
    items.add(p, Type::int4,
              [](const R& r) { return Value::number(std::int32_t{r.policy.max_crashes}); });
    items.add(p, Type::boolean, [](const R& r) { return Value::boolean(r.can_verify); });
    items.add(p, Type::boolean, [](const R& r) { return Value::boolean(r.redeem_only); });
}

inline void add_fields(const Items<FinishRequest>& items, Params& p) {
    using R = FinishRequest;
    items.add(p, Type::uuid, [](const R& r) { return Value::bytes(r.owner.stored()); });
    items.add(p, Type::int8, [](const R& r) { return detail::fence(r.fence); });
    items.add(p, Type::int2, [](const R& r) { return detail::word(r.kind); });
    items.add(p, Type::boolean, [](const R& r) { return Value::boolean(r.counted); });
    items.add(p, Type::int8, [](const R& r) { return detail::micros(r.lease); });
    items.add(p, Type::int8, [](const R& r) { return detail::micros(r.retention); });
    items.add(p, Type::int8, [](const R& r) { return detail::micros(r.held_retention); });
    items.add(p, Type::int2, [](const R& r) { return detail::word(r.result_kind); });
    detail::add_codec(items, p);
    items.add(p, Type::bytea, [](const R& r) { return Value::bytes(r.result); });
    items.add(p, Type::int2, [](const R& r) { return detail::word(r.failure); });
    items.add(p, Type::bytea, [](const R& r) {
        return Value::bytes(r.failure_code.substr(0, Failure::code_bytes_max));
    });
    items.add(p, Type::bytea, [](const R& r) {
        return Value::bytes(r.failure_message.substr(0, Failure::message_bytes_max));
    });
    items.add(p, Type::bytea, [](const R& r) { return Value::maybe(r.checkpoint); });
    items.add(p, Type::bytea, [](const R& r) { return Value::maybe(r.resource); });
}

inline void add_fields(const Items<RenewRequest>& items, Params& p) {
    using R = RenewRequest;
    items.add(p, Type::uuid, [](const R& r) { return Value::bytes(r.owner.stored()); });
    items.add(p, Type::int8, [](const R& r) { return detail::fence(r.fence); });
    items.add(p, Type::int8, [](const R& r) { return detail::micros(r.lease); });
    items.add(p, Type::bytea, [](const R& r) { return Value::maybe(r.checkpoint); });
    items.add(p, Type::bytea, [](const R& r) { return Value::maybe(r.resource); });
}

inline void add_fields(const Items<IssueRequest>& items, Params& p) {
    using R = IssueRequest;
    items.add(p, Type::bytea, [](const R& r) { return Value::bytes(r.binding.stored()); });
    items.add(p, Type::uuid, [](const R& r) { return Value::bytes(r.owner.stored()); });
    items.add(p, Type::int8, [](const R& r) { return detail::micros(r.validity); });
    items.add(p, Type::int8, [](const R& r) { return detail::micros(r.retention); });
}

inline void add_fields(const Items<ResolveRequest>& items, Params& p) {
    using R = ResolveRequest;
    items.add(p, Type::int8, [](const R& r) { return detail::fence(r.seen_fence); });
    items.add(p, Type::boolean, [](const R& r) { return Value::boolean(r.succeeded); });
    items.add(p, Type::int8, [](const R& r) { return detail::micros(r.retention); });
    items.add(p, Type::int2, [](const R& r) { return detail::word(r.result_kind); });
    detail::add_codec(items, p);
    items.add(p, Type::bytea, [](const R& r) { return Value::bytes(r.result); });
}

inline void add_fields(const Items<ReapRequest>& items, Params& p) {
    using R = ReapRequest;
    items.add(p, Type::int8, [](const R& r) { return detail::fence(r.seen_fence); });
    items.add(p, Type::int8, [](const R& r) { return detail::micros(r.retention); });
    items.add(p, Type::int8, [](const R& r) { return detail::micros(r.held_retention); });
}

inline void add_fields(const Items<ForgetRequest>& items, Params& p) {
    items.add(p, Type::int8, [](const ForgetRequest& r) { return detail::micros(r.lease); });
    items.add(p, Type::int8, [](const ForgetRequest& r) { return detail::fence(r.seen_fence); });
}

}  // namespace idem::inline v0_1::postgres

#endif
