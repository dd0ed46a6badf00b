// Every state that a few callers and a bad network can bring one key into, on the pure protocol.
//
// Goal: no order of messages, losses, copies, delays, lapses, crashes, forgets and clock jumps
// breaks what the contract promises. Method: depth-first over states, each visited once (128 bits
// of hash stand for a state). Time moves in ticks of half a lease.
//
// A request that was sent stays in the network for ever: delivered at any moment, never, or again;
// its answer is heard or not. (An answer that is heard late is one that was heard at once by a
// caller that then stood still.)
// Bounds: callers and operations (messages sent) as each case says, and a budget for each kind of
// trouble, so that a case takes less than a minute on one core. IDEM_SIMULATION_BOUND=n adds n to
// the operations of each caller; one more is about ten times the states.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <idem/protocol.hpp>

#include "support/catch.hpp"

namespace {

using namespace idem;

constexpr Duration tick = std::chrono::seconds{30};
constexpr int lease_ticks = 2;
constexpr int retention_ticks = 20;
constexpr std::size_t callers_max = 3;
constexpr std::size_t bag_max = 24;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
constexpr bool thin = true;  // ten times slower, so one operation less: a tenth of the states
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool thin = true;
#else
constexpr bool thin = false;
#endif
#else
constexpr bool thin = false;
#endif

Instant at(int ticks) {
    return Instant(tick * ticks);
}

enum class Phase : std::uint8_t { idle, claiming, holding, ran, finishing };
enum class What : std::uint8_t { claim, renew, complete, release, quarantine };
constexpr const char* names[] = {"claim", "renew", "complete", "release", "quarantine"};

struct Message {
    What what = What::claim;
    std::uint8_t caller = 0;
    std::uint8_t owner = 0;
    std::uint8_t sent = 0;    // real time of the request
    std::uint8_t result = 0;  // brought by a complete, or told by a completed claim
    bool counted = true;
    bool good = false;  // of a reply: acquired, or not lost
    bool verify = false;
    Fence fence = 0;
};

struct Caller {
    Phase phase = Phase::idle;
    std::uint8_t ops = 0;
    std::uint8_t owner = 0;
    std::uint8_t lease_end = 0;  // by the local clock, counted from before the request was sent
    std::uint8_t result = 0;
    bool verify = false;
    What finishing = What::complete;
    Fence fence = 0;
};

struct Bounds {
    std::size_t callers = 2;
    std::uint8_t ops = 5;
    std::uint8_t ticks = 2;
    std::uint8_t copies = 0;
    std::uint8_t crashes = 0;
    std::uint8_t forgets = 0;
    std::uint8_t people = 0;
    std::uint8_t reaps = 0;
    std::uint8_t expiries = 0;
    std::uint8_t jumps = 0;
    Policy policy{};
    bool can_verify = true;
    bool other_request = false;  // the last caller brings another fingerprint
};

struct State_ {
    std::optional<RecordHeader> record{};
    std::uint8_t result = 0;  // the payload: which effect's result
    std::uint8_t now = 50;    // the store's clock, in ticks
    std::uint8_t real = 50;   // the callers'
    std::uint8_t effects = 0;
    std::uint8_t handovers = 0;  // times a vanished holder's claim went on by rerun
    bool excused = false;        // forget, end of retention or a jump: the contract names these
    bool purged = false;
    std::uint8_t owners = 0;      // drawn so far
    std::uint8_t last_owner = 0;  // the last one to whom the key was given
    Fence highest = 0;
    std::uint8_t ticks = 0, copies = 0, crashes = 0, forgets = 0, people = 0, reaps = 0,
                 expiries = 0, jumps = 0;
    std::array<Caller, callers_max> callers{};
    std::array<Message, bag_max> bag{};
    std::uint8_t in_bag = 0;
};

struct Hash128 {
    std::uint64_t low = 0x9E3779B97F4A7C15U;
    std::uint64_t high = 0xC2B2AE3D27D4EB4FU;

