// Measures the Redis store against bare hiredis on a server of its own, in one process, round by
// round: idem_bench_redis [--rounds N] [--operations N] [--json FILE] [--callgrind N]
//
//   redis-benchmark  the program of that name with the same GET, or a SET of 100 bytes
//   get      GET of a value of the same size
//   native   SET NX PX and SET PX, which check nothing
//   scripts  the same scripts with the same arguments by bare hiredis, a connection a thread
//   store    RedisStore::claim and finish
//   guard    IdempotencyGuard::run with a fingerprint of a request of 64 bytes
//   combined the same over CombiningStore
//
// Workloads: replay of a small result (P6) and of 16 KiB (P7), first execution (P8), both by 64
// threads (P9), bytes of a record (P10). With --callgrind the instructions of the server for each
// operation are counted too, over N operations, by servers under valgrind.

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <hiredis/hiredis.h>

#include <idem/idem.hpp>
#include <idem/redis.hpp>

#include "harness.hpp"
#include "support/redis_requests.hpp"

namespace {

using namespace bench;
using idem_test::RedisCli;
using idem_test::RedisServer;

void check(bool right, const char* what) {
    if (right) return;
    std::cerr << "idem_bench_redis: " << what << ": the figures would mean nothing\n";
    std::abort();
}

/// One blocking connection of bare hiredis.
class Raw {
public:
    explicit Raw(int port) : context_(redisConnect("127.0.0.1", port)) {
        check(context_ != nullptr && context_->err == 0, "connecting");
    }
    Raw(const Raw&) = delete;
    Raw& operator=(const Raw&) = delete;
    ~Raw() { redisFree(context_); }

    /// @return the reply's text.
    std::string operator()(std::initializer_list<std::string_view> words) {
        std::vector<const char*> at;
        std::vector<std::size_t> sizes;
        for (const auto word : words) {
            at.push_back(word.data());
            sizes.push_back(word.size());
        }
        void* got =
            redisCommandArgv(context_, static_cast<int>(at.size()), at.data(), sizes.data());
        auto* reply = static_cast<redisReply*>(got);
        check(reply != nullptr && reply->type != REDIS_REPLY_ERROR, "a raw command");
        std::string text(reply->str == nullptr ? "" : reply->str, reply->len);
        freeReplyObject(reply);
        return text;
    }

private:
    redisContext* context_;
};

/// Nanoseconds of an operation, as redis-benchmark sees them.
double redis_benchmark(int port, int threads, std::uint64_t count, const std::string& command) {
    const std::string line = "timeout 120 redis-benchmark --csv -h 127.0.0.1 -p " +
                             std::to_string(port) + " -c " + std::to_string(threads) + " -n " +
                             std::to_string(count) + " " + command + " 2>/dev/null";
    std::FILE* pipe = popen(line.c_str(), "r");
    check(pipe != nullptr, "redis-benchmark");
    std::string text;
    std::array<char, 4096> buffer{};
    while (const auto got = std::fread(buffer.data(), 1, buffer.size(), pipe))
        text.append(buffer.data(), got);
    (void)pclose(pipe);
    // "test","rps",... and below it "GET ...","51282.05",...
    const auto at = text.rfind("\",\"", text.find("\",\"", text.find('\n')));
    check(at != std::string::npos, "redis-benchmark");
    const double each_second = std::atof(text.c_str() + at + 3);
    check(each_second > 0, "redis-benchmark");
    return 1e9 / each_second;
}

/// Instructions of a server that does `work`, from its start to its end.
template <class Work>
double instructions(const Work& work) {
    namespace fs = std::filesystem;
    const fs::path folder = idem_test::server_folder("callgrind");
    fs::create_directories(folder);
    const fs::path program = folder / "server";
    std::ofstream(program) << "#!/bin/sh\nexec valgrind -q --tool=callgrind --callgrind-out-file="
                           << (folder / "out").string() << " redis-server \"$@\"\n";
    fs::permissions(program, fs::perms::owner_all);
    setenv("IDEM_REDIS_SERVER", program.c_str(), 1);
    {
        RedisServer server;
        work(server.url());
        server.end(SIGTERM);
    }
    unsetenv("IDEM_REDIS_SERVER");
    double total = 0;
    std::ifstream out(folder / "out");
    for (std::string line; std::getline(out, line);)
        if (line.starts_with("summary: ")) total = std::atof(line.c_str() + 9);
    check(total > 0, "callgrind");
    fs::remove_all(folder);
    return total;
}

struct Settings {
    int callgrind = 0;
    int rounds = 5;
    std::uint64_t operations = 4'000;
    std::string json{};
};

/// Everything on one server; each subject takes keys of its own.
class Bench {
public:
    Bench(const Settings& settings, Report& report)
        : settings_(settings), report_(report), cli_(server_.url()) {
        for (std::size_t i = 0; i < most_; ++i)
            raw_.push_back(std::make_unique<Raw>(server_.port()));
        for (const auto operation : {idem::redis::Operation::claim, idem::redis::Operation::finish})
            (void)cli_({"SCRIPT", "LOAD", scripts_[operation].text});
    }

