#ifndef IDEM_INBOX_HPP
#define IDEM_INBOX_HPP

#include <chrono>
#include <concepts>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <cxxabi.h>

#include <idem/clock.hpp>
#include <idem/error.hpp>
#include <idem/events.hpp>
#include <idem/failure.hpp>
#include <idem/fingerprint.hpp>
#include <idem/guard.hpp>
#include <idem/key.hpp>
#include <idem/options.hpp>
#include <idem/retry.hpp>

namespace idem::inline v0_1 {

/// A message as a broker delivers it, once or more often.
struct Message {
    std::string id;  ///< The producer's: the same on every delivery. Not the broker's delivery tag.
    std::string_view body{};
    std::string tenant{};
};

/// Settings that hold for the life of an `Inbox`.
struct InboxOptions {
    /// What consumes: two groups of consumers each handle a message once.
    std::string group = "inbox";
    /// How long a consumer may be silent before another may take its message.
    Duration lease = std::chrono::seconds{30};
    /// How long an id is remembered. Longer than the broker can deliver it again.
    Duration retention = std::chrono::hours{24 * 7};
    Duration held_retention = std::chrono::hours{24 * 30};  ///< Of dead letters.
    /// After how long the broker gives a message that is not acknowledged to another consumer
    /// (SQS: visibility timeout; Kafka: max.poll.interval; RabbitMQ: consumer_timeout). A lease
    /// that is not shorter would turn away the redelivery after a crash. 0: only when a connection
    /// ends.
    Duration redelivery{};
    /// `attempts` is kept in the record and counts across processes; the pauses are for the broker.
    RetryPolicy retry{};
    /// At so many consumers that vanished over it a message is a dead letter. 0: never.
    std::uint16_t max_crashes = 5;
    bool heartbeat = true;
    Orphan orphan = Orphan::rerun;
    Classify classify{};
    Verify verify{};
    Observer events{};
};

enum class InboxAction : std::uint8_t {
    ack,          ///< Done, now or before: acknowledge it.
    retry_later,  ///< Do not acknowledge: have it delivered again, after `delay`.
    dead_letter,  ///< It will not work: put it where a person looks, then acknowledge it.
};

[[nodiscard]] constexpr const char* to_string(InboxAction action) noexcept {
    switch (action) {
        case InboxAction::ack: return "ack";
        case InboxAction::retry_later: return "retry_later";
        case InboxAction::dead_letter: return "dead_letter";
    }
    return "invalid";
}

/// What to tell the broker.
struct InboxOutcome {
    InboxAction action = InboxAction::retry_later;
    bool handled = false;  ///< The handler ran in this call.
    Duration delay{};      ///< Of `retry_later`.
    std::uint32_t attempt = 0;
    /// Why it is not acknowledged, for the headers of a dead letter and for the log.
    Failure failure{FailureClass::none, {}, {}};
    std::exception_ptr error{};  ///< What the handler, or the store, has thrown.
};

/// Runs the handler of an at-least-once message once, and says what to tell its broker; it knows no
/// broker itself. Attempts and crashes are counted in the record, across processes, so that a
/// message that kills its consumers ends as a dead letter. Throws nothing: exceptions of the
/// handler and the store are part of the answer. Any thread may consume. What was handled is
/// remembered as the store does; one that dies between its effect and its record leaves the message
/// to another (`InboxOptions::orphan`).
template <store Store>
class Inbox {
public:
    /// Keeps a handle of the store. @throws UsageError for options that cannot work, or where lease
    /// and redelivery do not fit.
    explicit Inbox(const Store& store, InboxOptions options = {})
        : guard_(store, guard_options(store, options), Component::message),
          group_(std::move(options.group)),
          retry_(std::move(options.retry)) {
        validate(KeyView(Component::message, group_, "id", {}));
    }

    /// Handles a message: `void()` or `void(Execution&)`. The same id with another body is a dead
    /// letter: one of the two is not what it says. So is one without an id that can be a key;
    /// there is no record of it.
    template <class Handler>
    requires(std::invocable<Handler, Execution&> || std::invocable<Handler>)
        [[nodiscard]] InboxOutcome consume(const Message& message, Handler&& handler) {
        const Key key = key_of(message.id, message.tenant);
        InboxOutcome out;
        if (!KeyView(Component::message, key).valid())
            return dead(std::move(out), "no_id", "its id is empty or longer than 255 bytes");
        try {
            const auto outcome =
                guard_.run(key, Fingerprint::of_bytes(message.body), [&](Execution& execution) {
                    out.handled = true;
                    out.attempt = execution.attempt();
                    return handle(handler, execution, out.error);
                });
            return answer(std::move(out), outcome);
        } catch (const abi::__forced_unwind&) {
            throw;  // the thread is being cancelled
        } catch (...) {
            return refused(std::move(out));
        }
    }