    void add(std::uint64_t value) {
        low = (low ^ value) * 0xFF51AFD7ED558CCDU;
        low ^= low >> 32U;
        high = (high + value) * 0xC4CEB9FE1A85EC53U;
        high ^= high >> 29U;
    }
    friend bool operator==(const Hash128&, const Hash128&) = default;
};
std::uint64_t pack(std::initializer_list<std::uint64_t> bytes) {
    std::uint64_t out = 0;
    for (const auto byte : bytes) out = out << 8U | (byte & 0xFFU);
    return out;
}

// Two states that differ only in names (of owners, fences, callers) or in times that can no longer
// matter are one state.
class Canonical {
public:
    Canonical(const State_& s, const Bounds& b) : s_(s), b_(b) {
        for (std::size_t i = 0; i < callers_max; ++i) order_[i] = place_[i] = i;
        if (!b.other_request)
            std::sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(b.callers),
                      [&](std::size_t x, std::size_t y) { return shape_of(x) < shape_of(y); });
        for (std::size_t i = 0; i < callers_max; ++i) place_[order_[i]] = i;
        fences_[fence_count_++] = 0;
        add_fence(s.highest);
        if (s.record) add_fence(s.record->fence);
        for (const auto& c : s.callers) add_fence(c.fence);
        for (std::size_t i = 0; i < s.in_bag; ++i) add_fence(s.bag[i].fence);
        std::sort(fences_.begin(), fences_.begin() + static_cast<std::ptrdiff_t>(fence_count_));
    }

    [[nodiscard]] Hash128 hash() {
        Hash128 hash;
        const bool clocks_apart = b_.jumps > 0;
        hash.add(pack({s_.result, s_.effects, b_.policy.orphan == Orphan::rerun ? s_.handovers : 0U,
                       static_cast<std::uint64_t>(s_.excused) * 2 + s_.purged, s_.ticks, s_.crashes,
                       s_.forgets}));
        hash.add(pack({s_.people, s_.reaps, s_.expiries, s_.jumps, s_.record.has_value(),
                       rank(s_.highest), clocks_apart ? s_.now : 0U, s_.in_bag}));
        hash.add(pack({s_.copies, name(s_.last_owner)}));
        for (std::size_t i = 0; clocks_apart && i < fence_count_; ++i) hash.add(fences_[i]);
        add_record(hash);
        for (std::size_t i = 0; i < b_.callers; ++i) {
            const Caller& c = s_.callers[order_[i]];
            hash.add(shape_of(order_[i]));
            hash.add(pack({name(c.owner), rank(c.fence)}));
        }
        std::array<std::uint64_t, bag_max> messages{};  // a bag has no order
        for (std::size_t i = 0; i < s_.in_bag; ++i) messages[i] = message(s_.bag[i]);
        std::sort(messages.begin(), messages.end());
        for (const auto m : messages) hash.add(m);
        return hash;
    }

private:
    void add_fence(Fence fence) {
        for (std::size_t i = 0; i < fence_count_; ++i)
            if (fences_[i] == fence) return;
        fences_[fence_count_++] = fence;
    }
    [[nodiscard]] std::uint64_t rank(Fence fence) const {
        std::uint64_t i = 0;
        while (fences_[i] != fence) ++i;
        return i;
    }
    [[nodiscard]] std::uint64_t name(std::uint8_t owner) {
        if (owner == 0) return 0;
        for (std::uint8_t i = 0; i < owner_count_; ++i)
            if (owners_[i] == owner) return i + 1U;
        owners_[owner_count_++] = owner;
        return owner_count_;
    }
    [[nodiscard]] std::uint64_t age(std::uint8_t sent) const {
        return static_cast<std::uint64_t>(std::min(s_.real - sent, lease_ticks));
    }
    [[nodiscard]] std::uint64_t shape_of(std::size_t caller) const {
        const Caller& c = s_.callers[caller];
        const int left = std::max(0, c.lease_end - s_.real);
        return pack({static_cast<unsigned>(c.phase), c.ops, static_cast<std::uint64_t>(left),
                     c.result, c.verify, static_cast<unsigned>(c.finishing)});
    }
    [[nodiscard]] std::uint64_t message(const Message& m) {
        Hash128 hash;
        hash.add(pack({m.counted, static_cast<unsigned>(m.what), place_[m.caller], name(m.owner),
                       age(m.sent), m.result, static_cast<std::uint64_t>(m.good) * 2 + m.verify,
                       rank(m.fence)}));
        return hash.low;
    }
    void add_record(Hash128& hash) {
        if (!s_.record) return;
        const RecordHeader& r = *s_.record;
        const int slack = b_.jumps > 0 ? 10 : 0;
        const auto left = [&](Instant end, int most) {
            const auto ticks = static_cast<int>((end - at(s_.now)) / tick);
            return static_cast<std::uint64_t>(std::clamp(ticks, -slack, most) + slack);
        };
        const int ticks_left = b_.ticks - s_.ticks + 1 + slack;  // further than that, all is one
        const bool counts = r.policy.max_attempts != 0;
        hash.add(pack({static_cast<unsigned>(r.state), r.verify, counts ? r.attempt : 0U,
                       r.policy.max_crashes != 0 ? r.crashes : 0U,
                       name(static_cast<std::uint8_t>(r.owner.bytes[0])), rank(r.fence),
                       r.state == State::running ? left(r.lease_end, ticks_left) : 0U,
                       left(r.retention_end, ticks_left)}));
        if (b_.other_request)
            hash.add(pack(
                {r.fingerprint.present(), static_cast<unsigned char>(r.fingerprint.digest()[0])}));
    }

