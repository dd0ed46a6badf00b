#ifndef IDEM_TESTING_CONFORMANCE_LOCKSTEP_HPP
#define IDEM_TESTING_CONFORMANCE_LOCKSTEP_HPP

#include <algorithm>
#include <functional>

#include <idem/testing/conformance_history.hpp>

/// Carries a history out on a store and on the pure protocol, and compares after every step.
namespace idem::inline v0_1::testing::conformance {

/// What a run must have met to have asked anything. Zero of any of these is a failure.
enum class Reach : std::uint8_t {
    lapses,
    takeovers,
    verifications,
    reaps,
    expiries,
    in_progress,
    mismatches,
    replays,
    stale,
    held,
    exhausted,
    late_truths,
    lost_to_another,
    lost_to_the_end,
    lost_to_forget,
    lost_to_nothing,
    stubs,
    tokens_redeemed,
    tokens_expired,
    tokens_absent,
    resolved,
    forgotten,
    repeated_requests,
    delayed_requests,
    batches_with_a_key_twice,
    listed,
    count_,
};

[[nodiscard]] constexpr const char* to_string(Reach reach) noexcept {
    constexpr const char* names[] = {"lapses",
                                     "takeovers",
                                     "verifications",
                                     "reaps",
                                     "expiries",
                                     "in progress",
                                     "mismatches",
                                     "replays",
                                     "stale",
                                     "held",
                                     "exhausted",
                                     "late truths",
                                     "lost to another",
                                     "lost to the end",
                                     "lost to forget",
                                     "lost to nothing",
                                     "stubs",
                                     "tokens redeemed",
                                     "tokens expired",
                                     "tokens absent",
                                     "resolved",
                                     "forgotten",
                                     "repeated requests",
                                     "delayed requests",
                                     "batches with a key twice",
                                     "listed"};
    return names[static_cast<std::size_t>(reach)];
}

using Reached = std::array<std::uint64_t, static_cast<std::size_t>(Reach::count_)>;

/// A store and the model side by side, for one history.
template <world World>
class Lockstep {
public:
    Lockstep(World& world, Reached& reached)
        : bench_(world), maker_(bench_, state_), reached_(reached) {}

    /// @return the first difference, or nothing.
    std::optional<std::string> run(const std::vector<Step>& steps, std::string* trace = nullptr) {
        trace_ = trace;
        for (const auto& step : steps) {
            std::string broken;
            try {
                take(step);
                compare_records(step.kind == StepKind::advance);
            } catch (const std::exception& error) {
                broken = error.what();
            } catch (...) {
                broken = "threw something that is no std::exception";
            }
            if (broken.empty()) continue;
            note("  -> " + broken + "\n");
            return std::string(to_string(step.kind)) + " in step " + std::to_string(step.id) +
                   ": " + broken;
        }
        return std::nullopt;
    }

private:
    using B = Bench<World>;

    void met(Reach reach, bool really = true) {
        if (really) ++reached_[static_cast<std::size_t>(reach)];
    }
    void note(const std::string& text) {
        if (trace_ != nullptr) *trace_ += text;
    }

    void take(const Step& step) {
        Draw draw(step.salt);
        note("#" + std::to_string(step.id) + " " + to_string(step.kind) + " key " +
             std::to_string(step.key));
        switch (step.kind) {
            case StepKind::claim:
                return send(step, draw, [&](std::size_t key) {
                    return maker_.claim(key, step.slot, step.id, draw);
                });
            case StepKind::finish:
                return send(step, draw,
                            [&](std::size_t key) { return maker_.finish(key, step.slot, draw); });
            case StepKind::renew:
                return send(step, draw,
                            [&](std::size_t key) { return maker_.renew(key, step.slot, draw); });
            case StepKind::issue:
                return send(step, draw,
                            [&](std::size_t key) { return maker_.issue(key, step.slot, draw); });
            case StepKind::resolve:
                return send(step, draw, [&](std::size_t key) { return maker_.resolve(key, draw); });
            case StepKind::reap:
                return send(step, draw, [&](std::size_t key) { return maker_.reap(key, draw); });
            case StepKind::forget:
                return send(step, draw, [&](std::size_t key) { return maker_.forget(key, draw); });
            case StepKind::list: return list(draw);
            case StepKind::purge: return purge(draw);
            case StepKind::advance: {
                const Duration by = RequestMaker<B>::jump(draw);
                note(" by " + show(by) + "\n");
                return bench_.advance(by);
            }
            case StepKind::again: return again(step);
        }
    }

