#ifndef IDEM_TESTS_SUPPORT_POSTGRES_SERVER_HPP
#define IDEM_TESTS_SUPPORT_POSTGRES_SERVER_HPP

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <idem/postgres.hpp>

namespace idem_test {

/// A loopback port that was free a moment ago.
[[nodiscard]] inline int free_port() {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    const bool bound = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&at), size) == 0 &&
                       getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) == 0;
    if (fd >= 0) close(fd);
    if (!bound) throw std::runtime_error("no free port");
    return ntohs(at.sin_port);
}

/// A program that was started here, ended by its process id and by nothing else.
class ServerProcess {
public:
    ServerProcess() = default;
    explicit ServerProcess(std::vector<std::string> command) {
        std::vector<char*> arguments;
        for (auto& word : command) arguments.push_back(word.data());
        arguments.push_back(nullptr);
        pid_ = fork();
        if (pid_ < 0) throw std::runtime_error("fork failed");
        if (pid_ > 0) return;
        const int null = open("/dev/null", O_RDWR);
        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
        execvp(arguments[0], arguments.data());
        _exit(127);
    }
    ServerProcess(ServerProcess&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
    ServerProcess& operator=(ServerProcess&& other) noexcept {
        std::swap(pid_, other.pid_);
        return *this;
    }
    ~ServerProcess() { end(SIGQUIT); }

    void signal(int number) const {
        if (pid_ > 0) kill(pid_, number);
    }
    /// Its children too, as stopping a server takes: the program first, so that it makes no more.
    void signal_all(int number) const {
        namespace fs = std::filesystem;
        if (pid_ <= 0 || owner_ != getpid()) return;
        signal(number);
        for (const auto& entry : fs::directory_iterator("/proc")) {
            const auto name = entry.path().filename().string();
            if (name.find_first_not_of("0123456789") != std::string::npos) continue;
            std::string stat;
            std::getline(std::ifstream(entry.path() / "stat"), stat);
            // The name of the program, in brackets, may hold anything; the state is one letter.
            const auto after = stat.rfind(") ");
            if (after == std::string::npos || after + 4 >= stat.size()) continue;
            if (std::atol(stat.c_str() + after + 4) == pid_) kill(std::stoi(name), number);
        }
    }
    /// Sends a signal and waits for the end. In a forked child it is not ours to end.
    void end(int number) {
        if (pid_ <= 0 || owner_ != getpid()) return;
        kill(pid_, number);
        while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
        }
        pid_ = -1;
    }
    [[nodiscard]] bool running() const { return pid_ > 0 && waitpid(pid_, nullptr, WNOHANG) == 0; }

private:
    pid_t pid_ = -1;
    pid_t owner_ = getpid();
};

[[nodiscard]] inline idem::LocalInstant in_seconds(int seconds) {
    return idem::LocalClock::now() + std::chrono::seconds(seconds);
}

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

/// A folder for servers: under the current one, or among the temporary ones where the user
/// postgres, whom a server of root runs as, could not get there. Gone with its server.
[[nodiscard]] inline std::filesystem::path server_folder(const std::string& name) {
    namespace fs = std::filesystem;
    static std::atomic<int> count{0};
    fs::path base = fs::current_path();
    for (fs::path at = base; geteuid() == 0 && at.has_relative_path(); at = at.parent_path())
        if ((fs::status(at).permissions() & fs::perms::others_exec) == fs::perms::none)
            base = fs::temp_directory_path();
    return base / "servers" /
           (name + "-" + std::to_string(getpid()) + "-" + std::to_string(++count));
}

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
    /// Until the server answers. @throws std::runtime_error where it ends or a minute passes.
    static void await(const std::string& conninfo, const ServerProcess& process) {
        const auto deadline = in_seconds(60);
        for (;;) {
            idem::postgres::Fault fault;
            const idem::postgres::Conninfo info(conninfo);
            if (idem::postgres::Connection::open(info, in_seconds(5), fault)) return;
            if (!process.running() || idem::LocalClock::now() > deadline)
                throw std::runtime_error("the server did not start: " + fault.message);
            std::this_thread::sleep_for(std::chrono::milliseconds{20});
        }
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