    const State_& s_;
    const Bounds& b_;
    std::array<std::size_t, callers_max> order_{};
    std::array<std::size_t, callers_max> place_{};
    std::array<Fence, callers_max + bag_max + 3> fences_{};
    std::size_t fence_count_ = 0;
    std::array<std::uint8_t, callers_max + bag_max + 2> owners_{};
    std::uint8_t owner_count_ = 0;
};

// An open-addressing set: nothing but the hashes, for there are many.
class SeenSet {
public:
    bool insert(const Hash128& hash) {
        if (2 * ++count_ > slots_.size()) grow();
        if (place(hash)) return true;
        --count_;
        return false;
    }

private:
    bool place(const Hash128& hash) {
        for (std::size_t at = hash.low;; ++at) {
            Hash128& slot = slots_[at & (slots_.size() - 1)];
            if (slot == hash) return false;
            if (!(slot == Hash128{0, 0})) continue;
            slot = hash;
            return true;
        }
    }
    void grow() {
        std::vector<Hash128> old(slots_.size() * 2, Hash128{0, 0});
        old.swap(slots_);
        for (const auto& hash : old)
            if (!(hash == Hash128{0, 0})) place(hash);
    }

    std::vector<Hash128> slots_ = std::vector<Hash128>(1024, Hash128{0, 0});
    std::size_t count_ = 0;
};

struct Violation final : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Counts {
    std::uint64_t states = 0, transitions = 0, lapses = 0, takeovers = 0, verifications = 0,
                  lost = 0, delayed = 0, copied = 0, stale = 0, replays = 0, held = 0, reaps = 0,
                  crashes = 0, effects = 0, repeats = 0, mismatches = 0, forgets = 0, expiries = 0,
                  jumps = 0, resolved = 0, dead = 0;
};

class Search {
public:
    explicit Search(Bounds bounds) : b_(bounds) {}

    void run() {
        int more = thin ? -1 : 0;
        if (const char* bound = std::getenv("IDEM_SIMULATION_BOUND")) more = std::atoi(bound);
        b_.ops = static_cast<std::uint8_t>(std::max(1, b_.ops + more));
        State_ start;
        for (std::size_t i = 0; i < b_.callers; ++i) start.callers[i].ops = b_.ops;
        visit(start);
    }

    Counts counts{};
    [[nodiscard]] int ops() const { return b_.ops; }

private:
    // --- the search -----------------------------------------------------------------------------

    void visit(const State_& s) {
        if (!seen_.insert(Canonical(s, b_).hash())) return;
        ++counts.states;
        if (s.record && protocol::stands(&*s.record, at(s.now)) &&
            protocol::lapsed(*s.record, at(s.now)))
            ++counts.lapses;
        for (std::size_t i = 0; i < b_.callers; ++i) caller_moves(s, i);
        network_moves(s);
        time_moves(s);
        other_moves(s);
    }

    template <class Change>
    void step(const State_& before, std::string_view name, std::size_t which, Change&& change) {
        State_ s = before;
        trace_.emplace_back(name, which);
        ++counts.transitions;
        try {
            change(s);
            drop_dead(s);
            check(before, s, name == "forget");
        } catch (const Violation& violation) {
            if (reported_) throw;
            reported_ = true;
            throw Violation(std::string(violation.what()) + "\n" + trace());
        }
        visit(s);
        trace_.pop_back();
    }

    std::string trace() const {
        std::string out;
        for (const auto& [name, which] : trace_)
            out += "  " + std::string(name) + " " + std::to_string(which) + "\n";
        return out;
    }

    static void demand(bool holds, const char* promise) {
        if (!holds) throw Violation(promise);
    }

    // --- what must hold between any two states ---------------------------------------------------

    static void check(const State_& before, const State_& after, bool forget) {
        // A key that kills its holders ends as a dead letter, or held.
        if (after.record &&
            (after.record->state == State::running || after.record->state == State::released))
            demand(after.record->policy.max_crashes == 0 ||
                       after.record->crashes < after.record->policy.max_crashes,
                   "crashes are at the cap and the key goes on");
        // No lost result: a success within its retention stays, unless somebody forgets it.
        if (!before.record || before.record->state != State::succeeded || forget) return;
        if (!protocol::stands(&*before.record, at(after.now))) return;
        demand(after.record && after.record->state == State::succeeded, "a success disappeared");
        demand(after.result == before.result, "a result changed");
    }