    /// Makes and sends the requests of one step: one, or a batch that names keys more than once.
    template <class Make>
    void send(const Step& step, Draw& draw, Make&& make) {
        using Request = decltype(make(std::size_t{}));
        std::vector<Request> requests{make(step.key)};
        if (step.held_back) {
            state_.made.emplace(step.id, requests.front());
            return note(": made, and held back\n");
        }
        if (step.batch) {
            for (auto more = draw.below(7); more > 0; --more)
                requests.push_back(make(draw.below(history_keys)));
        }
        state_.made.emplace(step.id, requests.front());
        send_all(requests, step);
    }

    void again(const Step& step) {
        const auto at = state_.made.find(step.of);
        if (at == state_.made.end()) return note(": nothing to repeat\n");
        note(": step " + std::to_string(step.of) + " once more");
        const bool first_time = sent_.insert({step.of, true}).second;
        met(first_time ? Reach::delayed_requests : Reach::repeated_requests);
        std::visit([&](const auto& request) { send_all(std::vector{request}, step); }, at->second);
    }

    template <class Request>
    void send_all(const std::vector<Request>& requests, const Step& step) {
        using Reply = decltype(protocol::apply(state_.slots[0], requests[0], Instant{}).reply);
        if (step.kind != StepKind::again) sent_[step.id] = true;
        for (const auto& request : requests) keep_off_the_edges(request.key);
        std::vector<Reply> replies(requests.size());
        const Instant now = bench_.world.now();
        call(requests, replies);
        std::array<int, history_keys> seen{};
        for (std::size_t i = 0; i < requests.size(); ++i) {
            const std::size_t key = index_of(requests[i].key);
            met(Reach::batches_with_a_key_twice, ++seen[key] == 2);
            auto& slot = state_.slots[key];
            const auto before = slot;
            meet_before(before, requests[i], now);
            const auto model = protocol::apply(slot, requests[i], now).reply;
            if (slot) {
                auto& message = slot->payload.failure_message;
                message.resize(std::min(message.size(), message_bytes_max_of(bench_.world)));
            }
            meet(before, requests[i], model);
            learn(key, requests[i], replies[i], step);
            Diff diff(bench_.slack());
            compare(diff, model, replies[i]);
            note(" [key " + std::to_string(key) + ": " + describe(model) + "]");
            expect(diff.text().empty(),
                   "the reply of item " + std::to_string(i) + ":" + diff.text());
        }
        note("\n");
    }

    void call(const std::vector<ClaimRequest>& q, std::vector<ClaimReply>& a) {
        bench_.store().claim(q, a);
    }
    void call(const std::vector<FinishRequest>& q, std::vector<FinishReply>& a) {
        bench_.store().finish(q, a);
    }
    void call(const std::vector<RenewRequest>& q, std::vector<RenewReply>& a) {
        bench_.store().renew(q, a);
    }
    void call(const std::vector<IssueRequest>& q, std::vector<IssueReply>& a) {
        bench_.store().issue(q, a);
    }
    void call(const std::vector<ResolveRequest>& q, std::vector<ResolveReply>& a) {
        bench_.store().resolve(q, a);
    }
    void call(const std::vector<ReapRequest>& q, std::vector<ReapReply>& a) {
        bench_.store().reap(q, a);
    }
    void call(const std::vector<ForgetRequest>& q, std::vector<ForgetReply>& a) {
        bench_.store().forget(q, a);
    }

    template <class Request, class Reply>
    void learn(std::size_t, const Request&, const Reply&, const Step&) {}
    void learn(std::size_t key, const ClaimRequest& request, const ClaimReply& reply,
               const Step& step) {
        if (reply.kind != ClaimKind::acquired || step.reply_lost) return;
        for (auto& caller : state_.callers)
            if (B::owner(caller[key].owner) == request.owner) caller[key].fence = reply.fence;
    }

