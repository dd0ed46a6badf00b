#ifndef IDEM_GUARD_HPP
#define IDEM_GUARD_HPP

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <idem/batch.hpp>
#include <idem/claim.hpp>
#include <idem/heartbeat.hpp>
#include <idem/options.hpp>
#include <idem/running.hpp>
#include <idem/store.hpp>

namespace idem::inline v0_1 {

/// How a person settles a held key.
class Resolution {
public:
    /// It has happened, with this result.
    template <codable T>
    [[nodiscard]] static Resolution done(const T& result) {
        Resolution out(true);
        out.codec_ = codec_id<T>();
        Codec<T>::encode(result, out.result_);
        return out;
    }
    [[nodiscard]] static Resolution done() { return done(std::monostate{}); }
    /// It has not happened: the next call runs.
    [[nodiscard]] static Resolution rerun() { return Resolution(false); }

    [[nodiscard]] bool succeeded() const noexcept { return succeeded_; }
    [[nodiscard]] CodecId codec() const noexcept { return codec_; }
    [[nodiscard]] const std::string& result() const noexcept { return result_; }

private:
    explicit Resolution(bool succeeded) noexcept : succeeded_(succeeded) {}

    bool succeeded_;
    CodecId codec_{};
    std::string result_{};
};

/// What `drain` left behind.
struct DrainReport {
    bool complete = false;       ///< Nothing was running and nothing waited to be recorded.
    std::size_t running = 0;     ///< Handlers and open claims left to their leases.
    std::size_t unrecorded = 0;  ///< Results that the store has not taken yet.
};

struct Health {
    std::vector<std::string> problems{};  ///< In words for a person; empty: well.
    std::size_t running = 0;
    std::size_t unrecorded = 0;
    bool draining = false;

    [[nodiscard]] bool ok() const noexcept { return problems.empty(); }
};

/// Makes an operation safe to repeat: for each key the handler runs once, and every caller gets
/// its first answer, within `retention`. Copyable and cheap to copy; any thread may call any
/// member at any time. After a crash of the process the store still knows what was recorded; what
/// ran and was not recorded is an orphan once its lease ends, and `GuardOptions::orphan` decides.
template <store Store>
class IdempotencyGuard {
public:
    /// Keeps a handle of the store. Components other than `call` are the library's own.
    /// @throws UsageError for options that cannot work, with the field's name.
    explicit IdempotencyGuard(const Store& store, GuardOptions options = {},
                              Component component = Component::call)
        : state_(make(store, std::move(options), component)) {}

    /// Runs `handler`, `R()` or `R(Execution&)`, unless its key has an answer already.
    /// `R` is any type with a `Codec`, `void`, or an expected-like type of one.
    /// @throws what the handler throws, after its claim was settled by the failure's class;
    /// UnavailableError: the store could not be asked, or the guard drains: the handler did not
    /// run; SchemaError, CodecError: what is stored cannot be used; UsageError: the key or an
    /// option.
    template <detail::handler Handler>
    [[nodiscard]] auto run(const Key& key, const Fingerprint& fingerprint,
                           const RunOptions& options, Handler&& handler) {
        using V = typename detail::Handled<Handler>::Type;
        detail::Call call = make_call(key, fingerprint, options);
        detail::Admission const admission(call);
        auto claimed = detail::claim_or_wait(call, options.stop_token);
        if (!claimed.unprotected && claimed.reply.kind != ClaimKind::acquired)
            return detail::answer<V>(call, claimed);
        const detail::Kept kept(call);
        return detail::execute<V>(call, admission, claimed, std::forward<Handler>(handler));
    }
    template <detail::handler Handler>
    [[nodiscard]] auto run(const Key& key, const Fingerprint& fingerprint, Handler&& handler) {
        return run(key, fingerprint, RunOptions{}, std::forward<Handler>(handler));
    }

    /// Many calls, one request to claim them all. The handler is `R(Execution&, size_t index)`,
    /// called for each acquired item and recorded at once, or
    /// `vector<R>(span<Execution* const>)`, called once for all. An item's exception is its own.
    /// Repeats of a key inside the batch get the first one's answer. Does not wait.
    template <class Handler>
    requires detail::item_handler<Handler> || detail::batch_handler<Handler>
    [[nodiscard]] auto run_batch(std::span<const BatchCall> calls, Handler&& handler) {
        using V = typename detail::BatchResult<Handler>::Type;
        detail::Batch<V> batch(*state_, calls);
        batch.claim();
        if constexpr (detail::batch_handler<Handler>) {
            batch.run_together(handler);
        } else {
            batch.run_each(handler);
        }
        return std::move(batch).answers();
    }

