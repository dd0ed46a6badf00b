#ifndef IDEM_POSTGRES_SQL_HPP
#define IDEM_POSTGRES_SQL_HPP

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <idem/detail/bytes.hpp>
#include <idem/detail/sha256.hpp>
#include <idem/error.hpp>
#include <idem/postgres/params.hpp>

namespace idem::inline v0_1::postgres {

/// One in- or output of a function of the server.
struct Field {
    const char* name = "";
    Type type = Type::int8;
};

[[nodiscard]] constexpr const char* sql_name(Type type) noexcept {
    switch (type) {
        case Type::boolean: return "boolean";
        case Type::bytea: return "bytea";
        case Type::letter: return "\"char\"";
        case Type::int8: return "bigint";
        case Type::int2: return "smallint";
        case Type::int4: return "integer";
        case Type::text: return "text";
        case Type::tid: return "tid";
        case Type::uuid: return "uuid";
    }
    return "";
}

/// A part of a text that stands under a mark in it.
struct Piece {
    const char* mark = "";
    const char* text = "";
};

/// What one operation of the port says on the server: `protocol.hpp` in PL/pgSQL. Where the common
/// case is one plain INSERT or UPDATE, that comes first, and the function decides about the rest.
struct Operation {
    const char* name = "";
    std::span<const Field> in{};   ///< After `key_fields`.
    std::span<const Field> out{};  ///< After `o_trouble`.
    const char* declare = "";
    const char* decide = "";  ///< From row `r` to what is to be stored, or not, and to the reply.
    const char* parts = "";   ///< What an UPDATE makes of the opaque parts.
    bool inserts = false;
    const char* reply = "";
    std::span<const Piece> pieces{};
    const char* at_once = "";  ///< From the items {q}, each with its own clock, to the rows `made`.
    const char* made = "";     ///< Beside the key two bigints of each, for its reply.
};

/// Three functions of one text. `one` takes values, for a single call needs no arrays. `batch`
/// takes arrays and loops. `patient` is a batch with a subtransaction for each item, so that the
/// one that is locked does not undo the others.
enum class Form { one, batch, patient };

/// What the function says was wrong with a row. Nothing is written then.
enum class RowTrouble : std::int16_t { newer = 1, collision = 2, garbage = 3, locked = 4 };

inline constexpr Field key_fields[] = {{"key", Type::uuid},
                                       {"component", Type::letter},
                                       {"scope", Type::text},
                                       {"tenant", Type::text},
                                       {"id", Type::text}};

/// The version of table and functions. Functions carry it in their names, so that two versions of
/// the library can work on one table while a service is being rolled out.
inline constexpr int schema_version = 1;
inline constexpr std::size_t name_bytes_max = 40;  ///< 63 less what the functions' names add.

/// The names of a schema and a table, and the expression that tells the time.
/// Names are quoted wherever they go into SQL.
class Names {
public:
    /// @throws UsageError for a name that is empty, too long, or has a zero byte in it.
    Names(std::string schema, std::string table, std::string clock)
        : schema_(std::move(schema)), table_(std::move(table)), clock_(std::move(clock)) {
        check(schema_, "PostgresOptions::schema");
        check(table_, "PostgresOptions::table");
        if (clock_.empty()) clock_ = default_clock;
    }

    /// Microseconds since 1970, exact: by the server's clock at this moment, not at the start of
    /// the transaction.
    static constexpr const char* default_clock =
        "(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000000)::bigint";

    [[nodiscard]] static std::string quoted(const std::string& name) {
        std::string out = "\"";
        for (const char c : name) out += c == '"' ? std::string("\"\"") : std::string(1, c);
        return out + '"';
    }
    [[nodiscard]] static std::string literal(const std::string& text) {
        std::string out = "'";
        for (const char c : text) out += c == '\'' ? std::string("''") : std::string(1, c);
        // A backslash means itself, whatever the session says about strings.
        return text.find('\\') == std::string::npos ? out + "'" : "E" + twice(out) + "'";
    }