    template <class Request>
    void meet_before(const protocol::Slot& slot, const Request& request, Instant now) {
        if (!slot) return;
        met(Reach::expiries, !protocol::stands(&slot->header, now));
        if constexpr (!std::same_as<Request, ForgetRequest>)
            met(Reach::lapses,
                protocol::lapsed(slot->header, now) && protocol::stands(&slot->header, now));
        (void)request;
    }
    template <class Request, class Reply>
    void meet(const protocol::Slot&, const Request&, const Reply&) {}
    void meet(const protocol::Slot&, const ClaimRequest& request, const ClaimReply& reply) {
        const bool acquired = reply.kind == ClaimKind::acquired;
        met(Reach::takeovers, acquired && reply.takeover);
        met(Reach::verifications, acquired && reply.verify);
        met(Reach::tokens_redeemed, acquired && request.redeem_only);
        met(Reach::in_progress, reply.kind == ClaimKind::in_progress);
        met(Reach::mismatches, reply.kind == ClaimKind::mismatch);
        met(Reach::replays, reply.kind == ClaimKind::completed);
        met(Reach::stale, reply.kind == ClaimKind::stale);
        met(Reach::held, reply.kind == ClaimKind::unknown);
        met(Reach::exhausted, reply.failure.kind == FailureClass::exhausted);
        met(Reach::tokens_absent, reply.kind == ClaimKind::absent);
        met(Reach::tokens_expired, reply.kind == ClaimKind::expired);
    }
    void meet(const protocol::Slot& before, const FinishRequest&, const FinishReply& reply) {
        meet_lost(reply.reason);
        const State was = before ? before->header.state : State::forgotten;
        met(Reach::late_truths, !reply.lost && was == State::unknown && reply.state != was);
        met(Reach::stubs, !before && !reply.lost);
    }
    void meet(const protocol::Slot&, const RenewRequest&, const RenewReply& reply) {
        meet_lost(reply.reason);
    }
    void meet(const protocol::Slot&, const ReapRequest&, const ReapReply& reply) {
        met(Reach::reaps, reply.reaped);
    }
    void meet(const protocol::Slot&, const ResolveRequest&, const ResolveReply& reply) {
        met(Reach::resolved, reply.resolved);
    }
    void meet(const protocol::Slot&, const ForgetRequest&, const ForgetReply& reply) {
        met(Reach::forgotten, reply.existed);
    }
    void meet_lost(LostReason reason) {
        met(Reach::lost_to_another, reason == LostReason::other_owner);
        met(Reach::lost_to_the_end, reason == LostReason::finished);
        met(Reach::lost_to_forget, reason == LostReason::forgotten);
        met(Reach::lost_to_nothing, reason == LostReason::gone);
    }

    [[nodiscard]] static std::string describe(const ClaimReply& r) { return show(r.kind); }
    [[nodiscard]] static std::string describe(const FinishReply& r) {
        return (r.lost ? "lost, " + show(r.reason) : "heard") + ", " + show(r.state);
    }
    [[nodiscard]] static std::string describe(const RenewReply& r) {
        return r.lost ? "lost, " + show(r.reason) : "heard";
    }
    [[nodiscard]] static std::string describe(const IssueReply& r) {
        return r.issued ? "issued" : "refused";
    }
    [[nodiscard]] static std::string describe(const ResolveReply& r) {
        return (r.resolved ? "resolved, " : "refused, ") + show(r.state);
    }
    [[nodiscard]] static std::string describe(const ReapReply& r) {
        return (r.reaped ? "reaped, " : "refused, ") + show(r.state);
    }
    [[nodiscard]] static std::string describe(const ForgetReply& r) {
        return r.existed ? "existed" : "nothing";
    }

    [[nodiscard]] std::size_t index_of(const KeyView& key) const {
        return static_cast<std::size_t>(key.id.back() - '0');
    }

