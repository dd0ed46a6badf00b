#ifndef IDEM_TESTING_CONFORMANCE_HISTORY_HPP
#define IDEM_TESTING_CONFORMANCE_HISTORY_HPP

#include <array>
#include <map>
#include <random>
#include <sstream>
#include <variant>

#include <idem/testing/conformance_diff.hpp>

/// Random histories: what is sent in each step, as a pure function of a seed and of what the
/// model holds, so that a history can be replayed with steps left out.
namespace idem::inline v0_1::testing::conformance {

enum class StepKind : std::uint8_t {
    claim,
    finish,
    renew,
    issue,
    resolve,
    reap,
    forget,
    list,
    purge,
    advance,
    again,  ///< Sends an earlier request once more, or one that was held back for the first time.
};

[[nodiscard]] constexpr const char* to_string(StepKind kind) noexcept {
    constexpr const char* names[] = {"claim",  "finish", "renew", "issue",   "resolve", "reap",
                                     "forget", "list",   "purge", "advance", "again"};
    return names[static_cast<std::size_t>(kind)];
}

/// One step of a history. Everything that varies comes from `salt`.
struct Step {
    StepKind kind = StepKind::claim;
    std::uint32_t id = 0;  ///< Its place in the whole history; stays when others are left out.
    std::uint8_t key = 0;
    std::uint8_t slot = 0;   ///< Which of the callers.
    std::uint64_t salt = 0;  ///< Everything else is drawn from it.
    bool batch = false;
    bool held_back = false;   ///< The request is made now and sent later, if at all.
    bool reply_lost = false;  ///< Applied, but the caller never learns its fence.
    std::uint32_t of = 0;     ///< Of `again`: the id of the step whose request it is.
};

using AnyRequest = std::variant<ClaimRequest, FinishRequest, RenewRequest, IssueRequest,
                                ResolveRequest, ReapRequest, ForgetRequest>;

inline constexpr std::size_t history_keys = 5;
inline constexpr std::size_t history_slots = 3;

/// Draws by remainder: the standard's distributions differ between libraries, histories must not.
class Draw {
public:
    explicit Draw(std::uint64_t seed) : engine_(seed) {}
    [[nodiscard]] std::uint64_t bits() { return engine_(); }
    [[nodiscard]] std::uint64_t below(std::uint64_t bound) { return engine_() % bound; }
    [[nodiscard]] bool percent(std::uint64_t chance) { return below(100) < chance; }
    template <class T, std::size_t N>
    [[nodiscard]] T of(const std::array<T, N>& choices) {
        return choices[below(N)];
    }

private:
    std::mt19937_64 engine_;
};

[[nodiscard]] inline std::vector<Step> make_history(std::uint64_t seed, std::size_t steps) {
    using Kind = StepKind;
    constexpr std::array kinds = {
        Kind::claim,  Kind::claim,  Kind::claim,  Kind::claim,   Kind::claim,   Kind::claim,
        Kind::finish, Kind::finish, Kind::finish, Kind::finish,  Kind::finish,  Kind::renew,
        Kind::renew,  Kind::issue,  Kind::issue,  Kind::resolve, Kind::reap,    Kind::reap,
        Kind::forget, Kind::list,   Kind::purge,  Kind::advance, Kind::advance, Kind::advance,
        Kind::again,  Kind::again,
    };
    Draw draw(seed);
    std::vector<Step> out;
    std::uint8_t key = 0;
    for (std::uint32_t id = 0; id < steps; ++id) {
        if (draw.percent(40)) key = static_cast<std::uint8_t>(draw.below(history_keys));
        Step step{draw.of(kinds), id, key, static_cast<std::uint8_t>(draw.below(history_slots)),
                  draw.bits()};
        step.batch = draw.percent(15);
        step.held_back = draw.percent(8);
        step.reply_lost = draw.percent(8);
        step.of = static_cast<std::uint32_t>(draw.below(id + 1));
        if (draw.percent(70)) step.of = id - static_cast<std::uint32_t>(draw.below(5)) % (id + 1);
        out.push_back(step);
    }
    return out;
}

/// What callers know and what is under each key: enough to make the next request.
struct HistoryState {
    struct Caller {
        std::uint64_t owner = 1;
        Fence fence = 0;
    };

