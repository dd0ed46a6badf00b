// The transitions, row by row of the claim table and sentence by sentence of "finish and renew", on
// the pure functions: no store, no clock, no thread.

#include <chrono>
#include <limits>
#include <string>

#include <idem/apply.hpp>
#include <idem/protocol.hpp>

#include "support/catch.hpp"

namespace protocol_test {

using namespace std::chrono_literals;
using namespace idem;
using protocol::Part;

constexpr Instant t0{Duration{1'704'067'200'000'000}};
const Key key{"scope", "id"};
const Fingerprint P = Fingerprint::of_bytes("P");
const Fingerprint Q = Fingerprint::of_bytes("Q");

Owner owner(char who) {
    Owner out;
    out.bytes.fill(who);
    return out;
}

ClaimRequest claim_by(char who, const Fingerprint& print = {}, const Policy& policy = {}) {
    ClaimRequest out;
    out.key = KeyView(Component::call, key);
    out.owner = owner(who);
    out.fingerprint = print;
    out.policy = policy;
    out.lease = 30s;
    out.retention = 1h;
    out.held_retention = 5h;
    return out;
}

FinishRequest finish_by(char who, Fence fence, FinishKind kind) {
    FinishRequest out;
    out.key = KeyView(Component::call, key);
    out.owner = owner(who);
    out.fence = fence;
    out.kind = kind;
    out.lease = 30s;
    out.retention = 1h;
    out.held_retention = 5h;
    if (kind == FinishKind::complete) out.result_kind = ResultKind::value;
    return out;
}

RenewRequest renew_by(char who, Fence fence) {
    return {KeyView(Component::call, key), owner(who), fence, 30s, {}, {}};
}

ReapRequest reap_of(Fence seen) {
    return {KeyView(Component::call, key), seen, 1h, 5h};
}
ForgetRequest forget_it() {
    return {KeyView(Component::call, key), 30s};
}
IssueRequest issue_by(char who, const Fingerprint& binding = {}) {
    return {KeyView(Component::token, key), binding, owner(who), 10min, 1h};
}

// A record as owner 1 has claimed it at t0.
RecordHeader running(const Policy& policy = {}, const Fingerprint& print = {}) {
    return protocol::claim(nullptr, claim_by(1, print, policy), t0).record;
}

RecordHeader settled(FinishKind kind, const Fingerprint& print = {}) {
    const auto record = running({}, print);
    return protocol::finish(&record, finish_by(1, record.fence, kind), t0 + 1s).record;
}

RecordHeader forgotten() {
    const auto record = running();
    return protocol::forget(&record, forget_it(), t0 + 1s).record;
}

constexpr FinishKind all_finishes[] = {FinishKind::complete, FinishKind::fail, FinishKind::release,
                                       FinishKind::quarantine};

TEST_CASE("claim: nothing is acquired with attempt 1", "[protocol]") {
    const auto answer = protocol::claim(nullptr, claim_by(1, P), t0);
    CHECK(answer.kind == ClaimKind::acquired);
    CHECK(answer.change.write);
    CHECK(answer.record.state == State::running);
    CHECK(answer.record.attempt == 1);
    CHECK(answer.record.crashes == 0);
    CHECK(answer.record.fence == static_cast<Fence>(t0.time_since_epoch().count()));
    CHECK(answer.record.fingerprint == P);
    CHECK(answer.record.lease_end == t0 + 30s);
    CHECK(answer.record.retention_end == t0 + 30s + 1h);
    CHECK(answer.record.created == t0);
    CHECK(answer.record.started == t0);
}

TEST_CASE("claim: a record past retention is nothing", "[protocol]") {
    const auto old = settled(FinishKind::complete, Q);
    const auto at = old.retention_end;
    CHECK(protocol::claim(&old, claim_by(2, Q), at - 1us).kind == ClaimKind::completed);
    const auto answer = protocol::claim(&old, claim_by(2, P), at);
    CHECK(answer.kind == ClaimKind::acquired);
    CHECK(answer.record.attempt == 1);
    CHECK(answer.record.created == at);
    CHECK(answer.change.checkpoint == Part::clear);
    CHECK(answer.change.resource == Part::clear);
}

TEST_CASE("claim: the fence grows even where the clock has gone back", "[protocol]") {
    const auto old = settled(FinishKind::release);
    const auto answer = protocol::claim(&old, claim_by(2), t0 - 1h);
    CHECK(answer.record.fence == old.fence + 1);
    CHECK(protocol::next_fence(nullptr, Instant{Duration{-5}}) == 1);
}

TEST_CASE("claim: redeem only never acquires what was not issued", "[protocol]") {
    auto request = claim_by(2);
    request.redeem_only = true;
    CHECK(protocol::claim(nullptr, request, t0).kind == ClaimKind::absent);
    const auto tombstone = forgotten();
    CHECK(protocol::claim(&tombstone, request, t0 + 2s).kind == ClaimKind::absent);
    const auto stub = protocol::finish(nullptr, finish_by(1, 0, FinishKind::release), t0).record;
    CHECK(protocol::claim(&stub, request, t0 + 2s).kind == ClaimKind::absent);
}

TEST_CASE("finish: a release that finds nothing answers the same when it is repeated",
          "[protocol]") {
    for (const Fence fence : {Fence{0}, Fence{77}}) {
        const auto release = finish_by(1, fence, FinishKind::release);
        const auto first = protocol::finish(nullptr, release, t0);
        CHECK_FALSE(first.lost);
        const auto again = protocol::finish(&first.record, release, t0 + 2s);
        CHECK_FALSE(again.lost);
        CHECK_FALSE(again.change.write);
        const auto other = finish_by(2, fence, FinishKind::release);
        CHECK(protocol::finish(&first.record, other, t0 + 2s).lost);
    }
}

TEST_CASE("claim: a delayed copy of a claim that has ended is stale", "[protocol]") {
    for (const auto kind : all_finishes) {
        const auto record = settled(kind);
        const auto answer = protocol::claim(&record, claim_by(1), t0 + 2s);
        CHECK(answer.kind == ClaimKind::stale);
        CHECK_FALSE(answer.change.write);
    }
    const auto tombstone = forgotten();
    CHECK(protocol::claim(&tombstone, claim_by(1), t0 + 2s).kind == ClaimKind::stale);
}

TEST_CASE("claim: stale comes before mismatch", "[protocol]") {
    const auto record = settled(FinishKind::complete, P);
    CHECK(protocol::claim(&record, claim_by(1, Q), t0 + 2s).kind == ClaimKind::stale);
}

TEST_CASE("claim: forgotten is as nothing, with a fence above the tombstone's", "[protocol]") {
    const auto tombstone = forgotten();
    const auto answer = protocol::claim(&tombstone, claim_by(2, P), t0 - 1h);
    CHECK(answer.kind == ClaimKind::acquired);
    CHECK(answer.record.attempt == 1);
    CHECK(answer.record.fence > tombstone.fence);
    CHECK(answer.record.created == t0 - 1h);
}

TEST_CASE("claim: another fingerprint is a mismatch in any state but released", "[protocol]") {
    const auto live = running({}, P);
    CHECK(protocol::claim(&live, claim_by(2, Q), t0).kind == ClaimKind::mismatch);
    CHECK(protocol::claim(&live, claim_by(2, Q), t0 + 31s).kind == ClaimKind::mismatch);
    for (const auto kind : all_finishes) {
        const auto record = settled(kind, P);
        const auto answer = protocol::claim(&record, claim_by(2, Q), t0 + 2s);
        CHECK((answer.kind == ClaimKind::mismatch) == (kind != FinishKind::release));
        CHECK(protocol::claim(&record, claim_by(2), t0 + 2s).kind != ClaimKind::mismatch);
    }
    const auto token = protocol::issue(nullptr, issue_by(9, P), t0).record;
    CHECK(protocol::claim(&token, claim_by(2, Q), t0).kind == ClaimKind::mismatch);
}

TEST_CASE("claim: a fingerprint of an older version is compared with that version", "[protocol]") {
    const auto live = running({}, P);
    auto request = claim_by(2, Fingerprint::of("P"));
    CHECK(protocol::claim(&live, request, t0).kind == ClaimKind::mismatch);
    request.fingerprint_before = P;
    CHECK(protocol::claim(&live, request, t0).kind == ClaimKind::in_progress);
}

TEST_CASE("claim: without a fingerprint never adds one", "[protocol]") {
    const auto live = running();
    const auto answer = protocol::claim(&live, claim_by(2, P), t0 + 31s);
    CHECK(answer.kind == ClaimKind::acquired);
    CHECK_FALSE(answer.record.fingerprint.present());
}

TEST_CASE("claim: running, same owner: the answer had been lost", "[protocol]") {
    const auto live = running();
    for (const auto later : {1s, 40s}) {
        const auto answer = protocol::claim(&live, claim_by(1), t0 + later);
        CHECK(answer.kind == ClaimKind::acquired);
        CHECK(answer.record.fence == live.fence);
        CHECK(answer.record.attempt == 1);
        CHECK(answer.record.lease_end == t0 + later + 30s);
    }
    auto shorter = claim_by(1);
    shorter.lease = 1s;
    const auto answer = protocol::claim(&live, shorter, t0);
    CHECK(answer.record.lease_end == live.lease_end);
    CHECK(answer.lease_left == 30s);
    CHECK(answer.record.retention_end >= live.retention_end);
}

TEST_CASE("claim: running, lease live is in progress with lease left", "[protocol]") {
    const auto live = running();
    const auto answer = protocol::claim(&live, claim_by(2), t0 + 10s);
    CHECK(answer.kind == ClaimKind::in_progress);
    CHECK(answer.lease_left == 20s);
    CHECK(answer.record.attempt == 1);
    CHECK(answer.record.started == t0);
    CHECK_FALSE(answer.change.write);
    CHECK(protocol::claim(&live, claim_by(2), t0 + 30s - 1us).kind == ClaimKind::in_progress);
    CHECK(protocol::claim(&live, claim_by(2), t0 + 30s).kind == ClaimKind::acquired);
}

TEST_CASE("claim: lease over, rerun takes over", "[protocol]") {
    const auto live = running();
    const auto answer = protocol::claim(&live, claim_by(2), t0 + 31s);
    CHECK(answer.kind == ClaimKind::acquired);
    CHECK(answer.record.attempt == 2);
    CHECK(answer.record.crashes == 1);
    CHECK(answer.record.takeover);
    CHECK_FALSE(answer.record.verify);
    CHECK(answer.record.fence > live.fence);
    CHECK(answer.change.checkpoint == Part::keep);
    CHECK(answer.change.resource == Part::keep);
}

TEST_CASE("claim: lease over, hold becomes unknown and keeps its fence", "[protocol]") {
    const auto live = running({Orphan::hold, 0, 0});
    CHECK(live.retention_end == t0 + 30s + 1h + 5h);
    const auto answer = protocol::claim(&live, claim_by(2), t0 + 31s);
    CHECK(answer.kind == ClaimKind::unknown);
    CHECK(answer.record.state == State::unknown);
    CHECK(answer.record.fence == live.fence);
    CHECK(answer.record.owner == owner(1));
    CHECK(answer.record.crashes == 1);
    CHECK(answer.record.retention_end == t0 + 31s + 5h);
}

TEST_CASE("claim: lease over, verify marks the acquisition", "[protocol]") {
    const Policy verify{Orphan::verify, 0, 3};
    const auto live = running(verify);
    auto request = claim_by(2, {}, verify);
    CHECK(protocol::claim(&live, request, t0 + 31s).kind == ClaimKind::unknown);
    request.can_verify = true;
    const auto answer = protocol::claim(&live, request, t0 + 31s);
    CHECK(answer.kind == ClaimKind::acquired);
    CHECK(answer.record.verify);
    const auto again = protocol::claim(&answer.record, request, t0 + 32s);
    CHECK(again.record.verify);
    CHECK(again.record.fence == answer.record.fence);
    const auto renewed =
        protocol::renew(&answer.record, renew_by(2, answer.record.fence), t0 + 32s);
    CHECK(renewed.record.verify);
    auto worn = live;
    worn.crashes = 2;
    CHECK(protocol::claim(&worn, request, t0 + 31s).kind == ClaimKind::unknown);
}

TEST_CASE("release: uncounted, it passes the verify mark on to the next", "[protocol]") {
    const Policy verify{Orphan::verify, 0, 3};
    const auto live = running(verify, P);
    auto request = claim_by(2, P, verify);
    request.can_verify = true;
    const auto taken = protocol::claim(&live, request, t0 + 31s).record;
    auto release = finish_by(2, taken.fence, FinishKind::release);
    release.counted = false;
    const auto back = protocol::finish(&taken, release, t0 + 32s).record;
    CHECK(back.state == State::released);
    CHECK(back.verify);
    CHECK(back.retention_end == t0 + 32s + 1h + 5h);
    request = claim_by(3, P);  // with a policy that would rerun, and no callback
    CHECK(protocol::claim(&back, request, t0 + 33s).kind == ClaimKind::unknown);
    request.can_verify = true;
    const auto next = protocol::claim(&back, request, t0 + 33s);
    CHECK(next.kind == ClaimKind::acquired);
    CHECK(next.record.verify);
    CHECK(next.record.takeover);
    request.fingerprint = Q;
    CHECK(protocol::claim(&back, request, t0 + 33s).kind == ClaimKind::mismatch);
    release.counted = true;  // it ran, so it has verified
    CHECK_FALSE(protocol::finish(&taken, release, t0 + 32s).record.verify);
}

TEST_CASE("claim: crashes at the cap are a dead letter", "[protocol]") {
    auto worn = running({Orphan::rerun, 0, 5});
    worn.crashes = 3;
    CHECK(protocol::claim(&worn, claim_by(2), t0 + 31s).kind == ClaimKind::acquired);
    worn.crashes = 4;
    const auto answer = protocol::claim(&worn, claim_by(2), t0 + 31s);
    CHECK(answer.kind == ClaimKind::failed);
    CHECK(answer.record.failure == FailureClass::exhausted);
    CHECK(answer.record.fence > worn.fence);
    CHECK(answer.record.retention_end == t0 + 31s + 5h);
}

TEST_CASE("claim: a cap of 0 means none", "[protocol]") {
    auto worn = running();
    worn.crashes = worn.attempt = std::numeric_limits<std::uint32_t>::max();
    const auto answer = protocol::claim(&worn, claim_by(2), t0 + 31s);
    CHECK(answer.kind == ClaimKind::acquired);
    CHECK(answer.record.crashes == worn.crashes);
    CHECK(answer.record.attempt == worn.attempt);
}

TEST_CASE("claim: of record and caller the stricter policy counts", "[protocol]") {
    using protocol::stricter;
    CHECK(stricter({Orphan::rerun, 0, 3}, {Orphan::verify, 4, 0}) == Policy{Orphan::verify, 4, 3});
    CHECK(stricter({Orphan::hold, 9, 3}, {Orphan::verify, 4, 7}) == Policy{Orphan::hold, 4, 3});
    const auto live = running();
    CHECK(protocol::claim(&live, claim_by(2, {}, {Orphan::hold, 0, 0}), t0 + 31s).kind ==
          ClaimKind::unknown);
}

TEST_CASE("claim: released is acquired, and a corrected request starts afresh", "[protocol]") {
    const auto record = settled(FinishKind::release, P);
    auto answer = protocol::claim(&record, claim_by(2, P), t0 + 2s);
    CHECK(answer.kind == ClaimKind::acquired);
    CHECK(answer.record.attempt == 2);
    CHECK(answer.record.crashes == 0);
    CHECK(answer.change.checkpoint == Part::keep);
    answer = protocol::claim(&record, claim_by(2, Q), t0 + 2s);
    CHECK(answer.kind == ClaimKind::acquired);
    CHECK(answer.record.fingerprint == Q);
    CHECK(answer.change.checkpoint == Part::clear);
    CHECK(answer.change.resource == Part::clear);
}

TEST_CASE("claim: issued is acquired within its validity, else expired", "[protocol]") {
    const auto token = protocol::issue(nullptr, issue_by(9), t0).record;
    CHECK(protocol::claim(&token, claim_by(1), t0 + 10min - 1us).kind == ClaimKind::acquired);
    const auto late = protocol::claim(&token, claim_by(1), t0 + 10min);
    CHECK(late.kind == ClaimKind::expired);
    CHECK_FALSE(late.change.write);
    auto redeem = claim_by(1);
    redeem.redeem_only = true;
    CHECK(protocol::claim(&token, redeem, token.retention_end).kind == ClaimKind::absent);
}

TEST_CASE("claim: succeeded, failed and unknown answer what they hold", "[protocol]") {
    const auto kind_of = [](FinishKind kind) {
        const auto record = settled(kind);
        const auto answer = protocol::claim(&record, claim_by(2), t0 + 2s);
        CHECK_FALSE(answer.change.write);
        return answer.kind;
    };
    CHECK(kind_of(FinishKind::complete) == ClaimKind::completed);
    CHECK(kind_of(FinishKind::fail) == ClaimKind::failed);
    CHECK(kind_of(FinishKind::quarantine) == ClaimKind::unknown);
}

TEST_CASE("finish: only owner and fence that stand on a running record may", "[protocol]") {
    const auto live = running();
    for (const auto kind : all_finishes) {
        for (const auto now : {t0, t0 + 31s}) {
            CHECK_FALSE(protocol::finish(&live, finish_by(1, live.fence, kind), now).lost);
            for (const auto& request :
                 {finish_by(2, live.fence, kind), finish_by(1, live.fence + 1, kind),
                  finish_by(1, live.fence - 1, kind)}) {
                const auto answer = protocol::finish(&live, request, now);
                CHECK(answer.lost);
                CHECK(answer.reason == LostReason::other_owner);
                CHECK_FALSE(answer.change.write);
            }
        }
    }
}

TEST_CASE("finish: the same finish again answers as the first did", "[protocol]") {
    for (const auto kind : all_finishes) {
        const auto record = settled(kind);
        const auto answer = protocol::finish(&record, finish_by(1, record.fence, kind), t0 + 2s);
        CHECK_FALSE(answer.lost);
        CHECK_FALSE(answer.change.write);
        CHECK(answer.record == record);
    }
}

TEST_CASE("finish: unknown accepts late truth of its last owner", "[protocol]") {
    const auto held = settled(FinishKind::quarantine);
    for (const auto kind : {FinishKind::complete, FinishKind::fail}) {
        CHECK_FALSE(protocol::finish(&held, finish_by(1, held.fence, kind), t0 + 2s).lost);
        CHECK(protocol::finish(&held, finish_by(2, held.fence, kind), t0 + 2s).lost);
        CHECK(protocol::finish(&held, finish_by(1, held.fence + 1, kind), t0 + 2s).lost);
    }
    CHECK(protocol::finish(&held, finish_by(1, held.fence, FinishKind::release), t0 + 2s).lost);
}

TEST_CASE("finish: what was completed is never demoted", "[protocol]") {
    const auto done = settled(FinishKind::complete);
    for (const auto kind : all_finishes) {
        const auto answer = protocol::finish(&done, finish_by(1, done.fence, kind), t0 + 2s);
        const bool weaker = kind == FinishKind::complete || kind == FinishKind::quarantine;
        CHECK(answer.lost != weaker);
        CHECK_FALSE(answer.change.write);
    }
}

TEST_CASE("finish: everyone else is lost with the reason", "[protocol]") {
    const auto done = settled(FinishKind::complete);
    CHECK(protocol::finish(&done, finish_by(2, done.fence, FinishKind::complete), t0 + 2s).reason ==
          LostReason::finished);
    const auto tombstone = forgotten();
    const auto gone = finish_by(1, tombstone.fence, FinishKind::complete);
    CHECK(protocol::finish(&tombstone, gone, t0 + 2s).reason == LostReason::forgotten);
    CHECK(
        protocol::finish(&done, finish_by(1, done.fence, FinishKind::complete), done.retention_end)
            .reason == LostReason::gone);
    CHECK(protocol::finish(nullptr, gone, t0).reason == LostReason::gone);
    CHECK_FALSE(protocol::finish(nullptr, gone, t0).exists);
}

TEST_CASE("finish: retention is counted anew, long for what a person must see", "[protocol]") {
    CHECK(settled(FinishKind::complete).retention_end == t0 + 1s + 1h);
    CHECK(settled(FinishKind::release).retention_end == t0 + 1s + 1h);
    CHECK(settled(FinishKind::fail).retention_end == t0 + 1s + 5h);
    CHECK(settled(FinishKind::quarantine).retention_end == t0 + 1s + 5h);
}

TEST_CASE("release: keeps counts, and is exhausted at the attempt cap", "[protocol]") {
    auto live = running({Orphan::rerun, 2, 0});
    auto request = finish_by(1, live.fence, FinishKind::release);
    CHECK(protocol::finish(&live, request, t0).record.state == State::released);
    live.attempt = 2;
    live.crashes = 1;
    const auto answer = protocol::finish(&live, request, t0);
    CHECK(answer.record.state == State::failed);
    CHECK(answer.record.failure == FailureClass::exhausted);
    CHECK(answer.record.attempt == 2);
    CHECK(answer.record.crashes == 1);
    CHECK(answer.record.retention_end == t0 + 5h);
    CHECK_FALSE(protocol::finish(&answer.record, request, t0 + 1s).lost);
    request.counted = false;
    const auto uncounted = protocol::finish(&live, request, t0);
    CHECK(uncounted.record.state == State::released);
    CHECK(uncounted.record.attempt == 1);
}

TEST_CASE("release: whoever claims next is told of no takeover, whatever came before",
          "[protocol]") {
    const auto live = running();
    const auto taken = protocol::claim(&live, claim_by(2), t0 + 31s).record;
    CHECK(taken.takeover);
    const auto back =
        protocol::finish(&taken, finish_by(2, taken.fence, FinishKind::release), t0 + 32s).record;
    CHECK_FALSE(protocol::claim(&back, claim_by(3), t0 + 33s).record.takeover);
}

TEST_CASE("release: on a key that is not there it makes its own claim stale", "[protocol]") {
    const auto answer = protocol::finish(nullptr, finish_by(1, 0, FinishKind::release), t0);
    CHECK_FALSE(answer.lost);
    CHECK(answer.record.state == State::released);
    CHECK(answer.record.retention_end == t0 + 1min);
    CHECK(protocol::claim(&answer.record, claim_by(1), t0 + 1s).kind == ClaimKind::stale);
    const auto other = protocol::claim(&answer.record, claim_by(2), t0 + 1s);
    CHECK(other.kind == ClaimKind::acquired);
    CHECK(other.record.attempt == 1);
}

TEST_CASE("release: without a fence the owner alone names the claim", "[protocol]") {
    const auto live = running();
    CHECK_FALSE(protocol::finish(&live, finish_by(1, 0, FinishKind::release), t0).lost);
    CHECK(protocol::finish(&live, finish_by(2, 0, FinishKind::release), t0).lost);
    for (const auto kind : {FinishKind::complete, FinishKind::fail, FinishKind::quarantine})
        CHECK(protocol::finish(&live, finish_by(1, 0, kind), t0).lost);
}

TEST_CASE("renew: never shortens a life", "[protocol]") {
    const auto live = running();
    auto request = renew_by(1, live.fence);
    request.lease = 1s;
    auto answer = protocol::renew(&live, request, t0);
    CHECK(answer.record.lease_end == live.lease_end);
    CHECK(answer.lease_left == 30s);
    answer = protocol::renew(&live, renew_by(1, live.fence), t0 + 20s);
    CHECK(answer.record.lease_end == t0 + 50s);
    CHECK(answer.record.retention_end == t0 + 50s + 1h);
    CHECK_FALSE(protocol::renew(&live, renew_by(1, live.fence), t0 + 31s).lost);
}

TEST_CASE("renew: never touches a finished record, never takes a lease back", "[protocol]") {
    for (const auto kind : all_finishes) {
        const auto record = settled(kind);
        const auto answer = protocol::renew(&record, renew_by(1, record.fence), t0 + 2s);
        CHECK(answer.reason == LostReason::finished);
        CHECK_FALSE(answer.change.write);
    }
    const auto live = running();
    const auto taken = protocol::claim(&live, claim_by(2), t0 + 31s).record;
    CHECK(protocol::renew(&taken, renew_by(1, live.fence), t0 + 31s).reason ==
          LostReason::other_owner);
    CHECK(protocol::renew(nullptr, renew_by(1, 1), t0).reason == LostReason::gone);
    const auto tombstone = forgotten();
    CHECK(protocol::renew(&tombstone, renew_by(1, live.fence), t0 + 2s).reason ==
          LostReason::forgotten);
}

TEST_CASE("issue: never overwrites, and its own retry is granted", "[protocol]") {
    const auto token = protocol::issue(nullptr, issue_by(9, P), t0).record;
    CHECK(token.state == State::issued);
    CHECK(token.retention_end == t0 + 10min + 1h);
    CHECK(protocol::issue(&token, issue_by(9, P), t0 + 1s).done);
    CHECK_FALSE(protocol::issue(&token, issue_by(8, P), t0 + 1s).done);
    const auto used = protocol::claim(&token, claim_by(1, P), t0 + 1s).record;
    CHECK_FALSE(protocol::issue(&used, issue_by(9, P), t0 + 1s).done);
    for (const auto kind : all_finishes) {
        const auto record = settled(kind);
        const auto answer = protocol::issue(&record, issue_by(9), t0 + 2s);
        CHECK_FALSE(answer.done);
        CHECK_FALSE(answer.change.write);
    }
    const auto tombstone = forgotten();
    const auto over = protocol::issue(&tombstone, issue_by(9), t0 + 2s);
    CHECK(over.done);
    CHECK(over.record.fence > tombstone.fence);
    CHECK(protocol::claim(&over.record, claim_by(1), t0 + 2s).kind == ClaimKind::stale);
}

TEST_CASE("token: comes back with its binding only; a final failure burns it", "[protocol]") {
    for (const bool bound : {true, false}) {
        const auto token = protocol::issue(nullptr, issue_by(9, bound ? P : Fingerprint{}), t0);
        const auto used = protocol::claim(&token.record, claim_by(1, P), t0).record;
        const auto back =
            protocol::finish(&used, finish_by(1, used.fence, FinishKind::release), t0);
        CHECK(back.record.state == State::issued);
        CHECK(back.record.fingerprint.present() == bound);
        CHECK(back.record.retention_end == t0 + 10min + 1h);
        CHECK(back.change.checkpoint == Part::clear);
        CHECK(back.change.resource == Part::clear);
        CHECK(protocol::reap(&used, reap_of(used.fence), t0 + 31s).record.state == State::issued);
        const auto burned = protocol::finish(&used, finish_by(1, used.fence, FinishKind::fail), t0);
        CHECK(burned.record.state == State::failed);
        CHECK(protocol::claim(&used, claim_by(2, P), t0 + 11min).kind == ClaimKind::expired);
    }
}

TEST_CASE("resolve: settles what is held, as seen, and raises the fence", "[protocol]") {
    const auto held = settled(FinishKind::quarantine);
    ResolveRequest request;
    request.seen_fence = held.fence + 1;
    request.retention = 1h;
    CHECK_FALSE(protocol::resolve(&held, request, t0 + 2s).done);
    request.seen_fence = held.fence;
    const auto back = protocol::resolve(&held, request, t0 + 2s);
    CHECK(back.done);
    CHECK(back.record.state == State::released);
    CHECK(back.record.fence > held.fence);
    request.succeeded = true;
    const auto done = protocol::resolve(&held, request, t0 + 2s);
    CHECK(done.record.state == State::succeeded);
    CHECK(protocol::finish(&done.record, finish_by(1, held.fence, FinishKind::complete), t0 + 3s)
              .lost);
    for (const auto kind : {FinishKind::complete, FinishKind::fail, FinishKind::release}) {
        const auto record = settled(kind);
        request.seen_fence = record.fence;
        CHECK_FALSE(protocol::resolve(&record, request, t0 + 2s).done);
    }
}

TEST_CASE("reap: settles a lapsed record by its policy, and looks again", "[protocol]") {
    const auto reaped = [](const Policy& policy, std::uint32_t crashes, Duration after) {
        auto live = running(policy);
        live.crashes = crashes;
        return protocol::reap(&live, reap_of(live.fence), t0 + after);
    };
    CHECK_FALSE(reaped({}, 0, 29s).done);
    CHECK(reaped({}, 0, 30s).record.state == State::released);
    CHECK(reaped({}, 0, 30s).record.crashes == 1);
    CHECK(reaped({Orphan::hold, 0, 0}, 0, 30s).record.state == State::unknown);
    CHECK_FALSE(reaped({Orphan::verify, 0, 0}, 0, 30s).done);
    CHECK(reaped({Orphan::verify, 0, 2}, 1, 30s).record.state == State::unknown);
    CHECK(reaped({Orphan::rerun, 0, 2}, 1, 30s).record.state == State::failed);
    CHECK(reaped({Orphan::rerun, 1, 0}, 0, 30s).record.state == State::failed);
    const auto live = running();
    CHECK_FALSE(protocol::reap(&live, reap_of(live.fence + 1), t0 + 31s).done);
    CHECK_FALSE(protocol::reap(nullptr, reap_of(1), t0).done);
}

TEST_CASE("forget: leaves a tombstone with fence and last owner", "[protocol]") {
    const auto live = running({}, P);
    const auto answer = protocol::forget(&live, forget_it(), t0 + 1s);
    CHECK(answer.done);
    CHECK(answer.record.state == State::forgotten);
    CHECK(answer.record.fence == live.fence);
    CHECK(answer.record.owner == live.owner);
    CHECK_FALSE(answer.record.fingerprint.present());
    CHECK(answer.record.retention_end == t0 + 1s + 1min);
    CHECK_FALSE(protocol::visible(&answer.record, t0 + 1s));
    CHECK_FALSE(protocol::forget(&answer.record, forget_it(), t0 + 2s).done);
    CHECK_FALSE(protocol::forget(nullptr, forget_it(), t0).done);
    auto longer = claim_by(1);
    longer.lease = 1h;
    const auto slow = protocol::claim(nullptr, longer, t0).record;
    CHECK(protocol::forget(&slow, forget_it(), t0).record.retention_end == t0 + 1h);
}

}  // namespace protocol_test
