#ifndef IDEMCTL_CHECK_REDIS_HPP
#define IDEMCTL_CHECK_REDIS_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <idem/redis.hpp>

#include "report.hpp"

namespace idemctl {

/// What a Redis server says about itself, as far as this login may ask.
class RedisInfo {
public:
    explicit RedisInfo(idem::redis::Connection& connection, idem::LocalInstant deadline) {
        idem::redis::Request request;
        for (const char* section : {"server", "memory", "persistence", "replication", "stats"})
            request.command({"INFO", section});
        request.command({"CONFIG", "GET", "appendfsync"});
        asked_ = wall_clock();
        request.command({"TIME"});
        auto answers = connection.exchange(request, deadline);
        half_way_ = asked_ + (wall_clock() - asked_) / 2;
        if (answers.fault) {
            fault_ = answers.fault->message;
            return;
        }
        for (std::size_t i = 0; i < 5; ++i) {
            const auto text = answers.replies[i].text().value_or("");
            if (answers.replies[i].is_error()) {
                refused_ = text;
            } else {
                info_ += text;
            }
        }
        fsync_ = answers.replies[5].text(1).value_or("");
        server_ = idem::redis::State::read_clock(answers.replies[6]);
    }
    /// Empty: there is none.
    [[nodiscard]] const std::string& fault() const { return fault_; }
    /// Why INFO was not answered; empty: it was.
    [[nodiscard]] const std::string& refused() const { return refused_; }
    [[nodiscard]] std::string operator[](const std::string& name) const {
        const auto at = ("\n" + info_).find("\n" + name + ":");
        if (at == std::string::npos) return {};
        const auto value = std::string_view(info_).substr(at + name.size() + 1);
        return std::string(value.substr(0, value.find_first_of("\r\n")));
    }
    [[nodiscard]] const std::string& fsync() const { return fsync_; }
    [[nodiscard]] std::optional<idem::Instant> server() const { return server_; }
    [[nodiscard]] idem::Instant half_way() const { return half_way_; }

private:
    std::string info_{};
    std::string fault_{};
    std::string refused_{};
    std::string fsync_{};
    idem::Instant asked_{};
    idem::Instant half_way_{};
    std::optional<idem::Instant> server_{};
};

inline void check_redis_eviction(Report& report, const RedisInfo& info) {
    const std::string policy = info["maxmemory_policy"];
    const std::string evicted = info["evicted_keys"];
    if (policy != "noeviction") {
        report.warn("eviction", "maxmemory-policy is " + policy +
                                    ": a claim that is evicted runs twice; set noeviction");
    } else if (evicted != "0" && !evicted.empty()) {
        report.warn("eviction", evicted +
                                    " keys were evicted since the server started, under "
                                    "another policy than the present noeviction");
    } else {
        report.ok("eviction", "noeviction");
    }
}

inline void check_redis_memory(Report& report, const RedisInfo& info) {
    const auto bytes = [&](const char* name) {
        return detail::number_of<std::uint64_t>(info[name]).value_or(0);
    };
    const std::uint64_t most = bytes("maxmemory");
    if (most == 0) return report.ok("memory", "no maxmemory: the machine's own is what there is");
    const std::string words =
        std::to_string(bytes("used_memory") * 100 / most) + " % of maxmemory is used";
    if (bytes("used_memory") < most / 10 * 9) return report.ok("memory", words);
    report.warn("memory", words + ": a full server refuses new keys; give it more, or keep less");
}

inline void check_redis_persistence(Report& report, const RedisInfo& info) {
    const std::string name = "persistence";
    if (info["aof_enabled"] != "1")
        return report.warn(name,
                           "appendonly is off: a restart forgets what was answered, and keys "
                           "run again; set appendonly yes");
    if (info["aof_last_write_status"] != "ok")
        return report.fail(name, "the append only file cannot be written: look at the disk");
    if (info.fsync().empty())
        return report.ok(name, "appendonly; appendfsync is not told: +config|get is missing");
    if (info.fsync() != "always")
        return report.warn(name, "appendonly with appendfsync " + info.fsync() +
                                     ": a crash of the machine loses the last second or more, and "
                                     "those keys run again; set appendfsync always");
    report.ok(name, "appendonly, appendfsync always");
}

/// @return false where there is nobody to ask more.
[[nodiscard]] inline bool check_redis(Report& report, const std::string& url) {
    idem::RedisOptions options;
    options.url = url;
    const auto target = idem::redis::read_url(options);
    const auto deadline = idem::LocalClock::now() + options.time_allowed;
    idem::redis::Fault fault;
    auto connection = idem::redis::Connection::open(
        target.place, target.login, idem::LocalClock::now() + options.connect_timeout, fault);
    if (!connection) {
        report.fail("reachable", fault.message, unavailable);
        return false;
    }
    report.ok("reachable", target.place.name() + (target.place.encryption ? ", encrypted" : ""));
    const RedisInfo info(*connection, deadline);
    if (!info.fault().empty()) {
        report.fail("server", info.fault(), unavailable);
        return false;
    }
    if (info.server()) check_clock(report, *info.server(), info.half_way());
    if (!info.refused().empty()) {
        report.warn("server", "does not tell: " + info.refused() +
                                  "; +info is needed to see version, eviction and persistence");
        return true;
    }
    const std::string valkey = info["valkey_version"];
    report.ok("server", valkey.empty() ? "Redis " + info["redis_version"] : "Valkey " + valkey);
    if (info["role"] != "master")
        report.fail("role", "it is a replica: the store needs the master of it, " +
                                info["master_host"] + ":" + info["master_port"]);
    check_redis_memory(report, info);
    check_redis_eviction(report, info);
    check_redis_persistence(report, info);
    return true;
}

}  // namespace idemctl

#endif
