#ifndef IDEM_RECORD_HPP
#define IDEM_RECORD_HPP

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include <idem/clock.hpp>
#include <idem/failure.hpp>
#include <idem/fingerprint.hpp>
#include <idem/key.hpp>

namespace idem::inline v0_1 {

/// Where a record stands. Stored values.
enum class State : std::uint8_t {
    issued = 1,     ///< A token nobody has redeemed.
    running = 2,    ///< Somebody holds the claim, or held it and vanished (`lapsed`).
    released = 3,   ///< Rolled back; the next claim runs.
    succeeded = 4,  ///< Finished; repeats get the result.
    failed = 5,     ///< Final or exhausted: a dead letter; repeats get the failure.
    unknown = 6,    ///< Held: a person or a callback must say what happened.
    forgotten = 7,  ///< Tombstone of a forgotten key; keeps its fence growing.
};

[[nodiscard]] constexpr const char* to_string(State state) noexcept {
    switch (state) {
        case State::issued: return "issued";
        case State::running: return "running";
        case State::released: return "released";
        case State::succeeded: return "succeeded";
        case State::failed: return "failed";
        case State::unknown: return "unknown";
        case State::forgotten: return "forgotten";
    }
    return "invalid";
}

/// What to do with a claim whose holder vanished; a higher value is stricter. Stored values.
enum class Orphan : std::uint8_t {
    rerun = 0,   ///< The next caller runs it again.
    verify = 1,  ///< The next caller asks the outside world first.
    hold = 2,    ///< Nobody runs it until a person has resolved it.
};

[[nodiscard]] constexpr const char* to_string(Orphan orphan) noexcept {
    switch (orphan) {
        case Orphan::rerun: return "rerun";
        case Orphan::verify: return "verify";
        case Orphan::hold: return "hold";
    }
    return "invalid";
}

/// Stored at claim; of record and caller the stricter one counts. A cap of 0 means none.
struct Policy {
    Orphan orphan = Orphan::rerun;
    std::uint16_t max_attempts = 0;  ///< Acquisitions before a release becomes a dead letter.
    std::uint16_t max_crashes = 0;   ///< Vanished holders before the key becomes a dead letter.

    friend bool operator==(const Policy&, const Policy&) = default;
};

/// What a finished record holds in place of an answer. Stored values.
enum class ResultKind : std::uint8_t {
    none = 0,
    value = 1,
    too_large = 2,      ///< Completed; the result was over the limit and was not kept.
    not_encodable = 3,  ///< Completed; the codec threw.
    no_room = 4,        ///< Completed; the store was full.
};

[[nodiscard]] constexpr const char* to_string(ResultKind kind) noexcept {
    switch (kind) {
        case ResultKind::none: return "none";
        case ResultKind::value: return "value";
        case ResultKind::too_large: return "too_large";
        case ResultKind::not_encodable: return "not_encodable";
        case ResultKind::no_room: return "no_room";
    }
    return "invalid";
}

/// Which codec wrote a result, so that bytes are never read as another type.
struct CodecId {
    std::uint32_t tag = 0;
    std::uint8_t version = 0;
    friend bool operator==(const CodecId&, const CodecId&) = default;
};

/// 128 random bits that say who holds a claim: new for every item that claims.
struct Owner {
    std::array<char, 16> bytes{};

    [[nodiscard]] bool present() const noexcept { return *this != Owner{}; }
    [[nodiscard]] std::string_view stored() const noexcept { return {bytes.data(), bytes.size()}; }
    friend bool operator==(const Owner&, const Owner&) = default;
};

/// Grows with every acquisition of a key, across expiry too. 0 stands for "not known".
using Fence = std::uint64_t;

/// Everything of a record but its opaque bytes. What the protocol decides about.
/// All instants are by the store's clock.
struct RecordHeader {
    State state = State::running;
    bool token = false;     ///< Was issued: goes back to `issued`, never to `released`.
    bool bound = false;     ///< The fingerprint was given at issue and stays.
    bool verify = false;    ///< This acquisition must ask the outside world before it runs.
    bool takeover = false;  ///< This acquisition took the claim of a vanished holder.
    Policy policy{};
    ResultKind result = ResultKind::none;
    CodecId codec{};
    FailureClass failure = FailureClass::none;
    std::uint32_t attempt = 0;  ///< Acquisitions so far; stays at its maximum.
    std::uint32_t crashes = 0;  ///< Holders that vanished; stays at its maximum.
    Fence fence = 0;
    Owner owner{};  ///< The holder, or the last one.
    Fingerprint fingerprint{};
    Instant created{};
    Instant started{};    ///< Begin of the current or last acquisition.
    Instant completed{};  ///< When it became succeeded, failed or unknown; else zero.
    Instant lease_end{};
    Instant retention_end{};
    Instant validity_end{};  ///< Of a token: redeemable before this moment.

    friend bool operator==(const RecordHeader&, const RecordHeader&) = default;
};

/// The opaque bytes of a record.
struct Payload {
    std::string result{};
    std::string failure_code{};
    std::string failure_message{};
    std::string checkpoint{};  ///< What a holder noted for the one that takes over.
    std::string resource{};    ///< Stable id of what was made.

    friend bool operator==(const Payload&, const Payload&) = default;
};

/// A record as `find` and `list` show it.
struct RecordView {
    Component component = Component::call;
    Key key{};
    RecordHeader header{};
    Payload payload{};
    bool lapsed = false;    ///< Running, and its lease is over by the store's clock.
    Duration lease_left{};  ///< Of a running record; never negative.

    [[nodiscard]] Failure failure() const {
        return {header.failure, payload.failure_code, payload.failure_message};
    }
};

}  // namespace idem::inline v0_1

#endif
