#ifndef IDEMCTL_ARGUMENTS_HPP
#define IDEMCTL_ARGUMENTS_HPP

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <idem/codec.hpp>
#include <idem/operation.hpp>

#include "text.hpp"

namespace idemctl {

inline constexpr const char* help =
    R"(idemctl COMMAND [OPTION...]     looks after the records of an idem store

Which store: --store URL, or the environment variable IDEM_STORE, where other users of this
machine do not see the password.

Commands
  list      the records, all that fit the filters
  show      everything about one record; --result writes its result, nothing else, to stdout
  forget    one record (--scope and --id), or all that fit the filters: so a tenant is erased
  resolve   settles a held record: --done (it has happened), --rerun (it has not)
  purge     removes what is past its retention, at most --limit records
  check     asks a store all that it must have: one line each, and what to do

A record
  --scope S --id I [--tenant T] [--component call|token|lease|message|gate]
  Without --component all five are looked for.

Filters of list and forget
  --scope S, --tenant T, --component C
  --state issued|running|released|succeeded|failed|held     held: a person must say what happened
  --lapsed            running, and its lease is over
  --older-than AGE    since it was first claimed: 500ms, 30s, 10m, 24h, 7d

Options
  --limit N           list, purge: at most so many
  --wide              list: nothing is cut
  --json              JSON objects, one a line
  --escaped           scope, id and tenant are given as list shows them: \n \t \r \\ \xHH
  --yes               does it without asking
  --result-file F     resolve --done: this is the result that repeats get; without it they are
                      told that it is done, and get no value
  --codec NAME[/V]    its type: text (the default), bytes, or a codec's own name; V: its version
  --retention AGE     resolve: how long the answer is kept (24h)

Before it destroys something it says what, and asks; where it cannot ask, it refuses without
--yes. Keys and results are shown with everything escaped that a terminal might obey; in JSON they
are texts of the same form. Ages are by this machine's clock, leases by the store's.

Exit status
  0  done                                      3  the store cannot be used: not reached, no login
  1  nothing found or done, or check warns     4  the table or a record is damaged, or check failed
  2  wrong usage                               5  the record has changed meanwhile: look again
)";

/// What was asked for cannot be: exit status 2.
class WrongUsage : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

struct Arguments {
    std::string command{};
    std::string store{};
    std::optional<std::string> scope{};
    std::optional<std::string> tenant{};
    std::optional<std::string> id{};
    std::optional<idem::Component> component{};
    std::optional<idem::State> state{};
    std::optional<idem::Duration> older_than{};
    std::optional<std::size_t> limit{};
    std::string result_file{};
    idem::CodecId codec{idem::Codec<std::string>::tag, idem::Codec<std::string>::version};
    idem::Duration retention = std::chrono::hours{24};
    bool lapsed = false;
    bool wide = false;
    bool json = false;
    bool escaped = false;
    bool yes = false;
    bool result = false;
    bool done = false;
    bool rerun = false;
    bool help = false;

    [[nodiscard]] bool filtered() const {
        return scope || tenant || component || state || older_than || lapsed;
    }
    [[nodiscard]] idem::ListQuery query() const {
        idem::ListQuery out;
        out.component = component;
        out.scope = scope;
        out.tenant = tenant;
        out.state = state;
        if (lapsed) out.lapsed = true;
        out.created_before = older_than;
        out.limit = 500;
        return out;
    }
};

namespace detail {

[[nodiscard]] inline idem::Component component_of(const std::string& word) {
    std::string known;
    for (const auto one : idem::components) {
        if (word == to_string(one)) return one;
        known += (known.empty() ? "" : ", ") + std::string(to_string(one));
    }
    throw WrongUsage("--component is one of " + known);
}
[[nodiscard]] inline idem::State state_of(const std::string& word) {
    using idem::State;
    if (word == "held") return State::unknown;
    for (const auto one : {State::issued, State::running, State::released, State::succeeded,
                           State::failed, State::unknown})
        if (word == to_string(one)) return one;
    throw WrongUsage("--state is one of issued, running, released, succeeded, failed, held");
}
template <class Number>
[[nodiscard]] std::optional<Number> number_of(std::string_view text, int base = 10) {
    Number out{};
    const char* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, out, base);
    if (error != std::errc{} || at != end) return std::nullopt;
    return out;
}
/// NAME, NAME/VERSION, or as `show` has it where only the tag is known: 0x1A2B3C4D/1.
[[nodiscard]] inline idem::CodecId codec_of(const std::string& text) {
    const auto slash = text.rfind('/');
    const std::string name = text.substr(0, slash);
    const auto version = slash == std::string::npos
                             ? std::uint8_t{1}
                             : number_of<std::uint8_t>(text.substr(slash + 1)).value_or(0);
    const bool number = name.starts_with("0x");
    const auto tag = number ? number_of<std::uint32_t>(std::string_view(name).substr(2), 16)
                            : idem::codec_tag(name);
    if (name.empty() || version == 0 || !tag) throw WrongUsage("--codec is NAME or NAME/VERSION");
    return {*tag, version};
}
[[nodiscard]] inline idem::Duration age_of(const std::string& name, const std::string& text) {
    const auto out = duration_of(text);
    if (!out) throw WrongUsage(name + " is a number and a unit: 500ms, 30s, 10m, 24h, 7d");
    return *out;
}

struct Option {
    std::string_view name;
    std::string_view commands;  ///< Their first letters; check: k.
    bool Arguments::*flag = nullptr;
    std::function<void(Arguments&, const std::string&)> set{};
};

