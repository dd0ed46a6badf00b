// Field cases of failures, exceptions and cancellation, asked of the guard over the memory store.
// None is left out; of R94 a destroyed coroutine is asked for as what it is, a frame with a claim
// in it that goes out of the heap.

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <pthread.h>

#include <idem/testing/faulty_store.hpp>

#include "support/catch.hpp"
#include "support/expected.hpp"
#include "support/field.hpp"

namespace idem_field {

// An error that says by itself what class it is of.
struct Declined {
    int code = 0;
};
std::optional<idem::Failure> idem_failure(const Declined& declined) {
    if (declined.code < 0) return std::nullopt;
    const bool final = declined.code >= 400 && declined.code < 500;
    return idem::Failure{final ? idem::FailureClass::final : idem::FailureClass::unknown,
                         std::to_string(declined.code), "declined"};
}

}  // namespace idem_field

// Its encoding is a cancellation point, and the thread has just been cancelled.
struct Cancelling {
    int value = 0;
};
template <>
struct idem::Codec<Cancelling> {
    static constexpr std::uint32_t tag = idem::codec_tag("cancelling");
    static constexpr std::uint8_t version = 1;
    static void encode(const Cancelling& cancelling, std::string& out) {
        (void)pthread_cancel(pthread_self());
        pthread_testcancel();
        Codec<int>::encode(cancelling.value, out);
    }
    static Cancelling decode(std::string_view bytes, std::uint8_t from) {
        return {Codec<int>::decode(bytes, from)};
    }
};

