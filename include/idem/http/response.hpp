#ifndef IDEM_HTTP_RESPONSE_HPP
#define IDEM_HTTP_RESPONSE_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <idem/codec.hpp>
#include <idem/detail/bytes.hpp>
#include <idem/detail/http_text.hpp>
#include <idem/error.hpp>

namespace idem::inline v0_1::http {

struct Header {
    std::string name{};
    std::string value{};

    friend bool operator==(const Header&, const Header&) = default;
};

/// What a handler answers, and what is stored and replayed. No server of its own: copy the three
/// fields into the response object of yours. A plain value; the body is any bytes.
struct Response {
    int status = 200;
    std::vector<Header> headers{};
    std::string body{};

    friend bool operator==(const Response&, const Response&) = default;
};

/// Says that an answer is the saved one of an earlier call.
inline constexpr std::string_view replayed_header = "Idempotency-Replayed";

/// The value of the first field of that name, in any case. It refers into `response`.
[[nodiscard]] inline std::optional<std::string_view> find_header(const Response& response,
                                                                 std::string_view name) noexcept {
    for (const Header& header : response.headers) {
        if (detail::equal_ignoring_case(header.name, name)) return header.value;
    }
    return std::nullopt;
}

/// Can be sent as one line. A CR or LF in a value would start a header, or a whole response, that
/// an attacker wrote (RFC 9110 section 5.5); such a field is never stored, replayed or answered.
[[nodiscard]] inline bool is_sendable(const Header& header) noexcept {
    return detail::is_token(header.name) && detail::is_field_value(header.value);
}

/// False for fields that belong to one connection, one client or one moment and would be a lie, or
/// a leak, in a repeat: the hop-by-hop ones of RFC 9110 section 7.6.1 and those of the proxy
/// (section 11.7), cookies, the length (the server counts it anew), `Date`, `Age`, and our mark.
[[nodiscard]] inline bool is_replayable(std::string_view name) noexcept {
    static constexpr std::array<std::string_view, 17> denied = {
        "Age",
        "Connection",
        "Content-Length",
        "Date",
        replayed_header,
        "Keep-Alive",
        "Proxy-Authenticate",
        "Proxy-Authentication-Info",
        "Proxy-Authorization",
        "Proxy-Connection",
        "Set-Cookie",
        "Set-Cookie2",
        "TE",
        "Trailer",
        "Trailers",
        "Transfer-Encoding",
        "Upgrade",
    };
    return std::none_of(denied.begin(), denied.end(), [&](std::string_view other) {
        return detail::equal_ignoring_case(name, other);
    });
}

/// The fields that may be kept for a repeat, in their order: without those that `is_replayable`
/// denies, those that a `Connection` field names (RFC 9110 section 7.6.1), and those that cannot
/// be sent. Applied when a response is stored and again when it is replayed: what an older version
/// let into the store does not come out of this one.
[[nodiscard]] inline std::vector<Header> replayable_headers(const std::vector<Header>& headers) {
    std::vector<std::string_view> named;
    for (const Header& header : headers) {
        if (!detail::equal_ignoring_case(header.name, "Connection")) continue;
        std::string_view rest = header.value;
        while (!rest.empty()) {
            const auto comma = std::min(rest.find(','), rest.size());
            named.push_back(detail::without_outer_space(rest.substr(0, comma)));
            rest.remove_prefix(std::min(comma + 1, rest.size()));
        }
    }
    std::vector<Header> kept;
    for (const Header& header : headers) {
        const bool hop = std::any_of(named.begin(), named.end(), [&](std::string_view name) {
            return detail::equal_ignoring_case(name, header.name);
        });
        if (!hop && is_replayable(header.name) && is_sendable(header)) kept.push_back(header);
    }
    return kept;
}

}  // namespace idem::inline v0_1::http

namespace idem::inline v0_1 {

/// Stored form, version 1: status, number of fields, each field's name and value, body; lengths
/// and numbers as LEB128. Only what `replayable_headers` keeps is stored.
template <>
struct Codec<http::Response> {
    static constexpr std::uint32_t tag = codec_tag("idem.http.Response");
    static constexpr std::uint8_t version = 1;

    /// @throws CodecError for a status that ends no exchange (RFC 9110 section 15: 200 to 599).
    static void encode(const http::Response& response, std::string& out) {
        check_status(response.status);
        const auto headers = http::replayable_headers(response.headers);
        detail::put_varint(out, static_cast<std::uint64_t>(response.status));
        detail::put_varint(out, headers.size());
        for (const auto& header : headers) {
            detail::put_bytes(out, header.name);
            detail::put_bytes(out, header.value);
        }
        detail::put_bytes(out, response.body);
    }

    static http::Response decode(std::string_view bytes, std::uint8_t) {
        detail::ByteReader in(bytes);
        http::Response out;
        const auto status = detail::or_truncated(in.varint());
        check_status(status < 1000 ? static_cast<int>(status) : 0);
        out.status = static_cast<int>(status);
        std::vector<http::Header> stored;
        for (auto left = detail::or_truncated(in.varint()); left > 0; --left) {
            http::Header header{std::string(detail::or_truncated(in.bytes())),
                                std::string(detail::or_truncated(in.bytes()))};
            if (!http::is_sendable(header))
                throw CodecError("the stored response has a header that no response may have");
            stored.push_back(std::move(header));
        }
        out.headers = http::replayable_headers(stored);
        out.body = detail::or_truncated(in.bytes());
        detail::expect_end(in);
        return out;
    }

private:
    static void check_status(int status) {
        if (status < 200 || status > 599)
            throw CodecError("a status of " + std::to_string(status) + " is no final HTTP status");
    }
};

}  // namespace idem::inline v0_1

#endif
