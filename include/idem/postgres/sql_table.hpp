#ifndef IDEM_POSTGRES_SQL_TABLE_HPP
#define IDEM_POSTGRES_SQL_TABLE_HPP

#include <idem/postgres/sql_settle.hpp>

/// The table, the view for people, and the statements that need no function.
namespace idem::inline v0_1::postgres {

struct Column {
    const char* name = "";
    Type type = Type::int8;
    const char* more = "";
};

/// Wide and fixed columns first, so that no row is padded. Scope, tenant and id are text in the
/// escape form of `escape`; all times are microseconds since 1970. No index but that of the key:
/// one on a column that a finish changes would make every finish write an index entry too.
inline constexpr Column columns[] = {
    {"fence", Type::int8},
    {"created", Type::int8},
    {"started", Type::int8},
    {"completed", Type::int8},
    {"lease_end", Type::int8},
    {"retention_end", Type::int8},
    {"validity_end", Type::int8},
    {"waited_until", Type::int8, " DEFAULT 0"},
    {"attempt", Type::int8},
    {"crashes", Type::int8},
    {"codec_tag", Type::int8},
    {"max_attempts", Type::int4},
    {"max_crashes", Type::int4},
    {"format", Type::int2},
    {"state", Type::int2},
    {"orphan", Type::int2},
    {"result_kind", Type::int2},
    {"failure_kind", Type::int2},
    {"codec_version", Type::int2},
    {"key", Type::uuid},
    {"owner", Type::uuid},
    {"component", Type::letter},
    {"token", Type::boolean},
    {"bound", Type::boolean},
    {"verify", Type::boolean},
    {"takeover", Type::boolean},
    {"fingerprint", Type::bytea},
    {"scope", Type::text, " COLLATE \"C\""},
    {"tenant", Type::text, " COLLATE \"C\""},
    {"id", Type::text, " COLLATE \"C\""},
    {"result", Type::bytea, " DEFAULT ''"},
    {"failure_code", Type::bytea, " DEFAULT ''"},
    {"failure_message", Type::bytea, " DEFAULT ''"},
    {"checkpoint", Type::bytea, " DEFAULT ''"},
    {"resource", Type::bytea, " DEFAULT ''"},
};

/// The place of a column among all of them; their number where there is none of this name.
[[nodiscard]] constexpr int column_number(std::string_view name) noexcept {
    int at = 0;
    for (const Column& column : columns) {
        if (column.name == name) break;
        ++at;
    }
    return at;
}

namespace detail {

inline constexpr const char* view_sql = R"sql(
CREATE OR REPLACE VIEW {view} AS SELECT
  scope, tenant, id,
  CASE component WHEN 'c' THEN 'call' WHEN 't' THEN 'token' WHEN 'l' THEN 'lease'
    WHEN 'm' THEN 'message' WHEN 'g' THEN 'gate' WHEN 'd' THEN 'content'
    WHEN 'k' THEN 'task' END AS component,
  CASE state WHEN 1 THEN 'issued' WHEN 2 THEN 'running' WHEN 3 THEN 'released'
    WHEN 4 THEN 'succeeded' WHEN 5 THEN 'failed' WHEN 6 THEN 'unknown'
    WHEN 7 THEN 'forgotten' END AS state,
  state = 2 AND lease_end <= {now} AS lapsed,
  retention_end <= {now} AS expired,
  attempt, crashes, fence, owner,
  CASE orphan WHEN 0 THEN 'rerun' WHEN 1 THEN 'verify' WHEN 2 THEN 'hold' END AS orphan,
  to_timestamp(created / 1e6) AS created,
  to_timestamp(nullif(started, 0) / 1e6) AS started,
  to_timestamp(nullif(completed, 0) / 1e6) AS completed,
  to_timestamp(nullif(lease_end, 0) / 1e6) AS lease_end,
  to_timestamp(retention_end / 1e6) AS retention_end,
  to_timestamp(nullif(validity_end, 0) / 1e6) AS validity_end,
  CASE failure_kind WHEN 1 THEN 'retryable' WHEN 2 THEN 'final' WHEN 3 THEN 'unknown'
    WHEN 4 THEN 'exhausted' END AS failure,
  encode(failure_code, 'escape') AS failure_code,
  encode(failure_message, 'escape') AS failure_message,
  encode(resource, 'escape') AS resource,
  octet_length(result) AS result_bytes,
  encode(fingerprint, 'hex') AS fingerprint,
  key
FROM {table})sql";

/// What purge takes: what is past its retention; with an age, what has been finished for so long.
inline constexpr const char* dead_sql = R"sql(CASE WHEN p_age IS NULL
        THEN t.retention_end <= v_now
        ELSE t.state IN (4, 5) AND v_now - t.completed >= p_age
          AND (p_component IS NULL OR t.component = p_component)
          AND (p_scope IS NULL OR t.scope = p_scope)
          AND (p_tenant IS NULL OR t.tenant = p_tenant) END)sql";

