#ifndef IDEM_PROTOCOL_HPP
#define IDEM_PROTOCOL_HPP

#include <algorithm>

#include <idem/rules.hpp>

/// What the library does, as pure functions of (record header, request, now): no I/O, no clock, no
/// threads, and no copy of results. `MemoryStore` applies them under a lock; the Redis scripts and
/// the SQL say the same in their languages, and the conformance kit drives every store in lockstep
/// with this file.
///
/// `found` is what the store has under the key, past its retention or not, or null. An answer
/// carries the header to write (where `write` is set) and says for each opaque part whether it
/// stays, goes, or comes from the request.
namespace idem::inline v0_1::protocol {

// --- claim --------------------------------------------------------------------------------------

struct ClaimAnswer {
    ClaimKind kind = ClaimKind::in_progress;
    RecordHeader record{};  ///< As it stands afterwards; the reply's counts and times are its.
    Duration lease_left{};
    Duration retention_left{};  ///< Of `completed`.
    Change change{};
};

namespace detail {

inline void acquire(ClaimAnswer& answer, const RecordHeader* found, const ClaimRequest& request,
                    Instant now) noexcept {
    RecordHeader& record = answer.record;
    record.state = State::running;
    record.attempt = count_up(record.attempt);
    record.fence = next_fence(found, now);
    record.owner = request.owner;
    record.policy = stricter(record.policy, request.policy);
    record.started = now;
    record.completed = Instant{};
    record.lease_end = now + request.lease;
    record.retention_end = running_retention(record, request.retention, request.held_retention);
    record.result = ResultKind::none;
    record.codec = CodecId{};
    record.failure = FailureClass::none;
    answer.kind = ClaimKind::acquired;
    answer.lease_left = request.lease;
    answer.change.write = true;
    answer.change.result = Part::clear;
    answer.change.failure = Part::clear;
}

inline void acquire_new(ClaimAnswer& answer, const RecordHeader* found, const ClaimRequest& request,
                        Instant now) noexcept {
    answer.record = RecordHeader{};
    answer.change = Change::fresh();
    answer.record.created = now;
    answer.record.fingerprint = request.fingerprint;
    acquire(answer, found, request, now);
}

/// The same claim again: its answer had been lost. A lapsed lease nobody took counts as its own.
inline void acquire_again(ClaimAnswer& answer, const ClaimRequest& request, Instant now) noexcept {
    RecordHeader& record = answer.record;
    record.lease_end = std::max(record.lease_end, now + request.lease);
    record.retention_end = std::max(
        record.retention_end, running_retention(record, request.retention, request.held_retention));
    answer.kind = ClaimKind::acquired;
    answer.lease_left = record.lease_end - now;
    answer.change.write = true;
}

/// Held: the fence stays, for late truth of the last owner beats a guess.
inline void hold(RecordHeader& record, Instant now, Duration held_retention) noexcept {
    settle(record, State::unknown, now, held_retention);
}

/// A holder vanished. Of record and caller the stricter policy counts.
inline void claim_orphan(ClaimAnswer& answer, const RecordHeader& found,
                         const ClaimRequest& request, Instant now) noexcept {
    RecordHeader& record = answer.record;
    const Policy policy = stricter(record.policy, request.policy);
    const std::uint32_t crashes = count_up(record.crashes);
    const bool at_cap =
        reached(crashes, policy.max_crashes) || reached(record.attempt, policy.max_attempts);
    const bool verifies = policy.orphan == Orphan::verify && request.can_verify && !at_cap;
    if (policy.orphan == Orphan::rerun && record.token && now >= record.validity_end && !at_cap) {
        answer.kind = ClaimKind::expired;  // as if it had been reaped first
        return;
    }
    record.crashes = crashes;
    if ((policy.orphan == Orphan::rerun && !at_cap) || verifies) {
        record.verify = verifies;
        record.takeover = true;
        acquire(answer, &found, request, now);
        return;
    }
    record.policy = policy;
    answer.change.write = true;
    if (policy.orphan == Orphan::rerun) {
        exhaust(record, now, request.held_retention);
        record.fence = next_fence(&found, now);
        answer.kind = ClaimKind::failed;
        return;
    }
    hold(record, now, request.held_retention);
    answer.kind = ClaimKind::unknown;
}

/// An acquisition that had to verify was given up before it did: the next one owes it still.
/// @return whether the claim may go on.
[[nodiscard]] inline bool inherit_mark(ClaimAnswer& answer, const ClaimRequest& request,
                                       Instant now) noexcept {
    RecordHeader& record = answer.record;
    if (!record.verify) return true;
    record.takeover = true;
    if (request.can_verify) return true;
    record.policy = stricter(record.policy, request.policy);
    hold(record, now, request.held_retention);
    answer.change.write = true;
    answer.kind = ClaimKind::unknown;
    return false;
}

inline void claim_released(ClaimAnswer& answer, const RecordHeader& found,
                           const ClaimRequest& request, Instant now) noexcept {
    if (!inherit_mark(answer, request, now)) return;
    const bool same = !other_request(found, request) &&
                      found.fingerprint.present() == request.fingerprint.present();
    if (!same) {  // a corrected request must not go on from another one's half-done work
        answer.change.checkpoint = Part::clear;
        answer.change.resource = Part::clear;
    }
    answer.record.fingerprint = request.fingerprint;
    acquire(answer, &found, request, now);
}

inline void claim_issued(ClaimAnswer& answer, const RecordHeader& found,
                         const ClaimRequest& request, Instant now) noexcept {
    if (now >= found.validity_end) {
        answer.kind = ClaimKind::expired;
        return;
    }
    if (!inherit_mark(answer, request, now)) return;
    if (!found.bound) answer.record.fingerprint = request.fingerprint;
    acquire(answer, &found, request, now);
}

}  // namespace detail

[[nodiscard]] inline ClaimAnswer claim(const RecordHeader* found, const ClaimRequest& request,
                                       Instant now) noexcept {
    ClaimAnswer answer;
    if (!stands(found, now)) {
        if (request.redeem_only) {
            answer.kind = ClaimKind::absent;
        } else {
            detail::acquire_new(answer, found, request, now);
        }
        return answer;
    }
    answer.record = *found;
    const RecordHeader& record = *found;
    const bool same_owner = record.owner == request.owner;
    if (record.state != State::running && same_owner) {
        answer.kind = ClaimKind::stale;
        return answer;
    }
    if (request.redeem_only && !record.token) {  // a tombstone, or the stub of a given-up claim
        answer.kind = ClaimKind::absent;
        return answer;
    }
    if (record.state == State::forgotten) {
        detail::acquire_new(answer, found, request, now);
        return answer;
    }
    // Nobody knows what became of a request whose verification is owed: it cannot be corrected.
    const bool correctable = record.state == State::released && !record.verify;
    if (!correctable && other_request(record, request)) {
        answer.kind = ClaimKind::mismatch;
        return answer;
    }
    switch (record.state) {
        case State::running:
            if (same_owner) {
                detail::acquire_again(answer, request, now);
            } else if (lapsed(record, now)) {
                detail::claim_orphan(answer, record, request, now);
            } else {
                answer.kind = ClaimKind::in_progress;
                answer.lease_left = record.lease_end - now;
            }
            break;
        case State::released: detail::claim_released(answer, record, request, now); break;
        case State::issued: detail::claim_issued(answer, record, request, now); break;
        case State::succeeded:
            answer.kind = ClaimKind::completed;
            answer.retention_left = record.retention_end - now;
            break;
        case State::failed: answer.kind = ClaimKind::failed; break;
        case State::unknown: answer.kind = ClaimKind::unknown; break;
        case State::forgotten: break;  // answered above
    }
    return answer;
}

// --- finish -------------------------------------------------------------------------------------

/// Of finish and renew: only who stands on the record is heard, everyone else has lost.
struct HolderAnswer {
    bool lost = false;
    LostReason reason = LostReason::none;
    RecordHeader record{};
    bool exists = false;    ///< Whether there is a record afterwards.
    Duration lease_left{};  ///< After a renew.
    Change change{};

