#ifndef IDEMCTL_CHECK_HPP
#define IDEMCTL_CHECK_HPP

#include <string>

#include <idem/any_store.hpp>

#include "report.hpp"
#ifdef IDEMCTL_HAS_POSTGRES
#include "check_postgres.hpp"
#endif
#ifdef IDEMCTL_HAS_REDIS
#include "check_redis.hpp"
#endif
#ifdef IDEMCTL_HAS_REDIS_TLS
#include <idem/redis/tls.hpp>
#endif

namespace idemctl {

/// What only its backend can ask, then what every store must be able to do.
inline int check(idem::AnyStore& store, const Arguments& a) {
    Report report(a.json);
    const std::string scheme = a.store.substr(0, a.store.find("://"));
    bool there = true;
#ifdef IDEMCTL_HAS_POSTGRES
    if (scheme == "postgres" || scheme == "postgresql") there = check_postgres(report, a.store);
#endif
#ifdef IDEMCTL_HAS_REDIS
    if (scheme == "redis" || scheme == "rediss" || scheme == "redis+unix")
        there = check_redis(report, a.store);
#endif
    if (scheme == "memory")
        report.warn("persistence", "memory:// is seen by its own process only, and ends with it");
    if (there) check_round_trip(report, store);
    return report.status();
}

}  // namespace idemctl

#endif
