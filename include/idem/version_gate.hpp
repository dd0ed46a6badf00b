#ifndef IDEM_VERSION_GATE_HPP
#define IDEM_VERSION_GATE_HPP

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include <idem/clock.hpp>
#include <idem/error.hpp>
#include <idem/events.hpp>
#include <idem/guard.hpp>
#include <idem/key.hpp>
#include <idem/options.hpp>
#include <idem/version_rule.hpp>

namespace idem::inline v0_1 {

/// What versions are of: an asset, a job, an order. Any bytes, at most 255 of each.
struct Stream {
    std::string id;
    std::string tenant{};
};

/// Settings that hold for the life of a `VersionGate`. Durations are positive and at most ten
/// years.
struct GateOptions {
    /// How long a handler may be silent before another version may take its turn.
    Duration lease = std::chrono::seconds{30};
    /// The gate's memory, from the last message on. One that comes later finds a gate that knows
    /// nothing, and is applied whatever its version.
    Duration retention = std::chrono::hours{24 * 90};
    /// How long an offer waits while another version of its stream is being applied. 0: not at all.
    Duration wait{};
    /// Renews the lease while a handler runs. Off: it must end within the lease.
    bool heartbeat = true;
    EqualVersions equal = EqualVersions::refuse;
    Observer events{};
};

enum class GateKind : std::uint8_t {
    applied,      ///< The handler ran. Acknowledge the message.
    stale,        ///< Not above what was applied; the handler did not run. Acknowledge it too.
    retry_later,  ///< Another version is being applied, or may be half done. Do not acknowledge.
};

struct GateOutcome {
    GateKind kind = GateKind::retry_later;
    VersionVerdict verdict = VersionVerdict::newer;  ///< Why it is stale.
    /// Of `applied`. False: the gate could not note it (yet). Lower versions wait meanwhile; the
    /// same one again may run again.
    bool recorded = false;
    Duration retry_after{};  ///< Of `retry_later`: when at the latest the one at work is done with.
};

/// Applies the versions of a stream in rising order, though its messages come late, twice and in
/// any order: each (source, tenant, stream) has a gate, which one handler passes at a time. A
/// handler that throws leaves the gate where it was. One that vanishes leaves a mark: until its
/// version, or a higher one, comes again, lower ones wait, and never land after a half-done higher
/// one. A handler that is paused past its lease may still write late: hand `Execution::fence` on.
/// Copyable; any thread may call any member. What was applied survives as the store does.
template <store Store>
class VersionGate {
public:
    /// Keeps a handle of the store. @throws UsageError for options that cannot work.
    explicit VersionGate(const Store& store, GateOptions options = {})
        : guard_(store, guard_options(store, options), Component::gate),
          wait_(options.wait),
          equal_(options.equal) {}

    /// Runs `handler`, `void()` or `void(Execution&)`, where `version` is above all that was
    /// applied. What it throws passes through: FailureClass::unknown leaves the mark too.
    /// @throws UnavailableError: the handler did not run; SchemaError: what is under the key is no
    /// gate of this source; UsageError: the stream, or a number is missing that the rule needs.
    template <version_source Source, detail::handler Handler>
    GateOutcome offer(const Stream& stream, const Version<Source>& version, Handler&& handler) {
        if (equal_ == EqualVersions::refuse && !version.number)
            throw UsageError("Version::number is missing, and GateOptions::equal goes by it alone");
        const Key key = key_of<Source>(stream);
        auto answer = detail::claim_unfinished(guard_, key, {.wait = wait_});
        auto* const claim = std::get_if<Claim<void>>(&answer);
        if (claim == nullptr) return busy(key, version, std::get<Outcome<void>>(std::move(answer)));
        const auto state = read<Source>(claim->execution().checkpoint());
        switch (step_for(state, version, equal_)) {
            case GateStep::stale:
                std::move(*claim).give_back();
                return stale(key, judge(state, version, equal_));
            case GateStep::wait:
                std::move(*claim).give_back();
                return {.kind = GateKind::retry_later, .retry_after = guard_.options().lease};
            case GateStep::apply: break;
        }
        return apply(std::move(*claim), state, version, std::forward<Handler>(handler));
    }

    /// A new run of a stream begins: from here on everything of an older one is stale, though
    /// nothing of the new one has come. False where the stream is there, or further, already.
    /// @throws UnavailableError: not begun, or not known to be; else as `offer`.
    template <version_source Source>
    bool begin(const Stream& stream, std::uint64_t epoch) {
        return change<Source>(stream, [&](GateState<Source>& state) {
            if (epoch <= state.epoch) return false;
            state = {epoch, std::nullopt, state.attempting};
            return true;
        });
    }

