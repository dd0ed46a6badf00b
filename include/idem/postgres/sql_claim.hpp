#ifndef IDEM_POSTGRES_SQL_CLAIM_HPP
#define IDEM_POSTGRES_SQL_CLAIM_HPP

#include <idem/postgres/sql.hpp>

/// `protocol::claim` in PL/pgSQL: each case in the same order, by the same names.
namespace idem::inline v0_1::postgres {

namespace detail {

inline constexpr Field claim_in[] = {
    {"fingerprint", Type::bytea},  {"before", Type::bytea},       {"owner", Type::uuid},
    {"lease", Type::int8},         {"retention", Type::int8},     {"held_retention", Type::int8},
    {"orphan", Type::int2},        {"max_attempts", Type::int4},  {"max_crashes", Type::int4},
    {"can_verify", Type::boolean}, {"redeem_only", Type::boolean}};

inline constexpr Field claim_out[] = {{"kind", Type::int2},
                                      {"attempt", Type::int8},
                                      {"crashes", Type::int8},
                                      {"created", Type::int8},
                                      {"started", Type::int8},
                                      {"completed", Type::int8},
                                      {"lease_left", Type::int8},
                                      {"verify", Type::boolean},
                                      {"takeover", Type::boolean},
                                      {"fence", Type::int8},
                                      {"owner", Type::uuid},
                                      {"recorded_fingerprint", Type::bytea},
                                      {"token", Type::boolean},
                                      {"retention_left", Type::int8},
                                      {"checkpoint", Type::bytea},
                                      {"resource", Type::bytea},
                                      {"result_kind", Type::int2},
                                      {"codec_tag", Type::int8},
                                      {"codec_version", Type::int2},
                                      {"result", Type::bytea},
                                      {"failure_kind", Type::int2},
                                      {"failure_code", Type::bytea},
                                      {"failure_message", Type::bytea}};

inline constexpr const char* claim_declare = R"sql(
  v_acquire boolean;
  v_clear boolean;
  v_at_cap boolean;
  v_verifies boolean;
  v_same_owner boolean;
  v_other boolean;
  v_orphan smallint;
  v_max_attempts integer;
  v_max_crashes integer;
  v_crashes bigint;
)sql";

/// `stricter`, into v_orphan, v_max_attempts and v_max_crashes.
inline constexpr const char* claim_stricter = R"sql(
      v_orphan := greatest(r.orphan, q_orphan);
      v_max_attempts := CASE WHEN r.max_attempts = 0 OR q_max_attempts = 0
        THEN greatest(r.max_attempts, q_max_attempts)
        ELSE least(r.max_attempts, q_max_attempts) END;
      v_max_crashes := CASE WHEN r.max_crashes = 0 OR q_max_crashes = 0
        THEN greatest(r.max_crashes, q_max_crashes)
        ELSE least(r.max_crashes, q_max_crashes) END;)sql";

/// A holder vanished. `claim_orphan`.
inline constexpr const char* claim_orphan = R"sql(
        {stricter}
        v_crashes := least(r.crashes + 1, 4294967295);
        v_at_cap := (v_max_crashes <> 0 AND v_crashes >= v_max_crashes)
          OR (v_max_attempts <> 0 AND r.attempt >= v_max_attempts);
        v_verifies := v_orphan = 1 AND q_can_verify AND NOT v_at_cap;
        IF v_orphan = 0 AND r.token AND v_now >= r.validity_end AND NOT v_at_cap THEN
          o_kind := 8;  -- expired, as if it had been reaped first
        ELSE
          r.crashes := v_crashes;
          v_write := true;
          IF (v_orphan = 0 AND NOT v_at_cap) OR v_verifies THEN
            r.verify := v_verifies;
            r.takeover := true;
            v_acquire := true;
          ELSE
            r.orphan := v_orphan;
            r.max_attempts := v_max_attempts;
            r.max_crashes := v_max_crashes;
            r.completed := v_now;
            r.retention_end := v_now + q_held_retention;
            r.verify := false;
            IF v_orphan = 0 THEN
              r.state := 5;
              r.failure_kind := 4;  -- exhausted
              r.fence := {next_fence};
              o_kind := 4;
            ELSE
              r.state := 6;  -- held
              o_kind := 5;
            END IF;
          END IF;
        END IF;)sql";

