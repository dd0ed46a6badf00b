// Breaks the way to a real PostgreSQL after any byte of an exchange, in both directions, and asks
// after each break: one effect for each key, the first result for each repeat, typed trouble in
// time, and no reply that was another's.
//
// The suite tries some positions, by a seed that it prints. All of them, in about half an hour:
//   IDEM_GATE_SWEEP=all build/plain/tests/idem_integration "PostgreSQL gate*"
// The same positions again: IDEM_GATE_SWEEP=<seed>.

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/gate_sweep.hpp"
#include "support/postgres_user.hpp"
#include "support/postgres_world.hpp"

namespace postgres_gate_test {

using namespace std::chrono_literals;
using idem_test::Exchange;
using idem_test::Findings;
using idem_test::GateRig;
using idem_test::PostgresBench;
using idem_test::shared_server;
namespace exchange = idem_test::exchange;

idem::PostgresOptions impatient(const PostgresBench& bench, int port, const std::string& more) {
    auto out = bench.options("host=127.0.0.1 user=postgres password=secret dbname=postgres port=" +
                                 std::to_string(port) + " " + more,
                             1);
    out.connect_timeout = 2s;
    out.statement_timeout = 250ms;
    out.lock_timeout = 100ms;
    out.time_allowed = 3s;
    return out;
}

/// With a connection of an application beside the store's, through the gate too.
class Rig : public GateRig<idem::PostgresStore> {
public:
    Rig(PostgresBench& bench, Findings& findings, const std::string& more)
        : GateRig(
              shared_server().port(),
              [&bench, more](int port) {
                  return idem::PostgresStore(impatient(bench, port, more));
              },
              bench.store(), findings),
          options(impatient(bench, gate.port(), more)) {}

    /// As an application does, with libpq's own time limit: the fault may strike here as well.
    void connect_user() {
        for (int tries = 1;; ++tries) {
            try {
                user = std::make_unique<idem_test::UserConnection>(options.conninfo +
                                                                   " connect_timeout=2");
                return;
            } catch (const std::runtime_error&) {
                if (tries == 20) throw;
            }
            gate.reset_all();
        }
    }

