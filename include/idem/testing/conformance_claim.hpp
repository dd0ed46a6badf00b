#ifndef IDEM_TESTING_CONFORMANCE_CLAIM_HPP
#define IDEM_TESTING_CONFORMANCE_CLAIM_HPP

#include <idem/testing/conformance_base.hpp>

/// The rows of the claim table, one function each.
namespace idem::inline v0_1::testing::conformance {

inline constexpr FinishKind all_finishes[] = {FinishKind::complete, FinishKind::fail,
                                              FinishKind::release, FinishKind::quarantine};

template <class B>
void claim_nothing(B& b) {
    const auto request = b.claim_request(b.key(), 1);
    const Instant before = b.world.now();
    const auto reply = b.send(request);
    expect_equal(reply.kind, ClaimKind::acquired, "the claim of a fresh key");
    expect_equal(reply.attempt, 1U, "the attempt");
    expect_equal(reply.crashes, 0U, "the crashes");
    expect(reply.fence > 0 && !reply.verify && !reply.takeover, "a fresh claim has odd flags");
    b.expect_near(reply.lease_left, B::lease, "the lease left");
    b.expect_near(reply.created, before, "created");
    const auto record = b.must_find(b.key());
    expect_equal(record.header.state, State::running, "the state");
    expect(record.header.owner == request.owner, "the owner on record is not the claimant");
    expect_equal(record.header.fence, reply.fence, "the fence on record");
    expect(record.key == b.key() && record.component == Component::call, "find shows another key");
    b.expect_left(record.header.lease_end, B::lease, "the lease's end");
    b.expect_left(record.header.retention_end, B::lease + B::retention, "the retention's end");
}

template <class B>
void claim_redeem_only_absent(B& b) {
    auto request = b.claim_request(b.key(), 1);
    request.redeem_only = true;
    expect_equal(b.send(request).kind, ClaimKind::absent, "redeeming an unknown token");
    expect(!b.find(b.key()), "redeeming an unknown token left a record");
    b.acquire(b.key(), 2);
    b.forget(b.key());
    expect_equal(b.send(request).kind, ClaimKind::absent, "redeeming a forgotten token");
}

template <class B>
void claim_past_retention(B& b) {
    const auto first = b.settle(b.key(), 1, FinishKind::complete);
    b.advance(B::retention + b.slack() + Duration{1});
    expect(!b.find(b.key()), "find shows a record past its retention");
    auto request = b.claim_request(b.key(), 2);
    request.redeem_only = true;
    expect_equal(b.send(request).kind, ClaimKind::absent, "redeeming past retention");
    const auto reply = b.claim(b.key(), 3);
    expect_equal(reply.kind, ClaimKind::acquired, "a claim past retention");
    expect_equal(reply.attempt, 1U, "the attempt past retention");
    expect(reply.fence > first, "the fence did not grow across expiry");
    expect(reply.resource.empty() && reply.checkpoint.empty(), "old bytes survived expiry");
}

template <class B>
void claim_stale(B& b) {
    for (const auto kind : all_finishes) {
        const auto key = b.key(to_string(kind));
        b.settle(key, 1, kind);
        b.untouched(key, [&] {
            expect_equal(b.claim(key, 1).kind, ClaimKind::stale, "a copy of an ended claim");
        });
    }
    const auto key = b.key("forgotten");
    b.acquire(key, 1);
    b.forget(key);
    expect_equal(b.claim(key, 1).kind, ClaimKind::stale, "a copy of a forgotten claim");
    expect(!b.find(key), "a stale claim brought a forgotten key back");
    const auto again = b.key("again");
    b.settle(again, 1, FinishKind::release);
    b.acquire(again, 2);  // a live caller claims again with a new owner
}

template <class B>
void claim_forgotten(B& b) {
    Fence last = b.settle(b.key(), 1, FinishKind::complete);
    for (std::uint64_t who = 2; who < 6; ++who) {
        b.forget(b.key());
        const auto reply = b.claim(b.key(), who);
        expect_equal(reply.kind, ClaimKind::acquired, "the claim of a forgotten key");
        expect_equal(reply.attempt, 1U, "the attempt after forget");
        expect(reply.fence > last, "the fence did not grow across forget");
        last = reply.fence;
    }
}

template <class B>
void claim_mismatch(B& b) {
    auto first = b.claim_request(b.key(), 1);
    first.fingerprint = Fingerprint::of_bytes("P");
    auto other = b.claim_request(b.key(), 2);
    other.fingerprint = Fingerprint::of_bytes("Q");
    for (const auto kind : all_finishes) {
        const auto key = b.key(to_string(kind));
        first.key = other.key = b.view(key);
        const Fence fence = b.acquire(first);
        const auto mismatch = [&](const char* when) {
            b.untouched(key, [&] {
                const auto reply = b.send(other);
                expect_equal(reply.kind, ClaimKind::mismatch, when);
                expect(reply.result.empty() && reply.fence == 0, "a mismatch hands out data");
            });
        };
        mismatch("another request while running");
        expect(!b.finish(key, 1, fence, kind).lost, "the holder lost");
        if (kind == FinishKind::release) {
            b.acquire(other);
            first.owner = B::owner(3);
            expect_equal(b.send(first).kind, ClaimKind::mismatch, "the request that was replaced");
            first.owner = B::owner(1);
        } else {
            mismatch("another request for a settled record");
        }
    }
    first.key = other.key = b.view(b.key("lapsed"));
    b.acquire(first);
    b.lapse();
    expect_equal(b.send(other).kind, ClaimKind::mismatch, "another request for an orphan");
}

template <class B>
void claim_fingerprint_before(B& b) {
    auto first = b.claim_request(b.key(), 1);
    first.fingerprint = Fingerprint::of_bytes("by the old algorithm");
    const Fence fence = b.acquire(first);
    auto later = b.claim_request(b.key(), 2);
    later.fingerprint = Fingerprint::of("by the new one");
    expect_equal(b.send(later).kind, ClaimKind::mismatch, "a claim that knows no older print");
    later.fingerprint_before = first.fingerprint;
    expect_equal(b.send(later).kind, ClaimKind::in_progress, "a claim that brings the older print");
    expect(!b.finish(b.key(), 1, fence, FinishKind::complete).lost, "the holder lost");
    expect_equal(b.send(later).kind, ClaimKind::completed, "a claim that brings the older print");
}

template <class B>
void claim_without_fingerprint(B& b) {
    auto with = b.claim_request(b.key("with"), 1);
    with.fingerprint = Fingerprint::of_bytes("P");
    b.acquire(with);
    expect_equal(b.claim(b.key("with"), 2).kind, ClaimKind::in_progress, "a claim without a print");
    expect(b.must_find(b.key("with")).header.fingerprint == with.fingerprint,
           "a claim without a fingerprint changed it");
    b.acquire(b.key("without"), 1);
    with.key = b.view(b.key("other"));
    auto late = b.claim_request(b.key("without"), 2);
    late.fingerprint = Fingerprint::of_bytes("P");
    expect_equal(b.send(late).kind, ClaimKind::in_progress, "a claim with a print");
    expect(!b.must_find(b.key("without")).header.fingerprint.present(), "a print was added");
}

template <class B>
void claim_same_owner(B& b) {
    const auto first = b.claim(b.key(), 1);
    b.advance(std::chrono::seconds{10});
    const auto again = b.claim(b.key(), 1);
    expect_equal(again.kind, ClaimKind::acquired, "the same claim again");
    expect_equal(again.fence, first.fence, "its fence");
    expect_equal(again.attempt, 1U, "its attempt");
    b.expect_near(again.lease_left, B::lease, "its lease left");
    auto shorter = b.claim_request(b.key(), 1);
    shorter.lease = std::chrono::seconds{1};
    b.expect_near(b.send(shorter).lease_left, B::lease, "the later of two ends");
    b.lapse();
    const auto lapsed = b.claim(b.key(), 1);
    expect_equal(lapsed.kind, ClaimKind::acquired, "the same claim after its lease");
    expect_equal(lapsed.fence, first.fence, "its fence after its lease");
    expect_equal(lapsed.crashes, 0U, "its crashes after its lease");
}

template <class B>
void claim_in_progress(B& b) {
    const auto first = b.claim(b.key(), 1);
    b.advance(std::chrono::seconds{10});
    b.untouched(b.key(), [&] {
        const auto reply = b.claim(b.key(), 2);
        expect_equal(reply.kind, ClaimKind::in_progress, "a second claim");
        b.expect_near(reply.lease_left, B::lease - std::chrono::seconds{10}, "the lease left");
        expect_equal(reply.attempt, 1U, "the attempt");
        b.expect_near(reply.started, first.started, "the start");
        expect_equal(reply.fence, Fence{0}, "the fence that is none of its business");
    });
    if (!b.exact()) return;
    b.advance(B::lease - std::chrono::seconds{10} - Duration{1});
    expect_equal(b.claim(b.key(), 2).kind, ClaimKind::in_progress, "a claim 1 us before the end");
    b.advance(Duration{1});
    expect_equal(b.claim(b.key(), 2).kind, ClaimKind::acquired, "a claim at the lease's end");
}

template <class B>
void claim_rerun(B& b) {
    const auto first = b.claim(b.key(), 1);
    auto note = b.renew_request(b.key(), 1, first.fence);
    note.checkpoint = "half";
    note.resource = "job-1";
    expect(!b.send(note).lost, "the holder's renewal was lost");
    b.lapse();
    expect(b.must_find(b.key()).lapsed, "find does not say that the lease is over");
    const auto reply = b.claim(b.key(), 2);
    expect_equal(reply.kind, ClaimKind::acquired, "the claim of an orphan");
    expect(reply.takeover && !reply.verify, "a takeover has odd flags");
    expect_equal(reply.attempt, 2U, "the attempt");
    expect_equal(reply.crashes, 1U, "the crashes");
    expect(reply.fence > first.fence, "the fence did not grow");
    expect_equal(b.must_find(b.key()).header.fence, reply.fence, "the fence on record");
    expect_equal(reply.checkpoint, "half", "the checkpoint handed over");
    expect_equal(reply.resource, "job-1", "the resource handed over");
    expect(b.finish(b.key(), 1, first.fence, FinishKind::complete).lost,
           "the vanished holder's complete was recorded over the new one");
}

template <class B>
void claim_hold(B& b) {
    auto request = b.claim_request(b.key(), 1);
    request.policy.orphan = Orphan::hold;
    const Fence fence = b.acquire(request);
    b.expect_left(b.must_find(b.key()).header.retention_end,
                  B::lease + B::retention + B::held_retention, "the retention of a held policy");
    b.lapse();
    const auto reply = b.claim(b.key(), 2);  // asks for rerun; the record's hold is stricter
    expect_equal(reply.kind, ClaimKind::unknown, "the claim of an orphan under hold");
    const auto record = b.must_find(b.key());
    expect_equal(record.header.state, State::unknown, "the state");
    expect_equal(record.header.fence, fence, "the fence of a held record");
    b.expect_left(record.header.retention_end, B::held_retention, "its retention");
    expect_equal(b.claim(b.key(), 3).kind, ClaimKind::unknown, "the next claim");
}

template <class B>
void claim_verify(B& b) {
    auto request = b.claim_request(b.key(), 1);
    request.policy = {Orphan::verify, 0, 3};
    request.can_verify = true;
    Fence last = b.acquire(request);
    for (std::uint64_t who = 2; who < 4; ++who) {
        b.lapse();
        request.owner = B::owner(who);
        for (int copy = 0; copy < 2; ++copy) {  // the mark is repeated in every answer
            const auto reply = b.send(request);
            expect_equal(reply.kind, ClaimKind::acquired, "the claim of one that can verify");
            expect(reply.verify && reply.takeover, "the verify mark is missing");
            if (copy == 0) expect(reply.fence > last, "the fence did not grow");
            last = reply.fence;
        }
    }
    b.lapse();
    request.owner = B::owner(5);
    expect_equal(b.send(request).kind, ClaimKind::unknown, "the third crash of three");
    request.key = b.view(b.key("none"));
    b.acquire(request);
    b.lapse();
    request.owner = B::owner(6);
    request.can_verify = false;
    expect_equal(b.send(request).kind, ClaimKind::unknown, "a claimant without a callback");
}

template <class B>
void verify_mark_survives_a_give_up(B& b) {
    for (const bool can_verify : {true, false}) {
        const auto& key = b.key(can_verify ? "can" : "cannot");
        auto request = b.claim_request(key, 1);
        request.policy.orphan = Orphan::verify;
        request.can_verify = true;
        b.acquire(request);
        b.lapse();
        request.owner = B::owner(2);
        b.acquire(request);
        auto release = b.finish_request(key, 2, 0, FinishKind::release);
        release.counted = false;
        expect(!b.send(release).lost, "the release of a claim in doubt was lost");
        request.owner = B::owner(3);
        request.can_verify = can_verify;
        const auto reply = b.send(request);
        if (can_verify) {
            expect_equal(reply.kind, ClaimKind::acquired, "the next claim");
            expect(reply.verify && reply.takeover, "the verify mark was given up with the claim");
        } else {
            expect_equal(reply.kind, ClaimKind::unknown, "the next claim without a callback");
        }
    }
}

template <class B>
void claim_crash_cap(B& b) {
    auto request = b.claim_request(b.key(), 1);
    request.policy.max_crashes = 2;
    Fence fence = b.acquire(request);
    b.lapse();
    request.owner = B::owner(2);
    fence = b.acquire(request);
    b.lapse();
    request.owner = B::owner(3);
    const auto reply = b.send(request);
    expect_equal(reply.kind, ClaimKind::failed, "the second crash of two");
    expect_equal(reply.failure.kind, FailureClass::exhausted, "its failure");
    const auto record = b.must_find(b.key());
    expect_equal(record.header.crashes, 2U, "the crashes");
    b.expect_left(record.header.retention_end, B::held_retention, "a dead letter's retention");
    expect(b.finish(b.key(), 2, fence, FinishKind::complete).lost, "a dead letter came to life");
}

template <class B>
void claim_stricter_policy(B& b) {
    auto request = b.claim_request(b.key(), 1);
    request.policy = {Orphan::rerun, 9, 0};
    b.acquire(request);
    b.lapse();
    request.owner = B::owner(2);
    request.policy = {Orphan::rerun, 4, 7};
    b.acquire(request);
    auto policy = b.must_find(b.key()).header.policy;
    expect(policy == Policy{Orphan::rerun, 4, 7}, "the lower cap of record and caller must count");
    b.lapse();
    request.owner = B::owner(3);
    request.policy = {Orphan::hold, 0, 0};
    expect_equal(b.send(request).kind, ClaimKind::unknown, "the caller's stricter policy");
}

template <class B>
void claim_released(B& b) {
    auto request = b.claim_request(b.key(), 1);
    request.fingerprint = Fingerprint::of_bytes("P");
    const Fence first = b.acquire(request);
    auto release = b.finish_request(b.key(), 1, first, FinishKind::release);
    release.checkpoint = "half";
    release.resource = "job-1";
    expect(!b.send(release).lost, "the holder's release was lost");
    request.owner = B::owner(2);
    auto reply = b.send(request);
    expect_equal(reply.kind, ClaimKind::acquired, "the claim of a released key");
    expect_equal(reply.attempt, 2U, "the attempt");
    expect_equal(reply.checkpoint, "half", "the checkpoint handed over");
    expect(reply.fence > first && !reply.takeover, "a released key is no takeover");
    release = b.finish_request(b.key(), 2, reply.fence, FinishKind::release);
    expect(!b.send(release).lost, "the holder's release was lost");
    request.owner = B::owner(3);
    request.fingerprint = Fingerprint::of_bytes("Q");
    reply = b.send(request);
    expect_equal(reply.kind, ClaimKind::acquired, "a corrected request");
    expect(reply.checkpoint.empty() && reply.resource.empty(),
           "a corrected request goes on from another one's half-done work");
    expect(b.must_find(b.key()).header.fingerprint == request.fingerprint,
           "the new fingerprint does not replace the old");
}

template <class B>
void claim_settled(B& b) {
    const auto done = b.key("done");
    const Fence fence = b.acquire(done, 1);
    auto complete = b.finish_request(done, 1, fence, FinishKind::complete);
    complete.resource = "job-1";
    expect(!b.send(complete).lost, "the holder's complete was lost");
    auto reply = b.claim(done, 2);
    expect_equal(reply.kind, ClaimKind::completed, "the claim of a succeeded key");
    expect_equal(reply.result, "result", "the result");
    expect_equal(reply.result_kind, ResultKind::value, "the kind of result");
    expect(reply.codec == complete.codec, "the codec differs");
    expect_equal(reply.resource, "job-1", "the resource");
    expect_equal(reply.attempt, 1U, "the attempt");
    expect_equal(reply.fence, fence, "the fence it was completed under");
    expect(reply.owner == B::owner(1), "the owner is not the one that completed it");
    const auto left = reply.retention_left;
    expect(left >= B::retention - b.slack() && left <= B::retention + b.slack(),
           "the result is kept for " + show(left));
    for (const auto kind : {FinishKind::fail, FinishKind::quarantine}) {
        const auto key = b.key(to_string(kind));
        b.settle(key, 1, kind);
        const bool fail = kind == FinishKind::fail;
        reply = b.claim(key, 2);
        expect_equal(reply.kind, fail ? ClaimKind::failed : ClaimKind::unknown, "the answer");
        expect_equal(reply.failure.kind, fail ? FailureClass::final : FailureClass::unknown,
                     "the class");
        expect_equal(reply.failure.code, "code", "the code");
        expect_equal(reply.failure.message, "message", "the message");
    }
}

template <world World>
[[nodiscard]] Promises<World> claim_promises() {
    using B = Bench<World>;
    return {
        {2, "claim: nothing there is acquired, attempt 1", claim_nothing<B>},
        {2, "claim: redeem only never acquires an unknown token", claim_redeem_only_absent<B>},
        {8, "claim: a record past retention is nothing", claim_past_retention<B>},
        {5, "claim: a delayed copy of a claim that has ended is stale", claim_stale<B>},
        {7, "claim: forgotten is as nothing, with a higher fence", claim_forgotten<B>},
        {2, "claim: another fingerprint is a mismatch but for released", claim_mismatch<B>},
        {2, "claim: an older fingerprint is compared as such", claim_fingerprint_before<B>},
        {2, "claim: no fingerprint conflicts with none and adds none",
         claim_without_fingerprint<B>},
        {5, "claim: the same owner again gets the same fence", claim_same_owner<B>},
        {2, "claim: a live lease is in progress", claim_in_progress<B>},
        {2, "claim: rerun takes an orphan over with its checkpoint", claim_rerun<B>},
        {2, "claim: hold makes an orphan unknown", claim_hold<B>},
        {2, "claim: verify marks the acquisition, or holds", claim_verify<B>},
        {2, "claim: a verification that was not made is owed by the next",
         verify_mark_survives_a_give_up<B>},
        {2, "claim: crashes at the cap make a dead letter", claim_crash_cap<B>},
        {2, "claim: of record and caller the stricter policy counts", claim_stricter_policy<B>},
        {2, "claim: released is acquired again", claim_released<B>},
        {2, "claim: a settled record answers with what it holds", claim_settled<B>},
    };
}

}  // namespace idem::inline v0_1::testing::conformance

#endif