[[nodiscard]] inline const std::vector<Option>& options() {
    using A = Arguments;
    using Text = const std::string&;
    static const std::vector<Option> all = {
        {"--store", "lsfrpk", nullptr, [](A& a, Text v) { a.store = v; }},
        {"--json", "lsfrpk", &A::json, {}},
        {"--help", "lsfrpk", &A::help, {}},
        {"--scope", "lsfr", nullptr, [](A& a, Text v) { a.scope = v; }},
        {"--tenant", "lsfr", nullptr, [](A& a, Text v) { a.tenant = v; }},
        {"--id", "sfr", nullptr, [](A& a, Text v) { a.id = v; }},
        {"--component", "lsfr", nullptr, [](A& a, Text v) { a.component = component_of(v); }},
        {"--escaped", "lsfr", &A::escaped, {}},
        {"--state", "lf", nullptr, [](A& a, Text v) { a.state = state_of(v); }},
        {"--lapsed", "lf", &A::lapsed, {}},
        {"--older-than", "lf", nullptr,
         [](A& a, Text v) { a.older_than = age_of("--older-than", v); }},
        {"--limit", "lp", nullptr,
         [](A& a, Text v) {
             a.limit = number_of<std::size_t>(v);
             if (a.limit.value_or(0) == 0) throw WrongUsage("--limit is a number above 0");
         }},
        {"--wide", "l", &A::wide, {}},
        {"--result", "s", &A::result, {}},
        {"--yes", "frp", &A::yes, {}},
        {"--done", "r", &A::done, {}},
        {"--rerun", "r", &A::rerun, {}},
        {"--result-file", "r", nullptr, [](A& a, Text v) { a.result_file = v; }},
        {"--codec", "r", nullptr, [](A& a, Text v) { a.codec = codec_of(v); }},
        {"--retention", "r", nullptr, [](A& a, Text v) { a.retention = age_of("--retention", v); }},
    };
    return all;
}

[[nodiscard]] inline const Option& option_of(std::string_view name) {
    for (const auto& option : options())
        if (name == option.name || (name == "-h" && option.name == "--help")) return option;
    throw WrongUsage("there is no option " + std::string(name) + "; see idemctl --help");
}

[[nodiscard]] inline char letter_of(const std::string& command) {
    for (const char* one : {"list", "show", "forget", "resolve", "purge"})
        if (command == one) return command[0];
    if (command == "check") return 'k';
    throw WrongUsage("there is no command \"" + command + "\"; see idemctl --help");
}

inline void unescape_key(Arguments& a) {
    if (!a.escaped) return;
    for (auto* part : {&a.scope, &a.id, &a.tenant}) {
        if (!*part) continue;
        *part = unescape(**part);
        if (!*part) throw WrongUsage("--escaped: a backslash begins \\n, \\t, \\r, \\\\ or \\xHH");
    }
}

/// What only a whole command line can be wrong about.
inline void check(const Arguments& a) {
    const char command = letter_of(a.command);
    const bool key = a.scope && a.id;
    if ((command == 's' || command == 'r') && !key)
        throw WrongUsage(a.command + " needs --scope and --id");
    if (command == 'f' && a.id && !a.scope) throw WrongUsage("--id needs --scope");
    if (command == 'f' && !a.filtered())
        throw WrongUsage("forget needs --scope and --id, or a filter");
    if (command == 'f' && a.id && (a.state || a.older_than || a.lapsed))
        throw WrongUsage("forget takes --id, or a filter");
    if (key) idem::validate({idem::Component::call, *a.scope, *a.id, a.tenant.value_or("")});
    if (command == 'r' && a.done == a.rerun)
        throw WrongUsage("resolve needs --done (it has happened) or --rerun (it has not)");
    if (a.rerun && !a.result_file.empty()) throw WrongUsage("--result-file goes with --done");
    if (a.store.empty())
        throw WrongUsage("which store? --store URL, or the environment variable IDEM_STORE");
}

}  // namespace detail

/// @throws WrongUsage, idem::UsageError. They repeat nothing of the store's URL.
[[nodiscard]] inline Arguments parse(const std::vector<std::string>& words) {
    Arguments out;
    if (const char* url = std::getenv("IDEM_STORE")) out.store = url;
    std::vector<const detail::Option*> used;
    for (std::size_t i = 0; i < words.size(); ++i) {
        const std::string& word = words[i];
        if (word == "help" || word == "-h" || word == "--help") out.help = true;
        if (!word.starts_with("-")) {
            if (word.find("://") != std::string::npos)
                throw WrongUsage("a store's URL goes behind --store");
            if (!out.command.empty()) throw WrongUsage("\"" + word + "\" is one word too many");
            out.command = word;
            continue;
        }
        const auto equals = word.find('=');
        const auto& option = detail::option_of(std::string_view(word).substr(0, equals));
        used.push_back(&option);
        if (option.flag != nullptr) {
            if (equals != std::string::npos)
                throw WrongUsage(std::string(option.name) + " takes no value");
            out.*option.flag = true;
        } else if (equals != std::string::npos) {
            option.set(out, word.substr(equals + 1));
        } else {
            if (++i == words.size()) throw WrongUsage(std::string(option.name) + " needs a value");
            option.set(out, words[i]);
        }
    }
    if (out.help) return out;
    if (out.command.empty()) throw WrongUsage("which command? see idemctl --help");
    const char letter = detail::letter_of(out.command);
    for (const auto* option : used)
        if (option->commands.find(letter) == std::string_view::npos)
            throw WrongUsage(std::string(option->name) + " is not for " + out.command);
    detail::unescape_key(out);
    detail::check(out);
    return out;
}

}  // namespace idemctl

#endif
