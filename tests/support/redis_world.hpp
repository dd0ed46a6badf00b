#ifndef IDEM_TESTS_SUPPORT_REDIS_WORLD_HPP
#define IDEM_TESTS_SUPPORT_REDIS_WORLD_HPP

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <idem/redis.hpp>
#include <idem/testing/manual_clock.hpp>

#include "support/redis_server.hpp"

namespace idem_test {

/// A store on a real server whose clock stands still until a test moves it: the scripts read the
/// time from a key. The records' native times to live go on by the server's own clock.
class RedisWorld {
public:
    explicit RedisWorld(std::string url, RedisCli& cli, std::optional<bool> look_first = {})
        : prefix_(fresh_prefix()),
          look_first_(look_first),
          cli_(&cli),
          store_(options(std::move(url))) {
        set_clock();
    }

    [[nodiscard]] idem::RedisStore& store() { return store_; }
    void advance(idem::Duration by) {
        clock_.advance(by);
        set_clock();
    }
    [[nodiscard]] idem::Instant now() const { return clock_.now(); }
    [[nodiscard]] bool list_may_repeat() const { return true; }
    /// The server drops what is past its time to live before a purge can count it.
    [[nodiscard]] bool expires_unasked() const { return true; }

    /// What is damaged or newer for the kit's format is put as its like in ours.
    void put_raw(const idem::KeyView& key, std::string_view bytes) {
        std::string put(bytes);
        if (put.size() > 1 && put[0] == '\xC1') put[0] = '\xC2';
        (*cli_)({"SET", idem::redis::name_of(prefix_, key), put, "PX", "600000"});
    }
    [[nodiscard]] const std::string& key_prefix() const { return prefix_; }

    [[nodiscard]] idem::RedisOptions options(std::string url) const {
        idem::RedisOptions out;
        out.url = std::move(url);
        out.prefix = prefix_;
        out.look_first = look_first_;
        out.clock_lua = "tonumber(redis.call('GET', 'clock:" + prefix_ + "'))";
        // Long: on a machine with many other things to do, nothing here is about time limits.
        out.connect_timeout = std::chrono::seconds{20};
        out.command_timeout = std::chrono::seconds{30};
        out.time_allowed = std::chrono::seconds{60};
        return out;
    }

private:
    void set_clock() {
        (*cli_)({"SET", "clock:" + prefix_, std::to_string(now().time_since_epoch().count()), "PX",
                 "3600000"});
    }

    std::string prefix_;
    std::optional<bool> look_first_;
    idem::testing::ManualClock clock_{};
    RedisCli* cli_;
    idem::RedisStore store_;
};

}  // namespace idem_test

#endif
