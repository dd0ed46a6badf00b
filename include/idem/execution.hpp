#ifndef IDEM_EXECUTION_HPP
#define IDEM_EXECUTION_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>

#include <idem/clock.hpp>
#include <idem/error.hpp>
#include <idem/heartbeat.hpp>
#include <idem/live_claim.hpp>
#include <idem/operation.hpp>

namespace idem::inline v0_1 {

/// What a running handler knows of its claim. Valid until the handler returns; for the handler's
/// own thread, but `held` and `stop_token`, which any thread may ask.
class Execution {
public:
    Execution(detail::LiveClaim& claim, std::uint32_t attempt, bool takeover,
              std::string checkpoint, std::string resource, std::size_t index = 0)
        : claim_(claim),
          attempt_(attempt),
          takeover_(takeover),
          checkpoint_(std::move(checkpoint)),
          resource_(std::move(resource)),
          index_(index) {}
    Execution(const Execution&) = delete;
    Execution& operator=(const Execution&) = delete;

    /// How often this key has been acquired, this time included.
    [[nodiscard]] std::uint32_t attempt() const noexcept { return attempt_; }
    /// Grows with every acquisition of the key. Hand it to the callee, and let the callee refuse
    /// a smaller one than it has seen: that is what stops a holder that was paused too long.
    [[nodiscard]] Fence fence() const noexcept { return claim_.terms().fence; }
    /// The last holder vanished: its effect may have happened, in whole or in part.
    [[nodiscard]] bool takeover() const noexcept { return takeover_; }
    /// Which item of a batch this is.
    [[nodiscard]] std::size_t index() const noexcept { return index_; }
    [[nodiscard]] Key key() const { return claim_.terms().key.key(); }

    /// True while the lease stands by the local clock. Ask right before a step that must not
    /// happen twice; once false it stays so, and another may be at work.
    [[nodiscard]] bool held() const noexcept { return claim_.held(); }
    /// Why it is not held any more; `none` while nothing is known against it.
    [[nodiscard]] LostReason lost() const noexcept { return claim_.lost(); }
    /// Stops when the lease is lost, or at the deadline of `drain`.
    [[nodiscard]] std::stop_token stop_token() const { return claim_.stop_token(); }
    /// Called once, by whichever thread learns of the loss: the heartbeat's, or one that is in
    /// `held`, `checkpoint` or here. Hold no lock around these that the callback takes.
    void on_lost(std::function<void(LostReason)> callback) { claim_.on_lost(std::move(callback)); }
    /// Lets the lease run out at its end; the handler must return before.
    void stop_heartbeat() { claim_.stop_renewal(); }

    /// What the vanished holder, or an earlier rolled-back attempt, noted last; empty at first.
    [[nodiscard]] const std::string& checkpoint() const noexcept { return checkpoint_; }
    /// Notes how far the work has come, in the store, for whoever takes over; renews the lease.
    /// @throws LeaseLostError where there is no claim (any more); UnavailableError: not noted.
    void checkpoint(std::string bytes) {
        write(&bytes);
        checkpoint_ = std::move(bytes);
    }

    /// The stable id of what this call makes (row id, URL); replayed with the result.
    void resource(std::string id) { resource_ = std::move(id); }
    [[nodiscard]] const std::string& resource() const noexcept { return resource_; }

private:
    void write(const std::string* checkpoint) {
        const auto& terms = claim_.terms();
        if (claim_.lost() != LostReason::none) throw lost_error(claim_.lost());
        RenewRequest request{.key = terms.key,
                             .owner = terms.owner,
                             .fence = terms.fence,
                             .lease = terms.lease,
                             .checkpoint = *checkpoint};
        if (!resource_.empty()) request.resource = resource_;
        RenewReply reply;
        const auto sent = LocalClock::now();
        claim_.guard().renew(std::span(&request, 1), std::span(&reply, 1));
        reply.trouble.raise();
        if (reply.lost) {
            claim_.lose(reply.reason);
            throw lost_error(reply.reason);
        }
        claim_.extend(sent, reply.lease_left);
    }
    [[nodiscard]] static LeaseLostError lost_error(LostReason reason) {
        return {std::string("the claim was lost: ") + to_string(reason), reason};
    }

    detail::LiveClaim& claim_;
    std::uint32_t attempt_;
    bool takeover_;
    std::string checkpoint_;
    std::string resource_;
    std::size_t index_;
};

}  // namespace idem::inline v0_1

#endif
