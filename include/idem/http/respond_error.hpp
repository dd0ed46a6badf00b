#ifndef IDEM_HTTP_RESPOND_ERROR_HPP
#define IDEM_HTTP_RESPOND_ERROR_HPP

#include <exception>

#include <idem/error.hpp>
#include <idem/failure.hpp>
#include <idem/http/respond.hpp>

namespace idem::inline v0_1::http {

// The answers to what a guarded call throws. What the exception says goes to your log and not into
// the answer: it may name hosts and users (RFC 9457 section 5). A final failure's message, which
// was written for the client, is the exception.

/// 503 with `Retry-After`. To send the same key again is safe, applied or not.
[[nodiscard]] inline Response respond(const UnavailableError&, const RespondOptions& options = {}) {
    return internal::retry_later({503, "unavailable", "The service is not available",
                                  "Send the request again with the same key.", true},
                                 {}, options);
}

/// 409, to be sent again: another holder has the claim, and its answer will be there.
[[nodiscard]] inline Response respond(const LeaseLostError&, const RespondOptions& options = {}) {
    return internal::retry_later({409, "lease-lost", "Another worker has taken this request over",
                                  "Send the request again with the same key for its answer.", true},
                                 {}, options);
}

/// 409, to be sent again: two transactions met, and this one was rolled back.
[[nodiscard]] inline Response respond(const ConflictError&, const RespondOptions& options = {}) {
    return internal::retry_later({409, "conflict", "Another transaction came first",
                                  "Nothing has happened; send it again with the same key.", true},
                                 {}, options);
}

/// 400: a key that no store can hold, or the like.
[[nodiscard]] inline Response respond(const UsageError&, const RespondOptions& options = {}) {
    return internal::answer({400, "bad-request", "The request cannot be guarded",
                             "Its key or its settings break a rule of this service.", false},
                            options);
}

/// 409: it was done, and this server cannot read the answer (another type, a newer version,
/// damage). Not a 500, for a duplicate is what meets it.
[[nodiscard]] inline Response respond(const CodecError&, const RespondOptions& options = {}) {
    return internal::answer(
        {409, "result-unreadable", "The request was carried out; its answer cannot be read",
         "It is done and will not be done again. Look the result up.", false},
        options);
}

/// 503 with `Retry-After`: this server must not touch the record. During an upgrade a newer one
/// can; otherwise the store needs a person. Not a 500, for a duplicate may be what meets it.
[[nodiscard]] inline Response respond(const SchemaError&, const RespondOptions& options = {}) {
    return internal::retry_later({503, "record-unreadable", "The service is not available",
                                  "Send the request again with the same key.", true},
                                 options.retry_after_max, options);
}

/// As a repeat of it will be answered.
[[nodiscard]] inline Response respond(const FinalError& error, const RespondOptions& options = {}) {
    return internal::failed({FailureClass::final, error.code(), error.what()}, options);
}

/// As a repeat of it will be answered.
[[nodiscard]] inline Response respond(const UnknownOutcomeError&,
                                      const RespondOptions& options = {}) {
    return internal::held(options);
}

/// For a `catch (...)` around a guarded call: the answer to whichever of the above it was.
/// @throws the exception itself where it is none of the library's: what your handler's own errors
/// mean is yours to say. The pointer must not be null.
[[nodiscard]] inline Response respond(const std::exception_ptr& error,
                                      const RespondOptions& options = {}) {
    try {
        std::rethrow_exception(error);
    } catch (const UnavailableError& e) {
        return respond(e, options);
    } catch (const LeaseLostError& e) {
        return respond(e, options);
    } catch (const ConflictError& e) {
        return respond(e, options);
    } catch (const UsageError& e) {
        return respond(e, options);
    } catch (const CodecError& e) {
        return respond(e, options);
    } catch (const SchemaError& e) {
        return respond(e, options);
    } catch (const FinalError& e) {
        return respond(e, options);
    } catch (const UnknownOutcomeError& e) {
        return respond(e, options);
    }
}

}  // namespace idem::inline v0_1::http

#endif