    void replay(int threads, std::size_t bytes, bool large) {
        const std::string result(bytes, 'r');
        const idem::Key key{"bench", "replay-" + std::to_string(bytes)};
        const auto print = idem::Fingerprint::of_bytes(request_);
        (void)guard_.run(key, print, [&] { return result; });
        const std::string name = idem::redis::name_of(prefix_, idem_test::view_of(key));
        const std::string plain = "plain-" + std::to_string(bytes);
        (void)cli_({"SET", plain, result, "PX", "3600000"});
        const auto get = [&](int thread, std::uint64_t from, std::uint64_t to) {
            for (auto i = from; i < to; ++i)
                check((*raw_[static_cast<std::size_t>(thread)])({"GET", plain}).size() == bytes,
                      "GET");
        };
        const auto scripts = [&](int thread, std::uint64_t from, std::uint64_t to) {
            idem::redis::Call call;
            for (auto i = from; i < to; ++i) {
                auto request = idem_test::claim_of(key, idem_test::random_owner());
                request.fingerprint = print;
                idem::redis::pack(request, call);
                (void)(*raw_[static_cast<std::size_t>(thread)])(
                    {"EVALSHA", scripts_[idem::redis::Operation::claim].sha, "1", name,
                     call.packed});
            }
        };
        const auto store = [&](int, std::uint64_t from, std::uint64_t to) {
            for (auto i = from; i < to; ++i) {
                auto request = idem_test::claim_of(key, idem_test::random_owner());
                request.fingerprint = print;
                const auto reply = idem::claim_one(store_, request);
                check(reply.result.size() == bytes, "store");
            }
        };
        const auto by = [&](auto& guard) {
            return [&](int, std::uint64_t from, std::uint64_t to) {
                for (auto i = from; i < to; ++i)
                    check(guard.run(key, idem::Fingerprint::of_bytes(request_),
                                    [&] { return result; })
                                  .value()
                                  .size() == bytes,
                          "guard");
            };
        };
        const Subject program = {"redis-benchmark", [&] {
                                     return redis_benchmark(server_.port(), threads,
                                                            settings_.operations, "GET " + plain);
                                 }};
        std::vector<Subject> subjects = {
            program, subject("get", threads, get), subject("store", threads, store),
            subject("guard", threads, by(guard_)), combined(threads, by(combined_))};
        if (!large) subjects.push_back(subject("scripts", threads, scripts));
        const auto rounds = interleave(subjects, settings_.rounds);
        const std::string setting =
            std::to_string(bytes) + " B, " + std::to_string(threads) + " threads";
        report_.figures("replay", setting, rounds);
        if (large) {
            report_.target("P7", "GET / guard, " + setting, ratio(rounds, "get", "guard"), true,
                           0.8);
            return;
        }
        report_.target("P6", "scripts / store, " + setting, ratio(rounds, "scripts", "store"), true,
                       0.95);
        report_.target("P6", "GET / guard, " + setting, ratio(rounds, "get", "guard"), true, 0.75);
        report_combined("replay, " + setting, rounds);
    }

