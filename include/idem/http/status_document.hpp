#ifndef IDEM_HTTP_STATUS_DOCUMENT_HPP
#define IDEM_HTTP_STATUS_DOCUMENT_HPP

#include <optional>
#include <string>
#include <utility>

#include <idem/detail/http_text.hpp>
#include <idem/detail/json.hpp>
#include <idem/http/respond.hpp>
#include <idem/record.hpp>

namespace idem::inline v0_1::http {

/// What the polling URL of a 202 answers: where the record stands, as JSON. Moments are RFC 3339
/// in UTC by the store's clock. It shows neither key nor caller, result nor checkpoint, but check
/// that the asking caller is the key's own before you call it.
///
/// 200 whatever the state, failed ones too: the request for the state has succeeded, and a client
/// that polls must be able to tell a failed job from a failed poll (RFC 9110 section 15.3.1). With
/// `see_other` a job that has succeeded and whose resource has a URL answers 303 to it in place of
/// that (section 15.4.4), the same document in its body.
[[nodiscard]] inline Response status_document(const RecordView& record,
                                              const RespondOptions& options = {}) {
    using idem::detail::rfc3339;
    const RecordHeader& header = record.header;
    const bool running = header.state == State::running;
    const bool settled = header.state == State::succeeded || header.state == State::failed;
    const auto seconds = internal::retry_seconds(record.lease_left, options);
    const std::string url = internal::resource_url(record.payload.resource, options);

    idem::detail::JsonObject json;
    json.text("state", to_string(header.state)).number("attempt", header.attempt);
    if (running) json.boolean("lapsed", record.lapsed);
    json.text_unless_empty("created", rfc3339(header.created))
        .text_unless_empty("started", rfc3339(header.started));
    // Of a held record this is when it was put aside; nothing has completed.
    if (settled) json.text_unless_empty("completed", rfc3339(header.completed));
    json.text_unless_empty("kept_until", rfc3339(header.retention_end));
    if (running) json.number("retry_after", seconds);
    json.text_unless_empty("resource", record.payload.resource)
        .text_unless_empty("resource_url", url);
    if (header.state == State::succeeded)
        json.boolean("result_kept", header.result == ResultKind::value);
    // Of a released record it is why the work was rolled back: the request may be corrected.
    const bool released = header.state == State::released && header.failure != FailureClass::none;
    if (header.state == State::failed || released) {
        idem::detail::JsonObject failure;
        failure.text("class", to_string(header.failure))
            .text_unless_empty("code", record.payload.failure_code);
        if (header.failure == FailureClass::final)
            failure.text_unless_empty("message", record.payload.failure_message);
        json.object("failure", std::move(failure));
    }
    Response out{200,
                 {{"Content-Type", "application/json"}, {"Cache-Control", "no-store"}},
                 std::move(json).finish()};
    if (running) internal::put_retry_after(out, seconds);
    if (options.see_other && header.state == State::succeeded && !url.empty()) {
        out.status = 303;
        out.headers.push_back({"Location", url});
    }
    return out;
}

/// Of what `find` answered: 404 where there is no such record, or no longer.
[[nodiscard]] inline Response status_document(const std::optional<RecordView>& record,
                                              const RespondOptions& options = {}) {
    if (record) return status_document(*record, options);
    return internal::answer({404, "not-found", "Nothing is known under this key",
                             "It was never used, or is no longer remembered.", false},
                            options);
}

}  // namespace idem::inline v0_1::http

#endif
