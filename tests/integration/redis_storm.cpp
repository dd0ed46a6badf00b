// Sixteen threads on one store while the server is killed, stopped, paused, flushed and cut off:
// no wrong or foreign reply, no lost result, and all goes on without a new store.

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/eventually.hpp"
#include "support/redis_requests.hpp"

namespace {

using namespace std::chrono_literals;
using idem::ClaimKind;
using idem_test::RedisCli;
using idem_test::RedisServer;

/// The threads, and what they found wrong.
class Storm {
public:
    explicit Storm(idem::RedisOptions options) : store_(std::move(options)) {
        for (int i = 0; i < 16; ++i) threads_.emplace_back([this, i] { work(i); });
    }
    Storm(const Storm&) = delete;
    Storm& operator=(const Storm&) = delete;
    ~Storm() { stop(); }

    void stop() {
        stop_.store(true);
        for (auto& thread : threads_)
            if (thread.joinable()) thread.join();
    }
    /// Waits until all threads together have finished some more keys.
    bool goes_on() {
        const long from = finished_.load();
        return idem_test::eventually([&] { return finished_.load() >= from + 32; });
    }
    /// Waits until somebody was told that the server does not answer.
    bool is_hurt() {
        const long from = troubles_.load();
        return idem_test::eventually([&] { return troubles_.load() > from; });
    }
    /// Everything that was acknowledged is there, and was run once.
    void check() {
        stop();
        INFO(wrong_);
        CHECK(wrong_.empty());
        CHECK(finished_.load() > 64);
        std::size_t shared = 0;
        for (const auto& [id, runs] : runs_) {
            INFO(id);
            CHECK(runs == 1);
            if (id[0] == 's') ++shared;
            const auto found = idem::find_one(store_, idem_test::view_of({"storm", id}));
            REQUIRE(found.trouble.message == "");
            REQUIRE(found.record.has_value());
            CHECK(found.record->header.state == idem::State::succeeded);
            CHECK(found.record->payload.result == id);
        }
        CHECK(shared > 4);
    }

private:
    void work(int number) {
        for (int n = 0; !stop_.load() && ok(); ++n) {
            run("t" + std::to_string(number) + "-" + std::to_string(n));
            // All sixteen want the same one at the same time.
            run("s" + std::to_string(n));
            finished_.fetch_add(1);
        }
    }

    /// The same again until the store has answered.
    template <class Ask>
    auto insist(const std::string& id, const Ask& ask) {
        const auto deadline = idem_test::in_seconds(60);
        for (;;) {
            auto reply = ask();
            if (!reply.trouble) return reply;
            troubles_.fetch_add(1);
            const bool hopeless = reply.trouble.kind != idem::Trouble::Kind::unavailable ||
                                  idem::LocalClock::now() > deadline;
            if (hopeless) {
                note(id + ": " + reply.trouble.message);
                return reply;
            }
        }
    }

    void run(const std::string& id) {
        const idem::Key key{"storm", id};
        const auto owner = idem_test::random_owner();
        const auto reply = insist(id, [&] { return idem::claim_one(store_, claim(key, owner)); });
        if (reply.kind == ClaimKind::acquired) {
            {
                const std::lock_guard lock(mutex_);
                ++runs_[id];
            }
            const auto done = insist(id, [&] {
                return idem::finish_one(store_,
                                        idem_test::complete_of(key, owner, reply.fence, id));
            });
            if (done.lost || done.state != idem::State::succeeded) note(id + ": complete was lost");
            const auto again = insist(
                id, [&] { return idem::claim_one(store_, claim(key, idem_test::random_owner())); });
            if (again.kind != ClaimKind::completed) note(id + ": no repeat");
            if (again.result != id) note(id + ": a foreign reply: " + again.result);
        } else if (reply.kind == ClaimKind::completed) {
            if (reply.result != id) note(id + ": a foreign reply: " + reply.result);
        } else if (reply.kind != ClaimKind::in_progress) {
            note(id + ": " + idem::to_string(reply.kind));
        }
    }

    [[nodiscard]] static idem::ClaimRequest claim(const idem::Key& key, const idem::Owner& owner) {
        auto out = idem_test::claim_of(key, owner);
        out.lease = 10min;  // nothing here is about leases
        return out;
    }

    void note(const std::string& what) {
        const std::lock_guard lock(mutex_);
        if (wrong_.size() < 2000) wrong_ += what + "\n";
    }
    [[nodiscard]] bool ok() {
        const std::lock_guard lock(mutex_);
        return wrong_.empty();
    }

    idem::RedisStore store_;
    std::mutex mutex_{};
    std::map<std::string, int> runs_{};
    std::string wrong_{};
    std::atomic<bool> stop_{false};
    std::atomic<long> finished_{0};
    std::atomic<long> troubles_{0};
    std::vector<std::thread> threads_{};
};

idem::RedisOptions stormy(const RedisServer& server) {
    auto options = idem_test::quick(server.url());
    options.connections = 8;
    options.command_timeout = 200ms;
    return options;
}

/// Disturbs so many times, and asks each time that it goes on afterwards.
void disturb(RedisServer& server, int times,
             const std::function<void(Storm&, RedisCli&)>& what) {
    Storm storm(stormy(server));
    RedisCli cli(server.url());
    REQUIRE(storm.goes_on());
    for (int i = 0; i < times; ++i) {
        what(storm, cli);
        CHECK(storm.goes_on());
    }
    storm.check();
    CHECK(idem_test::without_ttl(cli) == "");
}

TEST_CASE("Redis: sixteen threads, and scripts are flushed", "[integration][redis][storm]") {
    RedisServer server;
    disturb(server, 50, [](Storm&, RedisCli& cli) { (void)cli({"SCRIPT", "FLUSH"}); });
}

TEST_CASE("Redis: sixteen threads, and clients are killed", "[integration][redis][storm]") {
    RedisServer server;
    disturb(server, 30, [](Storm&, RedisCli& cli) {
        (void)cli({"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"});
    });
}

TEST_CASE("Redis: sixteen threads, and clients are paused", "[integration][redis][storm]") {
    RedisServer server;
    int round = 0;
    disturb(server, 6, [&](Storm&, RedisCli& cli) {
        (void)cli({"CLIENT", "PAUSE", "300", ++round % 2 == 0 ? "ALL" : "WRITE"});
    });
}

TEST_CASE("Redis: sixteen threads, and the server sleeps", "[integration][redis][storm]") {
    RedisServer server;
    disturb(server, 4, [](Storm&, RedisCli& cli) { (void)cli({"DEBUG", "SLEEP", "0.4"}); });
}

TEST_CASE("Redis: sixteen threads, and the server's process is stopped and goes on",
          "[integration][redis][storm]") {
    RedisServer server;
    disturb(server, 4, [&](Storm& storm, RedisCli&) {
        server.signal(SIGSTOP);
        CHECK(storm.is_hurt());
        server.signal(SIGCONT);
    });
}

TEST_CASE("Redis: sixteen threads, and the server is killed and comes back with its log",
          "[integration][redis][storm]") {
    RedisServer server({"--appendonly", "yes", "--appendfsync", "always"});
    Storm storm(stormy(server));
    REQUIRE(storm.goes_on());
    for (int i = 0; i < 3; ++i) {
        server.end(SIGKILL);
        CHECK(storm.is_hurt());
        server.start();
        CHECK(storm.goes_on());
    }
    storm.check();
    RedisCli cli(server.url());
    CHECK(idem_test::without_ttl(cli) == "");
}

}  // namespace
