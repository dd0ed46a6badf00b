// Field cases of fingerprints and of telling another request, asked of the guard over the memory
// store. None is left out; of R44 the library has two modes: bytes as they are, and typed fields.

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/field.hpp"

namespace field_fingerprint_test {

using namespace std::string_literals;
using namespace std::string_view_literals;
using idem::Fingerprint;
using idem::OutcomeKind;
using idem_test::Bench;
using idem_test::for_ever;
using idem_test::Holder;
using idem_test::field_key;

// What a second request under a key gets, once the first has run.
OutcomeKind second(const Fingerprint& first_request, const Fingerprint& second_request) {
    Bench b;
    auto guard = b.guard();
    REQUIRE(guard.run(field_key("pair"), first_request, [] { return 1; }).executed());
    return guard.run(field_key("pair"), second_request, [] { return 2; }).kind();
}

TEST_CASE("R44: bytes in another order are another request; fields of a map are the same one") {
    const auto raw = [](std::string_view json) { return Fingerprint::of_bytes(json); };
    CHECK(second(raw(R"({"a":1,"b":2})"), raw(R"({"b":2,"a":1})")) == OutcomeKind::mismatch);
    CHECK(second(raw(R"({"a":1,"b":2})"), raw(R"({"a":1,"b":2})")) == OutcomeKind::replayed);

    using Fields = std::map<std::string, int>;
    const auto fields = [](const Fields& f) { return Fingerprint::of(f); };
    CHECK(second(fields({{"a", 1}, {"b", 2}}), fields({{"b", 2}, {"a", 1}})) ==
          OutcomeKind::replayed);
    CHECK(second(fields({{"a", 1}, {"b", 2}}), fields({{"a", 2}, {"b", 1}})) ==
          OutcomeKind::mismatch);
}

TEST_CASE("R44: how a request was fingerprinted is on record, and the two ways never agree") {
    Bench b;
    auto guard = b.guard();
    const auto bytes = Fingerprint::of_bytes("x");
    const auto fields = Fingerprint::of("x"sv);
    (void)guard.run(field_key("R44.bytes"), bytes, [] { return 1; });
    (void)guard.run(field_key("R44.fields"), fields, [] { return 1; });
    CHECK(b.find(field_key("R44.bytes"))->header.fingerprint.algorithm() ==
          Fingerprint::Algorithm::sha256_bytes);
    CHECK(b.find(field_key("R44.fields"))->header.fingerprint.algorithm() ==
          Fingerprint::Algorithm::sha256_fields);
    CHECK(second(bytes, fields) == OutcomeKind::mismatch);
}

TEST_CASE("R46: numbers that a double cannot tell apart stay two requests") {
    CHECK(second(Fingerprint::of_bytes("9007199254740992.0"),
                 Fingerprint::of_bytes("9007199254740993.0")) == OutcomeKind::mismatch);
    CHECK(second(Fingerprint::of("9007199254740992.0"sv),
                 Fingerprint::of("9007199254740993.0"sv)) == OutcomeKind::mismatch);
    CHECK(second(Fingerprint::of(std::int64_t{9007199254740992}),
                 Fingerprint::of(std::int64_t{9007199254740993})) == OutcomeKind::mismatch);
    CHECK(second(Fingerprint::of(std::numeric_limits<std::uint64_t>::max()),
                 Fingerprint::of(std::numeric_limits<std::uint64_t>::max() - 1)) ==
          OutcomeKind::mismatch);
    const double x = 0.1;
    CHECK(second(Fingerprint::of(x), Fingerprint::of(std::nextafter(x, 1.0))) ==
          OutcomeKind::mismatch);
}

TEST_CASE("R47: which values are the same request, and which are not") {
    const std::optional<std::string> null;
    const std::optional<int> none;
    const std::vector<std::pair<const char*, Fingerprint>> different{
        {"1", Fingerprint::of(1)},
        {"1u", Fingerprint::of(1U)},
        {"1.0", Fingerprint::of(1.0)},
        {"text 1", Fingerprint::of("1"sv)},
        {"text 1.0", Fingerprint::of("1.0"sv)},
        {"true", Fingerprint::of(true)},
        {"false", Fingerprint::of(false)},
        {"0", Fingerprint::of(0)},
        {"null", Fingerprint::of(null)},
        {"empty text", Fingerprint::of(""sv)},
        {"null, null", Fingerprint::of(null, none)},
        {"empty list", Fingerprint::of(std::vector<int>{})},
        {"no bytes", Fingerprint::of_bytes("")},
        {"bytes 1", Fingerprint::of_bytes("1")},
    };
    for (std::size_t i = 0; i < different.size(); ++i) {
        for (std::size_t j = 0; j < i; ++j) {
            INFO(different[i].first << " and " << different[j].first);
            CHECK_FALSE(different[i].second == different[j].second);
        }
    }
    CHECK(second(Fingerprint::of(1), Fingerprint::of(1.0)) == OutcomeKind::mismatch);
    CHECK(second(Fingerprint::of("a"sv, null), Fingerprint::of("a"sv)) == OutcomeKind::mismatch);

    CHECK(Fingerprint::of(0.0) == Fingerprint::of(-0.0));
    CHECK(Fingerprint::of(1.5F) == Fingerprint::of(1.5));
    CHECK(Fingerprint::of(std::int8_t{1}) == Fingerprint::of(std::int64_t{1}));
    CHECK(Fingerprint::of(null) == Fingerprint::of(none));
    CHECK(Fingerprint::of(std::optional(3)) == Fingerprint::of(3));
    CHECK(Fingerprint::of("a"s) == Fingerprint::of("a"sv));
}

TEST_CASE("R49: the fingerprint outlives completion and the guard that made it") {
    Bench b;
    const auto request = Fingerprint::of_bytes("request");
    {
        (void)b.guard().run(field_key("R49"), request, [] { return 1; });
    }
    idem::IdempotencyGuard cold(idem::MemoryStore{b.memory});
    CHECK(cold.run(field_key("R49"), request, [] { return 2; }).value() == 1);
    CHECK(cold.run(field_key("R49"), Fingerprint::of_bytes("changed"), [] { return 2; }).kind() ==
          OutcomeKind::mismatch);
    CHECK(cold.run(field_key("R49"), {}, [] { return 2; })
              .replayed());  // none conflicts with nothing
}

TEST_CASE("R49: a failure and a held record keep their fingerprint too") {
    Bench b;
    auto guard = b.guard();
    const auto request = Fingerprint::of_bytes("request");
    const auto other = Fingerprint::of_bytes("other");
    const auto fails = [&]() -> int { throw idem::FinalError("422", "no"); };
    const auto vanishes = [&]() -> int { throw idem::UnknownOutcomeError("504"); };
    CHECK_THROWS(guard.run(field_key("R49.failed"), request, fails));
    CHECK_THROWS(guard.run(field_key("R49.held"), request, vanishes));
    for (const auto* id : {"R49.failed", "R49.held"})
        CHECK(guard.run(field_key(id), other, [] { return 1; }).kind() == OutcomeKind::mismatch);
    CHECK(guard.run(field_key("R49.failed"), request, [] { return 1; }).kind() ==
          OutcomeKind::failed);
    CHECK(guard.run(field_key("R49.held"), request, [] { return 1; }).kind() ==
          OutcomeKind::unknown);
}

TEST_CASE("R52: another request under a running key is a mismatch at once, and does not wait") {
    Bench b;
    auto guard = b.guard({.wait = for_ever});
    const auto p = Fingerprint::of_bytes("P");
    const auto q = Fingerprint::of_bytes("Q");
    const auto outcome = guard.run(field_key("R52"), p, [&] {
        const auto before = b.store.claims();
        const auto other = guard.run(field_key("R52"), q, [] { return 2; });
        CHECK(other.kind() == OutcomeKind::mismatch);
        CHECK(b.store.claims() == before + 1);
        return 1;
    });
    CHECK(outcome.recorded());
    CHECK(b.events.count(idem::EventKind::in_progress) == 0);

    Holder dead(b.memory, field_key("R52.lapsed"));
    (void)dead.claim({.fingerprint = p});
    b.clock.advance(idem_test::lease);  // nor may another request take over
    CHECK(guard.run(field_key("R52.lapsed"), q, [] { return 2; }).kind() == OutcomeKind::mismatch);
    CHECK(guard.run(field_key("R52.lapsed"), p, [] { return 1; }).takeover());
}

TEST_CASE("R53: a request that was rolled back may be corrected; then the first is the conflict") {
    Bench b;
    auto guard = b.guard();
    const auto p = Fingerprint::of_bytes("P");
    const auto q = Fingerprint::of_bytes("Q");
    const auto fails = [](idem::Execution& execution) -> int {
        execution.checkpoint("half of P");
        throw std::runtime_error("no");
    };
    CHECK_THROWS(guard.run(field_key("R53"), p, fails));
    const auto corrected = guard.run(field_key("R53"), q, [](idem::Execution& execution) {
        CHECK(execution.checkpoint().empty());  // Q must not go on from P's half-done work
        return 2;
    });
    CHECK(corrected.executed());
    CHECK(corrected.attempt() == 2);
    CHECK(guard.run(field_key("R53"), p, [] { return 1; }).kind() == OutcomeKind::mismatch);
    CHECK(guard.run(field_key("R53"), q, [] { return 1; }).value() == 2);
}

TEST_CASE("R55: no two ways to join parts give one key or one fingerprint") {
    using Parts = std::pair<std::string, std::string>;
    const std::vector<Parts> all{
        {"a", "bc"},
        {"ab", "c"},
        {"abc", ""},
        {"", "abc"},
        {"a:b", "c"},
        {"a", "b:c"},
        {"a\0"s, "b"},
        {"a", "\0b"s},
        {"a\0b"s, "c"},
        {"a", "\0"s},
        {"a", "\0\0"s},
        {"\0"s, "\0"s},
        {"\0\0"s, "\0a"s},
        {"a\x01"s, "bc"},
        {"a/b", "c"},
        {"a", "/b/c"},
        {"{a}", "b"},
        {"{a", "}b"},
        {"a\xFF"s, "b"},
        {"a",
         "\xFF"
         "b"},
    };
    std::set<std::string> keys;
    std::set<std::string> prints;
    std::set<std::string> encoded;
    std::size_t encodable = 0;
    for (const auto& [one, two] : all) {
        keys.insert(idem::content_key("field", one, two).id);
        prints.emplace(Fingerprint::of(one, two).stored());
        for (const auto& k : {idem::Key{.scope = one + "s", .id = two + "i"},
                              idem::Key{.scope = "s", .id = two + "i", .tenant = one + "t"}}) {
            encoded.insert(idem::encode_key(idem::KeyView(idem::Component::call, k)));
            ++encodable;
        }
    }
    CHECK(keys.size() == all.size());
    CHECK(prints.size() == all.size());
    CHECK(encoded.size() == encodable);
}

TEST_CASE("R55: keys that look alike when joined are kept apart by the store") {
    Bench b;
    auto guard = b.guard();
    const std::vector<idem::Key> keys{
        {.scope = "a", .id = "bc"},
        {.scope = "ab", .id = "c"},
        {.scope = "a", .id = "c", .tenant = "b"},
        {.scope = "a", .id = "b\0c"s},
        {.scope = "a\0b"s, .id = "c"},
        {.scope = "a", .id = "c", .tenant = "\0b"s},
        {.scope = "a:b", .id = "c"},
        {.scope = "a", .id = "b:c"},
    };
    int runs = 0;
    for (const auto& k : keys) CHECK(guard.run(k, {}, [&] { return ++runs; }).executed());
    int expected = 0;
    for (const auto& k : keys) CHECK(guard.run(k, {}, [] { return 0; }).value() == ++expected);
}

TEST_CASE("R56: equal requests under different keys both run") {
    Bench b;
    auto guard = b.guard();
    const auto order = Fingerprint::of_bytes(R"({"item":"same"})");
    CHECK(guard.run(field_key("R56.customer-1"), order, [] { return 1; }).executed());
    CHECK(guard.run(field_key("R56.customer-2"), order, [] { return 2; }).executed());
}

TEST_CASE("R58: a timestamp in the payload does not silently make a retry a new operation") {
    Bench b;
    auto guard = b.guard();
    int runs = 0;
    const auto submit = [&](const std::string& file, int stamp) {
        // The key is of the business fields; the stamp is not among them.
        return guard.run(idem::content_key("field.submit", file), Fingerprint::of(file),
                         [&] { return ++runs + 0 * stamp; });
    };
    CHECK(submit("film.mkv", 1).executed());
    CHECK(submit("film.mkv", 2).replayed());
    // Under a client's key a fingerprint that holds the stamp says so, and nothing runs.
    const auto stamped = [&](int stamp) {
        return guard.run(field_key("R58"), Fingerprint::of("film.mkv"sv, stamp),
                         [&] { return ++runs; });
    };
    CHECK(stamped(1).executed());
    CHECK(stamped(2).kind() == OutcomeKind::mismatch);
    CHECK(runs == 2);
}

// The same digest by another algorithm, as a later or earlier version might have written it.
Fingerprint by_algorithm(const Fingerprint& from, char algorithm) {
    std::string bytes(from.stored());
    bytes.front() = algorithm;
    return Fingerprint::from_stored(bytes).value();
}

TEST_CASE("R59: a record by another algorithm never matches, unless that one is named as well") {
    Bench b;
    auto guard = b.guard();
    const auto now = Fingerprint::of_bytes("request");
    const char algorithm = GENERATE('\x02', '\x09', '\xFF');
    const auto before = by_algorithm(now, algorithm);
    REQUIRE(guard.run(field_key("R59"), before, [] { return 1; }).executed());
    CHECK(guard.run(field_key("R59"), now, [] { return 2; }).kind() == OutcomeKind::mismatch);

    idem::RunOptions changing_over;
    changing_over.fingerprint_before = before;
    const auto replay = guard.run(field_key("R59"), now, changing_over, [] { return 2; });
    CHECK(replay.replayed());
    CHECK(replay.value() == 1);
    CHECK(b.find(field_key("R59"))->header.fingerprint == before);  // a replay does not rewrite it
    changing_over.fingerprint_before = by_algorithm(Fingerprint::of_bytes("other"), algorithm);
    CHECK(guard.run(field_key("R59"), now, changing_over, [] { return 2; }).kind() ==
          OutcomeKind::mismatch);
}

TEST_CASE("R61: the claimed key is completed, though the handler changes its request") {
    Bench b;
    auto guard = b.guard();
    // Short and long texts: in place, and in memory that the change gives back.
    const std::string id = GENERATE("R61"s, "R61." + std::string(200, 'x'));
    struct Request {
        idem::Key key;
        Fingerprint fingerprint;
        idem::RunOptions options;
    };
    Request request{field_key(id), Fingerprint::of_bytes("request"), {}};
    request.options.request_id = "first-" + std::string(100, 'r');
    const auto outcome = guard.run(request.key, request.fingerprint, request.options, [&] {
        request.key = {.scope = "other.scope", .id = std::string(250, 'y'), .tenant = "t"};
        request.fingerprint = Fingerprint::of_bytes("other");
        request.options = {};
        request.options.request_id = std::string(300, 'z');
        return 1;
    });
    CHECK(outcome.recorded());
    const auto record = b.find(field_key(id));
    REQUIRE(record);
    CHECK(record->header.state == idem::State::succeeded);
    CHECK(record->header.fingerprint == Fingerprint::of_bytes("request"));
    CHECK_FALSE(b.find(request.key));
    const auto event = b.events.wait_for(idem::EventKind::executed);
    CHECK(event.scope == field_key(id).scope);
    CHECK(event.request_id == "first-" + std::string(100, 'r'));
    CHECK(guard.run(field_key(id), Fingerprint::of_bytes("request"), [] { return 2; }).value() ==
          1);
}

TEST_CASE("R61: the claimed key is released, though the handler changes its request and throws") {
    Bench b;
    auto guard = b.guard();
    auto mine = field_key("R61.throws");
    const auto handler = [&]() -> int {
        mine = field_key(std::string(200, 'y'));
        throw std::runtime_error("no");
    };
    CHECK_THROWS_AS(guard.run(mine, {}, handler), std::runtime_error);
    CHECK(b.find(field_key("R61.throws"))->header.state == idem::State::released);
}

TEST_CASE("R61: in a batch too, each claimed key is completed") {
    Bench b;
    auto guard = b.guard();
    const bool together = GENERATE(true, false);
    const auto change = [](std::vector<idem::BatchCall>& calls) {
        for (auto& call : calls) {
            call.key = field_key(std::string(200, 'y'));
            call.request_id = std::string(200, 'z');
        }
    };
    std::vector<idem::BatchCall> calls{
        {.key = field_key("R61.a"), .fingerprint = Fingerprint::of_bytes("a"), .request_id = "one"},
        {.key = field_key("R61.b"), .fingerprint = Fingerprint::of_bytes("b"), .request_id = "two"},
        {.key = field_key("R61.a"),
         .fingerprint = Fingerprint::of_bytes("a"),
         .request_id = "three"}};
    std::vector<idem::BatchOutcome<int>> outcomes;
    if (together) {
        outcomes = guard.run_batch(calls, [&](std::span<idem::Execution* const> executions) {
            change(calls);
            return std::vector<int>(executions.size(), 1);
        });
    } else {
        outcomes = guard.run_batch(calls, [&](idem::Execution&, std::size_t) {
            change(calls);
            return 1;
        });
    }
    CHECK(outcomes[0].get().recorded());
    CHECK(outcomes[1].get().recorded());
    CHECK(outcomes[2].get().replayed());
    for (const auto* id : {"R61.a", "R61.b"})
        CHECK(b.find(field_key(id))->header.state == idem::State::succeeded);
    for (const auto& event : b.events.all())
        CHECK((event.request_id == "one" || event.request_id == "two" ||
               event.request_id == "three"));
}

TEST_CASE("R61: a two-phase claim keeps the key it was made with") {
    Bench b;
    auto guard = b.guard();
    auto mine = field_key("R61.claim");
    idem::RunOptions options;
    options.request_id = std::string(100, 'r');
    auto made = guard.claim<int>(mine, {}, options);
    mine = field_key(std::string(200, 'y'));
    options.request_id = "other";
    CHECK(std::move(std::get<idem::Claim<int>>(made)).complete(1).recorded());
    CHECK(b.find(field_key("R61.claim"))->header.state == idem::State::succeeded);
    CHECK(b.events.wait_for(idem::EventKind::executed).request_id == std::string(100, 'r'));
}

}  // namespace field_fingerprint_test
