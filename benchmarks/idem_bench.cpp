// Measures the library in memory against what it replaces, in one process, round by round.
//
// Workloads:
//   fingerprint  SHA-256 of a request of 64 bytes and 1 KiB, against OpenSSL's SHA256()
//   replay       repeats of finished keys, spread over all of them
//   contended    repeats of one finished key by all threads
//   mismatch     a finished key with another request
//   first        new keys: claim, handler, complete; the store grows from nothing
//   memory       bytes per finished record
//   cached       repeats of finished keys through a CachedStore over the store in memory
//   scale        first, replay and bytes from 10^4 keys to --scale-max
//   postgres     duplicates, first executions and batches on a server (--postgres CONNINFO)
//
// `guard` is IdempotencyGuard::run with a fingerprint of the 64-byte request, `store` the claims
// and finishes by themselves, `map` 64 × (unordered_map + mutex) that checks nothing.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <malloc.h>

#include <idem/idem.hpp>

#include "baseline.hpp"
#include "harness.hpp"
#include "postgres_bench.hpp"

namespace {

using namespace bench;

struct Settings {
    std::set<std::string> workloads{"fingerprint", "replay", "contended", "mismatch",
                                    "first",       "memory", "cached"};
    std::uint64_t keys = 1'000'000;      ///< Of `first` and `memory`, and of the large replay.
    std::uint64_t keys_cached = 10'000;  ///< Of what should run in cache.
    std::uint64_t scale_max = 1'000'000;
    std::uint64_t operations = 1'000'000;  ///< Per round, of what does not insert.
    int rounds = 5;
    std::vector<int> threads{1, 2, 4};
    bool cpu_time = false;  ///< Of what runs in one thread; see the harness.
    std::string json{};
    PostgresSettings postgres{};
};

constexpr std::size_t result_size = 100;
const std::string result(result_size, 'r');

/// A key that looks like a UUID, made from its number without an allocation.
class Ids {
public:
    explicit Ids(std::uint64_t salt = 0) : salt_(salt) { key.id.assign(36, '-'); }

    idem::Key key{.scope = "bench", .id = {}};

    const std::string& id(std::uint64_t number) {
        static constexpr char digits[] = "0123456789abcdef";
        std::uint64_t low = mix(number + (salt_ << 40U));
        std::uint64_t high = mix(low);
        for (std::size_t i = 0; i < 36; ++i) {
            if (i == 8 || i == 13 || i == 18 || i == 23) continue;
            std::uint64_t& from = i < 18 ? low : high;
            key.id[i] = digits[from & 15U];
            from >>= 4U;
        }
        return key.id;
    }
    const idem::Key& operator()(std::uint64_t number) {
        (void)id(number);
        return key;
    }

private:
    [[nodiscard]] static std::uint64_t mix(std::uint64_t x) {
        x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U + 0x9E3779B97F4A7C15U;
        x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
        return x ^ (x >> 31U);
    }

    std::uint64_t salt_;
};

/// Visits [0, count) in an order that no prefetcher guesses.
[[nodiscard]] std::uint64_t scattered(std::uint64_t i, std::uint64_t count) {
    return (i * 0x9E3779B97F4A7C15U >> 32U) * count >> 32U;
}

struct Request {
    std::array<char, 64> bytes{};

    explicit Request(std::uint64_t number) {
        bytes.fill('q');
        std::memcpy(bytes.data(), &number, sizeof number);
    }
    [[nodiscard]] std::string_view view() const { return {bytes.data(), bytes.size()}; }
};

volatile std::uint64_t sink = 0;

void check(bool right, const char* what) {
    if (right) return;
    std::cerr << "idem_bench: " << what << ": the figures would mean nothing\n";
    std::abort();
}

using Guard = idem::IdempotencyGuard<idem::MemoryStore>;

struct Store {
    idem::MemoryStore store;
    Guard guard;

