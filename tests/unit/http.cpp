// The words of HTTP: what a header says, what may be kept of a response, what a repeat is told.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include <idem/http.hpp>

#include "support/catch.hpp"
#include "support/json.hpp"

namespace http_test {

using namespace std::string_literals;
using namespace std::string_view_literals;
namespace http = idem::http;
using http::Header;
using http::Profile;
using http::RespondOptions;
using http::Response;
using idem::Failure;
using idem::FailureClass;
using idem::Instant;
using idem::Outcome;
using idem::OutcomeDetails;
using idem::OutcomeKind;
using idem::ResultKind;
using idem::State;
using std::chrono::microseconds;
using std::chrono::seconds;
using Kind = http::ParsedKey::Kind;

constexpr std::array every_kind = {
    OutcomeKind::executed,  OutcomeKind::replayed, OutcomeKind::in_progress,
    OutcomeKind::mismatch,  OutcomeKind::failed,   OutcomeKind::unknown,
    OutcomeKind::cancelled, OutcomeKind::absent,   OutcomeKind::expired};
constexpr std::array every_class = {FailureClass::none, FailureClass::retryable,
                                    FailureClass::final, FailureClass::unknown,
                                    FailureClass::exhausted};

std::string header_of(const Response& response, std::string_view name) {
    return std::string(http::find_header(response, name).value_or("(none)"));
}

std::map<std::string, std::string> json_of(const Response& response) {
    INFO(response.body);
    return idem_test::JsonReader::read(response.body);
}

std::string type_of(const Response& response) {
    REQUIRE(header_of(response, "Content-Type") == "application/problem+json");
    auto members = json_of(response);
    CHECK(members["status"] == std::to_string(response.status));
    CHECK(!members["title"].empty());
    return members["type"].substr(http::default_problem_base_uri.size());
}

Outcome<Response> outcome_of(OutcomeKind kind, std::optional<Response> value = {}) {
    OutcomeDetails details;
    details.kind = kind;
    return Outcome<Response>(details, std::move(value));
}

RespondOptions with(Profile profile) {
    RespondOptions options;
    options.profile = profile;
    options.status_url = "/jobs/17";
    return options;
}

std::string encoded(const Response& response) {
    std::string out;
    idem::Codec<Response>::encode(response, out);
    return out;
}

Response decoded(std::string_view bytes) {
    return idem::decode_result<Response>(idem::codec_id<Response>(), bytes);
}

std::string every_byte() {
    std::string out;
    for (int byte = 0; byte < 256; ++byte) out += static_cast<char>(byte);
    return out;
}

// --- Idempotency-Key ----------------------------------------------------------------------------

TEST_CASE("a key is read from a quoted string or a bare value", "[http]") {
    const std::vector<std::pair<std::string_view, std::string>> good = {
        {R"("8e03978e-40d5-43e8-bc93-6894a57f9324")", "8e03978e-40d5-43e8-bc93-6894a57f9324"},
        {"8e03978e-40d5-43e8-bc93-6894a57f9324", "8e03978e-40d5-43e8-bc93-6894a57f9324"},
        {R"("a")", "a"},
        {R"("a\"b")", "a\"b"},
        {R"("a\\b")", "a\\b"},
        {R"("\\")", "\\"},
        {R"("a, b;c")", "a, b;c"},
        {R"(" ")", " "},
        {"  \"a\"\t ", "a"},
        {R"("a";p)", "a"},
        {R"("a"; p=1;q="x\"y";*r-.s_1=?1;t=:YWJj:;u=tok/en;v=@17;w=%"f%c3")", "a"},
        {R"("a";p=-1.5 )", "a"},
        {"0", "0"},
        {"false", "false"},
        {"a{b}%c'd\\e=", "a{b}%c'd\\e="},
        {" a ", "a"},
        {"~!", "~!"},
    };
    for (const auto& [value, text] : good) {
        INFO(value);
        const auto key = http::parse_key(value);
        CHECK(key.kind == Kind::key);
        CHECK(key.has_key());
        CHECK(key.text == text);
    }
}

TEST_CASE("what is not one key is refused with a 400 and never taken for no key", "[http]") {
    const std::vector<std::string_view> bad = {
        "",
        " ",
        "\t",
        R"("")",
        R"("" )",
        R"("";a)",
        R"(")",
        R"("abc)",
        R"(abc")",
        R"(a"b)",
        R"("a"b)",
        R"("a" ;p)",
        R"("a" "b")",
        R"("a","b")",
        R"("a";p="x","b")",
        R"("a", b)",
        R"("a";)",
        R"("a";;p)",
        R"("a";P)",
        R"("a";1)",
        R"("a";p=)",
        R"("a";p="x)",
        R"("a";p=1 q)",
        R"("a\n")",
        R"("a\)",
        R"("a\")",
        "a,b",
        "a, b",
        "a;b",
        "a b",
        "a\tb",
        "a\rb",
        "a\r\nSet-Cookie: x=y",
        "\"a\r\nb\"",
        "\"a\tb\"",
        "\"a\x7F\"",
        "a\x7F",
        "\x01",
        "caf\xC3\xA9",
        "\"caf\xC3\xA9\"",
        "\xFF",
        "\"\x80\"",
        "a\0b"sv,
        "\"a\0b\""sv,
        "\0"sv,
    };
    for (const auto presence : {http::Presence::required, http::Presence::optional}) {
        for (const auto value : bad) {
            INFO(value);
            const auto key = http::parse_key(value, {.presence = presence});
            CHECK(key.kind == Kind::refused);
            CHECK(key.refused());
            CHECK(key.text.empty());
            CHECK(key.problem.status == 400);
            CHECK(type_of(key.problem) == "key-malformed");
            CHECK(json_of(key.problem)["retryable"] == "false");
        }
    }
}

TEST_CASE("every byte has one answer, bare and quoted", "[http]") {
    for (int byte = 0; byte < 256; ++byte) {
        INFO(byte);
        const std::string middle = "x" + std::string(1, static_cast<char>(byte)) + "y";
        const bool printable = byte >= 0x20 && byte <= 0x7E;
        const bool quotable = printable && byte != '"' && byte != '\\';
        const bool bare = printable && byte != ' ' && byte != '"' && byte != ',' && byte != ';';
        CHECK(http::parse_key('"' + middle + '"').has_key() == quotable);
        CHECK(http::parse_key(middle).has_key() == bare);
        if (bare) CHECK(http::parse_key(middle).text == middle);
    }
}

