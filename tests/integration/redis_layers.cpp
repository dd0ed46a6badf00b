// Stores over a real Redis keep every promise of it.

#include <random>

#include "support/catch.hpp"
#include "support/held_to_promises.hpp"
#include "support/layered_world.hpp"
#include "support/redis_world.hpp"

namespace redis_layers_test {

using idem_test::CachedWorld;
using idem_test::CombiningWorld;
using idem_test::EncryptedWorld;
using idem_test::RedisCli;
using idem_test::RedisWorld;

template <class World>
void ask(const std::string& what, std::uint64_t seed) {
    const std::string url = idem_test::shared_redis().url();
    RedisCli cli(url);
    idem_test::held_to_promises(what, [&] { return World(url, cli); },
                                {.seed = seed, .histories = 60, .shrinks = 200});
}

TEST_CASE("conformance: an encrypted and combined Redis keeps every promise",
          "[integration][redis]") {
    ask<EncryptedWorld<CombiningWorld<RedisWorld>>>("encrypted and combined Redis",
                                                    std::random_device{}());
}

TEST_CASE("conformance: a cached Redis keeps every promise", "[integration][redis]") {
    using World = CachedWorld<RedisWorld>;
    ask<World>("cached Redis", std::random_device{}());
    const std::string url = idem_test::shared_redis().url();
    RedisCli cli(url);
    World world(url, cli);
    CHECK(world.answers_repeats());
}

}  // namespace redis_layers_test
