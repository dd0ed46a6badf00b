#ifndef IDEM_TESTS_SUPPORT_GATE_SWEEP_HPP
#define IDEM_TESTS_SUPPORT_GATE_SWEEP_HPP

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <idem/guard.hpp>

#include "support/catch.hpp"
#include "support/eventually.hpp"
#include "support/requests.hpp"
#include "support/tcp_gate.hpp"

/// Breaks the way to a real server after any byte of an exchange, in both directions, and asks
/// after each break: one effect for each key, the first result for each repeat, typed trouble in
/// time, and no reply that was another's.
namespace idem_test {

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

/// One gate before the server, and a store of one connection that goes through it. `direct` does
/// not, and says how things stand. The password in the way through the gate is `secret`.
template <class Store>
class GateRig {
public:
    /// Of one connection, impatient, to a port of this machine.
    using MakeStore = std::function<Store(int port)>;

    GateRig(int server_port, MakeStore make_gated, Store direct_store, Findings& findings)
        : gate(server_port),
          gated(make_gated(gate.port())),
          direct(std::move(direct_store)),
          guard(gated, {.lease = std::chrono::seconds{60}, .wait = std::chrono::seconds{2}}),
          make_gated_(std::move(make_gated)),
          findings_(findings) {}

    [[nodiscard]] static idem::Key fresh_key() {
        static std::atomic<int> count{0};
        return {"gate", std::to_string(++count)};
    }
    [[nodiscard]] static idem::ClaimRequest claim_of(const idem::Key& key, char owner) {
        auto out = idem_test::claim_of(key, static_cast<std::uint64_t>(owner));
        out.fingerprint = idem::Fingerprint::of_bytes("request");
        out.lease = std::chrono::seconds{60};
        return out;
    }
    [[nodiscard]] static idem::FinishRequest complete_of(const idem::ClaimRequest& claim,
                                                         idem::Fence fence) {
        return idem_test::complete_of(claim, fence, claim.key.id);  // no two keys have the same
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
    /// Leaves none: the next exchange begins with connecting.
    void cool_down() { gated = make_gated_(gate.port()); }

    /// The same request until it is answered. Whatever else comes must be typed and in time.
    template <class Ask>
    [[nodiscard]] auto insist(Ask&& ask, const std::function<void()>& after_trouble = {}) {
        bool doubt = false;  // of this try or one before it
        for (int tries = 1;; ++tries) {
            const auto from = idem::LocalClock::now();
            auto reply = ask();
            // On a busy machine.
            expect(idem::LocalClock::now() - from < std::chrono::seconds{30}, "it came late");
            if (!reply.trouble || tries == 20) return reply;
            check(reply.trouble);
            doubt = doubt || reply.trouble.may_have_applied;
            if (!doubt && after_trouble) after_trouble();
            gate.reset_all();  // of what vanished; a kernel would do it after a quarter of an hour
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
    Store gated;
    Store direct;
    idem::IdempotencyGuard<Store> guard;
    std::string where{"at first"};

private:
    MakeStore make_gated_;
    Findings& findings_;
    std::optional<idem::Key> known_{};
};

/// One exchange with a fault in it: `prepare`, then the fault is armed, then `run`.
template <class Rig>
struct Exchange {
    std::string name;
    std::function<idem::Key(Rig&)> prepare;
    std::function<void(Rig&, const idem::Key&)> run;
};

/// The exchanges that every store has.
namespace exchange {

template <class Rig>
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

template <class Rig>
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
template <class Rig>
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
template <class Rig>
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
    const auto stored =
        rig.insist([&] { return idem::claim_one(rig.direct, Rig::claim_of(key, 'o')); });
    rig.expect(stored.kind == idem::ClaimKind::completed && stored.attempt == 1,
               std::string("it is on record, as one attempt, not ") + to_string(stored.kind) + " " +
                   std::to_string(stored.attempt));
}

template <class Rig>
idem::Key prepare_claim(Rig& rig) {
    rig.warm_up();
    return Rig::fresh_key();
}
template <class Rig>
idem::Key prepare_finish(Rig& rig) {
    rig.warm_up();
    auto key = Rig::fresh_key();
    rig.expect(idem::claim_one(rig.direct, Rig::claim_of(key, 'a')).fence > 0, "a claim");
    return key;
}
template <class Rig>
idem::Key prepare_replay(Rig& rig) {
    rig.warm_up();
    return rig.finished_key();
}
/// Without a connection: all that goes before the first request is part of the exchange.
template <class Rig>
idem::Key prepare_cold(Rig& rig) {
    rig.cool_down();
    return Rig::fresh_key();
}

}  // namespace exchange

/// What the suite tries: all, or some by a seed, as IDEM_GATE_SWEEP says.
struct SweepPlan {
    bool all = false;
    unsigned seed = std::random_device{}();

    SweepPlan() {
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
    /// Every kind of fault, each way, for an exchange of so many bytes each way.
    [[nodiscard]] std::vector<GateFault> faults(const std::map<Direction, std::uint64_t>& sizes,
                                                std::uint64_t count) const {
        using std::chrono::milliseconds;
        std::mt19937 random(seed);
        std::vector<GateFault> out;
        for (const auto& [way, size] : sizes) {
            for (const GateAct act : {GateAct::reset, GateAct::close, GateAct::swallow})
                for (const auto at : positions(size, all ? 0 : count, random))
                    out.push_back({.way = way, .act = act, .after = at});
            for (const auto at : positions(size, all ? 40 : 4, random)) {
                out.push_back({.way = way, .act = GateAct::vanish, .after = at});
                for (const auto pause : {milliseconds{20}, milliseconds{400}})
                    out.push_back({.way = way, .act = GateAct::delay, .after = at, .pause = pause});
            }
        }
        return out;
    }
};

/// Bytes of an exchange without a fault, each way: the least of a few, as one may have met with a
/// connection that the background made, or with a retry.
template <class Rig>
std::map<Direction, std::uint64_t> sizes_of(Rig& rig, const Exchange<Rig>& what) {
    std::map<Direction, std::uint64_t> sizes;
    for (int time = 0; time < 4; ++time) {
        const auto key = what.prepare(rig);
        const std::map<Direction, std::uint64_t> before = {
            {Direction::to_server, rig.gate.bytes(Direction::to_server)},
            {Direction::to_client, rig.gate.bytes(Direction::to_client)}};
        what.run(rig, key);
        for (const auto& [way, at] : before) {
            const auto size = rig.gate.bytes(way) - at;
            sizes[way] = time == 0 ? size : std::min(sizes[way], size);
        }
    }
    return sizes;
}

/// Tries the exchange with every kind of fault at about `count` positions each way (0: at every
/// one), several at once: most of the time is spent in waiting for an answer that does not come.
template <class Rig>
void sweep(const std::vector<std::unique_ptr<Rig>>& rigs, Findings& findings,
           const Exchange<Rig>& what, std::uint64_t count) {
    const SweepPlan plan;
    const auto sizes = sizes_of(*rigs.front(), what);
    const auto faults = plan.faults(sizes, count);
    std::atomic<std::size_t> next{0};
    std::atomic<int> fired{0};
    std::vector<std::jthread> threads;
    for (auto& rig : rigs)
        threads.emplace_back([&, &rig = *rig] {
            for (std::size_t i = next++; i < faults.size(); i = next++) {
                const GateFault& fault = faults[i];
                rig.where =
                    what.name + ", " + to_string(fault.act) + " after " +
                    std::to_string(fault.after) +
                    (fault.way == Direction::to_server ? " to the server" : " to the client");
                const auto key = what.prepare(rig);
                rig.gate.arm(fault);
                what.run(rig, key);
                fired += rig.gate.fired();
                rig.gate.disarm();
            }
        });
    for (auto& thread : threads) thread.join();
    // What could not be recorded at once is, now that the way is free; nothing outlives the test.
    for (const auto& rig : rigs)
        CHECK(eventually([&] { return rig->guard.health().unrecorded == 0; }));
    findings.report();
    std::cout << "gate: " << what.name << ", seed " << plan.seed << ", " << faults.size()
              << " faults, " << fired << " struck; " << sizes.at(Direction::to_server)
              << " bytes to the server, " << sizes.at(Direction::to_client) << " to the client\n";
    CHECK(fired > static_cast<int>(faults.size()) * 9 / 10);
}

}  // namespace idem_test

#endif
