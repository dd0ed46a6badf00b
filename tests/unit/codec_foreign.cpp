// The optional codecs, with the real libraries from Debian.

#include <string>

#include <google/protobuf/wrappers.pb.h>
#include <nlohmann/json.hpp>

#include <idem/codec_json.hpp>
#include <idem/codec_protobuf.hpp>
#include <idem/guard.hpp>
#include <idem/memory/store.hpp>

#include "support/catch.hpp"

namespace codec_foreign_test {

using google::protobuf::BytesValue;
using google::protobuf::StringValue;
using nlohmann::json;
using nlohmann::ordered_json;

template <class T>
T stored_and_read(const T& value) {
    std::string bytes;
    idem::Codec<T>::encode(value, bytes);
    return idem::decode_result<T>(idem::codec_id<T>(), bytes);
}

TEST_CASE("a JSON value comes back as it was stored", "[codec]") {
    const json value = {{"id", 7}, {"ratio", 0.1}, {"tags", {"a", nullptr, true}}, {"neg", -3}};
    CHECK(stored_and_read(value) == value);
}

TEST_CASE("R44: the order of members changes the raw fingerprint and not the canonical one",
          "[codec][field]") {
    const std::string one = R"({"a":1,"b":2})";
    const std::string two = R"({ "b":2, "a":1 })";
    CHECK(idem::Fingerprint::of_bytes(one) != idem::Fingerprint::of_bytes(two));
    CHECK(idem::json_fingerprint(json::parse(one)) == idem::json_fingerprint(json::parse(two)));
    CHECK(idem::json_fingerprint(ordered_json::parse(one)) ==
          idem::json_fingerprint(ordered_json::parse(two)));
    CHECK(idem::json_fingerprint(json::parse(one)) != idem::Fingerprint::of_bytes(one));
}

TEST_CASE("R47: 1 is not 1.0, null is not a missing member, and 1 is 1 however it was made",
          "[codec][field]") {
    const auto print = [](const char* text) { return idem::json_fingerprint(json::parse(text)); };
    CHECK(print("1") != print("1.0"));
    CHECK(print(R"({"a":null})") != print("{}"));
    CHECK(print("[[1],2]") != print("[1,[2]]"));
    CHECK(print(R"("1")") != print("1"));
    CHECK(print(R"(["{"])") != print(R"([{}])"));
    CHECK(idem::json_fingerprint(json(1)) == idem::json_fingerprint(json(1U)));
    CHECK(idem::json_fingerprint(json(-1)) != idem::json_fingerprint(json(1)));
}

json nested(std::size_t depth) {
    return json::parse(std::string(depth, '[') + std::string(depth, ']'));
}

TEST_CASE("JSON that is nested too deep is refused and does not end the process", "[codec]") {
    CHECK(idem::json_fingerprint(nested(512)).present());
    CHECK_THROWS_AS(idem::json_fingerprint(nested(513)), idem::UsageError);
    CHECK_THROWS_AS(idem::json_fingerprint(nested(200'000)), idem::UsageError);
    std::string objects;
    for (int i = 0; i < 600; ++i) objects += R"({"a":)";
    CHECK_THROWS_AS(idem::json_fingerprint(json::parse(objects + "1" + std::string(600, '}'))),
                    idem::UsageError);

    CHECK(stored_and_read(nested(512)) == nested(512));
    std::string bytes;
    CHECK_THROWS_AS(idem::Codec<json>::encode(nested(513), bytes), idem::CodecError);
    CHECK_THROWS_AS(idem::Codec<json>::encode(nested(200'000), bytes), idem::CodecError);
    CHECK(bytes.empty());
}

TEST_CASE("a protobuf message comes back, and is never read as another message", "[codec]") {
    StringValue value;
    value.set_value(
        "pa\xC3\xAF"
        "d");
    CHECK(stored_and_read(value).value() == value.value());

    std::string bytes;
    idem::Codec<StringValue>::encode(value, bytes);
    CHECK_THROWS_AS(idem::decode_result<BytesValue>(idem::codec_id<BytesValue>(), bytes),
                    idem::CodecError);
    for (std::size_t size = 0; size < bytes.size(); ++size)
        CHECK_THROWS_AS(idem::decode_result<StringValue>(idem::codec_id<StringValue>(),
                                                         std::string_view(bytes).substr(0, size)),
                        idem::CodecError);
}

TEST_CASE("JSON that cannot be stored is completed without its value, and does not run again",
          "[codec][guard]") {
    const idem::MemoryStore store;
    idem::IdempotencyGuard guard(store);
    int runs = 0;
    const auto handler = [&] {
        ++runs;
        return json("\xFF not UTF-8");
    };
    CHECK(guard.run({"s", "k"}, {}, handler).executed());
    const auto repeat = guard.run({"s", "k"}, {}, handler);
    CHECK(repeat.replayed());
    CHECK_FALSE(repeat.has_value());
    CHECK(runs == 1);
}

}  // namespace codec_foreign_test