    /// The key under which a message is remembered, for `guard`.
    [[nodiscard]] Key key_of(std::string id, std::string tenant = {}) const {
        return {.scope = group_, .id = std::move(id), .tenant = std::move(tenant)};
    }
    /// The guard beneath, for `find`, `list`, `drain`, `resolve`.
    [[nodiscard]] IdempotencyGuard<Store>& guard() noexcept { return guard_; }

private:
    /// As the guard settles it, and says whether it is on record: what was thrown is a value.
    struct Result {
        using value_type = void;
        using error_type = Failure;
        std::optional<Failure> failure{};
        [[nodiscard]] bool has_value() const noexcept { return !failure; }
        [[nodiscard]] const Failure& error() const { return *failure; }
    };
    template <class Handler>
    [[nodiscard]] Result handle(Handler& handler, Execution& execution,
                                std::exception_ptr& thrown) const {
        try {
            if constexpr (std::invocable<Handler&, Execution&>) {
                (void)handler(execution);
            } else {
                (void)handler();
            }
            return {};
        } catch (const abi::__forced_unwind&) {
            throw;
        } catch (...) {
            thrown = std::current_exception();
            return {detail::failure_of(guard_.options(), thrown)};
        }
    }

    [[nodiscard]] static GuardOptions guard_options(const Store& store,
                                                    const InboxOptions& options) {
        detail::check_lease(store, options.lease, options.heartbeat, "InboxOptions::lease");
        detail::check_wait(options.redelivery, "InboxOptions::redelivery");
        detail::check(options.retry);
        if (options.redelivery > Duration::zero() && options.lease >= options.redelivery)
            throw UsageError(
                "InboxOptions::lease is not shorter than InboxOptions::redelivery: after a crash "
                "the message would come again while it still counts as being worked on");
        if (options.retry.attempts > std::uint16_t(-1))
            throw UsageError("InboxOptions::retry.attempts is above 65535");
        GuardOptions out;
        out.lease = options.lease;
        out.retention = options.retention;
        out.held_retention = options.held_retention;
        out.heartbeat = options.heartbeat;
        out.orphan = options.orphan;
        out.max_attempts = static_cast<std::uint16_t>(options.retry.attempts);
        out.max_crashes = options.max_crashes;
        out.classify = options.classify;
        out.verify = options.verify;
        out.events = options.events;
        return out;
    }

    [[nodiscard]] InboxOutcome answer(InboxOutcome out, const Outcome<void>& outcome) const {
        using Kind = OutcomeKind;
        if (out.attempt == 0) out.attempt = outcome.attempt();
        out.failure = outcome.failure();
        // Taken over meanwhile: what the other one makes of it is told when it comes again.
        if (outcome.unrecorded_reason() == UnrecordedReason::lost) {
            out.failure = {FailureClass::none, {}, {}};
            return later(std::move(out), "lost", "taken over by another consumer");
        }
        switch (outcome.kind()) {
            case Kind::executed:
            case Kind::replayed: out.action = InboxAction::ack; return out;
            case Kind::in_progress:
            case Kind::cancelled:
                out.delay = outcome.retry_after();
                return later(std::move(out), "in_progress", "another consumer is at it");
            case Kind::mismatch:
                return dead(std::move(out), "mismatch", "its id has come with another body");
            case Kind::failed:
            case Kind::unknown:
                // Only what is on record is final.
                if (out.failure.kind == FailureClass::retryable || !outcome.recorded())
                    return later(std::move(out), "failed", {});
                return dead(std::move(out), "failed", "it has failed for good");
            case Kind::absent:
            case Kind::expired: break;  // of tokens
        }
        return later(std::move(out), to_string(outcome.kind()), {});
    }

    /// Nothing is on record of it, and no handler has run, or its result could not be handed on.
    [[nodiscard]] InboxOutcome refused(InboxOutcome out) const {
        out.error = std::current_exception();
        try {
            throw;
        } catch (const SchemaError& error) {
            return later(std::move(out), "schema", error.what());
        } catch (const std::exception& error) {
            return later(std::move(out), "unavailable", error.what());
        } catch (...) {
            return later(std::move(out), "unavailable", {});
        }
    }

    /// A cause that is known stays; these words stand where there is none.
    static void explain(Failure& failure, FailureClass kind, const char* code,
                        std::string_view message) {
        if (failure.kind == FailureClass::none) failure.kind = kind;
        if (failure.code.empty()) failure.code = code;
        if (failure.message.empty()) failure.message = message;
    }
    [[nodiscard]] InboxOutcome later(InboxOutcome out, const char* code,
                                     std::string_view message) const {
        explain(out.failure, FailureClass::retryable, code, message);
        out.action = InboxAction::retry_later;
        RetryPolicy endless = retry_;
        endless.attempts = 0;
        endless.budget = {};
        const FailedTry tried{.attempt = out.attempt, .retry_after = out.delay};
        out.delay = next_pause(endless, tried, detail::random_bits()).value_or(endless.longest);
        return out;
    }
    [[nodiscard]] static InboxOutcome dead(InboxOutcome out, const char* code,
                                           std::string_view message) {
        explain(out.failure, FailureClass::final, code, message);
        out.action = InboxAction::dead_letter;
        return out;
    }

    IdempotencyGuard<Store> guard_;
    std::string group_;
    RetryPolicy retry_;
};

}  // namespace idem::inline v0_1

#endif
