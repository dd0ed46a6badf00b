#ifndef IDEM_POSTGRES_SQL_SETTLE_HPP
#define IDEM_POSTGRES_SQL_SETTLE_HPP

#include <idem/postgres/sql_claim.hpp>
#include <idem/postgres/sql_finish.hpp>

/// `protocol::issue`, `resolve`, `reap` and `forget` in PL/pgSQL.
namespace idem::inline v0_1::postgres {

namespace detail {

// --- issue --------------------------------------------------------------------------------------

inline constexpr Field issue_in[] = {{"binding", Type::bytea},
                                     {"owner", Type::uuid},
                                     {"validity", Type::int8},
                                     {"retention", Type::int8}};

inline constexpr Field done_out[] = {{"done", Type::boolean}, {"state", Type::int2}};

/// Never overwrites. Over a tombstone the last owner stays, so that its delayed claim is stale.
inline constexpr const char* issue_decide = R"sql(
    IF v_stands AND r.state <> 7 THEN
      o_done := r.state = 1 AND r.attempt = 0 AND r.owner = q_owner;  -- the answer had been lost
    ELSE
      {fresh}
      r.state := 1;
      r.token := true;
      r.bound := q_binding <> '';
      r.fingerprint := q_binding;
      r.owner := q_owner;
      IF v_stands AND v_owner <> '00000000-0000-0000-0000-000000000000' THEN
        r.owner := v_owner;
      END IF;
      r.fence := {next_fence};
      r.validity_end := v_now + q_validity;
      r.retention_end := r.validity_end + q_retention;
      o_done := true;
      v_write := true;
    END IF;)sql";

inline constexpr const char* no_parts = R"sql(result = '', failure_code = '',
        failure_message = '', checkpoint = '', resource = '')sql";

/// The state afterwards; 7 where there is no record.
inline constexpr const char* done_reply = R"sql(
  IF o_trouble IS NULL THEN
    o_state := CASE WHEN v_stands OR v_write THEN r.state ELSE 7 END;
  END IF;)sql";

// --- resolve ------------------------------------------------------------------------------------

inline constexpr Field resolve_in[] = {{"seen_fence", Type::int8}, {"succeeded", Type::boolean},
                                       {"retention", Type::int8},  {"result_kind", Type::int2},
                                       {"codec_tag", Type::int8},  {"codec_version", Type::int2},
                                       {"result", Type::bytea}};

inline constexpr const char* rolled_declare = R"sql(
  v_rolled boolean;
  v_crashes bigint;
  v_at_cap boolean;
)sql";

/// A person settles what is held. The fence moves on: a complete of the old owner is lost.
inline constexpr const char* resolve_decide = R"sql(
    v_rolled := false;
    o_done := v_stands AND r.state = 6 AND r.fence = q_seen_fence;
    IF o_done THEN
      v_write := true;
      r.fence := {next_fence};
      r.failure_kind := 0;
      IF q_succeeded THEN
        r.state := 4;
        r.completed := v_now;
        r.retention_end := v_now + q_retention;
        r.verify := false;
        r.result_kind := q_result_kind;
        r.codec_tag := q_codec_tag;
        r.codec_version := q_codec_version;
      ELSE
        {roll_back}
      END IF;
    END IF;)sql";

inline constexpr const char* resolve_parts = R"sql(
        result = CASE WHEN q_succeeded THEN q_result ELSE t.result END,
        failure_code = '', failure_message = '',
        checkpoint = CASE WHEN q_succeeded OR v_rolled THEN '' ELSE t.checkpoint END,
        resource = CASE WHEN v_rolled THEN '' ELSE t.resource END)sql";

inline constexpr Piece roll_back_pieces[] = {{"{roll_back}", roll_back}};

// --- reap ---------------------------------------------------------------------------------------

inline constexpr Field reap_in[] = {
    {"seen_fence", Type::int8}, {"retention", Type::int8}, {"held_retention", Type::int8}};

