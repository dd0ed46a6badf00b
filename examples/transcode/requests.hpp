#ifndef TRANSCODE_REQUESTS_HPP
#define TRANSCODE_REQUESTS_HPP

#include <charconv>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <httplib.h>

#include <idem/http.hpp>
#include <idem/key.hpp>

#include "encoder.hpp"

/// From requests to values, and from values to answers. Nothing here knows of guards.
namespace transcode {

using idem::http::Response;

/// A request that is wrong in form; the text is the client's to read.
class BadRequest : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

inline constexpr const char* letters_and_digits = "abcdefghijklmnopqrstuvwxyz0123456789";
inline constexpr const char* hex_digits = "0123456789abcdef";

// --- what was asked -----------------------------------------------------------------------------

/// Who calls. Stands for your authentication: whoever chooses it freely reads others' answers.
[[nodiscard]] inline std::string caller_of(const httplib::Request& request) {
    std::string caller = request.get_header_value("X-Caller");
    if (caller.empty()) return "demo";
    if (caller.size() > 32 || caller.find_first_not_of(letters_and_digits) != std::string::npos)
        throw BadRequest("X-Caller must be up to 32 of a-z and 0-9");
    return caller;
}

/// Of the whole request, so that one key with another route or another body is a mismatch.
[[nodiscard]] inline idem::Fingerprint fingerprint_of(const httplib::Request& request) {
    return idem::http::request_fingerprint(request.method, request.target,
                                           request.get_header_value("Content-Type"), request.body);
}

/// Every line of the header is looked at: a client must not send two keys.
[[nodiscard]] inline idem::http::ParsedKey idempotency_key(const httplib::Request& request) {
    std::vector<std::string_view> lines;
    const auto [first, last] = request.headers.equal_range("Idempotency-Key");
    for (auto at = first; at != last; ++at) lines.push_back(at->second);
    return idem::http::parse_key(lines);
}

template <class Number>
[[nodiscard]] Number number(const std::string& name, const std::string& text) {
    Number value = 0;
    const auto* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc{} || at != end) throw BadRequest(name + " must be a number");
    return value;
}
template <class Number>
[[nodiscard]] Number number_field(const httplib::Request& request, const std::string& name) {
    return number<Number>(name, request.get_param_value(name));
}

[[nodiscard]] inline std::string digest_field(const httplib::Request& request,
                                              const std::string& name) {
    std::string text = request.get_param_value(name);
    if (text.size() != 64 || text.find_first_not_of(hex_digits) != std::string::npos)
        throw BadRequest(name + " must be 64 lower-case hex digits");
    return text;
}

[[nodiscard]] inline unsigned side_field(const httplib::Request& request, const std::string& name) {
    const auto side = number_field<unsigned>(request, name);
    if (side < 16 || side > 7680 || side % 2 != 0)
        throw BadRequest(name + " must be an even number between 16 and 7680");
    return side;
}

/// Refuses what is wrong in form, before anything is claimed: a bad request burns no key.
[[nodiscard]] inline Job parse_job(const httplib::Request& request, std::string id) {
    Job job{.caller = caller_of(request),
            .id = std::move(id),
            .input = digest_field(request, "input"),
            .width = side_field(request, "width"),
            .height = side_field(request, "height"),
            .preset = request.get_param_value("preset")};
    if (job.preset.empty()) job.preset = "medium";
    if (job.preset.find_first_not_of(letters_and_digits) != std::string::npos)
        throw BadRequest("preset must be letters");
    return job;
}

// --- what is answered ---------------------------------------------------------------------------

/// A text as JSON. The texts of this service are ids, paths and digests: nothing needs escaping.
[[nodiscard]] inline std::string quoted(const std::string& text) {
    return '"' + text + '"';
}
[[nodiscard]] inline Response json(
    int status, std::initializer_list<std::pair<std::string, std::string>> members) {
    std::string body;
    for (const auto& [name, value] : members)
        body += (body.empty() ? '{' : ',') + quoted(name) + ':' + value;
    return {status, {{"Content-Type", "application/json"}}, body + "}\n"};
}

[[nodiscard]] inline Response not_found(const std::string& detail) {
    return idem::http::problem(404, {}, "Not Found", detail);
}
[[nodiscard]] inline Response conflict(const std::string& detail) {
    return idem::http::problem(409, {}, "Conflict", detail);
}

}  // namespace transcode

#endif