    /// Where the clock does not stand still, nothing may be asked within its slack of an end.
    void keep_off_the_edges(const KeyView& key) {
        const auto& slot = state_.slots[index_of(key)];
        if (bench_.exact() || !slot) return;
        for (const Instant end :
             {slot->header.lease_end, slot->header.retention_end, slot->header.validity_end}) {
            const Duration left = end - bench_.world.now();
            if (left > -bench_.slack() && left < 2 * bench_.slack())
                bench_.advance(4 * bench_.slack());
        }
    }

    void compare_records(bool time_has_passed) {
        std::vector<KeyView> keys;
        for (std::size_t i = 0; i < history_keys; ++i) keys.push_back(maker_.key(i));
        if (time_has_passed)
            for (const auto& key : keys) keep_off_the_edges(key);
        std::vector<FindReply> found(keys.size());
        const Instant now = bench_.world.now();
        bench_.store().find(keys, found);
        for (std::size_t i = 0; i < keys.size(); ++i) {
            auto& slot = state_.slots[i];
            std::optional<RecordView> model;
            if (slot && protocol::visible(&slot->header, now))
                model = protocol::view_of(keys[i], *slot, now);
            Diff diff(bench_.slack());
            diff.trouble(found[i].trouble);
            compare(diff, model, found[i].record);
            expect(diff.text().empty(),
                   "then find of key " + std::to_string(i) + ":" + diff.text());
            if (model) slot->header = found[i].record->header;  // go on from the store's own times
        }
    }

    void list(Draw& draw) {
        ListQuery query;
        query.scope = maker_.key(0).scope;
        query.limit = 1 + draw.below(3);
        if (draw.percent(30)) query.tenant = maker_.key(0).tenant;
        if (draw.percent(30)) query.state = static_cast<State>(1 + draw.below(7));
        if (draw.percent(30)) query.lapsed = draw.percent(50);
        if (draw.percent(30)) query.component = Component::call;
        if (draw.percent(30) && bench_.exact()) query.created_before = Duration{31'000'000};
        for (std::size_t i = 0; i < history_keys; ++i) keep_off_the_edges(maker_.key(i));
        std::map<std::string, RecordView> model;
        const Instant now = bench_.world.now();
        for (std::size_t i = 0; i < history_keys; ++i) {
            const auto& slot = state_.slots[i];
            if (!slot || !protocol::visible(&slot->header, now)) continue;
            const auto key = maker_.key(i);
            if (protocol::matches(query, key, slot->header, now))
                model.emplace(encode_key(key), protocol::view_of(key, *slot, now));
        }
        std::map<std::string, RecordView> listed;
        for (int page = 0; page < 1000; ++page) {
            auto got = bench_.store().list(query);
            expect(!got.trouble, "trouble in list: " + got.trouble.message);
            expect(got.records.size() <= query.limit, "a page of list has more than its limit");
            for (auto& record : got.records) {
                auto key = encode_key(KeyView(record.component, record.key));
                const bool first = listed.insert_or_assign(std::move(key), record).second;
                expect(first || list_may_repeat(bench_.world), "list shows a key twice");
                met(Reach::listed);
            }
            query.cursor = got.next;
            if (query.cursor.empty()) break;
        }
        expect(query.cursor.empty(), "list never ends");
        note(": " + std::to_string(model.size()) + " records\n");
        expect_equal(listed.size(), model.size(), "the number of listed records");
        for (const auto& [key, record] : model) {
            const auto at = listed.find(key);
            expect(at != listed.end(), "list leaves out " + show(key));
            Diff diff(bench_.slack());
            compare(diff, record, at->second);
            expect(diff.text().empty(), "the listed " + show(key) + ":" + diff.text());
        }
    }

    void purge(Draw& draw) {
        const std::size_t limit = 1 + draw.below(20);
        const auto reply = bench_.store().purge(limit);
        note(" of " + std::to_string(limit) + "\n");
        expect(!reply.trouble, "trouble in purge: " + reply.trouble.message);
        expect(reply.removed <= limit, "purge removed more than its limit");
    }

    B bench_;
    HistoryState state_{};
    RequestMaker<B> maker_;
    Reached& reached_;
    std::map<std::uint32_t, bool> sent_{};
    std::string* trace_ = nullptr;
};

}  // namespace idem::inline v0_1::testing::conformance

#endif
