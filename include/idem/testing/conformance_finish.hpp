#ifndef IDEM_TESTING_CONFORMANCE_FINISH_HPP
#define IDEM_TESTING_CONFORMANCE_FINISH_HPP

#include <idem/testing/conformance_claim.hpp>

/// "finish and renew", sentence by sentence.
namespace idem::inline v0_1::testing::conformance {

inline void expect_lost(const auto& reply, LostReason reason, const std::string& what) {
    expect(reply.lost, what + " was not answered lost");
    expect_equal(reply.reason, reason, what + ": the reason");
}

template <class B>
void finish_only_the_holder(B& b) {
    const Fence fence = b.acquire(b.key(), 1);
    b.untouched(b.key(), [&] {
        for (const auto kind : all_finishes) {
            expect_lost(b.finish(b.key(), 2, fence, kind), LostReason::other_owner, "a stranger");
            expect_lost(b.finish(b.key(), 1, fence + 1, kind), LostReason::other_owner,
                        "another fence");
            expect_lost(b.finish(b.key(), 1, fence - 1, kind), LostReason::other_owner,
                        "an older fence");
        }
        expect_lost(b.send(b.renew_request(b.key(), 2, fence)), LostReason::other_owner,
                    "a stranger's renewal");
        expect_lost(b.send(b.renew_request(b.key(), 1, fence + 1)), LostReason::other_owner,
                    "a renewal with another fence");
    });
}

template <class B>
void finish_after_lapse(B& b) {
    for (const auto kind : all_finishes) {
        const auto key = b.key(to_string(kind));
        const Fence fence = b.acquire(key, 1);
        b.lapse();
        expect(!b.finish(key, 1, fence, kind).lost, "a lapsed lease nobody took still stands");
    }
    const Fence fence = b.acquire(b.key(), 1);
    b.lapse();
    const auto renewed = b.send(b.renew_request(b.key(), 1, fence));
    expect(!renewed.lost, "the renewal of a lapsed lease that nobody took was lost");
    b.expect_near(renewed.lease_left, B::lease, "the lease left");
}

template <class B>
void finish_again(B& b) {
    constexpr State states[] = {State::succeeded, State::failed, State::released, State::unknown};
    std::size_t i = 0;
    for (const auto kind : all_finishes) {
        const auto key = b.key(to_string(kind));
        const Fence fence = b.settle(key, 1, kind);
        b.expect_state(key, states[i++]);
        b.advance(std::chrono::seconds{1});
        b.untouched(key, [&] {
            const auto again = b.finish(key, 1, fence, kind);
            expect(!again.lost, "the same finish again was lost");
            expect_equal(again.state, b.must_find(key).header.state, "the state in the answer");
        });
        expect_lost(b.finish(key, 2, fence, kind), LostReason::finished, "a stranger afterwards");
    }
}

template <class B>
void finish_late_truth(B& b) {
    for (const auto kind : {FinishKind::complete, FinishKind::fail}) {
        const auto key = b.key(to_string(kind));
        const Fence fence = b.settle(key, 1, FinishKind::quarantine);
        expect_lost(b.finish(key, 2, fence, kind), LostReason::finished, "a stranger's truth");
        expect(!b.finish(key, 1, fence, kind).lost, "late truth of the last owner was lost");
        b.expect_state(key, kind == FinishKind::complete ? State::succeeded : State::failed);
    }
    auto request = b.claim_request(b.key("orphan"), 1);
    request.policy.orphan = Orphan::hold;
    const Fence fence = b.acquire(request);
    b.lapse();
    expect_equal(b.claim(b.key("orphan"), 2).kind, ClaimKind::unknown, "an orphan under hold");
    expect(!b.finish(b.key("orphan"), 1, fence, FinishKind::complete).lost,
           "late truth of a vanished holder was lost");
    b.expect_state(b.key("orphan"), State::succeeded);
}

template <class B>
void finish_never_demotes(B& b) {
    const Fence fence = b.settle(b.key(), 1, FinishKind::complete);
    b.untouched(b.key(), [&] {
        auto reply = b.finish(b.key(), 1, fence, FinishKind::quarantine);
        expect(!reply.lost && reply.state == State::succeeded, "quarantine after complete");
        auto without = b.finish_request(b.key(), 1, fence, FinishKind::complete);
        without.result_kind = ResultKind::too_large;
        without.result = {};
        reply = b.send(without);
        expect(!reply.lost && reply.state == State::succeeded, "complete without the value");
        expect_lost(b.finish(b.key(), 1, fence, FinishKind::fail), LostReason::finished,
                    "fail after complete");
        expect_lost(b.finish(b.key(), 1, fence, FinishKind::release), LostReason::finished,
                    "release after complete");
    });
}

template <class B>
void finish_lost_reasons(B& b) {
    const Fence first = b.acquire(b.key("taken"), 1);
    b.lapse();
    b.acquire(b.key("taken"), 2);
    b.untouched(b.key("taken"), [&] {
        expect_lost(b.finish(b.key("taken"), 1, first, FinishKind::complete),
                    LostReason::other_owner, "complete after a takeover");
    });
    const Fence forgotten = b.acquire(b.key("forgotten"), 1);
    b.forget(b.key("forgotten"));
    const Fence gone = b.acquire(b.key("gone"), 1);
    const auto away = b.key("away");
    for (const auto kind : {FinishKind::complete, FinishKind::fail, FinishKind::quarantine}) {
        expect_lost(b.finish(b.key("forgotten"), 1, forgotten, kind), LostReason::forgotten,
                    "finish after forget");
        expect_lost(b.finish(away, 1, 7, kind), LostReason::gone, "finish of nothing");
        expect(!b.find(away), "a lost finish made a record");
    }
    expect_lost(b.send(b.renew_request(b.key("forgotten"), 1, forgotten)), LostReason::forgotten,
                "renewal after forget");
    expect_lost(b.send(b.renew_request(away, 1, 7)), LostReason::gone, "renewal of nothing");
    b.expire();
    expect_lost(b.finish(b.key("gone"), 1, gone, FinishKind::complete), LostReason::gone,
                "complete past retention");
}

template <class B>
void renew_rules(B& b) {
    const Fence fence = b.acquire(b.key(), 1);
    auto request = b.renew_request(b.key(), 1, fence);
    request.lease = std::chrono::seconds{5};
    const auto before = b.must_find(b.key()).header;
    auto reply = b.send(request);
    expect(!reply.lost, "the holder's renewal was lost");
    b.expect_near(reply.lease_left, B::lease, "the lease left after a shorter renewal");
    auto after = b.must_find(b.key()).header;
    expect(after.lease_end >= before.lease_end && after.retention_end >= before.retention_end,
           "a renewal shortened a life");
    b.advance(std::chrono::seconds{20});
    reply = b.send(b.renew_request(b.key(), 1, fence));
    b.expect_near(reply.lease_left, B::lease, "the lease left after a renewal");
    after = b.must_find(b.key()).header;
    expect_equal(after.fence, fence, "the fence after a renewal");
    expect(after.retention_end >= after.lease_end + B::retention, "retention ends too early");
    for (const auto kind : all_finishes) {
        const auto key = b.key(to_string(kind));
        const Fence own = b.settle(key, 1, kind);
        b.untouched(key, [&] {
            expect_lost(b.send(b.renew_request(key, 1, own)), LostReason::finished,
                        "a renewal after the end");
        });
    }
    const Fence first = b.acquire(b.key("back"), 1);
    b.lapse();
    b.acquire(b.key("back"), 2);
    expect_lost(b.send(b.renew_request(b.key("back"), 1, first)), LostReason::other_owner,
                "a renewal that takes a lease back");
}

template <class B>
void release_counts(B& b) {
    auto request = b.claim_request(b.key(), 1);
    request.policy.max_attempts = 2;
    const auto release = [&](std::uint64_t who, Fence fence, bool counted) {
        auto out = b.finish_request(b.key(), who, fence, FinishKind::release);
        out.counted = counted;
        const auto reply = b.send(out);
        expect(!reply.lost, "the holder's release was lost");
        return reply.state;
    };
    Fence fence = b.acquire(request);
    expect_equal(release(1, fence, false), State::released, "an uncounted release");
    expect_equal(b.must_find(b.key()).header.attempt, 0U, "the attempt it takes back");
    expect_equal(release(1, fence, false), State::released, "an uncounted release, again");
    expect_equal(b.must_find(b.key()).header.attempt, 0U, "the attempt, taken back once");
    request.owner = B::owner(2);
    fence = b.acquire(request);
    expect_equal(release(2, fence, true), State::released, "a release below the cap");
    expect_equal(b.must_find(b.key()).header.attempt, 1U, "the attempt it keeps");
    request.owner = B::owner(3);
    fence = b.acquire(request);
    expect_equal(release(3, fence, true), State::failed, "a release at the cap");
    const auto reply = b.claim(b.key(), 4);
    expect_equal(reply.kind, ClaimKind::failed, "a claim after the last attempt");
    expect_equal(reply.failure.kind, FailureClass::exhausted, "its failure");
    expect_equal(reply.failure.code, "code", "the code of the last cause");
}

template <class B>
void release_of_nothing(B& b) {
    auto release = b.finish_request(b.key(), 1, 0, FinishKind::release);
    release.counted = false;
    auto reply = b.send(release);
    expect(!reply.lost, "the release of an absent key was lost");
    expect_equal(reply.state, State::released, "the state it leaves");
    expect_equal(b.claim(b.key(), 1).kind, ClaimKind::stale, "its own delayed claim");
    const auto other = b.claim(b.key(), 2);
    expect_equal(other.kind, ClaimKind::acquired, "another's claim over what it left");
    expect_equal(other.attempt, 1U, "its attempt");
    b.untouched(b.key(), [&] { expect(b.send(release).lost, "a stranger's release was heard"); });
    b.acquire(b.key("own"), 1);
    release.key = b.view(b.key("own"));
    reply = b.send(release);  // the owner alone names a claim whose answer was lost
    expect(!reply.lost && reply.state == State::released, "a release without a fence was lost");
    expect_equal(b.claim(b.key("own"), 1).kind, ClaimKind::stale, "its delayed copy");
    release.key = b.view(b.key("long"));
    release.lease = B::long_lease;
    expect(!b.send(release).lost, "the release of an absent key was lost");
    b.advance(B::long_lease - std::chrono::seconds{1} - b.slack());
    expect_equal(b.claim(b.key("long"), 1).kind, ClaimKind::stale,
                 "a claim delayed by a long lease");
    release.key = b.view(b.key("known"));
    release.fence = 77;  // of a record that has gone since
    for (const char* what : {"the release of a record that is gone", "the same once more"}) {
        reply = b.send(release);
        expect(!reply.lost && reply.state == State::released, what);
    }
}

template <class B>
void finish_keeps_what_it_brings(B& b) {
    for (const auto kind : {ResultKind::none, ResultKind::too_large, ResultKind::not_encodable}) {
        const auto key = b.key(to_string(kind));
        const Fence fence = b.acquire(key, 1);
        auto complete = b.finish_request(key, 1, fence, FinishKind::complete);
        complete.result_kind = kind;
        complete.result = {};
        expect(!b.send(complete).lost, "the holder's complete was lost");
        const auto reply = b.claim(key, 2);
        expect_equal(reply.kind, ClaimKind::completed, "a repeat");
        expect_equal(reply.result_kind, kind, "why there is no result");
    }
    const auto key = b.key("parts");
    const Fence fence = b.acquire(key, 1);
    auto quarantine = b.finish_request(key, 1, fence, FinishKind::quarantine);
    quarantine.checkpoint = "at 7";
    quarantine.resource = "job-1";
    expect(!b.send(quarantine).lost, "the holder's quarantine was lost");
    const auto record = b.must_find(key);
    expect_equal(record.payload.checkpoint, "at 7", "the checkpoint");
    expect_equal(record.payload.resource, "job-1", "the resource");
    b.expect_left(record.header.retention_end, B::held_retention, "a held record's retention");
    b.expect_left(record.header.completed, Duration{}, "when it was settled");
}

template <class B>
void finish_counts_retention_anew(B& b) {
    const Fence fence = b.acquire(b.key(), 1);
    b.advance(std::chrono::seconds{20});
    expect(!b.finish(b.key(), 1, fence, FinishKind::complete).lost, "the holder lost");
    b.expect_left(b.must_find(b.key()).header.retention_end, B::retention, "the retention");
    b.advance(B::retention - std::chrono::seconds{5});
    expect_equal(b.claim(b.key(), 2).kind, ClaimKind::completed, "a repeat within retention");
    b.settle(b.key("failed"), 1, FinishKind::fail);
    b.advance(B::held_retention - std::chrono::seconds{5});
    expect_equal(b.claim(b.key("failed"), 2).kind, ClaimKind::failed, "a dead letter");
}

template <world World>
[[nodiscard]] Promises<World> finish_promises() {
    using B = Bench<World>;
    return {
        {2, "finish: only owner and fence on record may", finish_only_the_holder<B>},
        {2, "finish: a lapsed lease nobody took still stands", finish_after_lapse<B>},
        {5, "finish: the same finish again answers as the first", finish_again<B>},
        {2, "finish: unknown accepts late truth of its last owner", finish_late_truth<B>},
        {2, "finish: a completed record is never demoted", finish_never_demotes<B>},
        {2, "finish: everyone else is lost, with the reason", finish_lost_reasons<B>},
        {2, "renew: never shortens, never touches the finished, never takes back", renew_rules<B>},
        {2, "release: keeps counts, ends at the cap, uncounted takes back", release_counts<B>},
        {5, "release: on a key not there it makes its own claim stale", release_of_nothing<B>},
        {6, "finish: result kinds, checkpoint and resource are kept",
         finish_keeps_what_it_brings<B>},
        {8, "finish: retention is counted anew", finish_counts_retention_anew<B>},
    };
}

}  // namespace idem::inline v0_1::testing::conformance

#endif
