// The program of a user, who has nothing but the public headers.
#include <idem/idem.hpp>
#ifdef WANT_redis
#include <idem/redis.hpp>
#endif
#ifdef WANT_postgres
#include <idem/postgres.hpp>
#endif

int main() { return IDEM_VERSION_MAJOR == 0 ? 0 : 1; }