/// Goes over the table as it lies on disk, a window of blocks at a time, so that a batch dirties
/// few pages and needs no index. Rows that somebody holds are left for the next time round.
inline constexpr const char* purge_sql = R"sql(
DECLARE
  v_now bigint := {now};
  v_blocks bigint := coalesce(
    (SELECT max(pg_relation_size(relid)) FROM pg_partition_tree({regclass})),
    pg_relation_size({regclass})) / current_setting('block_size')::bigint;
  v_window bigint := 64;
  v_stop bigint := p_block + 4096;
  v_count bigint;
BEGIN
  IF current_setting('server_version_num')::integer < 140000 THEN
    v_window := v_blocks + 1;  -- no scan by ranges of blocks there
  END IF;
  o_removed := 0;
  o_block := p_block;
  WHILE o_block < v_blocks AND o_block < v_stop LOOP
    WITH dead AS MATERIALIZED (
      SELECT t.key FROM {table} t
      WHERE t.ctid >= format('(%s,0)', o_block)::tid
        AND t.ctid < format('(%s,0)', o_block + v_window)::tid
        AND t.format = 1 AND t.state BETWEEN 1 AND 7 AND {dead}
      LIMIT p_limit - o_removed FOR UPDATE SKIP LOCKED)
    DELETE FROM {table} t USING dead WHERE t.key = dead.key AND {dead};
    GET DIAGNOSTICS v_count = ROW_COUNT;
    o_removed := o_removed + v_count;
    EXIT WHEN o_removed >= p_limit;
    o_block := o_block + v_window;
  END LOOP;
  IF o_block >= v_blocks THEN o_block := NULL; END IF;
END
)sql";

/// Marks a running row as waited for, for five minutes: whoever settles it meanwhile tells so.
inline constexpr const char* watch_sql = R"sql(
DECLARE
  v_now bigint := {now};
BEGIN
  PERFORM set_config('lock_timeout', p_wait, true);
  UPDATE {table} t SET waited_until = v_now + 300000000
  WHERE t.key = q_key AND t.state = 2 AND t.waited_until < v_now + 240000000;
END
)sql";

/// How many records fit, and the ages of the oldest and the newest.
inline constexpr const char* count_sql = R"sql(WITH c AS MATERIALIZED (SELECT {now} AS now)
SELECT count(*), coalesce(max(c.now - t.created), 0), coalesce(min(c.now - t.created), 0)
FROM {table} t, c
WHERE c.now < t.retention_end AND t.state <> 7 AND c.now - t.created >= $1
  AND ($2::"char" IS NULL OR t.component = $2) AND ($3::text IS NULL OR t.scope = $3)
  AND ($4::text IS NULL OR t.tenant = $4) AND ($5::smallint IS NULL OR t.state = $5))sql";

/// Rows by their keys, the time first, for `find` and for claims that may change nothing.
inline constexpr const char* read_sql = "SELECT {now}, {columns} FROM {table} t WHERE t.key = $1";
inline constexpr const char* read_batch_sql =
    "SELECT {now}, {columns} FROM unnest($1) k JOIN {table} t ON t.key = k";

/// A claim that waited has its fence from before the wait: a later one, above it.
inline constexpr const char* refence_sql = R"sql(
DECLARE
  v_fence bigint;
BEGIN
  UPDATE {table} t SET fence = greatest(t.fence + 1, {now}) WHERE t.key = q_key
  RETURNING t.fence INTO v_fence;
  RETURN v_fence;
END
)sql";

/// A page looks at a bounded number of rows, so that a filter that fits nothing cannot hold the
/// server up. There is always a row: the first three columns say where the page ended.
inline constexpr const char* list_sql = R"sql(WITH c AS MATERIALIZED (SELECT {now} AS now),
looked AS MATERIALIZED (
  SELECT t.key, t.component, t.scope, t.tenant, t.state, t.created, t.lease_end, t.retention_end
  FROM {table} t WHERE $1::uuid IS NULL OR t.key > $1 ORDER BY t.key LIMIT 10000),
hits AS MATERIALIZED (
  SELECT l.key FROM looked l, c
  WHERE c.now < l.retention_end AND l.state <> 7
    AND ($2::"char" IS NULL OR l.component = $2) AND ($3::text IS NULL OR l.scope = $3)
    AND ($4::text IS NULL OR l.tenant = $4) AND ($5::smallint IS NULL OR l.state = $5)
    AND ($6::boolean IS NULL OR (l.state = 2 AND c.now >= l.lease_end) = $6)
    AND ($7::bigint IS NULL OR c.now - l.created >= $7)
  ORDER BY l.key LIMIT $8)
SELECT c.now, (SELECT count(*) FROM looked), (SELECT key FROM looked ORDER BY key DESC LIMIT 1),
  {columns}
FROM c LEFT JOIN (hits h JOIN {table} t ON t.key = h.key) ON true ORDER BY t.key)sql";

