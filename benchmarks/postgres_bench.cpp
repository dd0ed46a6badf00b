// The PostgreSQL store beside bare libpq: the same statements, a SELECT, and what a careful
// engineer would write by hand (INSERT ... ON CONFLICT DO NOTHING, then UPDATE). By the wall clock:
// most of the work is the server's.

#include "postgres_bench.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <idem/guard.hpp>
#include <idem/layered/combining.hpp>
#include <idem/postgres.hpp>

namespace bench {
namespace {

const std::string result(100, 'r');
constexpr const char* schema = "idem_bench";

void check(bool right, const std::string& what) {
    if (right) return;
    std::fprintf(stderr, "idem_bench: %s: the figures would mean nothing\n", what.c_str());
    std::abort();
}

/// A connection without the library, and its statements prepared.
class Raw {
public:
    explicit Raw(const std::string& conninfo) : connection_(PQconnectdb(conninfo.c_str())) {
        check(PQstatus(connection_.get()) == CONNECTION_OK, PQerrorMessage(connection_.get()));
        PQsetNoticeProcessor(
            connection_.get(), [](void*, const char*) {}, nullptr);
    }
    void prepare(const char* name, const std::string& text) {
        take(PQprepare(connection_.get(), name, text.c_str(), 0, nullptr));
    }
    std::string run(const std::string& text) {
        return take(PQexec(connection_.get(), text.c_str()));
    }
    std::string run(const char* name, const std::vector<const char*>& values) {
        return take(PQexecPrepared(connection_.get(), name, static_cast<int>(values.size()),
                                   values.data(), nullptr, nullptr, 1));
    }

private:
    struct Finish {
        void operator()(PGconn* c) const { PQfinish(c); }
    };
    /// The last field of the first row.
    std::string take(PGresult* raw) {
        const std::unique_ptr<PGresult, void (*)(PGresult*)> got(raw, PQclear);
        const auto status = PQresultStatus(raw);
        check(status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK,
              PQerrorMessage(connection_.get()));
        if (PQntuples(raw) == 0) return PQcmdTuples(raw);
        const int last = PQnfields(raw) - 1;
        return {PQgetvalue(raw, 0, last), static_cast<std::size_t>(PQgetlength(raw, 0, last))};
    }
    std::unique_ptr<PGconn, Finish> connection_;
};

std::string id_of(const char* what, std::uint64_t number) {
    std::array<char, 40> text{};
    (void)std::snprintf(text.data(), text.size(), "%-12s%024llu", what,
                        static_cast<unsigned long long>(number));
    return text.data();
}
idem::Key key_of(const char* what, std::uint64_t number) {
    return {"bench", id_of(what, number)};
}
std::string request_of(std::uint64_t number) {
    std::string out = std::to_string(number);
    out.resize(64, 'q');
    return out;
}

class Workloads {
public:
    using Guard = idem::IdempotencyGuard<idem::PostgresStore>;

