#ifndef IDEM_HTTP_PROBLEM_HPP
#define IDEM_HTTP_PROBLEM_HPP

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <idem/detail/json.hpp>
#include <idem/http/response.hpp>

namespace idem::inline v0_1::http {

/// One more member of a problem: a name, and true or false, a number or a text.
struct Member {
    std::string name{};
    std::variant<bool, std::int64_t, std::string> value{};
};

/// Where the library's own problem types live unless a policy or an option names a place. The name
/// need not lead anywhere (RFC 9457 section 3.1.1); a URI of your documentation is better.
inline constexpr std::string_view default_problem_base_uri = "urn:idem:problem:";

/// A problem document (RFC 9457): `type` tells programs what it is, `title` is the same at every
/// occurrence, `detail` tells a person about this one; an empty type is "about:blank". Any bytes
/// are escaped, and what is not UTF-8 is replaced. Members of `extras` cannot stand for the five
/// of section 3.1 but `instance`; of several of one name the last one counts. Not to be cached: it
/// is about one request.
[[nodiscard]] inline Response problem(int status, std::string_view type, std::string_view title,
                                      std::string_view detail,
                                      const std::vector<Member>& extras = {}) {
    static constexpr std::array<std::string_view, 4> reserved = {"type", "title", "status",
                                                                 "detail"};
    idem::detail::JsonObject json;
    json.text("type", type.empty() ? "about:blank" : type)
        .text("title", title)
        .number("status", status)
        .text_unless_empty("detail", detail);
    for (auto at = extras.begin(); at != extras.end(); ++at) {
        const Member& member = *at;
        if (std::find(reserved.begin(), reserved.end(), member.name) != reserved.end()) continue;
        const auto same_name = [&](const Member& later) { return later.name == member.name; };
        if (std::any_of(at + 1, extras.end(), same_name)) continue;
        if (const auto* flag = std::get_if<bool>(&member.value))
            json.boolean(member.name, *flag);
        else if (const auto* number = std::get_if<std::int64_t>(&member.value))
            json.number(member.name, *number);
        else
            json.text(member.name, std::get<std::string>(member.value));
    }
    return {status,
            {{"Content-Type", "application/problem+json"}, {"Cache-Control", "no-store"}},
            std::move(json).finish()};
}

}  // namespace idem::inline v0_1::http

#endif
