#ifndef IDEM_LATE_FINISH_HPP
#define IDEM_LATE_FINISH_HPP

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
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
    std::string resource{};
    LocalInstant give_up{};
    LocalInstant next_try{};
    LocalInstant next_renew{};
    Duration pause{};

    /// Owns what the request refers to.
    [[nodiscard]] static LateFinish of(GuardState& guard, const FinishRequest& request);
    [[nodiscard]] FinishRequest request() const;
    /// The next rung of the ladder; false where there is none.
    [[nodiscard]] bool step_down();
    /// One try. Whether it is over: recorded, lost, or given up.
    [[nodiscard]] bool settle(LocalInstant now);

private:
    void renew(LocalInstant now);
};

/// The finishes that wait for their stores. Any thread adds; the heartbeat's works them off.
class LateFinishes {
public:
    /// False: too many are waiting already.
    [[nodiscard]] bool add(LateFinish finish);
    /// What is due; `next` moves up to the next try of what is not.
    [[nodiscard]] std::vector<LateFinish> take_due(LocalInstant now, LocalInstant& next);
    /// Tries each, and keeps what is not over for a later try.
    void work(std::vector<LateFinish> due, LocalInstant now, LocalInstant& next, WaitHub& hub);

private:
    static constexpr std::size_t count_max = 10'000;
    static constexpr std::size_t bytes_max = std::size_t{64} << 20U;

    void put_back(LateFinish finish, LocalInstant& next);

    std::mutex mutex_{};
    std::vector<LateFinish> waiting_{};
    std::size_t bytes_ = 0;  ///< Of what waits.
};

inline LateFinish LateFinish::of(GuardState& guard, const FinishRequest& request) {
    LateFinish out;
    out.guard = guard.shared_from_this();
    out.key = request.key.key();
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
    out.resource = request.resource.value_or("");
    out.give_up = LocalClock::now() + guard.options().record_retry;
    return out;
}

inline FinishRequest LateFinish::request() const {
    FinishRequest out;
    out.key = KeyView(guard->component(), key);
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
    if (!resource.empty()) out.resource = resource;
    return out;
}

inline bool LateFinish::step_down() {
    if (kind != FinishKind::complete) return false;
    if (result_kind == ResultKind::value) {
        result_kind = ResultKind::no_room;
        result.clear();
        return true;
    }
    kind = FinishKind::quarantine;
    failure = {FailureClass::unknown, "unrecorded", "the result could not be recorded"};
    return true;
}

inline void LateFinish::renew(LocalInstant now) {
    if (now < next_renew || kind == FinishKind::release) return;
    const RenewRequest request{
        KeyView(guard->component(), key), owner, fence, lease, std::nullopt, std::nullopt};
    RenewReply reply;
    try {
        guard->renew(std::span(&request, 1), std::span(&reply, 1));
    } catch (...) {  // the finish will tell
    }
    next_renew = now + lease / 3;
}

inline bool LateFinish::settle(LocalInstant now) {
    renew(now);
    const FinishRequest asked = request();
    FinishReply reply;
    try {
        guard->finish(std::span(&asked, 1), std::span(&reply, 1));
    } catch (const std::exception& e) {
        reply.trouble = Trouble::unavailable(e.what(), true);
    } catch (...) {
        reply.trouble = Trouble::unavailable("finish threw", true);
    }
    const Event about{.fence = fence, .lost = reply.reason, .detail = reply.trouble.message};
    if (!reply.trouble) {
        guard->tell(kind == FinishKind::release ? EventKind::released
                    : reply.lost                ? EventKind::record_abandoned
                                                : EventKind::recorded_late,
                    asked.key, about);
        return true;
    }
    if (reply.trouble.kind != Trouble::Kind::unavailable && step_down()) return false;
    if (now < give_up) return false;
    guard->tell(EventKind::record_abandoned, asked.key, about);
    return true;
}

inline bool LateFinishes::add(LateFinish finish) {
    const auto bytes = finish.result.size();
    std::scoped_lock const lock(mutex_);
    if (waiting_.size() >= count_max || bytes_ + bytes > bytes_max) return false;
    auto& traffic = finish.guard->traffic();
    waiting_.push_back(std::move(finish));
    bytes_ += bytes;
    traffic.unrecorded.fetch_add(1);
    return true;
}

inline std::vector<LateFinish> LateFinishes::take_due(LocalInstant now, LocalInstant& next) {
    std::vector<LateFinish> due;
    std::scoped_lock const lock(mutex_);
    const auto middle =
        std::stable_partition(waiting_.begin(), waiting_.end(),
                              [&](const LateFinish& finish) { return finish.next_try > now; });
    due.reserve(static_cast<std::size_t>(std::distance(middle, waiting_.end())));
    std::move(middle, waiting_.end(), std::back_inserter(due));
    waiting_.erase(middle, waiting_.end());
    for (const LateFinish& finish : due) bytes_ -= finish.result.size();
    for (const LateFinish& finish : waiting_) next = std::min(next, finish.next_try);
    return due;
}

inline void LateFinishes::put_back(LateFinish finish, LocalInstant& next) {
    constexpr Duration shortest = std::chrono::milliseconds{5};
    constexpr Duration longest = std::chrono::seconds{5};
    finish.pause = std::clamp<Duration>(finish.pause * 2, shortest, longest);
    finish.next_try = LocalClock::now() + std::min(finish.pause, finish.lease / 3);
    next = std::min(next, finish.next_try);
    std::scoped_lock const lock(mutex_);
    bytes_ += finish.result.size();
    waiting_.push_back(std::move(finish));
}

inline void LateFinishes::work(std::vector<LateFinish> due, LocalInstant now, LocalInstant& next,
                               WaitHub& hub) {
    std::vector<const GuardState*> silent;  // one attempt tells; the others must not wait it out
    for (LateFinish& finish : due) {
        const GuardState* guard = finish.guard.get();
        const bool skip = std::find(silent.begin(), silent.end(), guard) != silent.end();
        bool over = false;
        try {
            over = !skip && finish.settle(now);
        } catch (...) {  // no memory; later
        }
        if (over) {
            hub.notify(wait_hash(KeyView(guard->component(), finish.key)));
            finish.guard->traffic().unrecorded.fetch_sub(1);
            continue;
        }
        if (!skip) silent.push_back(guard);
        put_back(std::move(finish), next);
    }
}

}  // namespace idem::inline v0_1::detail

#endif
