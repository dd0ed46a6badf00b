// Goal: whoever has the store has none of what callers wrote, cannot change or move it unnoticed,
// and no lack of a key leads to a rerun. Method: the store beneath is read and written directly.

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <openssl/evp.h>

#include <idem/any_store.hpp>
#include <idem/layered/encrypted.hpp>
#include <idem/token.hpp>

#include "support/catch.hpp"
#include "support/features.hpp"
#include "support/requests.hpp"

using namespace idem_test;
using namespace std::chrono_literals;

namespace encrypted_store_test {

using idem::ClaimKind;
using idem::EncryptionKeys;
using idem::Fence;
using idem::FinishKind;
using idem::Key;
using idem::RecordView;
using idem::State;
using idem::Trouble;
using Encrypted = idem::EncryptedStore<SpyStore>;

const Key the_key = key();  // requests only refer to their keys

std::string secret(char c) {
    return std::string(32, c);
}
EncryptionKeys only(std::uint32_t id) {
    return {id, {{id, secret(static_cast<char>('a' + id))}}};
}

const std::string marker = "what nobody else may read";
std::string all_bytes() {
    std::string out;
    for (int c = 0; c < 256; ++c) out += static_cast<char>(c);
    return out;
}

/// The store beneath on a clock that stands still, and the encrypted one on it.
struct Place {
    Stage stage{};
    SpyStore& inner = stage.store;
    Encrypted store{inner, only(1)};

