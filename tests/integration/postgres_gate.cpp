// Breaks the way to a real PostgreSQL after any byte of an exchange, in both directions, and asks
// after each break: one effect for each key, the first result for each repeat, typed trouble in
// time, and no reply that was another's.
//
// The suite tries some positions, by a seed that it prints. All of them, in about half an hour:
//   IDEM_GATE_SWEEP=all build/plain/tests/idem_integration "PostgreSQL gate*"
// The same positions again: IDEM_GATE_SWEEP=<seed>.

#include <atomic>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <idem/guard.hpp>

#include "support/catch.hpp"
#include "support/postgres_user.hpp"
#include "support/postgres_world.hpp"
#include "support/tcp_gate.hpp"

namespace {

using namespace std::chrono_literals;
using idem_test::GateAct;
using idem_test::GateFault;
using idem_test::PostgresBench;
using idem_test::shared_server;
using idem_test::TcpGate;
using idem_test::Way;

/// What went wrong in any thread: Catch2's own checks are for one.
class Findings {
public:
    void expect(bool ok, const std::string& what) {
        const std::lock_guard lock(mutex_);
        ++asked_;
        if (!ok) wrong_.push_back(what);
    }
    void report() {
        std::string text;
        for (std::size_t i = 0; i < wrong_.size() && i < 10; ++i) text += wrong_[i] + "\n";
        INFO(wrong_.size() << " of " << asked_ << " are wrong:\n" << text);
        CHECK(wrong_.empty());
        CHECK(asked_ > 0);
    }

private:
    std::mutex mutex_{};
    std::vector<std::string> wrong_{};
    std::size_t asked_ = 0;
};

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

/// One gate before the server, and a store of one connection that goes through it. `direct` does
/// not, and says how things stand.
class Rig {
public:
    Rig(PostgresBench& bench, Findings& findings, const std::string& more)
        : gate(shared_server().port()),
          options(impatient(bench, gate.port(), more)),
          gated(options),
          direct(bench.store()),
          guard(gated, {.lease = 60s, .wait = 2s}),
          findings_(findings) {}

    [[nodiscard]] static idem::Key fresh_key() {
        static std::atomic<int> count{0};
        return {"gate", std::to_string(++count)};
    }
    [[nodiscard]] static idem::ClaimRequest claim_of(const idem::Key& key, char owner) {
        idem::ClaimRequest out;
        out.key = idem::KeyView(idem::Component::call, key);
        out.fingerprint = idem::Fingerprint::of_bytes("request");
        out.owner.bytes.fill(owner);
        out.lease = 60s;
        out.retention = 1h;
        return out;
    }
    [[nodiscard]] static idem::FinishRequest complete_of(const idem::ClaimRequest& claim,
                                                         idem::Fence fence) {
        idem::FinishRequest out;
        out.key = claim.key;
        out.owner = claim.owner;
        out.fence = fence;
        out.result_kind = idem::ResultKind::value;
        out.result = claim.key.id;  // no two keys have the same
        out.retention = 1h;
        return out;
    }
    /// A finished key, whose result is its id.
    [[nodiscard]] idem::Key finished_key() {
        auto key = fresh_key();
        const auto claim = claim_of(key, 'a');
        const auto fence = idem::claim_one(direct, claim).fence;
        expect(!idem::finish_one(direct, complete_of(claim, fence)).lost, "a key to be replayed");
        return key;
    }
    /// Leaves one connection open with everything prepared.
    void warm_up() {
        if (!known_) known_ = finished_key();
        const auto claim = claim_of(*known_, 'b');
        for (int tries = 0; tries < 20; ++tries) {
            const bool claimed = !idem::claim_one(gated, claim).trouble;
            if (claimed && !idem::finish_one(gated, complete_of(claim, 1)).trouble) return;
        }
        expect(false, "no connection can be made");
    }
    /// The same request until it is answered. Whatever else comes must be typed and in time.
    template <class Ask>
    [[nodiscard]] auto insist(Ask&& ask, const std::function<void()>& after_trouble = {}) {
        bool doubt = false;  // of this try or one before it
        for (int tries = 1;; ++tries) {
            const auto from = idem::LocalClock::now();
            auto reply = ask();
            expect(idem::LocalClock::now() - from < 30s, "it came late");  // on a busy machine
            if (!reply.trouble || tries == 20) return reply;
            check(reply.trouble);
            doubt = doubt || reply.trouble.may_have_applied;
            if (!doubt && after_trouble) after_trouble();
            gate.reset_all();  // of what vanished; a kernel would do it after a quarter of an hour
        }
    }
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
    void check(const idem::Trouble& trouble) {
        expect(trouble.kind == idem::Trouble::Kind::unavailable, "its class: " + trouble.message);
        expect(trouble.message.find("127.0.0.1") != std::string::npos,
               "it names no host: " + trouble.message);
        expect(trouble.message.find("secret") == std::string::npos, "it tells the password");
    }
    void expect(bool ok, const std::string& what) { findings_.expect(ok, where + ": " + what); }

