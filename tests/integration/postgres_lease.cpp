// A lease lock on a real PostgreSQL keeps its promises; and what only a PostgreSQL does to it.

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <idem/lease.hpp>

#include "support/catch.hpp"
#include "support/lease_promises.hpp"
#include "support/postgres_world.hpp"

namespace postgres_lease_test {

using namespace std::chrono_literals;
using namespace idem_test;

PostgresBench make_bench(const std::string& more = "") {
    return PostgresBench(shared_server().conninfo(), shared_server().conninfo(more));
}

TEST_CASE("PostgreSQL: a lease lock keeps its promises", "[integration][postgres][lease]") {
    auto bench = make_bench();
    locks_keep_their_promises(bench, 50);
}

TEST_CASE("PostgreSQL: a holder that is stopped past its lease writes nothing when it goes on",
          "[integration][postgres][lease][fork]") {
    auto bench = make_bench();
    stopped_holders_write_nothing(
        bench, [&] { return idem::PostgresStore(bench.options(shared_server().conninfo())); });
}

TEST_CASE("PostgreSQL: a lock is a row, and holds neither a lock of a session nor a connection",
          "[integration][postgres][lease]") {
    auto bench = make_bench();
    // Through a pooler the next statement may come by another session.
    idem::PostgresStore one(bench.options(shared_server().conninfo(), 1));
    idem::LeaseLock lock(one, {.lease = 1h});
    idem::LeaseLock other(bench.store(), {.lease = 1h});
    auto lease = lock.try_acquire(lock_key);
    REQUIRE(lease);
    CHECK(bench.sql()("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == "0");
    CHECK(lock.try_acquire({.scope = "lock", .id = "second"}));  // the one connection is free
    CHECK_FALSE(other.try_acquire(lock_key));
    CHECK(lease->release());
    CHECK(other.try_acquire(lock_key));
}

TEST_CASE("PostgreSQL: a deadlock or a serialization failure is not 'somebody has the lock'",
          "[integration][postgres][lease]") {
    auto bench = make_bench("options='-c default_transaction_isolation=serializable'");
    idem::LeaseLock lock(bench.store(), {.lease = 1h});
    std::atomic<int> overlaps{0};
    std::atomic<int> inside{0};
    std::atomic<int> entered{0};
    std::atomic<int> raised{0};
    {
        std::vector<std::jthread> threads;
        for (int i = 0; i < 8; ++i)
            threads.emplace_back([&] {
                try {
                    const auto lease = lock.acquire(lock_key, 10min);
                    if (!lease) return;
                    overlaps += ++inside == 1 ? 0 : 1;
                    --inside;
                    ++entered;
                } catch (const idem::Error&) {
                    ++raised;
                }
            });
    }
    CHECK(raised == 0);
    CHECK(overlaps == 0);
    CHECK(entered == 8);
}

TEST_CASE("PostgreSQL: a table that was lost has the next fence above",
          "[integration][postgres][lease]") {
    auto bench = make_bench();
    idem::LeaseLock lock(bench.store(), {.lease = 1h});
    const auto old = lock.try_acquire(lock_key);
    REQUIRE(old);
    bench.sql()("DELETE FROM " + bench.table());
    bench.advance(1us);
    const auto next = lock.try_acquire(lock_key);
    REQUIRE(next);
    CHECK(next->fence() > old->fence());
}

}  // namespace postgres_lease_test
