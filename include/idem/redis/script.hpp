#ifndef IDEM_REDIS_SCRIPT_HPP
#define IDEM_REDIS_SCRIPT_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <idem/detail/bytes.hpp>
#include <idem/detail/sha256.hpp>
#include <idem/redis/script_claim.hpp>
#include <idem/redis/script_common.hpp>
#include <idem/redis/script_finish.hpp>
#include <idem/redis/script_settle.hpp>

namespace idem::inline v0_1::redis {

enum class Operation : std::uint8_t { claim, finish, renew, issue, resolve, reap, forget };

struct Script {
    std::string text{};
    std::string sha{};
};

/// The scripts of a store, one for each operation.
class Scripts {
public:
    /// @param clock_lua see `RedisOptions`.
    /// @param flagged for Redis 7 and later: what ends work goes on where memory is full.
    Scripts(std::string_view clock_lua, bool flagged) : clock_(clock_of(clock_lua)) {
        constexpr std::string_view allow = "#!lua flags=allow-oom\n";
        constexpr std::array<std::string_view, 7> bodies = {text::claim, text::finish,  text::renew,
                                                            text::issue, text::resolve, text::reap,
                                                            text::forget};
        for (std::size_t i = 0; i < bodies.size(); ++i) {
            const auto operation = static_cast<Operation>(i);
            const bool makes_keys = operation == Operation::claim || operation == Operation::issue;
            std::string& script = scripts_[i].text;
            if (flagged && !makes_keys) script += allow;
            script += clock_;
            add_expanded(text::read, script);
            add_expanded(bodies[i], script);
            const auto digest = idem::detail::sha1(script);
            scripts_[i].sha = idem::detail::hex(idem::detail::as_text(digest));
        }
    }
    [[nodiscard]] const Script& operator[](Operation operation) const noexcept {
        return scripts_[static_cast<std::size_t>(operation)];
    }
    /// Goes before a script that needs the time, as `now`.
    [[nodiscard]] const std::string& clock() const noexcept { return clock_; }
    /// Answers the server's clock, in microseconds.
    [[nodiscard]] std::string clock_text() const {
        return clock_ + "return string.format('%.0f', now)\n";
    }

private:
    /// Appends a text with each @name replaced by the piece of that name.
    static void add_expanded(std::string_view body, std::string& out) {
        constexpr std::array<std::pair<std::string_view, std::string_view>, 11> pieces = {{
            {"fresh", text::fresh},
            {"garbage", text::garbage},
            {"header", text::header},
            {"load", text::load},
            {"next_fence", text::next_fence},
            {"patch", text::patch},
            {"put", text::put},
            {"roll_back", text::roll_back},
            {"stricter", text::stricter},
            {"tell", text::tell},
            {"ttl", text::ttl},
        }};
        for (;;) {
            const auto at = body.find('@');
            out += body.substr(0, at);
            if (at == body.npos) return;
            body.remove_prefix(at + 1);
            for (const auto& [name, piece] : pieces) {
                if (!body.starts_with(name)) continue;
                add_expanded(piece, out);
                body.remove_prefix(name.size());
                break;
            }
        }
    }
    [[nodiscard]] static std::string clock_of(std::string_view lua) {
        if (!lua.empty()) return "local now = " + std::string(lua) + "\n";
        return "local now = redis.call('TIME')\nnow = now[1] * 1000000 + now[2]\n";
    }
    std::string clock_;
    std::array<Script, 7> scripts_{};
};

}  // namespace idem::inline v0_1::redis

#endif