namespace field_failures_test {

using namespace std::chrono_literals;
using idem::EventKind;
using idem::Execution;
using idem::Failure;
using idem::FailureClass;
using idem::LostReason;
using idem::OutcomeKind;
using idem::State;
using idem::UnrecordedReason;
using idem_field::Declined;
using idem_test::Bench;
using idem_test::Expected;
using idem_test::for_ever;
using idem_test::Holder;
using idem_test::field_key;
using idem_test::lease;
using idem_test::Wire;

// Derives from nothing.
struct Odd {
    int value = 0;
};

State state_of(Bench& b, const char* id) {
    return b.find(field_key(id))->header.state;
}

// --- classes ------------------------------------------------------------------------------------

TEST_CASE("R88: a final failure is replayed; a retryable one lets a correct retry pass") {
    Bench b;
    auto guard = b.guard();
    int runs = 0;
    const auto final = [&]() -> int {
        ++runs;
        throw idem::FinalError("422", "no such codec");
    };
    try {
        (void)guard.run(field_key("R88.final"), {}, final);
        FAIL("the handler's exception was swallowed");
    } catch (const idem::FinalError& e) {
        CHECK(e.code() == "422");
    }
    const auto replay = guard.run(field_key("R88.final"), {}, [&] { return ++runs; });
    CHECK(replay.kind() == OutcomeKind::failed);
    CHECK(replay.failure() == Failure{FailureClass::final, "422", "no such codec"});
    CHECK(runs == 1);

    const auto retryable = [&]() -> int { throw std::runtime_error("busy"); };
    CHECK_THROWS_WITH(guard.run(field_key("R88.retry"), {}, retryable), "busy");
    const auto retry = guard.run(field_key("R88.retry"), {}, [] { return 5; });
    CHECK(retry.executed());
    CHECK(retry.attempt() == 2);
}

TEST_CASE("R88: the user's own classes count, and one who fails to say has no say") {
    Bench b;
    const auto classify = [](const std::exception_ptr& thrown) -> std::optional<Failure> {
        try {
            std::rethrow_exception(thrown);
        } catch (const std::out_of_range& e) {
            return Failure{FailureClass::final, "range", e.what()};
        } catch (const std::logic_error&) {
            throw std::runtime_error("cannot classify");
        } catch (...) {
            return std::nullopt;
        }
    };
    auto guard = b.guard({.classify = classify});
    const auto throws = [&](const char* id, auto error) {
        const auto handler = [&]() -> int { throw error; };
        CHECK_THROWS_AS(guard.run(field_key(id), {}, handler), decltype(error));
        return state_of(b, id);
    };
    CHECK(throws("R88.range", std::out_of_range("9")) == State::failed);
    CHECK(throws("R88.logic", std::logic_error("x")) == State::released);
    CHECK(throws("R88.other", std::runtime_error("x")) == State::released);
}

TEST_CASE("R89: an unknown outcome is not run again until somebody has resolved it") {
    Bench b;
    auto guard = b.guard();
    int runs = 0;
    const auto times_out = [&]() -> int {
        ++runs;
        throw idem::UnknownOutcomeError("504");
    };
    CHECK_THROWS_AS(guard.run(field_key("R89"), {}, times_out), idem::UnknownOutcomeError);
    const auto ask = [&] { return guard.run(field_key("R89"), {}, [&] { return ++runs; }); };
    for (int i = 0; i < 3; ++i) {
        const auto outcome = ask();
        CHECK(outcome.kind() == OutcomeKind::unknown);
        CHECK(outcome.failure().message == "504");
        b.clock.advance(2 * lease);
    }
    CHECK(runs == 1);
    const auto fence = guard.find(field_key("R89"))->header.fence;
    CHECK_FALSE(guard.resolve(field_key("R89"), fence + 1, idem::Resolution::rerun()));
    SECTION("it has happened") {
        CHECK(guard.resolve(field_key("R89"), fence, idem::Resolution::done(89)));
        CHECK(ask().replayed());
        CHECK(ask().value() == 89);
        CHECK(runs == 1);
    }
    SECTION("it has not") {
        CHECK(guard.resolve(field_key("R89"), fence, idem::Resolution::rerun()));
        CHECK(ask().executed());
        CHECK(runs == 2);
    }
}

// --- results that are errors --------------------------------------------------------------------

TEST_CASE("R88: an expected-like result is recorded as its value") {
    Bench b;
    auto guard = b.guard();
    using Result = Expected<std::string, std::error_code>;
    const auto call = [&] {
        return guard.run(field_key("R88.value"), {}, [] { return Result("v"); });
    };
    static_assert(std::is_same_v<decltype(call()), idem::Outcome<std::string>>);
    CHECK(call().executed());
    CHECK(call().replayed());
    CHECK(call().value() == "v");

    using Nothing = Expected<void, std::string>;
    const auto nothing = [&] {
        return guard.run(field_key("R88.void"), {}, [] { return Nothing(); });
    };
    CHECK(nothing().executed());
    CHECK(nothing().replayed());
}

// What an error of an expected-like result makes of its key.
template <class Error>
idem::Outcome<int> settle_error(Bench& b, const char* id, const Error& error) {
    auto guard = b.guard();
    return guard.run(field_key(id), {}, [&] { return Expected<int, Error>::fail(error); });
}

TEST_CASE("R88: the error of an expected-like result settles its key, and nothing is thrown") {
    Bench b;
    auto guard = b.guard();
    const auto timed_out = std::make_error_code(std::errc::timed_out);
    const auto retryable = settle_error(b, "R88.code", timed_out);
    CHECK(retryable.kind() == OutcomeKind::failed);
    CHECK_FALSE(retryable.has_value());
    CHECK(retryable.failure().kind == FailureClass::retryable);
    CHECK(retryable.failure().message == timed_out.message());
    CHECK(state_of(b, "R88.code") == State::released);

    CHECK(settle_error(b, "R88.text", std::string("why")).failure().message == "why");
    CHECK(state_of(b, "R88.text") == State::released);
    CHECK(settle_error(b, "R88.int", 7).failure().code == "7");
    CHECK(settle_error(b, "R88.odd", Odd{}).failure().kind == FailureClass::retryable);

    CHECK(settle_error(b, "R88.422", Declined{422}).failure().code == "422");
    CHECK(state_of(b, "R88.422") == State::failed);
    CHECK(guard.run(field_key("R88.422"), {}, [] { return 1; }).kind() == OutcomeKind::failed);
    CHECK(settle_error(b, "R88.504", Declined{504}).kind() == OutcomeKind::unknown);
    CHECK(state_of(b, "R88.504") == State::unknown);
    CHECK(settle_error(b, "R88.own", Failure{FailureClass::final, "own", "m"}).failure().code ==
          "own");
    CHECK(state_of(b, "R88.own") == State::failed);
}

TEST_CASE("R88: an error without a class is retryable, and never read as a value") {
    Bench b;
    CHECK(settle_error(b, "R88.none", Failure{FailureClass::none, "c", "m"}).failure().kind ==
          FailureClass::retryable);
    CHECK(state_of(b, "R88.none") == State::released);
    CHECK(settle_error(b, "R88.unsaid", Declined{-1}).failure().kind == FailureClass::retryable);
    CHECK(state_of(b, "R88.unsaid") == State::released);

    auto guard = b.guard();
    const auto nothing = guard.run(field_key("R88.void.none"), {}, [] {
        return Expected<void, Failure>::fail({FailureClass::none, {}, {}});
    });
    CHECK(nothing.kind() == OutcomeKind::failed);
    CHECK(state_of(b, "R88.void.none") == State::released);
}

// --- saving fails -------------------------------------------------------------------------------

// Makes `number` of the next finishes fail, then lets them through.
void fail_finishes(Bench& b, int number, Wire how) {
    const auto left = std::make_shared<std::atomic<int>>(number);
    b.store.on_finish([left, how](const idem::FinishRequest&) {
        return left->fetch_sub(1) > 0 ? how : Wire::good;
    });
}

TEST_CASE("R91: a result that could not be saved at first is saved by the background") {
    Bench b;
    auto guard = b.guard();
    const Wire how = GENERATE(Wire::refused, Wire::lost, Wire::bad_alloc, Wire::thrown);
    const int times = GENERATE(1, 4);
    fail_finishes(b, times, how);
    int runs = 0;
    const auto outcome = guard.run(field_key("R91"), {}, [&] { return ++runs; });
    CHECK(outcome.executed());
    CHECK(outcome.value() == 1);
    CHECK_FALSE(outcome.recorded());
    CHECK(outcome.unrecorded_reason() == UnrecordedReason::unavailable);
    CHECK(outcome.protected_run());
    CHECK(b.events.count(EventKind::unrecorded) == 1);

    const auto late = b.events.wait_for(EventKind::recorded_late);
    CHECK(late.fence == outcome.fence());
    CHECK(b.events.count(EventKind::released) == 0);
    CHECK(b.events.count(EventKind::record_abandoned) == 0);
    const auto replay = guard.run(field_key("R91"), {}, [&] { return ++runs; });
    CHECK(replay.replayed());
    CHECK(replay.value() == 1);
    CHECK(runs == 1);
}

TEST_CASE("R91: whatever fails around saving, the handler runs once and is never released") {
    using idem::testing::Fault;
    using idem::testing::StoreCall;
    const auto fault = GENERATE(Fault::refused, Fault::not_sent, Fault::reply_lost, Fault::throws);
    const auto of = GENERATE(StoreCall::finish, StoreCall::renew);
    Bench b;
    idem::testing::FaultyStore store(b.memory);
    idem::IdempotencyGuard guard(store, {.events = b.events.observer()});
    int runs = 0;
    const auto outcome = guard.run(field_key("R91.any"), {}, [&] {
        store.fail_all(Fault::refused, StoreCall::finish);
        return ++runs;
    });
    CHECK(outcome.executed());
    CHECK_FALSE(outcome.recorded());
    store.heal();
    store.fail_call(1, fault, of);  // of the background
    (void)b.events.wait_for(EventKind::recorded_late);
    store.heal();
    CHECK(guard.run(field_key("R91.any"), {}, [&] { return ++runs; }).replayed());
    CHECK(b.events.count(EventKind::released) == 0);
    CHECK(runs == 1);
}

TEST_CASE("R91: while a result is not saved its claim stays, and is never released") {
    Bench b;
    auto guard = b.guard();
    const auto down = std::make_shared<std::atomic<bool>>(true);
    const auto released = std::make_shared<std::atomic<bool>>(false);
    b.store.on_finish([down, released](const idem::FinishRequest& request) {
        if (request.kind == idem::FinishKind::release) *released = true;
        return *down ? Wire::refused : Wire::good;
    });
    int runs = 0;
    CHECK_FALSE(guard.run(field_key("R91.claim"), {}, [&] { return ++runs; }).recorded());
    b.store.wait_for_finishes(4);
    CHECK(state_of(b, "R91.claim") == State::running);
    const auto meanwhile = guard.run(field_key("R91.claim"), {}, [&] { return ++runs; });
    CHECK(meanwhile.kind() == OutcomeKind::in_progress);
    CHECK(guard.health().unrecorded == 1);
    b.clock.advance(lease - 1ms);
    const auto renewed = b.store.renewals();
    b.store.wait_for_finishes(5);
    CHECK(renewed >= 1);  // the background keeps the lease
    *down = false;
    (void)b.events.wait_for(EventKind::recorded_late);
    CHECK(guard.run(field_key("R91.claim"), {}, [&] { return ++runs; }).replayed());
    CHECK_FALSE(*released);
    CHECK(runs == 1);
}

TEST_CASE("R91: a waiter gets the result as soon as the background has saved it") {
    Bench b;
    auto guard = b.guard();
    const auto down = std::make_shared<std::atomic<bool>>(true);
    b.store.on_finish([down](const auto&) { return *down ? Wire::refused : Wire::good; });
    CHECK_FALSE(guard.run(field_key("R91.waiter"), {}, [] { return 1; }).recorded());
    idem::RunOptions options;
    options.wait = for_ever;
    auto waiter = std::async(std::launch::async, [&] {
        return guard.run(field_key("R91.waiter"), {}, options, [] { return 2; });
    });
    b.store.wait_for_claims(3);
    *down = false;
    const auto outcome = waiter.get();
    CHECK(outcome.replayed());
    CHECK(outcome.value() == 1);
}

TEST_CASE("R91: the background gives up within its bound, says so, and leaves it to the lease") {
    Bench b;
    auto guard = b.guard({.record_retry = 30ms});
    b.store.on_finish([](const auto&) { return Wire::refused; });
    const auto begin = idem::LocalClock::now();
    CHECK_FALSE(guard.run(field_key("R91.always"), {}, [] { return 1; }).recorded());
    (void)b.events.wait_for(EventKind::record_abandoned);
    CHECK(idem::LocalClock::now() - begin >= 30ms);
    CHECK(b.events.count(EventKind::recorded_late) == 0);
    CHECK(b.events.count(EventKind::released) == 0);
    CHECK(state_of(b, "R91.always") == State::running);
    const auto tried = b.store.finishes();
    CHECK(guard.run(field_key("R91.always"), {}, [] { return 2; }).kind() ==
          OutcomeKind::in_progress);
    b.clock.advance(2 * lease);
    b.store.on_finish([](const auto&) { return Wire::good; });
    const auto taken =
        guard.run(field_key("R91.always"), {}, [](Execution& e) { return e.takeover(); });
    CHECK(taken.value());
    CHECK(b.store.finishes() == tried + 1);  // nothing of the old one is tried any more
}

TEST_CASE("R91: a result that comes too late for another owner's is abandoned, and both know") {
    Bench b;
    auto guard = b.guard();
    const auto down = std::make_shared<std::atomic<bool>>(true);
    b.store.on_finish([down](const auto&) { return *down ? Wire::refused : Wire::good; });
    b.store.on_renew([](const auto&) { return Wire::refused; });
    CHECK_FALSE(guard.run(field_key("R91.taken"), {}, [] { return 1; }).recorded());
    b.clock.advance(lease);
    Holder other(b.memory, field_key("R91.taken"));
    CHECK(other.claim().takeover);
    CHECK_FALSE(other.complete(2).lost);
    *down = false;
    CHECK(b.events.wait_for(EventKind::record_abandoned).lost == LostReason::finished);
    CHECK(guard.run(field_key("R91.taken"), {}, [] { return 3; }).value() == 2);
}

// --- rolling back fails -------------------------------------------------------------------------

TEST_CASE("R92: trouble while rolling back never hides the handler's exception") {
    Bench b;
    auto guard = b.guard();
    const Wire how = GENERATE(Wire::refused, Wire::lost, Wire::bad_alloc, Wire::thrown);
    fail_finishes(b, 2, how);
    const auto handler = []() -> int { throw std::domain_error("the original"); };
    try {
        (void)guard.run(field_key("R92"), {}, handler);
        FAIL("nothing was thrown");
    } catch (const std::domain_error& e) {
        CHECK(std::string(e.what()) == "the original");
    }
    CHECK(b.events.count(EventKind::rollback_failed) == 1);
    (void)b.events.wait_for(EventKind::released);  // the background has done it
    const auto retry = guard.run(field_key("R92"), {}, [] { return 1; });
    CHECK(retry.executed());
    CHECK(retry.attempt() == 2);
}

TEST_CASE("R92: the exception that reaches the caller is the very one that was thrown") {
    Bench b;
    auto guard = b.guard();
    const void* thrown = nullptr;
    const auto handler = [&]() -> int {
        try {
            throw std::runtime_error("this one");
        } catch (const std::runtime_error& e) {
            thrown = &e;
            throw;
        }
    };
    try {
        (void)guard.run(field_key("R92.same"), {}, handler);
        FAIL("nothing was thrown");
    } catch (const std::runtime_error& e) {
        CHECK(&e == thrown);
    }
}

// --- whatever is thrown -------------------------------------------------------------------------

TEST_CASE("R94: a throw of any type releases the claim and reaches the caller unchanged") {
    Bench b;
    auto guard = b.guard();
    const auto thrown_by = [&](const char* id, auto error) {
        const auto handler = [&]() -> int { throw error; };
        std::optional<decltype(error)> caught;
        try {
            (void)guard.run(field_key(id), {}, handler);
        } catch (const decltype(error)& e) {
            caught.emplace(e);
        }
        REQUIRE(caught);
        CHECK(state_of(b, id) == State::released);
        CHECK(guard.run(field_key(id), {}, [] { return 1; }).executed());
        return *caught;
    };
    CHECK(thrown_by("R94.int", 42) == 42);
    CHECK(thrown_by("R94.string", std::string("text")) == "text");
    CHECK(std::string(thrown_by("R94.chars", static_cast<const char*>("c"))) == "c");
    CHECK(thrown_by("R94.odd", Odd{7}).value == 7);
    CHECK(thrown_by("R94.null", nullptr) == nullptr);
    CHECK(thrown_by("R94.ptr", std::make_shared<int>(3)) != nullptr);
    CHECK(guard.health().running == 0);
}

// A thread of its own, to be cancelled; `end` waits for it and says how it ended.
class CancellableThread {
public:
    explicit CancellableThread(std::function<void()> step) : step_(std::move(step)) {
        const auto body = [](void* arg) -> void* {
            static_cast<CancellableThread*>(arg)->step_();
            return nullptr;
        };
        if (pthread_create(&thread_, nullptr, body, this) != 0) throw std::bad_alloc{};
    }
    ~CancellableThread() {
        if (!ended_) (void)end();
    }
    CancellableThread(const CancellableThread&) = delete;
    CancellableThread& operator=(const CancellableThread&) = delete;