    [[nodiscard]] const std::string& schema() const noexcept { return schema_; }
    [[nodiscard]] const std::string& table_name() const noexcept { return table_; }
    [[nodiscard]] std::string table() const { return quoted(schema_) + "." + quoted(table_); }
    [[nodiscard]] std::string view() const {
        return quoted(schema_) + "." + quoted(table_ + "_readable");
    }
    [[nodiscard]] std::string function_name(std::string_view operation, Form form) const {
        const char* suffix = form == Form::one ? "" : form == Form::batch ? "_batch" : "_patient";
        return table_ + "_" + std::string(operation) + suffix + "_v" +
               std::to_string(schema_version);
    }
    [[nodiscard]] std::string function(std::string_view operation, Form form) const {
        return quoted(schema_) + "." + quoted(function_name(operation, form));
    }

    /// Where a key is told that somebody waits for and that is settled now.
    [[nodiscard]] std::string channel() const {
        const auto digest = idem::detail::sha256(table());
        return "idem_" + idem::detail::hex(idem::detail::as_text(digest)).substr(0, 16);
    }

    /// Puts the names into a text: {table}, {channel}, {now} and what `more` says.
    [[nodiscard]] std::string fill(
        std::string text, std::vector<std::pair<std::string, std::string>> more = {}) const {
        more.emplace_back("{table}", table());
        more.emplace_back("{channel}", literal(channel()));
        more.emplace_back("{refence}", function("refence", Form::one));
        more.emplace_back("{now}", clock_);
        for (const auto& [mark, value] : more)
            for (auto at = text.find(mark); at != std::string::npos;
                 at = text.find(mark, at + value.size()))
                text.replace(at, mark.size(), value);
        return text;
    }

private:
    static void check(const std::string& name, const char* option) {
        if (name.empty()) throw UsageError(std::string(option) + " is empty");
        if (name.size() > name_bytes_max)
            throw UsageError(std::string(option) + " has " + std::to_string(name.size()) +
                             " bytes; " + std::to_string(name_bytes_max) + " are allowed");
        for (const char c : name)
            if (c == '\0' || c == '{' || c == '$')
                throw UsageError(std::string(option) + " has a character that it must not have");
    }
    [[nodiscard]] static std::string twice(const std::string& text) {
        std::string out;
        for (const char c : text) out += c == '\\' ? std::string("\\\\") : std::string(1, c);
        return out;
    }

    std::string schema_;
    std::string table_;
    std::string clock_;
};

namespace detail {

/// Of what an acquisition, a finish or a settlement may change: everything but name and parts.
inline constexpr const char* header_columns[] = {
    "state",        "token",       "bound",       "verify",        "takeover",      "orphan",
    "max_attempts", "max_crashes", "result_kind", "codec_tag",     "codec_version", "failure_kind",
    "attempt",      "crashes",     "fence",       "owner",         "fingerprint",   "created",
    "started",      "completed",   "lease_end",   "retention_end", "validity_end"};

/// Reads without a lock first: a repeat, the common case, then writes nothing to the log. What is
/// to be stored is stored only if the row is still what was decided about; else it is locked, read
/// and decided about again.
inline constexpr const char* skeleton = R"sql(
  v_lock := false;
  v_tries := 0;
  v_waited := 0;
  LOOP
    {clear}
    IF v_lock THEN
      SELECT * INTO r FROM {table} t WHERE t.key = q_key FOR UPDATE;
    ELSE
      SELECT * INTO r FROM {table} t WHERE t.key = q_key;
    END IF;
    v_there := FOUND;
    v_now := {now};
    IF v_there THEN
      IF r.format <> 1 THEN
        o_trouble := 1;
      ELSIF r.scope <> q_scope OR r.id <> q_id OR r.tenant <> q_tenant
          OR r.component <> q_component THEN
        o_trouble := 2;
      ELSIF r.state NOT BETWEEN 1 AND 7 OR r.orphan NOT BETWEEN 0 AND 2
          OR r.result_kind NOT BETWEEN 0 AND 4 OR r.failure_kind NOT BETWEEN 0 AND 4 THEN
        o_trouble := 3;
      END IF;
      EXIT WHEN o_trouble IS NOT NULL;
      v_fence := r.fence;
      v_state := r.state;
      v_owner := r.owner;
      v_lease_end := r.lease_end;
      v_retention_end := r.retention_end;
    END IF;
    v_stands := v_there AND v_now < r.retention_end;  -- a record past its retention is nothing
    v_write := false;
    {decide}
    EXIT WHEN NOT v_write;
    {arm}
    IF v_there THEN
      UPDATE {table} t SET {header_set}, {parts}
      WHERE t.key = q_key AND t.fence = v_fence AND t.state = v_state AND t.owner = v_owner
        AND t.lease_end = v_lease_end AND t.retention_end = v_retention_end
      RETURNING t.waited_until INTO v_waited;  -- as it is now, not as it was read
    {insert}
    END IF;
    EXIT WHEN FOUND;
    v_lock := true;
    v_tries := v_tries + 1;
    IF v_tries > 100 THEN
      RAISE EXCEPTION 'idem: a row can be neither read nor written';
    END IF;
  END LOOP;
  IF v_waited > v_now AND r.state <> 2 THEN  -- else spared: all commits with one queue up
    PERFORM pg_notify({channel}, replace(q_key::text, '-', ''));
  END IF;
  {reply}
)sql";

inline constexpr const char* declarations = R"sql(
  r {table}%ROWTYPE;
  v_now bigint;
  v_lock boolean;
  v_there boolean;
  v_stands boolean;
  v_write boolean;
  v_tries integer;
  v_waited bigint;
  v_fence bigint;
  v_state smallint;
  v_owner uuid;
  v_lease_end bigint;
  v_retention_end bigint;
)sql";

