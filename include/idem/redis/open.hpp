#ifndef IDEM_REDIS_OPEN_HPP
#define IDEM_REDIS_OPEN_HPP

#include <utility>

#include <idem/any_store.hpp>
#include <idem/redis/front.hpp>
#include <idem/redis/store.hpp>

/// Teaches `open_store` the schemes `redis://`, `redis+unix://` and `rediss://`, which is refused
/// by name where there is no TLS; and each of them as a front.
namespace idem::inline v0_1::redis {

/// The URL of `RedisOptions::url`. @throws UsageError. The server is asked by the first request.
[[nodiscard]] inline AnyStore open_redis_store(const idem::detail::Url& url) {
    RedisOptions options;
    options.url = url.text;
    return RedisStore(std::move(options));
}

/// The same URL, for a front.
[[nodiscard]] inline AnyFront open_redis_front(const idem::detail::Url& url) {
    RedisOptions options;
    options.url = url.text;
    return RedisFront(std::move(options));
}

inline const bool fronts_added = idem::detail::add_front_scheme("redis", open_redis_front) &&
                                 idem::detail::add_front_scheme("redis+unix", open_redis_front) &&
                                 idem::detail::add_front_scheme("rediss", open_redis_front);
inline const bool schemes_added = idem::detail::add_store_scheme("redis", open_redis_store) &&
                                  idem::detail::add_store_scheme("redis+unix", open_redis_store) &&
                                  idem::detail::add_store_scheme("rediss", open_redis_store);

}  // namespace idem::inline v0_1::redis

#endif
