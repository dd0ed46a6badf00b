// When to try again, and when not to.

#include <chrono>
#include <cstdint>
#include <limits>
#include <random>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <idem/retry.hpp>

#include "support/catch.hpp"

namespace retry_test {

using namespace std::chrono_literals;
using idem::Duration;
using idem::FailedTry;
using idem::FailureClass;
using idem::Jitter;
using idem::RetryPolicy;

TEST_CASE("retry: pauses grow by their factor up to the longest", "[retry]") {
    const RetryPolicy policy{.first = 100ms, .factor = 3, .longest = 1s};
    CHECK(idem::computed_pause(policy, 1) == 100ms);
    CHECK(idem::computed_pause(policy, 2) == 300ms);
    CHECK(idem::computed_pause(policy, 3) == 900ms);
    CHECK(idem::computed_pause(policy, 4) == 1s);
    for (const auto attempt : {1U << 10U, 1U << 31U, std::numeric_limits<std::uint32_t>::max()})
        CHECK(idem::computed_pause(policy, attempt) == 1s);
    CHECK(idem::computed_pause(policy, 0) == 100ms);
    const RetryPolicy steady{.first = 5ms, .factor = 1, .longest = 1h};
    CHECK(idem::computed_pause(steady, std::numeric_limits<std::uint32_t>::max()) == 5ms);
}

TEST_CASE("retry: a table gives the pauses one by one, and its last one goes on", "[retry]") {
    const RetryPolicy policy{.longest = 1s, .table = {10s, 30s, 60s, 180s}};
    const std::vector<Duration> expected = {10s, 30s, 60s, 180s, 180s};
    for (std::uint32_t attempt = 1; attempt <= 5; ++attempt)
        CHECK(idem::computed_pause(policy, attempt) == expected[attempt - 1]);
    CHECK(idem::computed_pause(policy, 1U << 31U) == 180s);
}

TEST_CASE("retry: jitter stays between its bounds, and reaches both ends", "[retry]") {
    RetryPolicy policy{.attempts = 0, .first = 3us, .factor = 1, .longest = 3us};
    const auto seen = [&](Jitter jitter) {
        policy.jitter = jitter;
        std::mt19937_64 random(1);
        std::vector<int> out(5);
        for (int i = 0; i < 1000; ++i) {
            const auto pause = idem::next_pause(policy, {.attempt = 7}, random());
            ++out.at(static_cast<std::size_t>(pause.value().count()));
        }
        std::string met;
        for (const int count : out) met += count > 0 ? 'x' : '.';
        return met;
    };
    CHECK(seen(Jitter::none) == "...x.");
    CHECK(seen(Jitter::full) == "xxxx.");
    CHECK(seen(Jitter::half) == ".xxx.");
    CHECK(idem::next_pause(policy, {}, std::numeric_limits<std::uint64_t>::max()).has_value());
}

TEST_CASE("retry: there is no next try for what is not retryable, or when attempts or time are up",
          "[retry]") {
    const RetryPolicy policy{
        .attempts = 3, .first = 10s, .factor = 1, .jitter = Jitter::none, .budget = 60s};
    const auto next = [&](FailedTry failed) { return idem::next_pause(policy, failed, 0); };
    for (const auto kind :
         {FailureClass::none, FailureClass::final, FailureClass::unknown, FailureClass::exhausted})
        CHECK_FALSE(next({.kind = kind}));
    CHECK(next({.attempt = 2}) == 10s);
    CHECK_FALSE(next({.attempt = 3}));
    CHECK_FALSE(next({.attempt = 1U << 31U}));
    CHECK(next({.attempt = 1, .elapsed = 50s}) == 10s);
    CHECK_FALSE(next({.attempt = 1, .elapsed = 50s + 1us}));
    CHECK_FALSE(next({.attempt = 1, .elapsed = 24h * 3650}));
    CHECK(next({.attempt = 1, .retry_after = 40s}) == 40s);
    CHECK_FALSE(next({.attempt = 1, .retry_after = 61s}));
    RetryPolicy endless = policy;
    endless.attempts = 0;
    endless.budget = {};
    CHECK(idem::next_pause(endless, {.attempt = 1U << 31U}, 0) == 10s);
    CHECK(idem::next_pause(endless, {.retry_after = Duration::max()}, 0) == idem::duration_max);
}

/// How often `work` is called, and how often it is waited for.
struct Tries {
    int calls = 0;
    std::vector<Duration> pauses{};
    idem::RetryOptions options{};