    static bool stands_for(const State_& s, const Caller& c) {
        return s.record && protocol::stands(&*s.record, at(s.now)) &&
               s.record->state == State::running && s.record->owner == owner(c.owner) &&
               s.record->fence == c.fence;
    }

    // The handler's effect on the outside world, at one moment within the lease by local clock.
    void effect(State_& s, std::size_t i) const {
        Caller& c = s.callers[i];
        demand(s.excused || stands_for(s, c), "somebody acts whom the store would not hear");
        if (c.verify && s.effects > 0) {  // the callback finds that it has happened
            c.result = s.effects;
        } else {
            c.result = ++s.effects;
            const int allowed = 1 + (b_.policy.orphan == Orphan::rerun ? s.handovers : 0);
            demand(s.excused || s.effects <= allowed, "a repeat that the contract does not name");
        }
        c.phase = Phase::ran;
    }

    // --- moves of a caller -----------------------------------------------------------------------

    static Owner owner(std::uint8_t id) {
        Owner out;
        out.bytes[0] = static_cast<char>(id);
        return out;
    }

    static bool same(const Message& a, const Message& b) {
        return a.what == b.what && a.caller == b.caller && a.owner == b.owner &&
               a.result == b.result && a.counted == b.counted && a.good == b.good &&
               a.verify == b.verify && a.fence == b.fence;
    }
    // A later copy of a message allows all that the earlier one does, and more time.
    static void put(State_& s, const Message& message) {
        for (std::size_t m = 0; m < s.in_bag; ++m) {
            if (!same(s.bag[m], message)) continue;
            s.bag[m].sent = std::max(s.bag[m].sent, message.sent);
            return;
        }
        if (s.in_bag == bag_max) throw std::logic_error("the bag is too small for these bounds");
        s.bag[s.in_bag++] = message;
    }

    static void send(State_& s, std::size_t i, What what, bool counted = true) {
        Caller& c = s.callers[i];
        --c.ops;
        Message m;
        m.what = what;
        m.caller = static_cast<std::uint8_t>(i);
        m.owner = c.owner;
        m.sent = s.real;
        m.counted = counted;
        m.fence = c.fence;
        if (what == What::complete) m.result = c.result;
        put(s, m);
    }
    // While a request is on its way, to repeat it is something new only later, when its answer is
    // good for longer.
    static bool repeats_usefully(const State_& s, const Caller& c, What what) {
        for (std::size_t m = 0; m < s.in_bag; ++m) {
            const Message& sent = s.bag[m];
            if (sent.owner == c.owner && sent.what == what) return sent.sent < s.real;
        }
        return true;
    }

    void caller_moves(const State_& s, std::size_t i) {
        const Caller& c = s.callers[i];
        const bool can_send = c.ops > 0;
        const bool held = s.real < c.lease_end;
        if (c.phase > Phase::claiming && s.crashes < b_.crashes) {
            step(s, "crash of caller", i, [&](State_& n) {
                ++n.crashes;
                ++counts.crashes;
                stop(n, i);
            });
        }
        if (c.phase == Phase::idle && can_send)
            step(s, "claim by caller", i, [&](State_& n) { first_claim(n, i); });
        if (c.phase == Phase::claiming && can_send) {
            if (repeats_usefully(s, c, What::claim))
                step(s, "claim again by caller", i, [&](State_& n) { send(n, i, What::claim); });
            step(s, "give up, caller", i, [&](State_& n) {
                send(n, i, What::release, false);
                stop(n, i);
            });
        }
        if (c.phase == Phase::holding && held)
            step(s, "effect of caller", i, [&](State_& n) {
                ++counts.effects;
                effect(n, i);
                if (n.effects > 1) ++counts.repeats;
            });
        if (c.phase == Phase::holding && can_send) {
            if (repeats_usefully(s, c, What::renew))
                step(s, "renew by caller", i, [&](State_& n) { send(n, i, What::renew); });
            if (!c.verify)
                step(s, "release by caller", i, [&](State_& n) { finish(n, i, What::release); });
        }
        if ((c.phase == Phase::ran || c.phase == Phase::finishing) && can_send) {
            if (c.phase == Phase::ran)
                step(s, "complete by caller", i, [&](State_& n) { finish(n, i, What::complete); });
            if (c.phase == Phase::ran || c.finishing == What::complete)
                step(s, "quarantine by caller", i,
                     [&](State_& n) { finish(n, i, What::quarantine); });
        }
    }