TEST_CASE("a key's length is limited in bytes of its text, quotes and escapes apart", "[http]") {
    const std::string longest(255, 'k');
    CHECK(http::parse_key(longest).text == longest);
    CHECK(http::parse_key('"' + longest + '"').text == longest);
    CHECK(http::parse_key(longest + "k").refused());
    CHECK(http::parse_key('"' + longest + "k\"").refused());
    std::string escaped = "\"";
    for (int i = 0; i < 255; ++i) escaped += "\\\"";
    CHECK(http::parse_key(escaped + "\"").text == std::string(255, '"'));
    CHECK(http::parse_key(escaped + "\\\"\"").refused());

    const http::KeyPolicy policy = {.bytes_min = 3, .bytes_max = 4};
    CHECK(http::parse_key("ab", policy).refused());
    CHECK(http::parse_key("abc", policy).has_key());
    CHECK(http::parse_key("abcd", policy).has_key());
    CHECK(http::parse_key("abcde", policy).refused());
}

TEST_CASE("a missing key is refused where it is required and absent where it is not", "[http]") {
    const auto refused = http::parse_key(std::nullopt);
    CHECK(refused.kind == Kind::refused);
    CHECK(refused.problem.status == 400);
    CHECK(type_of(refused.problem) == "key-missing");
    CHECK(json_of(refused.problem)["title"] == "Idempotency-Key is missing");

    const auto absent = http::parse_key(std::nullopt, {.presence = http::Presence::optional});
    CHECK(absent.kind == Kind::absent);
    CHECK(!absent.has_key());
    CHECK(!absent.refused());
}

TEST_CASE("a key policy says whether bare values pass and where problems are explained", "[http]") {
    const http::KeyPolicy policy = {.bare = false, .problem_base_uri = "https://example.com/p/"};
    CHECK(http::parse_key(R"("abc")", policy).text == "abc");
    const auto refused = http::parse_key("abc", policy);
    CHECK(refused.refused());
    CHECK(json_of(refused.problem)["type"] == "https://example.com/p/key-malformed");
}

TEST_CASE("a key policy that cannot be kept names its field", "[http]") {
    const std::vector<std::pair<http::KeyPolicy, std::string>> bad = {
        {{.bytes_max = 0}, "KeyPolicy::bytes_max"},
        {{.bytes_max = 256}, "KeyPolicy::bytes_max"},
        {{.bytes_min = 0}, "KeyPolicy::bytes_min"},
        {{.bytes_min = 9, .bytes_max = 8}, "KeyPolicy::bytes_min"},
    };
    for (const auto& [policy, field] : bad) {
        std::string what;
        try {
            (void)http::parse_key("abc", policy);
        } catch (const idem::UsageError& e) {
            what = e.what();
        }
        CHECK(what.find(field) == 0);
    }
}

TEST_CASE("several header lines are refused, equal ones too", "[http]") {
    const std::vector<std::string_view> none;
    const std::vector<std::string_view> one = {"abc"};
    const std::vector<std::string_view> two = {"abc", "abc"};
    CHECK(http::parse_key(one).text == "abc");
    CHECK(http::parse_key(two).refused());
    CHECK(type_of(http::parse_key(two).problem) == "key-malformed");
    CHECK(type_of(http::parse_key(none).problem) == "key-missing");
    CHECK(http::parse_key(none, {.presence = http::Presence::optional}).kind == Kind::absent);
}

TEST_CASE("two callers with one key text have two keys, and no caller is no default", "[http]") {
    const auto a = http::request_key("orders.create", "alice", "1");
    const auto b = http::request_key("orders.create", "bob", "1");
    CHECK(!(a == b));
    CHECK(idem::encode_key(idem::KeyView(idem::Component::call, a)) !=
          idem::encode_key(idem::KeyView(idem::Component::call, b)));
    CHECK(!(a == http::request_key("orders.cancel", "alice", "1")));
    CHECK(a == http::request_key("orders.create", "alice", "1"));
    CHECK(a.tenant == "alice");
    CHECK_THROWS_AS(http::request_key("", "alice", "1"), idem::UsageError);
    CHECK_THROWS_AS(http::request_key("orders.create", "", "1"), idem::UsageError);
    CHECK_THROWS_AS(http::request_key("orders.create", "alice", ""), idem::UsageError);
    // Four bytes each: the limit of 255 is one of bytes, not of characters.
    std::string emoji;
    for (int i = 0; i < 64; ++i) emoji += "\xF0\x9F\x98\x80";
    CHECK_THROWS_AS(http::request_key("orders.create", emoji, "1"), idem::UsageError);
}

TEST_CASE("method, target, content type and body each make another request", "[http]") {
    const auto base = http::request_fingerprint("POST", "/orders/1", "text/plain", "{}");
    CHECK(base == http::request_fingerprint("POST", "/orders/1", "text/plain", "{}"));
    CHECK(base.present());
    const std::vector<idem::Fingerprint> others = {
        http::request_fingerprint("PATCH", "/orders/1", "text/plain", "{}"),
        http::request_fingerprint("post", "/orders/1", "text/plain", "{}"),
        http::request_fingerprint("POST", "/orders/2", "text/plain", "{}"),
        http::request_fingerprint("POST", "/orders/1?x", "text/plain", "{}"),
        http::request_fingerprint("POST", "/orders/1", "text/html", "{}"),
        http::request_fingerprint("POST", "/orders/1", "", "{}"),
        http::request_fingerprint("POST", "/orders/1", std::nullopt, "{}"),
        http::request_fingerprint("POST", "/orders/1", "text/plain", "{ }"),
        http::request_fingerprint("POST", "/orders/1text/plain", "", "{}"),
        http::request_fingerprint("POST/orders/1", "", "text/plain", "{}"),
        http::request_fingerprint("POST", "/orders/1", "text/plain", ""),
    };
    for (std::size_t i = 0; i < others.size(); ++i) {
        CHECK(!(others[i] == base));
        for (std::size_t j = 0; j < i; ++j) CHECK(!(others[i] == others[j]));
    }
}

TEST_CASE("a keyed request fingerprint depends on its secret", "[http]") {
    const auto keyed = [](std::string_view secret) {
        return http::request_fingerprint(idem::FingerprintHasher::keyed(secret), "POST", "/", {},
                                         "1");
    };
    CHECK(keyed("sixteen bytes ok") == keyed("sixteen bytes ok"));
    CHECK(!(keyed("sixteen bytes ok") == keyed("sixteen bytes no")));
    CHECK(!(keyed("sixteen bytes ok") == http::request_fingerprint("POST", "/", {}, "1")));
    CHECK(http::request_fingerprint({}, "POST", "/", {}, "1") ==
          http::request_fingerprint("POST", "/", {}, "1"));
}

