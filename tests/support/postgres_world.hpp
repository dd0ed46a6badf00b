#ifndef IDEM_TESTS_SUPPORT_POSTGRES_WORLD_HPP
#define IDEM_TESTS_SUPPORT_POSTGRES_WORLD_HPP

#include <atomic>
#include <optional>
#include <string>
#include <string_view>

#include <idem/detail/bytes.hpp>
#include <idem/postgres.hpp>
#include <idem/testing/manual_clock.hpp>

#include "support/postgres_server.hpp"

namespace idem_test {

/// A table on a real server whose clock stands still until a test moves it: the functions read the
/// time from a sequence, which no transaction keeps an old value of.
class PostgresBench {
public:
    explicit PostgresBench(const std::string& admin, const std::string& conninfo,
                           std::size_t connections = 16, std::optional<bool> look_first = {})
        : schema_(fresh_schema()),
          look_first_(look_first),
          sql_(admin),
          store_(options(conninfo, connections)) {
        sql_("CREATE SCHEMA " + schema_);
        sql_("CREATE SEQUENCE " + schema_ + ".clock");
        set_clock();
        store_.create_schema();
    }

    [[nodiscard]] idem::PostgresStore& store() { return store_; }
    [[nodiscard]] Sql& sql() { return sql_; }
    [[nodiscard]] std::string table() const { return schema_ + ".records"; }
    [[nodiscard]] const std::string& schema() const { return schema_; }
    [[nodiscard]] idem::PostgresOptions options(const std::string& conninfo,
                                                std::size_t connections = 16) const {
        idem::PostgresOptions out;
        out.conninfo = conninfo;
        out.schema = schema_;
        out.connections = connections;
        out.look_first = look_first_;
        out.clock_sql = "pg_sequence_last_value('" + schema_ + ".clock'::regclass)";
        // Long: on a machine with many other things to do, nothing here is about time limits.
        out.connect_timeout = std::chrono::seconds{20};
        out.statement_timeout = std::chrono::seconds{30};
        out.lock_timeout = std::chrono::seconds{10};
        out.time_allowed = std::chrono::seconds{60};
        return out;
    }
    void advance(idem::Duration by) {
        clock_.advance(by);
        set_clock();
    }
    [[nodiscard]] idem::Instant now() const { return clock_.now(); }

private:
    void set_clock() {
        sql_("SELECT setval('" + schema_ + ".clock', " +
             std::to_string(clock_.now().time_since_epoch().count()) + ")");
    }

    std::string schema_;
    std::optional<bool> look_first_;
    idem::testing::ManualClock clock_{};
    Sql sql_;
    idem::PostgresStore store_;
};

/// What the conformance kit needs: the bench's table, empty, and keys of one's own.
class PostgresWorld {
public:
    explicit PostgresWorld(PostgresBench& bench) : bench_(&bench) {
        bench.sql()("DELETE FROM " + bench.table());
    }

    [[nodiscard]] idem::PostgresStore& store() { return bench_->store(); }
    void advance(idem::Duration by) { bench_->advance(by); }
    [[nodiscard]] idem::Instant now() const { return bench_->now(); }

    /// Damages the key's row, as far as columns with types let it be damaged: a format of a later
    /// version, or a state that there is none.
    void put_raw(const idem::KeyView& key, std::string_view bytes) {
        const bool newer = bytes.size() > 2 && bytes[0] == '\xC1' && bytes[1] == '\x02';
        const auto text = [](std::string_view part) {
            return "'" + idem::postgres::escape(part) + "'";
        };
        bench_->sql()("INSERT INTO " + bench_->table() +
                      " (fence, created, started, completed, lease_end, retention_end,"
                      " validity_end, attempt, crashes, codec_tag, max_attempts, max_crashes,"
                      " format, state, orphan, result_kind, failure_kind, codec_version, key,"
                      " owner, component, token, bound, verify, takeover, fingerprint, scope,"
                      " tenant, id) VALUES (1, 0, 0, 0, 0, 9e18, 0, 0, 0, 0, 0, 0, " +
                      (newer ? "2, 4" : "1, 99") + ", 0, 0, 0, 0, '" +
                      idem::detail::hex(idem::postgres::digest_of(key)) +
                      "', '00000000-0000-0000-0000-000000000000', '" +
                      static_cast<char>(key.component) + "', false, false, false, false, '', " +
                      text(key.scope) + ", " + text(key.tenant) + ", " + text(key.id) +
                      ") ON CONFLICT (key) DO UPDATE SET format = excluded.format,"
                      " state = excluded.state");
    }

private:
    PostgresBench* bench_;
};

}  // namespace idem_test

#endif
