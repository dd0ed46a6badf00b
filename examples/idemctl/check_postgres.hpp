#ifndef IDEMCTL_CHECK_POSTGRES_HPP
#define IDEMCTL_CHECK_POSTGRES_HPP

#include <string>
#include <utility>

#include <idem/postgres.hpp>

#include "report.hpp"

namespace idemctl {

inline void check_postgres_durability(Report& report, const std::string& commit,
                                      const std::string& fsync, const std::string& standbys) {
    const std::string name = "durability";
    if (fsync == "off" || commit == "off")
        return report.warn(name, (fsync == "off" ? "fsync" : "synchronous_commit") +
                                     std::string(" is off: a crash forgets what was answered, and "
                                                 "those keys run again; set it to on"));
    report.ok(name, "synchronous_commit " + commit +
                        (standbys.empty() ? ", no synchronous standby: a promoted one may lack the "
                                            "last answers"
                                          : ", synchronous standbys"));
}

/// @return false where there is nobody to ask more.
[[nodiscard]] inline bool check_postgres(Report& report, const std::string& url) {
    const auto options = idem::postgres::options_of(idem::detail::parse_url(url).value());
    const auto deadline = idem::LocalClock::now() + options.time_allowed;
    idem::postgres::Fault fault;
    auto connection =
        idem::postgres::Connection::open(idem::postgres::Conninfo(options.conninfo),
                                         idem::LocalClock::now() + options.connect_timeout, fault);
    if (!connection) {
        report.fail("reachable", fault.message, unavailable);
        return false;
    }
    report.ok("reachable", connection->place());
    const auto asked = wall_clock();
    const auto answer = connection->script(
        "SELECT current_setting('server_version'), current_setting('synchronous_commit'),"
        " current_setting('fsync'), current_setting('synchronous_standby_names'),"
        " (extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
        deadline);
    const auto half_way = asked + (wall_clock() - asked) / 2;
    if (answer.fault) {
        report.fail("server", answer.fault->message, unavailable);
        return false;
    }
    const auto field = [&](int column) {
        return std::string(answer.result.field(0, column).value_or(""));
    };
    const auto micros = detail::number_of<std::int64_t>(field(4)).value_or(0);
    check_clock(report, idem::Instant(idem::Duration(micros)), half_way);
    report.ok("server", "PostgreSQL " + field(0));
    check_postgres_durability(report, field(1), field(2), field(3));
    try {
        idem::PostgresStore(options).verify();
        report.ok("schema", "table, unique index, functions and rights are as they must be");
    } catch (const idem::SchemaError& error) {
        report.fail("schema", error.what());
        return false;  // a round trip would only say it again
    }
    return true;
}

}  // namespace idemctl

#endif