TEST_CASE("a request fingerprint never changes: it is in every store", "[http]") {
    const auto print = http::request_fingerprint("POST", "/orders/1", std::nullopt, "{}");
    CHECK(idem::detail::hex(print.stored()) ==
          "029388b8e32bd3467c4f3316b4c1b3cbb02920aa8042cd90d9085fee03d72a1640");
}

// --- what is kept of a response -----------------------------------------------------------------

const std::vector<std::string> denied = {"Connection",
                                         "Keep-Alive",
                                         "TE",
                                         "Trailer",
                                         "Trailers",
                                         "Transfer-Encoding",
                                         "Upgrade",
                                         "Proxy-Authenticate",
                                         "Proxy-Authorization",
                                         "Set-Cookie",
                                         "Set-Cookie2",
                                         "Proxy-Authentication-Info",
                                         "Proxy-Connection",
                                         "Content-Length",
                                         "Date",
                                         "Age",
                                         "Idempotency-Replayed"};

std::string in_odd_case(std::string text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
        const bool upper = text[i] >= 'A' && text[i] <= 'Z';
        const bool lower = text[i] >= 'a' && text[i] <= 'z';
        if (i % 2 == 0 && lower) text[i] = static_cast<char>(text[i] - 'a' + 'A');
        if (i % 2 == 1 && upper) text[i] = static_cast<char>(text[i] - 'A' + 'a');
    }
    return text;
}

// What an older version, or another program, may have put into the store.
std::string stored_by_hand(int status, const std::vector<Header>& headers, std::string_view body) {
    std::string out;
    idem::detail::put_varint(out, static_cast<std::uint64_t>(status));
    idem::detail::put_varint(out, headers.size());
    for (const auto& header : headers) {
        idem::detail::put_bytes(out, header.name);
        idem::detail::put_bytes(out, header.value);
    }
    idem::detail::put_bytes(out, body);
    return out;
}

TEST_CASE("fields of one connection, client or moment are kept out at store and at replay",
          "[http]") {
    for (const auto& name : denied) {
        for (const auto& spelt : {name, in_odd_case(name)}) {
            INFO(spelt);
            CHECK(!http::is_replayable(spelt));
            const std::vector<Header> headers = {
                {"Content-Type", "text/plain"}, {spelt, "x"}, {"ETag", "\"1\""}};
            const std::vector<Header> kept = {{"Content-Type", "text/plain"}, {"ETag", "\"1\""}};
            CHECK(encoded({200, headers, "b"}) == encoded({200, kept, "b"}));
            CHECK(decoded(stored_by_hand(200, headers, "b")).headers == kept);
            auto replayed = http::respond(outcome_of(OutcomeKind::replayed, {{200, headers, "b"}}));
            REQUIRE(replayed.headers.size() == 3);
            CHECK(replayed.headers.back() == Header{"Idempotency-Replayed", "true"});
            replayed.headers.pop_back();
            CHECK(replayed.headers == kept);
        }
    }
}

TEST_CASE("fields that Connection names are kept out, in any case and list form", "[http]") {
    const Response response = {200,
                               {{"x-hop", "1"},
                                {"Other", "2"},
                                {"cOnnection", " close ,X-HOP,, other\t"},
                                {"connection", "third"},
                                {"Third", "3"},
                                {"Stays", "4"}},
                               {}};
    const std::vector<Header> kept = {{"Stays", "4"}};
    CHECK(http::replayable_headers(response.headers) == kept);
    CHECK(decoded(encoded(response)).headers == kept);
    CHECK(header_of(http::respond(outcome_of(OutcomeKind::replayed, response)), "X-Hop") ==
          "(none)");
}

TEST_CASE("a field that would split the response is never stored, replayed or answered", "[http]") {
    const std::vector<Header> splitting = {{"X", "a\r\nSet-Cookie: s=1"},
                                           {"X", "a\nb"},
                                           {"X", "a\rb"},
                                           {"X", "a\0b"s},
                                           {"X", "a\x7F"},
                                           {"X\r\n", "a"},
                                           {"X: y\r\nZ", "a"},
                                           {"", "a"},
                                           {"X Y", "a"},
                                           {"X:", "a"},
                                           {"caf\xC3\xA9", "a"}};
    for (const auto& header : splitting) {
        CHECK(!http::is_sendable(header));
        const Response response = {200, {{"A", "1"}, header}, "b"};
        CHECK(encoded(response) == encoded({200, {{"A", "1"}}, "b"}));
        CHECK_THROWS_AS(decoded(stored_by_hand(200, response.headers, "b")), idem::CodecError);
        for (const auto kind : {OutcomeKind::executed, OutcomeKind::replayed}) {
            const auto answer = http::respond(outcome_of(kind, response));
            for (const auto& out : answer.headers) CHECK(http::is_sendable(out));
            CHECK(answer.headers.front() == Header{"A", "1"});
            CHECK(answer.body == "b");
        }
    }
    CHECK(http::is_sendable({"X-Y_z.1~", "a\tb \x80\xFF"}));
    CHECK(http::is_sendable({"X", ""}));
}

TEST_CASE("a stored response comes back byte for byte", "[http]") {
    const Response response = {201,
                               {{"Content-Type", "application/octet-stream"},
                                {"Link", "</a>"},
                                {"Link", "</b>"},
                                {"X-Empty", ""},
                                {"X-Latin", "\xE9\x80\xFF\t"}},
                               every_byte() + every_byte()};
    CHECK(decoded(encoded(response)) == response);
    CHECK(decoded(encoded({204, {}, {}})) == Response{204, {}, {}});
    for (int byte = 0; byte < 256; ++byte) {
        const Response one = {200, {}, std::string(1, static_cast<char>(byte))};
        CHECK(decoded(encoded(one)) == one);
    }
    for (const int status : {200, 299, 303, 404, 422, 599})
        CHECK(decoded(encoded({status, {}, {}})).status == status);
}

TEST_CASE("a stored response cut at any byte, or with one too many, is a CodecError", "[http]") {
    const std::string bytes = encoded({422, {{"A", "1"}, {"B", std::string(200, 'b')}}, "body"});
    for (std::size_t size = 0; size < bytes.size(); ++size) {
        INFO(size);
        CHECK_THROWS_AS(decoded(bytes.substr(0, size)), idem::CodecError);
    }
    CHECK_THROWS_AS(decoded(bytes + "x"), idem::CodecError);
}

