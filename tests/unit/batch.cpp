// Goal: a batch is many calls that share one claim request, and nothing else: each item has its own
// claim, answer and exception. Method: mixed batches, one thing wrong in each.

#include <chrono>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <pthread.h>

#include "support/catch.hpp"
#include "support/features.hpp"

using namespace idem_test;
using namespace std::chrono_literals;

namespace batch_test {

using idem::Execution;
using idem::OutcomeKind;
using idem::State;

using All = std::span<Execution* const>;

[[nodiscard]] std::vector<idem::BatchCall> calls(std::initializer_list<const char*> ids) {
    std::vector<idem::BatchCall> made;
    for (const char* id : ids) made.push_back({.key = key(id)});
    return made;
}

TEST_CASE("a batch is claimed in one request and runs each item once", "[batch]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    const auto batch = calls({"a", "b", "c"});
    std::vector<std::size_t> ran;
    const auto handler = [&](Execution& execution, std::size_t i) {
        CHECK(execution.key() == batch[i].key);
        CHECK(execution.index() == i);
        CHECK(execution.held());
        ran.push_back(i);
        return "result " + std::to_string(i);
    };
    const auto first = guard.run_batch(batch, handler);
    CHECK(stage.store.claims() == 1);
    CHECK(ran == std::vector<std::size_t>{0, 1, 2});
    const auto repeat = guard.run_batch(batch, handler);
    CHECK(stage.store.claims() == 2);
    CHECK(ran.size() == 3);
    for (std::size_t i = 0; i < batch.size(); ++i) {
        CHECK(first[i].get().executed());
        CHECK(first[i].get().recorded());
        CHECK(first[i].get().attempt() == 1);
        CHECK(repeat[i].get().replayed());
        CHECK(repeat[i].get().value() == "result " + std::to_string(i));
    }
}

TEST_CASE("one pass for all that must run, one result for each", "[batch]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    (void)guard.run(key("b"), {}, [] { return 100; });
    const auto batch = calls({"a", "b", "c"});
    int passes = 0;
    const auto outcomes = guard.run_batch(batch, [&](All all) {
        ++passes;
        std::vector<int> results;
        for (Execution* execution : all) {
            CHECK(execution->held());
            execution->resource("made/" + execution->key().id);
            results.push_back(static_cast<int>(execution->index()));
        }
        return results;
    });
    CHECK(passes == 1);
    CHECK(outcomes[0].get().value() == 0);
    CHECK(outcomes[1].get().replayed());
    CHECK(outcomes[1].get().value() == 100);
    CHECK(outcomes[2].get().value() == 2);
    CHECK(outcomes[2].get().resource_id() == "made/c");
    CHECK(guard
              .run_batch(batch,
                         [&](All all) {
                             ++passes;
                             return std::vector<int>(all.size());
                         })[2]
              .get()
              .replayed());
    CHECK(passes == 1);  // with nothing to run there is no pass
}

TEST_CASE("an empty batch does nothing", "[batch]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    CHECK(guard.run_batch({}, [](Execution&, std::size_t) { return 1; }).empty());
    CHECK(guard.run_batch({}, [](All all) { return std::vector<int>(all.size()); }).empty());
}

TEST_CASE("an item's exception is its own", "[batch]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    const auto outcomes =
        guard.run_batch(calls({"a", "b", "c", "d", "e"}), [](Execution&, std::size_t i) -> int {
            if (i == 0) throw std::runtime_error("busy");
            if (i == 1) throw idem::FinalError("422", "never");
            if (i == 2) throw idem::UnknownOutcomeError("504");
            if (i == 3) throw 42;
            return 7;
        });
    CHECK_THROWS_AS(outcomes[0].get(), std::runtime_error);
    CHECK_THROWS_AS(outcomes[1].get(), idem::FinalError);
    CHECK_THROWS_AS(outcomes[2].get(), idem::UnknownOutcomeError);
    CHECK_THROWS_AS(outcomes[3].get(), int);
    CHECK(outcomes[4].get().value() == 7);
    CHECK(guard.find(key("a"))->header.state == State::released);
    CHECK(guard.find(key("b"))->header.state == State::failed);
    CHECK(guard.find(key("c"))->header.state == State::unknown);
    CHECK(guard.find(key("d"))->header.state == State::released);
    CHECK(guard.find(key("e"))->header.state == State::succeeded);
}

TEST_CASE("an exception of the one pass is that of each item in it", "[batch]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    (void)guard.run(key("b"), {}, [] { return 5; });
    const auto outcomes = guard.run_batch(calls({"a", "b", "c"}), [](All) -> std::vector<int> {
        throw std::runtime_error("out of memory");
    });
    CHECK_THROWS_AS(outcomes[0].get(), std::runtime_error);
    CHECK(outcomes[1].get().value() == 5);
    CHECK_THROWS_AS(outcomes[2].get(), std::runtime_error);
    CHECK(guard.find(key("a"))->header.state == State::released);
    CHECK(guard.find(key("c"))->header.state == State::released);
}

TEST_CASE("a wrong number of results is recorded as neither done nor undone", "[batch]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    const std::size_t given = GENERATE(0U, 1U, 3U);
    CAPTURE(given);
    const auto outcomes =
        guard.run_batch(calls({"a", "b"}), [&](All) { return std::vector<int>(given, 9); });
    CHECK_THROWS_AS(outcomes[0].get(), idem::UsageError);
    CHECK_THROWS_AS(outcomes[1].get(), idem::UsageError);
    // The pass has run: what its results belong to nobody can say, so no repeat runs it again.
    CHECK(guard.find(key("a"))->header.state == State::unknown);
    CHECK(guard.find(key("b"))->header.state == State::unknown);
}

struct MoveOnly {
    std::unique_ptr<int> number;
};

}  // namespace batch_test

