// Every order in which callers of a TieredStore can meet, with the front lost or set back at every
// step, on the store itself: each caller stops before every call of front or back, and goes on when
// it is its turn. What must hold: one effect, no answer that the back never gave, and nothing in
// the front that the back has not said.
//
// Prints how many orders were tried and which events they met. An event that never came is a
// failure: its case would have shown nothing.

#include <array>
#include <cstddef>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <semaphore>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <idem/idem.hpp>
#include <idem/testing/manual_clock.hpp>
#include <idem/testing/memory_front.hpp>

#include "support/catch.hpp"
#include "support/requests.hpp"

namespace {

using idem::testing::MemoryFront;

/// Lets one of several threads go on at a time, each up to its next stop.
class Turns {
public:
    static constexpr std::size_t actors_max = 2;

    /// Called by an actor: waits for its turn.
    void stop(std::size_t actor) {
        at_stop_[actor] = true;
        here_.release();
        go_[actor].acquire();
    }
    void end() { here_.release(); }

    /// Until as many have stopped or ended as were let go.
    void await(std::size_t actors) {
        for (; actors > 0; --actors) here_.acquire();
    }
    [[nodiscard]] std::vector<std::size_t> ready() const {
        std::vector<std::size_t> out;
        for (std::size_t i = 0; i < actors_max; ++i)
            if (at_stop_[i]) out.push_back(i);
        return out;
    }
    void let(std::size_t actor) {
        at_stop_[actor] = false;
        go_[actor].release();
    }

private:
    std::array<bool, actors_max> at_stop_{};  // handed over by the semaphores
    std::counting_semaphore<actors_max> here_{0};
    std::array<std::counting_semaphore<1>, actors_max> go_{std::counting_semaphore<1>(0),
                                                           std::counting_semaphore<1>(0)};
};

/// The actor whose thread this is; the checks of a run are made by none.
thread_local std::optional<std::size_t> me;

/// A back that stops before every call.
class StoppingStore {
public:
    StoppingStore(idem::MemoryStore inner, std::shared_ptr<Turns> turns)
        : inner_(std::move(inner)), turns_(std::move(turns)) {}

    void claim(std::span<const idem::ClaimRequest> q, std::span<idem::ClaimReply> a) {
        stop();
        inner_.claim(q, a);
    }
    void finish(std::span<const idem::FinishRequest> q, std::span<idem::FinishReply> a) {
        stop();
        inner_.finish(q, a);
    }
    void forget(std::span<const idem::ForgetRequest> q, std::span<idem::ForgetReply> a) {
        stop();
        inner_.forget(q, a);
    }
    void renew(std::span<const idem::RenewRequest> q, std::span<idem::RenewReply> a) {
        inner_.renew(q, a);
    }
    void issue(std::span<const idem::IssueRequest> q, std::span<idem::IssueReply> a) {
        inner_.issue(q, a);
    }
    void resolve(std::span<const idem::ResolveRequest> q, std::span<idem::ResolveReply> a) {
        inner_.resolve(q, a);
    }
    void reap(std::span<const idem::ReapRequest> q, std::span<idem::ReapReply> a) {
        inner_.reap(q, a);
    }
    void find(std::span<const idem::KeyView> q, std::span<idem::FindReply> a) { inner_.find(q, a); }
    [[nodiscard]] idem::ListPage list(const idem::ListQuery& query) { return inner_.list(query); }
    [[nodiscard]] idem::PurgeReply purge(std::size_t limit) { return inner_.purge(limit); }

private:
    void stop() {
        if (me) turns_->stop(*me);
    }

    idem::MemoryStore inner_;
    std::shared_ptr<Turns> turns_;
};

struct Counts {
    std::map<std::string, long> events{};
    long orders = 0;
};

/// One run: what the actors do, and what they saw.
class Run {
public:
    using Store = idem::TieredStore<MemoryFront, StoppingStore>;

    explicit Run(Counts& counts) : counts_(counts) {
        front_.before([turns = turns_](idem::testing::FrontCall) {
            if (me) turns->stop(*me);
            return true;
        });
    }

    void add(std::function<void(Run&, std::size_t)> actor) { actors_.push_back(std::move(actor)); }

    /// A caller as the guard is one: claims, does its effect, completes; a repeat takes what it is
    /// answered.
    void call(std::size_t actor) {
        const bool forgotten_before = forgotten_;
        const auto owner = ++owners_;
        const auto claim = idem_test::claim_of(key_, owner);
        const auto reply = idem::claim_one(store_, claim);
        note("claim " + std::string(to_string(reply.kind)));
        if (reply.kind == idem::ClaimKind::completed) {
            if (!said_.contains(reply.result)) fail("an answer that the back never had");
            if (forgotten_before && !lost_since_forget_ && said_.at(reply.result) < forgets_)
                fail("a forgotten result is answered after its forget has ended");
        }
        if (reply.kind != idem::ClaimKind::acquired) return;
        ++effects_;
        const std::string result =
            "by " + std::to_string(actor) + " under " + std::to_string(reply.fence);
        said_[result] = forgets_;
        if (idem::finish_one(store_, idem_test::complete_of(claim, reply.fence, result)).lost)
            note("finish lost");
    }
    void forget() {
        idem::ForgetRequest request;
        request.key = idem_test::view_of(key_);
        request.lease = std::chrono::seconds{30};
        ++forgets_;  // whatever is completed from now on is another life of the key
        note(idem::forget_one(store_, request).existed ? "forgot" : "forgot nothing");
        forgotten_ = true;
        lost_since_forget_ = false;
    }

    // --- the order ------------------------------------------------------------------------------

