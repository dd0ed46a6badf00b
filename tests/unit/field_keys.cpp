// Field cases of keys, scopes and tenants, asked of the guard over the memory store.
//
// Left to other suites:
//   R70  the cluster slot of a key with braces in it: the memory store has no slots
// R73 is asked of the guard's own loop; the library has no client that retries.

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "support/catch.hpp"
#include "support/field.hpp"

namespace field_keys_test {

using namespace std::chrono_literals;
using namespace std::string_literals;
using namespace std::string_view_literals;
using idem::Key;
using idem::OutcomeKind;
using idem::UsageError;
using idem_test::Bench;
using idem_test::for_ever;
using idem_test::Holder;
using idem_test::field_key;

std::string refusal(const std::function<void()>& step) {
    try {
        step();
        return {};
    } catch (const UsageError& e) {
        return e.what();
    }
}

TEST_CASE("R62: one id in two scopes or of two tenants is two operations") {
    Bench b;
    auto guard = b.guard();
    const std::vector<Key> keys{{.scope = "one", .id = "R62"},
                                {.scope = "two", .id = "R62"},
                                {.scope = "one", .id = "R62", .tenant = "first"},
                                {.scope = "one", .id = "R62", .tenant = "second"}};
    int runs = 0;
    for (const Key& k : keys) CHECK(guard.run(k, {}, [&] { return ++runs; }).executed());
    CHECK(runs == 4);
    int expected = 0;
    for (const Key& k : keys) {
        const auto again = guard.run(k, {}, [&] { return ++runs; });
        CHECK(again.replayed());
        CHECK(again.value() == ++expected);
        CHECK(guard.forget(k));
        CHECK_FALSE(guard.find(k));
    }
}

TEST_CASE("R62: a key without scope or id is refused by every way in, and nothing is stored") {
    Bench b;
    auto guard = b.guard();
    const bool has_scope = GENERATE(false, true);
    const bool has_id = GENERATE(false, true);
    if (has_scope && has_id) return;
    const Key bad{.scope = has_scope ? "x" : "", .id = has_id ? "x" : "", .tenant = "t"};
    const auto* const name = has_scope ? "Key::id" : "Key::scope";
    int runs = 0;
    const std::vector<idem::BatchCall> calls{{.key = field_key("R62.good")}, {.key = bad}};
    const std::vector<std::function<void()>> ways{
        [&] { (void)guard.run(bad, {}, [&] { return ++runs; }); },
        [&] { (void)guard.claim<int>(bad, {}); },
        [&] { (void)guard.find(bad); },
        [&] { (void)guard.forget(bad); },
        [&] { (void)guard.resolve(bad, 1, idem::Resolution::rerun()); },
        [&] {
            (void)guard.run_batch(calls, [&](idem::Execution&, std::size_t) { return ++runs; });
        },
    };
    for (const auto& way : ways) CHECK(refusal(way).find(name) != std::string::npos);
    CHECK(runs == 0);
    CHECK(b.store.claims() == 0);
    CHECK(b.memory.usage().records == 0);
}

TEST_CASE("R64: two routes that differ in a parameter are two operations") {
    Bench b;
    auto guard = b.guard();
    CHECK(guard.run({.scope = "/orders/1", .id = "k"}, {}, [] { return 1; }).executed());
    CHECK(guard.run({.scope = "/orders/2", .id = "k"}, {}, [] { return 2; }).executed());
    CHECK(guard.run({.scope = "/orders/", .id = "1"}, {}, [] { return 3; }).executed());
    CHECK(guard.run({.scope = "/orders", .id = "/1"}, {}, [] { return 4; }).executed());
    CHECK(guard.run({.scope = "/orders/1", .id = "k"}, {}, [] { return 5; }).value() == 1);
}

namespace shop {
int submit() {
    return 1;
}
}  // namespace shop
namespace bank {
int submit() {
    return 2;
}
}  // namespace bank

TEST_CASE("R65: the key tells operations apart, never the name or type of the callable") {
    Bench b;
    auto guard = b.guard();
    CHECK(guard.run({.scope = "shop.submit", .id = "k"}, {}, shop::submit).value() == 1);
    CHECK(guard.run({.scope = "bank.submit", .id = "k"}, {}, bank::submit).value() == 2);
    const auto other_type = [] { return 3; };
    CHECK(guard.run({.scope = "shop.submit", .id = "k"}, {}, other_type).value() == 1);
    CHECK(guard.run({.scope = "shop.submit", .id = "k"}, {}, bank::submit).replayed());
}

TEST_CASE("R65: what is stored names no type of a compiler, and is never read as another type") {
    Bench b;
    auto guard = b.guard();
    (void)guard.run(field_key("R65"), {}, [] { return std::string("text"); });
    // FNV-1a of "text": the same from every compiler.
    CHECK(b.find(field_key("R65"))->header.codec.tag == 0xBDE64E3EU);
    int runs = 0;
    CHECK_THROWS_AS(guard.run(field_key("R65"), {}, [&] { return ++runs; }), idem::CodecError);
    CHECK(runs == 0);
    CHECK(guard.run(field_key("R65"), {}, [] { return std::string(); }).value() == "text");
}

TEST_CASE("R67: the limit of a key is counted in bytes, and the message says so") {
    Bench b;
    auto guard = b.guard();
    std::string wide;
    for (int i = 0; i < 200; ++i) wide += "\xF0\x9F\x8E\xAC";  // 200 characters, 800 bytes
    const auto try_key = [&](const Key& k) {
        return refusal([&] { (void)guard.run(k, {}, [] { return 1; }); });
    };
    const auto message = try_key(field_key(wide));
    CHECK(message.find("Key::id") != std::string::npos);
    CHECK(message.find("800 bytes") != std::string::npos);
    CHECK(message.find("255") != std::string::npos);

    const std::string longest(255, 'x');
    const std::string too_long(256, 'x');
    CHECK(try_key(field_key(wide.substr(0, 252))).empty());
    CHECK(try_key({.scope = longest, .id = longest, .tenant = longest}).empty());
    CHECK(try_key({.scope = too_long, .id = "x"}).find("Key::scope") != std::string::npos);
    CHECK(try_key({.scope = "x", .id = too_long}).find("Key::id") != std::string::npos);
    CHECK(try_key({.scope = "x", .id = "x", .tenant = too_long}).find("Key::tenant") !=
          std::string::npos);
    CHECK(b.memory.usage().records == 2);
}

// Every byte there is, and texts that others have tripped over.
std::vector<std::string> awkward() {
    std::string all;
    for (int i = 0; i < 255; ++i) all += static_cast<char>(i);
    return {all,
            "\0"s,
            "\0\0"s,
            "\xFF\xFE",
            "\xC1\x01",
            "a\r\nb",
            "  spaced  ",
            "{}",
            "{a}b",
            "%s%n%d%%",
            "\"quoted\" 'too' \\ \\u0000",
            "*?[a-z]",
            "\xED\xA0\x80",
            "\xF0\x9F\x8E\xAC"};
}

TEST_CASE("R68: keys, results, checkpoints and resource ids of any bytes come back as they were") {
    Bench b;
    auto guard = b.guard();
    const auto texts = awkward();
    for (const auto& text : texts) {
        const Key k{.scope = text, .id = text, .tenant = text};
        const auto first = guard.run(k, {}, [&](idem::Execution& execution) {
            CHECK(execution.key() == k);
            execution.resource(text);
            execution.checkpoint(text);
            CHECK(b.find(k)->payload.checkpoint == text);
            return text;
        });
        CHECK(first.executed());
        const auto replay = guard.run(k, {}, [] { return std::string("again"); });
        CHECK(replay.replayed());
        CHECK(replay.value() == text);
        CHECK(replay.resource_id() == text);
        CHECK(guard.find(k)->key == k);
    }
    std::set<std::string> listed;
    for (const auto& record : guard.list().records) {
        CHECK(record.key.scope == record.key.id);
        listed.insert(record.key.id);
    }
    CHECK(listed == std::set<std::string>(texts.begin(), texts.end()));
}

TEST_CASE("R68: failures of any bytes come back as they were") {
    Bench b;
    auto guard = b.guard();
    for (const auto& text : awkward()) {
        auto made = guard.claim<int>(field_key(text), {});
        std::move(std::get<idem::Claim<int>>(made))
            .fail({idem::FailureClass::final, text.substr(0, 64), text});
        const auto replay = guard.run(field_key(text), {}, [] { return 1; });
        CHECK(replay.kind() == OutcomeKind::failed);
        CHECK(replay.failure().code == text.substr(0, 64));
        CHECK(replay.failure().message == text);
    }
}

TEST_CASE("R71: each way to have no value is a key of its own; only no key at all is refused") {
    struct Order {
        std::string user;
        int amount;
    };
    const auto of = [](const Order& order) {
        return idem::content_key("field.order", order.user, order.amount);
    };
    const std::vector<Key> keys{idem::content_key("field.order", ""sv),
                                idem::content_key("field.order", 0),
                                idem::content_key("field.order", 0U),
                                idem::content_key("field.order", false),
                                idem::content_key("field.order", 0.0),
                                idem::content_key("field.order", std::nullopt),
                                idem::content_key("field.order", std::vector<int>{}),
                                of({"", 0}),
                                of({"0", 0})};
    Bench b;
    auto guard = b.guard();
    int runs = 0;
    for (const Key& k : keys) CHECK(guard.run(k, {}, [&] { return ++runs; }).executed());
    CHECK(runs == static_cast<int>(keys.size()));
    for (const Key& k : keys) CHECK(guard.run(k, {}, [&] { return ++runs; }).replayed());

    const auto scopeless = idem::content_key("", 1);
    CHECK_THROWS_AS(guard.run(scopeless, {}, [] { return 1; }), UsageError);
}

TEST_CASE("R73: all looks of one call at the store carry the one key that the caller gave") {
    Bench b;
    const auto seen = std::make_shared<std::vector<Key>>();
    b.store.on_claim([seen](const idem::ClaimRequest& request) {
        seen->push_back(request.key.key());
        return idem_test::Wire::good;
    });
    auto guard = b.guard();
    Holder holder(b.memory, field_key("R73"));
    (void)holder.claim();
    idem::RunOptions options;
    options.wait = 30ms;
    CHECK(guard.run(field_key("R73"), {}, options, [] { return 1; }).kind() ==
          OutcomeKind::in_progress);
    CHECK(seen->size() >= 2);
    for (const Key& k : *seen) CHECK(k == field_key("R73"));
    seen->clear();
    (void)guard.run(field_key("R73.other"), {}, [] { return 1; });  // per call, not per guard
    CHECK(*seen == std::vector{field_key("R73.other")});
}

// Every kind of event that a guard tells about one key.
void tell_much(Bench& b, const idem_test::Guard& guard_in, const std::string& id) {
    auto guard = guard_in;
    const auto p = idem::Fingerprint::of_bytes("P");
    (void)guard.run(field_key(id), p, [] { return 1; });
    (void)guard.run(field_key(id), p, [] { return 1; });
    (void)guard.run(field_key(id), idem::Fingerprint::of_bytes("Q"), [] { return 1; });
    CHECK_THROWS(guard.run(field_key(id), p, [] { return std::string(); }));
    (void)guard.forget(field_key(id));
    CHECK_THROWS(guard.run(field_key(id), p, []() -> int { throw std::runtime_error("no"); }));
    Holder dead(b.memory, field_key(id));
    (void)dead.claim();
    (void)guard.run(field_key(id), {}, [] { return 1; });
    b.clock.advance(idem_test::lease);
    CHECK_THROWS(
        guard.run(field_key(id), {}, []() -> int { throw idem::UnknownOutcomeError("504"); }));
    (void)guard.run(field_key(id), {}, [] { return 1; });
    b.store.on_claim([](const auto&) { return idem_test::Wire::refused; });
    CHECK_THROWS(guard.run(field_key(id), {}, [] { return 1; }));
}

TEST_CASE("R74: events carry a hash of the key, and the key itself only by choice") {
    Bench b;
    const std::string secret = "alice@example.com/4111-1111";
    const bool raw = GENERATE(false, true);
    tell_much(b, b.guard({.event_raw_ids = raw}), secret);
    const auto hash = idem::key_hash(idem::KeyView(idem::Component::call, field_key(secret)));
    CHECK(hash.size() == 16);
    CHECK(b.events.all().size() >= 9);
    for (const auto& event : b.events.all()) {
        INFO(to_string(event.kind));
        CHECK(event.key_hash == hash);
        CHECK(event.scope == field_key(secret).scope);
        CHECK(event.raw_id == (raw ? secret : ""));
        CHECK(event.detail.find(secret) == std::string::npos);
    }
}

TEST_CASE("R74: no message of the library shows an id") {
    Bench b;
    auto guard = b.guard();
    const std::string secret(256, 'S');
    CHECK(refusal([&] { (void)guard.find(field_key(secret)); }).find("SSSS") == std::string::npos);
    const auto shown = std::string(60, 'S');
    (void)guard.run(field_key(shown), {}, [] { return 1; });
    try {
        (void)guard.run(field_key(shown), {}, [] { return std::string(); });
        FAIL("read as another type");
    } catch (const idem::CodecError& e) {
        CHECK(std::string_view(e.what()).find("SSSS") == std::string_view::npos);
    }
}

}  // namespace field_keys_test
