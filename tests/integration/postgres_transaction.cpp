// Claim, the user's rows and the result in one transaction: all of it or none.

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <idem/guard.hpp>

#include "support/catch.hpp"
#include "support/expect.hpp"
#include "support/loopback_port.hpp"
#include "support/postgres_user.hpp"
#include "support/postgres_world.hpp"

namespace postgres_transaction_test {

using namespace std::chrono_literals;
using idem::OutcomeKind;
using idem::transact;
using idem::Transaction;
using idem_test::await_blocked;
using idem_test::Expect;
using idem_test::shared_server;
using idem_test::Sql;
using idem_test::UserConnection;

/// A schema with the table of the library and one of the user's, `made(id)`.
class Place {
public:
    Place() : schema_(idem_test::fresh_schema()), sql_(shared_server().conninfo()) {
        store_ = std::make_unique<idem::PostgresStore>(store_options());
        store_->create_schema();
        sql_("CREATE TABLE " + made() + " (id text)");
    }
    [[nodiscard]] idem::PostgresOptions store_options() const {
        idem::PostgresOptions out;
        out.conninfo = shared_server().conninfo();
        out.schema = schema_;
        out.statement_timeout = 30s;
        return out;
    }
    [[nodiscard]] idem::TransactionOptions options(idem::Duration wait = 20s) const {
        idem::TransactionOptions out;
        out.schema = schema_;
        out.wait = wait;
        out.time_allowed = 30s;
        return out;
    }
    [[nodiscard]] std::string made() const { return schema_ + ".made"; }
    [[nodiscard]] std::string insert(const std::string& id) const {
        return "INSERT INTO " + made() + " VALUES ('" + id + "')";
    }
    [[nodiscard]] std::string count() { return sql_("SELECT count(*) FROM " + made()); }
    [[nodiscard]] std::string records() {
        return sql_("SELECT count(*) FROM " + schema_ + ".records");
    }
    [[nodiscard]] Sql& sql() { return sql_; }
    [[nodiscard]] idem::PostgresStore& store() { return *store_; }
    [[nodiscard]] const std::string& schema() const { return schema_; }
    [[nodiscard]] UserConnection user(const std::string& more = "") const {
        return UserConnection(shared_server().conninfo(more));
    }
    [[nodiscard]] UserConnection user_at(const std::string& level) const {
        return user("options='-c default_transaction_isolation=" + level + "'");
    }
    /// A handler that makes a row and says so.
    [[nodiscard]] auto maker(const std::string& id) const {
        return [text = insert(id), id](Transaction& t) {
            if (UserConnection::run(t.connection(), text) != "")
                throw std::runtime_error("insert failed");
            t.resource("res/" + id);
            return "made " + id;
        };
    }

private:
    std::string schema_;
    Sql sql_;
    std::unique_ptr<idem::PostgresStore> store_{};
};

const idem::Key key{"article.publish", "42", "acme"};
const auto request = idem::Fingerprint::of_bytes("request");

TEST_CASE("transaction mode: a commit makes rows, record and result; every repeat replays it",
          "[integration][postgres][transaction]") {
    Place place;
    const auto user = place.user();
    const auto first = transact(user.get(), key, request, place.options(), place.maker("1"));
    CHECK(first.executed());
    CHECK(first.value() == "made 1");
    CHECK(first.fence() > 0);
    CHECK(PQtransactionStatus(user.get()) == PQTRANS_IDLE);
    CHECK(place.count() == "1");
    const auto other = place.user();
    for (const auto* connection : {&user, &other}) {
        const auto again =
            transact(connection->get(), key, request, place.options(), place.maker("2"));
        CHECK(again.replayed());
        CHECK(again.value() == "made 1");
        CHECK(again.resource_id() == "res/1");
        CHECK(again.attempt() == 1);
    }
    const auto changed = transact(user.get(), key, idem::Fingerprint::of_bytes("another"),
                                  place.options(), place.maker("3"));
    CHECK(changed.kind() == OutcomeKind::mismatch);
    CHECK(place.count() == "1");
    CHECK(user.notices() == 0);
    // The guard reads the same record, and the other way round.
    idem::IdempotencyGuard guard(place.store());
    CHECK(guard.run(key, request, [] { return std::string("twice"); }).value() == "made 1");
    const idem::Key guarded{"s", "guarded"};
    CHECK(guard.run(guarded, request, [] { return 7; }).executed());
    CHECK(transact(user.get(), guarded, request, place.options(), [] { return 8; }).value() == 7);
}

TEST_CASE("transaction mode: a rollback of the caller's leaves no record, and the next call runs",
          "[integration][postgres][transaction]") {
    Place place;
    const auto user = place.user();
    for (const char* id : {"1", "2"}) {
        CHECK(user("BEGIN") == "");
        const auto made = transact(user.get(), key, request, place.options(), place.maker(id));
        CHECK(made.executed());
        CHECK(made.attempt() == 1);
        CHECK(place.count() == "0");  // others see nothing of it before the commit
        CHECK(user(id == std::string("1") ? "ROLLBACK" : "COMMIT") == "");
    }
    CHECK(place.count() == "1");
    CHECK(transact(user.get(), key, request, place.options(), place.maker("3")).value() ==
          "made 2");
    CHECK(user.notices() == 0);
}

TEST_CASE("transaction mode: a throw undoes the handler's rows and reaches the caller unchanged",
          "[integration][postgres][transaction]") {
    Place place;
    const auto user = place.user();
    struct Odd {};
    const auto odd = [&](Transaction& t) -> int {
        CHECK(UserConnection::run(t.connection(), place.insert("odd")) == "");
        throw Odd{};
    };
    CHECK_THROWS_AS(transact(user.get(), key, request, place.options(), odd), Odd);
    CHECK(PQtransactionStatus(user.get()) == PQTRANS_IDLE);
    CHECK(place.count() == "0");
    CHECK(place.records() == "0");

    CHECK(user("BEGIN") == "");
    CHECK(user(place.insert("before")) == "");
    CHECK_THROWS_AS(transact(user.get(), key, request, place.options(), odd), Odd);
    CHECK(PQtransactionStatus(user.get()) == PQTRANS_INTRANS);
    CHECK(user(place.insert("after")) == "");
    CHECK(user("COMMIT") == "");
    CHECK(place.count() == "2");
    CHECK(place.records() == "0");
    CHECK(user.notices() == 0);
}

TEST_CASE(
    "transaction mode: a failed statement in a handler that throws leaves the caller's usable",
    "[integration][postgres][transaction]") {
    Place place;
    const auto user = place.user();
    CHECK(user("BEGIN") == "");
    CHECK_THROWS_AS(
        transact(user.get(), key, request, place.options(),
                 [](Transaction& t) -> int {
                     throw std::runtime_error(UserConnection::run(t.connection(), "SELECT 1/0"));
                 }),
        std::runtime_error);
    CHECK(user(place.insert("after")) == "");
    CHECK(user("COMMIT") == "");
    CHECK(place.count() == "1");
}

TEST_CASE("transaction mode: a final failure is recorded without the handler's rows, and replayed",
          "[integration][postgres][transaction]") {
    Place place;
    const auto user = place.user();
    const auto fail = [&](auto error) {
        return [&place, error](Transaction& t) -> int {
            (void)UserConnection::run(t.connection(), place.insert("x"));
            (void)UserConnection::run(t.connection(), "SELECT 1/0");
            throw error;
        };
    };
    CHECK_THROWS_AS(transact(user.get(), key, request, place.options(),
                             fail(idem::FinalError("bad", "never works"))),
                    idem::FinalError);
    const auto again = transact(user.get(), key, request, place.options(), [] { return 1; });
    CHECK(again.kind() == OutcomeKind::failed);
    CHECK(again.failure().code == "bad");
    const idem::Key doubtful{"s", "doubtful"};
    CHECK_THROWS_AS(transact(user.get(), doubtful, request, place.options(),
                             fail(idem::UnknownOutcomeError("gateway"))),
                    idem::UnknownOutcomeError);
    CHECK(transact(user.get(), doubtful, request, place.options(), [] { return 1; }).kind() ==
          OutcomeKind::unknown);
    CHECK(place.count() == "0");
    CHECK(PQtransactionStatus(user.get()) == PQTRANS_IDLE);
}

TEST_CASE("transaction mode: R116 a duplicate inside the caller's transaction leaves it usable",
          "[integration][postgres][transaction]") {
    Place place;
    const auto user = place.user();
    const auto first = place.user();
    CHECK(transact(first.get(), key, request, place.options(), place.maker("1")).executed());
    const idem::Key open{"s", "open"};
    CHECK(first("BEGIN") == "");
    CHECK(transact(first.get(), open, request, place.options(), place.maker("2")).executed());

    CHECK(user("SET lock_timeout = '17s'") == "");
    CHECK(user("BEGIN") == "");
    CHECK(user(place.insert("before")) == "");
    CHECK(transact(user.get(), key, request, place.options(), place.maker("3")).replayed());
    CHECK(transact(user.get(), key, idem::Fingerprint::of_bytes("other"), place.options(),
                   place.maker("4"))
              .kind() == OutcomeKind::mismatch);
    const auto waited = transact(user.get(), open, request, place.options(20ms), place.maker("5"));
    CHECK(waited.kind() == OutcomeKind::in_progress);
    CHECK(
        transact(user.get(), {"s", "mine"}, request, place.options(), place.maker("6")).executed());
    CHECK(user("SHOW lock_timeout") == "17s");  // the user's own settings are as they were
    CHECK(user(place.insert("after")) == "");
    CHECK(user("COMMIT") == "");
    CHECK(first("COMMIT") == "");
    CHECK(place.count() == "5");
    CHECK(user.notices() == 0);
}

TEST_CASE("transaction mode: a concurrent duplicate waits for the first and replays it",
          "[integration][postgres][transaction]") {
    for (const bool in_callers : {false, true}) {
        Place place;
        const auto first = place.user();
        const auto second = place.user();
        CHECK(first("BEGIN") == "");
        CHECK(transact(first.get(), key, request, place.options(), place.maker("1")).executed());
        std::optional<idem::Outcome<std::string>> got;
        Expect expect;
        std::jthread duplicate([&] {
            if (in_callers) expect(second("BEGIN") == "");
            got = transact(second.get(), key, request, place.options(), place.maker("2"));
            if (in_callers) expect(second("COMMIT") == "");
        });
        await_blocked(place.sql(), second.process());
        CHECK(first("COMMIT") == "");
        duplicate.join();
        CHECK(expect.failed() == 0);
        CHECK(got->replayed());
        CHECK(got->value() == "made 1");
        CHECK(place.count() == "1");
    }
}

TEST_CASE("transaction mode: where the first rolls back the second runs, with a higher fence",
          "[integration][postgres][transaction]") {
    Place place;
    const auto first = place.user();
    const auto second = place.user();
    CHECK(first("BEGIN") == "");
    // Claimed after the second has read the clock: what it waits for may have a later time.
    CHECK(first("LOCK TABLE " + place.schema() + ".records IN EXCLUSIVE MODE") == "");
    std::optional<idem::Outcome<std::string>> got;
    std::jthread duplicate(
        [&] { got = transact(second.get(), key, request, place.options(), place.maker("2")); });
    await_blocked(place.sql(), second.process());
    const auto lost = transact(first.get(), key, request, place.options(), place.maker("1"));
    CHECK(lost.executed());
    CHECK(first("ROLLBACK") == "");
    duplicate.join();
    CHECK(got->executed());
    CHECK(got->value() == "made 2");
    CHECK(got->fence() > lost.fence());
    CHECK(place.sql()("SELECT fence FROM " + place.schema() + ".records") ==
          std::to_string(got->fence()));
    CHECK(place.count() == "1");
}

TEST_CASE("transaction mode: M55 a loser under a snapshot is told to retry, and then replays",
          "[integration][postgres][transaction]") {
    for (const char* level : {"repeatable\\\\ read", "serializable"}) {
        Place place;
        const auto first = place.user_at(level);
        const auto second = place.user_at(level);
        INFO(level);
        CHECK(second("BEGIN") == "");
        CHECK(second("SELECT 1") == "1");  // the snapshot
        CHECK(transact(first.get(), key, request, place.options(), place.maker("1")).executed());
        CHECK_THROWS_AS(transact(second.get(), key, request, place.options(), place.maker("2")),
                        idem::ConflictError);
        CHECK(second("SELECT 1") == "1");  // usable, though of no more use for this key
        CHECK(second("ROLLBACK") == "");
        CHECK(second("BEGIN") == "");
        CHECK(transact(second.get(), key, request, place.options(), place.maker("3")).value() ==
              "made 1");
        CHECK(second("COMMIT") == "");
        CHECK(place.count() == "1");

        // In a transaction of its own it retries by itself.
        const idem::Key other{"s", "other"};
        CHECK(first("BEGIN") == "");
        CHECK(transact(first.get(), other, request, place.options(), place.maker("4")).executed());
        std::optional<idem::Outcome<std::string>> got;
        std::jthread duplicate([&] {
            got = transact(second.get(), other, request, place.options(), place.maker("5"));
        });
        await_blocked(place.sql(), second.process());
        CHECK(first("COMMIT") == "");
        duplicate.join();
        CHECK(got->value() == "made 4");
        CHECK(got->replayed());
        CHECK(second.notices() == 0);
    }
}

TEST_CASE("transaction mode: of a deadlock one is told to retry, and nothing is half done",
          "[integration][postgres][transaction]") {
    Place place;
    std::array users = {place.user(), place.user()};
    const idem::Key keys[] = {{"s", "a"}, {"s", "b"}};
    for (std::size_t i : {0U, 1U}) {
        CHECK(users[i]("BEGIN") == "");
        CHECK(transact(users[i].get(), keys[i], request, place.options(), place.maker("x"))
                  .executed());
    }
    Expect expect;
    std::atomic<int> conflicts{0};
    std::atomic<int> done{0};
    std::vector<std::jthread> threads;
    for (std::size_t i : {0U, 1U})
        threads.emplace_back([&, i] {
            try {
                if (transact(users[i].get(), keys[1 - i], request, place.options(),
                             place.maker("y"))
                        .executed())
                    ++done;
                expect(users[i]("COMMIT") == "");
            } catch (const idem::ConflictError&) {
                ++conflicts;
                expect(users[i]("ROLLBACK") == "");
            }
        });
    for (auto& thread : threads) thread.join();
    CHECK(expect.failed() == 0);
    CHECK(conflicts == 1);
    CHECK(done == 1);
    CHECK(place.count() == "2");
}

TEST_CASE("transaction mode: under load each key has one row, and every caller its first answer",
          "[integration][postgres][transaction]") {
    Place place;
    constexpr int keys = 40;
    std::atomic<int> wrong{0};
    std::atomic<int> executed{0};
    std::vector<std::jthread> threads;
    for (int me = 0; me < 8; ++me)
        threads.emplace_back([&, me] {
            const auto user = me % 2 == 0 ? place.user() : place.user_at("serializable");
            for (int i = 0; i < keys; ++i) {
                const auto id = std::to_string(i);
                for (bool again = true; again;) {
                    try {
                        const auto outcome = transact(user.get(), {"s", id}, request,
                                                      place.options(), place.maker(id));
                        again = outcome.kind() == OutcomeKind::in_progress;
                        executed += outcome.executed() ? 1 : 0;
                        if (!again && outcome.value() != "made " + id) ++wrong;
                    } catch (const idem::ConflictError&) {
                    }
                }
            }
        });
    for (auto& thread : threads) thread.join();
    CHECK(wrong == 0);
    CHECK(executed == keys);
    CHECK(place.count() == std::to_string(keys));
}

/// Passes bytes between a client and the server, until a client has sent a COMMIT: then that
/// connection ends, before or after the server has got it.
class CommitCutter {
public:
    enum class Cut { before, after };
    explicit CommitCutter(Cut cut) : cut_(cut), port_([this](int client) { pass(client); }) {}
    [[nodiscard]] std::string conninfo() const {
        return "host=127.0.0.1 user=postgres dbname=postgres port=" + std::to_string(port_.port());
    }
    [[nodiscard]] int cuts() const { return cuts_; }

private:
    void pass(int client) {
        const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const auto at = idem_test::loopback(shared_server().port());
        const bool open = connect(server, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0;
        bool committing = false;
        while (open) {
            std::array<pollfd, 2> ends = {{{client, POLLIN, 0}, {server, POLLIN, 0}}};
            if (poll(ends.data(), ends.size(), -1) <= 0) break;
            const bool from_client = ends[0].revents != 0;
            std::array<char, 8192> bytes{};
            const auto got = recv(from_client ? client : server, bytes.data(), bytes.size(), 0);
            if (got <= 0) break;
            const std::string_view text(bytes.data(), static_cast<std::size_t>(got));
            committing = committing || (from_client && text.find("COMMIT") != text.npos);
            if (committing && (cut_ == Cut::before || !from_client)) {
                ++cuts_;
                break;
            }
            if (send(from_client ? server : client, bytes.data(), text.size(), MSG_NOSIGNAL) < 0)
                break;
        }
        close(server);
    }

    Cut cut_;
    std::atomic<int> cuts_{0};
    idem_test::LoopbackPort port_;
};

TEST_CASE("transaction mode: a commit whose answer is lost is found out by its own row",
          "[integration][postgres][transaction]") {
    using Cut = CommitCutter::Cut;
    for (const Cut cut : {Cut::before, Cut::after}) {
        Place place;
        const CommitCutter cutter(cut);
        const UserConnection user(cutter.conninfo());
        std::optional<idem::Outcome<std::string>> got;
        try {
            got = transact(user.get(), key, request, place.options(), place.maker("1"));
        } catch (const idem::UnavailableError& error) {
            INFO(error.what());
            CHECK(cut == Cut::before);
            CHECK_FALSE(error.may_have_applied());
        }
        CHECK(cutter.cuts() == 1);
        CHECK(got.has_value() == (cut == Cut::after));
        if (got) CHECK(got->value() == "made 1");
        CHECK(place.count() == (got ? "1" : "0"));
        const auto direct = place.user();
        const auto again = transact(direct.get(), key, request, place.options(), place.maker("2"));
        CHECK(again.value() == (got ? "made 1" : "made 2"));
        CHECK(place.count() == "1");
    }
}

TEST_CASE("transaction mode: a server process that dies in its commit has committed nothing",
          "[integration][postgres][transaction]") {
    Place place;
    place.sql()("CREATE FUNCTION " + place.schema() +
                ".die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                " PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;"
                "CREATE CONSTRAINT TRIGGER die AFTER INSERT ON " +
                place.made() +
                " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (new.id = 'die')"
                " EXECUTE FUNCTION " +
                place.schema() + ".die()");
    const auto user = place.user();
    try {
        (void)transact(user.get(), key, request, place.options(), place.maker("die"));
        FAIL("it cannot have been committed");
    } catch (const idem::UnavailableError& error) {
        CHECK_FALSE(error.may_have_applied());
    }
    CHECK(place.count() == "0");
    const auto other = place.user();
    CHECK(transact(other.get(), key, request, place.options(), place.maker("1")).executed());
}

TEST_CASE("transaction mode: what a handler must not do is told, and nothing of it is left",
          "[integration][postgres][transaction]") {
    Place place;
    const auto user = place.user();
    const auto run = [&](const std::string& text) {
        return transact(user.get(), key, request, place.options(), [&](Transaction& t) {
            (void)UserConnection::run(t.connection(), place.insert("x"));
            (void)UserConnection::run(t.connection(), text);
            return 1;
        });
    };
    CHECK_THROWS_AS(run("SELECT 1/0"), idem::UsageError);
    CHECK(PQtransactionStatus(user.get()) == PQTRANS_IDLE);
    CHECK_THROWS_AS(run("ROLLBACK"), idem::UsageError);
    CHECK(place.count() == "0");
    CHECK(place.records() == "0");
    CHECK(user("BEGIN; SELECT 1/0") == "22012");
    CHECK_THROWS_AS(run("SELECT 1"), idem::UsageError);
    CHECK(user("ROLLBACK") == "");
    REQUIRE(PQsendQuery(user.get(), "SELECT 1") == 1);
    CHECK_THROWS_AS(run("SELECT 1"), idem::UsageError);
    while (PGresult* result = PQgetResult(user.get())) PQclear(result);
    auto options = place.options();
    options.retention = idem::Duration::zero();
    CHECK_THROWS_AS(transact(user.get(), key, request, options, [] {}), idem::UsageError);
    options = place.options();
    options.table = "nowhere";
    CHECK_THROWS_AS(transact(user.get(), key, request, options, [] {}), idem::SchemaError);
    CHECK(run("SELECT 1").executed());
    CHECK(place.count() == "1");
}

struct Error {
    std::string what;
    [[maybe_unused]] friend std::optional<idem::Failure> idem_failure(const Error& e) {
        return idem::Failure{idem::FailureClass::final, "e", e.what};
    }
};
/// Like std::expected.
struct Expected {
    using value_type = int;
    using error_type = Error;
    [[nodiscard]] bool has_value() const { return !wrong; }
    [[nodiscard]] int value() && { return 5; }
    [[nodiscard]] Error error() const { return {*wrong}; }
    std::optional<std::string> wrong{};
};

/// Says that it has a value, and throws when it is asked for it.
struct Hollow {
    using value_type = int;
    using error_type = Error;
    [[nodiscard]] bool has_value() const { return true; }
    [[nodiscard]] int value() && { throw std::runtime_error("hollow"); }
    [[nodiscard]] Error error() const { return {}; }
};

TEST_CASE("transaction mode: what is thrown after the handler leaves no transaction open",
          "[integration][postgres][transaction]") {
    Place place;
    const auto user = place.user();
    const auto call = [&] {
        (void)transact(user.get(), key, request, place.options(), [&](Transaction& t) {
            (void)UserConnection::run(t.connection(), place.insert("x"));
            return Hollow{};
        });
    };
    CHECK_THROWS_AS(call(), std::runtime_error);
    CHECK(PQtransactionStatus(user.get()) == PQTRANS_IDLE);
    CHECK(place.count() == "0");
    // Else the next call would take it for its caller's, and never commit.
    CHECK(transact(user.get(), key, request, place.options(), place.maker("1")).executed());
    CHECK(place.count() == "1");
}

TEST_CASE("transaction mode: results of any type, none, too large, or an error value",
          "[integration][postgres][transaction]") {
    Place place;
    const auto user = place.user();
    int runs = 0;
    for (int i = 0; i < 2; ++i) {
        CHECK(transact(user.get(), {"s", "void"}, request, place.options(), [&] {
                  ++runs;
              }).has_value());
        const auto value = transact(user.get(), {"s", "expected"}, request, place.options(), [&] {
            ++runs;
            return Expected{};
        });
        CHECK(value.value() == 5);
        const auto error =
            transact(user.get(), {"s", "error"}, request, place.options(), [&](Transaction& t) {
                ++runs;
                (void)UserConnection::run(t.connection(), place.insert("x"));
                return Expected{"no"};
            });
        CHECK(error.kind() == OutcomeKind::failed);
        CHECK(error.failure().message == "no");
        auto options = place.options();
        options.result_bytes_max = 3;
        const auto large = transact(user.get(), {"s", "large"}, request, options, [&] {
            ++runs;
            return std::string("four");
        });
        CHECK(large.details().result == idem::ResultKind::too_large);
        CHECK(large.has_value() == (i == 0));
    }
    CHECK(runs == 4);
    CHECK(place.count() == "0");
}

}  // namespace postgres_transaction_test
