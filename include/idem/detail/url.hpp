#ifndef IDEM_DETAIL_URL_HPP
#define IDEM_DETAIL_URL_HPP

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace idem::inline v0_1::detail {

/// scheme://place?name=value&name=value, as RFC 3986 has it; the place is left to the backend.
struct Url {
    std::string text{};
    std::string scheme{};
    std::string place{};  ///< Between `//` and `?`, still percent-encoded.
    std::vector<std::pair<std::string, std::string>> options{};  ///< Decoded.
};

[[nodiscard]] inline int hex_digit(char c) noexcept {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/// RFC 3986 §2.1. A `%` without two hex digits stays as it is.
[[nodiscard]] inline std::string percent_decode(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const bool coded = text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 &&
                           hex_digit(text[i + 2]) >= 0;
        if (!coded) {
            out += text[i];
            continue;
        }
        out += static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2]));
        i += 2;
    }
    return out;
}

/// Nothing for a text without `scheme://`, or with an option that has no `=`.
[[nodiscard]] inline std::optional<Url> parse_url(std::string_view text) {
    const auto colon = text.find("://");
    if (colon == std::string_view::npos || colon == 0) return std::nullopt;
    Url url{.text = std::string(text), .scheme = std::string(text.substr(0, colon))};
    auto rest = text.substr(colon + 3);
    const auto question = rest.find('?');
    url.place = rest.substr(0, question);
    rest = question == std::string_view::npos ? std::string_view() : rest.substr(question + 1);
    while (!rest.empty()) {
        const auto option = rest.substr(0, rest.find('&'));
        rest.remove_prefix(std::min(option.size() + 1, rest.size()));
        const auto equals = option.find('=');
        if (equals == std::string_view::npos) return std::nullopt;
        url.options.emplace_back(percent_decode(option.substr(0, equals)),
                                 percent_decode(option.substr(equals + 1)));
    }
    return url;
}

}  // namespace idem::inline v0_1::detail

#endif
