#ifndef IDEM_TESTS_SUPPORT_REDIS_REQUESTS_HPP
#define IDEM_TESTS_SUPPORT_REDIS_REQUESTS_HPP

#include <chrono>
#include <string>
#include <utility>

#include <idem/redis.hpp>

#include "support/redis_server.hpp"
#include "support/requests.hpp"

namespace idem_test {

[[nodiscard]] inline idem::RedisOptions options_for(std::string url,
                                                    std::string prefix = fresh_prefix()) {
    idem::RedisOptions out;
    out.url = std::move(url);
    out.prefix = std::move(prefix);
    out.command_timeout = std::chrono::seconds{5};
    out.time_allowed = std::chrono::seconds{9};  // a third of the usual lease
    return out;
}

/// With limits that a test can wait for.
[[nodiscard]] inline idem::RedisOptions quick(std::string url) {
    idem::RedisOptions out;
    out.url = std::move(url);
    out.prefix = fresh_prefix();
    out.connections = 4;
    out.connect_timeout = std::chrono::milliseconds{400};
    out.command_timeout = std::chrono::milliseconds{400};
    out.replica_timeout = std::chrono::milliseconds{100};
    out.time_allowed = std::chrono::seconds{1};
    return out;
}

/// How often a command was called, by the server's own count.
[[nodiscard]] inline long calls_of(RedisCli& cli, const std::string& command) {
    const std::string text = cli.info("commandstats", "cmdstat_" + command);
    return text.empty() ? 0 : std::stol(text.substr(text.find('=') + 1));
}

}  // namespace idem_test

#endif
