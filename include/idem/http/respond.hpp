#ifndef IDEM_HTTP_RESPOND_HPP
#define IDEM_HTTP_RESPOND_HPP

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <idem/clock.hpp>
#include <idem/detail/http_text.hpp>
#include <idem/detail/json.hpp>
#include <idem/error.hpp>
#include <idem/failure.hpp>
#include <idem/http/problem.hpp>
#include <idem/http/response.hpp>
#include <idem/outcome.hpp>
#include <idem/record.hpp>

namespace idem::inline v0_1::http {

/// Which statuses a repeat gets.
enum class Profile : std::uint8_t {
    ietf,       ///< 409 in progress, 422 mismatch: section 2.7 of the Idempotency-Key draft.
    async_job,  ///< 202 in progress with the status URL in Location, 409 mismatch.
};

struct RespondOptions {
    Profile profile = Profile::ietf;
    /// Where the state of this key can be asked for (`status_document`). Empty: nowhere.
    std::string status_url{};
    /// Makes a URL of a stored resource id. Empty: ids are told, and never put into Location.
    std::function<std::string(std::string_view id)> resource_url{};
    /// Stands before the name of each problem type: the page that explains them to your clients.
    std::string problem_base_uri = std::string(default_problem_base_uri);
    /// Names this occurrence in problems (RFC 9457 section 3.1.5): request id, or `key_hash`.
    std::string instance{};
    /// `Retry-After` of answers that know no time of their own.
    Duration retry_after_default = std::chrono::seconds{1};
    /// `Retry-After` says at most this, however long the lease that is left: work may end sooner.
    Duration retry_after_max = std::chrono::minutes{1};
    /// `status_document` answers 303 to the resource once the work has succeeded.
    bool see_other = false;
};

namespace internal {

/// Whole seconds (RFC 9110 section 10.2.3), rounded up, at least one: 0 would mean "at once".
[[nodiscard]] inline std::int64_t retry_seconds(Duration left, const RespondOptions& options) {
    const auto seconds = [](Duration time) {
        const std::int64_t second = 1'000'000;
        return time.count() / second + (time.count() % second > 0 ? 1 : 0);
    };
    const auto wanted = seconds(left > Duration::zero() ? left : options.retry_after_default);
    return std::clamp<std::int64_t>(wanted, 1,
                                    std::max<std::int64_t>(seconds(options.retry_after_max), 1));
}

[[nodiscard]] inline std::string resource_url(std::string_view id, const RespondOptions& options) {
    if (id.empty() || !options.resource_url) return {};
    return idem::detail::uri_text(options.resource_url(id));
}

/// What a problem is, apart from this occurrence of it.
struct ProblemType {
    int status;
    std::string_view name;
    std::string_view title;
    std::string_view detail;
    bool retryable;  ///< The same request with the same key may be sent again.
};

[[nodiscard]] inline Response answer(const ProblemType& type, const RespondOptions& options,
                                     std::vector<Member> members = {}) {
    members.insert(members.begin(), {"retryable", type.retryable});
    if (!options.instance.empty()) members.push_back({"instance", options.instance});
    return problem(type.status, options.problem_base_uri + std::string(type.name), type.title,
                   type.detail, members);
}

inline void put_retry_after(Response& response, std::int64_t seconds) {
    response.headers.push_back({"Retry-After", std::to_string(seconds)});
}

/// Link with the relation "status" of RFC 8631 section 4.4.
inline void put_status_link(Response& response, const RespondOptions& options) {
    if (options.status_url.empty()) return;
    const std::string link = '<' + idem::detail::uri_text(options.status_url) + ">; rel=\"status\"";
    response.headers.push_back({"Link", link});
}

[[nodiscard]] inline std::vector<Member> with_status_url(const RespondOptions& options,
                                                         std::vector<Member> members) {
    if (!options.status_url.empty())
        members.push_back({"status_url", idem::detail::uri_text(options.status_url)});
    return members;
}

[[nodiscard]] inline Response retry_later(const ProblemType& type, Duration left,
                                          const RespondOptions& options) {
    const auto seconds = retry_seconds(left, options);
    Response out = answer(type, options, {{"retry_after", seconds}});
    put_retry_after(out, seconds);
    return out;
}

[[nodiscard]] inline Response in_progress(const OutcomeDetails& details,
                                          const RespondOptions& options) {
    static constexpr ProblemType type = {409, "in-progress",
                                         "A request is outstanding for this Idempotency-Key",
                                         "The same request is being processed.", true};
    const auto seconds = retry_seconds(details.retry_after, options);
    const std::string started = idem::detail::rfc3339(details.started);
    Response out;
    if (options.profile == Profile::async_job) {
        idem::detail::JsonObject json;
        json.text("state", "running").boolean("retryable", true).number("retry_after", seconds);
        json.number("attempt", details.attempt).text_unless_empty("started", started);
        json.text_unless_empty("status_url", idem::detail::uri_text(options.status_url));
        out = {202,
               {{"Content-Type", "application/json"}, {"Cache-Control", "no-store"}},
               std::move(json).finish()};
        if (!options.status_url.empty())
            out.headers.push_back({"Location", idem::detail::uri_text(options.status_url)});
    } else {
        std::vector<Member> members = {{"retry_after", seconds},
                                       {"attempt", std::int64_t{details.attempt}}};
        if (!started.empty()) members.push_back({"started", started});
        out = answer(type, options, with_status_url(options, std::move(members)));
    }
    put_retry_after(out, seconds);
    put_status_link(out, options);
    return out;
}

[[nodiscard]] inline Response held(const RespondOptions& options) {
    static constexpr ProblemType type = {
        409, "outcome-unknown", "The outcome of this request is unknown",
        "The request may or may not have taken effect. It is held until that has been settled; "
        "sending it again, or under another key, may do it twice.",
        false};
    Response out = answer(type, options, with_status_url(options, {}));
    put_status_link(out, options);
    return out;
}

/// The status that a failure's code names, where a client error can be answered without the header
/// that it demands (401, 405, 407 and 426 each demand one); else 422.
[[nodiscard]] inline int refusal_status(std::string_view code) noexcept {
    if (code.size() != 3 || code[0] != '4') return 422;
    if (!idem::detail::is_digit(code[1]) || !idem::detail::is_digit(code[2])) return 422;
    const int status = 400 + (code[1] - '0') * 10 + (code[2] - '0');
    return status == 401 || status == 405 || status == 407 || status == 426 ? 422 : status;
}

[[nodiscard]] inline Response failed(const Failure& failure, const RespondOptions& options) {
    if (failure.kind == FailureClass::unknown) return held(options);
    if (failure.kind == FailureClass::retryable) {
        static constexpr ProblemType type = {503, "not-done", "The request was not carried out",
                                             "Nothing has happened; send it again.", true};
        return retry_later(type, {}, options);
    }
    static constexpr ProblemType final_type = {422, "failed", "The request has failed",
                                               "It can never work; a repeat gets this same answer.",
                                               false};
    static constexpr ProblemType exhausted_type = {
        424, "exhausted", "The request was given up",
        "It was tried as often as is allowed. It is not tried again under this key.", false};
    std::vector<Member> members;
    if (!failure.code.empty()) members.push_back({"code", failure.code});
    if (failure.kind == FailureClass::exhausted)
        return answer(exhausted_type, options, std::move(members));
    ProblemType type = final_type;
    type.status = refusal_status(failure.code);
    if (!failure.message.empty()) type.detail = failure.message;
    return answer(type, options, std::move(members));
}

[[nodiscard]] inline Response mismatch(const RespondOptions& options) {
    ProblemType type = {422, "key-reused", "Idempotency-Key is already used",
                        "This key stands for a request with another content. Send the first "
                        "request again as it was, or this one under a new key.",
                        false};
    if (options.profile == Profile::async_job) type.status = 409;
    return answer(type, options);
}

inline void mark_replayed(Response& response) {
    response.headers.push_back({std::string(replayed_header), "true"});
}

/// It has been done, and what was answered is not there any more. A 2xx would need a body that
/// nobody has. Where the resource has a URL the client is sent there (303, RFC 9110 section
/// 15.4.4); else 409, whose `resource` names it.
[[nodiscard]] inline Response not_kept(const OutcomeDetails& details,
                                       const RespondOptions& options) {
    static constexpr ProblemType type = {
        409, "result-not-kept", "The request was carried out; its answer was not kept",
        "It is done and will not be done again. Look the result up.", false};
    const std::string url = resource_url(details.resource, options);
    Response out;
    if (!url.empty()) {
        out = {303, {{"Location", url}, {"Cache-Control", "no-store"}}, {}};
    } else {
        std::vector<Member> members = {{"result", std::string(to_string(details.result))}};
        if (!details.resource.empty()) members.push_back({"resource", details.resource});
        out = answer(type, options, with_status_url(options, std::move(members)));
        put_status_link(out, options);
    }
    mark_replayed(out);
    return out;
}

[[nodiscard]] inline Response without_value(const OutcomeDetails& details,
                                            const RespondOptions& options) {
    switch (details.kind) {
        case OutcomeKind::executed:
        case OutcomeKind::replayed: return not_kept(details, options);
        case OutcomeKind::in_progress: return in_progress(details, options);
        case OutcomeKind::mismatch: return mismatch(options);
        case OutcomeKind::failed: return failed(details.failure, options);
        case OutcomeKind::unknown: return held(options);
        case OutcomeKind::cancelled: {
            static constexpr ProblemType type = {
                503, "cancelled", "The wait for the answer was given up",
                "The same request may still be at work; send it again with the same key.", true};
            return retry_later(type, details.retry_after, options);
        }
        case OutcomeKind::absent:
            return answer({404, "token-unknown", "There is no such token",
                           "It was never issued, or is no longer remembered.", false},
                          options);
        case OutcomeKind::expired:
            return answer({410, "token-expired", "The token has expired",
                           "It was not redeemed in time. Ask for a new one.", false},
                          options);
    }
    return held(options);  // a kind of no version so far
}

/// The answer of this call's own handler, as it is but for fields that would split it, and for a
/// mark that it relays: a client would take new work for a repeat.
[[nodiscard]] inline Response first(Response response, const OutcomeDetails& details,
                                    const RespondOptions& options) {
    std::erase_if(response.headers, [](const Header& header) {
        return !is_sendable(header) ||
               idem::detail::equal_ignoring_case(header.name, replayed_header);
    });
    if (response.status == 201 && !find_header(response, "Location")) {
        const std::string url = resource_url(details.resource, options);
        if (!url.empty()) response.headers.push_back({"Location", url});
    }
    return response;
}

[[nodiscard]] inline Response replay(Response response, const OutcomeDetails& details,
                                     const RespondOptions& options) {
    if (response.status >= 500) {
        // "Try again" for ever: the record stands, and every repeat would meet it.
        return failed({FailureClass::exhausted, std::to_string(response.status), {}}, options);
    }
    response.headers = replayable_headers(response.headers);
    response = first(std::move(response), details, options);
    mark_replayed(response);
    return response;
}

}  // namespace internal

/// What turns a handler's value into a response; it runs for the first answer and for each repeat,
/// so it must depend on the value alone.
template <class F, class T>
concept response_maker = requires(F& make, const typename Outcome<T>::Value& value) {
    { make(value) } -> std::convertible_to<Response>;
};

/// The answer to a guarded call. A duplicate never gets a 500.
///
/// | outcome | ietf | async_job |
/// |---|---|---|
/// | executed | the response itself | the same |
/// | replayed | the saved one, with `Idempotency-Replayed: true` | the same |
/// | replayed, not kept | 303 where the resource has a URL, else 409 result-not-kept | the same |
/// | in_progress | 409, Retry-After, Link | 202, Retry-After, Link, Location |
/// | mismatch | 422 | 409 |
/// | failed, final | its own 4xx where the code is one, else 422 | the same |
/// | failed, exhausted | 424: this request stands on a first one that failed | the same |
/// | unknown | 409 outcome-unknown, not to be sent again | the same |
/// | cancelled | 503, Retry-After | the same |
/// | absent, expired | 404, 410 | the same |
///
/// 424 (RFC 4918 section 11.4) and not 409 or a 5xx, because clients' retry loops leave it alone.
/// A saved 5xx, which only a hand-made record can hold, is answered as exhausted. Problems carry
/// `retryable`: true for in progress, cancelled and what was not carried out, else false. Messages
/// of failures are shown only where they are final; the others may tell of your inside.
template <class T, response_maker<T> ToResponse>
[[nodiscard]] Response respond(const Outcome<T>& outcome, ToResponse&& to_response,
                               const RespondOptions& options = {}) {
    const OutcomeDetails& details = outcome.details();
    if (outcome.has_value()) {
        switch (outcome.kind()) {
            case OutcomeKind::replayed:
                return internal::replay(to_response(outcome.value()), details, options);
            case OutcomeKind::executed:
            case OutcomeKind::failed:   // a value besides: what this call's handler answered, and
            case OutcomeKind::unknown:  // what was not recorded as a result
                return internal::first(to_response(outcome.value()), details, options);
            default: break;
        }
    }
    return internal::without_value(details, options);
}

[[nodiscard]] inline Response respond(const Outcome<Response>& outcome,
                                      const RespondOptions& options = {}) {
    return respond(
        outcome, [](const Response& response) -> const Response& { return response; }, options);
}

}  // namespace idem::inline v0_1::http

#endif