    Workloads(const PostgresSettings& settings, Report& report)
        : settings_(settings),
          report_(report),
          admin_(settings.conninfo),
          store_((admin_.run("DROP SCHEMA IF EXISTS idem_bench CASCADE"), options(settings))),
          names_(schema, "records", ""),
          guard_(store_) {
        store_.create_schema();
        admin_.run(
            "CREATE TABLE idem_bench.by_hand (id text PRIMARY KEY, owner uuid, state int,"
            " result bytea)");
        admin_.run(
            "CREATE TABLE idem_bench.same_row (LIKE idem_bench.records INCLUDING ALL)"
            " WITH (fillfactor = 85)");
        for (int i = 0; i < settings.connections; ++i) {
            raw_.push_back(std::make_unique<Raw>(settings.conninfo));
            Raw& one = *raw_.back();
            using idem::postgres::Form;
            one.prepare("claim", at_once_text(names_, idem::postgres::claim_operation, Form::one));
            one.prepare("select", "SELECT result FROM idem_bench.records WHERE key = $1");
            one.prepare("insert",
                        "INSERT INTO idem_bench.by_hand (id, owner, state) VALUES"
                        " ($1, $2::uuid, 1) ON CONFLICT DO NOTHING");
            one.prepare("update",
                        "UPDATE idem_bench.by_hand SET state = 2, result = $3::bytea"
                        " WHERE id = $1 AND owner = $2::uuid");
            one.prepare(
                "insert row",
                "INSERT INTO idem_bench.same_row (key, component, scope, tenant, id, format,"
                " state, token, bound, verify, takeover, orphan, max_attempts, max_crashes,"
                " result_kind, codec_tag, codec_version, failure_kind, attempt, crashes,"
                " fence, owner, fingerprint, created, started, completed, lease_end,"
                " retention_end, validity_end) SELECT $1::uuid, 'c', 'bench', '', $1, 1, 2,"
                " false, false, false, false, 0, 0, 5, 0, 0, 0, 0, 1, 0, now, $2::uuid,"
                " decode(repeat('01', 33), 'hex'), now, now, 0, now + 30000000,"
                " now + 30000000 + 86400000000, 0 FROM (SELECT"
                " (date_part('epoch', clock_timestamp()) * 1000000)::bigint AS now) c"
                " ON CONFLICT DO NOTHING");
            one.prepare(
                "update row",
                "UPDATE idem_bench.same_row SET state = 4, result = $3::bytea, result_kind ="
                " 1, codec_tag = 5, completed = now, retention_end = now + 86400000000 FROM"
                " (SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint AS now)"
                " c WHERE key = $1::uuid AND state = 2 AND owner = $2::uuid");
        }
    }
    ~Workloads() { admin_.run("DROP SCHEMA idem_bench CASCADE"); }
    Workloads(const Workloads&) = delete;
    Workloads& operator=(const Workloads&) = delete;

    void duplicates() {
        constexpr std::uint64_t keys = 1000;
        for (std::uint64_t i = 0; i < keys; ++i) (void)first(i, "old");
        for (const int threads : {1, settings_.connections}) {
            const auto each = [&](auto one) {
                return [this, threads, one] {
                    return time_threads(threads, settings_.operations,
                                        [&](int me, std::uint64_t from, std::uint64_t to) {
                                            for (auto i = from; i < to; ++i) one(me, i % keys);
                                        });
                };
            };
            const auto rounds = interleave(
                {{"guard", each([&](int, std::uint64_t i) { check(first(i, "old"), "replay"); })},
                 {"store", each([&](int, std::uint64_t i) {
                      const idem::Key key = key_of("old", i);
                      check(idem::claim_one(store_, claim_of(key, i)).result == result, "claim");
                  })},
                 {"raw claim", each([&](int me, std::uint64_t i) { raw_claim(me, i); })},
                 {"SELECT", each([&](int me, std::uint64_t i) {
                      const std::string digest = uuid_of(key_of("old", i));
                      check(at(me).run("select", {digest.c_str()}) == result, "select");
                  })}},
                settings_.rounds);
            const std::string setting = std::to_string(threads) + " conn";
            report_.figures("pg duplicate", setting, rounds);
            report_.target("P11", "duplicate, guard against raw, " + setting,
                           ratio(rounds, "raw claim", "guard"), true, 0.95);
            report_.target("P11", "duplicate, guard against SELECT, " + setting,
                           ratio(rounds, "SELECT", "guard"), true, 0.65);
        }
    }

    void firsts() {
        for (const int threads : {1, settings_.connections}) {
            std::atomic<std::uint64_t> next{static_cast<std::uint64_t>(threads) << 32U};
            const auto each = [&](auto one) {
                return [this, threads, one, &next] {
                    return time_threads(threads, settings_.operations,
                                        [&](int me, std::uint64_t from, std::uint64_t to) {
                                            for (auto i = from; i < to; ++i) one(me, next++);
                                        });
                };
            };
            const auto rounds = interleave(
                {{"guard", each([&](int, std::uint64_t i) { check(first(i, "new"), "first"); })},
                 {"same row by hand", each([&](int me, std::uint64_t i) {
                      by_hand(me, i, "insert row", "update row");
                  })},
                 {"INSERT + UPDATE",
                  each([&](int me, std::uint64_t i) { by_hand(me, i, "insert", "update"); })}},
                settings_.rounds);
            const std::string setting = std::to_string(threads) + " conn";
            report_.figures("pg first", setting, rounds);
            report_.target("P12", "first, guard against the same row by hand, " + setting,
                           ratio(rounds, "same row by hand", "guard"), true, 0.95);
            report_.target("P12", "first, guard against four columns by hand, " + setting,
                           ratio(rounds, "INSERT + UPDATE", "guard"), true, 0.95);
        }
        std::this_thread::sleep_for(std::chrono::seconds{2});  // the server counts a moment later
        const double hot = std::stod(
            text("SELECT (100.0 * n_tup_hot_upd / greatest(n_tup_upd, 1))::text FROM"
                 " pg_stat_user_tables WHERE schemaname = 'idem_bench' AND relname = 'records'"));
        report_.target("P12", "updates that are HOT, percent", hot, true, 95);
        admin_.run("VACUUM idem_bench.records");
        const auto bytes_of = [&](const char* function) {
            return std::stod(text("SELECT (1.0 * " + std::string(function) +
                                  "('idem_bench.records') / (SELECT count(*) FROM"
                                  " idem_bench.records))::text"));
        };
        report_.figures(
            "pg record", "100 B result",
            {{"table", {bytes_of("pg_table_size")}}, {"index", {bytes_of("pg_indexes_size")}}},
            "B");
    }

