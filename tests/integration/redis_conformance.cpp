// A real Redis is asked for every promise of a store, over TCP and over a Unix socket.

#include <random>
#include <string>

#include "support/catch.hpp"
#include "support/held_to_promises.hpp"
#include "support/redis_world.hpp"

namespace redis_conformance_test {

using idem_test::RedisCli;
using idem_test::RedisWorld;

void ask(const std::string& what, const std::string& url, std::uint64_t seed, bool look_first) {
    RedisCli cli(idem_test::shared_redis().url());
    idem_test::held_to_promises(what, [&] { return RedisWorld(url, cli, look_first); },
                                {.seed = seed, .histories = 100, .shrinks = 200});
}

TEST_CASE("conformance: Redis keeps every promise over TCP", "[integration][redis]") {
    ask("Redis over TCP", idem_test::shared_redis().url(), 1, false);
}

TEST_CASE("conformance: Redis keeps every promise over a Unix socket, looking before it claims",
          "[integration][redis]") {
    ask("Redis over a Unix socket", idem_test::shared_redis().socket_url(), std::random_device{}(),
        true);
}

}  // namespace redis_conformance_test