/// Batches come sorted by key, so what was made at once is met again in the same order, and of a
/// key that comes twice only the first can have been.
inline constexpr const char* skip_made = R"sql(
  IF p_made[v_next] = a_key[i] THEN
    v_next := v_next + 1;
    CONTINUE;
  END IF;
)sql";

/// The empty record of `RecordHeader{}`, with `created` set.
inline constexpr const char* fresh = R"sql(
      r.state := 0; r.token := false; r.bound := false; r.verify := false; r.takeover := false;
      r.orphan := 0; r.max_attempts := 0; r.max_crashes := 0; r.result_kind := 0;
      r.codec_tag := 0; r.codec_version := 0; r.failure_kind := 0; r.attempt := 0;
      r.crashes := 0; r.owner := '00000000-0000-0000-0000-000000000000'; r.fingerprint := '';
      r.created := v_now; r.started := 0; r.completed := 0; r.lease_end := 0;
      r.validity_end := 0;)sql";

/// Grows even where the record is past its retention. `r` may be fresh by now: hence v_fence.
inline constexpr const char* next_fence =
    "CASE WHEN v_there THEN greatest(v_fence + 1, v_now, 1) ELSE greatest(v_now, 1) END";

template <class Each>
[[nodiscard]] std::string joined(std::span<const Field> fields, const char* between, Each&& each) {
    std::string out;
    for (const auto& field : fields) out += (out.empty() ? "" : between) + each(field);
    return out;
}

[[nodiscard]] inline std::vector<Field> inputs(const Operation& operation) {
    std::vector<Field> all(std::begin(key_fields), std::end(key_fields));
    all.insert(all.end(), operation.in.begin(), operation.in.end());
    return all;
}
[[nodiscard]] inline std::vector<Field> outputs(const Operation& operation) {
    std::vector<Field> all = {{"trouble", Type::int2}};
    all.insert(all.end(), operation.out.begin(), operation.out.end());
    return all;
}

[[nodiscard]] inline std::string cleared(const Operation& operation) {
    return joined(outputs(operation), " ",
                  [](const Field& field) { return "o_" + std::string(field.name) + " := NULL;"; });
}

/// $1,$2 ... for the inputs and for how long to wait for a lock.
[[nodiscard]] inline std::string parameters(const Operation& operation) {
    std::string out = "$1";
    for (std::size_t i = 2; i <= inputs(operation).size() + 1; ++i) out += ",$" + std::to_string(i);
    return out;
}

