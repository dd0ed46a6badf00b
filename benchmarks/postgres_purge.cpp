// What a purge of many expired rows costs those who claim meanwhile, on a PostgreSQL server that
// this program starts itself (commits on disk), or on --conninfo.
//
// The table holds --rows expired rows, and a live one after each ten of them. --threads threads
// claim and complete new keys without a pause; each claim's time is noted. First --seconds of that
// alone, then while a purger removes everything that is over, then alone again.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <idem/postgres.hpp>

#include "harness.hpp"
#include "support/postgres_server.hpp"

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

struct Settings {
    std::uint64_t rows = 1'000'000;
    int threads = 4;
    int seconds = 20;
    std::uint64_t batch = 10'000;  ///< Rows of one call of `purge`.
    int pause = 0;                 ///< Milliseconds between two calls.
    std::string conninfo{};
    std::string json{};
};

constexpr const char* schema = "idem_bench_purge";

idem::PostgresOptions options_of(const std::string& conninfo) {
    idem::PostgresOptions out;
    out.conninfo = conninfo;
    out.schema = schema;
    out.statement_timeout = 20s;
    out.connect_timeout = 10s;
    out.time_allowed = 60s;
    return out;
}

idem::ClaimRequest claim_of(const idem::Key& key, std::uint64_t number) {
    idem::ClaimRequest out;
    out.key = idem::KeyView(idem::Component::call, key);
    out.fingerprint = idem::Fingerprint::of_bytes("request");
    std::memcpy(out.owner.bytes.data(), &number, sizeof number);
    out.owner.bytes[15] = 1;
    out.lease = 30s;
    out.retention = 24h;
    return out;
}
[[nodiscard]] bool complete(idem::PostgresStore& store, const idem::ClaimRequest& claim,
                            idem::Fence fence) {
    static const std::string result(100, 'r');
    idem::FinishRequest request;
    request.key = claim.key;
    request.owner = claim.owner;
    request.fence = fence;
    request.result_kind = idem::ResultKind::value;
    request.result = result;
    request.retention = 24h;
    const auto reply = idem::finish_one(store, request);
    return !reply.trouble && !reply.lost;
}