    void stop(State_& s, std::size_t i) {
        Caller& c = s.callers[i];
        for (std::size_t m = 0; m < s.in_bag; ++m)
            if (s.bag[m].owner == c.owner) ++counts.lost;
        const auto ops = c.ops;
        c = Caller{};
        c.ops = ops;
    }
    static void first_claim(State_& s, std::size_t i) {
        Caller& c = s.callers[i];
        c.owner = ++s.owners;
        c.phase = Phase::claiming;
        send(s, i, What::claim);
    }
    static void finish(State_& s, std::size_t i, What what) {
        send(s, i, what);
        s.callers[i].phase = Phase::finishing;
        s.callers[i].finishing = what;
    }

    // --- moves of the network --------------------------------------------------------------------

    void network_moves(const State_& s) {
        for (std::size_t m = 0; m < s.in_bag; ++m) {
            const Message message = s.bag[m];
            const bool awaited = waits(s, message);
            for (const bool copied : {false, true}) {
                if (copied && s.copies == b_.copies) continue;
                for (const bool heard : {true, false}) {
                    if (heard && !awaited) continue;
                    step(s, label(message, heard), message.caller, [&](State_& n) {
                        if (n.real > message.sent) ++counts.delayed;
                        if (!heard && awaited) ++counts.lost;
                        if (copied) {
                            ++n.copies, ++counts.copied;
                        } else {
                            take(n, m);
                        }
                        const auto answer = handle(n, message);
                        if (heard) receive(n, answer);
                    });
                }
            }
        }
    }

    static void take(State_& s, std::size_t m) {
        s.bag[m] = s.bag[s.in_bag - 1U];
        s.bag[--s.in_bag] = Message{};
    }

    static std::string_view label(const Message& m, bool heard) {
        static const std::vector<std::string> labels = [] {
            std::vector<std::string> out;
            for (const auto* and_then : {", unheard, of caller", " of caller"})
                for (const auto* name : names)
                    out.push_back("the store gets the " + std::string(name) + and_then);
            return out;
        }();
        return labels[(heard ? 5U : 0U) + static_cast<std::size_t>(m.what)];
    }

    static bool waits(const State_& s, const Message& m) {
        const Caller& c = s.callers[m.caller];
        if (c.owner != m.owner) return false;
        if (m.what == What::claim) return c.phase == Phase::claiming;
        if (m.what == What::renew) return c.phase == Phase::holding || c.phase == Phase::ran;
        return c.phase == Phase::finishing && c.finishing == m.what;
    }

    // A request whose fence the record has left behind can never again change anything; a release
    // may still leave something where the record is removed.
    void drop_dead(State_& s) const {
        for (std::size_t m = s.in_bag; m-- > 0;) {
            const Message& r = s.bag[m];
            if (s.record && r.what != What::claim && r.what != What::release &&
                r.fence < s.record->fence && b_.jumps == 0)
                take(s, m);
        }
    }

    void receive(State_& s, const Message& m) {
        Caller& c = s.callers[m.caller];
        const auto local_end = static_cast<std::uint8_t>(m.sent + lease_ticks);
        if (!m.good) return stop(s, m.caller);
        if (m.what == What::claim) {
            c.phase = Phase::holding;
            c.fence = m.fence;
            c.verify = m.verify;
            c.lease_end = local_end;
        } else if (m.what == What::renew) {
            c.lease_end = std::max(c.lease_end, local_end);
        } else {
            stop(s, m.caller);
        }
    }

    // --- the store -------------------------------------------------------------------------------

    Message handle(State_& s, const Message& m) {
        Message reply = m;
        if (m.what == What::claim) {
            handle_claim(s, m, reply);
        } else if (m.what == What::renew) {
            handle_renew(s, m, reply);
        } else {
            handle_finish(s, m, reply);
        }
        return reply;
    }

    static const RecordHeader* found(const State_& s) { return s.record ? &*s.record : nullptr; }