    void batches() {
        constexpr std::uint64_t size = 100;
        std::atomic<std::uint64_t> next{1};
        const auto many = std::max<std::uint64_t>(settings_.operations / size, 5);
        const auto rounds =
            interleave({{"one by one",
                         [&] {
                             return time_threads(1, settings_.operations,
                                                 [&](int, std::uint64_t from, std::uint64_t to) {
                                                     for (auto i = from; i < to; ++i)
                                                         claim_batch(next, 1);
                                                 });
                         }},
                        {"batch of 100",
                         [&] {
                             return time_threads(1, many,
                                                 [&](int, std::uint64_t from, std::uint64_t to) {
                                                     for (auto i = from; i < to; ++i)
                                                         claim_batch(next, size);
                                                 }) /
                                    static_cast<double>(size);
                         }}},
                       settings_.rounds);
        report_.figures("pg claim", "1 conn", rounds);
        report_.target("P13", "batch of 100 claims against single ones",
                       ratio(rounds, "one by one", "batch of 100"), true, 20);
    }

    /// What 64 threads gain by leaving together, against 16 connections by hand.
    void combined() {
        constexpr int threads = 64;
        using Combining = idem::CombiningStore<idem::PostgresStore>;
        const Combining store(store_);
        idem::IdempotencyGuard<Combining> guard(store, {.lease = std::chrono::minutes{5}});
        std::atomic<std::uint64_t> next{std::uint64_t{threads} << 40U};
        const auto one = [&](std::uint64_t i, const char* what) {
            const auto print = idem::Fingerprint::of_bytes(request_of(i));
            check(guard.run(key_of(what, i), print, [] { return result; }).value() == result, what);
        };
        const auto rounds = interleave(
            {{"by hand, 16",
              [&] {
                  return time_threads(settings_.connections, settings_.operations,
                                      [&](int me, std::uint64_t from, std::uint64_t to) {
                                          for (auto i = from; i < to; ++i)
                                              by_hand(me, next++, "insert", "update");
                                      });
              }},
             {"same row by hand, 16",
              [&] {
                  return time_threads(settings_.connections, settings_.operations,
                                      [&](int me, std::uint64_t from, std::uint64_t to) {
                                          for (auto i = from; i < to; ++i)
                                              by_hand(me, next++, "insert row", "update row");
                                      });
              }},
             {"combined, 64",
              [&] {
                  return time_threads(threads, settings_.operations,
                                      [&](int, std::uint64_t from, std::uint64_t to) {
                                          for (auto i = from; i < to; ++i) one(next++, "many");
                                      });
              }},
             {"repeat combined, 64",
              [&] {
                  return time_threads(threads, settings_.operations,
                                      [&](int, std::uint64_t from, std::uint64_t to) {
                                          for (auto i = from; i < to; ++i) one(i % 1000, "old");
                                      });
              }},
             {"repeat SELECT, 16",
              [&] {
                  return time_threads(
                      settings_.connections, settings_.operations,
                      [&](int me, std::uint64_t from, std::uint64_t to) {
                          for (auto i = from; i < to; ++i) {
                              const auto digest = uuid_of(key_of("old", i % 1000));
                              check(at(me).run("select", {digest.c_str()}) == result, "select");
                          }
                      });
              }}},
            settings_.rounds);
        report_.figures("pg combined", "64 threads", rounds);
        report_.target("P13", "first, combined against the same row by hand by 16",
                       ratio(rounds, "same row by hand, 16", "combined, 64"), true, 5);
        report_.target("P13", "first, combined against four columns by hand by 16",
                       ratio(rounds, "by hand, 16", "combined, 64"), true, 5);
        const auto usage = store.usage();
        report_.target("P13", "calls of the store for each operation",
                       static_cast<double>(usage.batches) / static_cast<double>(usage.items), false,
                       1.0 / 8);
    }

private:
    void by_hand(int me, std::uint64_t i, const char* insert, const char* update) {
        const std::string id = uuid_of(key_of("new", i));
        const char* owner = "01234567-89ab-cdef-0123-456789abcdef";
        check(at(me).run(insert, {id.c_str(), owner}) == "1", insert);
        check(at(me).run(update, {id.c_str(), owner, result.c_str()}) == "1", update);
    }
    [[nodiscard]] static idem::PostgresOptions options(const PostgresSettings& settings) {
        idem::PostgresOptions out;
        out.conninfo = settings.conninfo;
        out.schema = schema;
        out.connections = static_cast<std::size_t>(settings.connections);
        out.statement_timeout = std::chrono::seconds{10};
        out.time_allowed = std::chrono::seconds{10};
        return out;
    }
    [[nodiscard]] Raw& at(int thread) { return *raw_[static_cast<std::size_t>(thread)]; }
    [[nodiscard]] std::string text(const std::string& query) { return admin_.run(query); }

