#ifndef IDEM_IDEM_HPP
#define IDEM_IDEM_HPP

// The layer map, lowest first. A header may include only headers listed above it, and detail/.
// tests/tidy.cpp holds every header to this.

// clang-format off
// words
#include <idem/version.hpp>
#include <idem/fwd.hpp>
#include <idem/error.hpp>
#include <idem/key.hpp>
#include <idem/fingerprint.hpp>
#include <idem/failure.hpp>
#include <idem/clock.hpp>
// #include <idem/detail/deadline.hpp>  of the backends that talk to a server
// #include <idem/detail/fault.hpp>
// #include <idem/detail/resolve.hpp>
// #include <idem/detail/pool.hpp>
// #include <idem/detail/chunk.hpp>
#include <idem/record.hpp>
#include <idem/record_codec.hpp>
#include <idem/codec.hpp>
// #include <idem/codec_json.hpp>      for users of nlohmann/json
// #include <idem/codec_protobuf.hpp>  for users of Protocol Buffers
#include <idem/operation.hpp>
#include <idem/outcome.hpp>
// seeing
#include <idem/events.hpp>
#include <idem/options.hpp>
// rules
#include <idem/rules.hpp>
#include <idem/state_machine.hpp>
#include <idem/protocol.hpp>
#include <idem/apply.hpp>
// #include <idem/detail/look.hpp>
#include <idem/http/response.hpp>
#include <idem/http/status.hpp>
#include <idem/http/problem.hpp>
#include <idem/http/key.hpp>
#include <idem/http/respond.hpp>
#include <idem/http/respond_error.hpp>
#include <idem/http/status_document.hpp>
#include <idem/http.hpp>
// port
#include <idem/store.hpp>
#include <idem/erase.hpp>
// the embedded store
#include <idem/memory/options.hpp>
#include <idem/memory/block.hpp>
#include <idem/memory/table.hpp>
#include <idem/memory/shard.hpp>
#include <idem/memory/state.hpp>
#include <idem/memory/store.hpp>
// stores over stores
// #include <idem/layered/nesting.hpp>
// #include <idem/layered/combiner.hpp>
#include <idem/layered/combining.hpp>
#include <idem/layered/front.hpp>
// #include <idem/layered/front_pause.hpp>
#include <idem/layered/tiered.hpp>
// #include <idem/layered/result_cache.hpp>
#include <idem/layered/cached.hpp>
#include <idem/layered/encrypted.hpp>
#include <idem/layered/content_watch.hpp>
// use
#include <idem/guard_state.hpp>
#include <idem/late_finish.hpp>
#include <idem/live_claim.hpp>
#include <idem/live_claims.hpp>
#include <idem/heartbeat.hpp>
#include <idem/execution.hpp>
#include <idem/settle.hpp>
#include <idem/retry.hpp>
#include <idem/claiming.hpp>
#include <idem/running.hpp>
#include <idem/claim.hpp>
#include <idem/batch.hpp>
#include <idem/guard.hpp>
#include <idem/coalesce.hpp>
#include <idem/token.hpp>
#include <idem/lease.hpp>
#include <idem/fenced_file.hpp>
#include <idem/version_rule.hpp>
#include <idem/version_gate.hpp>
#include <idem/inbox.hpp>
#include <idem/task_records.hpp>
#include <idem/dead_letters.hpp>
#include <idem/reaper.hpp>
#include <idem/any_front.hpp>
#include <idem/any_store.hpp>

// testing: for users who test a store or a clock of their own; not part of the umbrella
// #include <idem/testing/manual_clock.hpp>
// #include <idem/testing/model_store.hpp>
// #include <idem/testing/memory_front.hpp>
// #include <idem/testing/faulty_store.hpp>
// #include <idem/testing/conformance_base.hpp>
// #include <idem/testing/conformance_claim.hpp>
// #include <idem/testing/conformance_finish.hpp>
// #include <idem/testing/conformance_port.hpp>
// #include <idem/testing/conformance_batch.hpp>
// #include <idem/testing/conformance_diff.hpp>
// #include <idem/testing/conformance_history.hpp>
// #include <idem/testing/conformance_lockstep.hpp>
// #include <idem/testing/conformance.hpp>
// clang-format on

#endif
