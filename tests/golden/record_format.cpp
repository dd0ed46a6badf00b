// What outlives a process, pinned: a change here must be a decision, not an accident. The expected
// bytes and digests come from another implementation of the documented formats, not from this
// library's output.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <idem/codec.hpp>
#include <idem/record_codec.hpp>

#include "support/catch.hpp"

namespace {

using namespace std::string_literals;
using namespace std::string_view_literals;
using namespace std::chrono_literals;
using idem::detail::hex;

// 2024-01-01, an owner of 00 01 … 0f, and the fingerprint of {"a":1}.
constexpr idem::Instant t0{idem::Duration{1'704'067'200'000'000}};
constexpr auto digest = "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"sv;

const char* const issued_bytes =
    "c101000103000000070700202110d70d060810000102030405060708090a0b0c0d0e0f092101015a"
    "bd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f8620a0700202110d70d060e"
    "0700248c04ec0d060f0700c4b4e6d70d06c0fb6c7a";
const char* const running_bytes =
    "c10100020c010000010103020105050102060101070700202110d70d060810000102030405060708"
    "090a0b0c0d0e0f092101015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97"
    "f8620a0700202110d70d060b0700202110d70d060d0780e3ea11d70d060e078043c22feb0d061305"
    "006174203714056a6f622d315440b942";
const char* const released_bytes =
    "c101000300000001050101070700202110d70d060810000102030405060708090a0b0c0d0e0f0921"
    "01015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f8620a0700202110d7"
    "0d060b0700202110d70d060d0780e3ea11d70d060e070080f82deb0d061104627573791209747279"
    "206c617465721e647874";
const char* const succeeded_bytes =
    "c101000400000100020105030444332211040102050101070700202110d70d060810000102030405"
    "060708090a0b0c0d0e0f092101015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62"
    "276a97f8620a0700202110d70d060b0700202110d70d060c0740623010d70d060d0780e3ea11d70d"
    "060e070080f82deb0d0610c801000102030405060708090a0b0c0d0e0f101112131415161718191a"
    "1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142"
    "434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a"
    "6b6c6d6e6f707172737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e8f909192"
    "939495969798999a9b9c9d9e9fa0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9ba"
    "bbbcbdbebfc0c1c2c3c4c5c6c714056a6f622d3115ca986e";
const char* const failed_bytes =
    "c101000500000004050101060105070700202110d70d060810000102030405060708090a0b0c0d0e"
    "0f092101015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f8620a070020"
    "2110d70d060b0700202110d70d060c0740623010d70d060e0700605e8f3210061209657868617573"
    "746564023a6778";
const char* const unknown_bytes =
    "c101000600020003050101060101070700202110d70d060810000102030405060708090a0b0c0d0e"
    "0f092101015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f8620a070020"
    "2110d70d060b0700202110d70d060c0740623010d70d060d0780e3ea11d70d060e0700605e8f3210"
    "061103353034553f5f79";
const char* const forgotten_bytes =
    "c101000700000000070700202110d70d060810000102030405060708090a0b0c0d0e0f0a07002021"
    "10d70d060e0700a7b413d70d06ca122384";

idem::RecordHeader header_of(idem::State state) {
    idem::RecordHeader out;
    out.state = state;
    out.attempt = 1;
    out.fence = 1'704'067'200'000'000;
    for (std::size_t i = 0; i < 16; ++i) out.owner.bytes[i] = static_cast<char>(i);
    out.fingerprint = idem::Fingerprint::of_bytes(R"({"a":1})");
    out.created = out.started = t0;
    return out;
}

void check_both_ways(const idem::RecordHeader& header, const idem::Payload& payload,
                     const char* expected) {
    CHECK(hex(idem::encode_record(header, payload)) == expected);
    const auto read = idem::decode_record(*idem::detail::unhex(expected));
    REQUIRE(read);
    CHECK(read.header == header);
    CHECK(read.payload == payload);
}

}  // namespace

TEST_CASE("golden: an issued record", "[golden]") {
    auto header = header_of(idem::State::issued);
    header.attempt = 0;
    header.token = header.bound = true;
    header.started = {};
    header.validity_end = t0 + 1h;
    header.retention_end = t0 + 25h;
    check_both_ways(header, {}, issued_bytes);
}

TEST_CASE("golden: a running record", "[golden]") {
    auto header = header_of(idem::State::running);
    header.verify = header.takeover = true;
    header.policy = {idem::Orphan::verify, 3, 5};
    header.attempt = 2;
    header.crashes = 1;
    header.lease_end = t0 + 30s;
    header.retention_end = t0 + 30s + 24h;
    idem::Payload payload;
    payload.checkpoint = "\0at 7"sv;
    payload.resource = "job-1";
    check_both_ways(header, payload, running_bytes);
}

TEST_CASE("golden: a released record", "[golden]") {
    auto header = header_of(idem::State::released);
    header.failure = idem::FailureClass::retryable;
    header.lease_end = t0 + 30s;
    header.retention_end = t0 + 24h;
    idem::Payload payload;
    payload.failure_code = "busy";
    payload.failure_message = "try later";
    check_both_ways(header, payload, released_bytes);
}

TEST_CASE("golden: a succeeded record", "[golden]") {
    auto header = header_of(idem::State::succeeded);
    header.policy.max_crashes = 5;
    header.result = idem::ResultKind::value;
    header.codec = {0x11223344, 2};
    header.completed = t0 + 1s;
    header.lease_end = t0 + 30s;
    header.retention_end = t0 + 24h;
    idem::Payload payload;
    for (int i = 0; i < 200; ++i) payload.result += static_cast<char>(i);
    payload.resource = "job-1";
    check_both_ways(header, payload, succeeded_bytes);
}

TEST_CASE("golden: a dead letter", "[golden]") {
    auto header = header_of(idem::State::failed);
    header.failure = idem::FailureClass::exhausted;
    header.crashes = 5;
    header.completed = t0 + 1s;
    header.retention_end = t0 + 24h * 30;
    idem::Payload payload;
    payload.failure_message = "exhausted";
    check_both_ways(header, payload, failed_bytes);
}

TEST_CASE("golden: a held record", "[golden]") {
    auto header = header_of(idem::State::unknown);
    header.policy.orphan = idem::Orphan::hold;
    header.failure = idem::FailureClass::unknown;
    header.crashes = 1;
    header.completed = t0 + 1s;
    header.lease_end = t0 + 30s;
    header.retention_end = t0 + 24h * 30;
    idem::Payload payload;
    payload.failure_code = "504";
    check_both_ways(header, payload, unknown_bytes);
}

TEST_CASE("golden: a tombstone", "[golden]") {
    auto header = header_of(idem::State::forgotten);
    header.attempt = 0;
    header.fingerprint = {};
    header.started = {};
    header.retention_end = t0 + 1min;
    check_both_ways(header, {}, forgotten_bytes);
}

TEST_CASE("golden: stored keys", "[golden]") {
    const idem::Key key{"scope", "id\0{}"s, "tenant"};
    const idem::KeyView view(idem::Component::call, key);
    CHECK(hex(idem::encode_key(view)) == "630573636f70650674656e616e746964007b7d");
    CHECK(idem::key_hash(view) == "74ecdfa45fdb9c10");
    CHECK(idem::decode_key(*idem::detail::unhex("630573636f70650674656e616e746964007b7d")) == view);
    CHECK(hex(idem::encode_key({idem::Component::token, "s", "i", ""})) == "7401730069");
    for (const auto& [component, letter] :
         {std::pair{idem::Component::call, 'c'}, std::pair{idem::Component::token, 't'},
          std::pair{idem::Component::lease, 'l'}, std::pair{idem::Component::message, 'm'},
          std::pair{idem::Component::gate, 'g'}, std::pair{idem::Component::content, 'd'},
          std::pair{idem::Component::task, 'k'}})
        CHECK(idem::encode_key({component, "s", "i", ""}).front() == letter);
}

TEST_CASE("golden: content keys", "[golden]") {
    CHECK(idem::content_key("s", "abc") ==
          idem::Key{"s", "d19d84b7750c1e7b9eb7ce6773ca6a32d5d3dfa2edc0b7cf3ecbf5a603093429"});
    const std::vector<std::string> list = {"a", "b"};
    const std::vector<std::byte> bytes = {std::byte{0}, std::byte{255}};
    CHECK(idem::content_key("s", "abc", -1, 1U, true, 1.5, std::nullopt, list, bytes,
                            std::pair(7, "x"))
              .id == "a92ab5c5160bdf93fe112cc86d1aaa9fb64b29fa82d27f9dd997539f3c0ca4e6");
}

TEST_CASE("golden: fingerprints", "[golden]") {
    using idem::Fingerprint;
    const auto stored = [](const Fingerprint& print) { return hex(print.stored()); };
    CHECK(stored(Fingerprint{}).empty());
    CHECK(stored(Fingerprint::of_bytes(R"({"a":1})")) == "01" + std::string(digest));
    CHECK(stored(Fingerprint::of_bytes("")) ==
          "01e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(stored(Fingerprint::of("a", "bc")) ==
          "02f9e8ef62fcb62794df578391394d6a1e75d7eec576618c89a246c522420f8b47");
    CHECK(stored(Fingerprint::of("ab", "c")) ==
          "024fa8f4318800c351d760b8691fe8cb309aa97904dd372628b40a618ebc2afb3f");
    const auto keyed = [] { return idem::FingerprintHasher::keyed("0123456789abcdef"); };
    CHECK(stored(keyed().bytes(R"({"a":1})").finish()) ==
          "031c76fbb930d3aa8b1633728fae212c68ca68a6752bb319b98be6fe17e86cf5b8");
    CHECK(stored(keyed().field("a").field(1).finish()) ==
          "04a741027a0ec5ef65eab239efc6eebdf820a428b22410b33f727f750115ceefc3");
}

namespace {

enum class Colour : unsigned char { red = 1 };

struct Named {
    std::string text{};
    int number = 0;
    static constexpr auto idem_fields = std::tuple{&Named::text, &Named::number};
};

struct Receipt {
    int number = 0;
    static constexpr auto idem_name = "shop.Receipt";
    static constexpr auto idem_fields = std::tuple{&Receipt::number};
};

template <class T>
std::string encoded(const T& value) {
    std::string out;
    idem::Codec<T>::encode(value, out);
    return hex(out);
}

}  // namespace

TEST_CASE("golden: codec tags", "[golden]") {
    using idem::Codec;
    CHECK(Codec<std::string>::tag == 0xbde64e3eU);
    CHECK(Codec<std::vector<std::byte>>::tag == 0x65b1d004U);
    CHECK(Codec<std::monostate>::tag == 0x48b5725fU);
    CHECK(Codec<int>::tag == 0xfa09c935U);
    CHECK(Codec<std::uint64_t>::tag == 0x5bbce744U);
    CHECK(Codec<bool>::tag == 0x9cd1579cU);
    CHECK(Codec<double>::tag == 0xbef5e8a5U);
    CHECK(Codec<Colour>::tag == 0x5983a968U);
    CHECK(Codec<std::optional<int>>::tag == 0xd961e78fU);
    CHECK(Codec<std::vector<std::string>>::tag == 0x0b95562fU);
    CHECK(Codec<std::tuple<std::string, int>>::tag == 0x87302cd7U);
    CHECK(Codec<std::pair<std::string, int>>::tag == 0x97e28bb7U);
    CHECK(Codec<Named>::tag == 0x0cd2dcb9U);
    CHECK(Codec<Receipt>::tag == 0xaf2faaa3U);
}

TEST_CASE("golden: codec bytes", "[golden]") {
    CHECK(encoded("a\0b"s) == "610062");
    CHECK(encoded(std::vector{std::byte{0}, std::byte{255}}) == "00ff");
    CHECK(encoded(std::monostate{}).empty());
    CHECK(encoded(-2) == "feffffff");
    CHECK(encoded(std::uint64_t{1} << 40U) == "0000000000010000");
    CHECK(encoded(true) == "01");
    CHECK(encoded(1.5) == "000000000000f83f");
    CHECK(encoded(Colour::red) == "01");
    CHECK(encoded(std::optional<int>{}).empty());
    CHECK(encoded(std::optional<int>{7}) == "010407000000");
    CHECK(encoded(std::vector<std::string>{"a", ""}) == "0101610100");
    CHECK(encoded(std::tuple<std::string, int>{"a", 7}) == "010161010407000000");
    CHECK(encoded(std::pair<std::string, int>{"a", 7}) == "010161010407000000");
    CHECK(encoded(Named{"a", 7}) == "010161010407000000");
}
