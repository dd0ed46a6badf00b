#ifndef TRANSCODE_STORES_HPP
#define TRANSCODE_STORES_HPP

#include <string>

#include <idem/any_store.hpp>
#ifdef TRANSCODE_HAS_POSTGRES
#include <idem/postgres.hpp>
#endif
#ifdef TRANSCODE_HAS_REDIS
#include <idem/redis.hpp>
#endif

namespace transcode {

/// Opens the store of a URL; the table of a PostgreSQL one is made first. That takes rights which
/// the service itself does not need: in production it is a step of the deployment.
[[nodiscard]] inline idem::AnyStore open_store(const std::string& url) {
#ifdef TRANSCODE_HAS_POSTGRES
    if (url.starts_with("postgres")) idem::PostgresStore({.conninfo = url}).create_schema();
#endif
    return idem::open_store(url);
}

}  // namespace transcode

#endif