/// Copies one finished row under other keys: ten that are over, one that lives, and so on.
void fill(idem_test::Sql& sql, idem::PostgresStore& store, std::uint64_t rows) {
    const idem::Key key{"bench", "template"};
    const auto claim = claim_of(key, 1);
    if (!complete(store, claim, idem::claim_one(store, claim).fence))
        throw std::runtime_error("the store takes no row");
    const std::string table = std::string(schema) + ".records";
    const auto first = sql("SELECT key FROM " + table);
    const std::uint64_t total = rows + rows / 10;
    for (std::uint64_t from = 1; from <= total; from += 50'000)
        sql("INSERT INTO " + table +
            " SELECT (jsonb_populate_record(r, jsonb_build_object('key', gen_random_uuid(),"
            " 'id', n, 'retention_end', CASE WHEN n % 11 = 0 THEN r.retention_end ELSE 1 END))).*"
            " FROM " +
            table + " r, generate_series(" + std::to_string(from) + ", " +
            std::to_string(std::min(total, from + 49'999)) + ") n WHERE r.key = '" + first + "'");
    sql("VACUUM (ANALYZE) " + table);
    sql("CHECKPOINT");
}

/// Claims without a pause; the time of each, in the phase that it began in.
class Traffic {
public:
    enum Phase : std::size_t { before, during, after, phases };

    Traffic(const idem::PostgresStore& store, int threads) {
        for (int i = 0; i < threads; ++i)
            threads_.emplace_back([this, store, i] { run(store, i); });
    }
    void phase(Phase next) {
        const auto now = Clock::now();
        took_[phase_] = std::chrono::duration<double>(now - begun_).count();
        begun_ = now;
        phase_ = next;
    }
    void stop() {
        phase(phases);
        for (auto& thread : threads_) thread.join();
        for (auto& times : times_)
            for (auto& each : times) std::sort(each.begin(), each.end());
    }
    [[nodiscard]] bool failed() const { return failed_; }

    /// Microseconds of a claim, of all threads together.
    [[nodiscard]] double percentile(Phase phase, double part) {
        auto& all = times_[phase][0];
        for (std::size_t i = 1; i < times_[phase].size(); ++i) {
            all.insert(all.end(), times_[phase][i].begin(), times_[phase][i].end());
            times_[phase][i].clear();
        }
        std::sort(all.begin(), all.end());
        if (all.empty()) return 0;
        return all[std::min(all.size() - 1,
                            static_cast<std::size_t>(static_cast<double>(all.size()) * part))];
    }
    [[nodiscard]] double per_second(Phase phase) {
        (void)percentile(phase, 0);
        return static_cast<double>(times_[phase][0].size()) / took_[phase];
    }
    [[nodiscard]] double seconds(Phase phase) const { return took_[phase]; }

private:
    void run(idem::PostgresStore store, int me) {
        std::array<std::vector<double>, phases> times;
        for (std::uint64_t round = 0; phase_ != phases && !failed_; ++round) {
            const Phase phase = phase_;
            const idem::Key key{"bench", std::to_string(me) + "/" + std::to_string(round)};
            const auto claim = claim_of(key, round + 2);
            const auto from = Clock::now();
            const auto reply = idem::claim_one(store, claim);
            const std::chrono::duration<double, std::micro> took = Clock::now() - from;
            if (reply.kind != idem::ClaimKind::acquired || !complete(store, claim, reply.fence))
                failed_ = true;
            if (phase != phases) times[phase].push_back(took.count());
        }
        const std::lock_guard lock(mutex_);
        for (std::size_t i = 0; i < phases; ++i) times_[i].push_back(std::move(times[i]));
    }

    std::mutex mutex_{};
    std::array<std::vector<std::vector<double>>, phases> times_{};
    std::array<double, phases + 1> took_{};
    Clock::time_point begun_ = Clock::now();
    std::atomic<Phase> phase_{before};
    std::atomic<bool> failed_{false};
    std::vector<std::thread> threads_{};
};

[[nodiscard]] int measure(const Settings& settings, const std::string& conninfo) {
    idem::PostgresStore store(options_of(conninfo));
    idem_test::Sql sql(conninfo);
    sql(std::string("DROP SCHEMA IF EXISTS ") + schema + " CASCADE");
    store.create_schema();
    fill(sql, store, settings.rows);
    std::printf(
        "%llu expired rows among %s\n", static_cast<unsigned long long>(settings.rows),
        sql(std::string("SELECT count(*) || ', ' || pg_size_pretty(pg_total_relation_size('") +
            schema + ".records')) FROM " + schema + ".records")
            .c_str());
    (void)std::fflush(stdout);

    Traffic traffic(store, settings.threads);
    const auto rest = std::chrono::seconds{settings.seconds};
    std::this_thread::sleep_for(rest);
    traffic.phase(Traffic::during);
    std::size_t removed = 0;
    for (bool more = true; more && !traffic.failed();) {
        const auto reply = store.purge(settings.batch);
        if (reply.trouble) std::cerr << reply.trouble.message << "\n";
        removed += reply.removed;
        more = reply.more && !reply.trouble;
        std::this_thread::sleep_for(std::chrono::milliseconds{settings.pause});
    }
    traffic.phase(Traffic::after);
    std::this_thread::sleep_for(rest);
    traffic.stop();
    if (traffic.failed() || removed < settings.rows) {
        std::cerr << "postgres_purge: a call failed, or only " << removed << " were removed\n";
        return 1;
    }

    bench::Report report;
    const std::map<std::string, Traffic::Phase> names = {
        {"1 before", Traffic::before}, {"2 during", Traffic::during}, {"3 after", Traffic::after}};
    for (const auto& [name, phase] : names) {
        report.figures("purge", name, {{"claim p50", {traffic.percentile(phase, 0.5)}}}, "us");
        report.figures("purge", name, {{"claim p99", {traffic.percentile(phase, 0.99)}}}, "us");
        report.figures("purge", name, {{"claim p99.9", {traffic.percentile(phase, 0.999)}}}, "us");
        report.figures("purge", name, {{"claims + finishes", {traffic.per_second(phase)}}}, "/s");
    }
    report.figures(
        "purge", "2 during",
        {{"rows removed", {static_cast<double>(removed) / traffic.seconds(Traffic::during)}}},
        "/s");
    report.target(
        "P14", "claim p99 during the purge / before",
        traffic.percentile(Traffic::during, 0.99) / traffic.percentile(Traffic::before, 0.99),
        false, 2);
    sql(std::string("DROP SCHEMA ") + schema + " CASCADE");
    return settings.json.empty() || report.write_json(settings.json) ? 0 : 1;
}

[[nodiscard]] std::optional<Settings> read(const std::vector<std::string>& arguments) {
    Settings out;
    if (arguments.size() % 2 != 0) return std::nullopt;
    for (std::size_t i = 0; i < arguments.size(); i += 2) {
        const auto& value = arguments[i + 1];
        if (arguments[i] == "--rows") {
            out.rows = std::stoull(value);
        } else if (arguments[i] == "--threads") {
            out.threads = std::max(1, std::stoi(value));
        } else if (arguments[i] == "--seconds") {
            out.seconds = std::max(1, std::stoi(value));
        } else if (arguments[i] == "--batch") {
            out.batch = std::max(1ULL, std::stoull(value));
        } else if (arguments[i] == "--pause") {
            out.pause = std::max(0, std::stoi(value));
        } else if (arguments[i] == "--conninfo") {
            out.conninfo = value;
        } else if (arguments[i] == "--json") {
            out.json = value;
        } else {
            return std::nullopt;
        }
    }
    return out;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const auto settings = read({argv + 1, argv + argc});
        if (!settings) {
            std::cerr
                << "usage: postgres_purge [--rows N] [--threads N] [--seconds N] [--batch ROWS]\n"
                   "                      [--pause MS] [--conninfo TEXT] [--json FILE]\n";
            return 2;
        }
        if (!settings->conninfo.empty()) return measure(*settings, settings->conninfo);
        const idem_test::PostgresServer server(
            {"-c", "fsync=on", "-c", "shared_buffers=512MB", "-c", "max_wal_size=4GB"});
        return measure(*settings, server.conninfo());
    } catch (const std::exception& error) {
        std::cerr << "postgres_purge: " << error.what() << "\n";
        return 1;
    }
}
