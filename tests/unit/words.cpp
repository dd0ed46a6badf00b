// Keys, fingerprints, the bytes of a record, and codecs: what may be written, what it may be
// confused with, and what becomes of damaged bytes.

#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <idem/codec.hpp>
#include <idem/record_codec.hpp>

#include "support/catch.hpp"

namespace words_test {

using namespace std::string_literals;
using idem::Component;
using idem::Fingerprint;
using idem::FingerprintHasher;
using idem::Key;
using idem::KeyView;

std::string all_bytes() {
    std::string out;
    for (int i = 0; i < 256; ++i) out += static_cast<char>(i);
    return out;
}

std::string random_bytes(std::mt19937_64& draw, std::size_t max, std::size_t alphabet) {
    std::string out;
    for (auto size = draw() % (max + 1); size > 0; --size)
        out += alphabet == 256 ? static_cast<char>(draw()) : "a:,\0b"[draw() % alphabet];
    return out;
}

void validate(const Key& key) {
    idem::validate(KeyView(Component::call, key));
}

// --- keys ---------------------------------------------------------------------------------------

TEST_CASE("key: an empty scope or id protects nothing and is refused") {
    CHECK_THROWS_AS(validate({"", "id"}), idem::UsageError);
    CHECK_THROWS_AS(validate({"scope", ""}), idem::UsageError);
    CHECK_NOTHROW(validate({"scope", "id", ""}));
    CHECK_NOTHROW(validate({"scope", "0"}));
}

TEST_CASE("key: the limit is in bytes, not in characters") {
    std::string points;  // 64 code points of four bytes each
    for (int i = 0; i < 64; ++i) points += "\xF0\x9F\x98\x80";
    CHECK_THROWS_WITH(validate({"scope", points}),
                      Catch::Contains("256 bytes") && Catch::Contains("255 are allowed"));
    CHECK_NOTHROW(validate({"scope", points.substr(1)}));
    const std::string most(255, 'x');
    CHECK_NOTHROW(validate({most, most, most}));
    CHECK_THROWS_AS(validate({most + "x", most}), idem::UsageError);
    CHECK_THROWS_AS(validate({most, most, most + "x"}), idem::UsageError);
}

TEST_CASE("key: the stored form is injective, for any bytes") {
    std::mt19937_64 draw(44);
    for (int i = 0; i < 100'000; ++i) {
        const auto alphabet = i % 2 == 0 ? 256U : 5U;
        Key key{random_bytes(draw, 6, alphabet), random_bytes(draw, 6, alphabet),
                random_bytes(draw, 6, alphabet)};
        if (key.scope.empty() || key.id.empty()) continue;
        const KeyView view(Component::gate, key);
        const auto stored = idem::encode_key(view);
        const auto back = idem::decode_key(stored);
        if (!back || !(*back == view)) FAIL("a key that does not come back");
    }
    const std::string most(255, '\xFF');
    const Key longest{most, most, most};
    const auto whole = idem::encode_key(KeyView(Component::call, longest));
    REQUIRE(idem::decode_key(whole));
    CHECK(idem::decode_key(whole)->key() == longest);
    const Key odd{"a{b}c", all_bytes().substr(0, 255), "\0\xFF\r\n %'\""s};
    const auto stored = idem::encode_key(KeyView(Component::call, odd));
    REQUIRE(idem::decode_key(stored));
    CHECK(idem::decode_key(stored)->key() == odd);
}

TEST_CASE("key: parts that join to the same text are different keys") {
    std::set<std::string> stored;
    for (const auto& key : {Key{"a", "bc"}, Key{"ab", "c"}, Key{"a", "c", "b"}, Key{"a:b", "c"},
                            Key{"a", "b:c"}, Key{"a\0b"s, "c"}, Key{"a", "b\0c"s}})
        for (const auto component : {Component::call, Component::lease})
            CHECK(stored.insert(idem::encode_key(KeyView(component, key))).second);
}

TEST_CASE("key: bytes that no key has written are no key") {
    const auto stored = idem::encode_key({Component::call, "scope", "id", "tenant"});
    for (std::size_t size = 0; size < stored.size() - 1; ++size)
        CHECK_FALSE(idem::decode_key(std::string_view(stored).substr(0, size)));
    auto other = stored;
    other[0] = 'x';
    CHECK_FALSE(idem::decode_key(other));
}

TEST_CASE("content key: fields are typed and length-prefixed") {
    const auto id = [](const auto&... fields) { return idem::content_key("s", fields...).id; };
    const std::vector<std::string> different = {id("ab", "c"),
                                                id("a", "bc"),
                                                id("a:b", "c"),
                                                id("a", "b:c"),
                                                id("a\0b"s, "c"),
                                                id("abc"),
                                                id(1),
                                                id("1"),
                                                id(1U),
                                                id(1.0),
                                                id(true),
                                                id(11497),
                                                id("11497"),
                                                id(-1),
                                                id(""),
                                                id(std::nullopt),
                                                id(std::vector<std::string>{}),
                                                id(std::vector<std::string>{""}),
                                                id("a", std::nullopt),
                                                id("a"),
                                                id("a", ""),
                                                id(std::tuple("a")),
                                                id(std::tuple("a", "b")),
                                                id("a", "b"),
                                                id(std::array<std::byte, 1>{std::byte{'1'}})};
    CHECK(std::set(different.begin(), different.end()).size() == different.size());
    CHECK(id("a", "b") != id("at\0\0\0\0\0\0\0\0b"s));  // what stands between two texts
    CHECK(id(std::optional<std::string>{}) == id(std::nullopt));
    CHECK(id(std::optional<std::string>{}) != id(""));
    CHECK(id(std::optional("a"s)) == id("a"));
    using Twice = std::optional<std::optional<int>>;
    CHECK(id(Twice{}) == id(std::nullopt));
    CHECK(id(Twice{std::optional<int>{}}) != id(Twice{}));
    CHECK(id(Twice{std::optional<int>{}}) != id(Twice{7}));
    CHECK(id(Twice{7}) != id(Twice{}));
    using Thrice = std::optional<Twice>;
    CHECK(std::set{id(Thrice{}), id(Thrice{Twice{}}), id(Thrice{Twice{std::optional<int>{}}}),
                   id(Thrice{Twice{7}})}
              .size() == 4);
    CHECK(id(std::optional<std::nullptr_t>{nullptr}) != id(std::optional<std::nullptr_t>{}));
    CHECK(id(1) == id(1L));
    CHECK(id(0.0) == id(-0.0));
    CHECK(id(std::nan("1")) == id(std::nan("2")));
    CHECK(id("a").size() == 64);
}

TEST_CASE(
    "content key: an array of char is text up to its first NUL, and no further than it goes") {
    const auto id = [](const auto& field) { return idem::content_key("s", field).id; };
    CHECK(id("abcd") == id("abcd"s));
    const std::unique_ptr<char[][4]> tag(new char[1][4]{{'a', 'b', 'c', 'd'}});
    CHECK(id(tag[0]) == id("abcd"s));  // has no NUL: nothing after it may be read
    char buffer[8] = {'a', 'b', 'c', 'd', 0, '?', '!', '?'};  // what an earlier text left behind
    CHECK(id(buffer) == id("abcd"s));
    CHECK(id("ab\0cd"s) != id("ab"s));  // text that knows its length is taken whole
}

TEST_CASE("content key: a million random tuples, no two meet") {
    std::mt19937_64 draw(44);
    std::unordered_map<std::string, std::string> seen;
    std::size_t collisions = 0;
    for (int i = 0; i < 1'000'000; ++i) {
        const auto text = random_bytes(draw, 3, 5);
        const auto more = random_bytes(draw, 3, 5);
        const auto number = static_cast<int>(draw() % 1'000'000);
        const bool as_text = draw() % 2 == 0;
        const auto key = as_text ? idem::content_key("s", text, more, std::to_string(number))
                                 : idem::content_key("s", text, more, number);
        const std::string tuple = std::to_string(text.size()) + text + std::to_string(more.size()) +
                                  more + (as_text ? "t" : "n") + std::to_string(number);
        if (seen.emplace(key.id.substr(0, 20), tuple).first->second != tuple) ++collisions;
    }
    CHECK(collisions == 0);
    CHECK(seen.size() > 900'000);
}

// --- fingerprints -------------------------------------------------------------------------------

TEST_CASE("fingerprint: none is none, and no bytes are something") {
    CHECK_FALSE(Fingerprint{}.present());
    CHECK(Fingerprint::of_bytes("").present());
    CHECK(Fingerprint{} != Fingerprint::of_bytes(""));
    CHECK(Fingerprint{}.stored().empty());
}

TEST_CASE("fingerprint: bytes are taken as they are, JSON's key order too") {
    CHECK(Fingerprint::of_bytes(R"({"a":1,"b":2})") != Fingerprint::of_bytes(R"({"b":2,"a":1})"));
    CHECK(Fingerprint::of("a", 1, "b", 2) == Fingerprint::of("a", 1, "b", 2));
}

TEST_CASE("fingerprint: numbers beyond a double conflict as bytes and as integers") {
    CHECK(Fingerprint::of_bytes("9007199254740992.0") !=
          Fingerprint::of_bytes("9007199254740993.0"));
    CHECK(Fingerprint::of(9'007'199'254'740'992) != Fingerprint::of(9'007'199'254'740'993));
}

TEST_CASE("fingerprint: 1, 1.0 and \"1\" differ; null, missing and empty differ") {
    CHECK(Fingerprint::of(1) != Fingerprint::of(1.0));
    CHECK(Fingerprint::of(1) != Fingerprint::of("1"));
    CHECK(Fingerprint::of("a", std::nullopt) != Fingerprint::of("a"));
    CHECK(Fingerprint::of("a", std::nullopt) != Fingerprint::of("a", ""));
    CHECK(Fingerprint::of("a", "bc") != Fingerprint::of("ab", "c"));
}

TEST_CASE("fingerprint: two algorithms never match, and a newer one equals only itself") {
    const auto secret = "0123456789abcdef"s;
    const std::vector<Fingerprint> all = {Fingerprint::of_bytes("a"), Fingerprint::of("a"),
                                          FingerprintHasher::keyed(secret).bytes("a").finish(),
                                          FingerprintHasher::keyed(secret).field("a").finish()};
    for (std::size_t i = 0; i < all.size(); ++i)
        for (std::size_t j = 0; j < all.size(); ++j) CHECK((all[i] == all[j]) == (i == j));
    std::string newer(all[0].stored());
    newer[0] = 99;
    const auto read = Fingerprint::from_stored(newer);
    REQUIRE(read);
    CHECK(*read != all[0]);
    CHECK(*read == *Fingerprint::from_stored(newer));
    CHECK(read->stored() == newer);
    for (const auto& print : all) CHECK(Fingerprint::from_stored(print.stored()) == print);
    CHECK(Fingerprint::from_stored("") == Fingerprint{});
    CHECK_FALSE(Fingerprint::from_stored("short"));
    CHECK_FALSE(Fingerprint::from_stored(std::string(33, '\0')));
    CHECK_FALSE(Fingerprint::from_stored(newer + "x"));
}

TEST_CASE("fingerprint: how a stream is cut does not matter, how fields are cut does") {
    FingerprintHasher whole;
    FingerprintHasher pieces;
    CHECK(whole.bytes("abcdef").finish() == pieces.bytes("ab").bytes("").bytes("cdef").finish());
    FingerprintHasher one;
    FingerprintHasher two;
    CHECK(one.field("ab").field("c").finish() != two.field("a").field("bc").finish());
    FingerprintHasher fields;
    CHECK(fields.field("a").field(1).finish() == Fingerprint::of("a", 1));
}

// Text that is made by hashing, when it is read. Of nothing there is none.
struct Hashed {
    std::string part{};
    mutable std::string made{};

    operator std::string_view() const {
        if (part.empty()) throw 17;
        made = idem::content_key("part", std::string(Fingerprint::of_bytes(part).digest())).id;
        return made;
    }
};

TEST_CASE("fingerprint: fields that hash while they are read are fields like others") {
    const std::vector<Hashed> lazy = {{"one"}, {"two"}, {std::string(300, 'x')}};
    std::vector<std::string> eager;
    for (const auto& part : lazy) eager.emplace_back(std::string_view(part));
    const std::string filler(300, 'f');  // more than is collected before it is hashed
    CHECK(Fingerprint::of(filler, "user-a", lazy) == Fingerprint::of(filler, "user-a", eager));
    CHECK(Fingerprint::of(filler, "user-a", lazy) != Fingerprint::of(filler, "user-b", lazy));
    CHECK(idem::content_key("s", filler, 1, lazy) == idem::content_key("s", filler, 1, eager));
    CHECK_THROWS_AS(Fingerprint::of(filler, Hashed{}), int);
    CHECK(Fingerprint::of("a") == FingerprintHasher().field("a").finish());
}

TEST_CASE("fingerprint: a hasher that is misused says so") {
    FingerprintHasher mixed;
    mixed.bytes("a");
    CHECK_THROWS_AS(mixed.field(1), idem::UsageError);
    FingerprintHasher spent;
    (void)spent.bytes("a").finish();
    CHECK_THROWS_AS(spent.bytes("b"), idem::UsageError);
    CHECK_THROWS_AS(spent.finish(), idem::UsageError);
    CHECK_THROWS_AS(FingerprintHasher::keyed("too short"), idem::UsageError);
}

TEST_CASE("fingerprint: two secrets give two fingerprints") {
    const auto print = [](std::string_view secret) {
        return FingerprintHasher::keyed(secret).bytes("4711").finish();
    };
    CHECK(print("0123456789abcdef") == print("0123456789abcdef"));
    CHECK(print("0123456789abcdef") != print("0123456789abcdeg"));
}

TEST_CASE("fingerprint: of a file is that of its bytes, at any size") {
    const auto path = std::filesystem::temp_directory_path() /
                      ("idem-words-" + std::to_string(std::random_device{}()));
    for (const std::size_t size : {0U, 1U, 262'143U, 262'144U, 262'145U, 1'000'000U}) {
        std::string content;
        for (std::size_t i = 0; i < size; ++i) content += static_cast<char>(i * 31 % 251);
        std::ofstream(path, std::ios::binary).write(content.data(), static_cast<long>(size));
        CHECK(Fingerprint::of_file(path) == Fingerprint::of_bytes(content));
    }
    std::filesystem::remove(path);
    CHECK_THROWS_AS(Fingerprint::of_file(path), std::filesystem::filesystem_error);
    CHECK_THROWS_AS(Fingerprint::of_file(path.parent_path()), std::filesystem::filesystem_error);
}

// --- records as bytes ---------------------------------------------------------------------------

using Kind = idem::DecodedRecord::Kind;

idem::RecordHeader full_header() {
    idem::RecordHeader out;
    out.state = idem::State::succeeded;
    out.token = out.bound = out.verify = out.takeover = true;
    out.policy = {idem::Orphan::hold, 65'535, 256};
    out.result = idem::ResultKind::value;
    out.codec = {std::numeric_limits<std::uint32_t>::max(), 255};
    out.failure = idem::FailureClass::exhausted;
    out.attempt = std::numeric_limits<std::uint32_t>::max();
    out.crashes = 256;
    out.fence = std::numeric_limits<std::uint64_t>::max();
    out.owner.bytes.fill('o');
    out.fingerprint = Fingerprint::of_bytes("P");
    std::int64_t micros = 1'704'067'200'000'000;
    for (auto* instant : {&out.created, &out.started, &out.completed, &out.lease_end,
                          &out.retention_end, &out.validity_end})
        *instant = idem::Instant(idem::Duration(++micros));
    out.lease_end = idem::Instant(idem::Duration(-7));
    return out;
}

idem::Payload full_payload() {
    return {all_bytes(), "code", "message", std::string(300, '\0'), "resource"};
}

// Puts a field before the check and makes the check right again.
std::string with_field(std::string bytes, std::string_view field) {
    bytes.resize(bytes.size() - 4);
    bytes += field;
    idem::detail::put_fixed(bytes, idem::record_format::check_of(bytes), 4);
    return bytes;
}

TEST_CASE("record bytes: every field comes back, zeros and extremes too") {
    for (const auto& header : {full_header(), idem::RecordHeader{}}) {
        for (const auto& payload : {full_payload(), idem::Payload{}}) {
            const auto read = idem::decode_record(idem::encode_record(header, payload));
            REQUIRE(read);
            CHECK(read.header == header);
            CHECK(read.payload == payload);
        }
    }
    CHECK(idem::encode_record({}, {}).size() == 12);
}

TEST_CASE("record bytes: cut at any byte they are no record") {
    const auto bytes = idem::encode_record(full_header(), full_payload());
    for (std::size_t size = 0; size < bytes.size(); ++size)
        CHECK(idem::decode_record(std::string_view(bytes).substr(0, size)).kind == Kind::garbage);
    CHECK(idem::decode_record(bytes + "x").kind == Kind::garbage);
}

TEST_CASE("record bytes: with any bit flipped they are no record") {
    const auto bytes = idem::encode_record(full_header(), full_payload());
    for (std::size_t at = 0; at < bytes.size(); ++at) {
        for (unsigned bit = 0; bit < 8; ++bit) {
            auto flipped = bytes;
            flipped[at] = static_cast<char>(flipped[at] ^ static_cast<char>(1U << bit));
            const auto read = idem::decode_record(flipped);
            if (read) FAIL("byte " << at << " bit " << bit << " makes another record");
            if (read.kind == Kind::newer) CHECK(at == 1);
        }
    }
}

TEST_CASE("record bytes: random bytes with a right check are read safely") {
    std::mt19937_64 draw(7);
    std::size_t records = 0;
    for (int i = 0; i < 200'000; ++i) {
        std::string bytes = {'\xC1', 1, 0, static_cast<char>(draw() % 9), 0, 0, 0, 0};
        bytes += random_bytes(draw, 20, 256);
        const auto read = idem::decode_record(with_field(bytes + "1234", ""));
        if (read) ++records;
    }
    CHECK(records > 0);
}

TEST_CASE("record bytes: unknown fields, flags and minor versions are read") {
    auto bytes = idem::encode_record(full_header(), full_payload());
    bytes[2] = 9;                                     // a later minor version
    bytes[4] = static_cast<char>(bytes[4] | '\x40');  // a flag of that version
    const auto read = idem::decode_record(with_field(bytes, "\xC8\x03new"));
    REQUIRE(read);
    CHECK(read.header == full_header());
    CHECK(read.payload == full_payload());
}

TEST_CASE("record bytes: a newer major is told from garbage") {
    auto bytes = idem::encode_record(full_header(), full_payload());
    bytes[1] = 2;
    CHECK(idem::decode_record(bytes).kind == Kind::newer);
    CHECK(idem::decode_record(bytes.substr(0, 2)).kind == Kind::newer);
    CHECK(std::string(idem::decode_record(bytes).trouble()).find("newer") != std::string::npos);
    bytes[1] = 0;
    CHECK(idem::decode_record(bytes).kind == Kind::garbage);
    CHECK(idem::decode_record("").kind == Kind::garbage);
    CHECK(idem::decode_record("{\"state\":\"done\"}").kind == Kind::garbage);
}

TEST_CASE("record bytes: values that a field cannot hold are garbage") {
    const auto bytes = idem::encode_record({}, {});
    CHECK(idem::decode_record(with_field(bytes, "\x01\x02\x01\x01"s)));
    CHECK_FALSE(idem::decode_record(with_field(bytes, "\x01\x03\x01\x01\x01"s)));  // over 16 bits
    CHECK_FALSE(idem::decode_record(with_field(bytes, "\x08\x02xx"s)));            // an owner is 16
    CHECK_FALSE(idem::decode_record(with_field(bytes, "\x09\x02xx"s)));
    CHECK_FALSE(idem::decode_record(with_field(bytes, "\x07\x09"s + std::string(9, '\1'))));
    CHECK_FALSE(idem::decode_record(with_field(bytes, "\x05\x01\x01\x05\x01\x01"s)));  // twice
    CHECK_FALSE(idem::decode_record(with_field(bytes, "\x10\xFF\xFF\xFF\xFF\x7Fx"s)));
    for (const auto& [at, value] : {std::pair{3, 0}, {3, 8}, {5, 3}, {6, 5}, {7, 5}}) {
        auto bad = bytes;
        bad[static_cast<std::size_t>(at)] = static_cast<char>(value);
        CHECK_FALSE(idem::decode_record(with_field(bad, "")));
    }
}

// --- codecs -------------------------------------------------------------------------------------

enum class Colour : std::int16_t { red = -1, green = 300 };

struct Job {
    std::string id{};
    int width = 0;
    std::optional<std::vector<std::string>> tags{};
    static constexpr auto idem_name = "test.Job";
    static constexpr auto idem_fields = std::tuple{&Job::id, &Job::width, &Job::tags};
    friend bool operator==(const Job&, const Job&) = default;
};
struct OlderJob {
    std::string id{};
    static constexpr auto idem_name = "test.Job";
    static constexpr auto idem_fields = std::tuple{&OlderJob::id};
};

template <class T>
std::string encoded(const T& value) {
    std::string out;
    idem::Codec<T>::encode(value, out);
    return out;
}

template <class T>
void comes_back(const T& value) {
    CHECK((idem::decode_result<T>(idem::codec_id<T>(), encoded(value)) == value));
}

// Every proper prefix either throws CodecError or is a value of its own; none crashes.
template <class T>
std::size_t refused_prefixes(const T& value) {
    const auto bytes = encoded(value);
    std::size_t refused = 0;
    for (std::size_t size = 0; size < bytes.size(); ++size) {
        const std::string cut = bytes.substr(0, size);  // its own block: ASan sees an overrun
        try {
            (void)idem::decode_result<T>(idem::codec_id<T>(), cut);
        } catch (const idem::CodecError&) {
            ++refused;
        }
    }
    return refused;
}

struct Refund {
    std::string id{};
    std::int64_t cents = 0;
    static constexpr auto idem_fields = std::tuple{&Refund::id, &Refund::cents};
};
struct Label {
    std::string id{};
    static constexpr auto idem_fields = std::tuple{&Label::id};
};
struct Clip {
    std::string id{};
    std::int64_t width = 0;
    std::string url{};
    static constexpr auto idem_fields = std::tuple{&Clip::id, &Clip::width, &Clip::url};
};
struct Swapped {
    std::int64_t cents = 0;
    std::string id{};
    static constexpr auto idem_fields = std::tuple{&Swapped::cents, &Swapped::id};
};
struct Alike {  // of equal structure
    std::string name{};
    std::int64_t height = 0;
    static constexpr auto idem_fields = std::tuple{&Alike::name, &Alike::height};
};
enum class Wide : std::int64_t { yes = 1 };

struct NoCodec {};
static_assert(idem::codable<Job>);
static_assert(!idem::codable<NoCodec>);
static_assert(!idem::codable<std::string_view>);
static_assert(!idem::codable<const char*>);
static_assert(!idem::codable<int&>);

TEST_CASE("codec: values come back, all 256 byte values too") {
    comes_back(all_bytes());
    comes_back(""s);
    std::vector<std::byte> bytes;
    for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<std::byte>(i));
    comes_back(bytes);
    comes_back(std::monostate{});
    comes_back(true);
    comes_back(std::numeric_limits<std::int64_t>::min());
    comes_back(std::numeric_limits<std::uint64_t>::max());
    comes_back('\xFF');
    comes_back(-0.1F);
    comes_back(std::numeric_limits<double>::denorm_min());
    comes_back(Colour::green);
    comes_back(Colour::red);
    comes_back(std::optional<int>{});
    comes_back(std::optional<std::string>{""});
    comes_back(std::optional<std::optional<int>>{std::optional<int>{}});
    comes_back(std::vector<std::vector<int>>{{}, {1, 2}, {}});
    comes_back(std::pair<std::string, bool>{all_bytes(), true});
    comes_back(std::tuple<int, std::string, double>{1, "x", 1.5});
    comes_back(Job{"a", -7, std::vector{"x"s, ""s}});
    comes_back(Job{});
}

TEST_CASE("codec: another type's bytes, and a newer version's, are refused") {
    const auto id = idem::codec_id<int>();
    const auto bytes = encoded(7);
    CHECK_THROWS_AS(idem::decode_result<unsigned>(id, bytes), idem::CodecError);
    CHECK_THROWS_AS(idem::decode_result<std::string>(id, bytes), idem::CodecError);
    CHECK_THROWS_AS(idem::decode_result<std::int64_t>(id, bytes), idem::CodecError);
    CHECK_THROWS_AS(idem::decode_result<Colour>(idem::codec_id<std::int16_t>(), "xx"),
                    idem::CodecError);
    CHECK_THROWS_AS(idem::decode_result<int>({id.tag, 2}, bytes), idem::CodecError);
}

TEST_CASE("codec: an aggregate is not read as one that only begins alike") {
    const auto id = idem::codec_id<Refund>();
    const auto bytes = encoded(Refund{"r1", 500});
    CHECK(idem::decode_result<Refund>(id, bytes).cents == 500);
    CHECK_THROWS_AS(idem::decode_result<Label>(id, bytes), idem::CodecError);
    CHECK_THROWS_AS(idem::decode_result<Clip>(id, bytes), idem::CodecError);
    CHECK_THROWS_AS(idem::decode_result<Refund>(idem::codec_id<Clip>(), encoded(Clip{})),
                    idem::CodecError);
    CHECK_THROWS_AS(idem::decode_result<Swapped>(id, bytes), idem::CodecError);
    CHECK_THROWS_AS(
        idem::decode_result<std::vector<Clip>>(idem::codec_id<std::vector<Refund>>(), ""),
        idem::CodecError);
    CHECK_THROWS_AS(idem::decode_result<Wide>(idem::codec_id<Colour>(), encoded(Colour::red)),
                    idem::CodecError);
    CHECK(idem::decode_result<Alike>(id, bytes).height == 500);  // hence `idem_name`
}

TEST_CASE("codec: truncated bytes throw and never crash") {
    CHECK(refused_prefixes(7) == 4);
    CHECK(refused_prefixes(1.5) == 8);
    CHECK(refused_prefixes(std::tuple<int, std::string>{1, "abc"}) > 0);
    CHECK(refused_prefixes(std::vector<std::string>{"abc", "def"}) > 0);
    CHECK(refused_prefixes(Job{"id", 1, std::vector{"x"s}}) > 0);
    CHECK_THROWS_AS(idem::decode_result<int>(idem::codec_id<int>(), "12345"), idem::CodecError);
    std::mt19937_64 draw(80);
    for (int i = 0; i < 20'000; ++i) {
        try {
            (void)idem::Codec<Job>::decode(random_bytes(draw, 30, 256), 1);
        } catch (const idem::CodecError&) {
        }
    }
}

TEST_CASE("codec: members may be added at the end") {
    const auto old = encoded(OlderJob{"a"});
    const auto read = idem::decode_result<Job>(idem::codec_id<OlderJob>(), old);
    CHECK(read == Job{"a", 0, {}});
    CHECK_THROWS_AS(idem::decode_result<OlderJob>(idem::codec_id<Job>(), encoded(Job{"a", 1, {}})),
                    idem::CodecError);
}

}  // namespace words_test
