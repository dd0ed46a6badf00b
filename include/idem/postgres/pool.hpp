#ifndef IDEM_POSTGRES_POOL_HPP
#define IDEM_POSTGRES_POOL_HPP

#include <cstddef>
#include <optional>
#include <string>

#include <idem/detail/pool.hpp>
#include <idem/postgres/connection.hpp>

namespace idem::inline v0_1::postgres {

/// The server of a conninfo: the first of its hosts that takes us.
struct Server {
    using Connection = postgres::Connection;
    using Fault = postgres::Fault;

    Conninfo info;

    [[nodiscard]] std::optional<Connection> open(LocalInstant deadline, Fault& why_not) const {
        return Connection::open(info, deadline, why_not);
    }
    [[nodiscard]] static Fault forked() {
        return Fault::of(code::forked, "this PostgresStore was made before fork: make one here");
    }
    [[nodiscard]] Fault all_busy(std::size_t connections) const {
        return Fault::of(code::no_place, "all " + std::to_string(connections) +
                                             " connections to \"" + info.database() +
                                             "\" stayed busy for the time allowed");
    }
};

using Pool = idem::detail::Pool<Server>;

}  // namespace idem::inline v0_1::postgres

#endif