/// Puts the parameters in the place of `q.key` and the like. `q.now` stays.
[[nodiscard]] inline std::string with_parameters(const Operation& operation, std::string text) {
    const auto fields = inputs(operation);
    const auto is_word = [](char c) { return c == '_' || (c >= 'a' && c <= 'z'); };
    std::size_t at = 0;
    while ((at = text.find("q.", at)) != std::string::npos) {
        auto end = at + 2;
        while (end < text.size() && is_word(text[end])) ++end;
        const auto name = text.substr(at + 2, end - at - 2);
        const auto field = std::find_if(fields.begin(), fields.end(),
                                        [&](const Field& f) { return name == f.name; });
        if (field != fields.end())
            text.replace(
                at, end - at,
                "$" + std::to_string(field - fields.begin() + 1) + "::" + sql_name(field->type));
        at += 2;
    }
    return text;
}

/// The items of a batch as rows, in their order; of equal keys the first is marked `leads`.
[[nodiscard]] inline std::string unnested(const Operation& operation) {
    const auto fields = inputs(operation);
    std::size_t i = 0;
    const auto arrays = joined(fields, ", ", [&](const Field& field) {
        return "$" + std::to_string(++i) + "::" + sql_name(field.type) + "[]";
    });
    const auto names =
        joined(fields, ", ", [](const Field& field) { return std::string(field.name); });
    return "q AS MATERIALIZED (SELECT u.*, lag(u.key) OVER (ORDER BY u.n) IS DISTINCT FROM u.key "
           "AS leads FROM c, unnest(" +
           arrays + ") WITH ORDINALITY u(" + names + ", n) ORDER BY u.n)";
}

[[nodiscard]] inline bool skips_made(const Operation& operation, Form form) noexcept {
    return form == Form::batch && *operation.at_once != '\0';
}

[[nodiscard]] inline std::string item_text(const Names& names, const Operation& operation,
                                           Form form) {
    std::string header_set;
    std::string header_names;
    std::string header_values;
    for (const char* column : header_columns) {
        const std::string name = column;
        header_set += (header_set.empty() ? "" : ", ") + name + " = r." + name;
        header_names += ", " + name;
        header_values += ", r." + name;
    }
    std::string insert;
    if (operation.inserts)
        insert = "ELSE INSERT INTO {table} (key, component, scope, tenant, id, format" +
                 header_names + ") VALUES (q_key, q_component, q_scope, q_tenant, q_id, 1" +
                 header_values + ") ON CONFLICT (key) DO NOTHING;";
    const std::string clear = form == Form::one ? "o_trouble := NULL;" : cleared(operation);
    const char* arm = form == Form::one ? "PERFORM set_config('lock_timeout', p_wait, true);" : "";
    std::vector<std::pair<std::string, std::string>> marks = {{"{decide}", operation.decide},
                                                              {"{reply}", operation.reply},
                                                              {"{insert}", insert},
                                                              {"{parts}", operation.parts},
                                                              {"{header_set}", header_set},
                                                              {"{clear}", clear},
                                                              {"{arm}", arm}};
    for (const auto& piece : operation.pieces) marks.emplace_back(piece.mark, piece.text);
    marks.emplace_back("{fresh}", fresh);
    marks.emplace_back("{next_fence}", next_fence);
    return names.fill(skeleton, std::move(marks));
}

}  // namespace detail

/// The body of one of an operation's functions.
[[nodiscard]] inline std::string function_body(const Names& names, const Operation& operation,
                                               Form form) {
    const auto inputs = detail::inputs(operation);
    std::string declare = std::string(detail::declarations) + operation.declare;
    const std::string item = detail::item_text(names, operation, form);
    if (form == Form::one) return names.fill("\nDECLARE" + declare + "BEGIN" + item + "END\n");
    declare += detail::joined(inputs, "\n", [](const Field& field) {
        return "  q_" + std::string(field.name) + " " + sql_name(field.type) + ";";
    });
    const auto next = detail::joined(inputs, "\n", [](const Field& field) {
        return "  q_" + std::string(field.name) + " := a_" + field.name + "[i];";
    });
    const bool skips = detail::skips_made(operation, form);
    const std::string guarded =
        form == Form::batch
            ? item
            : "BEGIN" + item + "EXCEPTION WHEN lock_not_available THEN\no_trouble := 4;\nEND;\n";
    return names.fill("\nDECLARE" + declare + (skips ? "\n  v_next integer := 1;" : "") +
                      "\nBEGIN\nPERFORM set_config('lock_timeout', p_wait, true);\n" +
                      "FOR i IN 1 .. cardinality(a_key) LOOP\n" + (skips ? detail::skip_made : "") +
                      next + guarded + "RETURN NEXT;\nEND LOOP;\nEND\n");
}

