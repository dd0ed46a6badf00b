#ifndef IDEM_POSTGRES_FAULT_HPP
#define IDEM_POSTGRES_FAULT_HPP

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include <idem/detail/fault.hpp>

namespace idem::inline v0_1::postgres {

using idem::detail::Cure;
using idem::detail::FaultClass;

namespace code {
inline constexpr std::string_view serialization = "40001";
inline constexpr std::string_view deadlock = "40P01";
inline constexpr std::string_view lock_timeout = "55P03";
inline constexpr std::string_view no_such_statement = "26000";
inline constexpr std::string_view statement_exists = "42P05";
inline constexpr std::string_view protocol = "08P01";
inline constexpr std::string_view disk_full = "53100";
// Of the client. SQLSTATE has none of them; class ID is ours.
inline constexpr std::string_view timed_out = "ID001";  ///< No answer in the time allowed.
inline constexpr std::string_view broken = "ID002";     ///< The connection ended without a word.
inline constexpr std::string_view no_place = "ID003";   ///< No connection came to be in time.
inline constexpr std::string_view forked = "ID004";     ///< Used in a child of its process.
inline constexpr std::string_view too_old = "ID005";    ///< A server older than the floor.
inline constexpr std::string_view nonsense = "ID006";   ///< A reply without the form it must have.
inline constexpr std::string_view no_memory = "ID007";  ///< libpq got no memory for a request.
}  // namespace code

/// Every error, by its SQLSTATE: five letters name an error, two its class, none everything else.
/// The longest row that fits counts. An error that the server sends
/// means that it rolled back, but for those that say or may hide that the commit was done.
inline constexpr FaultClass fault_classes[] = {
    {"", Cure::unavailable, true},
    {"08", Cure::reconnect, true},        // connection exception
    {"08001", Cure::unavailable, false},  // the client could not connect
    {"08004", Cure::unavailable, false},  // the server refused the connection
    {"08P01", Cure::reconnect, true},     // protocol violation; a pooler's word for all its trouble
    {"0A", Cure::schema, false},          // feature not supported
    {"0A000", Cure::reconnect, false},    // a cached plan that a migration made stale
    {"0B", Cure::reconnect, false},       // invalid transaction initiation
    {"22", Cure::usage, false},           // data exception
    {"23", Cure::schema, false},          // a constraint that this library did not make
    {"25", Cure::reconnect, false},       // a transaction in a state that is not ours
    {"25006", Cure::reconnect, false},    // read only: a standby, or a primary stepping down
    {"26000", Cure::retry_here, false},   // the prepared statement is on another connection
    {"28", Cure::usage, false},           // password, user, pg_hba.conf
    {"2F", Cure::schema, false},          // a function that may not write
    {"3D000", Cure::usage, false},        // no such database
    {"3F", Cure::schema, false},          // no such schema
    {"40", Cure::retry_here, false},      // rolled back: 40001, 40P01
    {"40003", Cure::reconnect, true},     // statement completion unknown
    {"42", Cure::schema, false},          // no such table, column or function; no privilege
    {"42P05", Cure::retry_here, false},   // the statement was prepared by another client
    {"44", Cure::schema, false},          // a view with a check option
    {"53", Cure::unavailable, false},     // disk full, out of memory, too many connections
    {"54", Cure::usage, false},           // a program limit: a row or an index entry too large
    {"55", Cure::unavailable, false},     // not in the state for it
    {"55P03", Cure::unavailable, false},  // lock_timeout: somebody's transaction holds the row
    {"57014", Cure::unavailable, false},  // statement_timeout or a cancel
    {"57P", Cure::reconnect, true},       // shutdown, crash, idle timeout, database dropped
    {"57P03", Cure::unavailable, false},  // starting up or in recovery
    {"58", Cure::unavailable, true},      // an error of the server's operating system
    {"ID001", Cure::unavailable, true},
    {"ID002", Cure::reconnect, true},
    {"ID003", Cure::unavailable, false},
    {"ID004", Cure::usage, false},
    {"ID005", Cure::usage, false},
    {"ID006", Cure::schema, true},
    {"ID007", Cure::unavailable, false},
    {"P0", Cure::schema, false},      // raised by a function: a trigger that is not ours
    {"XX", Cure::unavailable, true},  // internal error
    {"XX001", Cure::schema, false},   // a damaged table
    {"XX002", Cure::schema, false},   // a damaged index
};

[[nodiscard]] constexpr FaultClass fault_class(std::string_view sqlstate) noexcept {
    FaultClass best{};
    for (const auto& row : fault_classes)
        if (sqlstate.starts_with(row.text) && row.text.size() >= best.text.size()) best = row;
    return best;
}

/// What a person does about an error, by its SQLSTATE or how that begins. Empty: the message says.
[[nodiscard]] constexpr std::string_view advice(std::string_view sqlstate) noexcept {
    constexpr std::pair<std::string_view, std::string_view> rows[] = {
        {"28", "set user and password in PostgresOptions::conninfo, or pg_hba.conf"},
        {"3D000", "set dbname in PostgresOptions::conninfo"},
        {"25006", "PostgresOptions::conninfo must name a primary"},
        {"53100", "make room on the server's disk"},
        {"53300", "raise max_connections or lower PostgresOptions::connections"},
        {"ID005", "PostgreSQL 13 or later is needed"},
    };
    for (const auto& [code, text] : rows)
        if (sqlstate.starts_with(code)) return text;
    const Cure cure = fault_class(sqlstate).cure;
    return cure == Cure::schema || cure == Cure::usage ? "" : "the same key may be tried again";
}

struct Fault : idem::detail::Fault {
    [[nodiscard]] static Fault of(std::string_view sqlstate, std::string message) {
        const FaultClass row = fault_class(sqlstate);
        return {{row.cure, row.may_have_applied, std::string(sqlstate), std::move(message)}};
    }
};

[[nodiscard]] inline Trouble trouble_of(const Fault& fault) {
    Trouble out = idem::detail::trouble_of(fault, fault.is(code::disk_full));
    if (const auto what = advice(fault.code); !what.empty()) out.message.append("; ").append(what);
    return out;
}

/// Takes the SQLSTATE out of libpq's verbose text of a failed connection, which says it in no
/// other way, and leaves one line: "FATAL:  28P01: no such user" and a place in the source.
[[nodiscard]] inline std::string take_sqlstate(std::string& text) {
    text.resize(std::min(text.find("\nLOCATION:"), text.size()));
    const auto letter = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z'); };
    std::string found;
    for (auto at = text.find(":  "); at != std::string::npos; at = text.find(":  ", at + 1)) {
        const auto word = text.substr(at + 3, 5);
        if (word.size() < 5 || !std::all_of(word.begin(), word.end(), letter)) continue;
        if (text.compare(at + 8, 2, ": ") != 0) continue;
        found = word;
        text.erase(at + 3, 7);
    }
    std::replace(text.begin(), text.end(), '\n', ' ');
    while (!text.empty() && text.back() == ' ') text.pop_back();
    return found;
}

}  // namespace idem::inline v0_1::postgres

#endif