    void first(int threads) {
        const std::string result(100, 'r');
        const auto native = [&](int thread, std::uint64_t from, std::uint64_t to) {
            Raw& raw = *raw_[static_cast<std::size_t>(thread)];
            for (auto i = from; i < to; ++i) {
                const std::string key = next_key();
                (void)raw({"SET", key, std::string(100, 'c'), "NX", "PX", "30000"});
                (void)raw({"SET", key, result, "PX", "3600000"});
            }
        };
        const auto scripts = [&](int thread, std::uint64_t from, std::uint64_t to) {
            Raw& raw = *raw_[static_cast<std::size_t>(thread)];
            idem::redis::Call call;
            for (auto i = from; i < to; ++i) {
                const idem::Key key{"bench", next_key()};
                const auto owner = idem_test::random_owner();
                auto request = idem_test::claim_of(key, owner);
                request.fingerprint = idem::Fingerprint::of_bytes(request_);
                idem::redis::pack(request, call);
                const std::string name = idem::redis::name_of(prefix_, request.key);
                const std::string claimed =
                    raw({"EVALSHA", scripts_[idem::redis::Operation::claim].sha, "1", name,
                         call.packed});
                const auto record = idem::redis::read_fixed(std::string_view(claimed).substr(8));
                check(record.has_value(), "a raw claim");
                idem::redis::pack(idem_test::complete_of(key, owner, record->fence, result), call);
                (void)raw({"EVALSHA", scripts_[idem::redis::Operation::finish].sha, "1", name,
                           call.packed, call.bytes[0]});
            }
        };
        const auto by = [&](auto& guard) {
            return [&](int, std::uint64_t from, std::uint64_t to) {
                for (auto i = from; i < to; ++i)
                    check(guard
                              .run(idem::Key{"bench", next_key()},
                                   idem::Fingerprint::of_bytes(request_), [&] { return result; })
                              .recorded(),
                          "first");
            };
        };
        const auto rounds =
            interleave({{"redis-benchmark",
                         [&] {
                             return redis_benchmark(server_.port(), threads, settings_.operations,
                                                    "-r 1000000 SET rb:__rand_int__ " + result);
                         }},
                        subject("native", threads, native),
                        subject("scripts", threads, scripts),
                        subject("guard", threads, by(guard_)),
                        combined(threads, by(combined_))},
                       settings_.rounds);
        const std::string setting = std::to_string(threads) + " threads";
        report_.figures("first", setting, rounds);
        report_.target("P8", "scripts / guard, " + setting, ratio(rounds, "scripts", "guard"), true,
                       0.95);
        report_.target("P8", "native / guard, " + setting, ratio(rounds, "native", "guard"), true,
                       0.65);
        report_combined("first, " + setting, rounds);
    }

    /// On a server of its own: where others lie too, the table of its keys may double just then.
    void memory() {
        RedisServer server;
        RedisCli cli(server.url());
        idem::RedisOptions more = options();
        more.url = server.url();
        idem::RedisStore store(more);
        idem::IdempotencyGuard<idem::RedisStore> guard(store);
        const auto used = [&] { return std::stod(cli.info("memory", "used_memory")); };
        const auto run = [&](int count) {
            for (int i = 0; i < count; ++i)
                (void)guard.run(idem::Key{"bench", next_key()},
                                idem::Fingerprint::of_bytes(request_),
                                [&] { return std::string(100, 'r'); });
        };
        run(500);
        const double before = used();
        constexpr int count = 60'000;
        run(count);
        const double each = (used() - before) / count;
        report_.figures("memory", "100 B", {{"record", {each}}}, "B");
        report_.target("P10", "bytes of a record", each, false, 390);
    }