    void cancel() const { (void)pthread_cancel(thread_); }
    [[nodiscard]] void* end() {
        void* result = nullptr;
        (void)pthread_join(thread_, &result);
        ended_ = true;
        return result;
    }

private:
    std::function<void()> step_;
    pthread_t thread_{};
    bool ended_ = false;
};

[[noreturn]] void cancellation_point() {
    for (;;) {
        pthread_testcancel();
        std::this_thread::yield();
    }
}

// Ends this thread: by itself, or as soon as another one has cancelled it.
[[noreturn]] void end_here(bool cancel) {
    if (!cancel) pthread_exit(reinterpret_cast<void*>(17));
    int old = 0;
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
    cancellation_point();
}

// Runs `step` in a thread that is cancelled at once, and lets that happen only in `end_here`.
void* end_in_handler(const std::function<void()>& step, bool cancel) {
    CancellableThread thread([&] {
        int old = 0;
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
        step();
    });
    if (cancel) thread.cancel();
    return thread.end();
}

TEST_CASE("R94: a thread that is cancelled or exits inside a handler leaves its claim released") {
    Bench b;
    auto guard = b.guard();
    const bool cancel = GENERATE(true, false);
    bool came_back = false;
    void* const result = end_in_handler(
        [&] {
            (void)guard.run(field_key("R94.thread"), {}, [&]() -> int { end_here(cancel); });
            came_back = true;
        },
        cancel);
    CHECK(result == (cancel ? PTHREAD_CANCELED : reinterpret_cast<void*>(17)));
    CHECK_FALSE(came_back);
    CHECK(state_of(b, "R94.thread") == State::released);
    CHECK(guard.health().running == 0);
    const auto retry = guard.run(field_key("R94.thread"), {}, [] { return 1; });
    CHECK(retry.executed());
    CHECK_FALSE(retry.takeover());
}

TEST_CASE("R94: a thread that ends inside a batch handler leaves every claim of the batch free") {
    Bench b;
    auto guard = b.guard();
    const bool cancel = GENERATE(true, false);
    const bool together = GENERATE(true, false);
    const std::vector<idem::BatchCall> calls{{.key = field_key("R94.a")},
                                             {.key = field_key("R94.b")}};
    void* const result = end_in_handler(
        [&] {
            if (together) {
                (void)guard.run_batch(calls, [&](std::span<Execution* const>) -> std::vector<int> {
                    end_here(cancel);
                });
            } else {
                (void)guard.run_batch(calls,
                                      [&](Execution&, std::size_t) -> int { end_here(cancel); });
            }
        },
        cancel);
    CHECK(result == (cancel ? PTHREAD_CANCELED : reinterpret_cast<void*>(17)));
    (void)b.events.wait_for(EventKind::released, 2);
    for (const auto* id : {"R94.a", "R94.b"}) {
        CHECK(state_of(b, id) == State::released);
        CHECK_FALSE(guard.run(field_key(id), {}, [] { return 1; }).takeover());
    }
    CHECK(guard.health().running == 0);
}

TEST_CASE("R94: the user may class an unwound thread, and is given null for it") {
    Bench b;
    const auto given_null = std::make_shared<std::atomic<bool>>(false);
    const auto classify = [given_null](const std::exception_ptr& e) -> std::optional<Failure> {
        *given_null = e == nullptr;
        return Failure{FailureClass::unknown, "unwound", "it may have happened"};
    };
    auto guard = b.guard({.classify = classify});
    (void)end_in_handler(
        [&] { (void)guard.run(field_key("R94.class"), {}, []() -> int { end_here(false); }); },
        false);
    CHECK(*given_null);
    CHECK(guard.run(field_key("R94.class"), {}, [] { return 1; }).kind() == OutcomeKind::unknown);
}

TEST_CASE("R94: a claim in a frame that is destroyed, as a coroutine's, is released") {
    Bench b;
    auto guard = b.guard();
    struct Frame {
        idem::Claim<int> claim;
        std::string local;
    };
    auto made = guard.claim<int>(field_key("R94.frame"), {});
    auto frame = std::make_unique<Frame>(
        Frame{std::move(std::get<idem::Claim<int>>(made)), "suspended here"});
    CHECK(state_of(b, "R94.frame") == State::running);
    std::jthread([&] { frame.reset(); }).join();  // in whichever thread
    CHECK(state_of(b, "R94.frame") == State::released);
    CHECK(guard.health().running == 0);
}

// --- the client is gone -------------------------------------------------------------------------

TEST_CASE("R95: a stop that is requested while the result is saved does not stop the saving") {
    Bench b;
    auto guard = b.guard();
    std::stop_source client;
    b.store.on_finish([client](const auto&) mutable {
        client.request_stop();
        return Wire::good;
    });
    idem::RunOptions options;
    options.stop_token = client.get_token();
    const auto outcome = guard.run(field_key("R95"), {}, options, [] { return 1; });
    CHECK(client.stop_requested());
    CHECK(outcome.recorded());
    CHECK(guard.run(field_key("R95"), {}, [] { return 2; }).replayed());
}

TEST_CASE("R95: a thread that is cancelled while its result is saved saves it first") {
    Bench b;
    auto guard = b.guard();
    std::latch saving(1);
    std::latch cancelled(1);
    b.store.on_finish([&](const idem::FinishRequest& request) {
        if (request.kind != idem::FinishKind::complete) return Wire::good;
        saving.count_down();
        cancelled.wait();
        pthread_testcancel();  // as a socket would
        return Wire::good;
    });
    std::atomic<bool> came_back{false};
    CancellableThread thread([&] {
        (void)guard.run(field_key("R95.cancel"), {}, [] { return 1; });
        pthread_testcancel();
        came_back = true;
    });
    saving.wait();
    thread.cancel();
    cancelled.count_down();
    CHECK(thread.end() == PTHREAD_CANCELED);
    CHECK_FALSE(came_back);
    CHECK(state_of(b, "R95.cancel") == State::succeeded);
    CHECK(guard.run(field_key("R95.cancel"), {}, [] { return 2; }).value() == 1);
}

TEST_CASE("R95: a thread that is cancelled while it claims leaves its key free") {
    Bench b;
    auto guard = b.guard();
    const bool applied = GENERATE(true, false);
    const auto on = std::make_shared<std::atomic<bool>>(true);
    std::latch claiming(1);
    const auto stop_here = [&, on] {
        if (!on->exchange(false)) return;
        claiming.count_down();
        cancellation_point();
    };
    if (applied) {
        b.store.after_claim([=](const auto&, const auto&) { stop_here(); });
    } else {
        b.store.on_claim([=](const auto&) { return stop_here(), Wire::good; });
    }
    CancellableThread thread(
        [&] { (void)guard.run(field_key("R95.claim"), {}, [] { return 1; }); });
    claiming.wait();
    thread.cancel();
    CHECK(thread.end() == PTHREAD_CANCELED);
    (void)b.events.wait_for(EventKind::released);
    const auto outcome = guard.run(field_key("R95.claim"), {}, [] { return 2; });
    CHECK(outcome.executed());
    CHECK(outcome.attempt() == 1);
    CHECK(guard.health().running == 0);
}

// --- waiting ------------------------------------------------------------------------------------

TEST_CASE("R97: a stop that is requested during a wait ends it, typed, and runs nothing") {
    Bench b;
    auto guard = b.guard();
    Holder holder(b.memory, field_key("R97"));
    (void)holder.claim();
    std::stop_source stop;
    idem::RunOptions options;
    options.wait = for_ever;
    options.stop_token = stop.get_token();
    int runs = 0;
    auto waiter = std::async(std::launch::async, [&] {
        return guard.run(field_key("R97"), {}, options, [&] { return ++runs; });
    });
    b.store.wait_for_claims(3);
    stop.request_stop();
    const auto outcome = waiter.get();
    CHECK(outcome.kind() == OutcomeKind::cancelled);
    CHECK_FALSE(outcome.has_value());
    CHECK(runs == 0);
    CHECK(b.events.count(EventKind::cancelled) == 1);
    CHECK(b.find(field_key("R97"))->header.owner == holder.owner);

    // Requested before, too; but an answer that is there already is given.
    CHECK(guard.run(field_key("R97"), {}, options, [&] { return ++runs; }).kind() ==
          OutcomeKind::cancelled);
    (void)holder.complete(7);
    CHECK(guard.run(field_key("R97"), {}, options, [&] { return ++runs; }).value() == 7);
}

TEST_CASE("R97: a waiter whose thread is cancelled goes without a trace") {
    Bench b;
    auto guard = b.guard();
    Holder holder(b.memory, field_key("R97.cancel"));
    (void)holder.claim();
    idem::RunOptions options;
    options.wait = for_ever;
    CancellableThread thread(
        [&] { (void)guard.run(field_key("R97.cancel"), {}, options, [] { return 1; }); });
    b.store.wait_for_claims(3);
    thread.cancel();
    CHECK(thread.end() == PTHREAD_CANCELED);
    CHECK(guard.health().running == 0);
    CHECK_FALSE(holder.complete(7).lost);
    CHECK(guard.run(field_key("R97.cancel"), {}, [] { return 2; }).value() == 7);
}

TEST_CASE("R97: many waiters are told of the result, and those who give up do not disturb them") {
    Bench b;
    auto guard = b.guard({.wait = for_ever});
    std::latch taken(1);
    std::latch go(1);
    auto holder = std::async(std::launch::async, [&] {
        return guard.run(field_key("R97.many"), {}, [&] {
            taken.count_down();
            go.wait();
            return 97;
        });
    });
    taken.wait();
    std::stop_source stop;
    std::atomic<int> replayed{0};
    std::atomic<int> cancelled{0};
    {
        std::vector<std::jthread> waiters;
        for (int i = 0; i < 12; ++i) {
            waiters.emplace_back([&, gives_up = i % 3 == 0] {
                idem::RunOptions options;
                if (gives_up) options.stop_token = stop.get_token();
                const auto outcome =
                    guard.run(field_key("R97.many"), {}, options, [] { return -1; });
                if (outcome.replayed() && outcome.value() == 97) replayed.fetch_add(1);
                if (outcome.kind() == OutcomeKind::cancelled) cancelled.fetch_add(1);
            });
        }
        b.store.wait_for_claims(1 + 24);
        stop.request_stop();
        (void)b.events.wait_for(EventKind::cancelled, 4);
        go.count_down();
    }
    CHECK(holder.get().executed());
    CHECK(cancelled == 4);
    CHECK(replayed == 8);
}

// --- claims that nobody finishes ----------------------------------------------------------------

TEST_CASE("R98: a claim that goes out of scope is released, on any path") {
    Bench b;
    auto guard = b.guard();
    const auto open = [&](const char* id) {
        return std::get<idem::Claim<int>>(guard.claim<int>(field_key(id), {}));
    };
    const auto returns = [&] { const auto claim = open("R98.return"); };
    const auto throws = [&] {
        const auto claim = open("R98.throw");
        throw 1;
    };
    const auto replaces = [&] {
        auto claim = open("R98.first");
        claim = open("R98.second");
        CHECK(state_of(b, "R98.first") == State::released);
        CHECK(state_of(b, "R98.second") == State::running);
    };
    returns();
    CHECK_THROWS_AS(throws(), int);
    replaces();
    for (const auto* id : {"R98.return", "R98.throw", "R98.first", "R98.second"}) {
        CHECK(state_of(b, id) == State::released);
        CHECK(guard.run(field_key(id), {}, [] { return 1; }).executed());
    }
    CHECK(guard.health().running == 0);
}

TEST_CASE("R98: a destructor throws nothing whatever the store does, and asks it once") {
    Bench b;
    auto guard = b.guard();
    const Wire how = GENERATE(Wire::refused, Wire::lost, Wire::bad_alloc, Wire::thrown);
    const auto mine = std::this_thread::get_id();
    const auto asked = std::make_shared<std::atomic<int>>(0);
    const auto down = std::make_shared<std::atomic<bool>>(true);
    b.store.on_finish([=](const auto&) {
        if (std::this_thread::get_id() == mine) asked->fetch_add(1);
        return *down ? how : Wire::good;
    });
    { const auto made = guard.claim<int>(field_key("R98.down"), {}); }
    CHECK(*asked == 1);
    CHECK(b.events.count(EventKind::rollback_failed) == 1);
    *down = false;
    (void)b.events.wait_for(EventKind::released);
    CHECK(guard.run(field_key("R98.down"), {}, [] { return 1; }).executed());
}

TEST_CASE("R98: a claim that was taken over is not touched by its destructor") {
    Bench b;
    auto guard = b.guard({.heartbeat = false});
    Holder other(b.memory, field_key("R98.lost"));
    {
        const auto made = guard.claim<int>(field_key("R98.lost"), {});
        b.clock.advance(lease);
        REQUIRE(other.claim().takeover);
    }
    CHECK(b.find(field_key("R98.lost"))->header.owner == other.owner);
    CHECK(state_of(b, "R98.lost") == State::running);
    CHECK_FALSE(other.complete(1).lost);
}

TEST_CASE("R98: a claim outlives the guard and the store that it came from") {
    std::optional<idem::Claim<int>> claim;
    idem_test::Recorder events;
    std::optional<idem::MemoryStore> copy;
    {
        Bench b;
        copy.emplace(b.memory);
        idem::IdempotencyGuard guard(b.memory, {.events = events.observer()});
        auto made = guard.claim<int>(field_key("R98.guard"), {});
        claim.emplace(std::move(std::get<idem::Claim<int>>(made)));
    }
    CHECK(std::move(*claim).complete(98).recorded());
    idem::IdempotencyGuard later(*copy);
    CHECK(later.run(field_key("R98.guard"), {}, [] { return 1; }).value() == 98);
}

// --- what callers are told ----------------------------------------------------------------------

// One outcome of each kind that a call without tokens can have.
std::vector<idem::Outcome<int>> one_of_each(Bench& b) {
    auto guard = b.guard();
    const auto p = idem::Fingerprint::of_bytes("P");
    const auto q = idem::Fingerprint::of_bytes("Q");
    std::vector<idem::Outcome<int>> out;
    out.push_back(guard.run(field_key("R100"), p, [] { return 1; }));
    out.push_back(guard.run(field_key("R100"), p, [] { return 1; }));
    out.push_back(guard.run(field_key("R100"), q, [] { return 1; }));
    out.push_back(settle_error(b, "R100.failed", Declined{422}));
    out.push_back(settle_error(b, "R100.unknown", Declined{504}));
    Holder holder(b.memory, field_key("R100.held"));
    (void)holder.claim();
    b.clock.advance(10s);
    out.push_back(guard.run(field_key("R100.held"), {}, [] { return 1; }));
    idem::RunOptions stopped;
    std::stop_source stop;
    stop.request_stop();
    stopped.wait = for_ever;
    stopped.stop_token = stop.get_token();
    out.push_back(guard.run(field_key("R100.held"), {}, stopped, [] { return 1; }));
    idem::RunOptions redeem;
    redeem.redeem_only = true;
    out.push_back(guard.run(field_key("R100.absent"), {}, redeem, [] { return 1; }));
    Holder token(b.memory, field_key("R100.token"));
    CHECK(
        idem::issue_one(
            b.memory, {.key = token.view(), .owner = token.owner, .validity = 1s, .retention = 1h})
            .issued);
    b.clock.advance(1s);
    out.push_back(guard.run(field_key("R100.token"), {}, redeem, [] { return 1; }));
    return out;
}

TEST_CASE("R100: each outcome is a code of its own, and comes with what is known") {
    Bench b;
    const auto outcomes = one_of_each(b);
    const std::vector<OutcomeKind> kinds{
        OutcomeKind::executed,  OutcomeKind::replayed, OutcomeKind::mismatch,
        OutcomeKind::failed,    OutcomeKind::unknown,  OutcomeKind::in_progress,
        OutcomeKind::cancelled, OutcomeKind::absent,   OutcomeKind::expired};
    std::set<std::string> names;
    REQUIRE(outcomes.size() == kinds.size());
    for (std::size_t i = 0; i < kinds.size(); ++i) {
        INFO(to_string(kinds[i]));
        CHECK(outcomes[i].kind() == kinds[i]);
        CHECK(outcomes[i].has_value() == (i < 2));
        CHECK(outcomes[i].recorded());
        names.insert(to_string(outcomes[i].kind()));
    }
    CHECK(names.size() == kinds.size());
    CHECK(outcomes[0].fence() > 0);
    CHECK(outcomes[1].first_used() == idem::testing::ManualClock::start);
    CHECK(outcomes[1].attempt() == 1);
    CHECK(outcomes[3].failure().code == "422");
    CHECK(outcomes[5].retry_after() == lease - 10s);
    CHECK(outcomes[5].first_used() == idem::testing::ManualClock::start);
    CHECK(outcomes[5].attempt() == 1);
}

TEST_CASE("R100: failures of the library are classes of one root, told apart by what to do next") {
    Bench b;
    auto guard = b.guard();
    const auto call = [&] { return guard.run(field_key("R100.error"), {}, [] { return 1; }); };
    b.store.on_claim([](const auto&) { return Wire::refused; });
    CHECK_THROWS_AS(call(), idem::UnavailableError);
    CHECK_THROWS_AS(call(), idem::Error);
    try {
        (void)call();
    } catch (const idem::UnavailableError& e) {
        CHECK_FALSE(e.may_have_applied());
    }
    static_assert(std::is_base_of_v<idem::Error, idem::LeaseLostError>);
    static_assert(std::is_base_of_v<idem::Error, idem::CodecError>);
    static_assert(std::is_base_of_v<idem::Error, idem::SchemaError>);
    static_assert(std::is_base_of_v<idem::Error, idem::ConflictError>);
    static_assert(std::is_base_of_v<idem::Error, idem::UsageError>);
    static_assert(std::is_base_of_v<std::runtime_error, idem::Error>);
}

TEST_CASE("R101: in progress says when to try again; a mismatch does not ask to be retried") {
    Bench b;
    const auto outcomes = one_of_each(b);
    for (const auto& outcome : outcomes) {
        INFO(to_string(outcome.kind()));
        const bool again =
            outcome.kind() == OutcomeKind::in_progress || outcome.kind() == OutcomeKind::cancelled;
        CHECK((outcome.retry_after() > idem::Duration{}) == again);
    }
}

// The thread is cancelled in the caller's own code, where only its result is left to do.
TEST_CASE("R95: a thread that is cancelled while its result is encoded records it first") {
    Bench b;
    auto guard = b.guard();
    void* result = nullptr;
    {
        CancellableThread thread([&] {
            (void)guard.run(field_key("R95.encode"), {}, [] { return Cancelling{7}; });
            cancellation_point();
        });
        result = thread.end();
    }
    CHECK(result == PTHREAD_CANCELED);
    CHECK(b.find(field_key("R95.encode"))->header.state == State::succeeded);
}

}  // namespace field_failures_test
