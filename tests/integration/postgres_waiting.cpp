// A caller that waits learns what another process has settled from the server, not from a poll.

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <idem/any_store.hpp>
#include <idem/guard.hpp>

#include "support/catch.hpp"
#include "support/child.hpp"
#include "support/eventually.hpp"
#include "support/expect.hpp"
#include "support/postgres_world.hpp"
#include "support/requests.hpp"

namespace postgres_waiting_test {

using namespace std::chrono_literals;
using idem_test::claim_of;
using idem_test::eventually;
using idem_test::Expect;
using idem_test::PostgresBench;
using idem_test::shared_server;
using idem_test::Sql;

constexpr auto for_ever = 10min;

PostgresBench make_bench(const std::string& more = "") {
    return PostgresBench(shared_server().conninfo(), shared_server().conninfo(more));
}
idem::PostgresStore other_process(const PostgresBench& bench, const std::string& more = "") {
    return idem::PostgresStore(bench.options(shared_server().conninfo(more)));
}
idem::FinishRequest finish_of(const idem::ClaimRequest& claim, idem::Fence fence,
                              idem::FinishKind kind = idem::FinishKind::complete) {
    auto out = idem_test::complete_of(claim, fence, "");
    out.kind = kind;
    out.result_kind = idem::ResultKind::none;
    return out;
}
/// What has been told so far, once it is at least `count`.
int await(const std::atomic<int>& told, int count) {
    return eventually([&] { return told >= count; }) ? told.load() : -1;
}

TEST_CASE("PostgreSQL: whatever settles a key that somebody waits for tells so, in any process",
          "[integration][postgres][waiting]") {
    auto bench = make_bench();
    auto mine = other_process(bench);
    const idem::Key key{"s", "k"};
    std::atomic<int> told{0};
    const auto settle = [&](std::uint64_t owner, auto&& by) {
        const auto claim = claim_of(key, owner);
        const auto fence = idem::claim_one(bench.store(), claim).fence;
        REQUIRE(fence > 0);
        const auto handle = mine.watch(claim.key, [&] { ++told; });
        REQUIRE(handle);
        by(claim, fence);
    };
    using Kind = idem::FinishKind;
    int settled = 0;
    const auto finish_by = [&](Kind kind) {
        return [&, kind](const idem::ClaimRequest& claim, idem::Fence fence) {
            REQUIRE_FALSE(idem::finish_one(bench.store(), finish_of(claim, fence, kind)).lost);
            CHECK(await(told, settled + 1) == settled + 1);
        };
    };
    settle('a', finish_by(Kind::release));
    settled = told;
    settle('b', [&](const idem::ClaimRequest& claim, idem::Fence) {
        REQUIRE(idem::forget_one(bench.store(), {claim.key, 1s}).existed);
        CHECK(await(told, settled + 1) == settled + 1);
    });
    settled = told;
    settle('c', [&](const idem::ClaimRequest& claim, idem::Fence fence) {
        bench.advance(2min);
        REQUIRE(idem::reap_one(bench.store(), {claim.key, fence, 24h, 24h}).reaped);
        CHECK(await(told, settled + 1) == settled + 1);
    });
    settled = told;
    settle('d', [&](const idem::ClaimRequest& claim, idem::Fence fence) {  // beside many others
        std::vector<idem::Key> keys;
        for (int i = 0; i < 10; ++i) keys.push_back({"s", std::to_string(i)});
        std::vector<idem::FinishRequest> finishes = {finish_of(claim, fence)};
        for (const auto& one : keys) {
            const auto request = claim_of(one, 'd');
            finishes.push_back(finish_of(request, idem::claim_one(bench.store(), request).fence));
        }
        std::vector<idem::FinishReply> replies(finishes.size());
        bench.store().finish(finishes, replies);
        for (const auto& reply : replies) {
            INFO(reply.trouble.message);
            CHECK_FALSE((reply.lost || reply.trouble));
        }
        CHECK(await(told, settled + 1) == settled + 1);
    });
}

TEST_CASE("PostgreSQL: a finish that nobody waits for tells nothing",
          "[integration][postgres][waiting]") {
    auto bench = make_bench();
    Sql listener(shared_server().conninfo());
    const idem::postgres::Names names(bench.schema(), "records", "");
    listener("LISTEN \"" + names.channel() + "\"");
    using Kind = idem::FinishKind;
    const auto cycle = [&](const std::string& id, bool watched, Kind kind = Kind::complete) {
        const idem::Key key{"s", id};
        const auto claim = claim_of(key, 'a');
        const auto fence = idem::claim_one(bench.store(), claim).fence;
        const auto handle = watched ? bench.store().watch(claim.key, [] {}) : nullptr;
        CHECK(watched == (handle != nullptr));
        REQUIRE_FALSE(idem::finish_one(bench.store(), finish_of(claim, fence, kind)).lost);
    };
    for (const Kind kind : {Kind::complete, Kind::fail, Kind::release, Kind::quarantine})
        cycle(std::to_string(static_cast<int>(kind)), false, kind);
    cycle("waited for", true);  // what is told comes in the order of the commits
    std::vector<std::string> payloads;
    REQUIRE(listener.connection().take_notices(-1, idem_test::in_seconds(60), payloads));
    const idem::Key waited{"s", "waited for"};
    CHECK(payloads ==
          std::vector{idem::detail::hex(idem::postgres::digest_of(claim_of(waited, 'a').key))});
}

TEST_CASE("PostgreSQL: a mark that comes while it is being finished is not missed",
          "[integration][postgres][waiting]") {
    auto bench = make_bench("application_name=finisher");
    Sql listener(shared_server().conninfo());
    const idem::postgres::Names names(bench.schema(), "records", "");
    listener("LISTEN \"" + names.channel() + "\"");
    const idem::Key key{"s", "k"};
    const auto claim = claim_of(key, 'a');
    const auto fence = idem::claim_one(bench.store(), claim).fence;
    const auto kind = GENERATE(idem::FinishKind::complete, idem::FinishKind::fail);
    Sql waiter(shared_server().conninfo());
    waiter("BEGIN; UPDATE " + bench.table() + " SET waited_until = 9e18");
    Expect expect;
    std::jthread finisher(
        [&] { expect(!idem::finish_one(bench.store(), finish_of(claim, fence, kind)).lost); });
    CHECK(eventually([&] {
        return bench.sql()(
                   "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                   " AND application_name = 'finisher'") != "0";
    }));
    waiter("COMMIT");
    finisher.join();
    CHECK(expect.failed() == 0);
    std::vector<std::string> payloads;
    REQUIRE(listener.connection().take_notices(-1, idem_test::in_seconds(20), payloads));
    CHECK(payloads.size() == 1);
}

/// Counts how often a guard looks and is told. With `deaf` every look after the second finds
/// nothing new, unless something was told since the last: only notices lead to an answer then.
class Looks : public idem::PostgresStore {
public:
    explicit Looks(idem::PostgresStore store, bool deaf = false)
        : PostgresStore(std::move(store)), deaf_(deaf) {}

    void claim(std::span<const idem::ClaimRequest> requests, std::span<idem::ClaimReply> replies) {
        const bool told = counts_->told.exchange(false);
        if (++counts_->looks <= 2 || !deaf_ || told) return PostgresStore::claim(requests, replies);
        replies[0].kind = idem::ClaimKind::in_progress;
        replies[0].lease_left = 1h;
    }
    [[nodiscard]] std::shared_ptr<void> watch(const idem::KeyView& key,
                                              std::function<void()> notice) {
        auto handle = PostgresStore::watch(key, [counts = counts_, notice = std::move(notice)] {
            counts->told = true;
            notice();
        });
        if (handle) ++counts_->watches;
        return handle;
    }
    [[nodiscard]] int looks() const { return counts_->looks; }
    [[nodiscard]] const std::atomic<int>& counted() const { return counts_->looks; }
    [[nodiscard]] int watches() const { return counts_->watches; }

private:
    struct Counts {
        std::atomic<int> looks{0};
        std::atomic<int> watches{0};
        std::atomic<bool> told{false};
    };
    std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
    bool deaf_;
};

TEST_CASE("PostgreSQL: a waiter is woken by the finish of another process",
          "[integration][postgres][waiting]") {
    auto bench = make_bench();
    Looks looks(other_process(bench), true);
    idem::IdempotencyGuard holder(idem::AnyStore(bench.store()), {.lease = 1h});
    idem::IdempotencyGuard waiter(looks, {.lease = 1h, .wait = 1min});
    const idem::Key key{"s", "k"};
    auto claim = holder.claim<std::string>(key, {});
    Expect expect;
    std::jthread finisher([&] {
        expect(await(looks.counted(), 3) > 0);  // it has slept
        expect(std::move(std::get<idem::Claim<std::string>>(claim)).complete("done").recorded());
    });
    const auto outcome = waiter.run(key, {}, [] { return std::string("twice"); });
    finisher.join();
    CHECK(expect.failed() == 0);
    CHECK(outcome.replayed());
    CHECK(outcome.value() == "done");
    CHECK(looks.watches() == 1);
}

TEST_CASE("PostgreSQL: each notice is a look at once, not at the next poll",
          "[integration][postgres][waiting]") {
    auto bench = make_bench();
    Looks looks(other_process(bench));
    idem::IdempotencyGuard holder(bench.store(), {.lease = 1h});
    idem::IdempotencyGuard waiter(looks, {.lease = 1h, .wait = 150s});
    const idem::Key key{"s", "k"};
    auto claim = std::get<idem::Claim<int>>(holder.claim<int>(key, {}));
    const idem::postgres::Names names(bench.schema(), "records", "");
    const auto digest = idem::postgres::digest_of({idem::Component::call, key});
    // By polls alone, at most one a second, this many looks do not fit into the time of waiting.
    Expect expect;
    std::jthread notifier([&] {
        for (int looked = await(looks.counted(), 2), i = 0; i < 200 && looked > 0; ++i) {
            bench.sql()("NOTIFY \"" + names.channel() + "\", '" + idem::detail::hex(digest) + "'");
            looked = await(looks.counted(), looked + 1);
        }
        expect(std::move(claim).complete(1).recorded());
    });
    const auto outcome = waiter.run(key, {}, [] { return 2; });
    notifier.join();
    CHECK(expect.failed() == 0);
    CHECK(outcome.replayed());
    CHECK(looks.looks() > 200);
}

const char* const child_conninfo = "IDEM_TEST_CHILD_CONNINFO";
const char* const child_schema = "IDEM_TEST_CHILD_SCHEMA";

/// In the process that the test below starts: holds a key until it is told to let go.
void hold_until_told(const std::string& conninfo, const std::string& schema) {
    idem::PostgresOptions options;
    options.conninfo = conninfo;
    options.schema = schema;
    options.clock_sql = "pg_sequence_last_value('" + options.schema + ".clock'::regclass)";
    idem::IdempotencyGuard guard(idem::PostgresStore(options), {.lease = 1h});
    Sql sql(conninfo);
    const auto outcome = guard.run({"s", "k"}, {}, [&] {
        (void)eventually([&] {
            return sql("SELECT to_regclass('" + options.schema + ".let_go') IS NULL") != "t";
        });
        return std::to_string(getpid());
    });
    CHECK(outcome.executed());
    CHECK(outcome.recorded());
}

TEST_CASE("PostgreSQL: a waiter gets the answer of a holder in a process started for it",
          "[integration][postgres][waiting]") {
    if (const char* conninfo = std::getenv(child_conninfo))
        return hold_until_told(conninfo, std::getenv(child_schema));
    auto bench = make_bench();
    setenv(child_conninfo, shared_server().conninfo().c_str(), 1);
    setenv(child_schema, bench.schema().c_str(), 1);
    const pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "idem_integration",
              "PostgreSQL: a waiter gets the answer of a holder in a process started for it",
              nullptr);
        _exit(127);
    }
    unsetenv(child_conninfo);
    REQUIRE(child > 0);
    CHECK(eventually([&] { return bench.sql()("SELECT count(*) FROM " + bench.table()) != "0"; }));
    Looks looks(other_process(bench), true);
    idem::IdempotencyGuard waiter(looks, {.lease = 1h, .wait = 1min});
    Expect expect;
    std::jthread teller([&] {
        expect(await(looks.counted(), 3) > 0);
        bench.sql()("CREATE TABLE " + bench.schema() + ".let_go ()");
    });
    const auto outcome = waiter.run({"s", "k"}, {}, [] { return std::string("twice"); });
    teller.join();
    CHECK(expect.failed() == 0);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    REQUIRE(outcome.replayed());
    CHECK(outcome.value() == std::to_string(child));
}

