#ifndef IDEM_TESTS_SUPPORT_POSTGRES_USER_HPP
#define IDEM_TESTS_SUPPORT_POSTGRES_USER_HPP

#include <memory>
#include <stdexcept>
#include <string>

#include <idem/postgres.hpp>

#include "support/eventually.hpp"
#include "support/postgres_server.hpp"

namespace idem_test {

/// A connection as an application has one: bare libpq.
class UserConnection {
public:
    explicit UserConnection(const std::string& conninfo)
        : connection_(PQconnectdb(conninfo.c_str())) {
        if (PQstatus(get()) != CONNECTION_OK) throw std::runtime_error(PQerrorMessage(get()));
        PQsetNoticeProcessor(
            get(), [](void* count, const char*) { ++*static_cast<int*>(count); }, notices_.get());
    }

    [[nodiscard]] PGconn* get() const { return connection_.get(); }
    /// @return the first field of the first row, or the SQLSTATE of the error.
    std::string operator()(const std::string& text) const { return run(get(), text); }
    static std::string run(PGconn* connection, const std::string& text) {
        const std::unique_ptr<PGresult, void (*)(PGresult*)> result(
            PQexec(connection, text.c_str()), PQclear);
        const auto status = PQresultStatus(result.get());
        if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK) {
            const char* code = PQresultErrorField(result.get(), PG_DIAG_SQLSTATE);
            return code == nullptr ? "broken" : code;
        }
        return PQntuples(result.get()) == 0 ? "" : PQgetvalue(result.get(), 0, 0);
    }
    /// Warnings that a user would find in the log.
    [[nodiscard]] int notices() const { return *notices_; }
    [[nodiscard]] int process() const { return PQbackendPID(get()); }

private:
    struct Finish {
        void operator()(PGconn* c) const { PQfinish(c); }
    };
    std::unique_ptr<int> notices_ = std::make_unique<int>(0);
    std::unique_ptr<PGconn, Finish> connection_;
};

/// Until the session of this process waits for a lock. @throws std::runtime_error: it never does.
inline void await_blocked(Sql& sql, int process) {
    const std::string waits_for =
        "SELECT wait_event_type FROM pg_stat_activity WHERE pid = " + std::to_string(process);
    if (!eventually([&] { return sql(waits_for) == "Lock"; }))
        throw std::runtime_error("nobody waits for a lock");
}

}  // namespace idem_test

#endif
