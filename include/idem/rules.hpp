#ifndef IDEM_RULES_HPP
#define IDEM_RULES_HPP

#include <algorithm>
#include <cstdint>
#include <limits>

#include <idem/operation.hpp>

/// The small rules that the transitions of `protocol.hpp` share.
namespace idem::inline v0_1::protocol {

enum class Part : std::uint8_t { keep, clear, take };

struct Change {
    bool write = false;
    Part result = Part::keep;
    Part failure = Part::keep;
    Part checkpoint = Part::keep;
    Part resource = Part::keep;

    [[nodiscard]] static constexpr Change fresh() noexcept {
        return {true, Part::clear, Part::clear, Part::clear, Part::clear};
    }
};

/// Tombstones, and the stub of a claim given up in doubt, stand at least this long.
inline constexpr Duration tombstone_min = std::chrono::minutes{1};

/// A record past its retention is nothing.
[[nodiscard]] inline bool stands(const RecordHeader* found, Instant now) noexcept {
    return found != nullptr && now < found->retention_end;
}

/// Running, and its lease is over. A lease ends at `lease_end`: at that moment it is over.
[[nodiscard]] inline bool lapsed(const RecordHeader& record, Instant now) noexcept {
    return record.state == State::running && now >= record.lease_end;
}

/// Grows even where the record has been removed meanwhile, as far as the store's clock does.
[[nodiscard]] inline Fence next_fence(const RecordHeader* found, Instant now) noexcept {
    const auto clock =
        static_cast<Fence>(std::max<std::int64_t>(now.time_since_epoch().count(), 1));
    return found == nullptr ? clock : std::max(found->fence + 1, clock);
}

[[nodiscard]] inline std::uint32_t count_up(std::uint32_t count) noexcept {
    return count == std::numeric_limits<std::uint32_t>::max() ? count : count + 1;
}

[[nodiscard]] inline std::uint16_t stricter_cap(std::uint16_t a, std::uint16_t b) noexcept {
    return a == 0 || b == 0 ? std::max(a, b) : std::min(a, b);
}

[[nodiscard]] inline Policy stricter(const Policy& a, const Policy& b) noexcept {
    return {std::max(a.orphan, b.orphan), stricter_cap(a.max_attempts, b.max_attempts),
            stricter_cap(a.max_crashes, b.max_crashes)};
}

[[nodiscard]] inline bool reached(std::uint32_t count, std::uint16_t cap) noexcept {
    return cap != 0 && count >= cap;
}

/// Absent fingerprints conflict with nothing; one by the previous algorithm is as good.
[[nodiscard]] inline bool other_request(const RecordHeader& record,
                                        const ClaimRequest& request) noexcept {
    if (!record.fingerprint.present() || !request.fingerprint.present()) return false;
    if (record.fingerprint == request.fingerprint) return false;
    return !(request.fingerprint_before.present() &&
             record.fingerprint == request.fingerprint_before);
}

/// How long a running record is remembered: an orphan must outlive its lease by the retention, and
/// one that must not rerun by itself also by the time a person needs.
[[nodiscard]] inline Instant running_retention(const RecordHeader& record, Duration retention,
                                               Duration held_retention) noexcept {
    const bool held = record.policy.orphan != Orphan::rerun;
    return record.lease_end + retention + (held ? held_retention : Duration{});
}

inline void settle(RecordHeader& record, State state, Instant now, Duration retention) noexcept {
    record.state = state;
    record.completed = now;
    record.retention_end = now + retention;
    record.verify = false;
}

/// To `released`, or for a token back to `issued` with its binding only.
inline void roll_back(RecordHeader& record, Change& change, Instant now,
                      Duration retention) noexcept {
    record.verify = false;
    record.takeover = false;
    record.completed = Instant{};
    record.state = record.token ? State::issued : State::released;
    record.retention_end = now + retention;
    if (!record.token) return;
    record.retention_end = std::max(record.validity_end, now) + retention;
    if (!record.bound) record.fingerprint = Fingerprint{};
    record.failure = FailureClass::none;
    change.failure = Part::clear;
    change.checkpoint = Part::clear;
    change.resource = Part::clear;
}

/// A dead letter. The fence moves on where another than the holder says so.
inline void exhaust(RecordHeader& record, Instant now, Duration held_retention) noexcept {
    settle(record, State::failed, now, held_retention);
    record.failure = FailureClass::exhausted;
}

}  // namespace idem::inline v0_1::protocol

#endif