TEST_CASE("garbage in place of a stored response is a CodecError or a response", "[http]") {
    std::uint64_t state = 0x9E3779B97F4A7C15U;
    const auto random = [&state] {
        state ^= state << 13U;
        state ^= state >> 7U;
        state ^= state << 17U;
        return state;
    };
    const std::string good = encoded({200, {{"A", "1"}, {"B", "2"}}, "body"});
    int read = 0;
    int refused = 0;
    for (int round = 0; round < 20000; ++round) {
        std::string bytes = good;
        for (auto changes = 1 + random() % 4; changes > 0; --changes)
            bytes[random() % bytes.size()] = static_cast<char>(random());
        try {
            const auto response = decoded(bytes);
            CHECK((response.status >= 200 && response.status <= 599));
            for (const auto& header : response.headers) CHECK(http::is_sendable(header));
            ++read;
        } catch (const idem::CodecError&) {
            ++refused;
        }
    }
    CHECK(read > 0);
    CHECK(refused > 0);
    CHECK_THROWS_AS(decoded("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01"), idem::CodecError);
}

TEST_CASE("a status that ends no exchange is neither stored nor read", "[http]") {
    for (const int status : {-1, 0, 99, 100, 103, 199, 600, 999, 1200, 65736}) {
        INFO(status);
        CHECK_THROWS_AS(encoded({status, {}, {}}), idem::CodecError);
        CHECK_THROWS_AS(decoded(stored_by_hand(status, {}, {})), idem::CodecError);
    }
}

TEST_CASE("the stored form of a response never changes without a new version", "[http]") {
    CHECK(idem::Codec<Response>::version == 1);
    CHECK(idem::Codec<Response>::tag == idem::codec_tag("idem.http.Response"));
    const std::string golden =
        "\xC9\x01"       // 201
        "\x01"           // one field
        "\x08Location"   //
        "\x09/orders/1"  //
        "\x02{}"s;
    const Response response = {201, {{"Location", "/orders/1"}, {"Date", "now"}}, "{}"};
    CHECK(encoded(response) == golden);
    CHECK(decoded(golden) == Response{201, {{"Location", "/orders/1"}}, "{}"});
    CHECK_THROWS_AS(idem::decode_result<Response>({idem::codec_tag("text"), 1}, golden),
                    idem::CodecError);
    CHECK_THROWS_AS(idem::decode_result<Response>({idem::Codec<Response>::tag, 2}, golden),
                    idem::CodecError);
}

// --- what a status says -------------------------------------------------------------------------

TEST_CASE("every status has the class that its definition gives it", "[http]") {
    const std::set<int> retryable = {401, 402, 403, 406, 407, 408, 409, 411, 412,
                                     417, 421, 423, 424, 425, 426, 428, 429, 431,
                                     500, 501, 503, 505, 506, 507, 508, 510, 511};
    for (int status = -5; status < 1100; ++status) {
        INFO(status);
        auto expected = FailureClass::unknown;
        if (status >= 200 && status < 400) expected = FailureClass::none;
        if (status >= 400 && status < 500) expected = FailureClass::final;
        if (retryable.count(status) == 1) expected = FailureClass::retryable;
        CHECK(http::classify_status(status) == expected);
    }
    for (const int status : {400, 404, 405, 410, 413, 414, 415, 416, 422, 451})
        CHECK(http::classify_status(status) == FailureClass::final);
    for (const int status : {502, 504, 520, 524, 598, 599, 0, 100, 101, 600})
        CHECK(http::classify_status(status) == FailureClass::unknown);
    static_assert(http::classify_status(504) == FailureClass::unknown);
}

TEST_CASE("a retryable response is no result, a doubtful one is held, a refusal is an answer",
          "[http]") {
    using idem_failure_type = decltype(idem_failure(std::declval<const Response&>()));
    static_assert(std::is_same_v<idem_failure_type, std::optional<Failure>>);
    for (int status = 0; status < 700; ++status) {
        INFO(status);
        const auto failure = idem_failure(Response{status, {}, {}});  // found by its argument
        const auto kind = http::classify_status(status);
        const bool recorded = kind == FailureClass::none || kind == FailureClass::final;
        CHECK(failure.has_value() == !recorded);
        if (!failure) continue;
        CHECK(failure->kind == kind);
        CHECK(failure->code == std::to_string(status));
        CHECK(!failure->message.empty());
    }
}

TEST_CASE("a refusal that names a time to come back is not final", "[http]") {
    const auto failure = idem_failure(Response{413, {{"retry-after", "9"}}, {}});
    REQUIRE(failure);
    CHECK(failure->kind == FailureClass::retryable);
    CHECK(idem_failure(Response{504, {{"Retry-After", "9"}}, {}})->kind == FailureClass::unknown);
    CHECK(!idem_failure(Response{202, {{"Retry-After", "9"}}, {}}));
}

// --- problems -----------------------------------------------------------------------------------

TEST_CASE("a problem is a JSON object with its status, whatever its texts hold", "[http]") {
    const auto response =
        http::problem(409, "https://example.com/x", "a \"title\"", "tab\t line\n \\ nul\0 end"s,
                      {{"text", "v\x1F"s},
                       {"number", std::int64_t{-9007199254740993}},
                       {"yes", true},
                       {"no", false},
                       {"literal", "text, not true"},
                       {"instance", "urn:x"},
                       {"status", std::int64_t{200}},
                       {"type", "other"},
                       {"title", "other"},
                       {"detail", "other"},
                       {"na\"me", "v"}});
    CHECK(response.status == 409);
    CHECK(header_of(response, "content-type") == "application/problem+json");
    CHECK(header_of(response, "Cache-Control") == "no-store");
    const std::map<std::string, std::string> expected = {{"type", "https://example.com/x"},
                                                         {"title", "a \"title\""},
                                                         {"status", "409"},
                                                         {"detail", "tab\t line\n \\ nul\0 end"s},
                                                         {"text", "v\x1F"},
                                                         {"number", "-9007199254740993"},
                                                         {"yes", "true"},
                                                         {"no", "false"},
                                                         {"literal", "text, not true"},
                                                         {"instance", "urn:x"},
                                                         {"na\"me", "v"}};
    CHECK(json_of(response) == expected);
    CHECK(http::problem(404, "", "Not Found", "").body ==
          R"({"type":"about:blank","title":"Not Found","status":404})");
}

TEST_CASE("a problem has each member once, and the last value given for it", "[http]") {
    CHECK(
        http::problem(400, {}, "t", "d",
                      {{"instance", "a"s}, {"n", std::int64_t{1}}, {"instance", "b"s}, {"n", true}})
            .body ==
        R"({"type":"about:blank","title":"t","status":400,"detail":"d","instance":"b","n":true})");
}

std::string json_text(std::string_view text) {
    std::string out;
    idem::detail::put_json_string(out, text);
    return out;
}

