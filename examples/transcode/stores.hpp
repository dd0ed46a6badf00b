#ifndef TRANSCODE_STORES_HPP
#define TRANSCODE_STORES_HPP

#include <chrono>
#include <iostream>
#include <string>
#include <string_view>

#include <idem/any_store.hpp>
#include <idem/layered/combining.hpp>
#ifdef TRANSCODE_HAS_POSTGRES
#include <idem/postgres.hpp>
#endif
#ifdef TRANSCODE_HAS_REDIS
#include <idem/redis.hpp>
#endif

namespace transcode {

#if defined TRANSCODE_HAS_POSTGRES && defined TRANSCODE_HAS_REDIS
/// PostgreSQL decides, Redis answers repeats; what happens to Redis is told and changes no answer.
/// Through `idem::open_store` the same URL gives the two layers as they are by default.
[[nodiscard]] inline idem::AnyStore open_both(const std::string& redis_url,
                                              const std::string& postgres_url) {
    idem::TieredOptions options;
    options.notice = [](std::string_view what) {
        std::cerr << "front: " + std::string(what) + '\n';
    };
    return idem::TieredStore(idem::RedisFront({.url = redis_url}),
                             idem::CombiningStore(idem::PostgresStore({.conninfo = postgres_url})),
                             options);
}
#endif

/// Opens the store of a URL; the table of a PostgreSQL one is made first. That takes rights which
/// the service itself does not need: in production it is a step of the deployment.
[[nodiscard]] inline idem::AnyStore open_store(const std::string& url) {
#ifdef TRANSCODE_HAS_POSTGRES
    const std::string both = "redis+";
    const bool tiered = url.starts_with(both + "postgres");
    const std::string postgres =
        tiered ? url.substr(both.size(), url.find('?') - both.size()) : url;
    if (postgres.starts_with("postgres"))
        idem::PostgresStore({.conninfo = postgres}).create_schema();
#ifdef TRANSCODE_HAS_REDIS
    const auto front = url.find("?front=");
    if (tiered && front != std::string::npos)
        return open_both(idem::detail::percent_decode(url.substr(front + 7)), postgres);
#endif
#endif
    return idem::open_store(url);
}

}  // namespace transcode

#endif
