#ifndef IDEM_DETAIL_FAULT_HPP
#define IDEM_DETAIL_FAULT_HPP

#include <cstdint>
#include <string>
#include <string_view>

#include <idem/error.hpp>

/// What all servers' errors have in common; each backend has its own table of them.
namespace idem::inline v0_1::detail {

/// What to do about an error of a server or of the way to it.
enum class Cure : std::uint8_t {
    retry_here,   ///< The same again on the same connection: the server did not carry it out.
    reconnect,    ///< This connection is of no use; the same again on another one.
    redirect,     ///< Another node has the key: the topology knows, or there is none.
    unavailable,  ///< Nothing helps at the moment.
    schema,       ///< What is there is not what this library made.
    usage,        ///< The configuration is wrong; no retry will help.
};

[[nodiscard]] constexpr const char* to_string(Cure cure) noexcept {
    switch (cure) {
        case Cure::retry_here: return "retry_here";
        case Cure::reconnect: return "reconnect";
        case Cure::redirect: return "redirect";
        case Cure::unavailable: return "unavailable";
        case Cure::schema: return "schema";
        case Cure::usage: return "usage";
    }
    return "invalid";
}

/// One row of a backend's table.
struct FaultClass {
    std::string_view text{};  ///< What the error begins with.
    Cure cure = Cure::unavailable;
    bool may_have_applied = false;  ///< Where the answer to a request was this.
};

/// An error as a value. The message names the server, never the password.
struct Fault {
    Cure cure = Cure::unavailable;
    bool may_have_applied = false;
    std::string code{};  ///< SQLSTATE, or the first word of what Redis says.
    std::string message{};

    [[nodiscard]] bool is(std::string_view wanted) const noexcept { return code == wanted; }
};

/// @param full whether the server has no room for it: it was reached, and knows the other keys
/// still, so nothing may run unprotected for that.
[[nodiscard]] inline Trouble trouble_of(const Fault& fault, bool full) {
    Trouble out{Trouble::Kind::unavailable, fault.may_have_applied, fault.message};
    if (fault.cure == Cure::schema) out.kind = Trouble::Kind::schema;
    if (fault.cure == Cure::usage) out.kind = Trouble::Kind::usage;
    out.full = full;
    return out;
}

}  // namespace idem::inline v0_1::detail

#endif
