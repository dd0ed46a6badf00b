// The program of a user, who has nothing but the public headers.
#include <idem/idem.hpp>
#ifdef WANT_redis
#include <idem/redis.hpp>
#endif
#ifdef WANT_postgres
#include <idem/postgres.hpp>
#endif

int main() {
    const auto print = idem::Fingerprint::of("a request", 1);  // reaches libcrypto
    return print == idem::Fingerprint::of("a request", 1) ? 0 : 1;
}
