#ifndef IDEM_DETAIL_LOOK_HPP
#define IDEM_DETAIL_LOOK_HPP

#include <algorithm>
#include <atomic>
#include <optional>
#include <span>
#include <utility>

#include <idem/apply.hpp>

namespace idem::inline v0_1::detail {

/// Whether a store that talks to a server should look before it claims. A claim that changes
/// nothing, as every repeat of finished work is, can be answered from a plain read, which costs the
/// server a fraction of the step that may write. Where most claims acquire, that read would only be
/// a round trip more: hence it is tried while most of the latest claims were repeats. For any
/// thread.
class LookFirst {
public:
    explicit LookFirst(std::optional<bool> always) noexcept : always_(always) {}

    [[nodiscard]] bool pays() const noexcept {
        return always_.value_or(score_.load(std::memory_order_relaxed) >= enough);
    }
    void learn(std::span<const ClaimReply> replies) noexcept {
        int score = score_.load(std::memory_order_relaxed);
        const int before = score;
        for (const ClaimReply& reply : replies) {
            if (reply.trouble) continue;
            score += reply.kind == ClaimKind::acquired ? -4 : 1;
            score = std::clamp(score, 0, 2 * enough);
        }
        if (score != before) score_.store(score, std::memory_order_relaxed);
    }

private:
    static constexpr int enough = 32;
    std::optional<bool> always_;
    std::atomic<int> score_{0};
};

/// Answers a claim from what a plain read has found, if the claim would change nothing. That is as
/// good as the step itself: it is what the step would have answered at the moment of the read.
[[nodiscard]] inline bool answer_by_look(const RecordHeader* found, Payload payload, Instant now,
                                         const ClaimRequest& request, ClaimReply& reply) {
    const auto answer = protocol::claim(found, request, now);
    if (answer.change.write) return false;
    protocol::fill_reply(reply, answer, std::move(payload));
    return true;
}

}  // namespace idem::inline v0_1::detail

#endif
