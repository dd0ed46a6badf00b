// What a project that takes the library in does first: a guarded call and its repeat.

#include <string>

#include <idem/idem.hpp>
#ifdef WANT_redis
#include <idem/redis.hpp>
#endif
#ifdef WANT_redis_tls
#include <idem/redis/tls.hpp>
#endif
#ifdef WANT_postgres
#include <idem/postgres.hpp>
#endif

int main() {
    const idem::MemoryStore store;
    idem::IdempotencyGuard guard(store);
    const idem::Key key{.scope = "consumer", .id = "1"};
    const auto request = idem::Fingerprint::of("request");
    int runs = 0;
    const auto handler = [&] {
        ++runs;
        return std::string("done");
    };
    const auto first = guard.run(key, request, handler);
    const auto repeat = guard.run(key, request, handler);
    const bool well = first.executed() && repeat.replayed() && repeat.value() == "done";
    return well && runs == 1 ? 0 : 1;
}