    /// A person says what became of a version whose handler vanished: it `happened`, or it did not.
    /// False where there is none such. Throws as `begin`.
    template <version_source Source>
    bool settle(const Stream& stream, bool happened) {
        return change<Source>(stream, [&](GateState<Source>& state) {
            if (!state.attempting) return false;
            const Version<Source> attempt = *state.attempting;
            state.attempting.reset();
            if (happened && judge(state, attempt, equal_) == VersionVerdict::newer)
                state = applied(state, attempt);
            return true;
        });
    }

    /// What the gate of a stream remembers. @throws UnavailableError, SchemaError, UsageError.
    template <version_source Source>
    [[nodiscard]] GateState<Source> state(const Stream& stream) {
        return look<Source>(key_of<Source>(stream));
    }

    /// The guard beneath, for `find`, `list`, `forget` and `drain`.
    [[nodiscard]] IdempotencyGuard<Store>& guard() noexcept { return guard_; }

private:
    [[nodiscard]] static GuardOptions guard_options(const Store& store,
                                                    const GateOptions& options) {
        detail::check_lease(store, options.lease, options.heartbeat, "GateOptions::lease");
        detail::check_duration(options.retention, "GateOptions::retention");
        detail::check_wait(options.wait, "GateOptions::wait");
        GuardOptions out;
        out.lease = options.lease;
        out.retention = options.retention;
        out.heartbeat = options.heartbeat;
        out.max_crashes = 0;  // a gate is never a dead letter
        out.events = options.events;
        return out;
    }
    template <version_source Source>
    [[nodiscard]] static Key key_of(const Stream& stream) {
        return {.scope = std::string(Source::name), .id = stream.id, .tenant = stream.tenant};
    }
    template <version_source Source>
    [[nodiscard]] static GateState<Source> read(const std::string& checkpoint) {
        const auto state = detail::decode_gate<Source>(checkpoint);
        if (!state) throw SchemaError("the record of this gate holds no versions of this format");
        return *state;
    }
    template <version_source Source>
    [[nodiscard]] GateState<Source> look(const Key& key) {
        const auto found = guard_.find(key);
        return found ? read<Source>(found->payload.checkpoint) : GateState<Source>{};
    }

    [[nodiscard]] GateOutcome stale(const Key& key, VersionVerdict verdict) const {
        guard_.state_->tell(EventKind::stale, KeyView(Component::gate, key),
                            {.detail = to_string(verdict)});
        return {.kind = GateKind::stale, .verdict = verdict};
    }

    /// What was applied only grows: who is below it need not wait for the one at work.
    template <version_source Source>
    [[nodiscard]] GateOutcome busy(const Key& key, const Version<Source>& version,
                                   const Outcome<void>& outcome) {
        const auto verdict = judge(look<Source>(key), version, equal_);
        if (verdict != VersionVerdict::newer) return stale(key, verdict);
        return {.kind = GateKind::retry_later, .retry_after = outcome.retry_after()};
    }
    template <version_source Source, class Handler>
    [[nodiscard]] GateOutcome apply(Claim<void> claim, const GateState<Source>& before,
                                    const Version<Source>& version, Handler&& handler) {
        GateState<Source> marked = before;
        marked.attempting = version;
        const std::string as_before = detail::encode_gate(before);
        const std::string as_marked = detail::encode_gate(marked);
        const std::string as_after = detail::encode_gate(applied(before, version));
        try {
            claim.execution().checkpoint(as_marked);
        } catch (...) {  // it may have got there, and nothing has begun
            std::move(claim).release(as_before);
            throw;
        }
        try {
            (void)detail::invoke_handler(std::forward<Handler>(handler), claim.execution());
        } catch (...) {
            const auto failure = detail::failure_of(guard_.options(), std::current_exception());
            const bool unknown = failure.kind == FailureClass::unknown;
            std::move(claim).release(unknown ? as_marked : as_before);
            throw;
        }
        const Key key = claim.key();
        const Event about{.fence = claim.fence(), .attempt = claim.attempt()};
        const bool recorded = std::move(claim).release(as_after);
        guard_.state_->tell(recorded ? EventKind::executed : EventKind::unrecorded,
                            KeyView(Component::gate, key), about);
        return {.kind = GateKind::applied, .recorded = recorded};
    }

    template <version_source Source, class Change>
    [[nodiscard]] bool change(const Stream& stream, Change&& how) {
        const Key key = key_of<Source>(stream);
        auto answer = detail::claim_unfinished(guard_, key, {.wait = wait_});
        auto* const claim = std::get_if<Claim<void>>(&answer);
        if (claim == nullptr) throw UnavailableError("a version of this stream is being applied");
        auto state = read<Source>(claim->execution().checkpoint());
        if (!how(state)) {
            std::move(*claim).give_back();
            return false;
        }
        if (!std::move(*claim).release(detail::encode_gate(state)))
            throw UnavailableError("the change of this stream could not be recorded", true);
        return true;
    }

    IdempotencyGuard<Store> guard_;
    Duration wait_;
    EqualVersions equal_;
};

}  // namespace idem::inline v0_1

#endif