TEST_CASE("a JSON text escapes quotes, backslashes and every control", "[http]") {
    CHECK(json_text("") == R"("")");
    CHECK(json_text("a\"b\\c/d") == R"("a\"b\\c/d")");
    CHECK(json_text("\n\t\r\b\f") == R"("\u000a\u0009\u000d\u0008\u000c")");
    CHECK(json_text("\0\x1F\x7F"sv) == R"("\u0000\u001f\u007f")");
    for (int byte = 0; byte < 0x80; ++byte) {
        const std::string text(1, static_cast<char>(byte));
        CHECK(idem_test::JsonReader::read("{\"a\":" + json_text(text) + "}").at("a") == text);
    }
}

TEST_CASE("a JSON text keeps UTF-8 and replaces each byte that is none", "[http]") {
    const std::string bad = "\xEF\xBF\xBD";
    for (const auto* good :
         {"\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80", "\xEF\xBF\xBF",
          "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF", "caf\xC3\xA9 \xF0\x9F\x98\x80"})
        CHECK(json_text(good) == '"' + std::string(good) + '"');
    const std::vector<std::pair<std::string, std::string>> replaced = {
        {"\x80", bad},
        {"\xFF", bad},
        {"\xC0\xAF", bad + bad},                      // overlong
        {"\xE0\x9F\xBF", bad + bad + bad},            // overlong
        {"\xF0\x8F\xBF\xBF", bad + bad + bad + bad},  // overlong
        {"\xED\xA0\x80", bad + bad + bad},            // a surrogate
        {"\xF4\x90\x80\x80", bad + bad + bad + bad},  // above U+10FFFF
        {"\xF5\x80\x80\x80", bad + bad + bad + bad},
        {"\xC3", bad},            // cut
        {"\xE2\x82", bad + bad},  // cut
        {"\xF0\x9F\x98", bad + bad + bad},
        {"a\xC3(b", "a" + bad + "(b"},
        {"\xE2\x82\"", bad + bad + "\\\""},
    };
    for (const auto& [text, expected] : replaced) CHECK(json_text(text) == '"' + expected + '"');
}

// --- outcomes -----------------------------------------------------------------------------------

TEST_CASE("the first answer is the handler's own, cookies and all", "[http]") {
    const Response response = {201, {{"Set-Cookie", "s=1"}, {"Date", "now"}}, every_byte()};
    for (const auto profile : {Profile::ietf, Profile::async_job}) {
        CHECK(http::respond(outcome_of(OutcomeKind::executed, response), with(profile)) ==
              response);
    }
}

TEST_CASE("a first answer never says that it is a repeat", "[http]") {
    const std::string mark(http::replayed_header);
    const Response relayed = {
        200, {{"X", "1"}, {"idempotency-replayed", "true"}, {mark, "?1"}}, "b"};
    CHECK(http::respond(outcome_of(OutcomeKind::executed, relayed)) ==
          Response{200, {{"X", "1"}}, "b"});
    CHECK(http::respond(outcome_of(OutcomeKind::replayed, relayed)) ==
          Response{200, {{"X", "1"}, {mark, "true"}}, "b"});
}

TEST_CASE("a response that was not recorded still reaches the caller whose handler made it",
          "[http]") {
    const Response busy = {503, {{"Retry-After", "7"}}, "later"};
    for (const auto kind : {OutcomeKind::executed, OutcomeKind::failed, OutcomeKind::unknown})
        CHECK(http::respond(outcome_of(kind, busy)) == busy);
}

TEST_CASE("a repeat gets the saved response and a mark, whatever the saved status", "[http]") {
    for (const int status : {200, 201, 202, 204, 303, 400, 404, 422}) {
        for (const auto profile : {Profile::ietf, Profile::async_job}) {
            const Response saved = {status, {{"Location", "/o/1"}}, every_byte()};
            const auto answer =
                http::respond(outcome_of(OutcomeKind::replayed, saved), with(profile));
            CHECK(answer.status == status);
            CHECK(answer.body == saved.body);
            CHECK(header_of(answer, "Location") == "/o/1");
            CHECK(header_of(answer, "Idempotency-Replayed") == "true");
        }
    }
}

TEST_CASE("Location of a created resource is the same on every repeat", "[http]") {
    RespondOptions options;
    options.resource_url = [](std::string_view id) { return "/orders/" + std::string(id); };
    OutcomeDetails details;
    details.resource = "17";
    for (const auto kind : {OutcomeKind::executed, OutcomeKind::replayed}) {
        details.kind = kind;
        const Outcome<Response> created(details, Response{201, {}, {}});
        CHECK(header_of(http::respond(created, options), "Location") == "/orders/17");
        const Outcome<Response> own(details, Response{201, {{"location", "/x"}}, {}});
        CHECK(header_of(http::respond(own, options), "Location") == "/x");
        const Outcome<Response> plain(details, Response{200, {}, {}});
        CHECK(header_of(http::respond(plain, options), "Location") == "(none)");
        CHECK(header_of(http::respond(created), "Location") == "(none)");
    }
}

