#ifndef IDEM_CLAIM_HPP
#define IDEM_CLAIM_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include <idem/claiming.hpp>
#include <idem/codec.hpp>
#include <idem/detail/bytes.hpp>
#include <idem/detail/sha256.hpp>
#include <idem/execution.hpp>
#include <idem/outcome.hpp>
#include <idem/running.hpp>
#include <idem/settle.hpp>

namespace idem::inline v0_1 {

/// A detached claim: who holds it may finish the work in another thread, another process, or days
/// later when a callback comes. Whoever has it is the holder: keep it as secret as a password.
class Ticket {
public:
    Ticket(Component component, Key key, const Owner& owner, Fence fence)
        : component_(component), key_(std::move(key)), owner_(owner), fence_(fence) {}

    [[nodiscard]] Component component() const noexcept { return component_; }
    [[nodiscard]] const Key& key() const noexcept { return key_; }
    [[nodiscard]] const Owner& owner() const noexcept { return owner_; }
    [[nodiscard]] Fence fence() const noexcept { return fence_; }

    /// Hex digits, for a column, a message or a callback URL.
    [[nodiscard]] std::string to_string() const {
        std::string bytes(1, '\1');
        detail::put_fixed(bytes, fence_, 8);
        bytes += owner_.stored();
        encode_key(KeyView(component_, key_), bytes);
        return detail::hex(bytes + check_of(bytes));
    }
    /// @throws UsageError for a text that `to_string` did not write, or not in full.
    [[nodiscard]] static Ticket parse(std::string_view text) {
        const auto bytes = detail::unhex(text);
        std::string_view body = bytes ? std::string_view(*bytes) : std::string_view();
        body.remove_suffix(std::min(check_bytes, body.size()));
        if (!bytes || *bytes != std::string(body) + check_of(body)) body = {};
        detail::ByteReader in(body);
        const auto format = in.fixed(1);
        const auto fence = in.fixed(8);
        const auto owner_bytes = in.take(16);
        const auto key = owner_bytes ? decode_key(in.rest()) : std::nullopt;
        if (!format || *format != 1 || !fence || !key) throw UsageError("this is not a ticket");
        Owner owner;
        owner_bytes->copy(owner.bytes.data(), owner.bytes.size());
        return {key->component, key->key(), owner, *fence};
    }
    friend bool operator==(const Ticket&, const Ticket&) = default;

private:
    /// A cut text would else be the ticket of another key.
    static constexpr std::size_t check_bytes = 4;
    [[nodiscard]] static std::string check_of(std::string_view bytes) {
        const auto digest = detail::sha256(bytes);
        return std::string(detail::as_text(digest).substr(0, check_bytes));
    }

    Component component_;
    Key key_;
    Owner owner_;
    Fence fence_;
};

namespace detail {

/// A claim that outlives the call that made it, with all that it refers to.
class OpenClaim {
public:
    OpenClaim(std::shared_ptr<GuardState> guard, const Call& call, const Claimed& claimed,
              Place place)
        : guard_(std::move(guard)),
          place_(std::move(place)),
          key_(call.key.key()),
          request_id_(call.request_id),
          call_(own(call)),
          live_(*guard_, own(terms_of(call, claimed))),
          execution_(live_, claimed.reply.attempt, claimed.reply.takeover, claimed.reply.checkpoint,
                     claimed.reply.resource) {
        guard_->traffic().claims.fetch_add(1);
    }
    ~OpenClaim() {
        if (!live_.inherited()) guard_->traffic().claims.fetch_sub(1);
    }
    OpenClaim(const OpenClaim&) = delete;
    OpenClaim& operator=(const OpenClaim&) = delete;

    [[nodiscard]] GuardState& guard() noexcept { return *guard_; }
    [[nodiscard]] const Call& call() const noexcept { return call_; }
    [[nodiscard]] LiveClaim& live() noexcept { return live_; }
    [[nodiscard]] Execution& execution() noexcept { return execution_; }
    [[nodiscard]] const Key& key() const noexcept { return key_; }
    void tell(EventKind kind) const noexcept {
        call_.tell(kind, {.fence = execution_.fence(), .attempt = execution_.attempt()});
    }

private:
    [[nodiscard]] KeyView view() const { return {guard_->component(), key_}; }
    [[nodiscard]] Call own(Call call) const {
        call.key = view();
        call.request_id = request_id_;
        return call;
    }
    [[nodiscard]] LiveClaim::Terms own(LiveClaim::Terms terms) const {
        terms.key = view();
        terms.request_id = request_id_;
        return terms;
    }

    std::shared_ptr<GuardState> guard_;
    Place place_;
    Key key_;
    std::string request_id_;
    Call call_;
    LiveClaim live_;
    Execution execution_;
};

}  // namespace detail

/// A claim in two phases: made now, finished by the caller. Exactly one of `complete`, `fail`,
/// `release`, `quarantine` or `detach` ends it; a destructor that finds it open releases it with
/// one bounded request and never throws. Movable between threads, for one thread at a time. If the
/// process dies, the claim is an orphan when its lease ends.
template <class R>
class Claim {
public:
    using Value = typename Outcome<R>::Value;

