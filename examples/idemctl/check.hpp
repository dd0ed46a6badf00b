#ifndef IDEMCTL_CHECK_HPP
#define IDEMCTL_CHECK_HPP

#include <span>
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

#if defined IDEMCTL_HAS_POSTGRES && defined IDEMCTL_HAS_REDIS
/// The back must be right; a front that does not answer costs speed.
/// @param store becomes the back alone: a forget that the front was not told of is no success.
inline bool check_two_layers(Report& report, const std::string& text, idem::AnyStore& store) {
    const auto url = idem::detail::parse_url(text).value();
    const idem::detail::TieredUrls urls(url, url.scheme.find('+'));
    idem::RedisFront front({.url = urls.front});
    const idem::KeyView probe(idem::Component::call, "idem.check", "front", "");
    idem::FrontGot got;
    front.get(std::span(&probe, 1), std::span(&got, 1));
    if (got.trouble) {
        report.warn("front", "degraded, the back carries on alone: " + got.trouble.message);
    } else {
        report.ok("front", "answers");
    }
    store = idem::open_store(urls.back);
    return check_postgres(report, urls.back);
}
#endif

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
#if defined IDEMCTL_HAS_POSTGRES && defined IDEMCTL_HAS_REDIS
    if (scheme == "redis+postgres" || scheme == "redis+postgresql")
        there = check_two_layers(report, a.store, store);
#endif
    if (scheme == "memory")
        report.warn("persistence", "memory:// is seen by its own process only, and ends with it");
    if (there) check_round_trip(report, store);
    return report.status();
}

}  // namespace idemctl

#endif
