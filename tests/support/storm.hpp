#ifndef IDEM_TESTS_SUPPORT_STORM_HPP
#define IDEM_TESTS_SUPPORT_STORM_HPP

#include <atomic>
#include <chrono>
#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <idem/store.hpp>

#include "support/catch.hpp"
#include "support/eventually.hpp"
#include "support/requests.hpp"

namespace idem_test {

/// Sixteen threads on one store, while a test disturbs its servers: what they found wrong.
template <idem::store Store>
class Storm {
public:
    explicit Storm(Store store) : store_(std::move(store)) {
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
        return eventually([&] { return finished_.load() >= from + 32; });
    }
    /// Waits until somebody was told that the server does not answer.
    bool is_hurt() {
        const long from = troubles_.load();
        return eventually([&] { return troubles_.load() > from; });
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
            const auto found = idem::find_one(store_, view_of({"storm", id}));
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
        const auto deadline = in_seconds(60);
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
        const auto owner = random_owner();
        const auto reply = insist(id, [&] { return idem::claim_one(store_, claim(key, owner)); });
        if (reply.kind == idem::ClaimKind::acquired) {
            {
                const std::lock_guard lock(mutex_);
                ++runs_[id];
            }
            const auto done = insist(id, [&] {
                return idem::finish_one(store_, complete_of(key, owner, reply.fence, id));
            });
            if (done.lost || done.state != idem::State::succeeded) note(id + ": complete was lost");
            const auto again =
                insist(id, [&] { return idem::claim_one(store_, claim(key, random_owner())); });
            if (again.kind != idem::ClaimKind::completed) note(id + ": no repeat");
            if (again.result != id) note(id + ": a foreign reply: " + again.result);
        } else if (reply.kind == idem::ClaimKind::completed) {
            if (reply.result != id) note(id + ": a foreign reply: " + reply.result);
        } else if (reply.kind != idem::ClaimKind::in_progress) {
            note(id + ": " + idem::to_string(reply.kind));
        }
    }

    [[nodiscard]] static idem::ClaimRequest claim(const idem::Key& key, const idem::Owner& owner) {
        auto out = claim_of(key, owner);
        out.lease = std::chrono::minutes{10};  // nothing here is about leases
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

    Store store_;
    std::mutex mutex_{};
    std::map<std::string, int> runs_{};
    std::string wrong_{};
    std::atomic<bool> stop_{false};
    std::atomic<long> finished_{0};
    std::atomic<long> troubles_{0};
    std::vector<std::jthread> threads_{};
};

}  // namespace idem_test

#endif
