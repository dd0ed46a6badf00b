#ifndef IDEM_POSTGRES_OPTIONS_HPP
#define IDEM_POSTGRES_OPTIONS_HPP

#include <cstddef>
#include <optional>
#include <string>

#include <idem/clock.hpp>
#include <idem/error.hpp>
#include <idem/options.hpp>

namespace idem::inline v0_1 {

/// Where a `PostgresStore` keeps its records and how long it waits for them.
struct PostgresOptions {
    /// As libpq has it: `host=a,b port=5432 dbname=app` or `postgres://user@a,b/app`. Several hosts
    /// are tried in turn; unless `target_session_attrs` says more, only one that can be written to.
    std::string conninfo{};
    /// Both are quoted: any name of up to 40 bytes will do.
    std::string schema = "idem";
    std::string table = "records";
    /// At most so many at once; more callers than that wait for each other.
    std::size_t connections = 8;
    /// For all hosts together, name resolution and TLS included.
    Duration connect_timeout = std::chrono::seconds{2};
    /// For one round trip. A server that does not answer in it is taken for dead.
    Duration statement_timeout = std::chrono::seconds{2};
    /// For a whole request: a free connection, connecting, and every retry. What cannot be done in
    /// it is `UnavailableError`. At most a third of the shortest lease, or heartbeats come too
    /// late.
    Duration time_allowed = std::chrono::seconds{5};
    /// How long a request waits for a row that somebody's open transaction holds, before it is
    /// answered `in_progress` (claim) or unavailable. Must be shorter than `statement_timeout`.
    Duration lock_timeout = std::chrono::milliseconds{500};
    /// Waiting callers hear by LISTEN, on one connection more while any wait, that another process
    /// has settled their key. Off, and behind a pooler that cannot carry it: they poll.
    bool notices = true;
    /// Whether a claim is first tried as a plain read, which answers a repeat at a fraction of the
    /// server's work and costs a first call one round trip more. Empty: while most are repeats.
    std::optional<bool> look_first{};
    /// For tests: the SQL expression of "now", in microseconds since 1970. Empty: the server's
    /// clock. It is part of the functions that `create_schema` makes.
    std::string clock_sql{};
};

namespace postgres {

/// @throws UsageError, naming the field.
inline void check(const PostgresOptions& o) {
    idem::detail::check_duration(o.connect_timeout, "PostgresOptions::connect_timeout");
    idem::detail::check_duration(o.statement_timeout, "PostgresOptions::statement_timeout");
    idem::detail::check_duration(o.time_allowed, "PostgresOptions::time_allowed");
    idem::detail::check_duration(o.lock_timeout, "PostgresOptions::lock_timeout");
    if (o.connections == 0) throw UsageError("PostgresOptions::connections is 0");
    if (o.lock_timeout >= o.statement_timeout)
        throw UsageError(
            "PostgresOptions::lock_timeout must be shorter than PostgresOptions::"
            "statement_timeout: a locked row would look like a dead server");
}

}  // namespace postgres

}  // namespace idem::inline v0_1

#endif