/// CREATE OR REPLACE of one of an operation's functions.
[[nodiscard]] inline std::string create_function(const Names& names, const Operation& operation,
                                                 Form form) {
    const char* array = form == Form::one ? "" : "[]";
    const char* letter = form == Form::one ? "q_" : "a_";
    const auto in = detail::joined(detail::inputs(operation), ", ", [&](const Field& field) {
        return std::string("IN ") + letter + field.name + " " + sql_name(field.type) + array;
    });
    const auto out = detail::joined(detail::outputs(operation), ", ", [](const Field& field) {
        return "OUT o_" + std::string(field.name) + " " + sql_name(field.type);
    });
    // A plan that was made while the table was small would scan it when it has grown. What a
    // function says of lock_timeout ends with it, also inside a transaction of the user's.
    return "CREATE OR REPLACE FUNCTION " + names.function(operation.name, form) + "(" + in +
           ", IN p_wait text" + (detail::skips_made(operation, form) ? ", IN p_made uuid[]" : "") +
           ", " + out + ")" + (form == Form::one ? "" : " RETURNS SETOF record") +
           " LANGUAGE plpgsql VOLATILE SET enable_seqscan TO off SET lock_timeout TO 0" +
           " AS $idem$" + function_body(names, operation, form) + "$idem$";
}

/// The columns of every reply: the key of what was made at once and two numbers of it, or else
/// what the function answered, as one composite.
inline constexpr int reply_column = 3;

/// The function and nothing else, which also a transaction of the user's can carry.
[[nodiscard]] inline std::string call_text(const Names& names, const Operation& operation,
                                           Form form) {
    return "SELECT NULL::uuid, NULL::bigint, NULL::bigint, " +
           names.function(operation.name, form) + "(" + detail::parameters(operation) +
           (detail::skips_made(operation, form) ? ",'{}')" : ")");
}

/// What can be made at once, and the function for what is left: twice as fast as the function
/// alone where nothing is. One statement, so one round trip. A single item goes without rows made
/// of its parameters: each step of a plan costs as much as the row.
[[nodiscard]] inline std::string at_once_text(const Names& names, const Operation& operation,
                                              Form form) {
    const auto wait = std::to_string(detail::inputs(operation).size() + 1);
    const std::string armed = "WITH c AS MATERIALIZED (SELECT set_config('lock_timeout', $" + wait +
                              "::text, true), {now} AS now), ";
    const std::string rest =
        names.function(operation.name, form) + "(" + detail::parameters(operation);
    if (form == Form::one)
        return names.fill(
            armed + "made AS (" + detail::with_parameters(operation, operation.at_once) +
                ") SELECT made.key, " + operation.made + ", CASE WHEN made.key IS NULL THEN " +
                rest + ") END FROM c LEFT JOIN made ON true",
            {{"{q}", "c q WHERE true"}});
    return names.fill(
        armed + detail::unnested(operation) + ", made AS (" + operation.at_once +
            ") SELECT made.key, " + operation.made +
            ", NULL::record FROM made UNION ALL SELECT NULL, NULL, NULL, " + rest +
            ", ARRAY(SELECT key FROM made ORDER BY key))"
            " WHERE (SELECT count(*) FROM made) < cardinality($1)",
        {{"{q}", "(SELECT q.*, {now} AS now FROM q WHERE leads ORDER BY n) q WHERE true"}});
}

}  // namespace idem::inline v0_1::postgres

#endif
