// Goal: after fork the parent goes on as if nothing had happened, and the child has nothing of the
// parent's: no claim, no thread, no lock, no random stream; but all of its own that it makes.
// Method: fork at every awkward moment, and let each child try.

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <idem/testing/model_store.hpp>

#include "support/catch.hpp"
#include "support/child.hpp"
#include "support/features.hpp"

using namespace idem_test;
using namespace std::chrono_literals;

namespace fork_test {

using idem::LostReason;

/// The reason that a piece of work gives for having lost its claim.
template <class Work>
[[nodiscard]] LostReason lost_by(Work&& work) {
    try {
        work();
    } catch (const idem::LeaseLostError& e) {
        return e.reason();
    }
    return LostReason::none;
}

/// Whether a store, a guard and a heartbeat that are made here work here.
[[nodiscard]] bool works_with_its_own() {
    SpyStore store;
    SpyGuard guard(store, {.lease = 60ms, .concurrency_max = 4});
    auto claim = claimed<int>(guard.claim<int>(key("own"), {}));
    if (!eventually([&] { return store.renewals() >= 2; })) return false;
    (void)std::move(claim).complete(1);
    return guard.run(key("run"), {}, [] { return 3; }).recorded() &&
           guard.run(key("run"), {}, [] { return 4; }).value() == 3 &&
           guard.drain(10min).complete && guard.health().running == 0;
}

TEST_CASE("a claim does not cross a fork", "[fork]") {
    const auto leaves = GENERATE(Leaves::at_once, Leaves::by_exit);
    SpyStore store;
    SpyGuard guard(store);
    auto claim = claimed<int>(guard.claim<int>(key(), {}));
    const auto stop = claim.stop_token();
    CHECK(in_child(
              [&] {
                  const auto asked = store.calls();
                  LostReason told = LostReason::none;
                  claim.execution().on_lost([&](LostReason why) { told = why; });
                  const bool lost =
                      !claim.held() && claim.stop_token().stop_requested() &&
                      told == LostReason::process &&
                      lost_by([&] { claim.execution().checkpoint("x"); }) == LostReason::process &&
                      lost_by([&] { (void)std::move(claim).detach(1h); }) == LostReason::process;
                  claim.execution().stop_heartbeat();
                  const auto outcome = std::move(claim).complete(5);
                  return lost && outcome.value() == 5 && !outcome.recorded() &&
                         outcome.unrecorded_reason() == idem::UnrecordedReason::lost &&
                         outcome.details().lost == LostReason::process &&
                         store.calls() == asked;  // the store was not even asked
              },
              leaves) == "");
    CHECK(claim.held());
    CHECK_FALSE(stop.stop_requested());
    CHECK(std::move(claim).complete(7).recorded());
    CHECK(guard.run(key(), {}, [] { return 0; }).value() == 7);
}

TEST_CASE("however a child ends an inherited claim, it touches nothing", "[fork]") {
    SpyStore store;
    SpyGuard guard(store);
    auto claim = claimed<int>(guard.claim<int>(key(), {}));
    for (int how = 0; how < 5; ++how) {
        CAPTURE(how);
        CHECK(in_child([&] {
                  const auto asked = store.calls();
                  switch (how) {
                      case 0: std::move(claim).release(); break;
                      case 1: std::move(claim).fail({idem::FailureClass::final, "", ""}); break;
                      case 2: std::move(claim).quarantine(); break;
                      case 3: {
                          auto dropped = std::move(claim);
                      } break;
                      default: (void)std::move(claim).complete(1);
                  }
                  return store.calls() == asked && guard.health().running == 0 &&
                         guard.health().unrecorded == 0;
              }) == "");
    }
    CHECK(std::move(claim).complete(7).recorded());
}

TEST_CASE("a handler that forks ends twice, and is recorded once", "[fork]") {
    const bool throws = GENERATE(false, true);
    CAPTURE(throws);
    SpyStore store;
    EventLog log;
    SpyGuard guard(store, {.events = log.observer(), .concurrency_max = 1});
    pid_t child = -1;
    const auto handler = [&] {
        std::fflush(nullptr);
        child = fork();
        if (child == 0) alarm(120);
        if (child == 0 && throws) throw std::runtime_error("in the child");
        return child == 0 ? 1 : 2;
    };
    const auto call = [&] { return guard.run(key(), {}, handler); };
    if (!throws) {
        const auto outcome = call();
        if (child == 0) {
            const bool fits = outcome.value() == 1 && !outcome.recorded() &&
                              outcome.details().lost == LostReason::process &&
                              log.kinds() == "unrecorded" && store.finishes() == 0 &&
                              works_with_its_own();
            _exit(fits ? 0 : 2);
        }
        CHECK(outcome.recorded());
    } else {
        try {
            const auto outcome = call();
            CHECK(outcome.recorded());
        } catch (const std::runtime_error& e) {
            const bool fits = child == 0 && std::string(e.what()) == "in the child" &&
                              store.finishes() == 0 && works_with_its_own();
            _exit(fits ? 0 : 2);
        }
    }
    REQUIRE(child > 0);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(log.kinds() == "executed");
    CHECK(guard.run(key(), {}, [] { return 0; }).value() == 2);
}

TEST_CASE("a child works with what it makes itself, and ends cleanly", "[fork]") {
    const auto leaves = GENERATE(Leaves::at_once, Leaves::by_exit);
    SpyStore store;
    SpyGuard guard(store, {.lease = 60ms});
    auto claim = claimed<int>(guard.claim<int>(key(), {}));
    REQUIRE(eventually([&] { return store.renewals() > 0; }));  // the parent's threads run
    for (int i = 0; i < 5; ++i) {
        CHECK(in_child(works_with_its_own, leaves) == "");
        CHECK(in_child([] { return thread_count() == 1; }, leaves) == "");
    }
    CHECK(in_child(
              [] {
                  return works_with_its_own() && in_child(works_with_its_own).empty() &&
                         works_with_its_own();
              },
              leaves) == "");
    const auto seen = store.renewals();
    CHECK(eventually([&] { return store.renewals() > seen; }));  // and they still do
}

TEST_CASE("a guard that a child inherits begins anew there", "[fork]") {
    idem::testing::ModelStore store({});  // plain memory: the child has a copy of it
    idem::IdempotencyGuard guard(store);
    auto claim = claimed<int>(guard.claim<int>(key(), {}));
    CHECK(in_child([&] {
              const bool fresh = guard.health().running == 0;
              const bool ran = guard.run(key("child"), {}, [] { return 1; }).recorded();
              return fresh && ran && guard.drain(10min).complete;  // not the parent's claims
          }) == "");
    CHECK_FALSE(guard.health().draining);
    CHECK_FALSE(guard.find(key("child")));
    CHECK(guard.run(key("child"), {}, [] { return 2; }).executed());
}

TEST_CASE("an embedded store that a child inherits runs nothing there", "[fork]") {
    idem::MemoryStore store;
    idem::IdempotencyGuard guard(store);
    CHECK(guard.run(key("known"), {}, [] { return 1; }).executed());
    CHECK(in_child([&] {
              bool ran = false;
              for (const char* id : {"known", "new"}) {
                  try {
                      (void)guard.run(key(id), {}, [&] { return ran = true; });
                      return false;
                  } catch (const idem::UsageError&) {
                  }
              }
              return !ran && !guard.health().ok() && guard.health().running == 0 &&
                     works_with_its_own();
          }) == "");
}

TEST_CASE("what the parent has still to record is left to the parent", "[fork]") {
    SpyStore store;
    SpyGuard guard(store);
    store.on_finish([](auto) { return Way::refuse; });
    (void)guard.run(key(), {}, [] { return 7; });
    CHECK(guard.health().unrecorded == 1);
    CHECK(in_child([&] {
              const auto asked = store.finishes();
              return guard.health().unrecorded == 0 && works_with_its_own() &&
                     store.finishes() == asked;
          }) == "");
    store.on_finish({});
    CHECK(eventually([&] { return guard.health().unrecorded == 0; }));
    CHECK(guard.run(key(), {}, [] { return 0; }).value() == 7);
}

TEST_CASE("parent and child draw from different random streams", "[fork]") {
    constexpr std::size_t count = 40;  // less than what one system call fetches
    using Drawn = std::array<idem::Owner, count>;
    const auto draw = [] {
        Drawn drawn{};
        for (auto& owner : drawn) owner = idem::detail::new_owner();
        return drawn;
    };
    (void)idem::detail::new_owner();  // the parent has bytes left that it has not used
    std::array<int, 2> ends{};
    REQUIRE(pipe(ends.data()) == 0);
    std::vector<Drawn> all;
    for (int child = 0; child < 3; ++child) {
        CHECK(in_child([&] {
                  const Drawn drawn = draw();
                  return write(ends[1], drawn.data(), sizeof drawn) == sizeof drawn;
              }) == "");
        Drawn drawn{};
        REQUIRE(read(ends[0], drawn.data(), sizeof drawn) == sizeof drawn);
        all.push_back(drawn);
        all.push_back(draw());
    }
    (void)close(ends[0]);
    (void)close(ends[1]);
    std::set<std::string> seen;
    for (const Drawn& drawn : all)
        for (const auto& owner : drawn) seen.insert(std::string(owner.stored()));
    CHECK(seen.size() == all.size() * count);
}

TEST_CASE("a child does not wait for a loss callback of the parent", "[fork][lost]") {
    SpyStore store;
    SpyGuard guard(store, {.lease = 300ms});
    std::optional<idem::Claim<int>> claim(claimed<int>(guard.claim<int>(key(), {})));
    Gate begun;
    Gate end;
    claim->execution().on_lost([&](LostReason) {
        begun.open();
        end.wait();
    });
    REQUIRE(guard.forget(key()));
    REQUIRE(begun.wait());
    CHECK(in_child([&] {
              claim.reset();  // the callback runs for ever here: its thread is not in this process
              return works_with_its_own();
          }) == "");
    end.open();
    claim.reset();
}

TEST_CASE("forks within forks leave the calls of each process alone", "[fork]") {
    idem::testing::ModelStore store({});
    idem::IdempotencyGuard guard(store, {.concurrency_max = 2});
    // Three processes deep, each with a call on its stack that returns in all the later ones.
    const auto deeper = [&](auto& self, int depth) -> bool {
        pid_t pid = 0;
        bool fits = true;
        (void)guard.run(key(std::to_string(depth)), {}, [&] {
            pid = fork();
            if (pid == 0) fits = depth == 3 || self(self, depth + 1);
            return 1;
        });
        fits = fits && guard.health().running == 0;
        if (pid == 0) _exit(fits ? 0 : 2);
        int status = 0;
        return fits && waitpid(pid, &status, 0) == pid && status == 0;
    };
    CHECK(in_child([&] { return deeper(deeper, 0); }) == "");
}

TEST_CASE("children forked out of a storm of calls are not caught in it", "[fork][race]") {
    SpyStore store;
    EventLog log;
    SpyGuard guard(store,
                   {.lease = 60ms, .wait = 1ms, .events = log.observer(), .concurrency_max = 3});
    SpyGuard keeps(store);
    auto claim = claimed<int>(keeps.claim<int>(key(), {}));
    std::atomic<bool> stop = false;
    std::atomic<int> calls = 0;
    std::vector<std::jthread> threads;
    for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; !stop; ++i) {
                try {
                    const auto k = key(std::to_string(t % 2) + "." + std::to_string(i));
                    auto open = guard.claim<int>(k, {});
                    if (i % 3 == 0) idem_test::outlast(1ms);
                    (void)guard.run(key("r" + k.id), {}, [] { return 1; });
                    if (auto* held = std::get_if<idem::Claim<int>>(&open))
                        (void)std::move(*held).complete(1);
                } catch (const idem::UnavailableError&) {  // the cap
                }
                ++calls;
            }
        });
    }
    std::string wrong;
    for (int i = 0; i < 60 && wrong.empty(); ++i) {
        wrong = in_child(
            [&] {
                const bool lost = !claim.held();
                const auto outcome = std::move(claim).complete(1);
                return lost && outcome.details().lost == LostReason::process &&
                       works_with_its_own();
            },
            i % 2 == 0 ? Leaves::at_once : Leaves::by_exit);
        const int before = calls;
        if (!eventually([&] { return calls > before; })) wrong = "the parent's calls hang";
    }
    stop = true;
    threads.clear();
    CHECK(wrong == "");
    CHECK(claim.held());
    CHECK(std::move(claim).complete(7).recorded());
    CHECK(guard.health().running == 0);
}

}  // namespace fork_test
