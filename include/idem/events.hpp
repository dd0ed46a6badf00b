#ifndef IDEM_EVENTS_HPP
#define IDEM_EVENTS_HPP

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <idem/clock.hpp>
#include <idem/error.hpp>
#include <idem/failure.hpp>
#include <idem/record.hpp>

namespace idem::inline v0_1 {

enum class EventKind : std::uint8_t {
    executed,           ///< The handler ran and its result is recorded.
    replayed,           ///< A repeat got the first answer.
    in_progress,        ///< A repeat met a running holder.
    mismatch,           ///< The key came with another request.
    failed,             ///< Failed for good, now or before (a replayed failure).
    released,           ///< Rolled back; the next call runs.
    unknown,            ///< Held, now or before.
    cancelled,          ///< The caller gave up waiting.
    absent,             ///< An unknown token.
    expired,            ///< A token that came too late.
    refused,            ///< Not taken: draining, or the scope's cap on concurrent work.
    claimed,            ///< The first half of a call in two: a claim was handed out.
    detached,           ///< A claim goes its own way; a ticket finishes it.
    resumed,            ///< A ticket's claim was taken up again.
    takeover,           ///< A vanished holder's claim was taken over.
    lease_lost,         ///< A holder lost its lease while it ran.
    unrecorded,         ///< The handler ran; its result could not be recorded (yet).
    recorded_late,      ///< The background got an unrecorded result into the store.
    record_abandoned,   ///< The background gave up on an unrecorded result.
    result_not_kept,    ///< Completed without its value (too large, or not encodable).
    ran_unprotected,    ///< The store was down and the handler ran without a claim, by choice.
    rollback_failed,    ///< A claim could not be released at once; the background tries.
    store_error,        ///< The store could not be asked.
    schema_error,       ///< Garbage or a newer format under a key.
    forgotten,          ///< A key was forgotten.
    resolved,           ///< A held key was settled.
    drained,            ///< `drain` has ended.
    duplicate_content,  ///< A key came with content that another key has had; see `ContentWatch`.
    stale,              ///< A version that is not above what a `VersionGate` has applied.
};

[[nodiscard]] constexpr const char* to_string(EventKind kind) noexcept {
    switch (kind) {
        case EventKind::executed: return "executed";
        case EventKind::replayed: return "replayed";
        case EventKind::in_progress: return "in_progress";
        case EventKind::mismatch: return "mismatch";
        case EventKind::failed: return "failed";
        case EventKind::released: return "released";
        case EventKind::unknown: return "unknown";
        case EventKind::cancelled: return "cancelled";
        case EventKind::absent: return "absent";
        case EventKind::expired: return "expired";
        case EventKind::refused: return "refused";
        case EventKind::claimed: return "claimed";
        case EventKind::detached: return "detached";
        case EventKind::resumed: return "resumed";
        case EventKind::takeover: return "takeover";
        case EventKind::lease_lost: return "lease_lost";
        case EventKind::unrecorded: return "unrecorded";
        case EventKind::recorded_late: return "recorded_late";
        case EventKind::record_abandoned: return "record_abandoned";
        case EventKind::result_not_kept: return "result_not_kept";
        case EventKind::ran_unprotected: return "ran_unprotected";
        case EventKind::rollback_failed: return "rollback_failed";
        case EventKind::store_error: return "store_error";
        case EventKind::schema_error: return "schema_error";
        case EventKind::forgotten: return "forgotten";
        case EventKind::resolved: return "resolved";
        case EventKind::drained: return "drained";
        case EventKind::duplicate_content: return "duplicate_content";
        case EventKind::stale: return "stale";
    }
    return "invalid";
}

/// One decision of the library. Refers to bytes that live until the observer returns.
struct Event {
    EventKind kind = EventKind::executed;
    Component component = Component::call;
    std::string_view scope{};
    std::string_view tenant{};
    std::string_view key_hash{};    ///< 16 hex digits; see `idem::key_hash`.
    std::string_view raw_id{};      ///< Empty unless `GuardOptions::event_raw_ids` is set.
    std::string_view request_id{};  ///< Of the caller, from `RunOptions`.
    Fence fence = 0;
    std::uint32_t attempt = 0;
    Duration duration{};  ///< From the begin of the call to the decision.
    LostReason lost = LostReason::none;
    FailureClass failure = FailureClass::none;
    std::string_view detail{};  ///< For people.
};

/// Called at every decision, in the thread that made it (for background work: the heartbeat's).
/// It must not block for long and may be called by many threads at once. What it throws is
/// swallowed: seeing must not change what happens.
using Observer = std::function<void(const Event&)>;

}  // namespace idem::inline v0_1

#endif