/// Settles a lapsed record by its own policy; seen fence and lapse are looked at again.
inline constexpr const char* reap_decide = R"sql(
    v_rolled := false;
    o_done := false;
    IF v_stands AND r.state = 2 AND v_now >= r.lease_end AND r.fence = q_seen_fence THEN
      v_crashes := least(r.crashes + 1, 4294967295);
      v_at_cap := (r.max_crashes <> 0 AND v_crashes >= r.max_crashes)
        OR (r.max_attempts <> 0 AND r.attempt >= r.max_attempts);
      IF r.orphan <> 1 OR v_at_cap THEN  -- else it is left for a verifier
        o_done := true;
        v_write := true;
        r.crashes := v_crashes;
        IF r.orphan = 0 AND NOT v_at_cap THEN
          {roll_back}
        ELSE
          r.completed := v_now;
          r.retention_end := v_now + q_held_retention;
          r.verify := false;
          IF r.orphan <> 0 THEN
            r.state := 6;  -- held: the fence stays
          ELSE
            r.state := 5;
            r.failure_kind := 4;  -- exhausted
            r.fence := {next_fence};
          END IF;
        END IF;
      END IF;
    END IF;)sql";

inline constexpr const char* reap_parts = R"sql(
        failure_code = CASE WHEN v_rolled THEN '' ELSE t.failure_code END,
        failure_message = CASE WHEN v_rolled THEN '' ELSE t.failure_message END,
        checkpoint = CASE WHEN v_rolled THEN '' ELSE t.checkpoint END,
        resource = CASE WHEN v_rolled THEN '' ELSE t.resource END)sql";

// --- forget -------------------------------------------------------------------------------------

inline constexpr Field forget_in[] = {{"lease", Type::int8}, {"seen_fence", Type::int8}};

inline constexpr Field forget_out[] = {
    {"done", Type::boolean}, {"state", Type::int2}, {"fence", Type::int8}};

inline constexpr const char* forget_declare = R"sql(
  v_created bigint;
)sql";

/// In any state. What stays is a tombstone with fence and last owner.
inline constexpr const char* forget_decide = R"sql(
    o_done := v_stands AND r.state <> 7 AND q_seen_fence IN (0, r.fence);
    IF o_done THEN
      v_created := r.created;
      {fresh}
      r.state := 7;
      r.owner := v_owner;
      r.created := v_created;
      r.retention_end := v_now + greatest(q_lease, 60000000,
        CASE WHEN v_state = 2 THEN v_lease_end - v_now ELSE 0 END);
      v_write := true;
    END IF;)sql";

inline constexpr const char* forget_reply = R"sql(
  IF o_trouble IS NULL THEN
    o_state := 7;
    o_fence := CASE WHEN v_stands AND r.state = 7 THEN r.fence ELSE 0 END;
  END IF;)sql";

}  // namespace detail

inline constexpr Operation issue_operation{.name = "issue",
                                           .in = detail::issue_in,
                                           .out = detail::done_out,
                                           .decide = detail::issue_decide,
                                           .parts = detail::no_parts,
                                           .inserts = true,
                                           .reply = detail::done_reply};

inline constexpr Operation resolve_operation{.name = "resolve",
                                             .in = detail::resolve_in,
                                             .out = detail::done_out,
                                             .declare = detail::rolled_declare,
                                             .decide = detail::resolve_decide,
                                             .parts = detail::resolve_parts,
                                             .reply = detail::done_reply,
                                             .pieces = detail::roll_back_pieces};

inline constexpr Operation reap_operation{.name = "reap",
                                          .in = detail::reap_in,
                                          .out = detail::done_out,
                                          .declare = detail::rolled_declare,
                                          .decide = detail::reap_decide,
                                          .parts = detail::reap_parts,
                                          .reply = detail::done_reply,
                                          .pieces = detail::roll_back_pieces};

inline constexpr Operation forget_operation{.name = "forget",
                                            .in = detail::forget_in,
                                            .out = detail::forget_out,
                                            .declare = detail::forget_declare,
                                            .decide = detail::forget_decide,
                                            .parts = detail::no_parts,
                                            .reply = detail::forget_reply};

inline constexpr const Operation* operations[] = {
    &claim_operation,   &finish_operation, &renew_operation, &issue_operation,
    &resolve_operation, &reap_operation,   &forget_operation};
inline constexpr Form forms[] = {Form::one, Form::batch, Form::patient};

}  // namespace idem::inline v0_1::postgres

#endif