TEST_CASE("PostgreSQL: fifty waiters hold one connection between them, and it goes after them",
          "[integration][postgres][waiting]") {
    auto bench = make_bench();
    const auto count = [&] {
        return bench.sql()("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'many'");
    };
    Looks looks(
        idem::PostgresStore(bench.options(shared_server().conninfo("application_name=many"), 4)));
    idem::IdempotencyGuard holder(bench.store(), {.lease = 1h});
    idem::IdempotencyGuard waiter(looks, {.lease = 1h, .wait = for_ever});
    const idem::Key key{"s", "k"};
    auto claim = std::get<idem::Claim<int>>(holder.claim<int>(key, {}));
    const auto threads_before = idem_test::thread_count();
    std::vector<std::jthread> threads;
    std::atomic<int> replayed{0};
    for (int i = 0; i < 50; ++i)
        threads.emplace_back(
            [&] { replayed += waiter.run(key, {}, [] { return 2; }).replayed() ? 1 : 0; });
    CHECK(eventually([&] { return looks.watches() == 50; }));
    CHECK(std::stoi(count()) <= 5);  // the pool's four, and the one that listens
    CHECK(idem_test::thread_count() <= threads_before + 51);
    CHECK(std::move(claim).complete(1).recorded());
    for (auto& thread : threads) thread.join();
    CHECK(replayed == 50);
    const std::string listening =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'many'"
        " AND (query LIKE 'LISTEN%' OR query = 'SELECT')";
    CHECK(eventually([&] { return bench.sql()(listening) == "0"; }));
    // The thread ends a moment after its connection.
    CHECK(eventually([&] { return idem_test::thread_count() <= threads_before; }));
}

