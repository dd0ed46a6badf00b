// Goal: a program that learns at start which store it gets loses nothing by it, and a URL that
// cannot work says why.

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <idem/any_store.hpp>
#include <idem/testing/model_store.hpp>
#include <idem/token.hpp>

#include "support/catch.hpp"
#include "support/features.hpp"

using namespace idem_test;
using namespace std::chrono_literals;

namespace any_store_test {

using idem::AnyStore;
using idem::OutcomeKind;
using AnyGuard = idem::IdempotencyGuard<AnyStore>;

[[nodiscard]] std::vector<AnyStore> stores() {
    return {AnyStore(idem::MemoryStore()), AnyStore(idem::testing::ModelStore({})),
            AnyStore(SpyStore()), idem::open_store("memory://")};
}

TEST_CASE("a guard works on any store behind one type", "[any_store]") {
    for (auto& store : stores()) {
        AnyGuard guard(store);
        CHECK(guard.run(key(), {}, [] { return 7; }).executed());
        AnyStore copy = store;  // a handle: the same records
        AnyGuard other(copy);
        CHECK(other.run(key(), {}, [] { return 8; }).value() == 7);
        CHECK(other.find(key())->header.state == idem::State::succeeded);
        CHECK(other.list().records.size() == 1);
        CHECK(other.forget(key()));
        CHECK_FALSE(guard.find(key()));
        auto claim = claimed<int>(guard.claim<int>(key("two"), {}));
        claim.execution().checkpoint("half");
        const auto ticket = std::move(claim).detach(1h);
        CHECK(std::move(other.resume<int>(ticket)).complete(2).recorded());
        std::move(claimed<int>(guard.claim<int>(key("held"), {}))).quarantine();
        CHECK(guard.resolve(key("held"), guard.find(key("held"))->header.fence,
                            idem::Resolution::done(1)));
        const std::vector<idem::BatchCall> calls{{key("a")}, {key("b")}};
        CHECK(guard.run_batch(calls, [](idem::Execution&, std::size_t) { return 1; })[1]
                  .get()
                  .recorded());
        CHECK(guard.health().ok());
        CHECK_FALSE(store.purge(10).trouble);
    }
}

TEST_CASE("tokens work on any store behind one type", "[any_store]") {
    for (auto& store : stores()) {
        idem::TokenIssuer<AnyStore> tokens(store, "order.place");
        const auto token = tokens.issue("acme");
        CHECK(tokens.redeem(token, "evil", {}, [] { return 1; }).kind() == OutcomeKind::absent);
        CHECK(tokens.redeem(token, "acme", {}, [] { return 1; }).executed());
        CHECK(tokens.redeem(token, "acme", {}, [] { return 2; }).value() == 1);
    }
}

TEST_CASE("the store behind it lives as long as a handle of it", "[any_store]") {
    auto spy = std::make_unique<SpyStore>();
    auto store = std::make_unique<AnyStore>(*spy);
    AnyGuard guard(*store);
    spy.reset();
    store.reset();
    CHECK(guard.run(key(), {}, [] { return 7; }).executed());
}

TEST_CASE("it passes on how long a request of the store may take", "[any_store]") {
    CHECK(AnyStore(SpyStore({}, 3s)).time_allowed() == 3s);
    CHECK(AnyStore(idem::testing::ModelStore({})).time_allowed() == 0s);
    CHECK_THROWS_AS(AnyGuard(AnyStore(SpyStore({}, 3s)), {.lease = 8s}), idem::UsageError);
    CHECK_NOTHROW(AnyGuard(AnyStore(SpyStore({}, 3s)), {.lease = 9s}));
}

// --- open_store ---------------------------------------------------------------------------------

[[nodiscard]] std::string refusal(std::string_view url) {
    try {
        (void)idem::open_store(url);
    } catch (const idem::UsageError& e) {
        return e.what();
    }
    return "";
}

TEST_CASE("each memory:// is a store of its own, with the bounds of its URL", "[any_store]") {
    AnyGuard a(idem::open_store("memory://"));
    AnyGuard b(idem::open_store("memory://"));
    CHECK(a.run(key(), {}, [] { return 1; }).executed());
    CHECK(b.run(key(), {}, [] { return 1; }).executed());

    AnyGuard bounded(idem::open_store("memory://?records_max=1000&reserve=10&bytes_max=100000000"));
    int admitted = 0;
    bool full = false;
    for (int i = 0; i < 2'000 && !full; ++i) {
        try {
            admitted +=
                bounded.run(key(std::to_string(i)), {}, [] { return 1; }).executed() ? 1 : 0;
        } catch (const idem::UnavailableError&) {
            full = true;
        }
    }
    CHECK(full);
    CHECK(admitted <= 1'000);
    CHECK(admitted >= 980);  // a refusal may come up to 2 % early
    CHECK(bounded.run(key("0"), {}, [] { return 2; }).value() == 1);
}

TEST_CASE("bytes_max of a URL bounds what is kept", "[any_store]") {
    AnyGuard tiny(idem::open_store("memory://?bytes_max=100000"));
    const std::string big(50'000, 'x');
    for (int i = 0; i < 10; ++i) {
        try {
            (void)tiny.run(key(std::to_string(i)), {}, [&] { return big; });
        } catch (const idem::UnavailableError&) {
        }
    }
    CHECK(tiny.list({.state = idem::State::succeeded}).records.size() >= 1);
    std::size_t kept = 0;
    for (const auto& record : tiny.list().records)
        kept += record.header.result == idem::ResultKind::value ? 1 : 0;
    CHECK(kept <= 2);
}

TEST_CASE("an unknown scheme is named, and what to do about it", "[any_store]") {
    for (const std::string scheme : {"rdeis", "mysql", "http", "Memory", "memory+memory"}) {
        const auto what = refusal(scheme + "://host");
        CAPTURE(what);
        CHECK(what.find('"' + scheme + '"') != std::string::npos);
        CHECK(what.find("include") != std::string::npos);
    }
}

TEST_CASE("an unknown or bad option is named", "[any_store]") {
    const auto names = [](std::string_view url, const std::string& word) {
        const auto what = refusal(url);
        CAPTURE(std::string(url), what);
        return what.find(word) != std::string::npos;
    };
    CHECK(names("memory://?record_max=1", "record_max"));
    CHECK(names("memory://?record_max=1", "records_max"));  // what there is instead
    CHECK(names("memory://?=1", "option"));
    for (const std::string value :
         {"", "x", "-1", "1.5", "1e3", "0x10", " 1", "1 ", "+1", "18446744073709551616", "1%00"}) {
        CHECK(names("memory://?records_max=" + value, "records_max"));
        CHECK(names("memory://?bytes_max=" + value, "bytes_max"));
        CHECK(names("memory://?reserve=" + value, "reserve"));
    }
    CHECK(names("memory://host", "host"));
    CHECK(names("memory:///path", "path"));
    CHECK(names("memory://user:secret@host", "host"));
}

TEST_CASE("a text that is no URL is refused", "[any_store]") {
    for (const std::string_view text :
         {"", "memory", "memory:", "memory:/", "://", "://memory", "//memory", "memory//",
          "memory://?records_max", "memory://?records_max=1&reserve", "memory://?&",
          "memory://?records_max=1&&reserve=1"}) {
        CAPTURE(std::string(text));
        CHECK_FALSE(refusal(text).empty());
    }
    CHECK_FALSE(refusal(std::string_view("memory\0://", 10)).empty());
    CHECK(refusal("memory://?").empty());
    CHECK(refusal("memory://?records_max=10&").empty());
    CHECK(refusal("memory://?records%5Fmax=1%30").empty());  // percent-encoded, as in any URL
}

TEST_CASE("a secret in a URL is not repeated in the error", "[any_store]") {
    for (const std::string_view url : {"rdeis://user:hunter2@host/0", "memory://user:hunter2@host",
                                       "mysql://host?password=hunter2", "user:hunter2@host"})
        CHECK(refusal(url).find("hunter2") == std::string::npos);
}

}  // namespace any_store_test
