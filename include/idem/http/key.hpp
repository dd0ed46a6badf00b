#ifndef IDEM_HTTP_KEY_HPP
#define IDEM_HTTP_KEY_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <idem/detail/http_text.hpp>
#include <idem/error.hpp>
#include <idem/fingerprint.hpp>
#include <idem/http/problem.hpp>
#include <idem/key.hpp>

namespace idem::inline v0_1::http {

enum class Presence : std::uint8_t {
    required,  ///< A request without the header is refused.
    optional,  ///< It is let through as `absent`: run it unguarded, or under a `content_key`.
};

/// What an endpoint asks of the header. The draft's section 5 (security) wants a published format
/// that is always checked: short keys can be guessed, and then show another's answer.
struct KeyPolicy {
    Presence presence = Presence::required;
    std::size_t bytes_min = 1;    ///< Of the key text. 16 keeps counters and dates out.
    std::size_t bytes_max = 255;  ///< Of the key text, in bytes; at most 255, which a key can hold.
    bool bare = true;             ///< Accept a value without quotes, as most clients send it.
    std::string problem_base_uri = std::string(default_problem_base_uri);
};

/// What the header said. Exactly one of three; a header that is there is never `absent`.
struct ParsedKey {
    enum class Kind : std::uint8_t {
        key,      ///< `text` is the key's id.
        absent,   ///< No header, and the policy lets that pass.
        refused,  ///< Answer with `problem`, a 400. Nothing was run.
    };

    Kind kind = Kind::absent;
    std::string text{};
    Response problem{};

    [[nodiscard]] bool has_key() const noexcept { return kind == Kind::key; }
    [[nodiscard]] bool refused() const noexcept { return kind == Kind::refused; }
};

namespace internal {

/// Takes a quoted string off the front: printable ASCII, with backslash before a quote and a
/// backslash and nowhere else (RFC 9651 section 4.2.5). Nothing where it is not one.
[[nodiscard]] inline std::optional<std::string> take_string(std::string_view& in) {
    if (!in.starts_with('"')) return std::nullopt;
    std::string out;
    for (std::size_t i = 1; i < in.size(); ++i) {
        if (in[i] == '"') {
            in.remove_prefix(i + 1);
            return out;
        }
        if (in[i] == '\\' && (++i == in.size() || (in[i] != '"' && in[i] != '\\')))
            return std::nullopt;
        if (in[i] < ' ' || in[i] > '~') return std::nullopt;
        out += in[i];
    }
    return std::nullopt;
}

/// Takes off the parameters behind an item (RFC 9651 section 4.2.3.2); what they say is ignored.
/// False where they are not well-formed. Values are read leniently, but hold neither `,` nor `;`.
[[nodiscard]] inline bool skip_parameters(std::string_view& in) {
    const auto take_while = [&in](auto accepted) {
        const auto end = std::find_if_not(in.begin(), in.end(), accepted);
        const auto count = static_cast<std::size_t>(end - in.begin());
        in.remove_prefix(count);
        return count;
    };
    while (in.starts_with(';')) {
        in.remove_prefix(1);
        take_while([](char c) { return c == ' '; });
        const bool begins = !in.empty() && ((in[0] >= 'a' && in[0] <= 'z') || in[0] == '*');
        if (!begins) return false;
        take_while([](char c) {
            return (c >= 'a' && c <= 'z') || idem::detail::is_digit(c) || c == '_' || c == '-' ||
                   c == '.' || c == '*';
        });
        if (!in.starts_with('=')) continue;
        in.remove_prefix(1);
        if (in.starts_with('%')) in.remove_prefix(1);  // a display string: %"..."
        if (in.starts_with('"')) {
            if (!take_string(in)) return false;
        } else if (take_while([](char c) {
                       return c > ' ' && c <= '~' && c != '"' && c != ',' && c != ';';
                   }) == 0) {
            return false;
        }
    }
    return true;
}

/// Visible ASCII but for quote, comma (a list) and semicolon (parameters): what is doubtful is
/// refused, for a doubtful key might join two requests.
[[nodiscard]] inline bool is_bare_key(std::string_view text) noexcept {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
        return c > ' ' && c <= '~' && c != '"' && c != ',' && c != ';';
    });
}

[[nodiscard]] inline ParsedKey refuse_key(const KeyPolicy& policy, std::string_view type,
                                          std::string_view title, std::string_view detail) {
    return {.kind = ParsedKey::Kind::refused,
            .problem = problem(400, policy.problem_base_uri + std::string(type), title, detail,
                               {{"retryable", false}})};
}

[[nodiscard]] inline ParsedKey refuse_malformed(const KeyPolicy& policy, std::string_view detail) {
    return refuse_key(policy, "key-malformed", "Idempotency-Key is malformed", detail);
}