inline constexpr const char* claim_decide = R"sql(
    v_acquire := false;
    v_clear := false;  -- checkpoint and resource
    v_same_owner := v_stands AND r.owner = q_owner;
    v_other := v_stands AND r.fingerprint <> '' AND q_fingerprint <> ''
      AND r.fingerprint <> q_fingerprint
      AND NOT (q_before <> '' AND r.fingerprint = q_before);
    o_lease_left := 0;
    IF NOT v_stands AND q_redeem_only THEN
      o_kind := 7;  -- absent
    ELSIF v_stands AND r.state <> 2 AND v_same_owner THEN
      o_kind := 6;  -- stale
    ELSIF v_stands AND q_redeem_only AND NOT r.token THEN
      o_kind := 7;
    ELSIF NOT v_stands OR r.state = 7 THEN
      {fresh}
      r.fingerprint := q_fingerprint;
      v_clear := true;
      v_acquire := true;
    ELSIF v_other AND (r.state <> 3 OR r.verify) THEN  -- what is owed cannot be corrected
      o_kind := 2;  -- mismatch
    ELSIF r.state = 2 THEN
      IF v_same_owner THEN  -- the same claim again: its answer had been lost
        r.lease_end := greatest(r.lease_end, v_now + q_lease);
        r.retention_end := greatest(r.retention_end, r.lease_end + q_retention
          + CASE WHEN r.orphan <> 0 THEN q_held_retention ELSE 0 END);
        o_kind := 0;
        o_lease_left := r.lease_end - v_now;
        v_write := true;
      ELSIF v_now >= r.lease_end THEN
        {claim_orphan}
      ELSE
        o_kind := 1;  -- in progress
        o_lease_left := r.lease_end - v_now;
      END IF;
    ELSIF r.state = 1 AND v_now >= r.validity_end THEN
      o_kind := 8;
    ELSIF r.state IN (1, 3) AND r.verify AND NOT q_can_verify THEN  -- inherit_mark
      {stricter}
      r.orphan := v_orphan;
      r.max_attempts := v_max_attempts;
      r.max_crashes := v_max_crashes;
      r.takeover := true;
      r.state := 6;  -- held
      r.completed := v_now;
      r.retention_end := v_now + q_held_retention;
      r.verify := false;
      o_kind := 5;
      v_write := true;
    ELSIF r.state = 3 THEN  -- released
      r.takeover := r.takeover OR r.verify;
      v_clear := v_other OR (r.fingerprint <> '') <> (q_fingerprint <> '');
      r.fingerprint := q_fingerprint;
      v_acquire := true;
    ELSIF r.state = 1 THEN  -- issued
      r.takeover := r.takeover OR r.verify;
      IF NOT r.bound THEN r.fingerprint := q_fingerprint; END IF;
      v_acquire := true;
    ELSE
      o_kind := r.state - 1;  -- completed, failed, unknown
    END IF;
    IF v_acquire THEN
      {stricter}
      r.orphan := v_orphan;
      r.max_attempts := v_max_attempts;
      r.max_crashes := v_max_crashes;
      r.state := 2;
      r.attempt := least(r.attempt + 1, 4294967295);
      r.fence := {next_fence};
      r.owner := q_owner;
      r.started := v_now;
      r.completed := 0;
      r.lease_end := v_now + q_lease;
      r.retention_end := r.lease_end + q_retention
        + CASE WHEN v_orphan <> 0 THEN q_held_retention ELSE 0 END;
      r.result_kind := 0;
      r.codec_tag := 0;
      r.codec_version := 0;
      r.failure_kind := 0;
      o_kind := 0;
      o_lease_left := q_lease;
      v_write := true;
    END IF;)sql";

