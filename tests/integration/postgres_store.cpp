// What the conformance kit cannot ask: the log, the locks, the table itself, and a server that
// ends connections under load.

#include <array>
#include <atomic>
#include <csignal>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <idem/guard.hpp>

#include "support/catch.hpp"
#include "support/eventually.hpp"
#include "support/postgres_world.hpp"
#include "support/requests.hpp"
#include "support/tcp_gate.hpp"

namespace postgres_store_test {

using namespace std::chrono_literals;
using idem_test::complete_of;
using idem_test::eventually;
using idem_test::PostgresBench;
using idem_test::shared_server;
using idem_test::Sql;
using Kind = idem::Trouble::Kind;

PostgresBench make_bench() {
    return PostgresBench(shared_server().conninfo(), shared_server().conninfo());
}

idem::ClaimRequest claim_of(const idem::Key& key, std::uint32_t owner) {
    auto out = idem_test::claim_of(key, owner);
    out.fingerprint = idem::Fingerprint::of_bytes("request");
    return out;
}

/// How a claim is said: to the function alone, as through a pooler, or with what can be made at
/// once.
using Text = std::string (*)(const idem::postgres::Names&, const idem::postgres::Operation&,
                             idem::postgres::Form);

/// The plan of the claim's own statement, with what it wrote to the log.
std::string explained(PostgresBench& bench, const std::vector<idem::ClaimRequest>& claims,
                      Text text) {
    const idem::postgres::Names names(bench.schema(), "records", "");
    std::vector<std::string> digests;
    std::vector<std::size_t> which;
    for (const auto& claim : claims) {
        which.push_back(digests.size());
        digests.push_back(idem::postgres::digest_of(claim.key));
    }
    const idem::postgres::Items<idem::ClaimRequest> items{claims, digests, which,
                                                          claims.size() > 1};
    idem::postgres::Params params;
    items.add_keys(params);
    idem::postgres::add_fields(items, params);
    params.add(idem::postgres::Type::text, idem::postgres::Value::bytes("500"));
    const auto form = items.arrays ? idem::postgres::Form::batch : idem::postgres::Form::one;
    const auto answer =
        bench.sql().connection().run({"", "EXPLAIN (ANALYZE, WAL, COSTS OFF) " +
                                              text(names, idem::postgres::claim_operation, form)},
                                     params, false, idem_test::in_seconds(60));
    REQUIRE_FALSE(answer.fault);
    std::string out;
    for (int row = 0; row < answer.result.rows(); ++row)
        out += std::string(answer.result.field(row, 0).value_or("")) + "\n";
    return out;
}

TEST_CASE("PostgreSQL: a repeat writes nothing to the log", "[integration][postgres]") {
    const auto text = GENERATE(Text{idem::postgres::call_text}, Text{idem::postgres::at_once_text});
    auto bench = make_bench();
    const idem::Key key{"s", "k"};
    const idem::Key running{"s", "running"};
    const auto claim = claim_of(key, 1);
    const auto first = explained(bench, {claim}, text);
    INFO(first);
    REQUIRE(first.find("WAL: records=") != std::string::npos);  // else nothing would be proved
    const auto fence = idem::claim_one(bench.store(), claim).fence;
    REQUIRE_FALSE(idem::finish_one(bench.store(), complete_of(claim, fence, "result")).lost);
    REQUIRE(idem::claim_one(bench.store(), claim_of(running, 1)).fence > 0);
    for (const auto& repeats : {std::vector{claim_of(key, 2)}, std::vector{claim_of(running, 2)},
                                std::vector{claim_of(key, 2), claim_of(running, 2)}}) {
        (void)explained(bench, repeats, text);  // hint bits of the first look are no one's business
        const auto again = explained(bench, repeats, text);
        INFO(again);
        CHECK(again.find("WAL:") == std::string::npos);
    }
}

TEST_CASE("PostgreSQL: while most claims are repeats a plain read answers them",
          "[integration][postgres]") {
    auto bench = make_bench();
    const idem::Key key{"s", "k"};
    const auto claim = claim_of(key, 1);
    const auto fence = idem::claim_one(bench.store(), claim).fence;
    REQUIRE_FALSE(idem::finish_one(bench.store(), complete_of(claim, fence, "result")).lost);
    for (int i = 0; i < 40; ++i) (void)idem::claim_one(bench.store(), claim_of(key, 2));
    // The step that may write is not there any more; the read still answers.
    bench.sql()("ALTER FUNCTION " +
                idem::postgres::Names(bench.schema(), "records", "")
                    .function("claim", idem::postgres::Form::one) +
                " RENAME TO claim_is_gone");
    CHECK(idem::claim_one(bench.store(), claim_of(key, 3)).result == "result");
    CHECK(idem::claim_one(bench.store(), claim_of(key, 1)).kind == idem::ClaimKind::stale);
    const idem::Key fresh{"s", "new"};
    CHECK(idem::claim_one(bench.store(), claim_of(fresh, 4)).trouble.kind ==
          idem::Trouble::Kind::schema);
}

TEST_CASE("PostgreSQL: in a batch that looks first nothing overtakes an item of its own key",
          "[integration][postgres]") {
    PostgresBench bench(shared_server().conninfo(), shared_server().conninfo(), 4, true);
    const idem::Key key{"s", "k"};
    const auto before = claim_of(key, 1);
    const auto fence = idem::claim_one(bench.store(), before).fence;
    (void)idem::finish_one(bench.store(), idem_test::release_of(key, before.owner, fence));
    // By itself the second would be stale; behind the first it meets one that runs.
    const std::vector batch = {claim_of(key, 2), before};
    std::vector<idem::ClaimReply> replies(2);
    bench.store().claim(batch, replies);
    CHECK(replies[0].kind == idem::ClaimKind::acquired);
    CHECK(replies[1].kind == idem::ClaimKind::in_progress);
}

TEST_CASE("PostgreSQL: a finish writes no index entry", "[integration][postgres]") {
    auto bench = make_bench();
    const std::string index = "SELECT pg_relation_size('" + bench.schema() + ".records_pkey')";
    const idem::Key key{"s", "k"};
    const auto claim = claim_of(key, 1);
    const auto fence = idem::claim_one(bench.store(), claim).fence;
    REQUIRE_FALSE(idem::finish_one(bench.store(), complete_of(claim, fence, "result")).lost);
    CHECK(bench.sql()("SELECT count(*) FROM pg_index WHERE indrelid = '" + bench.table() +
                      "'::regclass") == "1");
    // A heap-only tuple lies on the page of the version before it.
    CHECK(bench.sql()("SELECT ctid::text LIKE '(0,%' FROM " + bench.table()) == "t");
    CHECK(bench.sql()(index) == "16384");
}

TEST_CASE("PostgreSQL: a person can read the table", "[integration][postgres]") {
    auto bench = make_bench();
    const idem::Key key{"transcode.submit", "caf\xC3\xA9 \\ '", "tenant"};
    REQUIRE(idem::claim_one(bench.store(), claim_of(key, 1)).fence > 0);
    auto& sql = bench.sql();
    CHECK(sql("SELECT scope FROM " + bench.table()) == "transcode.submit");
    CHECK(sql("SELECT id FROM " + bench.table()) == "caf\\303\\251 \\\\ '");
    const std::string view = bench.schema() + ".records_readable";
    CHECK(sql("SELECT state || ' ' || component || ' ' || attempt || ' ' || tenant FROM " + view) ==
          "running call 1 tenant");
    CHECK(sql("SET timezone = 'UTC'; SELECT created FROM " + view) == "2024-01-01 00:00:00+00");
    CHECK(sql("SELECT lease_end - started FROM " + view) == "00:00:30");
}

TEST_CASE("PostgreSQL: a table that is not as it was made is refused, by what is wrong",
          "[integration][postgres]") {
    struct Damage {
        const char* sql;
        const char* says;
    };
    const Damage damages[] = {
        {"ALTER TABLE {t} DROP COLUMN checkpoint CASCADE", "has no column \"checkpoint\""},
        {"DROP VIEW {t}_readable; ALTER TABLE {t} ALTER fence TYPE numeric",
         "\"fence\" of type numeric, which must be bigint"},
        {"ALTER TABLE {t} ALTER owner DROP NOT NULL", "\"owner\" of type uuid or NULL"},
        {"ALTER TABLE {t} DROP CONSTRAINT records_pkey", "has no unique index on \"key\""},
        {"ALTER TABLE {t} DROP CONSTRAINT records_pkey;"
         "CREATE UNIQUE INDEX ON {t} (key) WHERE state = 4",
         "has no unique index on \"key\""},
        {"ALTER TABLE {t} DROP CONSTRAINT records_pkey, ADD PRIMARY KEY (key) DEFERRABLE",
         "has no unique index on \"key\""},
        {"ALTER TABLE {t} RENAME TO other; CREATE VIEW {t} AS SELECT * FROM {s}.other",
         "is a view"},
        {"ALTER TABLE {t} SET UNLOGGED", "is an unlogged table"},
        {"COMMENT ON TABLE {t} IS 'idem schema 2'", "newer version"},
        {"DROP FUNCTION {s}.records_claim_v1", "has no function \"records_claim_v1\""},
        {"DO $$ BEGIN EXECUTE replace(pg_get_functiondef('{s}.records_claim_v1'::regproc),"
         " 'o_kind := 2;', 'o_kind := 3;'); END $$",
         "has another function \"records_claim_v1\""},
        {"DROP TABLE {t} CASCADE", "does not exist"},
    };
    for (const auto& damage : damages) {
        auto bench = make_bench();
        std::string text = damage.sql;
        for (const auto& [mark, name] :
             {std::pair{std::string("{t}"), bench.table()}, {"{s}", bench.schema()}})
            for (auto at = text.find(mark); at != std::string::npos; at = text.find(mark))
                text.replace(at, 3, name);
        bench.sql()(text);
        INFO(text);
        idem::PostgresStore store(bench.options(shared_server().conninfo()));
        try {
            store.verify();
            FAIL("nothing was refused");
        } catch (const idem::SchemaError& error) {
            INFO(error.what());
            CHECK(std::string(error.what()).find(damage.says) != std::string::npos);
            CHECK(std::string(error.what()).find("records") != std::string::npos);
        }
        const idem::Key key{"s", "k"};
        CHECK(idem::claim_one(store, claim_of(key, 1)).trouble.kind == Kind::schema);
    }
}

TEST_CASE("PostgreSQL: a missing privilege is refused by its name; the needed ones are enough",
          "[integration][postgres]") {
    auto bench = make_bench();
    const std::string role = bench.schema() + "_role";
    bench.sql()("CREATE ROLE " + role + " LOGIN");
    const auto refusal = [&]() -> std::string {
        auto conninfo = shared_server().conninfo();
        conninfo.replace(conninfo.find("user=postgres"), 13, "user=" + role);
        idem::PostgresStore store(bench.options(conninfo));
        const idem::Key key{"s", "k"};
        return idem::claim_one(store, claim_of(key, 1)).trouble.message;
    };
    CHECK(refusal().find("USAGE") != std::string::npos);
    bench.sql()("GRANT USAGE ON SCHEMA " + bench.schema() + " TO " + role);
    CHECK(refusal().find("SELECT") != std::string::npos);
    bench.sql()("GRANT SELECT, INSERT, UPDATE ON " + bench.table() + " TO " + role);
    CHECK(refusal().find("DELETE") != std::string::npos);
    bench.sql()("GRANT DELETE ON " + bench.table() + " TO " + role);
    bench.sql()("GRANT SELECT ON " + bench.schema() + ".clock TO " + role);
    CHECK(refusal().empty());
    bench.sql()("ALTER TABLE " + bench.table() + " ENABLE ROW LEVEL SECURITY");
    CHECK(refusal().find("row level security") != std::string::npos);
}

TEST_CASE("PostgreSQL: a wrong password and a full server say so", "[integration][postgres]") {
    Sql sql(shared_server().conninfo());
    const std::string role = idem_test::fresh_schema() + "_guarded";
    sql("CREATE ROLE " + role + " LOGIN PASSWORD 'right' CONNECTION LIMIT 1");
    sql("DO $$ BEGIN EXECUTE format('COPY (SELECT unnest(ARRAY["
        "''host all " +
        role +
        " 127.0.0.1/32 scram-sha-256'',"
        "''host all all 127.0.0.1/32 trust''])) TO %L',"
        " current_setting('data_directory') || '/pg_hba.conf'); END $$");
    sql("SELECT pg_reload_conf()");
    const auto conninfo = [&](const std::string& password) {
        return "host=127.0.0.1 dbname=postgres port=" + std::to_string(shared_server().port()) +
               " user=" + role + " password=" + password;
    };
    idem::postgres::Fault fault;
    const auto open = [&](const std::string& password) {
        return idem::postgres::Connection::open(idem::postgres::Conninfo(conninfo(password)),
                                                idem_test::in_seconds(20), fault);
    };
    CHECK_FALSE(open("mistaken"));
    CHECK(fault.code == "28P01");
    CHECK(fault.cure == idem::postgres::Cure::usage);
    CHECK(fault.message.find("mistaken") == std::string::npos);
    CHECK(fault.message.find("127.0.0.1") != std::string::npos);
    const auto first = open("right");
    CHECK(first);
    CHECK_FALSE(open("right"));
    CHECK(fault.code == "53300");
    CHECK(fault.cure == idem::postgres::Cure::unavailable);
}

TEST_CASE("PostgreSQL: an open transaction stalls only the item whose row it holds",
          "[integration][postgres]") {
    auto bench = make_bench();
    auto options = bench.options(shared_server().conninfo());
    options.lock_timeout = 100ms;
    idem::PostgresStore store(options);
    std::vector<idem::Key> keys;
    std::vector<idem::ClaimRequest> claims;
    for (int i = 0; i < 20; ++i) keys.push_back({"s", std::to_string(i)});
    for (const auto& key : keys) claims.push_back(claim_of(key, 1));
    auto held = claim_of(keys[7], 2);
    held.lease = 1s;
    REQUIRE(idem::claim_one(store, held).fence > 0);
    bench.advance(2s);  // a takeover would have to write
    Sql other(shared_server().conninfo());
    other("BEGIN; SELECT * FROM " + bench.table() + " FOR UPDATE");

    std::vector<idem::ClaimReply> claimed(claims.size());
    store.claim(claims, claimed);
    for (std::size_t i = 0; i < claims.size(); ++i) {
        INFO(i << " " << claimed[i].trouble.message);
        CHECK_FALSE(claimed[i].trouble);
        CHECK(claimed[i].kind ==
              (i == 7 ? idem::ClaimKind::in_progress : idem::ClaimKind::acquired));
    }
    CHECK(idem::claim_one(store, claims[7]).kind == idem::ClaimKind::in_progress);
    const auto locked = idem::finish_one(store, complete_of(held, 0, "x"));
    CHECK(locked.lost);  // decided without the lock
    const auto forget = idem::forget_one(store, {held.key, 1s});
    CHECK(forget.trouble.kind == Kind::unavailable);
    CHECK_FALSE(forget.trouble.may_have_applied);
    other("ROLLBACK");
    CHECK(idem::claim_one(store, claims[7]).kind == idem::ClaimKind::acquired);
}

TEST_CASE("PostgreSQL: many locked rows in a batch hold the others up no longer than one",
          "[integration][postgres]") {
    auto bench = make_bench();
    auto options = bench.options(shared_server().conninfo());
    options.lock_timeout = 100ms;
    options.statement_timeout = 2s;  // 250 times 10 ms would be longer
    idem::PostgresStore store(options);
    std::vector<idem::Key> keys;
    for (int i = 0; i < 300; ++i) keys.push_back({"s", std::to_string(i)});
    std::vector<idem::ClaimRequest> held;
    std::vector<idem::ClaimRequest> claims;
    for (const auto& key : keys) {
        if (held.size() < 250) held.push_back(claim_of(key, 2));
        claims.push_back(claim_of(key, 1));
    }
    std::vector<idem::ClaimReply> holders(held.size());
    bench.store().claim(held, holders);
    bench.advance(1min);  // a takeover would have to write
    Sql other(shared_server().conninfo());
    other("BEGIN; SELECT count(*) FROM (SELECT FROM " + bench.table() + " FOR UPDATE) r");
    std::vector<idem::ClaimReply> claimed(claims.size());
    store.claim(claims, claimed);
    for (std::size_t i = 0; i < claims.size(); ++i) {
        INFO(i << " " << claimed[i].trouble.message);
        CHECK(claimed[i].kind ==
              (i < held.size() ? idem::ClaimKind::in_progress : idem::ClaimKind::acquired));
        CHECK_FALSE(claimed[i].trouble);
    }
}

TEST_CASE("PostgreSQL: a claim in doubt that then meets a lock is in doubt, not in progress",
          "[integration][postgres]") {
    auto bench = make_bench();
    const std::vector<idem::Key> keys = {{"s", "1"}, {"s", "2"}};
    std::vector<idem::ClaimRequest> claims;
    for (const auto& key : keys) {
        auto held = claim_of(key, 2);
        REQUIRE(idem::claim_one(bench.store(), held).fence > 0);
        claims.push_back(claim_of(key, 1));
    }
    bench.advance(1min);
    idem_test::TcpGate gate(shared_server().port());
    auto options =
        bench.options(shared_server().conninfo("port=" + std::to_string(gate.port())), 1);
    options.lock_timeout = 100ms;
    idem::PostgresStore store(options);
    Sql other(shared_server().conninfo());
    other("BEGIN; SELECT count(*) FROM (SELECT FROM " + bench.table() + " FOR UPDATE) r");
    for (const std::size_t count : {1U, 2U}) {
        const std::vector<idem::Key> fresh = {{"s", "1 of " + std::to_string(count)},
                                              {"s", "2 of " + std::to_string(count)}};
        const std::vector warm = {claim_of(fresh[0], 1), claim_of(fresh[1], 1)};
        std::vector<idem::ClaimReply> warmed(count);
        store.claim(std::span(warm).first(count), warmed);  // connects, and prepares
        // That the row is locked is lost on the way; then it is said again.
        gate.arm({.way = idem_test::Direction::to_client, .act = idem_test::GateAct::close});
        std::vector<idem::ClaimReply> claimed(count);
        store.claim(std::span(claims).first(count), claimed);
        CHECK(gate.fired() == 1);
        for (const auto& reply : claimed) {
            INFO(reply.trouble.message);
            CHECK(reply.trouble.kind == Kind::unavailable);
            CHECK(reply.trouble.may_have_applied);
        }
    }
}

TEST_CASE("PostgreSQL: a claim that waited for a row to go has a fence from after the wait",
          "[integration][postgres]") {
    const std::string mine = "application_name=waits_for_a_row";
    PostgresBench bench(shared_server().conninfo(), shared_server().conninfo(mine));
    const std::size_t count = GENERATE(1U, 3U);
    const std::vector<idem::Key> keys = {{"s", "1"}, {"s", "2"}, {"s", "3"}};
    std::vector<idem::ClaimRequest> claims;
    for (std::size_t i = 0; i < count; ++i) {
        REQUIRE(idem::claim_one(bench.store(), claim_of(keys[i], 1)).fence > 0);
        claims.push_back(claim_of(keys[i], 2));
    }
    Sql purger(shared_server().conninfo());
    purger("BEGIN; DELETE FROM " + bench.table());
    std::vector<idem::ClaimReply> replies(count);
    std::jthread waiter([&] { bench.store().claim(claims, replies); });
    CHECK(eventually([&] {
        return bench.sql()(
                   "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                   " AND application_name = 'waits_for_a_row'") != "0";
    }));
    bench.advance(1s);  // whoever held the row may have shown a fence of this time
    purger("COMMIT");
    waiter.join();
    for (std::size_t i = 0; i < count; ++i) {
        INFO(i << " of " << count << ": " << replies[i].trouble.message);
        CHECK(replies[i].kind == idem::ClaimKind::acquired);
        CHECK(replies[i].fence >= static_cast<idem::Fence>(bench.now().time_since_epoch().count()));
        auto finish = complete_of(claims[i], replies[i].fence, "r");
        CHECK_FALSE(idem::finish_one(bench.store(), finish).lost);  // it is the one on record
    }
}

TEST_CASE("PostgreSQL: two keys with one digest are schema trouble, never a replay",
          "[integration][postgres]") {
    auto bench = make_bench();
    const idem::Key key{"s", "k", "t"};
    const auto claim = claim_of(key, 1);
    const auto fence = idem::claim_one(bench.store(), claim).fence;
    REQUIRE_FALSE(idem::finish_one(bench.store(), complete_of(claim, fence, "result")).lost);
    for (const char* column : {"scope", "tenant", "id", "component"}) {
        bench.sql()("BEGIN; UPDATE " + bench.table() + " SET " + column + " = 'x'; COMMIT");
        INFO(column);
        CHECK(idem::claim_one(bench.store(), claim_of(key, 2)).trouble.kind == Kind::schema);
        CHECK(idem::find_one(bench.store(), claim.key).trouble.kind == Kind::schema);
        CHECK(idem::forget_one(bench.store(), {claim.key, 1s}).trouble.kind == Kind::schema);
        bench.sql()("UPDATE " + bench.table() +
                    " SET scope = 's', tenant = 't', id = 'k', component = 'c'");
    }
    CHECK(idem::claim_one(bench.store(), claim_of(key, 2)).result == "result");
}

TEST_CASE("PostgreSQL: names of any letters are quoted, and four processes may make them at once",
          "[integration][postgres]") {
    idem::PostgresOptions options;
    options.conninfo = shared_server().conninfo();
    options.schema = "we\"ird \\ n'ame";
    options.table = "Ta ble; DROP TABLE x; --";
    options.time_allowed = 60s;
    options.statement_timeout = 30s;
    std::array<std::string, 4> errors;
    std::vector<std::jthread> threads;
    for (auto& error : errors)
        threads.emplace_back([&] {
            try {
                idem::PostgresStore(options).create_schema();
            } catch (const std::exception& e) {
                error = e.what();
            }
        });
    for (auto& thread : threads) thread.join();
    for (const auto& error : errors) CHECK(error.empty());
    idem::PostgresStore store(options);
    const idem::Key key{"s", "k"};
    CHECK(idem::claim_one(store, claim_of(key, 1)).kind == idem::ClaimKind::acquired);
    CHECK(idem::claim_one(store, claim_of(key, 2)).kind == idem::ClaimKind::in_progress);
    CHECK(store.purge(10).removed == 0);
    CHECK(store.list({}).records.size() == 1);
}

TEST_CASE("PostgreSQL: open_store knows postgres://", "[integration][postgres]") {
    const auto bench = make_bench();
    idem::PostgresOptions plain;
    plain.conninfo = shared_server().conninfo();
    plain.schema = bench.schema() + "_url";
    idem::PostgresStore(plain).create_schema();
    for (const char* scheme : {"postgres", "postgresql"}) {
        auto store = idem::open_store(
            std::string(scheme) +
            "://postgres@127.0.0.1:" + std::to_string(shared_server().port()) +
            "/postgres?idem_connections=2&application_name=a%20b&idem_schema=" + plain.schema);
        CHECK(store.time_allowed() == plain.time_allowed);
        const idem::Key key{"s", scheme};
        CHECK(idem::claim_one(store, claim_of(key, 1)).kind == idem::ClaimKind::acquired);
    }
    CHECK_THROWS_AS(idem::open_store("postgres://h/d?idem_connections=many"), idem::UsageError);
}

TEST_CASE("PostgreSQL: M59 purgers share the work, wait for nobody, and take only what is over",
          "[integration][postgres]") {
    auto bench = make_bench();
    const auto make = [&](const std::string& scope, int count) {
        std::vector<idem::Key> keys;
        for (int i = 0; i < count; ++i) keys.push_back({scope, std::to_string(i)});
        std::vector<idem::ClaimRequest> claims;
        for (const auto& key : keys) claims.push_back(claim_of(key, 1));
        std::vector<idem::ClaimReply> replies(claims.size());
        bench.store().claim(claims, replies);
        for (const auto& reply : replies) REQUIRE(reply.kind == idem::ClaimKind::acquired);
    };
    make("old", 3000);
    bench.advance(2h);
    make("new", 500);
    Sql other(shared_server().conninfo());
    other("BEGIN; SELECT * FROM " + bench.table() + " WHERE scope = 'old' AND id = '7' FOR UPDATE");
    std::atomic<std::size_t> removed{0};
    std::atomic<bool> trouble{false};
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i)
        threads.emplace_back([&] {
            idem::PostgresStore mine(bench.options(shared_server().conninfo()));
            for (bool more = true; more;) {
                const auto reply = mine.purge(250);
                if (reply.trouble || reply.removed > 250) trouble = true;
                removed += reply.removed;
                more = reply.more && !reply.trouble;
            }
        });
    for (auto& thread : threads) thread.join();
    CHECK_FALSE(trouble);
    CHECK(removed == 2999);
    CHECK(bench.sql()("SELECT count(*) FROM " + bench.table()) == "501");
    other("ROLLBACK");
    for (bool more = true; more;) {
        const auto reply = bench.store().purge(250);
        REQUIRE_FALSE(reply.trouble);
        more = reply.more;
    }
    CHECK(bench.sql()("SELECT count(*) FROM " + bench.table()) == "500");
}

/// Sixteen threads claim, complete and replay keys of their own and one that all want; whatever is
/// answered must be theirs. `break_it` is called again and again until they are done, each time
/// after some more have been.
template <class Break>
void under_load(PostgresBench& bench, int rounds, Break&& break_it) {
    std::atomic<int> wrong{0};
    std::atomic<int> done{0};
    std::atomic<int> replayed{0};
    std::vector<std::jthread> threads;
    for (std::uint32_t me = 0; me < 16; ++me) {
        threads.emplace_back([&, me] {
            for (int round = 0; round < rounds; ++round) {
                const std::string name = std::to_string(me) + "/" + std::to_string(round);
                const idem::Key key{"s", name};
                const auto claim = claim_of(key, me + 1);
                idem::ClaimReply claimed;
                do claimed = idem::claim_one(bench.store(), claim);
                while (claimed.trouble);
                if (claimed.kind != idem::ClaimKind::acquired) ++wrong;
                idem::FinishReply finished;
                do
                    finished =
                        idem::finish_one(bench.store(), complete_of(claim, claimed.fence, name));
                while (finished.trouble);
                if (finished.lost) ++wrong;
                idem::ClaimReply replay;
                do replay = idem::claim_one(bench.store(), claim_of(key, me + 100));
                while (replay.trouble);
                if (replay.kind != idem::ClaimKind::completed || replay.result != name) ++wrong;
                ++replayed;
            }
            ++done;
        });
    }
    while (done < 16) {
        break_it();
        const int before = replayed;
        CHECK(eventually([&] { return done == 16 || replayed >= before + 5; }));
    }
    for (auto& thread : threads) thread.join();
    CHECK(wrong == 0);
    CHECK(bench.sql()("SELECT count(*) FROM " + bench.table() + " WHERE state = 4") ==
          std::to_string(16 * rounds));
}

TEST_CASE("PostgreSQL: connections are ended under load, and no reply is lost or another's",
          "[integration][postgres]") {
    PostgresBench bench(shared_server().conninfo(),
                        shared_server().conninfo("application_name=victim"));
    Sql killer(shared_server().conninfo());
    int kills = 0;
    under_load(bench, 20, [&] {
        kills += std::stoi(
            killer("SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity"
                   " WHERE application_name = 'victim' ORDER BY random() LIMIT 2) v"));
    });
    CHECK(kills > 10);
}

TEST_CASE("PostgreSQL: the server crashes under load and comes back; the client goes on",
          "[integration][postgres]") {
    idem_test::PostgresServer server;
    auto bench = std::make_unique<PostgresBench>(server.conninfo(), server.conninfo());
    int crashes = 0;
    const std::string table = bench->table();
    auto options = bench->options(server.conninfo());
    options.connect_timeout = 1s;
    options.statement_timeout = 5s;
    options.lock_timeout = 1s;
    options.time_allowed = 5s;
    idem::PostgresStore store(options);
    std::atomic<int> wrong{0};
    std::atomic<int> finished{0};
    std::vector<std::jthread> threads;
    for (std::uint32_t me = 0; me < 8; ++me)
        threads.emplace_back([&, me](const std::stop_token& stop) {
            for (int round = 0; !stop.stop_requested(); ++round) {
                const std::string name = std::to_string(me) + "/" + std::to_string(round);
                const idem::Key key{"s", name};
                const auto claim = claim_of(key, me + 1);
                idem::ClaimReply claimed;
                do claimed = idem::claim_one(store, claim);
                while (claimed.trouble);
                if (claimed.kind != idem::ClaimKind::acquired) ++wrong;
                idem::FinishReply reply;
                do reply = idem::finish_one(store, complete_of(claim, claimed.fence, name));
                while (reply.trouble);
                if (reply.lost) ++wrong;
                ++finished;
            }
        });
    const auto goes_on = [&] {
        const int before = finished;
        return eventually([&] { return finished >= before + 50; });
    };
    for (; crashes < 2; ++crashes) {
        CHECK(goes_on());
        server.end(SIGQUIT);
        server.start();
    }
    CHECK(goes_on());
    for (auto& thread : threads) thread.request_stop();
    for (auto& thread : threads) thread.join();
    CHECK(wrong == 0);
    Sql sql(server.conninfo());
    CHECK(sql("SELECT count(*) FROM " + table + " WHERE state = 4") ==
          std::to_string(finished.load()));
}

}  // namespace postgres_store_test
