#ifndef IDEM_REDIS_POOL_HPP
#define IDEM_REDIS_POOL_HPP

#include <cstddef>
#include <optional>
#include <string>

#include <idem/detail/pool.hpp>
#include <idem/redis/connection.hpp>

namespace idem::inline v0_1::redis {

/// Where a server is and who we are there.
struct Server {
    using Connection = redis::Connection;
    using Fault = redis::Fault;

    Place place{};
    Login login{};

    [[nodiscard]] std::optional<Connection> open(LocalInstant deadline, Fault& why_not) const {
        return Connection::open(place, login, deadline, why_not);
    }
    [[nodiscard]] static Fault forked() {
        return Fault::of_client(code::forked,
                                "this RedisStore was made before fork: make one here");
    }
    [[nodiscard]] Fault all_busy(std::size_t connections) const {
        return Fault::of_client(code::no_place, "all " + std::to_string(connections) +
                                                    " connections to Redis at " + place.name() +
                                                    " stayed busy for the time allowed");
    }
};

using Pool = idem::detail::Pool<Server>;

}  // namespace idem::inline v0_1::redis

#endif