TEST_CASE("in progress says when and where to look, and that a repeat is right", "[http]") {
    OutcomeDetails details;
    details.kind = OutcomeKind::in_progress;
    details.attempt = 2;
    details.retry_after = microseconds{2'000'001};
    details.started = Instant(std::chrono::seconds{1'767'323'045});
    const Outcome<Response> outcome(details);

    const auto conflict = http::respond(outcome, with(Profile::ietf));
    CHECK(conflict.status == 409);
    CHECK(type_of(conflict) == "in-progress");
    CHECK(header_of(conflict, "Retry-After") == "3");
    CHECK(header_of(conflict, "Link") == "</jobs/17>; rel=\"status\"");
    auto members = json_of(conflict);
    CHECK(members["retryable"] == "true");
    CHECK(members["retry_after"] == "3");
    CHECK(members["attempt"] == "2");
    CHECK(members["started"] == "2026-01-02T03:04:05.000000Z");
    CHECK(members["status_url"] == "/jobs/17");

    const auto accepted = http::respond(outcome, with(Profile::async_job));
    CHECK(accepted.status == 202);
    CHECK(header_of(accepted, "Content-Type") == "application/json");
    CHECK(header_of(accepted, "Retry-After") == "3");
    CHECK(header_of(accepted, "Location") == "/jobs/17");
    CHECK(header_of(accepted, "Link") == "</jobs/17>; rel=\"status\"");
    CHECK(header_of(accepted, "Idempotency-Replayed") == "(none)");
    members = json_of(accepted);
    CHECK(members["state"] == "running");
    CHECK(members["retryable"] == "true");
    CHECK(members["status_url"] == "/jobs/17");

    RespondOptions nowhere;
    for (const auto profile : {Profile::ietf, Profile::async_job}) {
        nowhere.profile = profile;
        const auto answer = http::respond(outcome, nowhere);
        CHECK(header_of(answer, "Retry-After") == "3");
        CHECK(header_of(answer, "Link") == "(none)");
        CHECK(header_of(answer, "Location") == "(none)");
        CHECK(json_of(answer).count("status_url") == 0);
    }
}

TEST_CASE("Retry-After is whole seconds, rounded up, at least one and at most the limit",
          "[http]") {
    const auto told = [](idem::Duration left, RespondOptions options = {}) {
        OutcomeDetails details;
        details.kind = OutcomeKind::in_progress;
        details.retry_after = left;
        return header_of(http::respond(Outcome<Response>(details), options), "Retry-After");
    };
    CHECK(told(microseconds{0}) == "1");
    CHECK(told(microseconds{-5}) == "1");
    CHECK(told(microseconds::min()) == "1");
    CHECK(told(microseconds{1}) == "1");
    CHECK(told(microseconds{999'999}) == "1");
    CHECK(told(seconds{1}) == "1");
    CHECK(told(microseconds{1'000'001}) == "2");
    CHECK(told(seconds{60}) == "60");
    CHECK(told(seconds{61}) == "60");
    CHECK(told(microseconds::max()) == "60");
    CHECK(told(seconds{61}, {.retry_after_max = seconds{3600}}) == "61");
    CHECK(told(microseconds::max(), {.retry_after_max = microseconds::max()}) == "9223372036855");
    CHECK(told(seconds{9}, {.retry_after_max = microseconds{0}}) == "1");
    CHECK(told(seconds{9}, {.retry_after_max = microseconds::min()}) == "1");
    CHECK(told(microseconds{0}, {.retry_after_default = seconds{5}}) == "5");
    CHECK(told(microseconds{0}, {.retry_after_default = microseconds{-1}}) == "1");
}

TEST_CASE("a mismatch is 422 or 409 by profile, and not to be sent again", "[http]") {
    const auto ietf = http::respond(outcome_of(OutcomeKind::mismatch), with(Profile::ietf));
    const auto job = http::respond(outcome_of(OutcomeKind::mismatch), with(Profile::async_job));
    CHECK(ietf.status == 422);
    CHECK(job.status == 409);
    for (const auto& answer : {ietf, job}) {
        CHECK(type_of(answer) == "key-reused");
        CHECK(json_of(answer)["retryable"] == "false");
        CHECK(header_of(answer, "Retry-After") == "(none)");
    }
}

Response respond_failed(const Failure& failure, const RespondOptions& options = {}) {
    OutcomeDetails details;
    details.kind = OutcomeKind::failed;
    details.failure = failure;
    return http::respond(Outcome<Response>(details), options);
}

TEST_CASE("a final failure answers with its own 4xx, else 422", "[http]") {
    const std::vector<std::pair<std::string, int>> codes = {
        {"400", 400},  {"404", 404}, {"409", 409}, {"422", 422}, {"499", 499}, {"bad_codec", 422},
        {"", 422},     {"500", 422}, {"200", 422}, {"4x4", 422}, {"44", 422},  {"4040", 422},
        {" 404", 422}, {"401", 422}, {"405", 422}, {"407", 422}, {"426", 422}, {"4\xFF\x30", 422}};
    for (const auto& [code, status] : codes) {
        INFO(code);
        const auto answer = respond_failed({FailureClass::final, code, "no such codec"});
        CHECK(answer.status == status);
        CHECK(type_of(answer) == "failed");
        auto members = json_of(answer);
        CHECK(members["detail"] == "no such codec");
        CHECK(members["retryable"] == "false");
        CHECK(members.count("code") == (code.empty() ? 0U : 1U));
    }
}

TEST_CASE("a failure is answered by its class, and only a final one shows its message", "[http]") {
    const auto answer = [](FailureClass kind) {
        return respond_failed({kind, "500", "connect to db7.internal failed"});
    };
    CHECK(answer(FailureClass::final).status == 422);
    CHECK(answer(FailureClass::exhausted).status == 424);
    CHECK(type_of(answer(FailureClass::exhausted)) == "exhausted");
    CHECK(json_of(answer(FailureClass::exhausted))["retryable"] == "false");
    CHECK(answer(FailureClass::unknown).status == 409);
    CHECK(type_of(answer(FailureClass::unknown)) == "outcome-unknown");
    CHECK(answer(FailureClass::retryable).status == 503);
    CHECK(json_of(answer(FailureClass::retryable))["retryable"] == "true");
    CHECK(header_of(answer(FailureClass::retryable), "Retry-After") == "1");
    for (const auto kind :
         {FailureClass::exhausted, FailureClass::unknown, FailureClass::retryable})
        CHECK(answer(kind).body.find("db7") == std::string::npos);
    CHECK(answer(FailureClass::final).body.find("db7") != std::string::npos);
}

TEST_CASE("an unknown outcome says that it is held and must not be sent again", "[http]") {
    for (const auto profile : {Profile::ietf, Profile::async_job}) {
        const auto answer = http::respond(outcome_of(OutcomeKind::unknown), with(profile));
        CHECK(answer.status == 409);
        CHECK(type_of(answer) == "outcome-unknown");
        CHECK(json_of(answer)["retryable"] == "false");
        CHECK(json_of(answer)["status_url"] == "/jobs/17");
        CHECK(header_of(answer, "Retry-After") == "(none)");
        CHECK(header_of(answer, "Link") == "</jobs/17>; rel=\"status\"");
    }
}

TEST_CASE("unknown and expired tokens, and a wait given up, are told apart", "[http]") {
    for (const auto profile : {Profile::ietf, Profile::async_job}) {
        const auto absent = http::respond(outcome_of(OutcomeKind::absent), with(profile));
        CHECK(absent.status == 404);
        CHECK(type_of(absent) == "token-unknown");
        const auto expired = http::respond(outcome_of(OutcomeKind::expired), with(profile));
        CHECK(expired.status == 410);
        CHECK(type_of(expired) == "token-expired");
        const auto cancelled = http::respond(outcome_of(OutcomeKind::cancelled), with(profile));
        CHECK(cancelled.status == 503);
        CHECK(type_of(cancelled) == "cancelled");
        CHECK(header_of(cancelled, "Retry-After") == "1");
        CHECK(json_of(cancelled)["retryable"] == "true");
        CHECK(json_of(absent)["retryable"] == "false");
        CHECK(json_of(expired)["retryable"] == "false");
    }
}

TEST_CASE("a result that was not kept never becomes a made-up 2xx", "[http]") {
    for (const auto kept :
         {ResultKind::too_large, ResultKind::not_encodable, ResultKind::no_room}) {
        OutcomeDetails details;
        details.kind = OutcomeKind::replayed;
        details.result = kept;
        details.resource = "17 \r\nX: <y>";
        const Outcome<Response> outcome(details);

        const auto problem = http::respond(outcome, with(Profile::ietf));
        CHECK(problem.status == 409);
        CHECK(type_of(problem) == "result-not-kept");
        auto members = json_of(problem);
        CHECK(members["retryable"] == "false");
        CHECK(members["result"] == to_string(kept));
        CHECK(members["resource"] == details.resource);
        CHECK(members["status_url"] == "/jobs/17");
        CHECK(header_of(problem, "Idempotency-Replayed") == "true");

        RespondOptions options;
        options.resource_url = [](std::string_view id) { return "/orders/" + std::string(id); };
        const auto other = http::respond(outcome, options);
        CHECK(other.status == 303);
        CHECK(header_of(other, "Location") == "/orders/17%20%0D%0AX:%20%3Cy%3E");
        CHECK(header_of(other, "Idempotency-Replayed") == "true");
        CHECK(other.body.empty());
    }
}

TEST_CASE("no duplicate ever gets a 500, and every answer can be sent", "[http]") {
    const std::vector<std::string> codes = {"", "404", "500", "503", "bad", "\r\n"};
    int seen = 0;
    for (const auto kind : every_kind)
        for (const auto profile : {Profile::ietf, Profile::async_job})
            for (const auto failure : every_class)
                for (const auto& code : codes)
                    for (int saved = 199; saved < 601; ++saved) {
                        OutcomeDetails details;
                        details.kind = kind;
                        details.failure = {failure, code, "m\r\n"};
                        details.resource = "r\r\nX: y";
                        std::optional<Response> value;
                        if (kind == OutcomeKind::replayed && saved >= 200 && saved < 600)
                            value = Response{saved, {{"X", "a\r\nb"}}, {}};
                        else if (saved != 199)
                            continue;
                        auto options = with(profile);
                        options.status_url = "/j\r\nX: y>";
                        options.instance = "i\r\n";
                        options.resource_url = [](std::string_view id) { return std::string(id); };
                        const auto answer =
                            http::respond(Outcome<Response>(details, value), options);
                        ++seen;
                        if (answer.status < 200 || (answer.status >= 500 && answer.status != 503))
                            FAIL_CHECK(to_string(kind) << " " << saved << " " << answer.status);
                        if (answer.status == 503) CHECK(header_of(answer, "Retry-After") == "1");
                        for (const auto& header : answer.headers)
                            if (!http::is_sendable(header)) FAIL_CHECK(header.name);
                        if (header_of(answer, "Content-Type") == "application/problem+json")
                            CHECK(json_of(answer).count("retryable") == 1);
                    }
    CHECK(seen > 24000);
}

TEST_CASE("a saved 5xx is not replayed: it would say try again for ever", "[http]") {
    const auto answer = http::respond(outcome_of(OutcomeKind::replayed, {{500, {}, "oops"}}));
    CHECK(answer.status == 424);
    CHECK(type_of(answer) == "exhausted");
    CHECK(json_of(answer)["code"] == "500");
}

TEST_CASE("results of any type are answered by what makes a response of them", "[http]") {
    const auto make = [](int count) { return Response{200, {}, std::to_string(count)}; };
    OutcomeDetails details;
    details.kind = OutcomeKind::executed;
    CHECK(http::respond(Outcome<int>(details, 7), make) == Response{200, {}, "7"});
    details.kind = OutcomeKind::replayed;
    const auto again = http::respond(Outcome<int>(details, 7), make);
    CHECK(again.body == "7");
    CHECK(header_of(again, "Idempotency-Replayed") == "true");
    details.kind = OutcomeKind::mismatch;
    CHECK(http::respond(Outcome<int>(details), make, with(Profile::async_job)).status == 409);

    details.kind = OutcomeKind::replayed;
    const auto nothing =
        http::respond(Outcome<void>(details, std::monostate{}), [](std::monostate) {
            return Response{204, {}, {}};
        });
    CHECK(nothing.status == 204);
    static_assert(!http::response_maker<decltype(make), std::string>);
}

TEST_CASE("problems name their occurrence and the page that explains them", "[http]") {
    RespondOptions options;
    options.problem_base_uri = "https://example.com/problems/";
    options.instance = "urn:request:9";
    auto members = json_of(http::respond(outcome_of(OutcomeKind::mismatch), options));
    CHECK(members["type"] == "https://example.com/problems/key-reused");
    CHECK(members["instance"] == "urn:request:9");
}

// --- errors -------------------------------------------------------------------------------------

template <class E>
Response respond_thrown(E error) {
    const auto direct = http::respond(error);
    CHECK(http::respond(std::make_exception_ptr(error)) == direct);
    CHECK(direct.body.find("secret host") == std::string::npos);
    return direct;
}

TEST_CASE("each error of the library has an answer that hides what it says", "[http]") {
    const auto down = respond_thrown(idem::UnavailableError("secret host", true));
    CHECK(down.status == 503);
    CHECK(header_of(down, "Retry-After") == "1");
    CHECK(json_of(down)["retryable"] == "true");
    const auto lost =
        respond_thrown(idem::LeaseLostError("secret host", idem::LostReason::other_owner));
    CHECK(lost.status == 409);
    CHECK(type_of(lost) == "lease-lost");
    CHECK(header_of(lost, "Retry-After") == "1");
    CHECK(respond_thrown(idem::ConflictError("secret host")).status == 409);
    const auto usage = respond_thrown(idem::UsageError("secret host"));
    CHECK(usage.status == 400);
    CHECK(json_of(usage)["retryable"] == "false");
    const auto codec = respond_thrown(idem::CodecError("secret host"));
    CHECK(codec.status == 409);
    CHECK(type_of(codec) == "result-unreadable");
    CHECK(json_of(codec)["retryable"] == "false");
    const auto schema = respond_thrown(idem::SchemaError("secret host"));
    CHECK(schema.status == 503);
    CHECK(header_of(schema, "Retry-After") == "60");
    CHECK(respond_thrown(idem::UnknownOutcomeError("secret host")).status == 409);
    const auto refused = respond_thrown(idem::FinalError("404", "no such order"));
    CHECK(refused.status == 404);
    CHECK(json_of(refused)["detail"] == "no such order");
}

TEST_CASE("errors that are not the library's pass through unchanged", "[http]") {
    CHECK_THROWS_AS(http::respond(std::make_exception_ptr(std::runtime_error("x"))),
                    std::runtime_error);
    CHECK_THROWS_AS(http::respond(std::make_exception_ptr(17)), int);
}

// --- the status document ------------------------------------------------------------------------

idem::RecordView record_in(State state) {
    idem::RecordView view;
    view.key = {"secret.scope", "secret-id", "secret-tenant"};
    view.header.state = state;
    view.header.attempt = 3;
    view.header.created = Instant(microseconds{1'767'323'045'000'006});
    view.header.started = Instant(microseconds{1'767'323'046'000'007});
    view.header.completed = Instant(microseconds{1'767'323'047'100'000});
    view.header.retention_end = Instant(microseconds{1'767'409'447'100'000});
    view.payload.result = "secret result";
    view.payload.checkpoint = "secret checkpoint";
    return view;
}

TEST_CASE("the status document tells state, attempt and times of every state as 200", "[http]") {
    for (const auto state : {State::issued, State::running, State::released, State::succeeded,
                             State::failed, State::unknown, State::forgotten}) {
        const auto answer = http::status_document(record_in(state));
        INFO(answer.body);
        CHECK(answer.status == 200);
        CHECK(header_of(answer, "Content-Type") == "application/json");
        CHECK(header_of(answer, "Cache-Control") == "no-store");
        auto members = json_of(answer);
        CHECK(members["state"] == to_string(state));
        CHECK(members["attempt"] == "3");
        CHECK(members["created"] == "2026-01-02T03:04:05.000006Z");
        CHECK(members["started"] == "2026-01-02T03:04:06.000007Z");
        CHECK(members["kept_until"] == "2026-01-03T03:04:07.100000Z");
        const bool settled = state == State::succeeded || state == State::failed;
        CHECK(members.count("completed") == (settled ? 1U : 0U));
        if (settled) CHECK(members["completed"] == "2026-01-02T03:04:07.100000Z");
        CHECK(http::find_header(answer, "Retry-After").has_value() == (state == State::running));
        CHECK(answer.body.find("secret") == std::string::npos);
    }
}

TEST_CASE("the status document of running work says when to ask again", "[http]") {
    auto view = record_in(State::running);
    view.lease_left = microseconds{4'200'000};
    auto answer = http::status_document(view);
    CHECK(header_of(answer, "Retry-After") == "5");
    CHECK(json_of(answer)["retry_after"] == "5");
    CHECK(json_of(answer)["lapsed"] == "false");
    view.lapsed = true;
    view.lease_left = {};
    answer = http::status_document(view);
    CHECK(header_of(answer, "Retry-After") == "1");
    CHECK(json_of(answer)["lapsed"] == "true");
}

TEST_CASE("the status document leads to the resource, by a member or a 303", "[http]") {
    RespondOptions options;
    options.resource_url = [](std::string_view id) { return "/o/" + std::string(id); };
    auto view = record_in(State::succeeded);
    view.header.result = ResultKind::value;
    view.payload.resource = "17";
    auto answer = http::status_document(view, options);
    CHECK(answer.status == 200);
    CHECK(json_of(answer)["resource"] == "17");
    CHECK(json_of(answer)["resource_url"] == "/o/17");
    CHECK(json_of(answer)["result_kept"] == "true");
    CHECK(header_of(answer, "Location") == "(none)");

    options.see_other = true;
    answer = http::status_document(view, options);
    CHECK(answer.status == 303);
    CHECK(header_of(answer, "Location") == "/o/17");
    CHECK(json_of(answer)["state"] == "succeeded");

    view.payload.resource.clear();
    CHECK(http::status_document(view, options).status == 200);
    view.payload.resource = "17";
    view.header.state = State::running;
    CHECK(http::status_document(view, options).status == 200);
}

TEST_CASE("the status document shows a failure by class, its message only if final", "[http]") {
    auto view = record_in(State::failed);
    view.payload.failure_code = "bad_codec";
    view.payload.failure_message = "no \"such\" codec";
    view.header.failure = FailureClass::final;
    auto members = json_of(http::status_document(view));
    CHECK(members["failure.class"] == "final");
    CHECK(members["failure.code"] == "bad_codec");
    CHECK(members["failure.message"] == "no \"such\" codec");
    view.header.failure = FailureClass::exhausted;
    members = json_of(http::status_document(view));
    CHECK(members["failure.class"] == "exhausted");
    CHECK(members.count("failure.message") == 0);
}

TEST_CASE("the status document says by class and code why work was rolled back", "[http]") {
    auto view = record_in(State::released);
    CHECK(json_of(http::status_document(view)).count("failure.class") == 0);
    view.header.failure = FailureClass::retryable;
    view.payload.failure_code = "bad_input";
    view.payload.failure_message = "/srv/secret: no such file";
    auto members = json_of(http::status_document(view));
    CHECK(members["failure.class"] == "retryable");
    CHECK(members["failure.code"] == "bad_input");
    CHECK(members.count("failure.message") == 0);
}

TEST_CASE("the state of a key that nobody knows is 404", "[http]") {
    const std::optional<idem::RecordView> none;
    const auto answer = http::status_document(none);
    CHECK(answer.status == 404);
    CHECK(type_of(answer) == "not-found");
    const std::optional<idem::RecordView> some = record_in(State::running);
    CHECK(http::status_document(some) == http::status_document(*some));
}

TEST_CASE("a moment is RFC 3339 in UTC, and nothing where that cannot hold it", "[http]") {
    using idem::detail::rfc3339;
    CHECK(rfc3339(Instant{}).empty());
    CHECK(rfc3339(Instant(microseconds{1})) == "1970-01-01T00:00:00.000001Z");
    CHECK(rfc3339(Instant(microseconds{-1})) == "1969-12-31T23:59:59.999999Z");
    CHECK(rfc3339(Instant(seconds{951'782'400})) == "2000-02-29T00:00:00.000000Z");
    CHECK(rfc3339(Instant(seconds{253'402'300'799})) == "9999-12-31T23:59:59.000000Z");
    CHECK(rfc3339(Instant(seconds{253'402'300'800})).empty());
    CHECK(rfc3339(Instant(seconds{-62'167'219'200})) == "0000-01-01T00:00:00.000000Z");
    CHECK(rfc3339(Instant(seconds{-62'167'219'201})).empty());
    CHECK(rfc3339(Instant(microseconds::max())).empty());
    CHECK(rfc3339(Instant(microseconds::min())).empty());
}

}  // namespace http_test
