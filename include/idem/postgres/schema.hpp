#ifndef IDEM_POSTGRES_SCHEMA_HPP
#define IDEM_POSTGRES_SCHEMA_HPP

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <idem/postgres/connection.hpp>
#include <idem/postgres/sql_table.hpp>

/// Makes the table and its functions, and looks at them before they are used.
namespace idem::inline v0_1::postgres {

/// All that an explicit call makes, in one transaction; what is there already stays or is renewed.
/// Two processes that do it at once wait for each other.
[[nodiscard]] inline std::string create_text(const Names& names) {
    std::string out = "BEGIN; SELECT pg_advisory_xact_lock(1768187245);";  // "idem" in ASCII
    out += "DO $idem$ BEGIN IF to_regnamespace(" + Names::literal(Names::quoted(names.schema())) +
           ") IS NULL THEN CREATE SCHEMA " + Names::quoted(names.schema()) +
           "; END IF; END $idem$;";
    out += create_table_text(names) + ";";
    for (const auto* operation : operations)
        for (const Form form : forms) out += create_function(names, *operation, form) + ";";
    out += create_refence_text(names) + ";" + create_purge_text(names) + ";" +
           create_watch_text(names) + ";";
    out += view_text(names) + ";";
    out += "COMMENT ON TABLE " + names.table() + " IS 'idem schema " +
           std::to_string(schema_version) + ". One row is one key; look at " +
           "the view beside it. Times are microseconds since 1970.';";
    return out + "COMMIT";
}

namespace detail {

[[nodiscard]] inline std::string source_hash(const std::string& body) {
    return idem::detail::hex(idem::detail::as_text(idem::detail::sha256(body)));
}

inline constexpr const char* look_text = R"sql(
WITH r AS (SELECT c.* FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = {schema} AND c.relname = {name})
SELECT 'kind', relkind::text, '' FROM r
UNION ALL SELECT 'persistence', relpersistence::text, '' FROM r
UNION ALL SELECT 'row security', row_security_active(oid)::text, '' FROM r WHERE relkind <> 'v'
UNION ALL SELECT 'comment', coalesce(obj_description(oid, 'pg_class'), ''), '' FROM r
UNION ALL SELECT 'column', a.attname::text, format_type(a.atttypid, a.atttypmod)
  || CASE WHEN a.attnotnull THEN '' ELSE ' or NULL' END
  FROM r JOIN pg_attribute a ON a.attrelid = r.oid WHERE a.attnum > 0 AND NOT a.attisdropped
UNION ALL SELECT 'unique', '', '' FROM r JOIN pg_index i ON i.indrelid = r.oid
  JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum = i.indkey[0]
  WHERE i.indisunique AND i.indisvalid AND i.indisready AND i.indimmediate
    AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnkeyatts = 1 AND a.attname = 'key'
UNION ALL SELECT 'privilege', p, has_table_privilege(oid, p)::text
  FROM r, unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) p
UNION ALL SELECT 'function', p.proname::text,
  encode(sha256(convert_to(p.prosrc, getdatabaseencoding())), 'hex')
    || CASE WHEN has_function_privilege(p.oid, 'EXECUTE') THEN '' ELSE ' denied' END
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
  WHERE n.nspname = {schema} AND starts_with(p.proname::text, {prefix})
UNION ALL SELECT 'process', pg_backend_pid()::text, ''
UNION ALL SELECT 'usage', '', has_schema_privilege(n.oid, 'USAGE')::text
  FROM pg_namespace n WHERE n.nspname = {schema})sql";

/// What the server said about the table, sorted.
class Look {
public:
    explicit Look(const Result& result) {
        for (int row = 0; row < result.rows(); ++row) {
            const auto field = [&](int column) {
                return std::string(result.field(row, column).value_or(""));
            };
            found_[field(0)].emplace(field(1), field(2));
        }
    }
    [[nodiscard]] bool has(const std::string& what) const { return found_.count(what) != 0; }
    [[nodiscard]] std::string first(const std::string& what) const {
        const auto at = found_.find(what);
        return at == found_.end() ? "" : at->second.begin()->first;
    }
    [[nodiscard]] std::optional<std::string> of(const std::string& what,
                                                const std::string& name) const {
        const auto at = found_.find(what);
        if (at == found_.end()) return std::nullopt;
        const auto value = at->second.find(name);
        if (value == at->second.end()) return std::nullopt;
        return value->second;
    }
    [[nodiscard]] bool has(const std::string& what, const std::string& name,
                           const std::string& value) const {
        const auto at = found_.find(what);
        if (at == found_.end()) return false;
        const auto [from, to] = at->second.equal_range(name);
        for (auto i = from; i != to; ++i)
            if (i->second == value) return true;
        return false;
    }

private:
    std::map<std::string, std::multimap<std::string, std::string>> found_{};
};