    Tries() {
        options.sleep = [this](Duration pause) {
            pauses.push_back(pause);
            return true;
        };
    }
};

TEST_CASE("retry: calls until it works, and the last exception passes through unchanged",
          "[retry]") {
    const RetryPolicy policy{.attempts = 4, .first = 1s, .factor = 2, .jitter = Jitter::none};
    Tries works;
    CHECK(idem::retry(policy, works.options, [&] {
              if (++works.calls < 3) throw std::runtime_error("not yet");
              return 5;
          }) == 5);
    CHECK(works.pauses == std::vector<Duration>{1s, 2s});
    Tries never;
    CHECK_THROWS_WITH(idem::retry(policy, never.options,
                                  [&] { throw std::runtime_error(std::to_string(++never.calls)); }),
                      "4");
    CHECK(never.pauses == std::vector<Duration>{1s, 2s, 4s});
    Tries odd;
    CHECK_THROWS_AS(idem::retry(policy, odd.options,
                                [&] {
                                    ++odd.calls;
                                    throw 7;
                                }),
                    int);
    CHECK(odd.calls == 4);
}

TEST_CASE("M103 what is final or of unknown outcome is not tried again, and the caller may say so",
          "[retry][field]") {
    const auto calls_for = [](auto thrown, const idem::Classify& classify = {}) {
        Tries tries;
        tries.options.classify = classify;
        try {
            idem::retry(RetryPolicy{.attempts = 3}, tries.options, [&] {
                ++tries.calls;
                throw thrown;
            });
        } catch (...) {
        }
        return tries.calls;
    };
    CHECK(calls_for(idem::FinalError("422", "no such codec")) == 1);
    CHECK(calls_for(idem::UnknownOutcomeError("timed out")) == 1);
    CHECK(calls_for(idem::UnavailableError("away")) == 3);
    CHECK(calls_for(std::runtime_error("x")) == 3);
    const idem::Classify all_final = [](const std::exception_ptr&) {
        return idem::Failure{FailureClass::final, "x", {}};
    };
    CHECK(calls_for(std::runtime_error("x"), all_final) == 1);
}

TEST_CASE("retry: a stop ends the pause at once", "[retry]") {
    std::stop_source source;
    int calls = 0;
    idem::RetryOptions options;
    options.stop = source.get_token();
    options.on_pause = [&](const idem::Failure& failure, Duration pause) {
        CHECK(failure.message == "again");
        CHECK(pause == 1h);
        source.request_stop();
    };
    const RetryPolicy policy{.first = 1h, .longest = 1h, .jitter = Jitter::none};
    CHECK_THROWS_AS(idem::retry(policy, options,
                                [&] {
                                    ++calls;
                                    throw std::runtime_error("again");
                                }),
                    std::runtime_error);
    CHECK(calls == 1);
}

TEST_CASE("retry: a policy that cannot be meant is refused by the name of its field", "[retry]") {
    const auto refused = [](RetryPolicy policy) {
        try {
            idem::retry(policy, [] {});
        } catch (const idem::UsageError& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    CHECK(refused({}) == "");
    CHECK(refused({.first = 0s}).find("RetryPolicy::first") == 0);
    CHECK(refused({.factor = 0.99}).find("RetryPolicy::factor") == 0);
    CHECK(
        refused({.factor = std::numeric_limits<double>::quiet_NaN()}).find("RetryPolicy::factor") ==
        0);
    CHECK(refused({.longest = -1s}).find("RetryPolicy::longest") == 0);
    CHECK(refused({.table = {1s, -1s}}).find("RetryPolicy::table") == 0);
    CHECK(refused({.budget = -1s}).find("RetryPolicy::budget") == 0);
}

}  // namespace retry_test