    TcpGate gate;
    idem::PostgresOptions options;
    idem::PostgresStore gated;
    idem::PostgresStore direct;
    idem::IdempotencyGuard<idem::PostgresStore> guard;
    std::unique_ptr<idem_test::UserConnection> user{};  ///< Of an application, through the gate.
    std::string where{"at first"};

private:
    Findings& findings_;
    std::optional<idem::Key> known_{};
};

/// One exchange with a fault in it: `prepare`, then the fault is armed, then `exchange`.
struct Exchange {
    std::string name;
    std::function<idem::Key(Rig&)> prepare;
    std::function<void(Rig&, const idem::Key&)> exchange;
};

void claim(Rig& rig, const idem::Key& key) {
    const auto request = Rig::claim_of(key, 'a');
    const auto untouched = [&] {
        rig.expect(!idem::find_one(rig.direct, request.key).record,
                   "it said that nothing was applied");
    };
    auto reply = rig.insist([&] { return idem::claim_one(rig.gated, request); }, untouched);
    if (reply.kind == idem::ClaimKind::in_progress) {  // a vanished transaction holds the row
        rig.gate.reset_all();
        reply = rig.insist([&] { return idem::claim_one(rig.gated, request); });
    }
    rig.expect(!reply.trouble, "no answer: " + reply.trouble.message);
    rig.expect(reply.kind == idem::ClaimKind::acquired, "the claim is its owner's");
    rig.expect(reply.attempt == 1 && reply.crashes == 0, "it was acquired once");
    const auto again = idem::claim_one(rig.direct, request);
    rig.expect(again.fence == reply.fence && reply.fence > 0, "one fence");
    const auto other = idem::claim_one(rig.direct, Rig::claim_of(key, 'o'));
    rig.expect(other.kind == idem::ClaimKind::in_progress, "nobody else gets it");
}

void finish(Rig& rig, const idem::Key& key) {
    const auto request = Rig::claim_of(key, 'a');
    const auto record = idem::find_one(rig.direct, request.key).record;
    const auto complete = Rig::complete_of(request, record ? record->header.fence : 0);
    const auto untouched = [&] {
        const auto now = idem::find_one(rig.direct, request.key).record;
        rig.expect(now && now->header.state == idem::State::running,
                   "it said that nothing was applied");
    };
    const auto reply = rig.insist([&] { return idem::finish_one(rig.gated, complete); }, untouched);
    rig.expect(!reply.trouble && !reply.lost, "recorded: " + reply.trouble.message);
    rig.expect(reply.state == idem::State::succeeded, "it stands as asked");
    const auto replay = idem::claim_one(rig.direct, Rig::claim_of(key, 'o'));
    rig.expect(replay.kind == idem::ClaimKind::completed && replay.result == key.id,
               "a repeat gets the result");
    rig.expect(replay.attempt == 1, "it was acquired once");
}

/// Two requests for different keys, the second where the first may have left half a reply.
void replay(Rig& rig, const idem::Key& key) {
    const auto other = rig.finished_key();
    const auto first = idem::claim_one(rig.gated, Rig::claim_of(key, 'b'));
    if (first.trouble) {
        rig.check(first.trouble);
    } else {
        rig.expect(first.result == key.id, "the first reply is its own");
    }
    const auto second = idem::claim_one(rig.gated, Rig::claim_of(other, 'b'));
    if (second.trouble) {
        rig.check(second.trouble);
    } else {
        rig.expect(second.result == other.id, "the second reply is its own");
    }
    const auto third =
        rig.insist([&] { return idem::claim_one(rig.gated, Rig::claim_of(key, 'b')); });
    rig.expect(third.result == key.id, "and so is the third");
}

/// The whole guarded call, repeated as a client would until it has an answer.
void guarded_call(Rig& rig, const idem::Key& key) {
    std::map<idem::Fence, int> effects;
    std::string first;
    const auto handler = [&](idem::Execution& execution) {
        ++effects[execution.fence()];
        const auto result = key.id + " by " + std::to_string(execution.fence());
        if (first.empty()) first = result;
        return result;
    };
    const auto fingerprint = idem::Fingerprint::of_bytes("request");
    std::string answer;
    for (int tries = 0; tries < 100; ++tries) {
        try {
            const auto outcome = rig.guard.run(key, fingerprint, handler);
            if (outcome.has_value()) {
                rig.expect(answer.empty() || answer == outcome.value(), "each answer is the first");
                answer = outcome.value();
            }
            if (outcome.replayed()) break;  // once more after it was executed
        } catch (const idem::UnavailableError& error) {
            rig.check(idem::Trouble::unavailable(error.what(), error.may_have_applied()));
        } catch (const std::exception& error) {
            rig.expect(false, std::string("another error: ") + error.what());
        }
        if (answer.empty()) rig.gate.reset_all();
    }
    rig.expect(!answer.empty() && answer == first, "the answer is the first result: " + answer);
    rig.expect(effects.size() == 1 && effects.begin()->second == 1,
               "one effect, not " + std::to_string(effects.size()));
    const auto stored = idem::claim_one(rig.direct, Rig::claim_of(key, 'o'));
    rig.expect(stored.kind == idem::ClaimKind::completed && stored.attempt == 1,
               "it is on record, as one attempt");
}

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
idem::Key prepare_claim(Rig& rig) {
    rig.warm_up();
    return Rig::fresh_key();
}
idem::Key prepare_finish(Rig& rig) {
    rig.warm_up();
    auto key = Rig::fresh_key();
    rig.expect(idem::claim_one(rig.direct, Rig::claim_of(key, 'a')).fence > 0, "a claim");
    return key;
}
idem::Key prepare_replay(Rig& rig) {
    rig.warm_up();
    return rig.finished_key();
}
/// Without a connection: startup, the look at the table, and preparing are part of the exchange.
idem::Key prepare_cold(Rig& rig) {
    rig.gated = idem::PostgresStore(rig.options);
    return Rig::fresh_key();
}

/// What the suite tries: all, or some by a seed.
struct Plan {
    bool all = false;
    unsigned seed = std::random_device{}();

