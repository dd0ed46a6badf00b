#ifndef IDEM_TESTS_SUPPORT_POSTGRES_SERVER_HPP
#define IDEM_TESTS_SUPPORT_POSTGRES_SERVER_HPP

#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <idem/postgres.hpp>

#include "support/eventually.hpp"
#include "support/process.hpp"

namespace idem_test {

/// One connection for what a test does beside the store: text in, text out.
class Sql {
public:
    explicit Sql(const std::string& conninfo) : connection_(connect(conninfo)) {}

    /// @return the first field of the first row. @throws std::runtime_error for any error.
    std::string operator()(const std::string& text) {
        const auto answer = connection_.script(text, in_seconds(60));
        if (answer.fault) throw std::runtime_error(answer.fault->message + " in: " + text);
        if (!answer.result || answer.result.rows() == 0) return "";
        return std::string(answer.result.field(0, 0).value_or(""));
    }
    [[nodiscard]] idem::postgres::Connection& connection() { return connection_; }

private:
    [[nodiscard]] static idem::postgres::Connection connect(const std::string& conninfo) {
        idem::postgres::Fault fault;
        auto made = idem::postgres::Connection::open(idem::postgres::Conninfo(conninfo),
                                                     in_seconds(20), fault);
        if (!made) throw std::runtime_error(fault.message);
        return *std::move(made);
    }
    idem::postgres::Connection connection_;
};

/// A PostgreSQL server of one's own on a free port, with an empty cluster.
class PostgresServer {
public:
    explicit PostgresServer(std::vector<std::string> options = {})
        : folder_(server_folder("postgres")), port_(free_port()), options_(std::move(options)) {
        start();
    }
    PostgresServer(const PostgresServer&) = delete;
    PostgresServer& operator=(const PostgresServer&) = delete;
    ~PostgresServer() {
        process_.signal_all(SIGCONT);  // a failed test may have left it stopped
        process_.end(SIGQUIT);
        std::error_code ignored;
        std::filesystem::remove_all(folder_, ignored);
    }

    void start() {
        std::vector<std::string> command = {script(), "postgres", folder_.string(),
                                            std::to_string(port_)};
        command.insert(command.end(), options_.begin(), options_.end());
        process_ = ServerProcess(command);
        await(conninfo("target_session_attrs=any"), process_);  // a standby too
    }
    void end(int signal) { process_.end(signal); }
    void signal_all(int number) const { process_.signal_all(number); }
    /// After SIGKILL: what it left behind may hold its memory for a moment.
    void start_again() {
        const auto deadline = in_seconds(60);
        for (;;) {
            try {
                return start();
            } catch (const std::exception&) {
                if (idem::LocalClock::now() > deadline) throw;
            }
        }
    }

    [[nodiscard]] int port() const noexcept { return port_; }
    [[nodiscard]] std::string conninfo(const std::string& more = "") const {
        return "host=127.0.0.1 port=" + std::to_string(port_) + " user=postgres dbname=postgres " +
               more;
    }

    [[nodiscard]] static std::string script() {
        return std::string(IDEM_SOURCE_DIR) + "/tests/support/postgres_server.sh";
    }
    /// Until the server answers. @throws std::runtime_error where it ends or never does.
    static void await(const std::string& conninfo, const ServerProcess& process) {
        idem::postgres::Fault fault;
        const idem::postgres::Conninfo info(conninfo);
        bool answers = false;
        (void)eventually([&] {
            answers = idem::postgres::Connection::open(info, in_seconds(5), fault).has_value();
            return answers || !process.running();
        });
        if (!answers) throw std::runtime_error("the server did not start: " + fault.message);
    }

private:
    std::filesystem::path folder_;
    int port_;
    std::vector<std::string> options_;
    ServerProcess process_{};
};

/// A pgbouncer before a server, in transaction mode.
class Pgbouncer {
public:
    explicit Pgbouncer(const PostgresServer& server)
        : folder_(server_folder("pgbouncer")), port_(free_port()) {
        process_ = ServerProcess({PostgresServer::script(), "pgbouncer", folder_.string(),
                                  std::to_string(port_), std::to_string(server.port())});
        PostgresServer::await(conninfo(), process_);
    }
    Pgbouncer(const Pgbouncer&) = delete;
    Pgbouncer& operator=(const Pgbouncer&) = delete;
    ~Pgbouncer() {
        process_.end(SIGINT);
        std::error_code ignored;
        std::filesystem::remove_all(folder_, ignored);
    }
    [[nodiscard]] std::string conninfo() const {
        return "host=127.0.0.1 port=" + std::to_string(port_) + " user=postgres dbname=postgres";
    }

private:
    std::filesystem::path folder_;
    int port_;
    ServerProcess process_{};
};

/// The server that all tests of this program share; each takes a schema of its own.
[[nodiscard]] inline PostgresServer& shared_server() {
    static PostgresServer server;
    return server;
}

/// A name for a schema that no other test has.
[[nodiscard]] inline std::string fresh_schema() {
    static std::atomic<int> count{0};
    return "s" + std::to_string(++count);
}

}  // namespace idem_test

#endif