    [[nodiscard]] HolderAnswer& lose(LostReason why) noexcept {
        lost = true;
        reason = why;
        return *this;
    }
};

namespace detail {

inline void apply_release(HolderAnswer& answer, const FinishRequest& request,
                          Instant now) noexcept {
    RecordHeader& record = answer.record;
    answer.change.failure = Part::take;
    record.failure = request.failure;
    if (!request.counted && record.attempt > 0) --record.attempt;
    if (request.counted && reached(record.attempt, record.policy.max_attempts)) {
        exhaust(record, now, request.held_retention);
        return;
    }
    // What is not counted never ran, so it has not verified either: the mark stays with the record,
    // which must not be forgotten before a person has had the time to look.
    const bool owed = record.verify && !request.counted;
    roll_back(record, answer.change, now, request.retention);
    record.verify = owed;
    if (owed) record.retention_end += request.held_retention;
}

inline void apply_finish(HolderAnswer& answer, const FinishRequest& request, Instant now) noexcept {
    RecordHeader& record = answer.record;
    Change& change = answer.change;
    change.write = true;
    if (request.checkpoint) change.checkpoint = Part::take;
    if (request.resource) change.resource = Part::take;
    switch (request.kind) {
        case FinishKind::complete:
            settle(record, State::succeeded, now, request.retention);
            record.result = request.result_kind;
            record.codec = request.codec;
            record.failure = FailureClass::none;
            change.result = Part::take;
            change.failure = Part::clear;
            if (!request.checkpoint) change.checkpoint = Part::clear;
            break;
        case FinishKind::fail:
            settle(record, State::failed, now, request.held_retention);
            record.failure = FailureClass::final;
            change.failure = Part::take;
            break;
        case FinishKind::quarantine:
            settle(record, State::unknown, now, request.held_retention);
            record.failure = request.failure;
            change.failure = Part::take;
            break;
        case FinishKind::release: apply_release(answer, request, now); break;
    }
}

/// Whether a settled record of this very owner and fence already says what is asked, or more.
[[nodiscard]] inline bool already_says(State state, FinishKind asked) noexcept {
    switch (state) {
        case State::succeeded:
            return asked == FinishKind::complete || asked == FinishKind::quarantine;
        case State::failed: return asked == FinishKind::fail || asked == FinishKind::release;
        case State::unknown: return asked == FinishKind::quarantine;
        case State::released:
        case State::issued: return asked == FinishKind::release;
        default: return false;
    }
}

/// What a release leaves on a key that is not there: its own delayed claim must find it, and stop.
inline void leave_stub(HolderAnswer& answer, const RecordHeader* found,
                       const FinishRequest& request, Instant now) noexcept {
    RecordHeader& record = answer.record;
    record = RecordHeader{};
    record.state = State::released;
    record.owner = request.owner;
    record.fence = std::max(next_fence(found, now), request.fence);
    record.created = now;
    record.started = now;
    record.retention_end = now + std::max(request.lease, tombstone_min);
    answer.change = Change::fresh();
    answer.exists = true;
}

}  // namespace detail

[[nodiscard]] inline HolderAnswer finish(const RecordHeader* found, const FinishRequest& request,
                                         Instant now) noexcept {
    HolderAnswer answer;
    if (!stands(found, now)) {
        if (request.kind != FinishKind::release) return answer.lose(LostReason::gone);
        detail::leave_stub(answer, found, request, now);
        return answer;
    }
    answer.record = *found;
    answer.exists = true;
    if (found->state == State::forgotten) return answer.lose(LostReason::forgotten);
    // A claim whose answer was lost is released without its fence: the owner alone names it. So it
    // does where such a release found nothing, and left its own fence.
    const bool stub = found->state == State::released && found->attempt == 0;
    const bool any_fence = request.kind == FinishKind::release && (request.fence == 0 || stub);
    const bool own = found->owner == request.owner && (any_fence || found->fence == request.fence);
    const bool held = found->state == State::unknown;
    const bool truth = request.kind == FinishKind::complete || request.kind == FinishKind::fail;
    if (own && (found->state == State::running || (held && truth))) {
        detail::apply_finish(answer, request, now);
        return answer;
    }
    if (own && detail::already_says(found->state, request.kind)) return answer;
    return answer.lose(found->state == State::running ? LostReason::other_owner
                                                      : LostReason::finished);
}

// --- renew --------------------------------------------------------------------------------------

/// Never shortens a life, never touches a finished record, never takes a lease back.
[[nodiscard]] inline HolderAnswer renew(const RecordHeader* found, const RenewRequest& request,
                                        Instant now) noexcept {
    HolderAnswer answer;
    if (!stands(found, now)) return answer.lose(LostReason::gone);
    answer.record = *found;
    answer.exists = true;
    RecordHeader& record = answer.record;
    if (record.state == State::forgotten) return answer.lose(LostReason::forgotten);
    if (record.state != State::running) return answer.lose(LostReason::finished);
    if (record.owner != request.owner || record.fence != request.fence)
        return answer.lose(LostReason::other_owner);
    const Duration beyond_lease = record.retention_end - record.lease_end;
    record.lease_end = std::max(record.lease_end, now + request.lease);
    record.retention_end = record.lease_end + beyond_lease;
    answer.lease_left = record.lease_end - now;
    answer.change.write = true;
    if (request.checkpoint) answer.change.checkpoint = Part::take;
    if (request.resource) answer.change.resource = Part::take;
    return answer;
}

// --- issue --------------------------------------------------------------------------------------

/// Of issue, resolve, reap and forget: done, or not as things stand.
struct SettleAnswer {
    bool done = false;
    RecordHeader record{};
    bool exists = false;  ///< Whether there is a record afterwards.
    Change change{};
};

/// Never overwrites. Over a tombstone the last owner stays, so that its delayed claim is stale.
[[nodiscard]] inline SettleAnswer issue(const RecordHeader* found, const IssueRequest& request,
                                        Instant now) noexcept {
    SettleAnswer answer;
    const bool there = stands(found, now);
    answer.exists = true;
    if (there && found->state != State::forgotten) {
        answer.record = *found;
        answer.done = found->state == State::issued && found->attempt == 0 &&
                      found->owner == request.owner;  // the answer had been lost
        return answer;
    }
    RecordHeader& record = answer.record;
    record.state = State::issued;
    record.token = true;
    record.bound = request.binding.present();
    record.fingerprint = request.binding;
    record.owner = there && found->owner.present() ? found->owner : request.owner;
    record.fence = next_fence(found, now);
    record.created = now;
    record.validity_end = now + request.validity;
    record.retention_end = record.validity_end + request.retention;
    answer.done = true;
    answer.change = Change::fresh();
    return answer;
}

// --- resolve ------------------------------------------------------------------------------------

/// A person settles what is held. The fence moves on: a complete of the old owner is lost.
[[nodiscard]] inline SettleAnswer resolve(const RecordHeader* found, const ResolveRequest& request,
                                          Instant now) noexcept {
    SettleAnswer answer;
    if (!stands(found, now)) return answer;
    answer.record = *found;
    answer.exists = true;
    if (found->state != State::unknown || found->fence != request.seen_fence) return answer;
    RecordHeader& record = answer.record;
    answer.done = true;
    answer.change.write = true;
    record.fence = next_fence(found, now);
    record.failure = FailureClass::none;
    answer.change.failure = Part::clear;
    if (request.succeeded) {
        settle(record, State::succeeded, now, request.retention);
        record.result = request.result_kind;
        record.codec = request.codec;
        answer.change.result = Part::take;
        answer.change.checkpoint = Part::clear;
    } else {
        roll_back(record, answer.change, now, request.retention);
    }
    return answer;
}

// --- reap ---------------------------------------------------------------------------------------

/// Settles a lapsed record by its own policy; seen fence and lapse are looked at again.
[[nodiscard]] inline SettleAnswer reap(const RecordHeader* found, const ReapRequest& request,
                                       Instant now) noexcept {
    SettleAnswer answer;
    if (!stands(found, now)) return answer;
    answer.record = *found;
    answer.exists = true;
    if (!lapsed(*found, now) || found->fence != request.seen_fence) return answer;
    RecordHeader& record = answer.record;
    const std::uint32_t crashes = count_up(record.crashes);
    const bool at_cap = reached(crashes, record.policy.max_crashes) ||
                        reached(record.attempt, record.policy.max_attempts);
    if (record.policy.orphan == Orphan::verify && !at_cap) return answer;
    answer.done = true;
    answer.change.write = true;
    record.crashes = crashes;
    if (record.policy.orphan != Orphan::rerun) {
        detail::hold(record, now, request.held_retention);
    } else if (at_cap) {
        exhaust(record, now, request.held_retention);
        record.fence = next_fence(found, now);
    } else {
        roll_back(record, answer.change, now, request.retention);
    }
    return answer;
}

// --- find, forget -------------------------------------------------------------------------------

/// Whether find and list show it: nothing past retention, and no tombstones.
[[nodiscard]] inline bool visible(const RecordHeader* found, Instant now) noexcept {
    return stands(found, now) && found->state != State::forgotten;
}

/// In any state. What stays is a tombstone with fence and last owner: a late holder is lost, its
/// delayed claim stale, and the next fence still grows.
[[nodiscard]] inline SettleAnswer forget(const RecordHeader* found, const ForgetRequest& request,
                                         Instant now) noexcept {
    SettleAnswer answer;
    RecordHeader& record = answer.record;
    if (!stands(found, now)) return answer;
    const bool seen = request.seen_fence == 0 || request.seen_fence == found->fence;
    if (found->state != State::forgotten && !seen) return answer;
    record.fence = found->fence;
    if (found->state == State::forgotten) return answer;
    record.state = State::forgotten;
    record.owner = found->owner;
    record.created = found->created;
    const Duration lease_left =
        found->state == State::running ? found->lease_end - now : Duration{};
    record.retention_end = now + std::max({request.lease, lease_left, tombstone_min});
    answer.done = true;
    answer.change = Change::fresh();
    return answer;
}

}  // namespace idem::inline v0_1::protocol

#endif
