#ifndef IDEM_LATE_FINISH_HPP
#define IDEM_LATE_FINISH_HPP

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <idem/clock.hpp>
#include <idem/detail/wait_hub.hpp>
#include <idem/guard_state.hpp>
#include <idem/operation.hpp>

namespace idem::inline v0_1::detail {

/// A finish that the store would not take at once. The background owns it, keeps its lease, and
/// tries again: complete, then complete without the value, then quarantine. Never a release of
/// work that is known to have happened.
struct LateFinish {
    std::shared_ptr<GuardState> guard{};
    Key key{};
    std::string request_id{};
    Owner owner{};
    Fence fence = 0;
    FinishKind kind = FinishKind::complete;
    bool counted = true;
    Duration lease{};
    Duration retention{};
    ResultKind result_kind = ResultKind::none;
    CodecId codec{};
    std::string result{};
    Failure failure{FailureClass::none, {}, {}};
    std::optional<std::string> checkpoint{};
    std::string resource{};
    LocalInstant give_up{};
    LocalInstant next_try{};
    LocalInstant next_renew{};
    Duration pause{};

    /// Owns what the request refers to.
    [[nodiscard]] static LateFinish of(GuardState& guard, const FinishRequest& request,
                                       std::string_view request_id);
    [[nodiscard]] KeyView view() const { return {guard->component(), key}; }
    [[nodiscard]] FinishRequest request() const;
    [[nodiscard]] bool drop_value();
    /// What the store made of a try. Whether it is over: recorded, lost, or given up.
    [[nodiscard]] bool settle(const FinishReply& reply, LocalInstant now);
    void postpone(LocalInstant now);

private:
    /// The next rung of the ladder; false where there is none.
    [[nodiscard]] bool step_down();
};

/// The finishes that wait for their stores. Any thread adds; the heartbeat's works them off.
class LateFinishes {
public:
    /// False: too many are waiting already. Where only its bytes are too many, it waits without
    /// its value.
    [[nodiscard]] bool add(LateFinish finish);
    /// Tries some of what is due, one request for those of one guard. When to come again: what is
    /// left over is due at once, and renewals get their turn in between.
    [[nodiscard]] LocalInstant work(LocalInstant now, WaitHub& hub);
    [[nodiscard]] LocalInstant next_try();

private:
    static constexpr std::size_t count_max = 10'000;
    static constexpr std::size_t bytes_max = std::size_t{64} << 20U;
    static constexpr std::size_t batch_max = 100;

    using List = std::list<LateFinish>;  // moved by splicing, which cannot fail

    [[nodiscard]] List take(LocalInstant now);
    [[nodiscard]] static std::vector<FinishReply> send(const List& batch);
    static void renew(List& kept, LocalInstant now);
    void put_back(List& kept, bool silent) noexcept;