    void handle_claim(State_& s, const Message& m, Message& reply) {
        ClaimRequest request;
        request.owner = owner(m.owner);
        const bool other = b_.other_request && m.caller + 1U == b_.callers;
        static const Fingerprint prints[] = {Fingerprint::of_bytes("P"),
                                             Fingerprint::of_bytes("Q")};
        request.fingerprint = prints[other ? 1 : 0];
        request.policy = b_.policy;
        request.can_verify = b_.can_verify;
        request.lease = tick * lease_ticks;
        request.retention = request.held_retention = tick * retention_ticks;
        const auto answer = protocol::claim(found(s), request, at(s.now));
        const bool mine = s.record && s.record->owner == request.owner &&
                          s.record->state == State::running &&
                          protocol::stands(&*s.record, at(s.now));
        reply.good = answer.kind == ClaimKind::acquired;
        if (mine && !other_print(s, request.fingerprint))
            demand(reply.good && answer.record.fence == s.record->fence &&
                       answer.record.crashes == s.record->crashes,
                   "a claim whose answer was lost is not answered as before");
        if (answer.kind != ClaimKind::stale && other_print(s, request.fingerprint))
            demand(answer.kind == ClaimKind::mismatch, "another request is no mismatch");
        counts.stale += answer.kind == ClaimKind::stale;
        counts.mismatches += answer.kind == ClaimKind::mismatch;
        counts.held += answer.kind == ClaimKind::unknown;
        counts.dead += answer.kind == ClaimKind::failed;
        if (answer.kind == ClaimKind::completed) {
            ++counts.replays;
            demand(s.result != 0, "a replay without a result");
        }
        if (reply.good) {
            reply.fence = answer.record.fence;
            reply.verify = answer.record.verify;
            if (!mine) grant(s, m.owner, answer);
        }
        if (answer.change.write) s.record = answer.record;
        if (answer.change.write && answer.change.result == protocol::Part::clear) s.result = 0;
    }

    // Whether the record says that another request is under way or settled.
    static bool other_print(const State_& s, const Fingerprint& print) {
        if (!s.record || !protocol::stands(&*s.record, at(s.now))) return false;
        const bool correctable = s.record->state == State::forgotten ||
                                 (s.record->state == State::released && !s.record->verify);
        return !correctable && s.record->fingerprint.present() && s.record->fingerprint != print;
    }

    void grant(State_& s, std::uint8_t owner, const protocol::ClaimAnswer& answer) {
        demand(owner != s.last_owner || !s.record || !protocol::stands(&*s.record, at(s.now)),
               "a claim that had ended came back to life");
        s.last_owner = owner;
        // Fences grow with every acquisition, across expiry as far as the store's clock does.
        demand(answer.record.fence > s.highest || (s.purged && s.jumps > 0),
               "a fence did not grow");
        s.highest = std::max(s.highest, answer.record.fence);
        const bool lapsed = s.record && protocol::stands(&*s.record, at(s.now)) &&
                            protocol::lapsed(*s.record, at(s.now));
        demand(!s.record || !protocol::stands(&*s.record, at(s.now)) ||
                   s.record->state != State::running || lapsed,
               "a live claim was given to another");
        if (!lapsed) return;
        demand(answer.record.crashes == s.record->crashes + 1,
               "a takeover does not count the holder that vanished");
        ++counts.takeovers;
        counts.verifications += answer.record.verify;
        if (!answer.record.verify) ++s.handovers;
    }

    // Who changes the record must be who stands on it: owner and fence, or the owner alone in the
    // release of a claim in doubt.
    static void check_writer(const State_& s, const Message& m) {
        if (!s.record || !protocol::stands(&*s.record, at(s.now))) {
            demand(m.what == What::release, "something was written to a key that is not there");
            return;
        }
        const bool named =
            s.record->owner == owner(m.owner) &&
            (s.record->fence == m.fence || (m.what == What::release && m.fence == 0));
        const bool open = s.record->state == State::running ||
                          (s.record->state == State::unknown && m.what == What::complete);
        demand(named && open, "a stale write");
    }

    void handle_renew(State_& s, const Message& m, Message& reply) {
        RenewRequest request;
        request.owner = owner(m.owner);
        request.fence = m.fence;
        request.lease = tick * lease_ticks;
        const auto answer = protocol::renew(found(s), request, at(s.now));
        reply.good = !answer.lost;
        if (!answer.change.write) return;
        check_writer(s, m);
        demand(answer.record.lease_end >= s.record->lease_end &&
                   answer.record.retention_end >= s.record->retention_end,
               "a renewal shortened a life");
        s.record = answer.record;
    }

