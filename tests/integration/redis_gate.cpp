// The way to a real Redis, broken in the middle of an exchange, in both directions; the promises
// are those of support/gate_sweep.hpp. A claim and a finish are broken after every byte, the longer
// ones after some, by a seed that is printed. All: IDEM_GATE_SWEEP=all. The same:
// IDEM_GATE_SWEEP=<seed>.

#include <memory>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/gate_sweep.hpp"
#include "support/redis_requests.hpp"

namespace redis_gate_test {

using namespace std::chrono_literals;
using idem_test::Exchange;
using idem_test::Findings;
using idem_test::RedisServer;
using Rig = idem_test::GateRig<idem::RedisStore>;
namespace exchange = idem_test::exchange;

constexpr std::uint64_t every_byte = 0;

void sweep(const Exchange<Rig>& what, std::uint64_t count, bool look_first = false) {
    RedisServer server({"--requirepass", "secret"});
    const auto make = [look_first](int port) {
        auto options =
            idem_test::options_for("redis://:secret@127.0.0.1:" + std::to_string(port), "gate:");
        options.connections = 1;
        options.connect_timeout = 2s;
        options.command_timeout = 250ms;
        options.time_allowed = 3s;
        options.look_first = look_first;
        return idem::RedisStore(options);
    };
    Findings findings;
    std::vector<std::unique_ptr<Rig>> rigs;
    for (int i = 0; i < 8; ++i)
        rigs.push_back(std::make_unique<Rig>(server.port(), make, make(server.port()), findings));
    rigs.front()->warm_up();  // brings the scripts, which would be a part of its sizes
    idem_test::sweep(rigs, findings, what, count);
    idem_test::RedisCli cli("redis://:secret@127.0.0.1:" + std::to_string(server.port()));
    CHECK(idem_test::without_ttl(cli) == "");
}

TEST_CASE("Redis gate: a claim broken at any byte is acquired once, by its owner (R109)",
          "[integration][redis]") {
    sweep({"claim", exchange::prepare_claim<Rig>, exchange::claim<Rig>}, every_byte);
}

TEST_CASE("Redis gate: a finish broken at any byte is recorded once, and is replayed",
          "[integration][redis]") {
    sweep({"finish", exchange::prepare_finish<Rig>, exchange::finish<Rig>}, every_byte);
}

TEST_CASE("Redis gate: after a reply broken at any byte the next reply is its own",
          "[integration][redis]") {
    sweep({"replay", exchange::prepare_replay<Rig>, exchange::replay<Rig>}, 40);
    sweep({"replay by a look", exchange::prepare_replay<Rig>, exchange::replay<Rig>}, 40, true);
}

TEST_CASE("Redis gate: a guarded call broken at any byte has one effect and one answer",
          "[integration][redis]") {
    sweep({"guarded call", exchange::prepare_claim<Rig>, exchange::guarded_call<Rig>}, 60);
}

TEST_CASE("Redis gate: a claim on a new connection, broken at any byte, is acquired once",
          "[integration][redis]") {
    sweep({"cold claim", exchange::prepare_cold<Rig>, exchange::claim<Rig>}, 60);
}

}  // namespace redis_gate_test