TEST_CASE("PostgreSQL: a listening connection that is ended is made anew, and nothing is missed",
          "[integration][postgres][waiting]") {
    auto bench = make_bench();
    const std::string role = bench.schema() + "_listener";
    bench.sql()("CREATE ROLE " + role + " SUPERUSER LOGIN");
    auto conninfo = shared_server().conninfo();
    conninfo.replace(conninfo.find("user=postgres"), 13, "user=" + role);
    Looks looks(idem::PostgresStore(bench.options(conninfo)), true);
    idem::IdempotencyGuard holder(bench.store(), {.lease = 1h});
    idem::IdempotencyGuard waiter(looks, {.lease = 1h, .wait = 1min});
    const std::string listening =
        " FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND usename = '" + role + "'";
    for (int round = 0; round < 3; ++round) {
        const idem::Key key{"s", std::to_string(round)};
        auto claim = std::get<idem::Claim<int>>(holder.claim<int>(key, {}));
        Expect expect;
        std::jthread breaker([&] {
            expect(await(looks.counted(), looks.looks() + 3) > 0);
            expect(bench.sql()("SELECT count(*)" + listening) == "1");
            // What is settled while nobody listens is told by nobody.
            bench.sql()("ALTER ROLE " + role + " NOLOGIN");
            bench.sql()("SELECT pg_terminate_backend(pid, 5000)" + listening);
            expect(std::move(claim).complete(1).recorded());
            bench.sql()("ALTER ROLE " + role + " LOGIN");
        });
        CHECK(waiter.run(key, {}, [] { return 2; }).replayed());
        breaker.join();
        CHECK(expect.failed() == 0);
    }
}