    void handle_finish(State_& s, const Message& m, Message& reply) {
        FinishRequest request;
        request.owner = owner(m.owner);
        request.fence = m.fence;
        request.counted = m.counted;
        request.lease = tick * lease_ticks;
        request.retention = request.held_retention = tick * retention_ticks;
        request.kind = m.what == What::complete  ? FinishKind::complete
                       : m.what == What::release ? FinishKind::release
                                                 : FinishKind::quarantine;
        const auto answer = protocol::finish(found(s), request, at(s.now));
        reply.good = !answer.lost;
        if (m.what == What::release && (!s.record || !protocol::stands(&*s.record, at(s.now))))
            demand(answer.change.write, "a claim that was given up can still arrive and acquire");
        if (answer.change.write) {
            check_writer(s, m);
            s.record = answer.record;
            if (answer.change.result == protocol::Part::take) s.result = m.result;
            if (answer.change.result == protocol::Part::clear) s.result = 0;
        }
        if (m.what == What::complete && reply.good)
            demand(s.record->state == State::succeeded && s.result == m.result,
                   "a result was acknowledged and is not on record");
    }

    // --- time, and what others do ----------------------------------------------------------------

    void time_moves(const State_& s) {
        if (s.ticks < b_.ticks)
            step(s, "time goes on", 1, [&](State_& n) {
                ++n.ticks, ++n.now, ++n.real;
                note_expiry(n);
            });
        if (s.expiries < b_.expiries)
            step(s, "time goes on", 3 * retention_ticks, [&](State_& n) {
                ++n.expiries;
                n.now = static_cast<std::uint8_t>(n.now + 3 * retention_ticks);
                n.real = static_cast<std::uint8_t>(n.real + 3 * retention_ticks);
                note_expiry(n);
            });
        if (s.jumps < b_.jumps) {
            step(s, "the store's clock jumps forward", 3, [&](State_& n) {
                ++n.jumps, ++counts.jumps;
                n.now = static_cast<std::uint8_t>(n.now + 3);
                n.excused = true;
                note_expiry(n);
            });
            step(s, "the store's clock jumps back", 3, [&](State_& n) {
                ++n.jumps, ++counts.jumps;
                n.now = static_cast<std::uint8_t>(n.now - 3);
            });
        }
    }

    // What is over may be removed at once or later; both must look the same.
    void note_expiry(State_& s) {
        if (!s.record || protocol::stands(&*s.record, at(s.now))) return;
        ++counts.expiries;
        s.excused = true;
        s.last_owner = 0;  // nobody remembers
    }

    void other_moves(const State_& s) {
        if (s.record && !protocol::stands(&*s.record, at(s.now)))
            step(s, "purge", 0, [](State_& n) {
                n.record.reset();
                n.result = 0;
                n.purged = true;
            });
        if (s.forgets < b_.forgets && protocol::visible(found(s), at(s.now)))
            step(s, "forget", 0, [&](State_& n) {
                ++n.forgets, ++counts.forgets;
                n.excused = true;
                const auto answer = protocol::forget(found(n), {{}, tick * lease_ticks}, at(n.now));
                n.record = answer.record;
                n.result = 0;
            });
        if (s.reaps < b_.reaps && s.record && protocol::lapsed(*s.record, at(s.now)))
            step(s, "reap", 0, [&](State_& n) { reap(n); });
        if (s.people < b_.people && s.record && s.record->state == State::unknown)
            step(s, "a person resolves", s.effects, [&](State_& n) { resolve(n); });
    }

    void reap(State_& s) {
        ++s.reaps;
        ReapRequest request;
        request.seen_fence = s.record->fence;
        request.retention = request.held_retention = tick * retention_ticks;
        const auto answer = protocol::reap(found(s), request, at(s.now));
        if (!answer.done) return;
        ++counts.reaps;
        if (answer.record.state == State::released) ++s.handovers;
        s.record = answer.record;
    }

    // People look at the world first: it has happened, or it has not.
    void resolve(State_& s) {
        ++s.people;
        ResolveRequest request;
        request.seen_fence = s.record->fence;
        request.succeeded = s.effects > 0;
        request.retention = tick * retention_ticks;
        const auto answer = protocol::resolve(found(s), request, at(s.now));
        if (!answer.done) return;
        ++counts.resolved;
        demand(answer.record.fence > s.record->fence, "resolve did not raise the fence");
        s.highest = std::max(s.highest, answer.record.fence);
        s.record = answer.record;
        if (request.succeeded) s.result = s.effects;
    }

    Bounds b_;
    SeenSet seen_{};
    std::vector<std::pair<std::string_view, std::size_t>> trace_{};
    bool reported_ = false;
};