    explicit Store(std::uint64_t reserve = 0)
        : store({.bytes_max = 0, .reserve = reserve}), guard(store) {}
};

// --- the operations
// -------------------------------------------------------------------------------

std::string run_guard(Guard& guard, const idem::Key& key, std::uint64_t number) {
    const auto fingerprint = idem::Fingerprint::of_bytes(Request(number).view());
    return guard.run(key, fingerprint, [] { return result; }).value();
}

idem::ClaimRequest claim_of(const idem::Key& key, std::uint64_t number,
                            const idem::Fingerprint& fingerprint) {
    idem::Owner owner;
    std::memcpy(owner.bytes.data(), &number, sizeof number);
    owner.bytes[15] = 1;
    return {.key = {idem::Component::call, key},
            .fingerprint = fingerprint,
            .owner = owner,
            .lease = std::chrono::seconds{30},
            .retention = std::chrono::hours{24},
            .held_retention = std::chrono::hours{24 * 30}};
}

void first_store(idem::MemoryStore& store, const idem::Key& key, std::uint64_t number,
                 const idem::Fingerprint& fingerprint) {
    const auto claim = claim_of(key, number, fingerprint);
    const auto claimed = idem::claim_one(store, claim);
    const auto done = idem::finish_one(store, {.key = claim.key,
                                               .owner = claim.owner,
                                               .fence = claimed.fence,
                                               .kind = idem::FinishKind::complete,
                                               .retention = claim.retention,
                                               .held_retention = claim.held_retention,
                                               .result_kind = idem::ResultKind::value,
                                               .codec = idem::codec_id<std::string>(),
                                               .result = result});
    check(!done.lost && !done.trouble, "first: not recorded");
}

const idem::Fingerprint some_fingerprint = idem::Fingerprint::of_bytes(Request(0).view());

void fill(Store& to, std::uint64_t keys) {
    Ids ids;
    for (std::uint64_t i = 0; i < keys; ++i)
        first_store(to.store, ids(i), i, idem::Fingerprint::of_bytes(Request(i).view()));
}
void fill(ShardedMap& to, std::uint64_t keys) {
    Ids ids;
    for (std::uint64_t i = 0; i < keys; ++i) {
        to.insert(ids.id(i));
        to.update(ids.id(i), result);
    }
}

// --- workloads
// ------------------------------------------------------------------------------------

void fingerprint(const Settings& settings, Report& report) {
    for (const std::size_t size : {std::size_t{64}, std::size_t{1024}}) {
        std::string request(size, 'q');
        const auto subject = [&](const auto& hash) {
            return [&, hash] {
                const std::uint64_t count = settings.operations / (size / 32);
                return time_threads(1, count, [&](int, std::uint64_t begin, std::uint64_t end) {
                    std::uint64_t sum = 0;
                    for (auto i = begin; i < end; ++i) {
                        std::memcpy(request.data(), &i, sizeof i);
                        sum += hash(request);
                    }
                    sink = sum;
                });
            };
        };
        const auto rounds =
            interleave({{"Fingerprint::of_bytes", subject([](const std::string& bytes) {
                             return static_cast<std::uint64_t>(
                                 idem::Fingerprint::of_bytes(bytes).digest().front());
                         })},
                        {"SHA256()", subject([](const std::string& bytes) {
                             return std::uint64_t{sha256_plain(bytes)[0]};
                         })},
                        {"reused EVP context", subject([](const std::string& bytes) {
                             return std::uint64_t{sha256_reused(bytes)[0]};
                         })}},
                       settings.rounds);
        const auto setting = std::to_string(size) + " B";
        report.figures("fingerprint", setting, rounds);
        report.target("P1", "speed-up over SHA256(), " + setting,
                      ratio(rounds, "SHA256()", "Fingerprint::of_bytes"), true,
                      size == 64 ? 2.3 : 1.3);
    }
}

/// Repeats of finished keys; `spread` 1 is the hot key.
Rounds replays(const Settings& settings, Store& ours, ShardedMap& map, std::uint64_t spread,
               int threads) {
    const auto each = [&, threads, spread](const auto& one) {
        return [&settings, threads, spread, one] {
            return time_threads(threads, settings.operations,
                                [&](int, std::uint64_t begin, std::uint64_t end) {
                                    Ids ids;
                                    std::uint64_t size = 0;
                                    for (auto i = begin; i < end; ++i) {
                                        const auto number = scattered(i, spread);
                                        size += one(ids, number);
                                    }
                                    check(size == (end - begin) * result_size, "replay");
                                });
        };
    };
    return interleave(
        {{"guard", each([&](Ids& ids, std::uint64_t number) {
              return run_guard(ours.guard, ids(number), number).size();
          })},
         {"map + reused SHA-256", each([&](Ids& ids, std::uint64_t number) {
              (void)sha256_reused(Request(number).view());
              return map.find(ids.id(number)).size();
          })},
         {"store", each([&](Ids& ids, std::uint64_t number) {
              return idem::claim_one(ours.store, claim_of(ids(number), number + 1'000'000'000, {}))
                  .result.size();
          })},
         {"map",
          each([&](Ids& ids, std::uint64_t number) { return map.find(ids.id(number)).size(); })}},
        settings.rounds);
}

void replay(const Settings& settings, Report& report, bool contended) {
    const std::set<std::uint64_t> sizes = {settings.keys_cached, settings.keys};
    for (const auto keys : contended ? std::set<std::uint64_t>{settings.keys_cached} : sizes) {
        Store ours;
        ShardedMap map;
        fill(ours, keys);
        fill(map, keys);
        Rounds alone;
        for (const int threads : settings.threads) {
            auto rounds = replays(settings, ours, map, contended ? 1 : keys, threads);
            const auto setting = std::to_string(keys) + " keys " + std::to_string(threads) + " thr";
            report.figures(contended ? "contended" : "replay", setting, rounds);
            if (threads == 1) {
                alone = rounds;
                if (!contended && keys == settings.keys_cached)
                    report.target("P2", "guard replay / (SHA-256 + map), " + setting,
                                  ratio(rounds, "guard", "map + reused SHA-256"), false, 1.6);
            }
            if (threads != 4 || alone.empty()) continue;
            rounds["alone"] = alone.at("guard");
            rounds["store alone"] = alone.at("store");
            const std::string what = contended ? "hot-key replay" : "replay";
            report.target("P5", what + ", guard, 4 threads / 1, " + std::to_string(keys) + " keys",
                          ratio(rounds, "alone", "guard"), true, contended ? 0.8 : 1.3);
            report.target("P5", what + ", store, 4 threads / 1, " + std::to_string(keys) + " keys",
                          ratio(rounds, "store alone", "store"), true, contended ? 0.8 : 1.3);
        }
    }
}

/// What is above the store in memory here is above a round trip on a remote one.
void cached(const Settings& settings, Report& report) {
    Store ours;
    fill(ours, settings.keys_cached);
    using Cached = idem::CachedStore<idem::MemoryStore>;
    const Cached store(ours.store, {.max_age = std::chrono::hours{1}});
    idem::IdempotencyGuard<Cached> guard(store);
    const auto each = [&](auto& asked) {
        return [&] {
            return time_threads(
                1, settings.operations, [&](int, std::uint64_t begin, std::uint64_t end) {
                    Ids ids;
                    std::uint64_t size = 0;
                    for (auto i = begin; i < end; ++i) {
                        const auto number = scattered(i, settings.keys_cached);
                        const auto fingerprint =
                            idem::Fingerprint::of_bytes(Request(number).view());
                        size += asked.run(ids(number), fingerprint, [] { return result; })
                                    .value()
                                    .size();
                    }
                    check(size == (end - begin) * result_size, "cached");
                });
        };
    };
    (void)each(guard)();
    const auto rounds =
        interleave({{"guard, cached", each(guard)}, {"guard", each(ours.guard)}}, settings.rounds);
    check(store.usage().misses <= settings.keys_cached, "cached: not from the cache");
    const auto setting = std::to_string(settings.keys_cached) + " keys 1 thr";
    report.figures("cached", setting, rounds);
    report.target("P2", "guard replay, cached / in memory, " + setting,
                  ratio(rounds, "guard, cached", "guard"), false, 1.3);
}

void mismatch(const Settings& settings, Report& report) {
    Store ours;
    fill(ours, settings.keys_cached);
    const auto other = idem::Fingerprint::of_bytes("another request");
    const auto each = [&](const auto& one) {
        return [&, one] {
            return time_threads(
                1, settings.operations, [&](int, std::uint64_t begin, std::uint64_t end) {
                    Ids ids;
                    for (auto i = begin; i < end; ++i)
                        check(one(ids(scattered(i, settings.keys_cached)), i), "mismatch");
                });
        };
    };
    report.figures(
        "mismatch", std::to_string(settings.keys_cached) + " keys 1 thr",
        interleave({{"guard", each([&](const idem::Key& key, std::uint64_t) {
                         return ours.guard.run(key, other, [] { return result; }).kind() ==
                                idem::OutcomeKind::mismatch;
                     })},
                    {"store", each([&](const idem::Key& key, std::uint64_t i) {
                         return idem::claim_one(ours.store, claim_of(key, i + 1'000'000'000, other))
                                    .kind == idem::ClaimKind::mismatch;
                     })}},
                   settings.rounds));
}

Rounds firsts(const Settings& settings, std::uint64_t keys, int threads) {
    const auto grown = [threads, keys](auto& into, const auto& one) {
        malloc_trim(0);  // else each grows in the holes that the one before it has left
        return time_threads(threads, keys, [&](int, std::uint64_t begin, std::uint64_t end) {
            Ids ids;
            for (auto i = begin; i < end; ++i) one(into, ids, i);
        });
    };
    return interleave({{"guard",
                        [&] {
                            Store ours;
                            return grown(ours, [](Store& to, Ids& ids, std::uint64_t i) {
                                check(run_guard(to.guard, ids(i), i).size() == result_size,
                                      "first");
                            });
                        }},
                       {"map",
                        [&] {
                            ShardedMap map;
                            return grown(map, [](ShardedMap& to, Ids& ids, std::uint64_t i) {
                                check(to.insert(ids.id(i)), "first");
                                to.update(ids.id(i), result);
                            });
                        }},
                       {"store",
                        [&] {
                            Store ours;
                            return grown(ours, [](Store& to, Ids& ids, std::uint64_t i) {
                                first_store(to.store, ids(i), i, some_fingerprint);
                            });
                        }}},
                      settings.rounds);
}

void first(const Settings& settings, Report& report) {
    Rounds alone;
    for (const int threads : settings.threads) {
        auto rounds = firsts(settings, settings.keys, threads);
        const auto setting =
            std::to_string(settings.keys) + " keys " + std::to_string(threads) + " thr";
        report.figures("first", setting, rounds);
        report.target("P3", "first, guard against map, " + setting, ratio(rounds, "map", "guard"),
                      true, 1.3);
        report.target("P3", "first, store against map, " + setting, ratio(rounds, "map", "store"),
                      true, 1.3);
        if (threads == 1) alone = rounds;
        if (threads != 4 || alone.empty()) continue;
        rounds["alone"] = alone.at("guard");
        report.target("P5", "first, guard, 4 threads / 1", ratio(rounds, "alone", "guard"), true,
                      1.3);
    }
}

/// What malloc has handed out, its own overhead included.
[[nodiscard]] double allocated() {
    const auto info = mallinfo2();
    return static_cast<double>(info.uordblks) + static_cast<double>(info.hblkhd);
}

double bytes_per_record(std::uint64_t keys, bool with_fingerprint) {
    const double before = allocated();
    Store ours;
    Ids ids;
    for (std::uint64_t i = 0; i < keys; ++i)
        first_store(ours.store, ids(i), i,
                    with_fingerprint ? some_fingerprint : idem::Fingerprint{});
    return (allocated() - before) / static_cast<double>(keys);
}

void memory(std::uint64_t keys, Report& report) {
    Rounds bytes;
    bytes["record"] = {bytes_per_record(keys, true)};
    bytes["without fingerprint"] = {bytes_per_record(keys, false)};
    {
        const double before = allocated();
        ShardedMap map;
        fill(map, keys);
        bytes["map"] = {(allocated() - before) / static_cast<double>(keys)};
    }
    const auto setting = std::to_string(keys) + " keys";
    report.figures("memory", setting, bytes, "B");
    report.target("P4", "bytes per record with fingerprint, " + setting, bytes["record"][0], false,
                  302);
    report.target("P4", "bytes per record without, " + setting, bytes["without fingerprint"][0],
                  false, 270);
}

void scale(Settings settings, Report& report) {
    settings.threads = {1};
    std::optional<std::pair<double, double>> smallest;
    for (std::uint64_t keys = 10'000; keys <= settings.scale_max; keys *= 10) {
        // As many operations for a small store as for a large one: many small stores.
        const auto setting = std::to_string(keys) + " keys 1 thr";
        const auto grown = firsts(settings, keys, 1);
        report.figures("scale first", setting, grown);
        Store ours;
        ShardedMap map;
        fill(ours, keys);
        fill(map, keys);
        const auto repeats = replays(settings, ours, map, keys, 1);
        report.figures("scale replay", setting, repeats);
        memory(keys, report);
        const std::pair now{median(grown.at("guard")), median(repeats.at("guard"))};
        if (!smallest) smallest = now;
        report.target("P4", "first, guard, growth of cost to " + setting,
                      now.first / smallest->first, false, 2.5);
        report.target("P4", "replay, guard, growth of cost to " + setting,
                      now.second / smallest->second, false, 2.5);
    }
}

// --- the command line
// -----------------------------------------------------------------------------

constexpr const char* usage =
    "idem_bench [--workloads a,b,...] [--keys N] [--keys-cached N] [--operations N] [--rounds N]\n"
    "           [--threads 1,2,4] [--scale-max N] [--clock wall|cpu] [--json FILE]\n"
    "           [--postgres CONNINFO] [--postgres-operations N]\n"
    "workloads: fingerprint replay contended mismatch first memory cached scale postgres\n";

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> out;
    std::istringstream in(text);
    for (std::string part; std::getline(in, part, ',');) out.push_back(part);
    return out;
}

std::optional<Settings> read(const std::vector<std::string>& arguments) {
    Settings out;
    for (std::size_t i = 0; i + 1 < arguments.size(); i += 2) {
        const auto& name = arguments[i];
        const auto& value = arguments[i + 1];
        const auto number = [&] {
            return std::max(1ULL, std::strtoull(value.c_str(), nullptr, 10));
        };
        if (name == "--workloads") {
            const auto names = split(value);
            out.workloads = {names.begin(), names.end()};
        } else if (name == "--keys") {
            out.keys = number();
        } else if (name == "--keys-cached") {
            out.keys_cached = number();
        } else if (name == "--operations") {
            out.operations = number();
        } else if (name == "--rounds") {
            out.rounds = static_cast<int>(number());
        } else if (name == "--scale-max") {
            out.scale_max = number();
        } else if (name == "--clock") {
            out.cpu_time = value == "cpu";
        } else if (name == "--json") {
            out.json = value;
        } else if (name == "--postgres") {
            out.postgres.conninfo = value;
        } else if (name == "--postgres-operations") {
            out.postgres.operations = number();
        } else if (name == "--threads") {
            out.threads.clear();
            for (const auto& part : split(value))
                out.threads.push_back(std::max(1, std::stoi(part)));
        } else {
            return std::nullopt;
        }
    }
    if (arguments.size() % 2 != 0) return std::nullopt;
    out.postgres.rounds = out.rounds;
    return out;
}

}  // namespace

int main(int argc, char** argv) {
    const auto settings = read({argv + 1, argv + argc});
    if (!settings) {
        std::cerr << usage;
        return 2;
    }
    const auto asked = [&](const char* name) { return settings->workloads.count(name) != 0; };
    bench::by_cpu_time = settings->cpu_time;
    Report report;
    if (asked("fingerprint")) fingerprint(*settings, report);
    if (asked("replay")) replay(*settings, report, false);
    if (asked("contended")) replay(*settings, report, true);
    if (asked("mismatch")) mismatch(*settings, report);
    if (asked("first")) first(*settings, report);
    if (asked("memory")) memory(settings->keys, report);
    if (asked("cached")) cached(*settings, report);
    if (asked("scale")) scale(*settings, report);
    if (asked("postgres")) {
#ifdef IDEM_BENCH_POSTGRES
        bench::postgres(settings->postgres, report);
#else
        std::cerr << "idem_bench: built without PostgreSQL\n";
        return 2;
#endif
    }
    if (!settings->json.empty() && !report.write_json(settings->json)) {
        std::cerr << "idem_bench: cannot write " << settings->json << "\n";
        return 1;
    }
    return 0;
}
