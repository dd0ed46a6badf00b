#ifndef IDEM_POSTGRES_SQL_FINISH_HPP
#define IDEM_POSTGRES_SQL_FINISH_HPP

#include <idem/postgres/sql.hpp>

/// `protocol::finish` and `protocol::renew` in PL/pgSQL.
namespace idem::inline v0_1::postgres {

namespace detail {

/// To `released`, or for a token back to `issued` with its binding only: then v_rolled.
inline constexpr const char* roll_back = R"sql(
        r.verify := false;
        r.takeover := false;
        r.completed := 0;
        r.state := CASE WHEN r.token THEN 1 ELSE 3 END;
        r.retention_end := v_now + q_retention;
        IF r.token THEN
          r.retention_end := greatest(r.validity_end, v_now) + q_retention;
          IF NOT r.bound THEN r.fingerprint := ''; END IF;
          r.failure_kind := 0;
          v_rolled := true;
        END IF;)sql";

// --- finish -------------------------------------------------------------------------------------

inline constexpr Field finish_in[] = {
    {"owner", Type::uuid},          {"fence", Type::int8},
    {"kind", Type::int2},           {"counted", Type::boolean},
    {"lease", Type::int8},          {"retention", Type::int8},
    {"held_retention", Type::int8}, {"result_kind", Type::int2},
    {"codec_tag", Type::int8},      {"codec_version", Type::int2},
    {"result", Type::bytea},        {"failure_kind", Type::int2},
    {"failure_code", Type::bytea},  {"failure_message", Type::bytea},
    {"checkpoint", Type::bytea},    {"resource", Type::bytea}};

inline constexpr Field finish_out[] = {
    {"lost", Type::boolean}, {"reason", Type::int2}, {"state", Type::int2}};

inline constexpr const char* finish_declare = R"sql(
  v_own boolean;
  v_rolled boolean;
  v_clear boolean;
  v_owed boolean;
)sql";

inline constexpr const char* finish_release = R"sql(
        r.failure_kind := q_failure_kind;
        IF NOT q_counted AND r.attempt > 0 THEN r.attempt := r.attempt - 1; END IF;
        IF q_counted AND r.max_attempts <> 0 AND r.attempt >= r.max_attempts THEN
          r.state := 5;  -- exhausted
          r.completed := v_now;
          r.retention_end := v_now + q_held_retention;
          r.verify := false;
          r.failure_kind := 4;
        ELSE
          -- What never ran has not verified either: the mark stays with the record.
          v_owed := r.verify AND NOT q_counted;
          {roll_back}
          IF v_owed THEN
            r.verify := true;
            r.retention_end := r.retention_end + q_held_retention;
          END IF;
        END IF;)sql";

/// Kinds: 0 complete, 1 fail, 2 release, 3 quarantine. Reasons as in `LostReason`.
inline constexpr const char* finish_decide = R"sql(
    v_rolled := false;
    v_clear := false;  -- all parts: a stub has none
    o_lost := false;
    o_reason := 0;
    v_own := v_stands AND r.owner = q_owner
      AND (r.fence = q_fence
        OR (q_kind = 2 AND (q_fence = 0 OR (r.state = 3 AND r.attempt = 0))));
    IF NOT v_stands AND q_kind <> 2 THEN
      o_lost := true;
      o_reason := 4;  -- gone
    ELSIF NOT v_stands THEN
      {fresh}  -- what its own delayed claim must find, and stop
      r.state := 3;
      r.owner := q_owner;
      r.fence := greatest({next_fence}, q_fence);
      r.started := v_now;
      r.retention_end := v_now + greatest(q_lease, 60000000);
      v_clear := true;
      v_write := true;
    ELSIF r.state = 7 THEN
      o_lost := true;
      o_reason := 3;  -- forgotten
    ELSIF v_own AND (r.state = 2 OR (r.state = 6 AND q_kind IN (0, 1))) THEN
      v_write := true;
      IF q_kind = 2 THEN
        {finish_release}
      ELSE
        r.state := CASE q_kind WHEN 0 THEN 4 WHEN 1 THEN 5 ELSE 6 END;
        r.completed := v_now;
        r.retention_end := v_now
          + CASE WHEN q_kind = 0 THEN q_retention ELSE q_held_retention END;
        r.verify := false;
        r.failure_kind := CASE q_kind WHEN 0 THEN 0 WHEN 1 THEN 2 ELSE q_failure_kind END;
        IF q_kind = 0 THEN
          r.result_kind := q_result_kind;
          r.codec_tag := q_codec_tag;
          r.codec_version := q_codec_version;
        END IF;
      END IF;
    ELSIF v_own AND ((r.state = 4 AND q_kind IN (0, 3)) OR (r.state = 5 AND q_kind IN (1, 2))
        OR (r.state = 6 AND q_kind = 3) OR (r.state IN (1, 3) AND q_kind = 2)) THEN
      NULL;  -- it already says what is asked, or more
    ELSE
      o_lost := true;
      o_reason := CASE WHEN r.state = 2 THEN 1 ELSE 2 END;  -- other owner, finished
    END IF;)sql";

