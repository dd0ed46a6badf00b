// Keys, fingerprints, codecs and record bytes: what must never be taken for something else.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <idem/codec.hpp>
#include <idem/fingerprint.hpp>
#include <idem/key.hpp>
#include <idem/record_codec.hpp>

#include "support/catch.hpp"

namespace {

using namespace std::string_literals;
using idem::content_key;
using idem::Fingerprint;
using idem::FingerprintHasher;
using idem::Key;
using idem::KeyView;

KeyView view(const Key& key, idem::Component component = idem::Component::call) {
    return {component, key};
}

std::string encoded(const Key& key, idem::Component component = idem::Component::call) {
    return idem::encode_key(view(key, component));
}

template <class T>
std::string bytes_of(const T& value) {
    std::string out;
    idem::Codec<T>::encode(value, out);
    return out;
}

template <class T>
T round_trip(const T& value) {
    return idem::decode_result<T>(idem::codec_id<T>(), bytes_of(value));
}

std::pair<idem::RecordHeader, idem::Payload> some_record() {
    idem::RecordHeader header;
    header.state = idem::State::succeeded;
    header.result = idem::ResultKind::value;
    header.codec = {7, 1};
    header.attempt = 1;
    header.fence = 99;
    header.owner.bytes[0] = 'o';
    header.created = header.started = idem::Instant(idem::Duration{1'000'000});
    header.retention_end = idem::Instant(idem::Duration{9'000'000});
    return {header, {.result = "result\0of bytes"s, .resource = "job-1"}};
}

// The bytes of a record with its check made to fit again.
std::string rechecked(std::string record) {
    record.resize(record.size() - 4);
    idem::detail::put_fixed(record, idem::record_format::check_of(record), 4);
    return record;
}

}  // namespace

TEST_CASE("words: fields are typed and length-prefixed, so no two requests share a key",
          "[words]") {
    const auto id = [](const auto&... fields) { return content_key("s", fields...).id; };
    CHECK(id("ab", "c") != id("a", "bc"));
    CHECK(id("a:b", "c") != id("a", "b:c"));
    CHECK(id("a\0b"s, "c") != id("a", "b\0c"s));
    CHECK(id("a") != id("a", ""));
    CHECK(id("a", "b") != id("at\0\0\0\0\0\0\0\0b"s));  // what stands between two texts
    CHECK(id(1) != id("1"));
    CHECK(id(1) != id(1U));
    CHECK(id(1) != id(1.0));
    CHECK(id(1) != id(true));
    CHECK(id(std::optional<std::string>{}) != id(""));
    CHECK(id(std::optional<std::string>{"x"}) == id("x"));
    CHECK(id(std::vector<std::string>{"a", "b"}, "c") != id(std::vector<std::string>{"a"}, "b", "c"));
    CHECK(id(std::vector<std::string>{"a"}) != id("a"));
    CHECK(id(0.0) == id(-0.0));
    CHECK(id(9007199254740992.0) != id(9007199254740994.0));
    CHECK(id(9007199254740992LL) != id(9007199254740993LL));
}

TEST_CASE("words: random tuples of fields never collide", "[words]") {
    std::mt19937_64 engine(7);
    std::set<std::tuple<std::string, std::string, std::string>> fields;
    std::set<std::string> ids;
    const auto text = [&] {
        std::string out(engine() % 4, 'a');
        for (char& c : out) c = "ab\0:"[engine() % 4];
        return out;
    };
    for (int i = 0; i < 20'000; ++i) {
        const auto [at, fresh] = fields.emplace(text(), text(), text());
        if (fresh) ids.insert(content_key("s", std::get<0>(*at), std::get<1>(*at),
                                          std::get<2>(*at)).id);
    }
    CHECK(ids.size() == fields.size());
}

TEST_CASE("words: a stored key is injective and comes back as it was", "[words]") {
    const std::vector<std::string> parts = {"a", "b", "ab", "ba", "a\0b"s, "\1a", "\xff{}%'\r\n"};
    std::set<std::string> seen;
    std::size_t made = 0;
    for (const auto& scope : parts) {
        for (const auto& id : parts) {
            for (const auto& tenant : {""s, "a"s, "ab"s, "\1a"s}) {
                const Key key{scope, id, tenant};
                for (const auto component : {idem::Component::call, idem::Component::lease}) {
                    const auto bytes = encoded(key, component);
                    REQUIRE(idem::decode_key(bytes) == view(key, component));
                    seen.insert(bytes);
                    ++made;
                }
            }
        }
    }
    CHECK(seen.size() == made);
}

TEST_CASE("words: a key part is at most 255 bytes, not characters, and never truncated",
          "[words]") {
    const std::string long_part(255, 'x');
    const Key longest{long_part, long_part, long_part};
    CHECK_NOTHROW(idem::validate(view(longest)));
    CHECK(idem::decode_key(encoded(longest)) == view(longest));
    CHECK_THROWS_AS(idem::validate(view({long_part + "x", "i"})), idem::UsageError);
    CHECK_THROWS_AS(idem::validate(view({"s", long_part + "x"})), idem::UsageError);
    CHECK_THROWS_AS(idem::validate(view({"s", "i", long_part + "x"})), idem::UsageError);
    std::string wide;
    for (int i = 0; i < 200; ++i) wide += "\xf0\x9f\x8e\xac";  // 200 characters, 800 bytes
    CHECK_THROWS_AS(idem::validate(view({"s", wide})), idem::UsageError);
}

