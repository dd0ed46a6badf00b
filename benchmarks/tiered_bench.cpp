// Two layers beside each alone, one thread, on a PostgreSQL of yours (a schema idem_tiered is made
// and stays) and a Redis that it starts: idem_bench_tiered --postgres CONNINFO [--rounds N]
// [--operations N] [--json FILE]

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include <idem/idem.hpp>
#include <idem/postgres.hpp>
#include <idem/redis.hpp>

#include "harness.hpp"
#include "support/redis_requests.hpp"

namespace {

using namespace bench;

const std::string result(100, 'r');

void check(bool right, const char* what) {
    if (right) return;
    std::cerr << "idem_bench_tiered: " << what << ": the figures would mean nothing\n";
    std::abort();
}

struct Settings {
    std::string postgres{};
    int rounds = 5;
    std::uint64_t operations = 2'000;
    std::string json{};
};

class Bench {
public:
    Bench(const Settings& settings, Report& report) : settings_(settings), report_(report) {
        back_.create_schema();
    }

    void run() {
        using Tiered = idem::TieredStore<idem::RedisFront, idem::PostgresStore>;
        const Tiered tiered(idem::RedisFront({.url = server_.url()}), back_);
        idem::IdempotencyGuard<idem::RedisStore> redis(idem::RedisStore({.url = server_.url()}));
        idem::IdempotencyGuard<idem::PostgresStore> postgres(back_);
        idem::IdempotencyGuard<Tiered> both(tiered);
        idem_test::RedisCli cli(server_.url());
        for (int i = 0; i < 2; ++i) {  // the second one fills the front
            one(redis, "old");
            one(both, "old");
        }
        const auto replays = interleave({subject("redis", [&] { one(redis, "old"); }),
                                         subject("tiered", [&] { one(both, "old"); })},
                                        settings_.rounds);
        report_.figures("replay", "1 thread", replays);
        report_.target("P15", "replay, tiered / redis", ratio(replays, "tiered", "redis"), false,
                       1.15);
        const auto firsts = interleave({subject("postgres", [&] { one(postgres, next()); }),
                                        subject("redis GET",
                                                [&] {
                                                    (void)cli({"GET", "nothing"});
                                                }),
                                        subject("tiered", [&] { one(both, next()); })},
                                       settings_.rounds);
        report_.figures("first", "1 thread", firsts);
        std::vector<double> ratios;
        for (std::size_t i = 0; i < firsts.at("tiered").size(); ++i)
            ratios.push_back(firsts.at("tiered")[i] /
                             (firsts.at("postgres")[i] + firsts.at("redis GET")[i]));
        report_.target("P15", "first, tiered / (postgres + GET)", median(ratios), false, 1.1);
    }

private:
    template <class Work>
    [[nodiscard]] Subject subject(const char* name, Work work) const {
        return {name, [this, work] {
                    return time_threads(1, settings_.operations,
                                        [&](int, std::uint64_t from, std::uint64_t to) {
                                            for (auto i = from; i < to; ++i) work();
                                        });
                }};
    }
    template <class Guard>
    static void one(Guard& guard, const std::string& id) {
        const auto print = idem::Fingerprint::of_bytes(std::string(64, 'q'));
        check(guard.run(idem::Key{"bench", id}, print, [] { return result; }).value() == result,
              "a guarded call");
    }
    [[nodiscard]] std::string next() {
        const std::string number = std::to_string(next_.fetch_add(1));
        return run_ + std::string(20 - number.size(), '0') + number;
    }
    [[nodiscard]] static idem::PostgresOptions options(const Settings& settings) {
        idem::PostgresOptions out;
        out.conninfo = settings.postgres;
        out.schema = "idem_tiered";
        return out;
    }

    const Settings& settings_;
    Report& report_;
    idem_test::RedisServer server_{};
    idem::PostgresStore back_{options(settings_)};
    const std::string run_ = idem::detail::hex(idem_test::random_owner().stored().substr(0, 8));
    std::atomic<std::uint64_t> next_{0};
};

}  // namespace

int main(int argc, char** argv) {
    Settings settings;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string name = argv[i];
        if (name == "--postgres") settings.postgres = argv[i + 1];
        if (name == "--rounds") settings.rounds = std::atoi(argv[i + 1]);
        if (name == "--operations") settings.operations = std::strtoull(argv[i + 1], nullptr, 10);
        if (name == "--json") settings.json = argv[i + 1];
    }
    Report report;
    Bench(settings, report).run();
    return settings.json.empty() || report.write_json(settings.json) ? 0 : 1;
}
