// The source tree as a test subject: what a reviewer would otherwise have to remember.

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <idem/version.hpp>

#include "support/catch.hpp"
#include "support/source_text.hpp"

namespace {

namespace fs = std::filesystem;
using idem_test::SourceFile;

fs::path const root = IDEM_SOURCE_DIR;

// Every file of the project itself, read once: name relative to the root, and text.
const std::vector<SourceFile>& project() {
    static const std::vector<SourceFile> files = [] {
        std::vector<SourceFile> found;
        for (const auto* top :
             {"CMakeLists.txt", "README.md", ".ci", "include", "tests", "examples", "benchmarks"}) {
            idem_test::read_tree(root, root / top, found);
        }
        return found;
    }();
    return files;
}

// The public headers, by the name under which a user includes them.
std::vector<SourceFile> headers() {
    std::vector<SourceFile> found;
    for (const auto& file : project()) {
        if (!file.name.starts_with("include/")) continue;
        found.push_back({file.name.substr(8), file.lines});
    }
    return found;
}

// Collects every violation before it fails, so that one run shows them all.
class Violations {
public:
    void add(const std::string& where, const std::string& what) {
        text_ << "  " << where << ": " << what << '\n';
        ++count_;
    }
    ~Violations() {
        INFO("violations:\n" << text_.str());
        CHECK(count_ == 0);
    }
    Violations() = default;
    Violations(const Violations&) = delete;
    Violations& operator=(const Violations&) = delete;

private:
    std::ostringstream text_{};
    int count_ = 0;
};

std::vector<std::string> includes_of(const SourceFile& file, bool commented_too = false) {
    static std::regex const plain("^\\s*#\\s*include\\s*[<\"]([^>\"]+)[>\"].*");
    static std::regex const commented("^\\s*(?://\\s*)?#\\s*include\\s*[<\"]([^>\"]+)[>\"].*");
    std::vector<std::string> found;
    for (const auto& line : file.lines) {
        std::smatch match;
        if (std::regex_match(line, match, commented_too ? commented : plain))
            found.push_back(match[1]);
    }
    return found;
}

// idem.hpp lists the headers lowest layer first; redis.hpp and postgres.hpp go on from there. A
// header that the umbrella leaves out, for it needs something more, has its place in a comment.
std::map<std::string, int> layer_map(const std::vector<SourceFile>& all) {
    std::map<std::string, int> rank;
    int next = 0;
    for (const auto* map : {"idem/idem.hpp", "idem/redis.hpp", "idem/postgres.hpp"}) {
        const auto at = std::find_if(all.begin(), all.end(),
                                     [&](const SourceFile& file) { return file.name == map; });
        if (at == all.end()) continue;
        for (const auto& header : includes_of(*at, true)) rank.emplace(header, ++next);
        rank.emplace(map, ++next);
    }
    return rank;
}

TEST_CASE("tidy: a header includes only what lies below it", "[tidy]") {
    const auto all = headers();
    const auto rank = layer_map(all);
    REQUIRE(all.size() >= 2);
    Violations violations;
    for (const auto& file : all) {
        const bool detail = file.name.starts_with("idem/detail/");
        const bool listed = rank.count(file.name) == 1;
        if (!detail && !listed) violations.add(file.name, "is in no layer map");
        for (const auto& included : includes_of(file)) {
            if (!included.starts_with("idem/")) continue;
            if (rank.count(included) == 0) {
                if (!included.starts_with("idem/detail/"))
                    violations.add(file.name, "includes " + included + ", which is in no map");
            } else if (!listed) {
                violations.add(file.name, "is below all layers but includes " + included);
            } else if (rank.at(included) >= rank.at(file.name)) {
                violations.add(file.name, "includes " + included + ", which lies above it");
            }
        }
    }
    for (const auto& entry : rank) {
        const auto& name = entry.first;
        const bool there = std::any_of(all.begin(), all.end(),
                                       [&](const SourceFile& file) { return file.name == name; });
        if (!there) violations.add("layer map", "lists " + name + ", which does not exist");
    }
}

TEST_CASE("tidy: each C library is included in one place", "[tidy]") {
    const std::vector<std::pair<std::regex, std::set<std::string>>> places = {
        {std::regex("openssl/.*"),
         {"idem/detail/sha256.hpp", "idem/detail/random.hpp", "idem/layered/encrypted.hpp",
          "idem/redis/tls.hpp"}},
        {std::regex("(hiredis/)?hiredis.*"), {"idem/redis/connection.hpp"}},
        {std::regex("(postgresql/)?(libpq.*|pg_config.*)"), {"idem/postgres/connection.hpp"}},
    };
    Violations violations;
    for (const auto& file : headers()) {
        for (const auto& included : includes_of(file)) {
            for (const auto& place : places) {
                if (std::regex_match(included, place.first) && place.second.count(file.name) == 0)
                    violations.add(file.name, "includes " + included);
            }
        }
    }
}

TEST_CASE("tidy: the wire knows neither records nor guards", "[tidy]") {
    // The first paragraph of a backend's layer map is its wire: it carries bytes.
    std::set<std::string> wire;
    const auto all = headers();
    for (const auto& file : all) {
        if (file.name != "idem/redis.hpp" && file.name != "idem/postgres.hpp") continue;
        bool begun = false;
        for (const auto& line : file.lines) {
            const bool include = line.starts_with("#include <");
            if (begun && !include) break;
            if (!include) continue;
            begun = true;
            wire.insert(line.substr(10, line.find('>') - 10));
        }
    }
    const std::set<std::string> words = {"idem/fwd.hpp", "idem/version.hpp", "idem/error.hpp",
                                         "idem/clock.hpp"};
    Violations violations;
    for (const auto& file : all) {
        if (wire.count(file.name) == 0) continue;
        for (const auto& included : includes_of(file)) {
            const bool fits = !included.starts_with("idem/") || words.count(included) == 1 ||
                              wire.count(included) == 1 || included.starts_with("idem/detail/");
            if (!fits) violations.add(file.name, "includes " + included);
        }
    }
}

TEST_CASE("tidy: guards follow the path and headers stay short", "[tidy]") {
    Violations violations;
    for (const auto& file : headers()) {
        std::string guard;
        for (const char c : file.name) {
            const bool letter = std::isalnum(static_cast<unsigned char>(c)) != 0;
            guard += letter ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : '_';
        }
        const auto has = [&](const std::string& line) {
            return std::find(file.lines.begin(), file.lines.end(), line) != file.lines.end();
        };
        if (!has("#ifndef " + guard) || !has("#define " + guard))
            violations.add(file.name, "has no include guard named " + guard);
        if (file.lines.size() > 500)
            violations.add(file.name, std::to_string(file.lines.size()) + " lines, more than 500");
    }
}

TEST_CASE("tidy: every header lives in the versioned namespace", "[tidy]") {
    // Two versions of this library meet in one binary only if no name is shared.
    const auto expected = "namespace idem::inline v" + std::to_string(IDEM_VERSION_MAJOR) + "_" +
                          std::to_string(IDEM_VERSION_MINOR);
    Violations violations;
    for (const auto& file : headers()) {
        for (const auto& line : file.lines) {
            if (!line.starts_with("namespace idem")) continue;
            const bool longer = line.size() > expected.size() &&
                                (std::isalnum(static_cast<unsigned char>(line[expected.size()])) ||
                                 line[expected.size()] == '_');
            if (!line.starts_with(expected) || longer) violations.add(file.name, line);
        }
    }
}

TEST_CASE("tidy: the reader of functions finds them, and only them", "[tidy]") {
    const SourceFile sample{
        "sample",
        {"namespace n {", "template <class T, int N = 3>", "struct S {",
         "    S() : a_{1}, b_{\"}\"} {", "        if (a_ > 0) {", "            run();", "        }",
         "    }", "    int a_{}; // {", "};", "template <class T>", "int free(T t) {",
         "    return [&] { return t; }();", "}", "const S s{1};", "}"}};
    std::vector<std::size_t> found;
    for (const auto& function : idem_test::functions_of(sample)) {
        found.push_back(function.first_line);
        found.push_back(function.lines);
    }
    // The initialisers a_{1} and b_{"}"} count as one-line pieces of the constructor.
    CHECK(found == std::vector<std::size_t>{4, 1, 4, 1, 4, 5, 12, 3});
}

TEST_CASE("tidy: functions fit on a screen", "[tidy]") {
    Violations violations;
    int seen = 0;
    for (const auto& file : headers()) {
        for (const auto& function : idem_test::functions_of(file)) {
            ++seen;
            if (function.lines > 70) {
                violations.add(file.name + ":" + std::to_string(function.first_line),
                               std::to_string(function.lines) + " lines, more than 70");
            }
        }
    }
    INFO(seen << " functions seen");
    CHECK((seen > 0 || headers().size() < 5));  // else the reader of functions is blind
}

TEST_CASE("tidy: lines fit in 100 columns", "[tidy]") {
    Violations violations;
    for (const auto& file : project()) {
        const auto kind = fs::path(file.name).extension();
        if (kind != ".hpp" && kind != ".cpp" && kind != ".sh") continue;
        for (std::size_t i = 0; i < file.lines.size(); ++i) {
            const auto& line = file.lines[i];
            const auto where = file.name + ":" + std::to_string(i + 1);
            const auto columns = std::count_if(line.begin(), line.end(), [](char c) {
                return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;  // UTF-8: not a tail byte
            });
            if (columns > 100) violations.add(where, std::to_string(columns) + " columns");
            if (!line.empty() && (line.back() == ' ' || line.back() == '\t' || line.back() == '\r'))
                violations.add(where, "ends with white space");
        }
    }
}

struct Banned {
    std::regex pattern;
    std::vector<std::string> where;
    std::string why;
    std::string except{};  ///< The one file that may.
};

// The patterns are written with a class or a seam in them, so that none matches its own line here.
const std::vector<Banned>& banned() {
    static const std::vector<Banned> list = [] {
        std::vector<std::string> const code = {"include/", "examples/", "benchmarks/"};
        std::vector<std::string> const tests = {"tests/"};
        std::vector<std::string> const all = {""};
        std::vector<Banned> made;
        made.push_back({std::regex("\\b(TOD[O]|FIXM[E]|XX[X]|HAC[K])\\b"), code, "left open"});
        made.push_back({std::regex("(^|[^.[:alnum:]_}])/(hom[e]|roo[t]|wor[k]|far[m]|User[s])/"),
                        all, "a path of one machine"});
        made.push_back({std::regex("\\b(sleep_(for|until)|usleep|nanosleep) *\\("), tests,
                        "sleeps; support/eventually.hpp waits for what is waited for",
                        "tests/support/eventually.hpp"});
        made.push_back({std::regex("SUCCEE[D]\\(\\)|(CHECK|REQUIRE)\\((true|fals[e])\\)|"
                                   "\\[!mayfai[l]\\]|\\[!shouldfai[l]\\]|\\[\\.\\]"),
                        tests, "asserts nothing or hides"});
        made.push_back({std::regex("system_cloc[k]|CLOCK_REALTIM[E]|gettimeofda[y]"),
                        {"include/"},
                        "asks the wall clock, which decides nothing",
                        "include/idem/clock.hpp"});
        made.push_back({std::regex("^using namespac[e]"),
                        {"include/"},
                        "opens a namespace in the user's code"});
        return made;
    }();
    return list;
}

TEST_CASE("tidy: nothing is left open, hidden, slept for or tied to a machine", "[tidy]") {
    Violations violations;
    for (const auto& file : project()) {
        for (const auto& rule : banned()) {
            const bool applies = std::any_of(
                rule.where.begin(), rule.where.end(),
                [&](const std::string& prefix) { return file.name.starts_with(prefix); });
            if (!applies || file.name == rule.except) continue;
            for (std::size_t i = 0; i < file.lines.size(); ++i) {
                if (std::regex_search(file.lines[i], rule.pattern))
                    violations.add(file.name + ":" + std::to_string(i + 1), rule.why);
            }
        }
    }
}

TEST_CASE("tidy: no test file is dead", "[tidy]") {
    std::set<std::string> built;
    std::ifstream list(IDEM_BUILT_LIST);
    for (std::string line; std::getline(list, line);) built.insert("tests/" + line);
    REQUIRE(built.count("tests/tidy.cpp") == 1);

    const auto mentioned = [](const std::string& word, const std::string& except) {
        return std::any_of(project().begin(), project().end(), [&](const SourceFile& other) {
            if (other.name == except) return false;
            return std::any_of(other.lines.begin(), other.lines.end(), [&](const auto& line) {
                return line.find(word) != std::string::npos;
            });
        });
    };
    Violations violations;
    for (const auto& file : project()) {
        if (!file.name.starts_with("tests/")) continue;
        const auto path = fs::path(file.name);
        if (path.filename() == "CMakeLists.txt" || built.count(file.name) == 1) continue;
        // A script, header or program is named by what uses it; data may be taken by the folder.
        const auto kind = path.extension();
        const bool code = kind == ".cpp" || kind == ".hpp" || kind == ".sh" || kind == ".cmake";
        if (mentioned(path.filename().string(), file.name)) continue;
        if (!code && mentioned(path.parent_path().filename().string() + "/", file.name)) continue;
        violations.add(file.name, "is neither built nor named by another file");
    }
}

TEST_CASE("tidy: only the shim knows which Catch2 this is", "[tidy]") {
    Violations violations;
    for (const auto& file : project()) {
        if (file.name == "tests/support/catch.hpp") continue;
        for (const auto& included : includes_of(file)) {
            if (included.starts_with("catch2/")) violations.add(file.name, "includes " + included);
        }
    }
}

TEST_CASE("tidy: scripts can be run and stop at the first error", "[tidy]") {
    Violations violations;
    for (const auto& file : project()) {
        if (!file.name.ends_with(".sh") && file.name != ".ci/run") continue;
        const auto perms = fs::status(root / file.name).permissions();
        if ((perms & fs::perms::owner_exec) == fs::perms::none)
            violations.add(file.name, "has no run bit");
        const auto stops = std::find(file.lines.begin(), file.lines.end(), "set -euo pipefail");
        if (stops == file.lines.end()) violations.add(file.name, "lacks set -euo pipefail");
    }
}

}  // namespace