TEST_CASE("words: an empty scope or id protects nothing and is refused", "[words]") {
    CHECK_THROWS_AS(idem::validate(view({"", "i"})), idem::UsageError);
    CHECK_THROWS_AS(idem::validate(view({"s", ""})), idem::UsageError);
    CHECK_NOTHROW(idem::validate(view({"s", "i"})));
}

TEST_CASE("words: fingerprints of two algorithms are never equal", "[words]") {
    const auto raw = Fingerprint::of_bytes("request");
    CHECK(raw == Fingerprint::of_bytes("request"));
    CHECK(raw != Fingerprint::of_bytes("request "));
    CHECK(raw != Fingerprint::of("request"));
    auto other = std::string(raw.stored());
    other[0] = static_cast<char>(Fingerprint::Algorithm::sha256_fields);
    CHECK(raw != Fingerprint::from_stored(other));
    CHECK_FALSE(Fingerprint{}.present());
}

TEST_CASE("words: a keyed fingerprint depends on the secret", "[words]") {
    const auto by = [](std::string_view secret) {
        return FingerprintHasher::keyed(secret).bytes("request").finish();
    };
    CHECK(by("0123456789abcdef") == by("0123456789abcdef"));
    CHECK(by("0123456789abcdef") != by("0123456789abcdeF"));
    CHECK(by("0123456789abcdef") != Fingerprint::of_bytes("request"));
    CHECK_THROWS_AS(FingerprintHasher::keyed("short"), idem::UsageError);
}

TEST_CASE("words: how a stream was cut does not matter, and a file is its bytes", "[words]") {
    const auto whole = Fingerprint::of_bytes("one two three");
    CHECK(FingerprintHasher().bytes("one ").bytes("two").bytes(" three").finish() == whole);
    const auto path = std::filesystem::temp_directory_path() / "idem_words_test";
    std::string content(300'000, 'x');
    content += "end";
    std::ofstream(path, std::ios::binary) << content;
    CHECK(Fingerprint::of_file(path) == Fingerprint::of_bytes(content));
    std::filesystem::remove(path);
    CHECK_THROWS(Fingerprint::of_file(path));
}

TEST_CASE("words: a result is never read as another type or by an older codec", "[words]") {
    const auto text = bytes_of("12345678"s);
    CHECK(round_trip("12345678"s) == "12345678");
    CHECK_THROWS_AS(idem::decode_result<std::uint64_t>(idem::codec_id<std::string>(), text),
                    idem::CodecError);
    auto newer = idem::codec_id<std::string>();
    ++newer.version;
    CHECK_THROWS_AS(idem::decode_result<std::string>(newer, text), idem::CodecError);
}

TEST_CASE("words: a truncated or longer result is an error, not a value", "[words]") {
    const auto number = bytes_of(std::uint32_t{7});
    const auto id = idem::codec_id<std::uint32_t>();
    CHECK(idem::decode_result<std::uint32_t>(id, number) == 7);
    CHECK_THROWS_AS(idem::decode_result<std::uint32_t>(id, number.substr(1)), idem::CodecError);
    CHECK_THROWS_AS(idem::decode_result<std::uint32_t>(id, number + "x"), idem::CodecError);
    using Pair = std::pair<std::string, int>;
    const auto pair = bytes_of(Pair{"text", 7});
    CHECK(round_trip(Pair{"text", 7}) == Pair{"text", 7});
    for (std::size_t size = 0; size < pair.size(); ++size)
        CHECK_THROWS_AS(idem::decode_result<Pair>(idem::codec_id<Pair>(), pair.substr(0, size)),
                        idem::CodecError);
}

TEST_CASE("words: values of every kind come back as they were", "[words]") {
    std::string all;
    for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
    CHECK(round_trip(all) == all);
    CHECK(round_trip(std::numeric_limits<std::int64_t>::min()) ==
          std::numeric_limits<std::int64_t>::min());
    CHECK(round_trip(-1) == -1);
    CHECK(round_trip(0.1) == 0.1);
    CHECK(round_trip(true));
    CHECK(round_trip(std::optional<std::string>{}) == std::nullopt);
    CHECK(round_trip(std::optional<std::string>{""}) == "");
    const std::vector<std::string> list = {"", "a", std::string(300, 'b')};
    CHECK(round_trip(list) == list);
}

TEST_CASE("words: a record that is damaged anywhere is no record", "[words]") {
    const auto [header, payload] = some_record();
    const auto bytes = idem::encode_record(header, payload);
    const auto whole = idem::decode_record(bytes);
    REQUIRE(whole);
    CHECK((whole.header == header && whole.payload == payload));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        auto damaged = bytes;
        damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
        INFO("byte " << i);
        CHECK_FALSE(idem::decode_record(damaged));
        CHECK_FALSE(idem::decode_record(bytes.substr(0, i)));
    }
}

TEST_CASE("words: a record of a newer major format is not read", "[words]") {
    const auto [header, payload] = some_record();
    auto bytes = idem::encode_record(header, payload);
    bytes[1] = static_cast<char>(idem::record_format::major + 1);
    CHECK(idem::decode_record(rechecked(bytes)).kind == idem::DecodedRecord::Kind::newer);
}

TEST_CASE("words: a field that a later minor version adds is skipped", "[words]") {
    const auto [header, payload] = some_record();
    auto bytes = idem::encode_record(header, payload);
    bytes.insert(bytes.size() - 4, "\x63\x03new");
    const auto read = idem::decode_record(rechecked(bytes));
    REQUIRE(read);
    CHECK((read.header == header && read.payload == payload));
}