    bool first(std::uint64_t i, const char* what) {
        const auto print = idem::Fingerprint::of_bytes(request_of(i));
        return guard_.run(key_of(what, i), print, [] { return result; }).value() == result;
    }
    [[nodiscard]] static idem::ClaimRequest claim_of(const idem::Key& key, std::uint64_t i) {
        idem::ClaimRequest out;
        out.key = idem::KeyView(idem::Component::call, key);
        out.owner = idem::detail::new_owner();
        out.fingerprint = idem::Fingerprint::of_bytes(request_of(i));
        out.lease = std::chrono::seconds{30};
        out.retention = std::chrono::hours{24};
        out.held_retention = std::chrono::hours{24 * 30};
        return out;
    }
    [[nodiscard]] static std::string hex(std::string_view bytes) {
        return idem::detail::hex(bytes);
    }
    [[nodiscard]] static std::string uuid_of(const idem::Key& key) {
        return hex(idem::postgres::digest_of({idem::Component::call, key}));
    }

    void raw_claim(int me, std::uint64_t i) {
        const idem::Key key = key_of("old", i);
        const auto request = claim_of(key, i);
        const std::string digest = uuid_of(key);
        const std::string print = "\\x" + hex(request.fingerprint.stored());
        const std::string owner = hex(request.owner.stored());
        const std::string got =
            at(me).run("claim", {digest.c_str(), "c", "bench", "", key.id.c_str(), print.c_str(),
                                 "", owner.c_str(), "30000000", "86400000000", "2592000000000", "0",
                                 "0", "0", "f", "f", "500"});
        (void)got;
    }
    void claim_batch(std::atomic<std::uint64_t>& next, std::uint64_t size) {
        std::vector<idem::Key> keys;
        std::vector<idem::ClaimRequest> claims;
        keys.reserve(size);
        for (std::uint64_t n = 0; n < size; ++n) {
            const auto i = next++;
            keys.push_back(key_of("batch", i));
            claims.push_back(claim_of(keys.back(), i));
        }
        std::vector<idem::ClaimReply> replies(size);
        store_.claim(claims, replies);
        for (const auto& reply : replies)
            check(reply.kind == idem::ClaimKind::acquired, "claim: " + reply.trouble.message);
    }

    PostgresSettings settings_;
    Report& report_;
    Raw admin_;
    idem::PostgresStore store_;
    idem::postgres::Names names_;
    Guard guard_;
    std::vector<std::unique_ptr<Raw>> raw_{};
};

}  // namespace

void postgres(const PostgresSettings& settings, Report& report) {
    Workloads workloads(settings, report);
    workloads.duplicates();
    workloads.firsts();
    workloads.batches();
    workloads.combined();
}

}  // namespace bench
