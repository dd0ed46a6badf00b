#ifndef IDEM_OPERATION_HPP
#define IDEM_OPERATION_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <idem/record.hpp>

namespace idem::inline v0_1 {

// The requests and replies of a store. Requests refer to bytes that the caller keeps alive until
// the operation returns; replies own theirs. Durations travel, instants never do.

// --- claim --------------------------------------------------------------------------------------

struct ClaimRequest {
    KeyView key{};
    Fingerprint fingerprint{};
    Fingerprint fingerprint_before{};  ///< The same request by the previous algorithm or secret.
    Owner owner{};                     ///< New for every claim.
    Duration lease{};
    Duration retention{};
    Duration held_retention{};
    Policy policy{};
    bool can_verify = false;   ///< The claimant has a verify callback.
    bool redeem_only = false;  ///< Only an issued token may be acquired.
};

enum class ClaimKind : std::uint8_t {
    acquired,
    in_progress,
    mismatch,
    completed,
    failed,
    unknown,
    stale,    ///< A delayed copy of a claim that has already ended. Claim again with a new owner.
    absent,   ///< Redeem only: there is no such token.
    expired,  ///< Redeem only: the token was not redeemed in time.
};

[[nodiscard]] constexpr const char* to_string(ClaimKind kind) noexcept {
    switch (kind) {
        case ClaimKind::acquired: return "acquired";
        case ClaimKind::in_progress: return "in_progress";
        case ClaimKind::mismatch: return "mismatch";
        case ClaimKind::completed: return "completed";
        case ClaimKind::failed: return "failed";
        case ClaimKind::unknown: return "unknown";
        case ClaimKind::stale: return "stale";
        case ClaimKind::absent: return "absent";
        case ClaimKind::expired: return "expired";
    }
    return "invalid";
}

/// Filled only where it makes sense for the kind: fence, flags and checkpoint for `acquired`; the
/// result, and whose it is, for `completed`; failure for `failed` and `unknown`; the counts and
/// times for every record that was found.
struct ClaimReply {
    ClaimKind kind = ClaimKind::in_progress;
    bool verify = false;
    bool takeover = false;
    ResultKind result_kind = ResultKind::none;
    CodecId codec{};
    std::uint32_t attempt = 0;
    std::uint32_t crashes = 0;
    Fence fence = 0;
    // Of `completed`, for whoever keeps a copy of it:
    Owner owner{};              ///< The last one, whose own claim would be `stale`.
    Fingerprint fingerprint{};  ///< As it is on record.
    bool token = false;         ///< It may be redeemed.
    Duration retention_left{};  ///< How long the result is still kept.
    Duration lease_left{};
    Instant created{};
    Instant started{};
    Instant completed{};
    Failure failure{FailureClass::none, {}, {}};
    std::string result{};
    std::string checkpoint{};
    std::string resource{};
    Trouble trouble{};
};

// --- finish -------------------------------------------------------------------------------------

enum class FinishKind : std::uint8_t {
    complete,
    fail,        ///< Final: stored and replayed.
    release,     ///< Rolled back; may carry the failure that was the cause.
    quarantine,  ///< Held for a person.
};

[[nodiscard]] constexpr const char* to_string(FinishKind kind) noexcept {
    switch (kind) {
        case FinishKind::complete: return "complete";
        case FinishKind::fail: return "fail";
        case FinishKind::release: return "release";
        case FinishKind::quarantine: return "quarantine";
    }
    return "invalid";
}

struct FinishRequest {
    KeyView key{};
    Owner owner{};
    Fence fence = 0;  ///< 0 only in a release: the claim's answer never came.
    FinishKind kind = FinishKind::complete;
    bool counted = true;  ///< A release that is not counted takes its attempt back.
    Duration lease{};     ///< Length of the stub that a release of an absent key leaves.
    Duration retention{};
    Duration held_retention{};
    ResultKind result_kind = ResultKind::none;  ///< Of a complete.
    CodecId codec{};
    std::string_view result{};
    FailureClass failure = FailureClass::none;
    std::string_view failure_code{};
    std::string_view failure_message{};
    std::optional<std::string_view> checkpoint{};
    std::optional<std::string_view> resource{};
};

/// `lost` false: the record now stands as asked, or already stood so.
struct FinishReply {
    bool lost = false;
    LostReason reason = LostReason::none;
    State state = State::forgotten;  ///< Of the record afterwards; `forgotten` where there is none.
    Trouble trouble{};
};

// --- renew --------------------------------------------------------------------------------------

struct RenewRequest {
    KeyView key{};
    Owner owner{};
    Fence fence = 0;
    Duration lease{};
    std::optional<std::string_view> checkpoint{};
    std::optional<std::string_view> resource{};
};

struct RenewReply {
    bool lost = false;
    LostReason reason = LostReason::none;
    Duration lease_left{};  ///< Where not lost.
    Trouble trouble{};
};

// --- issue --------------------------------------------------------------------------------------

struct IssueRequest {
    KeyView key{};
    Fingerprint binding{};  ///< Present: only this request may redeem.
    Owner owner{};          ///< Of the issuing call: makes its retry safe.
    Duration validity{};
    Duration retention{};  ///< How long it is remembered beyond its validity.
};

struct IssueReply {
    bool issued = false;  ///< False: there is a record already; it is untouched.
    Trouble trouble{};
};

// --- resolve ------------------------------------------------------------------------------------

struct ResolveRequest {
    KeyView key{};
    Fence seen_fence = 0;
    bool succeeded = false;  ///< To `succeeded` with the result; else back to `released`.
    Duration retention{};
    ResultKind result_kind = ResultKind::none;
    CodecId codec{};
    std::string_view result{};
};

struct ResolveReply {
    bool resolved = false;           ///< False: not held, or no longer as it was seen.
    State state = State::forgotten;  ///< Afterwards; `forgotten` where there is none.
    Trouble trouble{};
};

// --- reap ---------------------------------------------------------------------------------------

struct ReapRequest {
    KeyView key{};
    Fence seen_fence = 0;
    Duration retention{};
    Duration held_retention{};
};

struct ReapReply {
    bool reaped = false;             ///< False: not lapsed, moved on, or left for a verifier.
    State state = State::forgotten;  ///< Afterwards; `forgotten` where there is none.
    Trouble trouble{};
};

// --- find, forget, list, purge ------------------------------------------------------------------

struct FindReply {
    std::optional<RecordView> record{};  ///< Nothing past retention, and no tombstones.
    Trouble trouble{};
};

struct ForgetRequest {
    KeyView key{};
    Duration lease{};      ///< How long a late holder may still knock; at least a minute is kept.
    Fence seen_fence = 0;  ///< Only while the record has this one; 0: whatever it has.
};

struct ForgetReply {
    bool existed = false;
    Fence fence = 0;  ///< Of the tombstone that stands now; 0 where there is none.
    Trouble trouble{};
};

/// Which records to list. Empty fields match everything.
struct ListQuery {
    std::optional<Component> component{};
    std::optional<std::string> scope{};
    std::optional<std::string> tenant{};
    std::optional<State> state{};
    std::optional<bool> lapsed{};
    std::optional<Duration> created_before{};  ///< At least this old.
    std::size_t limit = 100;
    std::string cursor{};  ///< Empty for the first page; else `ListPage::next` of the last one.
};

struct ListPage {
    std::vector<RecordView> records{};
    std::string next{};  ///< Empty after the last page. A page may be empty and not the last.
    Trouble trouble{};
};

struct PurgeReply {
    std::size_t removed = 0;
    bool more = false;  ///< The bound was reached and there may be more to remove.
    Trouble trouble{};
};

}  // namespace idem::inline v0_1

#endif
