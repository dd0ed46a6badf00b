// Many threads on one real Redis through CombiningStore: what it costs, and what a process that
// dies in the middle of a batch leaves to the others.

#include <atomic>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <idem/idem.hpp>
#include <idem/testing/faulty_store.hpp>

#include "support/catch.hpp"
#include "support/eventually.hpp"
#include "support/redis_requests.hpp"
#include "support/storm.hpp"

namespace redis_combining_test {

using namespace std::chrono_literals;
using idem::ClaimKind;
using idem_test::claim_of;
using idem_test::complete_of;
using idem_test::eventually;
using idem_test::options_for;
using idem_test::random_owner;
using idem_test::RedisServer;
using idem_test::shared_redis;
using Combining = idem::CombiningStore<idem::RedisStore>;

/// Runs `work(thread)` in so many threads, all at once.
template <class Work>
void in_threads(int count, const Work& work) {
    std::atomic<int> ready{0};
    std::vector<std::jthread> threads;
    for (int t = 0; t < count; ++t)
        threads.emplace_back([&, t] {
            ++ready;
            while (ready < count) std::this_thread::yield();
            work(t);
        });
    for (auto& thread : threads) thread.join();
}

TEST_CASE("combining on Redis: 64 threads need an eighth of the round trips at most",
          "[integration][redis]") {
    const idem::RedisStore redis(options_for(shared_redis().url()));
    const Combining store(redis);
    idem::IdempotencyGuard<Combining> guard(store, {.lease = 1min});
    std::atomic<int> wrong{0};
    in_threads(64, [&](int thread) {
        for (int i = 0; i < 40; ++i) {
            const std::string id = std::to_string(thread) + "-" + std::to_string(i);
            for (const bool first : {true, false}) {
                const auto outcome = guard.run(idem::Key{"s", id}, {}, [&] { return id; });
                if (outcome.executed() != first || outcome.value() != id) ++wrong;
            }
        }
    });
    CHECK(wrong == 0);
    const auto usage = store.usage();
    CHECK(usage.items == 64 * 40 * 3);
    INFO(usage.items << " operations, " << redis.traffic().round_trips << " round trips");
    CHECK(redis.traffic().round_trips * 8 <= usage.items);
}

TEST_CASE("combining on Redis: one key that all want costs a batch one round trip",
          "[integration][redis]") {
    auto options = options_for(shared_redis().url());
    options.look_first = false;
    idem::RedisStore redis(options);
    const idem::Key key{"s", "hot"};
    std::vector<idem::ClaimRequest> batch;
    for (int i = 0; i < 64; ++i) batch.push_back(claim_of(key, random_owner()));
    std::vector<idem::ClaimReply> replies(batch.size());
    redis.claim(batch, replies);  // brings the script
    const auto before = redis.traffic().round_trips;
    replies.assign(batch.size(), {});
    redis.claim(batch, replies);
    CHECK(redis.traffic().round_trips == before + 1);
    CHECK(replies[0].kind == ClaimKind::acquired);  // the same owner again
    for (std::size_t i = 1; i < replies.size(); ++i)
        CHECK(replies[i].kind == ClaimKind::in_progress);
}

TEST_CASE("combining on Redis: sixteen threads, and clients are killed",
          "[integration][redis][storm]") {
    RedisServer server;
    idem_test::RedisCli cli(server.url());
    auto options = idem_test::quick(server.url());
    options.command_timeout = 200ms;
    idem_test::Storm<Combining> storm{Combining(idem::RedisStore(options))};
    REQUIRE(storm.goes_on());
    for (int i = 0; i < 20; ++i) {
        (void)cli({"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"});
        CHECK(storm.goes_on());
    }
    storm.check();
}

/// Claims eight keys at once, seven of them as one batch, and stops for ever when the server has
/// taken it.
[[noreturn]] void die_in_a_batch(const idem::RedisOptions& options) {
    using Faulty = idem::testing::FaultyStore<idem::RedisStore>;
    Faulty faulty{idem::RedisStore(options)};
    idem::CombiningStore<Faulty> store(faulty);
    std::atomic<int> calls{0};
    faulty.before([&](idem::testing::StoreCall) {
        if (++calls == 1) (void)eventually([&] { return store.usage().waiting == 7; });
    });
    faulty.after([&](idem::testing::StoreCall) {
        if (calls != 2) return;
        idem::RedisStore direct(options);
        const idem::Key sent{"kill", "sent"};
        (void)idem::claim_one(direct, claim_of(sent, random_owner()));
        for (;;) pause();
    });
    in_threads(8, [&](int thread) {
        const idem::Key key{"kill", std::to_string(thread)};
        auto claim = claim_of(key, random_owner());
        claim.lease = 1s;
        (void)idem::claim_one(store, claim);
    });
    _exit(0);
}

TEST_CASE("combining on Redis: a process killed inside a batch harms no other, and its claims end",
          "[integration][redis][fork]") {
    const auto options = options_for(shared_redis().url());
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        alarm(120);
        die_in_a_batch(options);
    }
    Combining store{idem::RedisStore(options)};
    const auto state = [&](const std::string& id) {
        const idem::Key key{"kill", id};
        return idem::find_one(store, idem_test::view_of(key)).record;
    };
    CHECK(eventually([&] { return state("sent").has_value(); }));
    CHECK(kill(child, SIGKILL) == 0);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    for (int i = 0; i < 8; ++i) {
        REQUIRE(state(std::to_string(i)));
        CHECK(state(std::to_string(i))->header.state == idem::State::running);
    }
    const idem::Key other{"kill", "other"};
    CHECK(idem::claim_one(store, claim_of(other, random_owner())).kind == ClaimKind::acquired);
    for (int i = 0; i < 8; ++i) {
        const idem::Key key{"kill", std::to_string(i)};
        idem::ClaimReply reply;
        CHECK(eventually([&] {
            reply = idem::claim_one(store, claim_of(key, random_owner()));
            return reply.kind == ClaimKind::acquired;
        }));
        CHECK(reply.takeover);
    }
}

}  // namespace redis_combining_test