inline void check(const KeyPolicy& policy) {
    if (policy.bytes_max == 0 || policy.bytes_max > KeyView::part_bytes_max)
        throw UsageError("KeyPolicy::bytes_max is " + std::to_string(policy.bytes_max) +
                         "; it must be between 1 and 255");
    if (policy.bytes_min == 0 || policy.bytes_min > policy.bytes_max)
        throw UsageError("KeyPolicy::bytes_min is " + std::to_string(policy.bytes_min) +
                         "; it must be between 1 and KeyPolicy::bytes_max");
}

}  // namespace internal

/// Reads `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header, section 2.1): a quoted
/// string as RFC 9651 section 3.3.3 has it, whose parameters are ignored; or, unless the policy
/// says otherwise, a bare value. `"abc"` and `abc` are the same key. An empty key is an error and
/// never "no key". `0` and `false` are keys like any other.
/// @throws UsageError for a policy that cannot be kept.
[[nodiscard]] inline ParsedKey parse_key(std::optional<std::string_view> header_value,
                                         const KeyPolicy& policy = {}) {
    internal::check(policy);
    if (!header_value) {
        if (policy.presence == Presence::optional) return {};
        return internal::refuse_key(policy, "key-missing", "Idempotency-Key is missing",
                                    "This operation requires an Idempotency-Key header.");
    }
    std::string_view in = idem::detail::without_outer_space(*header_value);
    std::string text;
    if (in.starts_with('"')) {
        auto quoted = internal::take_string(in);
        if (!quoted || !internal::skip_parameters(in) || !in.empty())
            return internal::refuse_malformed(policy, "The value is not one quoted string.");
        text = *std::move(quoted);
    } else if (in.empty()) {
        text.clear();
    } else if (!policy.bare) {
        return internal::refuse_malformed(policy, "The value must be a quoted string.");
    } else if (internal::is_bare_key(in)) {
        text = in;
    } else {
        return internal::refuse_malformed(
            policy,
            "Without quotes a key is visible ASCII and holds no space, comma, semicolon "
            "or quote.");
    }
    if (text.empty()) return internal::refuse_malformed(policy, "The key is empty.");
    if (text.size() < policy.bytes_min || text.size() > policy.bytes_max)
        return internal::refuse_malformed(
            policy, "The key has " + std::to_string(text.size()) + " bytes; between " +
                        std::to_string(policy.bytes_min) + " and " +
                        std::to_string(policy.bytes_max) + " are allowed.");
    return {.kind = ParsedKey::Kind::key, .text = std::move(text)};
}

/// For servers that give each header line by itself. More than one is refused, equal ones too: a
/// client must send one (section 2.1 of the draft), and which of two was meant cannot be known.
[[nodiscard]] inline ParsedKey parse_key(std::span<const std::string_view> header_lines,
                                         const KeyPolicy& policy = {}) {
    if (header_lines.empty()) return parse_key(std::nullopt, policy);
    if (header_lines.size() == 1) return parse_key(std::optional(header_lines.front()), policy);
    internal::check(policy);
    return internal::refuse_malformed(policy, "The header was sent more than once.");
}

/// The key of a request: the operation, who calls, and what the client sent. The caller comes from
/// your authentication, never from the request's own text: without it the second customer to send
/// the key "1" is shown the answer of the first.
/// @throws UsageError for an empty part, or one of more than 255 bytes. An endpoint without
/// callers names a constant one, or makes a `Key` itself.
[[nodiscard]] inline Key request_key(std::string scope, std::string caller, std::string key_text) {
    if (caller.empty())
        throw UsageError("request_key: caller is empty: all callers would share their keys");
    Key key{.scope = std::move(scope), .id = std::move(key_text), .tenant = std::move(caller)};
    validate(KeyView(Component::call, key));
    return key;
}

/// What the request was, so that one key on two routes, or with two bodies, is a mismatch: method
/// (case-sensitive, RFC 9110 section 9.1), target as sent (path and query: `/orders/1` is not
/// `/orders/2`), content type if it matters to you, and the bytes of the body. Two spellings of one
/// JSON document differ; so do two encodings of one multipart form, whose boundary is new at every
/// try: fingerprint the fields of such a body by `Fingerprint::of`.
[[nodiscard]] inline Fingerprint request_fingerprint(std::string_view method,
                                                     std::string_view target,
                                                     std::optional<std::string_view> content_type,
                                                     std::string_view body) {
    return Fingerprint::of(method, target, content_type, body);
}

/// The same behind a secret (`FingerprintHasher::keyed`), for small requests that could be guessed
/// by who reads the store.
[[nodiscard]] inline Fingerprint request_fingerprint(FingerprintHasher hasher,
                                                     std::string_view method,
                                                     std::string_view target,
                                                     std::optional<std::string_view> content_type,
                                                     std::string_view body) {
    return hasher.field(method).field(target).field(content_type).field(body).finish();
}

}  // namespace idem::inline v0_1::http

#endif