TEST_CASE("PostgreSQL: where no notices can come a waiter polls, and is told so at once",
          "[integration][postgres][waiting]") {
    auto bench = make_bench();
    const idem::Key key{"s", "k"};
    const auto claim = claim_of(key, 'a');
    const auto fence = idem::claim_one(bench.store(), claim).fence;
    auto off = bench.options(shared_server().conninfo());
    off.notices = false;
    auto nowhere = bench.options("host=127.0.0.1 user=postgres dbname=postgres port=" +
                                 std::to_string(idem_test::free_port()));
    const idem_test::Pgbouncer pooler(shared_server());
    for (const auto& options : {off, nowhere, bench.options(pooler.conninfo())}) {
        idem::PostgresStore store(options);
        for (int i = 0; i < 3; ++i) CHECK_FALSE(store.watch(claim.key, [] {}));
    }
    const std::string listening = "SELECT count(*) FROM pg_listening_channels()";
    Sql pooled(pooler.conninfo());
    for (int i = 0; i < 8; ++i) CHECK(pooled(listening) == "0");

    idem::IdempotencyGuard waiter(idem::PostgresStore(bench.options(pooler.conninfo())),
                                  {.lease = 1h, .wait = for_ever});
    Expect expect;
    std::jthread finisher(
        [&] { expect(!idem::finish_one(bench.store(), finish_of(claim, fence)).lost); });
    CHECK(waiter.run(key, {}, [] {}).replayed());
    finisher.join();
    CHECK(expect.failed() == 0);
}