    /// The first half of a call whose work ends elsewhere: a claim to finish, or the answer there
    /// is. Throws as `run` does.
    template <class R>
    [[nodiscard]] std::variant<Claim<R>, Outcome<R>> claim(const Key& key,
                                                           const Fingerprint& fingerprint,
                                                           const RunOptions& options = {}) {
        static_assert(codable<typename Outcome<R>::Value>, "idem: no codec for this result type");
        const detail::Call call = make_call(key, fingerprint, options);
        detail::Admission admission(call);
        auto claimed = detail::claim_or_wait(call, options.stop_token);
        if (!claimed.unprotected && claimed.reply.kind != ClaimKind::acquired)
            return detail::answer<R>(call, claimed);
        auto open = detail::hold(call, claimed, [&] {
            return std::make_unique<detail::OpenClaim>(state_, call, claimed,
                                                       admission.take_place());
        });
        detail::tell_takeover(open->call(), claimed.reply);
        if (admission.draining()) detail::begin_or_refuse(open->call(), admission, open->live());
        if (claimed.reply.verify) {
            if (auto verified =
                    detail::verify<R>(open->call(), admission, open->live(), open->execution()))
                return *std::move(verified);
        }
        open->tell(EventKind::claimed);
        return Claim<R>(std::move(open));
    }

    /// Takes a detached claim up again: another thread, process or day. Lease and retention are
    /// this guard's or `options`', whatever the ticket's were. Of two that finish the same ticket
    /// both are told that it is recorded, and the first one's result stands.
    /// @throws LeaseLostError where it is no longer the ticket's; UnavailableError; UsageError for
    /// a ticket of another component.
    template <class R>
    [[nodiscard]] Claim<R> resume(const Ticket& ticket, const RunOptions& options = {}) {
        if (ticket.component() != state_->component())
            throw UsageError("the ticket is of another component than this guard");
        const detail::Call call = make_call(ticket.key(), {}, options);
        detail::Claimed claimed{.owner = ticket.owner(), .sent = LocalClock::now()};
        const RenewRequest request{
            .key = call.key, .owner = ticket.owner(), .fence = ticket.fence(), .lease = call.lease};
        const RenewReply reply = renew_one(state_->store(), request);
        raise(reply.trouble, call.key);
        if (reply.lost) throw LeaseLostError("the ticket's claim was lost", reply.reason);
        const FindReply found = find_one(state_->store(), call.key);
        raise(found.trouble, call.key);
        if (found.record) {
            claimed.reply.attempt = found.record->header.attempt;
            claimed.reply.takeover = found.record->header.takeover;
            claimed.reply.checkpoint = found.record->payload.checkpoint;
            claimed.reply.resource = found.record->payload.resource;
        }
        claimed.reply.fence = ticket.fence();
        claimed.reply.lease_left = reply.lease_left;
        auto open = detail::hold(call, claimed, [&] {
            return std::make_unique<detail::OpenClaim>(state_, call, claimed, detail::Place());
        });
        open->tell(EventKind::resumed);
        return Claim<R>(std::move(open));
    }

    /// The record under a key as it stands, without claiming it.
    /// @throws UnavailableError, SchemaError, UsageError.
    [[nodiscard]] std::optional<RecordView> find(const Key& key) {
        FindReply reply = find_one(state_->store(), view(key));
        raise(reply.trouble, view(key));
        return std::move(reply.record);
    }

    /// Forgets a key at once, running or not; says whether there was one. A holder that still runs
    /// is told that it lost; whatever it has done is done, and the next call runs again. With a
    /// fence that was seen: only while nobody has claimed it since.
    bool forget(const Key& key, Fence seen_fence = 0) {
        const ForgetReply reply = forget_one(
            state_->store(),
            {.key = view(key), .lease = state_->options().lease, .seen_fence = seen_fence});
        raise(reply.trouble, view(key));
        detail::Heartbeat::instance().hub().notify(detail::wait_hash(view(key)));
        if (reply.existed) state_->tell(EventKind::forgotten, view(key));
        return reply.existed;
    }

    /// Settles a held key (`State::unknown`) that was seen with `seen_fence`. False where it is
    /// not held, or no longer as it was seen. The old holder's late finish is lost from then on.
    bool resolve(const Key& key, Fence seen_fence, const Resolution& resolution) {
        ResolveRequest request{.key = view(key),
                               .seen_fence = seen_fence,
                               .succeeded = resolution.succeeded(),
                               .retention = state_->options().retention};
        if (resolution.succeeded()) {
            request.result_kind = ResultKind::value;
            request.codec = resolution.codec();
            request.result = resolution.result();
        }
        const ResolveReply reply = resolve_one(state_->store(), request);
        raise(reply.trouble, view(key));
        detail::Heartbeat::instance().hub().notify(detail::wait_hash(view(key)));
        if (reply.resolved) state_->tell(EventKind::resolved, view(key), {.fence = seen_fence});
        return reply.resolved;
    }

    /// One page of this component's records. One that cannot be read is left out and is the
    /// page's `trouble`. @throws UnavailableError, UsageError.
    [[nodiscard]] ListPage list(ListQuery query = {}) {
        query.component = state_->component();
        ListPage page = state_->store().list(query);
        if (page.trouble.kind != Trouble::Kind::schema)
            raise(page.trouble, {state_->component(), query.scope.value_or(""), {}, {}});
        return page;
    }