template <>
struct idem::Codec<batch_test::MoveOnly> {
    static constexpr std::uint32_t tag = codec_tag("test.move_only");
    static constexpr std::uint8_t version = 1;
    static void encode(const batch_test::MoveOnly& value, std::string& out) {
        Codec<int>::encode(*value.number, out);
    }
    static batch_test::MoveOnly decode(std::string_view bytes, std::uint8_t v) {
        return {std::make_unique<int>(Codec<int>::decode(bytes, v))};
    }
};

namespace batch_test {

TEST_CASE("results may be movable only, for repeats in the batch too", "[batch]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    const auto batch = calls({"a", "b", "a"});
    auto outcomes = guard.run_batch(batch, [](Execution&, std::size_t i) {
        return MoveOnly{std::make_unique<int>(static_cast<int>(i) + 10)};
    });
    CHECK(*outcomes[0].get().value().number == 10);
    CHECK(*outcomes[1].get().value().number == 11);
    CHECK(*outcomes[2].get().value().number == 10);
    auto together = guard.run_batch(calls({"c", "c"}), [](All all) {
        std::vector<MoveOnly> results;
        for (std::size_t i = 0; i < all.size(); ++i) results.push_back({std::make_unique<int>(20)});
        return results;
    });
    CHECK(*together[0].get().value().number == 20);
    CHECK(*together[1].get().value().number == 20);
    CHECK(*guard.run(key("a"), {}, [] { return MoveOnly{}; }).value().number == 10);
}

TEST_CASE("a batch of calls without results", "[batch]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    int ran = 0;
    const auto handler = [&](Execution&, std::size_t) { ++ran; };
    CHECK(guard.run_batch(calls({"a", "b"}), handler)[1].get().executed());
    CHECK(guard.run_batch(calls({"a", "b"}), handler)[1].get().replayed());
    CHECK(ran == 2);
}

TEST_CASE("equal repeats inside a batch get the first one's answer", "[batch]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    const auto a = idem::Fingerprint::of_bytes("a");
    const auto b = idem::Fingerprint::of_bytes("b");
    const std::vector<idem::BatchCall> batch{{key("x"), a}, {key("y"), a}, {key("x"), a},
                                             {key("x"), b}, {key("x")},    {key("y"), a}};
    int ran = 0;
    const auto outcomes = guard.run_batch(batch, [&](Execution&, std::size_t i) -> int {
        ++ran;
        if (i == 1) throw std::runtime_error("y fails");
        return static_cast<int>(i) + 1;
    });
    CHECK(ran == 2);
    CHECK(outcomes[0].get().executed());
    CHECK(outcomes[2].get().replayed());
    CHECK(outcomes[2].get().value() == 1);
    CHECK(outcomes[2].get().recorded());
    CHECK(outcomes[3].get().kind() == OutcomeKind::mismatch);
    CHECK_FALSE(outcomes[3].get().has_value());
    CHECK(outcomes[4].get().value() == 1);  // absent conflicts with nothing
    CHECK_THROWS_AS(outcomes[5].get(), std::runtime_error);
}

TEST_CASE("a mismatch, a running and a held key answer for themselves in a batch", "[batch]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    const auto a = idem::Fingerprint::of_bytes("a");
    (void)guard.run(key("done"), a, [] { return 1; });
    auto running = claimed<int>(guard.claim<int>(key("running"), {}));
    std::move(claimed<int>(guard.claim<int>(key("held"), {}))).quarantine();
    const std::vector<idem::BatchCall> batch{{key("done"), idem::Fingerprint::of_bytes("b")},
                                             {key("running")},
                                             {key("held")},
                                             {key("fresh")}};
    const auto outcomes = guard.run_batch(batch, [](Execution&, std::size_t) { return 2; });
    CHECK(outcomes[0].get().kind() == OutcomeKind::mismatch);
    CHECK(outcomes[1].get().kind() == OutcomeKind::in_progress);
    CHECK(outcomes[1].get().retry_after() == 30s);
    CHECK(outcomes[2].get().kind() == OutcomeKind::unknown);
    CHECK(outcomes[3].get().value() == 2);
}

TEST_CASE("a store that is away runs nothing of a batch", "[batch]") {
    const Way way = GENERATE(Way::refuse, Way::lose_answer);
    CAPTURE(static_cast<int>(way));
    Stage stage;
    SpyGuard guard = stage.guard();
    stage.store.on_claim([=](auto) { return way; });
    int ran = 0;
    const auto outcomes =
        guard.run_batch(calls({"a", "b"}), [&](Execution&, std::size_t) { return ++ran; });
    CHECK(ran == 0);
    for (const auto& outcome : outcomes) CHECK_THROWS_AS(outcome.get(), idem::UnavailableError);
    // Claims in doubt are given back in the background: the next caller need not wait.
    CHECK(eventually([&] { return guard.health().unrecorded == 0; }));
    stage.store.on_claim({});
    const auto again =
        guard.run_batch(calls({"a", "b"}), [&](Execution&, std::size_t) { return ++ran; });
    CHECK(again[0].get().executed());
    CHECK(again[0].get().attempt() == 1);
    CHECK(again[1].get().executed());
}

TEST_CASE("a batch runs unprotected only where that was chosen, and says so", "[batch]") {
    Stage stage;
    SpyGuard guard = stage.guard({.store_down = idem::StoreDown::run_unprotected});
    stage.store.down(true);
    const auto outcomes =
        guard.run_batch(calls({"a", "b"}), [](Execution& execution, std::size_t i) {
            CHECK_FALSE(execution.held());
            return static_cast<int>(i);
        });
    CHECK_FALSE(outcomes[0].get().protected_run());
    CHECK(outcomes[1].get().value() == 1);
    CHECK_FALSE(outcomes[1].get().recorded());
    stage.store.down(false);
    CHECK_FALSE(guard.find(key("a")));
}

TEST_CASE("a bad key in a batch is refused before anything is claimed", "[batch]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    const auto batch = calls({"a", ""});
    CHECK_THROWS_AS(guard.run_batch(batch, [](Execution&, std::size_t) { return 1; }),
                    idem::UsageError);
    CHECK(stage.store.calls() == 0);
    CHECK(guard.health().running == 0);
}

TEST_CASE("a claim request that throws gives every item back", "[batch]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    stage.store.on_claim([](auto) { return Way::raise; });
    CHECK_THROWS_AS(guard.run_batch(calls({"a", "b"}), [](Execution&, std::size_t) { return 1; }),
                    int);
    CHECK(eventually([&] { return guard.health().unrecorded == 0; }));
    CHECK(guard.health().running == 0);
}

TEST_CASE("the lease of an item is renewed while it waits for its turn", "[batch][heartbeat]") {
    // The first handler takes several leases; nobody may take the second item over meanwhile.
    constexpr idem::Duration lease = 600ms;
    SpyStore store;
    auto renewed = std::make_shared<std::atomic<int>>(0);
    store.on_renew([=](std::span<const idem::RenewRequest> requests) {
        for (const auto& request : requests) renewed->fetch_add(request.key.id == "b" ? 1 : 0);
        return Way::pass;
    });
    SpyGuard guard(store, {.lease = lease});
    bool waits_held = false;
    const auto outcomes =
        guard.run_batch(calls({"a", "b"}), [&](Execution& execution, std::size_t i) {
            if (i == 0) (void)eventually([&] { return renewed->load() >= 2; });
            if (i == 1) waits_held = execution.held();
            return 1;
        });
    CHECK(renewed->load() >= 2);
    CHECK(waits_held);
    CHECK(outcomes[1].get().recorded());
}

TEST_CASE("an item whose claim was lost before its turn is not begun", "[batch]") {
    Stage stage;
    SpyGuard guard = stage.guard({.lease = 30ms, .heartbeat = false});
    std::vector<std::size_t> ran;
    const auto outcomes = guard.run_batch(calls({"a", "b"}), [&](Execution&, std::size_t i) {
        ran.push_back(i);
        if (i == 0) outlast(30ms);
        return 1;
    });
    CHECK(ran == std::vector<std::size_t>{0});
    CHECK_THROWS_AS(outcomes[1].get(), idem::UnavailableError);
    CHECK(guard.find(key("b"))->header.state == State::released);
    CHECK(guard.find(key("b"))->header.attempt == 0);
}

TEST_CASE("a thread that is cancelled inside a batch leaves no claim behind", "[batch]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    struct Arg {
        SpyGuard& guard;
        int ran = 0;
    } arg{guard};
    pthread_t thread{};
    const auto body = [](void* given) -> void* {
        auto& self = *static_cast<Arg*>(given);
        (void)self.guard.run_batch(calls({"a", "b"}), [&](Execution&, std::size_t) {
            ++self.ran;
            (void)pthread_cancel(pthread_self());
            pthread_testcancel();
            return 1;
        });
        return nullptr;
    };
    REQUIRE(pthread_create(&thread, nullptr, body, &arg) == 0);
    void* result = nullptr;
    REQUIRE(pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
    CHECK(arg.ran == 1);
    CHECK(guard.find(key("a"))->header.state == State::released);
    CHECK(guard.find(key("b"))->header.state == State::released);
    CHECK(guard.find(key("b"))->header.attempt == 0);  // it had not begun
    CHECK(guard.health().running == 0);
}

TEST_CASE("an item's handler that calls another's key does not wait for itself", "[batch]") {
    Stage stage;
    SpyGuard guard = stage.guard();
    const auto out = guard.run_batch(calls({"a", "b"}), [&](Execution&, std::size_t i) {
        const auto before = stage.store.claims();
        const auto sibling =
            guard.run(key(i == 0 ? "b" : "a"), {}, {.wait = 300ms}, [] { return 7; });
        CHECK(sibling.kind() == (i == 0 ? OutcomeKind::in_progress : OutcomeKind::replayed));
        CHECK(stage.store.claims() == before + 1);  // one look, and not one more
        return static_cast<int>(i);
    });
    CHECK(out[0].get().executed());
    CHECK(out[1].get().executed());
}

}  // namespace batch_test