TEST_CASE("PostgreSQL: a child of fork hears nothing, and leaves the parent's waiters alone",
          "[integration][postgres][waiting][fork]") {
    auto bench = make_bench();
    const idem::Key key{"s", "k"};
    const auto claim = claim_of(key, 'a');
    const auto fence = idem::claim_one(bench.store(), claim).fence;
    std::atomic<int> told{0};
    auto store = std::make_unique<idem::PostgresStore>(other_process(bench));
    auto handle = store->watch(claim.key, [&] { ++told; });
    REQUIRE(handle);
    CHECK(idem_test::in_child([&] {
              const bool none = store->watch(claim.key, [] {}) == nullptr;
              handle.reset();
              store.reset();
              return none;
          }) == "");
    REQUIRE_FALSE(idem::finish_one(bench.store(), finish_of(claim, fence)).lost);
    CHECK(await(told, 1) == 1);
}

TEST_CASE("PostgreSQL: nothing is told after the handle is gone",
          "[integration][postgres][waiting]") {
    auto bench = make_bench();
    const idem::Key key{"s", "k"};
    const auto claim = claim_of(key, 'a');
    const auto fence = idem::claim_one(bench.store(), claim).fence;
    std::atomic<int> gone{0};
    std::atomic<int> there{0};
    auto first = bench.store().watch(claim.key, [&] { ++gone; });
    const auto second = bench.store().watch(claim.key, [&] { ++there; });
    first.reset();
    REQUIRE_FALSE(idem::finish_one(bench.store(), finish_of(claim, fence)).lost);
    CHECK(await(there, 1) == 1);
    CHECK(gone == 0);
}

}  // namespace postgres_waiting_test