    std::array<std::array<Caller, history_keys>, history_slots> callers{};
    std::array<protocol::Slot, history_keys> slots{};
    std::map<std::uint32_t, AnyRequest> made{};
};

/// Makes the requests of a step. They refer to the bench's keys and to bytes that live for ever.
template <class Bench>
class RequestMaker {
public:
    RequestMaker(Bench& bench, HistoryState& state) : bench_(bench), state_(state) {}

    /// Key 4 is a token; the others differ by the policy that most of their claims bring.
    [[nodiscard]] KeyView key(std::size_t index) {
        return bench_.view(bench_.key("h" + std::to_string(index), scope),
                           index == 4 ? Component::token : Component::call);
    }

    [[nodiscard]] ClaimRequest claim(std::size_t index, std::size_t slot, std::uint32_t id,
                                     Draw& draw) {
        auto& caller = state_.callers[slot][index];
        if (draw.percent(60)) caller = {id * 16ULL + 16 + draw.below(16), 0};
        ClaimRequest out;
        out.key = key(index);
        out.owner = Bench::owner(caller.owner);
        out.lease = draw.of(leases);
        out.retention = draw.of(retentions);
        out.held_retention = 2 * draw.of(retentions);
        out.fingerprint = fingerprint(draw);
        if (draw.percent(10)) out.fingerprint_before = fingerprint(draw);
        out.policy = policy(index, draw);
        out.can_verify = draw.percent(70);
        out.redeem_only = index == 4 ? draw.percent(90) : draw.percent(2);
        return out;
    }

    [[nodiscard]] FinishRequest finish(std::size_t index, std::size_t slot, Draw& draw) {
        constexpr std::array kinds = {FinishKind::complete, FinishKind::fail, FinishKind::release,
                                      FinishKind::release, FinishKind::quarantine};
        FinishRequest out;
        out.key = key(index);
        std::tie(out.owner, out.fence) = holder(index, slot, draw);
        out.kind = draw.of(kinds);
        if (out.kind == FinishKind::release && draw.percent(20)) out.fence = 0;
        out.counted = draw.percent(70);
        out.lease = draw.of(lives);
        out.retention = draw.of(retentions);
        out.held_retention = 2 * draw.of(retentions);
        if (out.kind == FinishKind::complete) {
            out.result_kind = draw.percent(70) ? ResultKind::value : ResultKind::too_large;
            out.codec = {static_cast<std::uint32_t>(draw.bits()), 2};
            if (out.result_kind == ResultKind::value) out.result = bytes(draw);
        } else {
            out.failure = draw.of(std::array{FailureClass::retryable, FailureClass::unknown});
            out.failure_code = bytes(draw);
            out.failure_message = bytes(draw);
        }
        if (draw.percent(30)) out.checkpoint = bytes(draw);
        if (draw.percent(30)) out.resource = bytes(draw);
        return out;
    }

    [[nodiscard]] RenewRequest renew(std::size_t index, std::size_t slot, Draw& draw) {
        RenewRequest out;
        out.key = key(index);
        std::tie(out.owner, out.fence) = holder(index, slot, draw);
        out.lease = draw.of(leases);
        if (draw.percent(40)) out.checkpoint = bytes(draw);
        if (draw.percent(30)) out.resource = bytes(draw);
        return out;
    }

    [[nodiscard]] IssueRequest issue(std::size_t index, std::size_t slot, Draw& draw) {
        if (draw.percent(70)) index = 4;
        IssueRequest out;
        out.key = key(index);
        if (draw.percent(50)) out.binding = fingerprint(draw);
        out.owner = Bench::owner(1000 + slot);
        out.validity = 2 * draw.of(leases);
        out.retention = draw.of(retentions);
        return out;
    }

