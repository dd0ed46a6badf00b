// The operator's program on PostgreSQL, by its command line.

#include <string>

#include <idem/idem.hpp>
#include <idem/postgres.hpp>

#include "support/catch.hpp"
#include "support/ctl.hpp"
#include "support/ctl_promises.hpp"
#include "support/postgres_server.hpp"
#include "support/readme.hpp"

namespace postgres_ctl_test {

using idem_test::checked;
using idem_test::Ctl;
using idem_test::PostgresServer;
using idem_test::shared_server;
using idem_test::Sql;
using Promise = void (*)(const Ctl&, idem::AnyStore&);

/// @param login user, or user:password
std::string url_of(const PostgresServer& server, const std::string& login,
                   const std::string& database, const std::string& more = "") {
    return "postgres://" + login + "@127.0.0.1:" + std::to_string(server.port()) + "/" + database +
           more;
}
/// A table of one's own on the shared server.
std::string fresh_table() {
    const auto url = url_of(shared_server(), "postgres", "postgres",
                            "?idem_schema=ctl_" + idem_test::fresh_schema());
    idem::PostgresStore(idem::postgres::options_of(*idem::detail::parse_url(url))).create_schema();
    return url;
}
void hold_to(Promise promise) {
    const auto url = fresh_table();
    auto store = idem::open_store(url);
    promise(Ctl(url), store);
}

TEST_CASE("idemctl finds what is stuck or held in PostgreSQL", "[integration][postgres]") {
    hold_to(idem_test::ctl_finds_what_is_stuck);
}
TEST_CASE("idemctl shows all of a record in PostgreSQL", "[integration][postgres]") {
    hold_to(idem_test::ctl_shows_all_of_a_record);
}
TEST_CASE("idemctl: no key in PostgreSQL harms a terminal or a reader of JSON",
          "[integration][postgres]") {
    hold_to(idem_test::ctl_survives_any_key);
}
TEST_CASE("idemctl erases a tenant in PostgreSQL, once it was told to", "[integration][postgres]") {
    hold_to(idem_test::ctl_erases_a_tenant);
}
TEST_CASE("idemctl settles what is held in PostgreSQL", "[integration][postgres]") {
    hold_to(idem_test::ctl_settles_what_is_held);
}
TEST_CASE("idemctl says in PostgreSQL that somebody else was faster", "[integration][postgres]") {
    hold_to(idem_test::ctl_says_that_it_lost);
}

TEST_CASE("idemctl purge takes the names of an erased tenant out of PostgreSQL",
          "[integration][postgres]") {
    const auto url = fresh_table();
    auto store = idem::open_store(url);
    for (const char* id : {"a", "b", "c"}) {
        const idem::Key key{"s", id, "leaver"};
        REQUIRE(idem::claim_one(store, idem_test::claim_of(key, 1)).fence != 0);
    }
    const Ctl ctl(url);
    CHECK(ctl({"forget", "--tenant", "leaver", "--yes"}).says("purge"));
    const std::string table = url.substr(url.find('=') + 1) + ".records";
    Sql sql(shared_server().conninfo());
    CHECK(sql("SELECT count(*) FROM " + table + " WHERE tenant = 'leaver'") == "3");
    CHECK(ctl({"purge", "--yes"}).out == "removed 0 records\n");  // a late holder may still come
    sql("UPDATE " + table + " SET lease_end = 1, retention_end = 1");
    CHECK(ctl({"purge"}).status == 2);
    CHECK(ctl({"purge", "--yes", "--limit", "1"}).out == "removed 1 record\n");
    CHECK(ctl.answer({"purge"}, "y").says("removed 2 records\n"));
    CHECK(sql("SELECT count(*) FROM " + table) == "0");
}

TEST_CASE("idemctl check: the README's rights are enough in PostgreSQL, each lack is named",
          "[integration][postgres]") {
    PostgresServer server({"-c", "fsync=on"});
    Sql admin(server.conninfo());
    const auto run = [&](const std::string& login) {
        return Ctl(url_of(server, login, "postgres"))({"check", "--json"});
    };
    auto check = run("postgres");
    CHECK(check.status == 4);
    CHECK(checked(check)["schema"] == "failed");
    CHECK(check.says("create_schema"));
    CHECK(Ctl(url_of(server, "postgres", "postgres"))({"list"}).status == 4);

    idem::PostgresStore({.conninfo = server.conninfo()}).create_schema();
    admin("CREATE ROLE app LOGIN");
    check = run("app");
    CHECK(check.status == 4);
    CHECK(check.says("USAGE"));
    const auto grants = idem_test::readme_lines("GRANT ");
    REQUIRE(grants.size() == 2);
    admin(grants[0]);
    check = run("app");
    CHECK(check.status == 4);
    CHECK(check.says("privilege SELECT"));
    admin(grants[1]);
    check = run("app");
    INFO(check.out << check.err);
    CHECK(check.status == 0);
    CHECK(checked(check)["round trip"] == "ok");
    CHECK(checked(check)["schema"] == "ok");
    CHECK(checked(check)["durability"] == "ok");
    CHECK(checked(check)["clock"] == "ok");

    const auto url = url_of(server, "app", "postgres");
    auto store = idem::open_store(url);
    const idem::Key key{"s", "k", "t"};
    (void)idem_test::hold(store, key);
    const Ctl ctl(url);
    CHECK(idem_test::listed(ctl, {"--state", "held"}) == std::set<std::string>{"k"});
    CHECK(ctl(idem_test::with_key({"resolve", "--rerun", "--yes"}, key)).status == 0);
    CHECK(ctl({"forget", "--tenant", "t", "--yes"}).status == 0);
    CHECK(ctl({"purge", "--yes"}).status == 0);
    CHECK(ctl({"list"}).status == 1);

    admin("ALTER ROLE app SET synchronous_commit = off");
    check = run("app");
    CHECK(check.status == 1);
    CHECK(checked(check)["durability"] == "warning");
    admin("ALTER TABLE idem.records DROP CONSTRAINT records_pkey");
    check = run("app");
    CHECK(check.status == 4);
    CHECK(check.says("unique index"));
}

TEST_CASE("PostgreSQL shows who is connected: idem, or the name that the conninfo has",
          "[integration][postgres]") {
    Sql sql(shared_server().conninfo());
    const auto names = [&](const std::string& name) {
        return sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = '" + name + "'");
    };
    const auto url = fresh_table();
    auto store = idem::open_store(url);
    REQUIRE_FALSE(store.list({}).trouble);
    CHECK(sql("SELECT application_name FROM pg_stat_activity WHERE query LIKE '%looked AS%'"
              " AND pid <> pg_backend_pid()") == "idem");
    auto named = idem::open_store(url + "&application_name=shop%20front");
    REQUIRE_FALSE(named.list({}).trouble);
    CHECK(names("shop front") == "1");
}

TEST_CASE("idemctl: a database that is not there or does not let in, and no password told",
          "[integration][postgres]") {
    const std::string nowhere = std::to_string(idem_test::free_port());
    idem_test::ctl_cannot_get_in("postgres://user:verysecret@127.0.0.1:" + nowhere + "/db",
                                 "verysecret");
    PostgresServer server;
    Sql sql(server.conninfo());
    sql("CREATE ROLE app LOGIN PASSWORD 'right'");
    sql("DO $$ BEGIN EXECUTE format('COPY (SELECT unnest(ARRAY["
        "''host all app 127.0.0.1/32 scram-sha-256'',"
        "''host all all 127.0.0.1/32 trust''])) TO %L',"
        " current_setting('data_directory') || '/pg_hba.conf'); END $$");
    sql("SELECT pg_reload_conf()");
    REQUIRE(idem_test::eventually(
        [&] { return Ctl(url_of(server, "app:other", "postgres"))({"list"}).status == 3; }));
    idem_test::ctl_cannot_get_in(url_of(server, "app:verysecret", "postgres"), "verysecret");
    CHECK(Ctl(url_of(server, "app:right", "postgres"))({"check"}).says("ok       reachable"));
}

}  // namespace postgres_ctl_test