    Plan() {
        const char* text = std::getenv("IDEM_GATE_SWEEP");
        all = text != nullptr && std::string_view(text) == "all";
        if (text != nullptr && !all) seed = static_cast<unsigned>(std::stoul(text));
    }
    /// From the first byte to after the last, about `count` of them; 0: every one.
    [[nodiscard]] static std::vector<std::uint64_t> positions(std::uint64_t size,
                                                              std::uint64_t count,
                                                              std::mt19937& random) {
        std::vector<std::uint64_t> out;
        const std::uint64_t step = count == 0 ? 1 : std::max<std::uint64_t>(size / count, 1);
        for (std::uint64_t at = 0; at <= size; at += step)
            out.push_back(std::min(size, at + (at == 0 ? 0 : random() % step)));
        if (out.back() != size) out.push_back(size);
        return out;
    }
};

/// Bytes of an exchange without a fault, each way.
std::map<Way, std::uint64_t> sizes_of(Rig& rig, const Exchange& what) {
    std::map<Way, std::uint64_t> sizes;
    const auto key = what.prepare(rig);
    const auto at_server = rig.gate.bytes(Way::to_server);
    const auto at_client = rig.gate.bytes(Way::to_client);
    what.exchange(rig, key);
    sizes[Way::to_server] = rig.gate.bytes(Way::to_server) - at_server;
    sizes[Way::to_client] = rig.gate.bytes(Way::to_client) - at_client;
    return sizes;
}

/// Tries the exchange with every kind of fault at each position of the plan, several at once: most
/// of the time is spent in waiting for an answer that does not come.
void sweep(PostgresBench& bench, const Exchange& what, std::uint64_t count,
           const std::string& more = "", const std::function<void(Rig&)>& begin = {}) {
    const Plan plan;
    std::mt19937 random(plan.seed);
    Findings findings;
    std::vector<std::unique_ptr<Rig>> rigs;
    for (int i = 0; i < 8; ++i) {
        rigs.push_back(std::make_unique<Rig>(bench, findings, more));
        if (begin) begin(*rigs.back());
    }
    std::vector<GateFault> faults;
    const auto sizes = sizes_of(*rigs.front(), what);
    for (const auto& [way, size] : sizes) {
        for (const GateAct act : {GateAct::reset, GateAct::close, GateAct::swallow})
            for (const auto at : Plan::positions(size, plan.all ? 0 : count, random))
                faults.push_back({.way = way, .act = act, .after = at});
        for (const auto at : Plan::positions(size, plan.all ? 40 : 4, random)) {
            faults.push_back({.way = way, .act = GateAct::vanish, .after = at});
            faults.push_back({.way = way, .act = GateAct::delay, .after = at, .pause = 20ms});
            faults.push_back({.way = way, .act = GateAct::delay, .after = at, .pause = 400ms});
        }
    }
    std::atomic<std::size_t> next{0};
    std::atomic<int> fired{0};
    std::vector<std::thread> threads;
    for (auto& rig : rigs)
        threads.emplace_back([&, &rig = *rig] {
            for (std::size_t i = next++; i < faults.size(); i = next++) {
                const GateFault& fault = faults[i];
                rig.where = what.name + ", " + to_string(fault.act) + " after " +
                            std::to_string(fault.after) +
                            (fault.way == Way::to_server ? " to the server" : " to the client");
                const auto key = what.prepare(rig);
                rig.gate.arm(fault);
                what.exchange(rig, key);
                fired += rig.gate.fired();
                rig.gate.disarm();
            }
        });
    for (auto& thread : threads) thread.join();
    findings.report();
    std::cout << "gate: " << what.name << ", seed " << plan.seed << ", " << faults.size()
              << " faults, " << fired << " struck; " << sizes.at(Way::to_server)
              << " bytes to the server, " << sizes.at(Way::to_client) << " to the client\n";
    CHECK(fired > static_cast<int>(faults.size()) * 9 / 10);
}

PostgresBench make_bench() {
    return PostgresBench(shared_server().conninfo(), shared_server().conninfo());
}

TEST_CASE("PostgreSQL gate: a claim broken at any byte is acquired once, by its owner",
          "[integration][postgres]") {
    auto bench = make_bench();
    sweep(bench, {"claim", prepare_claim, claim}, 40);
}

TEST_CASE("PostgreSQL gate: a finish broken at any byte is recorded once, and is replayed",
          "[integration][postgres]") {
    auto bench = make_bench();
    sweep(bench, {"finish", prepare_finish, finish}, 40);
}

TEST_CASE("PostgreSQL gate: after a reply broken at any byte the next reply is its own",
          "[integration][postgres]") {
    auto bench = make_bench();
    sweep(bench, {"replay", prepare_replay, replay}, 40);
}

TEST_CASE("PostgreSQL gate: a guarded call broken at any byte has one effect and one answer",
          "[integration][postgres]") {
    auto bench = make_bench();
    sweep(bench, {"guarded call", prepare_claim, guarded_call}, 40);
}

TEST_CASE("PostgreSQL gate: a claim on a new connection, broken at any byte, is acquired once",
          "[integration][postgres]") {
    auto bench = make_bench();
    sweep(bench, {"cold claim", prepare_cold, claim}, 25);
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
    sweep(bench, {"claim with COMMIT", prepare_claim, claim}, 25, more, learn);
    sweep(bench, {"finish with COMMIT", prepare_finish, finish}, 25, more, learn);
}

TEST_CASE("PostgreSQL gate: a transaction broken at any byte is there whole or not at all",
          "[integration][postgres][transaction]") {
    auto bench = make_bench();
    bench.sql()("CREATE TABLE " + bench.schema() + ".made (id text, n text)");
    sweep(bench, {"transaction", prepare_transaction, transaction}, 40);
}

}  // namespace