    [[nodiscard]] ResolveRequest resolve(std::size_t index, Draw& draw) {
        ResolveRequest out;
        out.key = key(index);
        out.seen_fence = seen(index, draw);
        out.succeeded = draw.percent(50);
        out.retention = draw.of(retentions);
        if (!out.succeeded) return out;
        out.result_kind = draw.percent(70) ? ResultKind::value : ResultKind::none;
        if (out.result_kind == ResultKind::none) return out;
        out.codec = {7, 1};
        out.result = bytes(draw);
        return out;
    }

    [[nodiscard]] ReapRequest reap(std::size_t index, Draw& draw) {
        return {key(index), seen(index, draw), draw.of(retentions), 2 * draw.of(retentions)};
    }
    [[nodiscard]] ForgetRequest forget(std::size_t index, Draw& draw) {
        const Duration lease = draw.of(lives);
        return {key(index), lease, draw.below(3) == 0 ? seen(index, draw) : 0};
    }

    [[nodiscard]] static Duration jump(Draw& draw) {
        constexpr std::array jumps = {
            Duration{1},          Duration{1'000'000},   Duration{9'999'999},
            Duration{10'000'000}, Duration{31'000'000},  Duration{31'000'000},
            Duration{61'000'000}, Duration{300'000'000}, Duration{1'300'000'000}};
        return draw.of(jumps);
    }

private:
    static constexpr std::string_view scope = "history under a name that is not to be cut";
    static constexpr std::array leases = {Duration{10'000'000}, Duration{30'000'000}};
    /// What a tombstone or a stub outlasts; one is above the least life that it has.
    static constexpr std::array lives = {Duration{10'000'000}, Duration{90'000'000}};
    static constexpr std::array retentions = {Duration{60'000'000}, Duration{600'000'000}};

    [[nodiscard]] static std::string_view bytes(Draw& draw) {
        static const std::array<std::string, 6> all = {"",
                                                       "x",
                                                       std::string("\0\xff{}%'\r\n", 8),
                                                       std::string(70, 'c'),
                                                       "2",
                                                       std::string(5000, 'm')};
        return all[draw.below(all.size())];
    }
    [[nodiscard]] static Fingerprint fingerprint(Draw& draw) {
        static const std::array<Fingerprint, 5> all = {
            Fingerprint{}, Fingerprint::of_bytes("P"), Fingerprint::of_bytes("P"),
            Fingerprint::of_bytes("P"), Fingerprint::of_bytes("Q")};
        return all[draw.below(all.size())];
    }
    [[nodiscard]] static Policy policy(std::size_t index, Draw& draw) {
        constexpr std::array orphans = {Orphan::rerun, Orphan::verify, Orphan::hold};
        if (draw.percent(4))
            return {draw.of(orphans), static_cast<std::uint16_t>(draw.below(4)),
                    static_cast<std::uint16_t>(draw.below(4))};
        if (index == 1) return {Orphan::rerun, 3, 2};
        if (index == 2) return {Orphan::hold, 0, 5};
        if (index == 3) return {Orphan::verify, 0, 3};
        return {};
    }
    /// Mostly what the caller knows; now and then what it should not.
    [[nodiscard]] std::pair<Owner, Fence> holder(std::size_t index, std::size_t slot, Draw& draw) {
        const auto& caller = state_.callers[slot][index];
        Fence fence = caller.fence;
        if (draw.percent(5)) fence += 1;
        if (draw.percent(5)) fence = seen(index, draw);
        if (fence == 0 && draw.percent(50)) fence = seen(index, draw);
        return {Bench::owner(caller.owner), fence};
    }
    [[nodiscard]] Fence seen(std::size_t index, Draw& draw) const {
        const auto& slot = state_.slots[index];
        const Fence fence = slot ? slot->header.fence : 1;
        return draw.percent(90) ? fence : fence - 1;
    }

    Bench& bench_;
    HistoryState& state_;
};

}  // namespace idem::inline v0_1::testing::conformance

#endif
