// The way to the server: what each error means, and what a call gets when the way is blocked.

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include "support/catch.hpp"
#include "support/certificates.hpp"
#include "support/child.hpp"
#include "support/eventually.hpp"
#include "support/loopback_port.hpp"
#include "support/postgres_world.hpp"
#include "support/requests.hpp"

namespace postgres_wire_test {

using namespace std::chrono_literals;
using idem::postgres::Cure;
using idem::postgres::fault_class;
using idem_test::claim_of;
using idem_test::LoopbackPort;
using idem_test::says;
using idem_test::shared_server;
using idem_test::Sql;

idem::PostgresOptions quick(std::string conninfo) {
    idem::PostgresOptions out;
    out.conninfo = std::move(conninfo);
    out.connections = 2;
    out.connect_timeout = 400ms;
    out.statement_timeout = 400ms;
    out.lock_timeout = 100ms;
    out.time_allowed = 1s;
    return out;
}

/// A claim over a way that is blocked; it must come back within the time allowed, and some.
idem::Trouble claim_by(const std::string& conninfo) {
    idem::PostgresStore store(quick(conninfo));
    const idem::Key key{"s", "k"};
    const auto from = idem::LocalClock::now();
    const auto reply = idem::claim_one(store, claim_of(key, 'a'));
    CHECK(idem::LocalClock::now() - from < 30s);  // of a busy machine
    INFO(reply.trouble.message);
    CHECK(reply.trouble.message.find("secret") == std::string::npos);
    CHECK_FALSE(reply.trouble.may_have_applied);
    return reply.trouble;
}

TEST_CASE("PostgreSQL: every SQLSTATE has one class, and says whether it may have been applied",
          "[integration][postgres]") {
    struct Row {
        const char* code;
        Cure cure;
        bool may_have_applied;
    };
    const Row rows[] = {
        {"40001", Cure::retry_here, false},  {"40P01", Cure::retry_here, false},
        {"55P03", Cure::unavailable, false}, {"57P01", Cure::reconnect, true},
        {"57P02", Cure::reconnect, true},    {"57P03", Cure::unavailable, false},
        {"25006", Cure::reconnect, false},   {"08000", Cure::reconnect, true},
        {"08P01", Cure::reconnect, true},    {"08003", Cure::reconnect, true},
        {"08006", Cure::reconnect, true},    {"08001", Cure::unavailable, false},
        {"53300", Cure::unavailable, false}, {"53100", Cure::unavailable, false},
        {"57014", Cure::unavailable, false}, {"42P01", Cure::schema, false},
        {"42501", Cure::schema, false},      {"42883", Cure::schema, false},
        {"3F000", Cure::schema, false},      {"28P01", Cure::usage, false},
        {"28000", Cure::usage, false},       {"3D000", Cure::usage, false},
        {"22001", Cure::usage, false},       {"54000", Cure::usage, false},
        {"26000", Cure::retry_here, false},  {"42P05", Cure::retry_here, false},
        {"40003", Cure::reconnect, true},    {"XX001", Cure::schema, false},
        {"XX000", Cure::unavailable, true},  {"99999", Cure::unavailable, true},
        {"ID001", Cure::unavailable, true},  {"ID002", Cure::reconnect, true},
        {"ID003", Cure::unavailable, false},
    };
    for (const auto& row : rows) {
        INFO(row.code);
        CHECK(fault_class(row.code).cure == row.cure);
        CHECK(fault_class(row.code).may_have_applied == row.may_have_applied);
    }
}

TEST_CASE("PostgreSQL: a port where something else answers is unavailable, in time, by name",
          "[integration][postgres]") {
    for (const auto& serve : {says("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", true),
                              says(std::string(64, '\xff'), true), says("", false)}) {
        const LoopbackPort port(serve);
        const auto trouble = claim_by("host=127.0.0.1 user=u password=secret dbname=d port=" +
                                      std::to_string(port.port()));
        CHECK(trouble.kind == idem::Trouble::Kind::unavailable);
        CHECK(trouble.message.find("127.0.0.1") != std::string::npos);
        CHECK(trouble.message.find("\"d\"") != std::string::npos);
    }
    const auto nobody =
        "host=127.0.0.1 user=u dbname=d port=" + std::to_string(idem_test::free_port());
    CHECK(claim_by(nobody).kind == idem::Trouble::Kind::unavailable);
    const auto nameless = claim_by("host=no-such-host.invalid user=u dbname=d password=secret");
    CHECK(nameless.kind == idem::Trouble::Kind::unavailable);
    CHECK(nameless.message.find("no-such-host.invalid") != std::string::npos);
}

TEST_CASE("PostgreSQL: a wrong database or user is usage, by its name", "[integration][postgres]") {
    const auto base =
        "host=127.0.0.1 password=secret port=" + std::to_string(shared_server().port());
    const auto database = claim_by(base + " user=postgres dbname=nowhere");
    CHECK(database.kind == idem::Trouble::Kind::usage);
    CHECK(database.message.find("nowhere") != std::string::npos);
    const auto user = claim_by(base + " user=nobody dbname=postgres");
    CHECK(user.kind == idem::Trouble::Kind::usage);
    CHECK(user.message.find("nobody") != std::string::npos);
}

TEST_CASE("PostgreSQL: options that cannot be right are refused at once, without the password",
          "[integration][postgres]") {
    const auto refused = [](const idem::PostgresOptions& options) -> std::string {
        try {
            idem::PostgresStore store(options);
        } catch (const idem::UsageError& error) {
            return error.what();
        }
        return "not refused";
    };
    auto options = quick("password=secret host=a nonsense");
    CHECK(refused(options).find("conninfo") != std::string::npos);
    CHECK(refused(options).find("secret") == std::string::npos);
    options = quick("host=a,b port=1,2,3");
    CHECK(refused(options).find("pair") != std::string::npos);
    options = quick("");
    options.lock_timeout = options.statement_timeout;
    CHECK(refused(options).find("lock_timeout") != std::string::npos);
    options = quick("");
    options.table = std::string(41, 't');
    CHECK(refused(options).find("table") != std::string::npos);
    options = quick("");
    options.connections = 0;
    CHECK(refused(options).find("connections") != std::string::npos);
}

TEST_CASE("PostgreSQL: hosts are tried in turn, each for its share of the time",
          "[integration][postgres]") {
    const LoopbackPort silent(says("", false));
    idem_test::PostgresBench bench(shared_server().conninfo(), shared_server().conninfo());
    auto options =
        bench.options("host=127.0.0.1,127.0.0.1 user=postgres dbname=postgres port=" +
                      std::to_string(silent.port()) + "," + std::to_string(shared_server().port()));
    options.connect_timeout = 4s;
    idem::PostgresStore store(options);
    const idem::Key key{"s", "k"};
    const auto reply = idem::claim_one(store, claim_of(key, 'a'));
    INFO(reply.trouble.message);
    CHECK(reply.kind == idem::ClaimKind::acquired);
}

TEST_CASE("PostgreSQL: a connection that timed out is closed, and its answer is nobody's",
          "[integration][postgres]") {
    Sql sql(shared_server().conninfo());
    auto& connection = sql.connection();
    const idem::postgres::Statement slow{"slow", "SELECT pg_sleep(20), 'first'"};
    const auto late = connection.run(slow, {}, false, idem::LocalClock::now() + 50ms);
    REQUIRE(late.fault);
    CHECK(late.fault->is(idem::postgres::code::timed_out));
    CHECK(late.fault->may_have_applied);
    CHECK_FALSE(connection.usable());
}

TEST_CASE("PostgreSQL: what has given its rows and then fails at its commit has failed (R118)",
          "[integration][postgres]") {
    const idem_test::PostgresBench bench(shared_server().conninfo(), shared_server().conninfo());
    Sql sql(shared_server().conninfo());
    const std::string table = bench.schema() + ".deferred";
    sql("CREATE TABLE " + table + " (id int PRIMARY KEY, other int REFERENCES " + table +
        " DEFERRABLE INITIALLY DEFERRED)");
    const idem::postgres::Statement insert{"insert",
                                           "INSERT INTO " + table + " VALUES (1, 2) RETURNING id"};
    auto& connection = sql.connection();
    for (const bool between : {false, true}) {
        const auto answer =
            between ? connection.run_read_committed(insert, {}, false, idem_test::in_seconds(20))
                    : connection.run(insert, {}, false, idem_test::in_seconds(20));
        REQUIRE(answer.fault);
        CHECK(answer.fault->is("23503"));
        CHECK(connection.usable());
    }
    CHECK(sql("SELECT count(*) FROM " + table) == "0");
}

TEST_CASE("PostgreSQL: a connection cut by the server is replaced, unnoticed where it was idle",
          "[integration][postgres]") {
    idem_test::PostgresBench bench(shared_server().conninfo(),
                                   shared_server().conninfo("application_name=cut"), 1);
    const idem::Key key{"s", "k"};
    REQUIRE(idem::claim_one(bench.store(), claim_of(key, 'a')).kind == idem::ClaimKind::acquired);
    for (int round = 0; round < 5; ++round) {
        bench.sql()(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE application_name = 'cut'");
        const auto reply = idem::claim_one(bench.store(), claim_of(key, 'b'));
        INFO(reply.trouble.message);
        CHECK(reply.kind == idem::ClaimKind::in_progress);
    }
}

TEST_CASE("PostgreSQL: after fork the child is refused and the parent's session lives",
          "[integration][postgres]") {
    idem_test::PostgresBench bench(shared_server().conninfo(), shared_server().conninfo(), 1);
    // The only handle: the child closes what it closes.
    auto store = std::make_unique<idem::PostgresStore>(
        bench.options(shared_server().conninfo("application_name=parents"), 1));
    const auto session = [&] {
        return bench.sql()(
            "SELECT string_agg(pid::text, ' ') FROM pg_stat_activity"
            " WHERE application_name = 'parents'");
    };
    const idem::Key key{"s", "k"};
    REQUIRE(idem::claim_one(*store, claim_of(key, 'a')).kind == idem::ClaimKind::acquired);
    const auto before = session();
    CHECK(idem_test::in_child([&] {
              const auto reply = idem::claim_one(*store, claim_of(key, 'b'));
              store.reset();
              return reply.trouble.kind == idem::Trouble::Kind::usage;
          }) == "");
    CHECK(idem::claim_one(*store, claim_of(key, 'b')).kind == idem::ClaimKind::in_progress);
    CHECK(session() == before);
}

TEST_CASE("PostgreSQL: TLS is libpq's: a server is believed with a trusted certificate of its own",
          "[integration][postgres]") {
    namespace fs = std::filesystem;
    const idem_test::Certificates certificates;
    idem_test::PostgresServer server;
    Sql sql(server.conninfo());
    const fs::path data = sql("SHOW data_directory");
    struct stat owner {};
    REQUIRE(stat(data.c_str(), &owner) == 0);
    for (const char* name : {"server.crt", "server.key"}) {
        fs::copy_file(certificates.file(name), data / name);
        fs::permissions(data / name, fs::perms::owner_read | fs::perms::owner_write);
        REQUIRE(chown((data / name).c_str(), owner.st_uid, owner.st_gid) == 0);
    }
    sql("ALTER SYSTEM SET ssl = on");
    sql("SELECT pg_reload_conf()");
    CHECK(idem_test::eventually([&] { return sql("SHOW ssl") == "on"; }));

    const auto verified = [&](const char* authority, const std::string& more = "") {
        return server.conninfo("sslmode=verify-full sslrootcert='" + certificates.cert(authority) +
                               "' " + more);
    };
    idem::PostgresOptions options;
    options.conninfo = verified("ca");
    idem::PostgresStore store(options);
    store.create_schema();
    const idem::Key key{"s", "k"};
    CHECK(idem::claim_one(store, claim_of(key, 'a')).kind == idem::ClaimKind::acquired);
    CHECK(Sql(verified("ca"))("SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()") ==
          "true");
    const auto refused = [](const std::string& conninfo) {
        const auto trouble = claim_by(conninfo);
        CHECK(trouble);
        return trouble.message;
    };
    CHECK(refused(verified("other")).find("certificate verify failed") != std::string::npos);
    CHECK(refused(verified("ca", "host=elsewhere.invalid hostaddr=127.0.0.1"))
              .find("does not match host name") != std::string::npos);
    CHECK(idem::claim_one(store, claim_of(key, 'b')).kind == idem::ClaimKind::in_progress);
}

TEST_CASE("PostgreSQL: a pool that is all in use is unavailable in time",
          "[integration][postgres]") {
    idem::postgres::Fault fault;
    idem::postgres::Pool pool({idem::postgres::Conninfo(shared_server().conninfo())}, 2, 20s);
    auto first = pool.borrow(idem_test::in_seconds(20), fault);
    auto second = pool.borrow(idem_test::in_seconds(20), fault);
    REQUIRE((first && second));
    CHECK_FALSE(pool.borrow(idem::LocalClock::now() + 20ms, fault));
    CHECK(fault.cure == Cure::unavailable);
    CHECK_FALSE(fault.may_have_applied);
    first.reset();
    CHECK(pool.borrow(idem::LocalClock::now() + 20ms, fault));
    CHECK(pool.open() == 2);
}

}  // namespace postgres_wire_test