    /// Of the server, for each operation: what N more of them cost it.
    void server_instructions() {
        const int count = settings_.callgrind;
        const std::string result(100, 'r');
        const auto guarded = [&](const std::string& url, int times, bool repeats) {
            idem::RedisOptions options;
            options.url = url;
            options.command_timeout = options.connect_timeout = std::chrono::seconds{20};
            options.time_allowed = std::chrono::seconds{25};
            idem::RedisStore store(options);
            idem::IdempotencyGuard<idem::RedisStore> guard(store, {.lease = std::chrono::hours{1}});
            for (int i = 0; i < times; ++i)
                (void)guard.run(idem::Key{"bench", repeats ? "one" : next_key()},
                                idem::Fingerprint::of_bytes(request_), [&] { return result; });
        };
        const auto get = [&](const std::string& url, int times) {
            RedisCli cli(url);
            (void)cli({"SET", "plain", result});
            for (int i = 0; i < times; ++i) (void)cli({"GET", "plain"});
        };
        const auto report = [&](const char* name, const auto& work) {
            const auto more = instructions([&](const std::string& url) { work(url, 3 * count); });
            const auto less = instructions([&](const std::string& url) { work(url, count); });
            report_.figures("server", "callgrind", {{name, {(more - less) / (2.0 * count)}}},
                            "instr");
        };
        report("GET", get);
        report("replay", [&](const std::string& url, int n) { guarded(url, n, true); });
        report("first", [&](const std::string& url, int n) { guarded(url, n, false); });
    }

private:
    template <class Work>
    [[nodiscard]] Subject subject(const char* name, int threads, const Work& work) {
        return {name, [this, threads, work] {
                    return time_threads(threads, settings_.operations, work);
                }};
    }
    template <class Work>
    [[nodiscard]] Subject combined(int threads, const Work& work) {
        trips_ = items_ = 0;
        return {"combined", [this, threads, work] {
                    const auto trips = store_.traffic().round_trips;
                    const auto items = combining_.usage().items;
                    const double time = time_threads(threads, settings_.operations, work);
                    trips_ += store_.traffic().round_trips - trips;
                    items_ += combining_.usage().items - items;
                    return time;
                }};
    }
    /// What threads gain by leaving together, and how many round trips that takes.
    void report_combined(const std::string& what, const Rounds& rounds) {
        report_.target("P9", "scripts / combined, " + what, ratio(rounds, "scripts", "combined"),
                       true, 1.5);
        report_.target("P9", "round trips for each operation, " + what,
                       static_cast<double>(trips_) / static_cast<double>(items_), false, 1.0 / 8);
    }
    [[nodiscard]] std::string next_key() {
        const std::string number = std::to_string(next_.fetch_add(1));
        return std::string(36 - number.size(), '0') + number;
    }
    [[nodiscard]] idem::RedisOptions options() const {
        idem::RedisOptions out;
        out.url = server_.url();
        out.prefix = prefix_;
        out.connections = most_;
        return out;
    }

    const Settings& settings_;
    Report& report_;
    const std::size_t most_ = 64;
    const std::string prefix_ = "idem:";
    const std::string request_ = std::string(64, 'q');
    RedisServer server_{};
    RedisCli cli_;
    const idem::redis::Scripts scripts_{"", true};
    std::vector<std::unique_ptr<Raw>> raw_{};
    idem::RedisStore store_{options()};
    idem::IdempotencyGuard<idem::RedisStore> guard_{store_};
    idem::CombiningStore<idem::RedisStore> combining_{store_};
    idem::IdempotencyGuard<idem::CombiningStore<idem::RedisStore>> combined_{combining_};
    std::uint64_t trips_ = 0;  ///< Of what is combined in the workload at hand.
    std::uint64_t items_ = 0;
    std::atomic<std::uint64_t> next_{0};
};

}  // namespace

int main(int argc, char** argv) {
    Settings settings;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string name = argv[i];
        if (name == "--rounds") settings.rounds = std::atoi(argv[i + 1]);
        if (name == "--operations") settings.operations = std::strtoull(argv[i + 1], nullptr, 10);
        if (name == "--callgrind") settings.callgrind = std::atoi(argv[i + 1]);
        if (name == "--json") settings.json = argv[i + 1];
    }
    Report report;
    Bench bench(settings, report);
    for (const int threads : {1, 16, 64}) {
        bench.replay(threads, 100, false);
        bench.replay(threads, 16 * 1024, true);
        bench.first(threads);
    }
    bench.memory();
    if (settings.callgrind > 0) bench.server_instructions();
    return settings.json.empty() || report.write_json(settings.json) ? 0 : 1;
}
