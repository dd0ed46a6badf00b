#ifndef IDEM_KEY_HPP
#define IDEM_KEY_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <idem/detail/bytes.hpp>
#include <idem/detail/canonical.hpp>
#include <idem/detail/sha256.hpp>
#include <idem/error.hpp>

namespace idem::inline v0_1 {

/// Which part of the library a record belongs to, so that a lock and a guarded call of the same
/// name never meet. The values are part of the stored format.
enum class Component : std::uint8_t {
    call = 'c',
    token = 't',
    lease = 'l',
    message = 'm',
    gate = 'g',
    content = 'd',  ///< Who first came with some content; see `ContentWatch`.
    task = 'k',
};
inline constexpr std::array components{Component::call,    Component::token, Component::lease,
                                       Component::message, Component::gate,  Component::content,
                                       Component::task};

[[nodiscard]] constexpr const char* to_string(Component component) noexcept {
    switch (component) {
        case Component::call: return "call";
        case Component::token: return "token";
        case Component::lease: return "lease";
        case Component::message: return "message";
        case Component::gate: return "gate";
        case Component::content: return "content";
        case Component::task: return "task";
    }
    return "invalid";
}

/// What an operation is remembered under. Equal ids in two scopes or tenants never meet.
/// Any bytes; each part at most 255 bytes (not characters); scope and id not empty.
struct Key {
    std::string scope;     ///< The operation: "transcode.submit". Never user text.
    std::string id;        ///< What the client sent, or a `content_key`.
    std::string tenant{};  ///< The customer or user; empty where there is only one.

    friend bool operator==(const Key&, const Key&) = default;
};

/// A key as stores see it. Refers to bytes that the caller keeps alive for the call.
struct KeyView {
    static constexpr std::size_t part_bytes_max = 255;

    Component component = Component::call;
    std::string_view scope{};
    std::string_view id{};
    std::string_view tenant{};

    KeyView() = default;
    KeyView(Component c, std::string_view s, std::string_view i, std::string_view t) noexcept
        : component(c), scope(s), id(i), tenant(t) {}
    KeyView(Component c, const Key& key) noexcept : KeyView(c, key.scope, key.id, key.tenant) {}

    /// Whether `validate` lets it pass; a store asks for itself.
    [[nodiscard]] bool valid() const noexcept {
        return !scope.empty() && !id.empty() && scope.size() <= part_bytes_max &&
               id.size() <= part_bytes_max && tenant.size() <= part_bytes_max;
    }
    /// What a store answers about a key that is not.
    [[nodiscard]] static Trouble refusal() {
        return Trouble::usage("Key: scope and id must not be empty, nor any part exceed 255 bytes");
    }
    [[nodiscard]] Key key() const {
        return {.scope = std::string(scope), .id = std::string(id), .tenant = std::string(tenant)};
    }
    friend bool operator==(const KeyView&, const KeyView&) = default;
};

/// Refuses what no store may see. Called by the guard before any I/O.
/// @throws UsageError for an empty scope or id, or a part of more than 255 bytes.
inline void validate(const KeyView& key) {
    const auto part = [](std::string_view bytes, const char* name, bool may_be_empty) {
        if (bytes.empty() && !may_be_empty)
            throw UsageError(std::string("Key::") + name + " is empty: nothing would be protected");
        if (bytes.size() > KeyView::part_bytes_max)
            throw UsageError(std::string("Key::") + name + " has " + std::to_string(bytes.size()) +
                             " bytes; 255 are allowed");
    };
    part(key.scope, "scope", false);
    part(key.id, "id", false);
    part(key.tenant, "tenant", true);
}

/// Appends the stored form: component, then scope and tenant each behind a length byte, then id.
/// Injective: no two keys share an encoding. Part of the stored format, pinned by golden tests.
inline void encode_key(const KeyView& key, std::string& out) {
    out += static_cast<char>(key.component);
    for (const auto part : {key.scope, key.tenant}) {
        out += static_cast<char>(part.size());
        out += part;
    }
    out += key.id;
}

[[nodiscard]] inline std::string encode_key(const KeyView& key) {
    std::string out;
    out.reserve(3 + key.scope.size() + key.tenant.size() + key.id.size());
    encode_key(key, out);
    return out;
}

/// The key that `encode_key` wrote; it refers into `bytes`. Nothing for bytes it cannot have
/// written.
[[nodiscard]] inline std::optional<KeyView> decode_key(std::string_view bytes) noexcept {
    detail::ByteReader in(bytes);
    const auto component = in.fixed(1);
    if (!component) return std::nullopt;
    KeyView key;
    key.component = static_cast<Component>(*component);
    if (std::find(components.begin(), components.end(), key.component) == components.end())
        return std::nullopt;
    for (auto* part : {&key.scope, &key.tenant}) {
        const auto size = in.fixed(1);
        const auto text = size ? in.take(static_cast<std::size_t>(*size)) : std::nullopt;
        if (!text) return std::nullopt;
        *part = *text;
    }
    key.id = in.rest();
    if (key.scope.empty() || key.id.empty() || key.id.size() > KeyView::part_bytes_max)
        return std::nullopt;
    return key;
}

/// 16 hex digits of SHA-256 over the stored form: names a key in logs without showing it.
/// Small keys can be guessed from it; it hides them from a reader, not from an attacker.
[[nodiscard]] inline std::string key_hash(const KeyView& key) {
    const auto digest = detail::sha256(encode_key(key));
    return detail::hex(detail::as_text(digest).substr(0, 8));
}

/// A key made of business fields, for clients that send none: file digest, user, parameters.
/// Fields are typed and length-prefixed: ("ab","c") is not ("a","bc"), 1 is not "1", 1 is not 1u,
/// 1 is not 1.0, an empty optional is not an empty text. An array of char is text up to its first
/// NUL: pass bytes that may hold one as a string, a string_view or a range of std::byte. Leave out
/// what changes on a retry (timestamps, trace ids): it would make every retry a new operation.
template <class... Fields>
[[nodiscard]] Key content_key(std::string scope, const Fields&... fields) {
    static_assert(sizeof...(Fields) > 0, "idem: a content key needs at least one field");
    detail::LentSha256 hash;
    detail::CanonicalSink sink(*hash);
    (detail::put_canonical(sink, fields), ...);
    sink.flush();
    return {.scope = std::move(scope), .id = detail::hex(detail::as_text(hash->finish()))};
}

}  // namespace idem::inline v0_1

#endif