Counts explore(const char* name, const Bounds& bounds) {
    Search search(bounds);
    std::string violation;
    const auto begin = std::chrono::steady_clock::now();
    try {
        search.run();
    } catch (const Violation& broken) {
        violation = broken.what();
    }
    const Counts& c = search.counts;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    std::cout << name << ", operations " << search.ops() << ": " << c.states << " states, "
              << c.transitions << " transitions, " << took.count() << " s; lapses " << c.lapses
              << ", takeovers " << c.takeovers << ", verifications " << c.verifications << ", lost "
              << c.lost << ", delayed " << c.delayed << ", copied " << c.copied << ", stale "
              << c.stale << ", replays " << c.replays << ", held " << c.held << ", reaped "
              << c.reaps << ", crashes " << c.crashes << ", effects " << c.effects << " (repeats "
              << c.repeats << "), mismatches " << c.mismatches << ", forgets " << c.forgets
              << ", expiries " << c.expiries << ", jumps " << c.jumps << ", resolved " << c.resolved
              << std::endl;
    INFO(violation);
    CHECK(violation.empty());
    for (const auto count : {c.states, c.lapses, c.lost, c.delayed, c.stale, c.replays, c.effects})
        CHECK(count > 0);
    CHECK((c.copied > 0) == (bounds.copies > 0));
    CHECK((c.crashes > 0) == (bounds.crashes > 0));
    CHECK((c.reaps > 0) == (bounds.reaps > 0));
    CHECK((c.resolved > 0) == (bounds.people > 0));
    CHECK((c.forgets > 0) == (bounds.forgets > 0));
    CHECK((c.jumps > 0) == (bounds.jumps > 0));
    CHECK((c.mismatches > 0) == bounds.other_request);
    return c;
}

constexpr Policy rerun{Orphan::rerun, 0, 3};
constexpr Policy hold{Orphan::hold, 0, 0};
constexpr Policy verify{Orphan::verify, 0, 3};

}  // namespace

TEST_CASE("simulation: two callers, five operations each", "[simulation]") {
    const auto c = explore("2 callers, rerun", {.policy = rerun});
    CHECK(c.takeovers > 0);
    CHECK(c.repeats > 0);  // those that the contract names
}

TEST_CASE("simulation: three callers, three operations each", "[simulation]") {
    const auto c = explore("3 callers, rerun", {.callers = 3, .ops = 3, .policy = rerun});
    CHECK(c.takeovers > 0);
}

TEST_CASE("simulation: two callers with two requests", "[simulation]") {
    const auto c = explore("2 callers, other request",
                           {.ops = 4, .ticks = 3, .policy = rerun, .other_request = true});
    CHECK(c.takeovers > 0);
}

TEST_CASE("simulation: copies of every message", "[simulation]") {
    (void)explore("2 callers, copies", {.ops = 4, .copies = 1, .policy = rerun});
}

TEST_CASE("simulation: crashes, reaper and people under rerun", "[simulation]") {
    const auto c = explore("2 callers, all trouble", {.ops = 3,
                                                      .ticks = 3,
                                                      .copies = 1,
                                                      .crashes = 1,
                                                      .people = 1,
                                                      .reaps = 1,
                                                      .policy = rerun});
    CHECK(c.takeovers > 0);
}

TEST_CASE("simulation: crashes at the cap end a key", "[simulation]") {
    const auto c =
        explore("2 callers, dead letters",
                {.ops = 3, .ticks = 4, .crashes = 1, .reaps = 1, .policy = {Orphan::rerun, 0, 2}});
    CHECK(c.takeovers > 0);
    CHECK(c.dead > 0);
}

TEST_CASE("simulation: hold never repeats", "[simulation]") {
    const auto c = explore("2 callers, hold",
                           {.ops = 4, .crashes = 1, .people = 1, .reaps = 1, .policy = hold});
    CHECK(c.held > 0);
    CHECK(c.takeovers == 0);
    CHECK(c.repeats == 0);
}

TEST_CASE("simulation: verify never repeats", "[simulation]") {
    const auto c =
        explore("2 callers, verify", {.ops = 4, .ticks = 3, .crashes = 1, .policy = verify});
    CHECK(c.verifications > 0);
    CHECK(c.repeats == 0);
}

TEST_CASE("simulation: forget and the end of retention", "[simulation]") {
    const auto c = explore("2 callers, forget and expiry",
                           {.ops = 3, .copies = 1, .forgets = 1, .expiries = 1, .policy = rerun});
    CHECK(c.expiries > 0);
}

TEST_CASE("simulation: the store's clock jumps, forward and back", "[simulation]") {
    const auto c = explore("2 callers, jumps", {.ops = 3, .jumps = 1, .policy = rerun});
    CHECK(c.takeovers > 0);
}