    /// Carries out one order; `choose(options)` picks. @return what was wrong, or nothing.
    std::string carry_out(const std::function<std::size_t(std::size_t)>& choose, int losses,
                          int set_backs) {
        std::vector<std::jthread> threads;
        for (std::size_t i = 0; i < actors_.size(); ++i)
            threads.emplace_back([this, i] {
                me = i;
                turns_->stop(i);
                actors_[i](*this, i);
                turns_->end();
            });
        turns_->await(actors_.size());
        for (;;) {
            const auto ready = turns_->ready();
            check_front();
            if (ready.empty()) break;
            // What happens to the front is one more thing that can come next, where it changes it.
            const auto now = front_.entries();
            const bool can_lose = losses > 0 && !now.empty();
            const bool can_set_back = set_backs > 0 && copies_ && *copies_ != now;
            const std::size_t more = (can_lose ? 1U : 0U) + (can_set_back ? 1U : 0U);
            const std::size_t chosen = choose(ready.size() + more);
            if (chosen < ready.size()) {
                turns_->let(ready[chosen]);
                turns_->await(1);
                continue;
            }
            lost_since_forget_ = true;
            if (chosen == ready.size() && can_lose) {
                --losses;
                front_.restart_with({});
                note("front lost");
            } else {
                --set_backs;
                front_.restart_with(*copies_);
                note("front set back");
            }
        }
        for (auto& thread : threads) thread.join();
        if (effects_ > 1 + forgets_) fail("more runs than lives of the key");
        return wrong_;
    }

private:
    void note(const std::string& event) { ++counts_.events[event]; }
    void fail(const std::string& what) {
        if (wrong_.empty()) wrong_ = what;
    }
    /// Only one actor goes at a time, and none while this looks.
    void check_front() {
        for (const auto& [name, entry] : front_.entries()) {
            if (!entry.bytes) {
                note("tombstone seen");
                continue;
            }
            const auto record = idem::decode_record(*entry.bytes);
            if (!record || record.header.state != idem::State::succeeded ||
                !said_.contains(record.payload.result))
                fail("the front holds what the back never said");
            note("copy seen");
            copies_ = front_.entries();
        }
    }

    Counts& counts_;
    std::shared_ptr<Turns> turns_ = std::make_shared<Turns>();
    idem::testing::ManualClock clock_{};
    MemoryFront front_{clock_};
    Store store_{front_, StoppingStore(idem::MemoryStore({.clock = clock_}), turns_)};
    const idem::Key key_{"s", "k"};
    std::vector<std::function<void(Run&, std::size_t)>> actors_{};
    std::optional<MemoryFront::Entries> copies_{};  ///< What it held when it last held a result.
    std::map<std::string, int> said_{};  ///< Results, and how many forgets came before each.
    std::uint64_t owners_ = 0;
    int effects_ = 0;
    int forgets_ = 0;
    bool forgotten_ = false;
    bool lost_since_forget_ = false;
    std::string wrong_{};
};

/// Tries every order, by going back to the last choice that had one more way.
template <class Make>
void explore(const std::string& name, const Make& make, int losses, int set_backs,
             const std::vector<std::string>& must_meet) {
    Counts counts;
    std::vector<std::pair<std::size_t, std::size_t>> path;  // chosen, of how many
    for (bool more = true; more;) {
        std::size_t depth = 0;
        Run run(counts);
        make(run);
        const auto wrong = run.carry_out(
            [&](std::size_t options) {
                if (depth == path.size()) path.emplace_back(0, options);
                return path[depth++].first;
            },
            losses, set_backs);
        ++counts.orders;
        if (!wrong.empty()) {
            std::string trace;
            for (const auto& [chosen, of] : path)
                trace += std::to_string(chosen) + "/" + std::to_string(of) + " ";
            FAIL(name << ": " << wrong << " in the order " << trace);
        }
        while (!path.empty() && path.back().first + 1 == path.back().second) path.pop_back();
        more = !path.empty();
        if (more) ++path.back().first;
    }
    std::cout << name << ": " << counts.orders << " orders";
    for (const auto& [event, times] : counts.events) std::cout << "; " << event << " " << times;
    std::cout << "\n";
    for (const auto& event : must_meet) {
        INFO(name << ": " << event);
        CHECK(counts.events[event] > 0);
    }
}

TEST_CASE("tiered: two callers, and a front that is lost at any step", "[simulation]") {
    explore("two callers",
            [](Run& run) {
                for (int i = 0; i < 2; ++i)
                    run.add([](Run& r, std::size_t me_) {
                        r.call(me_);
                        r.call(me_);
                    });
            },
            1, 0, {"claim acquired", "claim in_progress", "claim completed", "copy seen"});
}

TEST_CASE("tiered: a repeat, a forget, and a front that is lost at any step", "[simulation]") {
    explore("forget and repeat",
            [](Run& run) {
                run.add([](Run& r, std::size_t me_) {
                    r.call(me_);
                    r.call(me_);
                });
                run.add([](Run& r, std::size_t) { r.forget(); });
            },
            1, 0, {"claim completed", "copy seen", "tombstone seen", "front lost", "forgot"});
}

TEST_CASE("tiered: two callers, one of which forgets, and a front that is set back",
          "[simulation]") {
    explore("set back",
            [](Run& run) {
                run.add([](Run& r, std::size_t me_) {
                    r.call(me_);
                    r.call(me_);
                });
                run.add([](Run& r, std::size_t me_) {
                    r.call(me_);
                    r.forget();
                    r.call(me_);
                });
            },
            0, 1, {"claim completed", "forgot", "front set back"});
}

}  // namespace