    /// For SIGTERM: takes no new work, then waits for running handlers, open claims and results
    /// that are still to be recorded. At the deadline it asks handlers to stop and leaves the rest
    /// to leases. A claim whose handler had not begun is given back uncounted. There is no undrain.
    DrainReport drain(Duration deadline) {
        auto& traffic = state_->traffic();
        auto& heartbeat = detail::Heartbeat::instance();
        traffic.draining.store(true);
        heartbeat.hub().notify_all();  // who waits for a running call is not kept waiting
        const auto end = LocalClock::now() + std::min(deadline, duration_max);
        DrainReport report;
        for (Duration pause = std::chrono::milliseconds{1};; pause *= 2) {
            report.running = traffic.calls.sum() + traffic.claims.load();
            report.unrecorded = traffic.unrecorded.load();
            report.complete = report.running == 0 && report.unrecorded == 0;
            const auto left = end - LocalClock::now();
            if (report.complete || left <= left.zero()) break;
            pause = std::min<Duration>(pause, std::chrono::milliseconds{20});
            std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(pause, left));
        }
        if (!report.complete) heartbeat.claims().request_stop(*state_);
        state_->tell(EventKind::drained, {});
        return report;
    }

    /// Whether the guard can do its work; asks the store once. Never throws for trouble.
    [[nodiscard]] Health health() {
        auto& traffic = state_->traffic();
        Health health;
        health.running = traffic.calls.sum() + traffic.claims.load();
        health.unrecorded = traffic.unrecorded.load();
        health.draining = traffic.draining.load();
        const Key probe{.scope = "idem.health", .id = "probe"};
        const FindReply reply = find_one(state_->store(), view(probe));
        if (reply.trouble) health.problems.push_back("store: " + reply.trouble.message);
        if (health.draining) health.problems.emplace_back("draining: takes no new work");
        if (health.unrecorded > 0)
            health.problems.push_back(std::to_string(health.unrecorded) +
                                      " finishes wait for the store");
        return health;
    }

    [[nodiscard]] const GuardOptions& options() const noexcept { return state_->options(); }
    [[nodiscard]] Component component() const noexcept { return state_->component(); }
    [[nodiscard]] Store& store() noexcept { return state_->store(); }

private:
    template <idem::store S>
    friend class VersionGate;
    using State = detail::GuardStateOf<Store>;

    [[nodiscard]] static std::shared_ptr<State> make(const Store& store, GuardOptions options,
                                                     Component component) {
        detail::check(options);
        if (options.heartbeat) detail::check_lease_for(store, options.lease, "GuardOptions::lease");
        return std::make_shared<State>(store, std::move(options), component);
    }

    /// @throws what the trouble stands for, after it was told.
    void raise(const Trouble& trouble, const KeyView& about) const {
        if (!trouble) return;
        state_->tell(detail::event_of(trouble), about, {.detail = trouble.message});
        trouble.raise();
    }

    [[nodiscard]] KeyView view(const Key& key) const {
        const KeyView out(state_->component(), key);
        validate(out);
        return out;
    }

    [[nodiscard]] detail::Call make_call(const Key& key, const Fingerprint& fingerprint,
                                         const RunOptions& options) const {
        const GuardOptions& defaults = state_->options();
        detail::check(options, defaults.heartbeat);
        if (options.lease && defaults.heartbeat)
            detail::check_lease_for(state_->store(), *options.lease, "RunOptions::lease");
        return {.guard = *state_,
                .key = view(key),
                .fingerprint = fingerprint,
                .fingerprint_before = options.fingerprint_before,
                .lease = options.lease.value_or(defaults.lease),
                .retention = options.retention.value_or(defaults.retention),
                .wait = options.wait.value_or(defaults.wait),
                .redeem_only = options.redeem_only,
                .request_id = options.request_id,
                .begin = LocalClock::now()};
    }

    std::shared_ptr<State> state_;
};

namespace detail {

/// For components whose records are never finished: the claim, or the outcome that says who is at
/// it. @throws SchemaError where somebody has finished it all the same; else as `claim`.
template <store Store>
[[nodiscard]] std::variant<Claim<void>, Outcome<void>> claim_unfinished(
    IdempotencyGuard<Store>& guard, const Key& key, const RunOptions& options) {
    try {
        auto answer = guard.template claim<void>(key, {}, options);
        const auto* const other = std::get_if<Outcome<void>>(&answer);
        const bool busy = other != nullptr && (other->kind() == OutcomeKind::in_progress ||
                                               other->kind() == OutcomeKind::cancelled);
        if (other == nullptr || busy) return answer;
    } catch (const CodecError&) {  // it has a result, too
    }
    throw SchemaError("the record under this key was not left by this kind of use");
}

}  // namespace detail

}  // namespace idem::inline v0_1

#endif