    idem::PostgresOptions options;
    std::unique_ptr<idem_test::UserConnection> user{};
};

/// Claim, a row of the user's and the result in one transaction, again and again as an application
/// would. The row bears the number of the run that made it, as the result does.
void transaction(Rig& rig, const idem::Key& key) {
    idem::TransactionOptions options;
    options.schema = rig.options.schema;
    options.wait = 100ms;
    options.time_allowed = 250ms;
    int runs = 0;
    const auto handler = [&](idem::Transaction& mine) {
        const auto number = std::to_string(++runs);
        auto wire = idem::postgres::Connection::borrow(mine.connection());
        const auto answer = wire.script(
            "INSERT INTO " + options.schema + ".made VALUES ('" + key.id + "', '" + number + "')",
            idem::LocalClock::now() + 250ms);
        if (answer.fault) throw idem::UnavailableError(answer.fault->message);
        return number;
    };
    const auto count = [&] {
        idem_test::Sql sql(shared_server().conninfo());
        return sql("SELECT count(*) || ' ' || coalesce(min(n), '') FROM " + options.schema +
                   ".made WHERE id = '" + key.id + "'");
    };
    std::string answer;
    bool doubt = false;
    for (int tries = 0; tries < 20; ++tries) {
        try {
            if (!rig.user) rig.connect_user();
            const auto outcome = transact(rig.user->get(), key,
                                          idem::Fingerprint::of_bytes("request"), options, handler);
            if (outcome.has_value()) {
                rig.expect(answer.empty() || answer == outcome.value(), "each answer is the first");
                answer = outcome.value();
            }
            if (outcome.replayed()) break;
            // Executed, and the answer to its COMMIT may have been lost with the connection.
            if (outcome.executed() && PQtransactionStatus(rig.user->get()) == PQTRANS_IDLE)
                continue;
        } catch (const idem::UnavailableError& error) {
            rig.check(idem::Trouble::unavailable(error.what(), error.may_have_applied()));
            doubt = doubt || error.may_have_applied();
            if (!doubt && answer.empty())
                rig.expect(count() == "0 ", "it said that nothing was committed: " + count());
        } catch (const std::exception& error) {
            rig.expect(false, std::string("another error: ") + error.what());
        }
        rig.user.reset();  // a connection that broke is for the caller to close
        rig.gate.reset_all();
    }
    rig.expect(!answer.empty() && count() == "1 " + answer,
               "one row, of the run that was answered: " + count() + ", not " + answer);
    const auto record = idem::find_one(rig.direct, idem::KeyView(idem::Component::call, key));
    rig.expect(record.record && record.record->header.state == idem::State::succeeded,
               "it is on record");
}

idem::Key prepare_transaction(Rig& rig) {
    if (!rig.user || PQstatus(rig.user->get()) != CONNECTION_OK) rig.connect_user();
    return Rig::fresh_key();
}
void sweep(PostgresBench& bench, const Exchange<Rig>& what, std::uint64_t count,
           const std::string& more = "", const std::function<void(Rig&)>& begin = {}) {
    Findings findings;
    std::vector<std::unique_ptr<Rig>> rigs;
    for (int i = 0; i < 8; ++i) {
        rigs.push_back(std::make_unique<Rig>(bench, findings, more));
        if (begin) begin(*rigs.back());
    }
    idem_test::sweep(rigs, findings, what, count);
}

PostgresBench make_bench(bool look_first = false) {
    return PostgresBench(shared_server().conninfo(), shared_server().conninfo(), 16, look_first);
}

TEST_CASE("PostgreSQL gate: a claim broken at any byte is acquired once, by its owner",
          "[integration][postgres]") {
    auto bench = make_bench();
    sweep(bench, {"claim", exchange::prepare_claim<Rig>, exchange::claim<Rig>}, 40);
}

TEST_CASE("PostgreSQL gate: a finish broken at any byte is recorded once, and is replayed",
          "[integration][postgres]") {
    auto bench = make_bench();
    sweep(bench, {"finish", exchange::prepare_finish<Rig>, exchange::finish<Rig>}, 40);
}

TEST_CASE("PostgreSQL gate: after a reply broken at any byte the next reply is its own",
          "[integration][postgres]") {
    for (const bool look_first : {false, true}) {
        auto bench = make_bench(look_first);
        sweep(bench,
              {look_first ? "replay by a look" : "replay", exchange::prepare_replay<Rig>,
               exchange::replay<Rig>},
              25);
    }
}

TEST_CASE("PostgreSQL gate: a guarded call broken at any byte has one effect and one answer",
          "[integration][postgres]") {
    auto bench = make_bench();
    sweep(bench, {"guarded call", exchange::prepare_claim<Rig>, exchange::guarded_call<Rig>}, 40);
}

TEST_CASE("PostgreSQL gate: a claim on a new connection, broken at any byte, is acquired once",
          "[integration][postgres]") {
    auto bench = make_bench();
    sweep(bench, {"cold claim", exchange::prepare_cold<Rig>, exchange::claim<Rig>}, 25);
}

TEST_CASE("PostgreSQL gate: a COMMIT broken at any byte is made once, claim or finish",
          "[integration][postgres]") {
    auto bench = make_bench();
    // A store learns from its first serialization failure to send BEGIN and COMMIT along.
    const auto& schema = bench.schema();
    bench.sql()("CREATE FUNCTION " + schema +
                ".fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                " IF current_setting('transaction_isolation') <> 'read committed' THEN"
                " RAISE EXCEPTION USING ERRCODE = '40001'; END IF; RETURN NEW; END $$;"
                " CREATE TRIGGER fail BEFORE INSERT ON " +
                bench.table() + " FOR EACH ROW WHEN (NEW.scope = 'fail') EXECUTE FUNCTION " +
                schema + ".fail()");
    const auto learn = [&](Rig& rig) {
        const idem::Key key{"fail", Rig::fresh_key().id};
        const auto reply =
            rig.insist([&] { return idem::claim_one(rig.gated, Rig::claim_of(key, 'a')); });
        rig.expect(reply.kind == idem::ClaimKind::acquired, "learns: " + reply.trouble.message);
        rig.expect(bench.sql()("SELECT bool_or(query LIKE 'BEGIN ISOLATION LEVEL %' OR query ="
                               " 'COMMIT') FROM pg_stat_activity WHERE application_name ="
                               " 'commits'") == "t",
                   "it sends BEGIN and COMMIT");
    };
    const std::string more =
        "application_name=commits options='-c default_transaction_isolation=serializable'";
    sweep(bench, {"claim with COMMIT", exchange::prepare_claim<Rig>, exchange::claim<Rig>}, 25,
          more, learn);
    sweep(bench, {"finish with COMMIT", exchange::prepare_finish<Rig>, exchange::finish<Rig>}, 25,
          more, learn);
}

TEST_CASE("PostgreSQL gate: a transaction broken at any byte is there whole or not at all",
          "[integration][postgres][transaction]") {
    auto bench = make_bench();
    bench.sql()("CREATE TABLE " + bench.schema() + ".made (id text, n text)");
    sweep(bench, {"transaction", prepare_transaction, transaction}, 40);
}

}  // namespace postgres_gate_test