[[nodiscard]] inline std::string wrong_relation(const Look& look) {
    const std::string kind = look.first("kind");
    if (kind.empty()) return "does not exist: make it with PostgresStore::create_schema";
    if (kind == "v" || kind == "m") return "is a view, which cannot decide who was first";
    if (kind == "f") return "is a foreign table, which cannot decide who was first";
    if (kind != "r" && kind != "p") return "is no table";
    if (look.first("persistence") == "t") return "is a temporary table";
    if (look.first("persistence") == "u")
        return "is an unlogged table: after a crash of the server every key would run again";
    if (look.first("row security") == "true")
        return "has row level security: a row that is hidden would run again";
    const std::string comment = look.first("comment");
    if (comment.starts_with("idem schema ") && std::atoi(comment.c_str() + 12) > schema_version)
        return "was made by a newer version of this library";
    return {};
}

[[nodiscard]] inline std::string wrong_columns(const Look& look) {
    for (const auto& column : columns) {
        const auto type = look.of("column", column.name);
        if (!type) return "has no column \"" + std::string(column.name) + "\"";
        if (*type != sql_name(column.type))
            return "has a column \"" + std::string(column.name) + "\" of type " + *type +
                   ", which must be " + sql_name(column.type);
    }
    if (!look.has("unique"))
        return "has no unique index on \"key\" alone that is valid and not deferred: two callers "
               "could both be first";
    return {};
}

[[nodiscard]] inline std::string wrong_functions(const Look& look, const Names& names) {
    const auto wrong = [&](const char* name, Form form, const std::string& body) -> std::string {
        const std::string function = names.function_name(name, form);
        const std::string hash = source_hash(body);
        if (look.has("function", function, hash)) return {};
        if (look.has("function", function, hash + " denied"))
            return "needs the privilege EXECUTE on the function \"" + function + "\"";
        const bool there = look.of("function", function).has_value();
        return (there ? "has another function \"" : "has no function \"") + function +
               (there ? "\" than this version made" : "\"") + ": run PostgresStore::create_schema";
    };
    for (const auto* operation : operations)
        for (const Form form : forms)
            if (auto what = wrong(operation->name, form, function_body(names, *operation, form));
                !what.empty())
                return what;
    if (auto what = wrong("refence", Form::one, refence_body(names)); !what.empty()) return what;
    if (auto what = wrong("watch", Form::one, watch_body(names)); !what.empty()) return what;
    return wrong("purge", Form::one, purge_body(names));
}

[[nodiscard]] inline std::string wrong_privileges(const Look& look) {
    if (look.of("usage", "") != "true") return "lies in a schema without the privilege USAGE";
    for (const char* privilege : {"SELECT", "INSERT", "UPDATE", "DELETE"})
        if (look.of("privilege", privilege) != "true")
            return "lacks the privilege " + std::string(privilege);
    return {};
}

}  // namespace detail

/// What `verify` has found.
struct Verified {
    std::optional<Fault> wrong{};  ///< Nothing where all is well.
    bool pooled = false;  ///< Who answers is not who greeted us: a session keeps nothing here.
};

/// Looks at table, columns, unique index, privileges and functions, and at who answers.
[[nodiscard]] inline Verified verify(Connection& connection, const Names& names,
                                     LocalInstant deadline) {
    const std::string text =
        names.fill(detail::look_text, {{"{schema}", Names::literal(names.schema())},
                                       {"{name}", Names::literal(names.table_name())},
                                       {"{prefix}", Names::literal(names.table_name() + "_")}});
    const Answer answer = connection.script(text, deadline);
    if (answer.fault) return {answer.fault};
    const detail::Look look(answer.result);
    std::string wrong = detail::wrong_relation(look);
    if (wrong.empty()) wrong = detail::wrong_columns(look);
    if (wrong.empty()) wrong = detail::wrong_privileges(look);
    if (wrong.empty()) wrong = detail::wrong_functions(look, names);
    Verified out{.pooled = look.first("process") != std::to_string(connection.server_process())};
    if (!wrong.empty())
        out.wrong = Fault{
            {Cure::schema, false, {}, connection.place() + ": " + names.table() + " " + wrong}};
    return out;
}

}  // namespace idem::inline v0_1::postgres

#endif
