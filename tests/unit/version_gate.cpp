// Goal: the versions of a stream land in rising order, each once, and never below one that is half
// done. Method: the promises that every store keeps, on the embedded one.

#include <chrono>
#include <string>
#include <utility>

#include <idem/memory/store.hpp>
#include <idem/version_gate.hpp>

#include "support/catch.hpp"
#include "support/layered_world.hpp"
#include "support/version_promises.hpp"

using namespace idem_test;
using namespace std::chrono_literals;

namespace version_gate_test {

TEST_CASE("memory: a version gate keeps its promises", "[versions]") {
    MemoryWorld world;
    gates_keep_their_promises(world);
}

TEST_CASE("options of a gate and versions that cannot work are refused, by name", "[versions]") {
    const idem::MemoryStore store;
    const auto names = [&](idem::GateOptions options, const char* name) {
        try {
            (void)idem::VersionGate(store, std::move(options));
        } catch (const idem::UsageError& e) {
            return std::string(e.what()).find(name) != std::string::npos;
        }
        return false;
    };
    CHECK(names({.lease = 0s}, "GateOptions::lease"));
    CHECK(names({.lease = 1ms}, "GateOptions::lease"));
    CHECK(names({.retention = -1s}, "GateOptions::retention"));
    CHECK(names({.wait = -1s}, "GateOptions::wait"));
    int runs = 0;
    const auto run = [&] { ++runs; };
    idem::VersionGate gate(store);
    CHECK_THROWS_AS(gate.offer(asset, EncoderVersion{.rank = 1}, run), idem::UsageError);
    CHECK_THROWS_AS(gate.offer({""}, numbered(1), run), idem::UsageError);
    CHECK(runs == 0);
}

}  // namespace version_gate_test