    std::mutex mutex_{};
    List waiting_{};
    std::size_t bytes_ = 0;  ///< Of what waits.
};

inline LateFinish LateFinish::of(GuardState& guard, const FinishRequest& request,
                                 std::string_view request_id) {
    LateFinish out;
    out.guard = guard.shared_from_this();
    out.key = request.key.key();
    out.request_id = request_id;
    out.owner = request.owner;
    out.fence = request.fence;
    out.kind = request.kind;
    out.counted = request.counted;
    out.lease = request.lease;
    out.retention = request.retention;
    out.result_kind = request.result_kind;
    out.codec = request.codec;
    out.result = request.result;
    out.failure = {request.failure, std::string(request.failure_code),
                   std::string(request.failure_message)};
    if (request.checkpoint) out.checkpoint.emplace(*request.checkpoint);
    out.resource = request.resource.value_or("");
    out.give_up = LocalClock::now() + guard.options().record_retry;
    return out;
}

inline FinishRequest LateFinish::request() const {
    FinishRequest out;
    out.key = view();
    out.owner = owner;
    out.fence = fence;
    out.kind = kind;
    out.counted = counted;
    out.lease = lease;
    out.retention = retention;
    out.held_retention = guard->options().held_retention;
    out.result_kind = result_kind;
    out.codec = codec;
    out.result = result;
    out.failure = failure.kind;
    out.failure_code = failure.code;
    out.failure_message = failure.message;
    if (checkpoint) out.checkpoint = *checkpoint;
    if (!resource.empty()) out.resource = resource;
    return out;
}

inline bool LateFinish::drop_value() {
    if (kind != FinishKind::complete || result_kind != ResultKind::value) return false;
    result_kind = ResultKind::no_room;
    result.clear();
    return true;
}

inline bool LateFinish::step_down() {
    if (kind != FinishKind::complete) return false;
    if (drop_value()) return true;
    kind = FinishKind::quarantine;
    failure = {FailureClass::unknown, "unrecorded", "the result could not be recorded"};
    return true;
}

inline bool LateFinish::settle(const FinishReply& reply, LocalInstant now) {
    const Event about{.request_id = request_id,
                      .fence = fence,
                      .lost = reply.reason,
                      .detail = reply.trouble.message};
    const bool release = kind == FinishKind::release;
    if (!reply.trouble) {
        guard->tell(!reply.lost ? (release ? EventKind::released : EventKind::recorded_late)
                    : release   ? EventKind::unrecorded
                                : EventKind::record_abandoned,
                    view(), about);
        return true;
    }
    if (reply.trouble.kind != Trouble::Kind::unavailable && step_down()) return false;
    if (now < give_up) return false;
    guard->tell(EventKind::record_abandoned, view(), about);
    return true;
}

inline void LateFinish::postpone(LocalInstant now) {
    constexpr Duration shortest = std::chrono::milliseconds{5};
    constexpr Duration longest = std::chrono::seconds{5};
    pause = std::clamp<Duration>(pause * 2, shortest, longest);
    next_try = now + std::min(pause, lease / 3);
}

inline bool LateFinishes::add(LateFinish finish) {
    std::scoped_lock const lock(mutex_);
    if (waiting_.size() >= count_max) return false;
    if (bytes_ + finish.result.size() > bytes_max) (void)finish.drop_value();
    bytes_ += finish.result.size();
    auto& traffic = finish.guard->traffic();
    waiting_.push_back(std::move(finish));
    traffic.unrecorded.fetch_add(1);
    return true;
}

inline LocalInstant LateFinishes::next_try() {
    auto next = LocalInstant::max();
    std::scoped_lock const lock(mutex_);
    for (const LateFinish& finish : waiting_) next = std::min(next, finish.next_try);
    return next;
}

/// The one that has been due for longest, and others of its guard. What has failed is put back
/// behind the rest, so it cannot stand in their way.
inline LateFinishes::List LateFinishes::take(LocalInstant now) {
    List batch;
    std::scoped_lock const lock(mutex_);
    waiting_.sort([](const LateFinish& a, const LateFinish& b) { return a.next_try < b.next_try; });
    for (auto at = waiting_.begin(); at != waiting_.end() && at->next_try <= now;) {
        const auto here = at++;
        if (!batch.empty() && here->guard != batch.front().guard) continue;
        bytes_ -= here->result.size();
        batch.splice(batch.end(), waiting_, here);
        if (batch.size() == batch_max) break;
    }
    return batch;
}

inline std::vector<FinishReply> LateFinishes::send(const List& batch) {
    std::vector<FinishRequest> requests;
    for (const LateFinish& finish : batch) requests.push_back(finish.request());
    std::vector<FinishReply> replies(batch.size());
    try {
        batch.front().guard->finish(requests, replies);
    } catch (...) {
        for (auto& reply : replies) reply.trouble = caught_trouble();
    }
    return replies;
}

/// Keeps the leases of what was not taken, so that nobody runs it again meanwhile.
inline void LateFinishes::renew(List& kept, LocalInstant now) {
    std::vector<RenewRequest> requests;
    for (LateFinish& finish : kept) {
        if (now < finish.next_renew || finish.kind == FinishKind::release) continue;
        requests.push_back({finish.view(), finish.owner, finish.fence, finish.lease, {}, {}});
        finish.next_renew = now + finish.lease / 3;
    }
    if (requests.empty()) return;
    std::vector<RenewReply> replies(requests.size());
    try {
        kept.front().guard->renew(requests, replies);
    } catch (...) {  // the next finish will tell
    }
}

/// Where the whole store is silent, one batch tells; the guard's others do not wait it out.
inline void LateFinishes::put_back(List& kept, bool silent) noexcept {
    if (kept.empty()) return;
    const auto now = LocalClock::now();
    for (LateFinish& finish : kept) finish.postpone(now);
    std::scoped_lock const lock(mutex_);
    for (LateFinish& other : waiting_) {
        if (silent && other.guard == kept.front().guard)
            other.next_try = std::max(other.next_try, kept.front().next_try);
    }
    for (const LateFinish& finish : kept) bytes_ += finish.result.size();
    waiting_.splice(waiting_.end(), kept);
}

inline LocalInstant LateFinishes::work(LocalInstant now, WaitHub& hub) {
    List batch = take(now);
    bool silent = true;
    try {
        const auto replies = batch.empty() ? std::vector<FinishReply>() : send(batch);
        auto at = batch.begin();
        for (const FinishReply& reply : replies) {
            const auto here = at++;
            silent = silent && reply.trouble.kind == Trouble::Kind::unavailable;
            if (!here->settle(reply, now)) continue;
            hub.notify(wait_hash(here->view()));
            here->guard->traffic().unrecorded.fetch_sub(1);
            batch.erase(here);
        }
        renew(batch, now);
    } catch (...) {  // no memory; later
    }
    put_back(batch, silent);
    return next_try();
}

}  // namespace idem::inline v0_1::detail

#endif