    [[nodiscard]] Encrypted with(EncryptionKeys keys) const { return {inner, std::move(keys)}; }
    [[nodiscard]] RecordView raw(const Key& k = the_key) {
        return idem::find_one(inner, view_of(k)).record.value();
    }
    /// A claim through the store without encryption. @return its fence.
    Fence take(const Key& k, std::uint64_t owner) {
        const auto reply = idem::claim_one(inner, claim_of(k, owner));
        REQUIRE(reply.kind == ClaimKind::acquired);
        return reply.fence;
    }
};

template <class Store>
Fence acquire(Store& store, std::uint64_t owner, const Key& k = the_key) {
    const auto reply = idem::claim_one(store, claim_of(k, owner));
    REQUIRE_FALSE(reply.trouble);
    REQUIRE(reply.kind == ClaimKind::acquired);
    return reply.fence;
}
template <class Store>
void finish(Store& store, const idem::FinishRequest& request) {
    const auto reply = idem::finish_one(store, request);
    REQUIRE_FALSE(reply.trouble);
    REQUIRE_FALSE(reply.lost);
}
idem::FinishRequest fail_of(const Key& k, std::uint64_t owner, Fence fence, std::string_view code,
                            std::string_view message, FinishKind kind = FinishKind::fail) {
    auto out = complete_of(k, owner_of(owner), fence, {});
    out.kind = kind;
    out.result_kind = idem::ResultKind::none;
    out.failure = idem::FailureClass::unknown;
    out.failure_code = code;
    out.failure_message = message;
    return out;
}
template <class Store>
void note(Store& store, std::uint64_t owner, Fence fence, std::string_view checkpoint,
          const Key& k = the_key) {
    const auto reply =
        idem::renew_one(store, {view_of(k), owner_of(owner), fence, 30s, checkpoint, "job-1"});
    REQUIRE_FALSE(reply.trouble);
    REQUIRE_FALSE(reply.lost);
}

bool schema(const Trouble& trouble, const std::string& names = "") {
    return trouble.kind == Trouble::Kind::schema &&
           trouble.message.find(names) != std::string::npos;
}

/// What the three encrypted parts of a record are written by, read back from, and called.
struct PartUnderTest {
    const char* name;
    /// Brings `k` to where the part is on record, through any store.
    void (*write)(SpyStore& store, const Key& k, std::uint64_t owner, std::string_view bytes);
    std::string idem::Payload::*part;
};
const std::array<PartUnderTest, 3> parts{{
    {"result",
     [](SpyStore& s, const Key& k, std::uint64_t owner, std::string_view bytes) {
         finish(s, complete_of(k, owner_of(owner), acquire(s, owner, k), bytes));
     },
     &idem::Payload::result},
    {"failure",
     [](SpyStore& s, const Key& k, std::uint64_t owner, std::string_view bytes) {
         finish(s, fail_of(k, owner, acquire(s, owner, k), "", bytes));
     },
     &idem::Payload::failure_message},
    {"checkpoint",
     [](SpyStore& s, const Key& k, std::uint64_t owner, std::string_view bytes) {
         auto release = release_of(k, owner_of(owner), acquire(s, owner, k));
         release.checkpoint = bytes;
         finish(s, release);
     },
     &idem::Payload::checkpoint},
}};
/// The envelope of such a part, written by the encrypted store.
std::string sealed(const PartUnderTest& part, const Key& k, std::string_view plain) {
    Place place;
    const Fence fence = acquire(place.store, 1, k);
    auto complete = complete_of(k, owner_of(1), fence, plain);
    auto release = release_of(k, owner_of(1), fence);
    release.checkpoint = plain;
    const std::string name = part.name;
    finish(place.store, name == "result"    ? complete
                        : name == "failure" ? fail_of(k, 1, fence, "", plain)
                                            : release);
    return place.raw(k).payload.*part.part;
}
/// What a claim and a find say to bytes that stand in the place of a part.
void refused(const PartUnderTest& part, const Key& k, std::string_view bytes,
             const std::string& names = "") {
    Place place;
    part.write(place.inner, k, 1, bytes);
    const auto found = idem::find_one(place.store, view_of(k));
    CHECK(schema(found.trouble, part.name));
    CHECK(schema(found.trouble, names));
    CHECK_FALSE(found.record);
    const auto reply = idem::claim_one(place.store, claim_of(k, 2));
    CHECK(schema(reply.trouble, names));
    CHECK_FALSE(reply.trouble.may_have_applied);
    CHECK(reply.kind == idem::ClaimReply{}.kind);
    CHECK((reply.result.empty() && reply.checkpoint.empty() && reply.failure.message.empty()));
    CHECK(place.raw(k).header.state != State::running);
}

TEST_CASE("every part comes back as it was, and the store beneath has none of it", "[encrypted]") {
    for (const auto& plain : {marker, all_bytes(), std::string(100'000, 'x') + marker}) {
        Place place;
        auto& store = place.store;
        const auto hidden = [&] {
            const auto payload = place.raw().payload;
            for (const auto* part : {&payload.result, &payload.failure_code,
                                     &payload.failure_message, &payload.checkpoint}) {
                CHECK(part->find(plain.substr(plain.size() - 20)) == std::string::npos);
            }
            CHECK(payload.resource == "job-1");  // stays readable
        };
        const Fence fence = acquire(store, 1);
        note(store, 1, fence, plain);
        hidden();
        CHECK(place.raw().payload.checkpoint.size() > plain.size());
        CHECK(idem::find_one(store, view_of(the_key)).record->payload.checkpoint == plain);
        finish(store, fail_of(the_key, 1, fence, "code", marker, FinishKind::quarantine));
        hidden();
        CHECK(place.raw().payload.failure_code.empty());
        const auto held = idem::claim_one(store, claim_of(the_key, 2));
        CHECK(held.kind == ClaimKind::unknown);
        CHECK(held.failure == idem::Failure{idem::FailureClass::unknown, "code", marker});
        CHECK(idem::find_one(store, view_of(the_key)).record->payload.failure_message == marker);
        idem::ResolveRequest resolve{view_of(the_key),        fence,  true, 1h,
                                     idem::ResultKind::value, {7, 1}, plain};
        CHECK(idem::resolve_one(store, resolve).resolved);
        hidden();
        const auto replayed = idem::claim_one(store, claim_of(the_key, 2));
        CHECK(replayed.kind == ClaimKind::completed);
        CHECK(replayed.result == plain);
        CHECK(replayed.resource == "job-1");
        CHECK(store.list({}).records.at(0).payload.result == plain);
    }
}

TEST_CASE("the failure of a release and of a final end come back", "[encrypted]") {
    Place place;
    auto release = release_of(the_key, owner_of(1), acquire(place.store, 1));
    release.failure_code = "busy";
    release.failure_message = marker;
    finish(place.store, release);
    CHECK(place.raw().payload.failure_message.find(marker) == std::string::npos);
    CHECK(idem::find_one(place.store, view_of(the_key)).record->failure() ==
          idem::Failure{idem::FailureClass::retryable, "busy", marker});
    finish(place.store, fail_of(the_key, 2, acquire(place.store, 2), "bad", marker));
    CHECK(idem::claim_one(place.store, claim_of(the_key, 3)).failure ==
          idem::Failure{idem::FailureClass::final, "bad", marker});
}

TEST_CASE("a complete hands the store no failure and a fail no result", "[encrypted]") {
    Place place;
    std::vector<std::string> seen;
    place.inner.on_finish([&](std::span<const idem::FinishRequest> requests) {
        for (const auto& r : requests)
            for (const auto part : {r.result, r.failure_code, r.failure_message})
                seen.emplace_back(part);
        return Way::pass;
    });
    for (const auto kind : {FinishKind::complete, FinishKind::fail}) {
        const Key k = key(to_string(kind));
        auto request = fail_of(k, 1, acquire(place.store, 1, k), marker, marker, kind);
        request.result_kind = idem::ResultKind::value;
        request.result = marker;
        finish(place.store, request);
    }
    REQUIRE(seen.size() == 6);
    for (const auto& part : seen) CHECK(part.find(marker) == std::string::npos);
}

TEST_CASE("an empty result is a value, and is sealed as one", "[encrypted]") {
    Place place;
    finish(place.store, complete_of(the_key, owner_of(1), acquire(place.store, 1), ""));
    CHECK_FALSE(place.raw().payload.result.empty());
    const auto reply = idem::claim_one(place.store, claim_of(the_key, 2));
    CHECK(reply.result_kind == idem::ResultKind::value);
    CHECK(reply.result.empty());
    refused(parts[0], the_key, "");  // the result was taken out
}

TEST_CASE("a result that was not kept needs no key", "[encrypted]") {
    Place place;
    auto request = complete_of(the_key, owner_of(1), acquire(place.store, 1), "");
    request.result_kind = idem::ResultKind::too_large;
    finish(place.store, request);
    auto other = place.with(only(2));
    const auto reply = idem::claim_one(other, claim_of(the_key, 2));
    CHECK(reply.kind == ClaimKind::completed);
    CHECK(reply.result_kind == idem::ResultKind::too_large);
}

TEST_CASE("whoever takes over opens the checkpoint of the lower fence", "[encrypted]") {
    Place place;
    const Fence first = acquire(place.store, 1);
    note(place.store, 1, first, marker);
    place.stage.clock.advance(31s);
    const auto taken = idem::claim_one(place.store, claim_of(the_key, 2));
    CHECK(taken.takeover);
    CHECK(taken.fence > first);
    CHECK(taken.checkpoint == marker);
}

TEST_CASE("an old key reads, the new one writes, and without it nothing runs", "[encrypted]") {
    Place place;
    finish(place.store, complete_of(the_key, owner_of(1), acquire(place.store, 1), marker));
    auto both = place.with({2, {{1, secret('b')}, {2, secret('c')}}});
    CHECK(idem::claim_one(both, claim_of(the_key, 2)).result == marker);
    const Key later = key("later");
    finish(both, complete_of(later, owner_of(1), acquire(both, 1, later), "new"));
    auto fresh = place.with(only(2));
    CHECK(idem::claim_one(fresh, claim_of(later, 2)).result == "new");

    const auto before = place.raw();
    idem::IdempotencyGuard<Encrypted> guard(fresh, {.events = place.stage.log.observer()});
    bool ran = false;
    CHECK_THROWS_AS(guard.run(the_key, {}, [&] { ran = true; }), idem::SchemaError);
    CHECK_FALSE(ran);
    CHECK(place.stage.log.kinds() == "schema_error");
    CHECK(place.stage.log.all().at(0).detail.find("key 1,") != std::string::npos);
    CHECK(place.raw().payload == before.payload);
    CHECK(place.raw().header == before.header);
    CHECK(schema(idem::claim_one(place.store, claim_of(later, 3)).trouble, "key 2,"));
    auto other_bytes = place.with({1, {{1, secret('x')}}});
    CHECK(schema(idem::claim_one(other_bytes, claim_of(the_key, 3)).trouble, "key 1:"));
}

TEST_CASE("no byte of an envelope can be changed, taken away or added", "[encrypted]") {
    for (const auto& part : parts) {
        const std::string envelope = sealed(part, the_key, "plain");
        REQUIRE(envelope.size() > 41);
        for (std::size_t i = 0; i < envelope.size(); ++i) {
            CAPTURE(part.name, i);
            std::string changed = envelope;
            changed[i] = static_cast<char>(changed[i] ^ 1);
            refused(part, the_key, changed);
            if (i > 0) refused(part, the_key, envelope.substr(0, i));
        }
        refused(part, the_key, envelope + "x");
    }
}

TEST_CASE("an envelope opens nowhere but in its own place", "[encrypted]") {
    for (const auto& part : parts) {
        CAPTURE(part.name);
        for (const auto& other : parts)
            if (part.name != other.name)
                refused(part, the_key, sealed(other, the_key, "plain"), "key 1");
        for (const Key& k : {key("43"), Key{"order.placed", "42", "acme"}, Key{"order.place", "42"},
                             Key{"order.plac", "42", "eacme"}})
            refused(part, the_key, sealed(part, k, "plain"), "key 1");
    }
}

TEST_CASE("a result is not read by another codec than wrote it", "[encrypted]") {
    const std::string envelope = sealed(parts[0], the_key, marker);  // of codec 0, version 0
    for (const idem::CodecId codec : {idem::CodecId{8, 0}, idem::CodecId{0, 2}}) {
        Place place;
        auto request = complete_of(the_key, owner_of(1), place.take(the_key, 1), envelope);
        request.codec = codec;
        finish(place.inner, request);
        CHECK(schema(idem::claim_one(place.store, claim_of(the_key, 3)).trouble, "key 1"));
    }
    Place place;
    parts[0].write(place.inner, the_key, 1, envelope);
    CHECK(idem::claim_one(place.store, claim_of(the_key, 3)).result == marker);
}

TEST_CASE("what is not encrypted is never replayed", "[encrypted]") {
    for (const auto& part : parts) {
        refused(part, the_key, "plain", "not encrypted");
        refused(part, the_key, std::string(100, 'p'), "not encrypted");
        refused(part, the_key, "\xE1" + std::string(100, 'p'));
    }
    Place place;
    finish(place.inner, fail_of(the_key, 1, place.take(the_key, 1), "code", ""));
    CHECK(schema(idem::claim_one(place.store, claim_of(the_key, 2)).trouble, "not encrypted"));
}

TEST_CASE("a claim whose checkpoint does not open is given back", "[encrypted]") {
    Place place;
    note(place.store, 1, acquire(place.store, 1), marker);
    place.stage.clock.advance(31s);
    auto other = place.with(only(2));
    std::vector<idem::FinishRequest> releases;
    place.inner.on_finish([&](std::span<const idem::FinishRequest> requests) {
        releases.assign(requests.begin(), requests.end());
        return Way::pass;
    });
    const Key neighbour = key("other");
    const std::vector<idem::ClaimRequest> batch{claim_of(neighbour, 2), claim_of(the_key, 3)};
    std::vector<idem::ClaimReply> replies(2);
    other.claim(batch, replies);
    CHECK(replies[0].kind == ClaimKind::acquired);  // its neighbour takes no harm
    CHECK_FALSE(replies[0].trouble);
    CHECK(schema(replies[1].trouble, "key 1,"));
    CHECK_FALSE(replies[1].trouble.may_have_applied);
    REQUIRE(releases.size() == 1);
    CHECK(releases[0].owner == owner_of(3));
    CHECK(releases[0].fence != 0);
    CHECK(place.raw().header.state == State::released);
    CHECK(place.raw().header.attempt == 1);  // uncounted
    const auto next = idem::claim_one(place.store, claim_of(the_key, 4));
    CHECK(next.kind == ClaimKind::acquired);
    CHECK(next.checkpoint == marker);
    CHECK(next.attempt == 2);
}

TEST_CASE("a claim that could not be given back is the caller's to give up", "[encrypted]") {
    Place place;
    note(place.store, 1, acquire(place.store, 1), marker);
    place.stage.clock.advance(31s);
    auto other = place.with(only(2));
    bool first = true;
    place.inner.on_finish(
        [&](auto) { return std::exchange(first, false) ? Way::refuse : Way::pass; });
    CHECK(idem::claim_one(other, claim_of(the_key, 3)).trouble.may_have_applied);
    place.stage.clock.advance(31s);
    first = true;
    idem::IdempotencyGuard<Encrypted> guard(other);
    CHECK_THROWS_AS(guard.run(the_key, {}, [] {}), idem::SchemaError);
    CHECK(eventually([&] { return place.raw().header.state == State::released; }));
}

TEST_CASE("a long failure is cut before it is sealed, and stays readable", "[encrypted]") {
    Place place;
    const std::string code(100, 'c');
    const std::string message(5000, 'm');
    finish(place.store, fail_of(the_key, 1, acquire(place.store, 1), code, message));
    CHECK(place.raw().payload.failure_message.size() <= idem::Failure::message_bytes_max);
    const auto failure = idem::claim_one(place.store, claim_of(the_key, 2)).failure;
    CHECK(failure.code == code.substr(0, 64));
    CHECK(failure.message == message.substr(0, Encrypted::message_bytes_max));
    CHECK(failure.message.size() > 3900);
}

TEST_CASE("the same plain text never gives the same envelope", "[encrypted]") {
    std::set<std::string> nonces;
    std::set<std::string> tails;
    Place place;
    const Fence fence = acquire(place.store, 1);
    for (int i = 0; i < 200; ++i) {
        note(place.store, 1, fence, marker);
        const auto envelope = place.raw().payload.checkpoint;
        nonces.insert(envelope.substr(13, 12));
        tails.insert(envelope.substr(25));
    }
    CHECK(nonces.size() == 200);
    CHECK(tails.size() == 200);
}

/// The envelope, made by OpenSSL from what the documentation says alone.
std::string by_hand(const std::string& plain, const std::string& aes_key) {
    std::string out("\xE1\x01\x00\x00\x00", 5);                 // version, key id
    out += std::string("\x39\x30\x00\x00\x00\x00\x00\x00", 8);  // fence 12345
    std::string associated = out + "r";                         // of a result
    associated += std::string("\x07\x00\x00\x00\x02", 5);       // codec 7, version 2
    associated +=
        "c\x0border.place\x04"
        "acme42";  // the encoded key
    const std::string nonce = "twelve bytes";
    const auto bytes = [](const std::string& text) {
        return reinterpret_cast<const unsigned char*>(text.data());
    };
    std::string text(plain.size(), '\0');
    std::string tag(16, '\0');
    int size = 0;
    const std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> context(
        EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free);
    auto* const c = context.get();
    const auto to = [](std::string& s) { return reinterpret_cast<unsigned char*>(s.data()); };
    const bool done =
        EVP_EncryptInit_ex(c, EVP_aes_256_gcm(), nullptr, bytes(aes_key), bytes(nonce)) == 1 &&
        EVP_EncryptUpdate(c, nullptr, &size, bytes(associated),
                          static_cast<int>(associated.size())) == 1 &&
        EVP_EncryptUpdate(c, to(text), &size, bytes(plain), static_cast<int>(plain.size())) == 1 &&
        EVP_EncryptFinal_ex(c, to(text) + size, &size) == 1 &&
        EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_GET_TAG, 16, tag.data()) == 1;
    REQUIRE(done);
    return out + nonce + text + tag;
}

TEST_CASE("the envelope is what its description says", "[encrypted]") {
    Place place;
    const std::string envelope = by_hand(marker, secret('b'));
    auto request = complete_of(the_key, owner_of(1), place.take(the_key, 1), envelope);
    request.codec = {7, 2};
    finish(place.inner, request);
    const auto reply = idem::claim_one(place.store, claim_of(the_key, 2));
    CHECK(reply.trouble.message == "");
    CHECK(reply.result == marker);
}

TEST_CASE("a listing leaves out what does not open, shows the rest, and says so", "[encrypted]") {
    Place place;
    auto other = place.with(only(2));
    for (const auto* id : {"a", "b", "c"}) {
        auto& store = *id == 'b' ? other : place.store;
        finish(store, complete_of(key(id), owner_of(1), acquire(store, 1, key(id)), id));
    }
    const auto page = place.store.list({});
    CHECK(schema(page.trouble, "key 2,"));
    std::set<std::string> results;
    for (const auto& record : page.records) results.insert(record.payload.result);
    CHECK(results == std::set<std::string>{"a", "c"});
    CHECK(idem::forget_one(place.store, {view_of(key("b")), 30s}).existed);
    CHECK_FALSE(place.store.list({}).trouble);
}

TEST_CASE("keys of the wrong size, twice, or not there are refused by id", "[encrypted]") {
    using Catch::Matchers::Contains;
    CHECK_THROWS_AS((EncryptionKeys{1, {{1, std::string(31, 'k')}}}), idem::UsageError);
    CHECK_THROWS_WITH((EncryptionKeys{1, {{1, secret('a')}, {5, std::string(33, 'k')}}}),
                      Contains("key 5 has 33 bytes"));
    CHECK_THROWS_WITH((EncryptionKeys{6, {{1, secret('a')}}}), Contains("key 6"));
    CHECK_THROWS_WITH((EncryptionKeys{1, {{1, secret('a')}, {1, secret('b')}}}),
                      Contains("key 1 is there twice"));
    CHECK_THROWS_AS((EncryptionKeys{1, {}}), idem::UsageError);
    CHECK(EncryptionKeys{4, {{1, secret('a')}, {4, secret('b')}}}.writing() == 4);
}

TEST_CASE("the bytes of a key are wiped when it goes", "[encrypted]") {
    using idem::detail::SecretBytes;
    alignas(SecretBytes) std::array<unsigned char, sizeof(SecretBytes)> room{};
    auto* const held = new (room.data()) SecretBytes(secret('k'));
    CHECK(*held->data() == 'k');
    held->~SecretBytes();
    const volatile unsigned char* at = room.data();
    int left = 0;
    for (std::size_t i = 0; i < room.size(); ++i) left += at[i] == 'k' ? 1 : 0;
    CHECK(left == 0);
}

TEST_CASE("encrypted: notices and the time allowed are those of the store beneath", "[encrypted]") {
    struct Telling : idem::MemoryStore {
        Telling() : idem::MemoryStore(idem::MemoryOptions{}) {}
        [[nodiscard]] idem::Duration time_allowed() const { return 3s; }
        [[nodiscard]] std::shared_ptr<void> watch(const idem::KeyView& k,
                                                  const std::function<void()>& notice) {
            return k.id == "42" ? std::make_shared<std::function<void()>>(notice) : nullptr;
        }
    };
    idem::AnyStore told(idem::EncryptedStore<Telling>(Telling(), only(1)));
    CHECK(told.time_allowed() == 6s);  // a claim may have to be given back
    CHECK(told.watch(view_of(the_key), [] {}) != nullptr);
    CHECK(told.watch(view_of(key("none")), [] {}) == nullptr);
    idem::AnyStore untold(idem::EncryptedStore<idem::MemoryStore>(idem::MemoryStore(), only(1)));
    CHECK(untold.watch(view_of(the_key), [] {}) == nullptr);
    CHECK(untold.time_allowed() == 0s);
}

TEST_CASE("guard, tickets and tokens work over an encrypted store", "[encrypted]") {
    Place place;
    idem::IdempotencyGuard<Encrypted> guard(place.store);
    CHECK(guard.run(the_key, {}, [] { return marker; }).executed());
    CHECK(guard.run(the_key, {}, [] { return std::string(); }).value() == marker);
    auto claim = claimed<int>(guard.claim<int>(key("two"), {}));
    claim.execution().checkpoint(marker);
    const auto ticket = std::move(claim).detach(1h);
    auto resumed = guard.resume<int>(ticket);
    CHECK(resumed.execution().checkpoint() == marker);
    CHECK(std::move(resumed).complete(2).recorded());
    CHECK_THROWS_AS(guard.run(key("bad"), {}, [] { throw idem::FinalError("bad_codec", marker); }),
                    idem::FinalError);
    CHECK(guard.run(key("bad"), {}, [] {}).failure().message == marker);
}

}  // namespace encrypted_store_test
