#ifndef IDEM_HTTP_STATUS_HPP
#define IDEM_HTTP_STATUS_HPP

#include <array>
#include <optional>
#include <string>

#include <idem/failure.hpp>
#include <idem/http/response.hpp>

namespace idem::inline v0_1::http {

/// What an HTTP status says about repeating the very same request. Two doubts decide it:
/// between final and retryable it says retryable, for neither repeats an effect, and a stored
/// refusal would lock out a retry that has become right; between retryable and unknown it says
/// unknown, for there a repeat might do the thing twice.
///
/// | class | status | why (sections of RFC 9110 unless named) |
/// |---|---|---|
/// | none | 2xx, 3xx | the answer |
/// | retryable | 401 403 407 | may pass with other credentials (15.5.2, 15.5.4, 15.5.8) |
/// | | 402 409 412 423 424 428 | the state refused, not the request, and states change: 15.5.3, |
/// | | | 15.5.10, 15.5.13; RFC 4918 11.3, 11.4; RFC 6585 3 |
/// | | 406 411 417 426 431 | other headers would do (15.5.7, 15.5.12, 15.5.18, 15.5.22; |
/// | | | RFC 6585 5); headers are no part of the fingerprint |
/// | | 408 421 425 429 | not taken up now or here: 15.5.9, 15.5.20; RFC 8470 5.2; RFC 6585 4 |
/// | | 500 501 503 505-508 510 511 | refused or rolled back, as a throw is (15.6) |
/// | final | any other 4xx | the request is wrong, and a repeat is as wrong (15.5): 400 404 405 |
/// | | | 410 413 414 415 416 422 451 and what is not registered |
/// | unknown | 502 504 | the request went on to another server, whose reply was unreadable or |
/// | | | late: it may have acted (15.6.3, 15.6.5) |
/// | | any other | what proxies made up for lost replies (520, 524, 598, 599), or no status |
///
/// A handler that knows that nothing was sent upstream answers 503 in place of 502 or 504.
[[nodiscard]] constexpr FailureClass classify_status(int status) noexcept {
    if (status >= 200 && status <= 399) return FailureClass::none;
    constexpr std::array retryable = {401, 402, 403, 406, 407, 408, 409, 411, 412, 417,  //
                                      421, 423, 424, 425, 426, 428, 429, 431,            //
                                      500, 501, 503, 505, 506, 507, 508, 510, 511};
    for (int other : retryable) {
        if (status == other) return FailureClass::retryable;
    }
    return status >= 400 && status <= 499 ? FailureClass::final : FailureClass::unknown;
}

/// Asked by the guard about what a handler returned. A response whose status is retryable is not
/// recorded as the result: the claim is rolled back, and the next call runs. One that leaves open
/// what happened is held. Nothing for the others: a final refusal is an answer like any other, is
/// recorded whole and replayed byte by byte. A final status with `Retry-After` says of itself that
/// it passes (RFC 9110 sections 10.2.3 and 15.5.14), so it is retryable.
[[nodiscard]] inline std::optional<Failure> idem_failure(const Response& response) {
    FailureClass kind = classify_status(response.status);
    if (kind == FailureClass::final && find_header(response, "Retry-After"))
        kind = FailureClass::retryable;
    if (kind == FailureClass::none || kind == FailureClass::final) return std::nullopt;
    const std::string code = std::to_string(response.status);
    return Failure{kind, code, "the handler answered " + code};
}

}  // namespace idem::inline v0_1::http

#endif