    explicit Claim(std::unique_ptr<detail::OpenClaim> open) : open_(std::move(open)) {}
    ~Claim() { close(); }
    Claim(Claim&&) noexcept = default;
    Claim& operator=(Claim&& other) noexcept {
        if (this != &other) {
            close();
            open_ = std::move(other.open_);
        }
        return *this;
    }

    /// False once it has been finished, detached or moved from: nothing but this may be asked then.
    [[nodiscard]] bool is_open() const noexcept { return open_ != nullptr; }
    [[nodiscard]] const Key& key() const { return open().key(); }
    [[nodiscard]] Fence fence() const { return open().execution().fence(); }
    [[nodiscard]] std::uint32_t attempt() const { return open().execution().attempt(); }
    [[nodiscard]] bool takeover() const { return open().execution().takeover(); }
    [[nodiscard]] bool held() const { return open().live().held(); }
    [[nodiscard]] std::stop_token stop_token() const { return open().live().stop_token(); }
    /// Checkpoint, resource id, loss callback: what a handler would get.
    [[nodiscard]] Execution& execution() const { return open().execution(); }

    /// What a repeat is told while the claim is open, for the first caller's own `202 Accepted`.
    [[nodiscard]] Outcome<R> pending() const {
        return Outcome<R>({.kind = OutcomeKind::in_progress,
                           .attempt = attempt(),
                           .retry_after = open().call().lease});
    }

    /// Records the result. `recorded()` of the outcome says whether it is in the store.
    Outcome<R> complete(Value value) && {
        const auto spent = take();
        return detail::record_value<R>(spent->call(), spent->live(), spent->execution(),
                                       std::move(value));
    }
    Outcome<R> complete() && requires std::is_void_v<R> {
        return std::move(*this).complete(std::monostate{});
    }

    /// Settles by the failure's class: final is stored and replayed, retryable is released,
    /// unknown is held. True where the store has it so. False where the claim was lost, or the
    /// store gave trouble, which is left to the background, and an event.
    bool fail(const Failure& failure) && {
        const auto spent = take();
        return settled(*spent, detail::cut(failure));
    }
    /// Nothing has happened: the next call may run.
    bool release() && { return std::move(*this).fail({FailureClass::retryable, "released", {}}); }
    /// So far it has come: the next call goes on from this checkpoint.
    bool release(std::string_view checkpoint) && {
        const auto spent = take();
        return settled(*spent, {FailureClass::none, {}, {}}, true, checkpoint);
    }
    /// As if it had never been made: the attempt does not count.
    bool give_back() && {
        const auto spent = take();
        return settled(*spent, {FailureClass::retryable, "given back", {}}, false);
    }
    /// It may have happened: held for a person.
    bool quarantine(std::string message = {}) && {
        return std::move(*this).fail({FailureClass::unknown, "quarantined", std::move(message)});
    }

    /// Lets the claim go its own way until `deadline` from now; a ticket finishes it.
    /// @throws LeaseLostError where it is lost, here or in the store; UnavailableError: still open.
    Ticket detach(Duration deadline) && {
        detail::check_duration(deadline, "Claim::detach deadline");
        auto& live = open().live();
        if (!live.held())
            throw LeaseLostError("the claim was lost before it could be detached", live.lost());
        const auto& terms = live.terms();
        RenewRequest request{
            .key = terms.key, .owner = terms.owner, .fence = terms.fence, .lease = deadline};
        const auto& resource = open().execution().resource();
        if (!resource.empty()) request.resource = resource;
        RenewReply reply;
        open().guard().renew(std::span(&request, 1), std::span(&reply, 1));
        reply.trouble.raise();
        if (reply.lost) {
            live.lose(reply.reason);
            open_.reset();
            throw LeaseLostError("the claim was lost before it could be detached", reply.reason);
        }
        const auto spent = take();
        spent->tell(EventKind::detached);
        return {terms.key.component, spent->key(), terms.owner, terms.fence};
    }

private:
    [[nodiscard]] detail::OpenClaim& open() const {
        if (!open_) throw UsageError("this claim has been finished, detached or moved from");
        return *open_;
    }
    [[nodiscard]] std::unique_ptr<detail::OpenClaim> take() {
        (void)open();
        return std::move(open_);
    }
    static bool settled(detail::OpenClaim& spent, const Failure& failure, bool counted = true,
                        std::optional<std::string_view> checkpoint = {}) noexcept {
        return detail::roll_back(spent.call(), spent.live(), &spent.execution(), failure, counted,
                                 checkpoint)
                   .unrecorded == UnrecordedReason::none;
    }
    void close() noexcept {
        if (!open_) return;
        settled(*open_, {FailureClass::retryable, "abandoned", {}});
        open_.reset();
    }

    std::unique_ptr<detail::OpenClaim> open_;
};

}  // namespace idem::inline v0_1

#endif