[[nodiscard]] inline std::string column_list() {
    std::string out;
    for (const auto& column : columns)
        out += (out.empty() ? "t." : ", t.") + std::string(column.name);
    return out;
}

}  // namespace detail

inline constexpr int looks_per_page = 10'000;

[[nodiscard]] inline std::string create_table_text(const Names& names) {
    std::string out = "CREATE TABLE IF NOT EXISTS " + names.table() + " (";
    for (const auto& column : columns)
        out += std::string(column.name) + " " + sql_name(column.type) + column.more + " NOT NULL, ";
    // Room in each page for what a finish writes beside what the claim wrote: else a tenth of the
    // finishes would write an index entry too.
    return out + "PRIMARY KEY (key)) WITH (fillfactor = 85)";
}
[[nodiscard]] inline std::string view_text(const Names& names) {
    return names.fill(detail::view_sql, {{"{view}", names.view()}});
}
[[nodiscard]] inline std::string purge_body(const Names& names) {
    const std::string regclass = Names::literal(names.table()) + "::regclass";
    return names.fill(detail::purge_sql, {{"{dead}", detail::dead_sql}, {"{regclass}", regclass}});
}
[[nodiscard]] inline std::string create_purge_text(const Names& names) {
    return "CREATE OR REPLACE FUNCTION " + names.function("purge", Form::one) +
           "(IN p_block bigint, IN p_limit integer, IN p_age bigint, IN p_component \"char\","
           " IN p_scope text, IN p_tenant text, OUT o_removed bigint, OUT o_block bigint)"
           " LANGUAGE plpgsql VOLATILE SET enable_seqscan TO off AS $idem$" +
           purge_body(names) + "$idem$";
}
[[nodiscard]] inline std::string purge_text(const Names& names) {
    return "SELECT o_removed, o_block FROM " + names.function("purge", Form::one) +
           "($1, $2, $3, $4, $5, $6)";
}
[[nodiscard]] inline std::string watch_body(const Names& names) {
    return names.fill(detail::watch_sql);
}
[[nodiscard]] inline std::string create_watch_text(const Names& names) {
    return "CREATE OR REPLACE FUNCTION " + names.function("watch", Form::one) +
           "(IN q_key uuid, IN p_wait text) RETURNS void"
           " LANGUAGE plpgsql VOLATILE SET enable_seqscan TO off AS $idem$" +
           watch_body(names) + "$idem$";
}
[[nodiscard]] inline std::string watch_text(const Names& names) {
    return "SELECT " + names.function("watch", Form::one) + "($1, $2)";
}
[[nodiscard]] inline std::string refence_body(const Names& names) {
    return names.fill(detail::refence_sql);
}
[[nodiscard]] inline std::string create_refence_text(const Names& names) {
    return "CREATE OR REPLACE FUNCTION " + names.function("refence", Form::one) +
           "(IN q_key uuid) RETURNS bigint LANGUAGE plpgsql VOLATILE SET enable_seqscan TO off"
           " AS $idem$" +
           refence_body(names) + "$idem$";
}
[[nodiscard]] inline std::string read_text(const Names& names, Form form) {
    return names.fill(form == Form::one ? detail::read_sql : detail::read_batch_sql,
                      {{"{columns}", detail::column_list()}});
}
[[nodiscard]] inline std::string count_text(const Names& names) {
    return names.fill(detail::count_sql);
}
[[nodiscard]] inline std::string list_text(const Names& names) {
    return names.fill(detail::list_sql, {{"{columns}", detail::column_list()}});
}

/// Bytes as printable text, the same for everybody who looks: as PostgreSQL's
/// `encode(bytes, 'escape')`, and injective. What is not ASCII would depend on the encoding of
/// database and client.
[[nodiscard]] inline std::string escape(std::string_view bytes) {
    std::string out;
    for (const char c : bytes) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte == 0 || byte >= 0x80U) {
            out += '\\';
            out += static_cast<char>('0' + (byte >> 6U));
            out += static_cast<char>('0' + (byte >> 3U & 7U));
            out += static_cast<char>('0' + (byte & 7U));
        } else {
            if (c == '\\') out += '\\';
            out += c;
        }
    }
    return out;
}

/// Nothing for a text that `escape` cannot have written.
[[nodiscard]] inline std::optional<std::string> unescape(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '\\') {
            out += text[i];
        } else if (i + 1 < text.size() && text[i + 1] == '\\') {
            out += text[++i];
        } else {
            if (i + 3 >= text.size()) return std::nullopt;
            unsigned byte = 0;
            for (int digit = 0; digit < 3; ++digit) {
                const char c = text[++i];
                if (c < '0' || c > '7') return std::nullopt;
                byte = byte * 8 + static_cast<unsigned>(c - '0');
            }
            if (byte > 255) return std::nullopt;
            out += static_cast<char>(byte);
        }
    }
    return out;
}

}  // namespace idem::inline v0_1::postgres

#endif
