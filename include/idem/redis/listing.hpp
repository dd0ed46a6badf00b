#ifndef IDEM_REDIS_LISTING_HPP
#define IDEM_REDIS_LISTING_HPP

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <idem/detail/bytes.hpp>
#include <idem/operation.hpp>

namespace idem::inline v0_1::redis {

/// Where a listing goes on: SCAN's own cursor, and the names that it gave and a page had no room
/// for. SCAN gives as many as it likes; none of them may be left out.
struct ListCursor {
    std::size_t node = 0;
    std::string scan = "0";
    bool ended = false;  ///< SCAN has been all around.
    std::vector<std::string> names{};

    [[nodiscard]] static std::optional<ListCursor> read(std::string_view bytes) {
        ListCursor out;
        if (bytes.empty()) return out;
        idem::detail::ByteReader in(bytes);
        const auto node = in.varint();
        const auto scan = in.bytes();
        const auto ended = in.fixed(1);
        if (!node || !scan || !ended || *ended > 1) return std::nullopt;
        for (const char c : *scan)
            if (c < '0' || c > '9') return std::nullopt;
        out = {static_cast<std::size_t>(*node), std::string(*scan), *ended == 1, {}};
        while (!in.at_end()) {
            const auto name = in.bytes();
            if (!name) return std::nullopt;
            out.names.emplace_back(*name);
        }
        return out;
    }
    [[nodiscard]] std::string written() const {
        std::string out;
        idem::detail::put_varint(out, node);
        idem::detail::put_bytes(out, scan);
        idem::detail::put_fixed(out, ended ? 1 : 0, 1);
        for (const auto& name : names) idem::detail::put_bytes(out, name);
        return out;
    }
};

/// The glob pattern of the names that a query asks for, as far as their beginning says so.
[[nodiscard]] inline std::string pattern_of(std::string_view prefix, const ListQuery& query) {
    std::string out;
    const auto literal = [&](std::string_view bytes) {
        for (const char c : bytes) {
            if (c == '*' || c == '?' || c == '[' || c == ']' || c == '\\') out += '\\';
            out += c;
        }
    };
    const auto part = [&](const std::string& bytes) {
        const char size = static_cast<char>(bytes.size());
        literal({&size, 1});
        literal(bytes);
    };
    literal(prefix);
    out += "{???}";
    out += query.component ? static_cast<char>(*query.component) : '?';
    if (query.scope && query.scope->size() <= KeyView::part_bytes_max) {
        part(*query.scope);
        if (query.tenant && query.tenant->size() <= KeyView::part_bytes_max) part(*query.tenant);
    }
    return out + '*';
}

}  // namespace idem::inline v0_1::redis

#endif
