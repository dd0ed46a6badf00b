#ifndef IDEM_ERROR_HPP
#define IDEM_ERROR_HPP

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace idem::inline v0_1 {

/// Root of everything this library throws on its own account. The leaves differ by what the caller
/// does next. Ordinary answers (replayed, in progress, mismatch) are not errors: see `Outcome`.
class Error : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// The store could not be asked within the time allowed, is full, or takes no new work.
/// Try again later with the same key: that is always safe.
class UnavailableError final : public Error {
public:
    explicit UnavailableError(const std::string& what, bool may_have_applied = false)
        : Error(what), may_have_applied_(may_have_applied) {}

    /// True where the request left and its answer did not come back.
    [[nodiscard]] bool may_have_applied() const noexcept { return may_have_applied_; }

private:
    bool may_have_applied_;
};

/// Why a holder is no longer the holder.
enum class LostReason : std::uint8_t {
    none,
    other_owner,  ///< Somebody else holds the key now.
    finished,     ///< The record has been settled by somebody else.
    forgotten,    ///< The key was forgotten while the holder ran.
    gone,         ///< The store has no such record (evicted, wiped, or past its retention).
    lapsed,       ///< The store could not be reached in time: the lease ended by the local clock.
    max_hold,     ///< Held for as long as `max_hold` allows; it is not renewed any more.
    process,      ///< This process is a fork of the holder's; a claim does not cross fork.
};

[[nodiscard]] constexpr const char* to_string(LostReason reason) noexcept {
    switch (reason) {
        case LostReason::none: return "none";
        case LostReason::other_owner: return "other_owner";
        case LostReason::finished: return "finished";
        case LostReason::forgotten: return "forgotten";
        case LostReason::gone: return "gone";
        case LostReason::lapsed: return "lapsed";
        case LostReason::max_hold: return "max_hold";
        case LostReason::process: return "process";
    }
    return "invalid";
}

/// The claim or lease is somebody else's now. Stop; what was done may be repeated by another.
class LeaseLostError final : public Error {
public:
    LeaseLostError(const std::string& what, LostReason reason) : Error(what), reason_(reason) {}
    [[nodiscard]] LostReason reason() const noexcept { return reason_; }

private:
    LostReason reason_;
};

/// Bytes that do not decode as the type asked for. The record stays; nothing is run again.
class CodecError final : public Error {
public:
    using Error::Error;
};

/// The store holds something this version must not touch: garbage, a newer format, a wrong table.
class SchemaError final : public Error {
public:
    using Error::Error;
};

/// The caller's own transaction cannot see who won; roll it back and try it again.
class ConflictError final : public Error {
public:
    using Error::Error;
};

/// A documented precondition was broken by the caller. Thrown before any I/O.
class UsageError final : public Error {
public:
    using Error::Error;
};

/// An error of one item of a batch, as a value: one item's trouble does not harm its neighbours.
struct Trouble {
    enum class Kind : std::uint8_t { none, unavailable, schema, usage };

    Kind kind = Kind::none;
    bool may_have_applied = false;
    std::string message{};
    bool full = false;  ///< Of `unavailable`: the store was reached, and has no room for a new key.

    [[nodiscard]] explicit operator bool() const noexcept { return kind != Kind::none; }

    [[nodiscard]] static Trouble unavailable(std::string message, bool may_have_applied) {
        return {Kind::unavailable, may_have_applied, std::move(message)};
    }
    [[nodiscard]] static Trouble no_room(std::string message) {
        return {Kind::unavailable, false, std::move(message), true};
    }
    [[nodiscard]] static Trouble usage(std::string message) {
        return {Kind::usage, false, std::move(message)};
    }
    [[nodiscard]] static Trouble schema(std::string message) {
        return {Kind::schema, false, std::move(message)};
    }

    /// Throws the exception that stands for this trouble; does nothing where there is none.
    void raise() const {
        switch (kind) {
            case Kind::none: return;
            case Kind::unavailable: throw UnavailableError(message, may_have_applied);
            case Kind::schema: throw SchemaError(message);
            case Kind::usage: throw UsageError(message);
        }
    }
};

}  // namespace idem::inline v0_1

#endif
