// Faults that users of comparable software met on a database, asked of the real server.

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <idem/guard.hpp>
#include <idem/memory/store.hpp>
#include <idem/token.hpp>

#include "support/catch.hpp"
#include "support/features.hpp"
#include "support/orphan.hpp"
#include "support/postgres_user.hpp"
#include "support/postgres_world.hpp"

namespace postgres_field_test {

using namespace std::chrono_literals;
using idem::OutcomeKind;
using idem_test::eventually;
using idem_test::PostgresBench;
using idem_test::shared_server;
using idem_test::UserConnection;
using Guard = idem::IdempotencyGuard<idem::PostgresStore>;

PostgresBench make_bench(const std::string& more = "", std::size_t connections = 16) {
    return PostgresBench(shared_server().conninfo(), shared_server().conninfo(more), connections);
}
Guard guard_of(idem::PostgresStore store, idem::GuardOptions options = {}) {
    options.lease = 1h;
    return Guard(store, std::move(options));
}
const idem::Key key{"s", "k", "t"};
const auto request = idem::Fingerprint::of_bytes("P");

TEST_CASE("R118 40001 under contention at SERIALIZABLE reaches no caller",
          "[integration][postgres][field]") {
    auto bench = make_bench("options='-c default_transaction_isolation=serializable'");
    auto guard = guard_of(bench.store(), {.wait = 1min});
    std::atomic<int> runs{0};
    std::atomic<int> wrong{0};
    std::vector<std::jthread> threads;
    for (int me = 0; me < 16; ++me)
        threads.emplace_back([&] {
            for (int i = 0; i < 20; ++i) {
                const auto outcome =
                    guard.run({"s", std::to_string(i)}, request, [&] { return ++runs; });
                if (!outcome.has_value()) ++wrong;
            }
        });
    for (auto& thread : threads) thread.join();
    CHECK(wrong == 0);
    CHECK(runs == 20);
}

TEST_CASE("R119 handlers that ask the store too do not starve in a pool of one",
          "[integration][postgres][field]") {
    auto bench = make_bench("", 1);
    auto guard = guard_of(bench.store());
    std::atomic<int> inside{0};
    std::atomic<int> recorded{0};
    std::vector<std::jthread> threads;
    for (int me = 0; me < 8; ++me)
        threads.emplace_back([&, me] {
            const auto outcome = guard.run({"s", std::to_string(me)}, request, [&] {
                ++inside;
                const bool all = eventually([&] { return inside == 8; });  // each holds its claim
                return all && guard.find({"s", std::to_string(me)}).has_value() &&
                       guard.run({"inner", std::to_string(me)}, request, [] { return 1; })
                           .executed();
            });
            recorded += outcome.value() && outcome.recorded() ? 1 : 0;
        });
    for (auto& thread : threads) thread.join();
    CHECK(recorded == 8);
}

TEST_CASE("R121 what is abandoned on a connection is not committed by the next use of it",
          "[integration][postgres][field]") {
    auto bench = make_bench("", 1);
    const UserConnection user(shared_server().conninfo());
    idem::TransactionOptions options;
    options.schema = bench.schema();
    CHECK_THROWS(
        idem::transact(user.get(), {"s", "abandoned"}, request, options, []() -> int { throw 1; }));
    CHECK(idem::transact(user.get(), {"s", "next"}, request, options, [] { return 1; }).executed());
    auto guard = guard_of(bench.store());
    { auto open = guard.claim<int>({"s", "open"}, request); }
    CHECK(guard.run({"s", "after"}, request, [] { return 2; }).recorded());
    CHECK(bench.sql()("SELECT string_agg(id, ' ' ORDER BY id) FROM " + bench.table() +
                      " WHERE state = 4") == "after next");
    CHECK(guard.find({"s", "open"})->header.state == idem::State::released);
    CHECK_FALSE(guard.find({"s", "abandoned"}));
}

TEST_CASE("R122 M23 behind a pooler nothing of a session is used or left behind",
          "[integration][postgres][field]") {
    const idem_test::Pgbouncer pooler(shared_server());
    PostgresBench bench(shared_server().conninfo(), pooler.conninfo());
    auto guard = guard_of(bench.store(), {.wait = 1min});
    std::vector<std::jthread> threads;
    std::atomic<int> recorded{0};
    for (int me = 0; me < 8; ++me)
        threads.emplace_back([&, me] {
            for (int i = 0; i < 10; ++i) {
                recorded += guard.run({"s", std::to_string(i)}, request, [] {}).recorded() ? 1 : 0;
                (void)guard.forget({"s", std::to_string(me * 100 + i)});
            }
        });
    for (auto& thread : threads) thread.join();
    CHECK(recorded == 80);
    auto& sql = bench.sql();
    CHECK(sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == "0");
    CHECK(sql("SELECT count(*) FROM pg_class WHERE relpersistence = 't'") == "0");
    idem_test::Sql pooled(pooler.conninfo());
    for (int i = 0; i < 8; ++i) {
        CHECK(pooled("SELECT count(*) FROM pg_listening_channels()") == "0");
        CHECK(pooled("SELECT count(*) FROM pg_prepared_statements") == "0");
        CHECK(pooled("SHOW lock_timeout") == "0");
        CHECK(pooled("SHOW enable_seqscan") == "on");
    }
}

TEST_CASE("PostgreSQL: M34 M43 a holder killed in mid-body is taken over once, after its lease",
          "[integration][postgres][field][fork]") {
    auto bench = make_bench();
    idem_test::taken_over_once(
        bench, [&] { return idem::PostgresStore(bench.options(shared_server().conninfo())); });
}

TEST_CASE("PostgreSQL: M35 with the policy to hold a vanished holder's key is nobody's to run",
          "[integration][postgres][field][fork]") {
    auto bench = make_bench();
    idem_test::held_for_a_person(
        bench, [&] { return idem::PostgresStore(bench.options(shared_server().conninfo())); });
}

TEST_CASE("M38 every row that is ever stored is shown or kept, and in the end purged",
          "[integration][postgres][field]") {
    auto bench = make_bench();
    auto guard = guard_of(bench.store(), {.max_attempts = 1});
    (void)idem::TokenIssuer(bench.store(), "s", {.guard = {.lease = 1h}}).issue();
    CHECK(guard.run({"s", "succeeded"}, request, [] {}).executed());
    CHECK_THROWS(guard.run({"s", "exhausted"}, request, []() -> int { throw 1; }));
    auto plain = guard_of(bench.store());
    CHECK_THROWS(plain.run({"s", "released"}, request, []() -> int { throw 1; }));
    auto running = plain.claim<int>({"s", "running"}, request);
    std::move(std::get<idem::Claim<int>>(plain.claim<int>({"s", "held"}, request))).quarantine();
    CHECK(plain.run({"s", "forgotten"}, request, [] {}).executed());
    CHECK(plain.forget({"s", "forgotten"}));
    CHECK(bench.sql()("SELECT string_agg(DISTINCT state::text, '' ORDER BY state::text) FROM " +
                      bench.table()) == "1234567");
    CHECK(bench.store().list({}).records.size() == 6);  // all but the tombstone
    CHECK(bench.store().purge(100).removed == 0);
    bench.advance(24h * 4000);
    CHECK(bench.store().list({}).records.empty());
    CHECK(bench.store().purge(100).removed == 7);
    CHECK(bench.sql()("SELECT count(*) FROM " + bench.table()) == "0");
}

TEST_CASE("M40 a claim taken outside of the transaction that rolls back is released",
          "[integration][postgres][field]") {
    auto bench = make_bench();
    const UserConnection user(shared_server().conninfo());
    user("CREATE TABLE " + bench.schema() + ".orders (id text)");
    auto guard = guard_of(bench.store());
    const auto place = [&](const char* end) {
        return guard.run(key, request, [&] {
            user("BEGIN; INSERT INTO " + bench.schema() + ".orders VALUES ('1')");
            if (user(end) != "" || end == std::string("ROLLBACK"))
                throw std::runtime_error("rolled back");
        });
    };
    CHECK_THROWS_AS(place("ROLLBACK"), std::runtime_error);
    CHECK(guard.find(key)->header.state == idem::State::released);
    CHECK(place("COMMIT").executed());
    CHECK(place("COMMIT").replayed());
    CHECK(user("SELECT count(*) FROM " + bench.schema() + ".orders") == "1");
}

TEST_CASE("M41 a claim whose payload nobody can read is given back by its ticket alone",
          "[integration][postgres][field]") {
    auto bench = make_bench();
    auto front = guard_of(bench.store());
    const auto detached = [&](const idem::Key& of) {
        return std::get<idem::Claim<int>>(front.claim<int>(of, request)).detach(1h).to_string();
    };
    const std::string released = detached(key);
    const std::string failed = detached({"s", "poison"});
    // The worker knows neither fingerprint nor options of who claimed, and ran nothing.
    auto worker = guard_of(bench.store());
    worker.resume<int>(idem::Ticket::parse(released)).release();
    worker.resume<int>(idem::Ticket::parse(failed))
        .fail({.kind = idem::FailureClass::final, .code = "unreadable"});
    CHECK(front.run(key, request, [] { return 1; }).executed());
    const auto outcome = front.run({"s", "poison"}, request, [] { return 1; });
    CHECK(outcome.kind() == OutcomeKind::failed);
    CHECK(outcome.failure().code == "unreadable");
}

TEST_CASE("M47 what a short memory has forgotten the table still knows",
          "[integration][postgres][field]") {
    auto bench = make_bench();
    idem::testing::ManualClock clock;
    idem::IdempotencyGuard front(idem::MemoryStore({.clock = clock}), {.retention = 1h});
    auto back = guard_of(bench.store(), {.retention = idem::duration_max});
    int effects = 0;
    const auto deliver = [&] {
        return front.run(key, request,
                         [&] { return back.run(key, request, [&] { return ++effects; }).value(); });
    };
    CHECK(deliver().value() == 1);
    CHECK(deliver().replayed());
    clock.advance(2h);
    bench.advance(2h);
    CHECK(deliver().executed());  // in front only
    CHECK(deliver().value() == 1);
    CHECK(effects == 1);
}

TEST_CASE("M49 M53 of ten copies one is accepted, and nine get its answer, now and later",
          "[integration][postgres][field]") {
    auto bench = make_bench();
    auto guard = guard_of(bench.store());
    int accepted = 0;
    std::set<std::string> answers;
    for (int i = 0; i < 10; ++i) {
        const auto outcome = guard.run(key, request, [&] {
            return std::to_string(++accepted) + " at " +
                   std::to_string(bench.now().time_since_epoch().count());
        });
        CHECK(outcome.executed() == (i == 0));
        answers.insert(outcome.value());
        bench.advance(1h);
    }
    CHECK(accepted == 1);
    CHECK(answers.size() == 1);
}

TEST_CASE("M46 M52 a retryable failure ends the key, a final one stays; another request is told",
          "[integration][postgres][field]") {
    auto bench = make_bench();
    auto guard = guard_of(bench.store());
    const auto other = idem::Fingerprint::of_bytes("Q");
    auto running = guard.claim<int>({"s", "running"}, request);
    CHECK(guard.run({"s", "running"}, other, [] { return 1; }).kind() == OutcomeKind::mismatch);
    CHECK_THROWS(guard.run(key, request, []() -> int { throw std::runtime_error("later"); }));
    CHECK_THROWS(guard.run(key, other, []() -> int { throw idem::FinalError("bad", "never"); }));
    const auto again = guard.run(key, other, [] { return 1; });
    CHECK(again.kind() == OutcomeKind::failed);
    CHECK(again.failure().code == "bad");
    CHECK(guard.run(key, request, [] { return 1; }).kind() == OutcomeKind::mismatch);
}

TEST_CASE("M29 M56 batches over the same keys in opposite orders show no deadlock, 1000 rounds",
          "[integration][postgres][field]") {
    auto bench = make_bench();
    constexpr int rounds = 1000;
    constexpr int size = 6;
    std::atomic<int> acquired{0};
    std::atomic<int> trouble{0};
    const auto run = [&](bool backwards) {
        for (int round = 0; round < rounds; ++round) {
            std::vector<idem::Key> keys;
            for (int i = 0; i < size; ++i)
                keys.push_back({"s", std::to_string(round) + "/" +
                                         std::to_string(backwards ? size - 1 - i : i)});
            std::vector<idem::ClaimRequest> claims(size);
            for (std::size_t i = 0; i < size; ++i) {
                claims[i].key = idem::KeyView(idem::Component::call, keys[i]);
                claims[i].owner.bytes.fill(backwards ? 'b' : 'a');
                claims[i].lease = 1h;
                claims[i].retention = 1h;
            }
            std::vector<idem::ClaimReply> replies(size);
            bench.store().claim(claims, replies);
            for (std::size_t i = 0; i < size; ++i) {
                trouble += replies[i].trouble ? 1 : 0;
                acquired += replies[i].kind == idem::ClaimKind::acquired ? 1 : 0;
            }
        }
    };
    std::jthread forwards([&] { run(false); });
    run(true);
    forwards.join();
    CHECK(trouble == 0);
    CHECK(acquired == rounds * size);
}

}  // namespace postgres_field_test
