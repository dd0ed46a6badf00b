#ifndef IDEM_REDIS_OPEN_HPP
#define IDEM_REDIS_OPEN_HPP

#include <utility>

#include <idem/any_store.hpp>
#include <idem/redis/store.hpp>

/// Teaches `open_store` the schemes `redis://`, `redis+unix://` and `rediss://`, which is refused
/// by name where there is no TLS.
namespace idem::inline v0_1::redis {

/// The URL of `RedisOptions::url`. @throws UsageError. The server is asked by the first request.
[[nodiscard]] inline AnyStore open_redis_store(const idem::detail::Url& url) {
    RedisOptions options;
    options.url = url.text;
    return RedisStore(std::move(options));
}

inline const bool schemes_added = idem::detail::add_store_scheme("redis", open_redis_store) &&
                                  idem::detail::add_store_scheme("redis+unix", open_redis_store) &&
                                  idem::detail::add_store_scheme("rediss", open_redis_store);

}  // namespace idem::inline v0_1::redis

#endif
