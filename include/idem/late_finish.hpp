#ifndef IDEM_LATE_FINISH_HPP
#define IDEM_LATE_FINISH_HPP

#include <memory>
#include <string>

#include <idem/clock.hpp>
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

}  // namespace idem::inline v0_1::detail

#endif