/// What is not acquired has no result yet, but may hold the failure of its last release.
inline constexpr const char* claim_parts = R"sql(result = '',
        failure_code = CASE WHEN v_acquire THEN '' ELSE t.failure_code END,
        failure_message = CASE WHEN v_acquire THEN '' ELSE t.failure_message END,
        checkpoint = CASE WHEN v_clear THEN '' ELSE t.checkpoint END,
        resource = CASE WHEN v_clear THEN '' ELSE t.resource END)sql";

/// `reply_to`: a mismatch must not hand out another request's data. A claim that has waited for a
/// transaction which then came to nothing read its clock before that one may have: its fence must
/// not be below one that the other's handler has shown around. That one's answer, its handler and
/// its ROLLBACK lie in between: no claim that took less than 50 µs has waited for all three.
inline constexpr const char* claim_reply = R"sql(
  IF o_trouble IS NULL AND v_write AND v_acquire AND {now} > v_now + 50 THEN
    r.fence := {refence}(q_key);
  END IF;
  IF o_trouble IS NULL AND o_kind <> 7 THEN
    o_attempt := r.attempt;
    o_crashes := r.crashes;
    o_created := r.created;
    o_started := r.started;
    o_completed := r.completed;
    IF o_kind = 0 THEN
      o_verify := r.verify;
      o_takeover := r.takeover;
      o_fence := r.fence;
      IF v_there AND NOT v_clear THEN
        o_checkpoint := r.checkpoint;
        o_resource := r.resource;
      END IF;
    ELSIF o_kind = 3 THEN
      o_fence := r.fence;
      o_owner := r.owner;
      o_recorded_fingerprint := r.fingerprint;
      o_token := r.token;
      o_retention_left := r.retention_end - v_now;
      o_result_kind := r.result_kind;
      o_codec_tag := r.codec_tag;
      o_codec_version := r.codec_version;
      o_result := r.result;
      o_resource := r.resource;
    ELSIF o_kind = 4 OR o_kind = 5 THEN
      o_failure_kind := r.failure_kind;
      o_failure_code := r.failure_code;
      o_failure_message := r.failure_message;
      o_resource := r.resource;
    END IF;
  END IF;)sql";

/// All keys that are not there, in one INSERT. A row that is there in whatever state stays
/// untouched, and costs nothing in the log. The clock is read before each row and after it.
inline constexpr const char* claim_at_once = R"sql(
    INSERT INTO {table} (key, component, scope, tenant, id, format, state, token, bound, verify,
      takeover, orphan, max_attempts, max_crashes, result_kind, codec_tag, codec_version,
      failure_kind, attempt, crashes, fence, owner, fingerprint, created, started, completed,
      lease_end, retention_end, validity_end)
    SELECT q.key, q.component, q.scope, q.tenant, q.id, 1, 2, false, false, false,
      false, q.orphan, q.max_attempts, q.max_crashes, 0, 0, 0,
      0, 1, 0, greatest(q.now, 1), q.owner, q.fingerprint, q.now, q.now, 0,
      q.now + q.lease,
      q.now + q.lease + q.retention + CASE WHEN q.orphan <> 0 THEN q.held_retention ELSE 0 END, 0
    FROM {q} AND NOT q.redeem_only
    ON CONFLICT (key) DO NOTHING
    RETURNING key, created, fence, {now} > created + 50 AS waited)sql";
inline constexpr const char* claim_made =
    "made.created, CASE WHEN made.waited THEN {refence}(made.key) ELSE made.fence END";

inline constexpr Piece claim_pieces[] = {{"{claim_orphan}", claim_orphan},
                                         {"{stricter}", claim_stricter}};

}  // namespace detail

inline constexpr Operation claim_operation{.name = "claim",
                                           .in = detail::claim_in,
                                           .out = detail::claim_out,
                                           .declare = detail::claim_declare,
                                           .decide = detail::claim_decide,
                                           .parts = detail::claim_parts,
                                           .inserts = true,
                                           .reply = detail::claim_reply,
                                           .pieces = detail::claim_pieces,
                                           .at_once = detail::claim_at_once,
                                           .made = detail::claim_made};

}  // namespace idem::inline v0_1::postgres

#endif
