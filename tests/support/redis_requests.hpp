#ifndef IDEM_TESTS_SUPPORT_REDIS_REQUESTS_HPP
#define IDEM_TESTS_SUPPORT_REDIS_REQUESTS_HPP

#include <chrono>
#include <cstring>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include <idem/detail/random.hpp>
#include <idem/redis.hpp>

#include "support/redis_server.hpp"

namespace idem_test {

[[nodiscard]] inline idem::Owner random_owner() {
    idem::Owner out;
    idem::detail::fill_random(out.bytes.data(), out.bytes.size());
    return out;
}

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

[[nodiscard]] inline idem::ClaimRequest claim_of(const idem::Key& key, const idem::Owner& owner) {
    idem::ClaimRequest out;
    out.key = idem::KeyView(idem::Component::call, key);
    out.owner = owner;
    out.lease = std::chrono::seconds{30};
    out.retention = std::chrono::hours{1};
    out.held_retention = std::chrono::hours{5};
    return out;
}

[[nodiscard]] inline idem::FinishRequest complete_of(const idem::Key& key, const idem::Owner& owner,
                                                     idem::Fence fence, std::string_view result) {
    idem::FinishRequest out;
    out.key = idem::KeyView(idem::Component::call, key);
    out.owner = owner;
    out.fence = fence;
    out.lease = std::chrono::seconds{30};
    out.retention = std::chrono::hours{1};
    out.held_retention = std::chrono::hours{5};
    out.result_kind = idem::ResultKind::value;
    out.result = result;
    return out;
}

[[nodiscard]] inline idem::FinishRequest release_of(const idem::Key& key, const idem::Owner& owner,
                                                    idem::Fence fence) {
    idem::FinishRequest out = complete_of(key, owner, fence, "");
    out.kind = idem::FinishKind::release;
    out.result_kind = idem::ResultKind::none;
    out.failure = idem::FailureClass::retryable;
    return out;
}

[[nodiscard]] inline idem::KeyView view_of(const idem::Key& key) {
    return {idem::Component::call, key};
}

/// How often a command was called, by the server's own count.
[[nodiscard]] inline long calls_of(RedisCli& cli, const std::string& command) {
    const std::string text = cli.info("commandstats", "cmdstat_" + command);
    return text.empty() ? 0 : std::stol(text.substr(text.find('=') + 1));
}

}  // namespace idem_test

#endif
