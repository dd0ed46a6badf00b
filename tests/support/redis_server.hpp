#ifndef IDEM_TESTS_SUPPORT_REDIS_SERVER_HPP
#define IDEM_TESTS_SUPPORT_REDIS_SERVER_HPP

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <unistd.h>

#include <idem/redis.hpp>

#include "support/eventually.hpp"
#include "support/process.hpp"

namespace idem_test {

/// One connection for what a test does beside the store.
class RedisCli {
public:
    explicit RedisCli(const std::string& url) : connection_(connect(url)) {}

    /// The reply as text: a string, a number, "(nil)", or the elements of an array by lines.
    /// @throws std::runtime_error for any error.
    std::string operator()(std::initializer_list<std::string_view> words) {
        idem::redis::Request request;
        request.command(words);
        auto answers = connection_.exchange(request, in_seconds(60));
        if (answers.fault) throw std::runtime_error(answers.fault->message);
        const auto& reply = answers.replies[0];
        if (reply.is_error()) throw std::runtime_error(std::string(reply.text().value_or("")));
        if (reply.integer()) return std::to_string(*reply.integer());
        if (reply.is_null()) return "(nil)";
        if (const auto text = reply.text()) return std::string(*text);
        std::string lines;
        for (std::size_t i = 0; i < reply.size(); ++i)
            lines += std::string(reply.text(i).value_or("")) + "\n";
        return lines;
    }
    /// A field of INFO.
    std::string info(std::string_view section, const std::string& field) {
        const std::string text = (*this)({"INFO", section});
        const auto at = text.find(field + ":");
        if (at == std::string::npos) return "";
        const auto from = at + field.size() + 1;
        return text.substr(from, text.find('\r', from) - from);
    }
    [[nodiscard]] idem::redis::Connection& connection() { return connection_; }

private:
    [[nodiscard]] static idem::redis::Connection connect(const std::string& url) {
        idem::RedisOptions options;
        options.url = url;
        const auto target = idem::redis::read_url(options);
        idem::redis::Fault fault;
        auto made =
            idem::redis::Connection::open(target.place, target.login, in_seconds(20), fault);
        if (!made) throw std::runtime_error(fault.message);
        return *std::move(made);
    }
    idem::redis::Connection connection_;
};

/// The server program: IDEM_REDIS_SERVER, or redis-server.
[[nodiscard]] inline std::string redis_program() {
    const char* chosen = std::getenv("IDEM_REDIS_SERVER");
    return chosen == nullptr ? "redis-server" : chosen;
}

/// A Redis server of one's own on a free port and a Unix socket, with a folder of its own.
class RedisServer {
public:
    explicit RedisServer(std::vector<std::string> options = {})
        : folder_(server_folder("redis")), port_(free_port()), options_(std::move(options)) {
        std::filesystem::create_directories(folder_);
        start();
    }
    RedisServer(const RedisServer&) = delete;
    RedisServer& operator=(const RedisServer&) = delete;
    ~RedisServer() {
        process_.signal(SIGCONT);
        process_.end(SIGKILL);
        std::error_code ignored;
        std::filesystem::remove_all(folder_, ignored);
    }

    void start() {
        launch();
        await();
    }
    /// A test that crashes takes its servers along.
    void launch() {
        std::vector<std::string> command = {"setpriv",
                                            "--pdeathsig",
                                            "KILL",
                                            redis_program(),
                                            "--port",
                                            std::to_string(port_),
                                            "--bind",
                                            "127.0.0.1",
                                            "--dir",
                                            folder_.string(),
                                            "--unixsocket",
                                            socket(),
                                            "--save",
                                            "",
                                            "--logfile",
                                            (folder_ / "log").string(),
                                            "--enable-debug-command",
                                            "yes",
                                            "--enable-protected-configs",
                                            "yes"};
        command.insert(command.end(), options_.begin(), options_.end());
        process_ = ServerProcess(command);
    }
    void end(int signal) { process_.end(signal); }
    void signal(int number) const { process_.signal(number); }

    [[nodiscard]] int port() const noexcept { return port_; }
    [[nodiscard]] std::string socket() const { return (folder_ / "s").string(); }
    [[nodiscard]] std::string url(const std::string& more = "") const {
        return "redis://127.0.0.1:" + std::to_string(port_) + more;
    }
    [[nodiscard]] std::string socket_url(const std::string& more = "") const {
        return "redis+unix://" + socket() + more;
    }
    /// Until the server has read its data and answers. @throws std::runtime_error where it ends or
    /// never does.
    void await() const {
        std::string trouble;
        bool answers = false;
        (void)eventually([&] {
            trouble = answer();
            // It wants a password, or has no slots: it answers.
            answers = trouble.empty() || trouble.find("NOAUTH") != std::string::npos ||
                      trouble.find("CLUSTERDOWN") != std::string::npos;
            return answers || !process_.running();
        });
        if (!answers) throw std::runtime_error("the server did not start: " + trouble);
    }

private:
    /// What is wrong with it; empty: nothing.
    [[nodiscard]] std::string answer() const {
        try {
            RedisCli cli(url());
            (void)cli({"GET", "x"});
            return "";
        } catch (const std::runtime_error& error) {
            return error.what();
        }
    }

    std::filesystem::path folder_;
    int port_;
    std::vector<std::string> options_;
    ServerProcess process_{};
};

/// The names of all keys on a server that would stay for ever.
[[nodiscard]] inline std::string without_ttl(RedisCli& cli) {
    return cli({"EVAL",
                "local out, at = '', '0'\n"
                "repeat\n"
                "  local got = redis.call('SCAN', at, 'COUNT', 1000)\n"
                "  at = got[1]\n"
                "  for _, key in ipairs(got[2]) do\n"
                "    if redis.call('PTTL', key) == -1 then out = out .. key .. ' ' end\n"
                "  end\n"
                "until at == '0'\n"
                "return out",
                "0"});
}

/// The server that all tests of this program share; each takes a prefix of its own. When all have
/// run no key may be left on it that would stay for ever: the program fails then.
[[nodiscard]] inline RedisServer& shared_redis() {
    struct Shared : RedisServer {
        ~Shared() {
            if (getpid() != owner) return;
            try {
                RedisCli cli(url());
                const std::string left = without_ttl(cli);
                if (left.empty()) return;
                (void)std::fprintf(stderr, "keys without a time to live: %s\n", left.c_str());
            } catch (const std::exception& error) {
                (void)std::fprintf(stderr, "at the end: %s\n", error.what());
            }
            end(SIGKILL);
            std::_Exit(5);
        }
        const pid_t owner = getpid();
    };
    static Shared server;
    return server;
}

/// A prefix that no other test has.
[[nodiscard]] inline std::string fresh_prefix() {
    static std::atomic<int> count{0};
    return "p" + std::to_string(++count) + ":";
}

}  // namespace idem_test

#endif
