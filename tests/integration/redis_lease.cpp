// A lease lock on a real Redis keeps its promises; and what only a Redis does to it.

#include <chrono>
#include <csignal>
#include <string>

#include <idem/lease.hpp>

#include "support/catch.hpp"
#include "support/lease_promises.hpp"
#include "support/redis_requests.hpp"
#include "support/redis_world.hpp"

namespace redis_lease_test {

using namespace std::chrono_literals;
using namespace idem_test;

TEST_CASE("Redis: a lease lock keeps its promises", "[integration][redis][lease]") {
    RedisCli cli(shared_redis().url());
    RedisWorld world(shared_redis().url(), cli);
    locks_keep_their_promises(world, 50);
}

TEST_CASE("Redis: a holder that is stopped past its lease writes nothing when it goes on",
          "[integration][redis][lease][fork]") {
    RedisCli cli(shared_redis().url());
    RedisWorld world(shared_redis().url(), cli);
    stopped_holders_write_nothing(
        world, [&] { return idem::RedisStore(world.options(shared_redis().url())); });
}

TEST_CASE("Redis: a server that forgets its scripts and its records has the next fence above",
          "[integration][redis][lease]") {
    RedisServer server;
    RedisCli cli(server.url());
    idem::RedisStore store(quick(server.url()));
    idem::LeaseLock lock(store);
    const auto old = lock.try_acquire(lock_key);
    REQUIRE(old);
    (void)cli({"SCRIPT", "FLUSH"});
    CHECK_FALSE(lock.try_acquire(lock_key));
    (void)cli({"FLUSHALL"});  // as a replica that had not got it
    const auto next = lock.try_acquire(lock_key);
    REQUIRE(next);
    CHECK(next->fence() > old->fence());
    const Folder folder;
    idem::FencedFile(folder / "a", next->fence()).write("new");
    CHECK_THROWS_AS(idem::FencedFile(folder / "a", old->fence()), idem::LeaseLostError);
}

TEST_CASE("Redis: a lock goes on after its server was away for less than its lease",
          "[integration][redis][lease]") {
    RedisServer server;
    idem::RedisStore store(quick(server.url()));
    LossTold told;
    idem::LeaseLock lock(store, {.lease = 6s, .on_loss = told});
    const auto lease = lock.try_acquire(lock_key);
    REQUIRE(lease);
    const auto end = [&] { return lock.guard().find(lock_key)->header.lease_end; };
    const auto first = end();
    server.signal(SIGSTOP);
    outlast(2500ms);  // a renewal was due, and not answered
    server.signal(SIGCONT);
    CHECK(eventually([&] { return !lease->held() || end() > first; }));
    CHECK(lease->held());
    CHECK(told.shared->count == 0);
}

}  // namespace redis_lease_test