inline constexpr const char* finish_parts = R"sql(
        result = CASE WHEN v_clear THEN '' WHEN q_kind = 0 THEN q_result ELSE t.result END,
        failure_code = CASE WHEN v_clear OR v_rolled OR q_kind = 0 THEN ''
          ELSE q_failure_code END,
        failure_message = CASE WHEN v_clear OR v_rolled OR q_kind = 0 THEN ''
          ELSE q_failure_message END,
        checkpoint = CASE WHEN v_clear OR v_rolled THEN ''
          WHEN q_checkpoint IS NOT NULL THEN q_checkpoint
          WHEN q_kind = 0 THEN '' ELSE t.checkpoint END,
        resource = CASE WHEN v_clear OR v_rolled THEN ''
          ELSE coalesce(q_resource, t.resource) END)sql";

inline constexpr const char* finish_reply = R"sql(
  IF o_trouble IS NULL THEN
    o_state := CASE WHEN v_stands OR v_write THEN r.state ELSE 7 END;
  END IF;)sql";

/// Every complete of a holder that stands, in one UPDATE.
inline constexpr const char* finish_at_once = R"sql(
    UPDATE {table} t SET state = 4, completed = q.now, retention_end = q.now + q.retention,
      verify = false, failure_kind = 0, result_kind = q.result_kind, codec_tag = q.codec_tag,
      codec_version = q.codec_version, result = q.result, failure_code = '',
      failure_message = '', checkpoint = coalesce(q.checkpoint, ''),
      resource = coalesce(q.resource, t.resource)
    FROM {q} AND q.kind = 0 AND t.key = q.key AND t.state = 2
      AND t.owner = q.owner AND t.fence = q.fence AND q.now < t.retention_end
      AND t.format = 1 AND t.component = q.component AND t.scope = q.scope
      AND t.tenant = q.tenant AND t.id = q.id AND t.orphan BETWEEN 0 AND 2
      AND t.result_kind BETWEEN 0 AND 4 AND t.failure_kind BETWEEN 0 AND 4
    RETURNING t.key, t.completed, t.waited_until)sql";
/// The second number is of no use: it is how a SELECT tells who waits.
inline constexpr const char* finish_made =
    "made.completed, CASE WHEN made.waited_until > made.completed THEN"
    " length(pg_notify({channel}, replace(made.key::text, '-', ''))::text)::bigint END";

inline constexpr Piece finish_pieces[] = {{"{finish_release}", finish_release},
                                          {"{roll_back}", roll_back}};

// --- renew --------------------------------------------------------------------------------------

inline constexpr Field renew_in[] = {{"owner", Type::uuid},
                                     {"fence", Type::int8},
                                     {"lease", Type::int8},
                                     {"checkpoint", Type::bytea},
                                     {"resource", Type::bytea}};

inline constexpr Field renew_out[] = {
    {"lost", Type::boolean}, {"reason", Type::int2}, {"lease_left", Type::int8}};

/// Never shortens a life, never touches a finished record, never takes a lease back.
inline constexpr const char* renew_decide = R"sql(
    o_lost := true;
    o_lease_left := 0;
    IF NOT v_stands THEN
      o_reason := 4;
    ELSIF r.state = 7 THEN
      o_reason := 3;
    ELSIF r.state <> 2 THEN
      o_reason := 2;
    ELSIF r.owner <> q_owner OR r.fence <> q_fence THEN
      o_reason := 1;
    ELSE
      o_lost := false;
      o_reason := 0;
      r.lease_end := greatest(r.lease_end, v_now + q_lease);
      r.retention_end := r.lease_end + (v_retention_end - v_lease_end);
      o_lease_left := r.lease_end - v_now;
      v_write := true;
    END IF;)sql";

inline constexpr const char* renew_parts = R"sql(
        checkpoint = coalesce(q_checkpoint, t.checkpoint),
        resource = coalesce(q_resource, t.resource))sql";

}  // namespace detail

inline constexpr Operation finish_operation{.name = "finish",
                                            .in = detail::finish_in,
                                            .out = detail::finish_out,
                                            .declare = detail::finish_declare,
                                            .decide = detail::finish_decide,
                                            .parts = detail::finish_parts,
                                            .inserts = true,
                                            .reply = detail::finish_reply,
                                            .pieces = detail::finish_pieces,
                                            .at_once = detail::finish_at_once,
                                            .made = detail::finish_made};

inline constexpr Operation renew_operation{.name = "renew",
                                           .in = detail::renew_in,
                                           .out = detail::renew_out,
                                           .decide = detail::renew_decide,
                                           .parts = detail::renew_parts,
                                           .reply = ""};

}  // namespace idem::inline v0_1::postgres

#endif
