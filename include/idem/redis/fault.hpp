#ifndef IDEM_REDIS_FAULT_HPP
#define IDEM_REDIS_FAULT_HPP

#include <string>
#include <string_view>
#include <utility>

#include <idem/detail/fault.hpp>

namespace idem::inline v0_1::redis {

using idem::detail::Cure;
using idem::detail::FaultClass;

namespace code {
inline constexpr std::string_view no_script = "NOSCRIPT";
// Raised by the scripts of this library.
inline constexpr std::string_view garbage = "IDEMGARBAGE";
inline constexpr std::string_view newer = "IDEMNEWER";
// Of the client; the server has no such words.
inline constexpr std::string_view timed_out = "IDEMTIMEOUT";  ///< No answer in the time allowed.
inline constexpr std::string_view broken = "IDEMBROKEN";      ///< The connection ended.
inline constexpr std::string_view unsent = "IDEMUNSENT";      ///< It ended before a byte had left.
inline constexpr std::string_view no_place = "IDEMNOPLACE";   ///< No connection came to be.
inline constexpr std::string_view forked = "IDEMFORKED";      ///< Used in a child of its process.
inline constexpr std::string_view too_old = "IDEMTOOOLD";     ///< A server older than the floor.
inline constexpr std::string_view evicts = "IDEMEVICTS";      ///< A server that may drop claims.
inline constexpr std::string_view nonsense = "IDEMNONSENSE";  ///< A reply that is none of Redis.
inline constexpr std::string_view untrusted = "IDEMUNTRUSTED";  ///< A certificate is not.
inline constexpr std::string_view unacked = "IDEMUNACKED";      ///< Too few replicas have it.
}  // namespace code

/// Every error, by how it begins: the longest row that fits counts. What the server says instead of
/// an answer means that it did nothing, but for an error out of the middle of a script.
inline constexpr FaultClass fault_classes[] = {
    {"", Cure::unavailable, true},  // a word that no row knows
    {"ASK", Cure::redirect, false},
    {"BUSY", Cure::retry_here, false},  // somebody's script runs; ours was not begun
    {"BUSYKEY", Cure::schema, false},
    {"CLUSTERDOWN", Cure::retry_here, false},
    {"CROSSSLOT", Cure::usage, false},
    {"DENIED", Cure::usage, false},  // protected mode
    {"ERR", Cure::usage, false},     // not a command, an argument or a setting it knows
    {"ERR ACL failure in script", Cure::usage, true},  // a right that a script found missing
    {"ERR Error compiling script", Cure::usage, false},
    {"ERR Error running script", Cure::unavailable, true},
    {"ERR The user executing", Cure::usage, true},  // the same, in Redis 7.0
    {"ERR max number of clients", Cure::unavailable, false},
    {"ERR user_script", Cure::unavailable, true},
    {"EXECABORT", Cure::unavailable, false},
    {"IDEMBROKEN", Cure::reconnect, true},
    {"IDEMEVICTS", Cure::usage, false},
    {"IDEMFORKED", Cure::usage, false},
    {"IDEMGARBAGE", Cure::schema, false},
    {"IDEMNEWER", Cure::schema, false},
    {"IDEMNONSENSE", Cure::unavailable, true},
    {"IDEMNOPLACE", Cure::unavailable, false},
    {"IDEMTIMEOUT", Cure::reconnect, true},
    {"IDEMTOOOLD", Cure::usage, false},
    {"IDEMUNACKED", Cure::unavailable, true},
    {"IDEMUNSENT", Cure::reconnect, false},
    {"IDEMUNTRUSTED", Cure::usage, false},
    {"INPROG", Cure::retry_here, false},     // a failover is being carried out
    {"LOADING", Cure::retry_here, false},    // it reads its data set
    {"MASTERDOWN", Cure::reconnect, false},  // a replica that has lost its master
    {"MISCONF", Cure::unavailable, false},   // it cannot write to its disk
    {"MOVED", Cure::redirect, false},
    {"NOAUTH", Cure::usage, false},
    {"NOMASTERLINK", Cure::reconnect, false},
    {"NOPERM", Cure::usage, false},
    {"NOREPLICAS", Cure::unavailable, false},
    {"NOSCRIPT", Cure::retry_here, false},
    {"OOM", Cure::unavailable, false},
    {"READONLY", Cure::reconnect, false},  // a replica, or a master stepping down
    {"TRYAGAIN", Cure::retry_here, false},
    {"UNBLOCKED", Cure::reconnect, true},  // a master that became a replica while we waited
    {"UNKILLABLE", Cure::unavailable, true},
    {"WRONGPASS", Cure::usage, false},
    {"WRONGTYPE", Cure::schema, false},
};

[[nodiscard]] constexpr FaultClass fault_class(std::string_view text) noexcept {
    FaultClass best{};
    for (const auto& row : fault_classes) {
        if (!text.starts_with(row.text) || row.text.size() < best.text.size()) continue;
        // A row that is one word must not fit a longer one: BUSY is not BUSYKEY.
        const bool ends = text.size() == row.text.size() || row.text.empty() ||
                          text[row.text.size()] == ' ' || row.text.find(' ') != row.text.npos;
        if (ends) best = row;
    }
    return best;
}

struct Fault : idem::detail::Fault {
    /// @param text how it begins, which decides; @param place whose error it is.
    [[nodiscard]] static Fault of(std::string_view text, const std::string& place) {
        const FaultClass row = fault_class(text);
        // A server that does not know AUTH repeats the password.
        text = text.substr(0, text.find(", with args beginning with"));
        return {{row.cure, row.may_have_applied, std::string(text.substr(0, text.find(' '))),
                 "Redis at " + place + ": " + std::string(text)}};
    }
    [[nodiscard]] static Fault of_client(std::string_view word, std::string message) {
        const FaultClass row = fault_class(word);
        return {{row.cure, row.may_have_applied, std::string(word), std::move(message)}};
    }
};

[[nodiscard]] inline Trouble trouble_of(const Fault& fault) {
    return idem::detail::trouble_of(fault, fault.is("OOM"));
}

}  // namespace idem::inline v0_1::redis

#endif
