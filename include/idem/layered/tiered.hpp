#ifndef IDEM_LAYERED_TIERED_HPP
#define IDEM_LAYERED_TIERED_HPP

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <idem/detail/look.hpp>
#include <idem/layered/front.hpp>
#include <idem/layered/front_pause.hpp>
#include <idem/layered/nesting.hpp>
#include <idem/options.hpp>
#include <idem/record_codec.hpp>
#include <idem/store.hpp>

namespace idem::inline v0_1 {

struct TieredOptions {
    /// The front answers for a finished result no longer than this after the back has said it: so
    /// old an answer can be after a forget that the front was not told of. The same in every
    /// process: a tombstone lasts as long.
    Duration front_ttl = std::chrono::minutes{5};

    /// Larger results stay in the back alone.
    std::size_t front_bytes_max = std::size_t{64} << 10U;

    /// How long a front that failed is left alone: at first, and in the end.
    Duration pause_min = std::chrono::milliseconds{500};
    Duration pause_max = std::chrono::seconds{30};

    /// Told when the front is left alone, and why, and when it answers again. Called in the thread
    /// of the request that found it out; what it throws is swallowed.
    std::function<void(std::string_view)> notice{};
};

/// What a `TieredStore` has done so far.
struct TieredUsage {
    std::uint64_t front_answers = 0;   ///< Claims that the front has answered.
    std::uint64_t back_answers = 0;    ///< Claims that went to the back.
    std::uint64_t front_failures = 0;  ///< Calls of the front that came to nothing.
    bool front_paused = false;         ///< It is left alone now: the back carries on by itself.
};

/// Two layers: a fast front that answers repeats of finished work, and a back that alone decides.
/// The front may forget, never invent: it holds copies of what the back has said, each for a
/// bounded time, and acquires nothing. Wiped, evicting, down or set back to old data, it costs
/// speed and no second run. Whoever shares a front shares its back, or has a prefix of their own in
/// it: else one would answer for the other. It is filled by the first repeat, so that a first call
/// pays for one look at it. A handle; any thread may call any member at any time. What survives a
/// crash is what the back keeps.
template <class Front, class Back>
class TieredStore {
public:
    static_assert(front<Front>, "TieredStore<Front, Back>: Front is no idem::front");
    static_assert(store<Back>, "TieredStore<Front, Back>: Back is no idem::store");
    static_assert(!detail::has_layer<Back, CachedStore>,
                  "CachedStore goes over TieredStore: the back must be the truth");
    static_assert(!detail::has_layer<Back, EncryptedStore>,
                  "EncryptedStore goes over TieredStore: the front would hold plain text");
    static_assert(!detail::is_tiered<Back>, "TieredStore over TieredStore: one front is enough");

    /// @throws UsageError for durations that cannot be right.
    TieredStore(Front front, Back back, TieredOptions options = {})
        : front_(std::move(front)),
          back_(std::move(back)),
          state_(std::make_shared<Shared>(checked(std::move(options)))) {}

    void claim(std::span<const ClaimRequest> requests, std::span<ClaimReply> replies);

    void finish(std::span<const FinishRequest> requests, std::span<FinishReply> replies) {
        back_.finish(requests, replies);
    }
    void renew(std::span<const RenewRequest> requests, std::span<RenewReply> replies) {
        back_.renew(requests, replies);
    }
    void issue(std::span<const IssueRequest> requests, std::span<IssueReply> replies) {
        back_.issue(requests, replies);
    }
    void resolve(std::span<const ResolveRequest> requests, std::span<ResolveReply> replies) {
        back_.resolve(requests, replies);
    }
    void reap(std::span<const ReapRequest> requests, std::span<ReapReply> replies) {
        back_.reap(requests, replies);
    }
    void find(std::span<const KeyView> keys, std::span<FindReply> replies) {
        back_.find(keys, replies);
    }
    /// First the back, then the front. Where the front cannot be told it may go on answering for
    /// `front_ttl`: that is trouble, with `existed` as the back has said; the same again is safe.
    void forget(std::span<const ForgetRequest> requests, std::span<ForgetReply> replies);
    [[nodiscard]] ListPage list(const ListQuery& query) { return back_.list(query); }
    [[nodiscard]] PurgeReply purge(std::size_t limit) { return back_.purge(limit); }

    /// Zero where the back does not say.
    [[nodiscard]] Duration time_allowed() const {
        const Duration back = time_allowed_by(back_);
        return back == back.zero() ? back : back + 2 * front_.time_allowed();
    }
    [[nodiscard]] std::shared_ptr<void> watch(const KeyView& key, std::function<void()> notice) {
        return watch_with(back_, key, std::move(notice));
    }

    [[nodiscard]] TieredUsage usage() const noexcept {
        return {state_->front_answers.load(), state_->back_answers.load(),
                state_->front_failures.load(), state_->pause.paused()};
    }

private:
    struct Shared {
        explicit Shared(TieredOptions o)
            : options(std::move(o)), pause(options.pause_min, options.pause_max) {}

        TieredOptions options;
        std::atomic<std::uint64_t> front_answers{0};
        std::atomic<std::uint64_t> back_answers{0};
        std::atomic<std::uint64_t> front_failures{0};
        detail::FrontPause pause;
        std::atomic<std::int64_t> fill_after{0};  ///< No copies are put before.
    };
    /// A claim's way through the front.
    struct Asked {
        bool seen = false;  ///< The front looked: what it will be told can be dated.
        Instant looked{};   ///< By its clock.
    };

    [[nodiscard]] static TieredOptions checked(TieredOptions options) {
        detail::check_duration(options.front_ttl, "TieredOptions::front_ttl");
        detail::check_duration(options.pause_min, "TieredOptions::pause_min");
        detail::check_duration(options.pause_max, "TieredOptions::pause_max");
        return options;
    }
    [[nodiscard]] static std::int64_t local_now() noexcept {
        return LocalClock::now().time_since_epoch().count();
    }

    void tell(const std::string& what) noexcept {
        if (!state_->options.notice) return;
        try {
            state_->options.notice(what);
        } catch (...) {  // seeing must not change what happens
        }
    }
    /// @param began when the call did that failed.
    void front_failed(const Trouble& trouble, LocalInstant began) {
        ++state_->front_failures;
        if (state_->pause.failed(began)) tell("the front is left alone: " + trouble.message);
    }
    /// A front that is full, or slow to write, still answers; what it does not take it lacks.
    void front_takes_nothing(const Trouble& trouble) {
        ++state_->front_failures;
        const auto until =
            local_now() + std::chrono::nanoseconds(state_->options.pause_max).count();
        if (state_->fill_after.exchange(until) < local_now())
            tell("the front takes no copies for a while: " + trouble.message);
    }
    void front_answered() {
        if (state_->pause.answered()) tell("the front answers again");
    }

    /// Asks the front; what it cannot answer stays in `left`.
    void ask_front(std::span<const ClaimRequest> requests, std::span<ClaimReply> replies,
                   std::vector<std::size_t>& left, std::vector<Asked>& asked);
    [[nodiscard]] static bool answer(const FrontGot& got, const ClaimRequest& request,
                                     ClaimReply& reply);
    void ask_back(std::span<const ClaimRequest> requests, std::span<ClaimReply> replies,
                  std::span<const std::size_t> which);
    /// Puts copies of what the back has just said into the front.
    void fill_front(std::span<const ClaimRequest> requests, std::span<const ClaimReply> replies,
                    std::span<const std::size_t> which, std::span<const Asked> asked);
    [[nodiscard]] static std::string copy_of(const ClaimReply& reply, Instant looked);

    Front front_;
    Back back_;
    std::shared_ptr<Shared> state_;
};

template <class Front, class Back>
void TieredStore<Front, Back>::claim(std::span<const ClaimRequest> requests,
                                     std::span<ClaimReply> replies) {
    std::vector<std::size_t> left;
    std::vector<Asked> asked(requests.size());
    if (state_->pause.may_ask(2 * front_.time_allowed() + Duration{1})) {
        ask_front(requests, replies, left, asked);
    } else {
        for (std::size_t i = 0; i < requests.size(); ++i) left.push_back(i);
    }
    state_->front_answers.fetch_add(requests.size() - left.size(), std::memory_order_relaxed);
    if (left.empty()) return;
    state_->back_answers.fetch_add(left.size(), std::memory_order_relaxed);
    ask_back(requests, replies, left);
    fill_front(requests, replies, left, asked);
}

template <class Front, class Back>
void TieredStore<Front, Back>::ask_front(std::span<const ClaimRequest> requests,
                                         std::span<ClaimReply> replies,
                                         std::vector<std::size_t>& left,
                                         std::vector<Asked>& asked) {
    std::vector<KeyView> keys;
    std::vector<std::size_t> which;
    for (std::size_t i = 0; i < requests.size(); ++i) {
        if (!requests[i].key.valid()) {
            left.push_back(i);
            continue;
        }
        keys.push_back(requests[i].key);
        which.push_back(i);
    }
    std::vector<FrontGot> got(keys.size());
    const auto began = LocalClock::now();
    if (!keys.empty()) front_.get(keys, got);
    const Trouble* trouble = nullptr;
    for (std::size_t k = 0; k < which.size(); ++k) {
        const std::size_t i = which[k];
        asked[i] = {!got[k].trouble, got[k].now};
        if (got[k].trouble) trouble = &got[k].trouble;
        if (!got[k].bytes || !answer(got[k], requests[i], replies[i])) left.push_back(i);
    }
    std::sort(left.begin(), left.end());
    if (trouble != nullptr) {
        front_failed(*trouble, began);
    } else if (!keys.empty()) {
        front_answered();
    }
}

/// Of a finished record all that time could change is its end, and that is on the front's clock.
template <class Front, class Back>
bool TieredStore<Front, Back>::answer(const FrontGot& got, const ClaimRequest& request,
                                      ClaimReply& reply) {
    auto record = decode_record(*got.bytes);
    if (!record || record.header.state != State::succeeded) return false;
    return detail::answer_by_look(&record.header, std::move(record.payload), got.now, request,
                                  reply);
}

template <class Front, class Back>
void TieredStore<Front, Back>::ask_back(std::span<const ClaimRequest> requests,
                                        std::span<ClaimReply> replies,
                                        std::span<const std::size_t> which) {
    if (which.size() == requests.size()) return back_.claim(requests, replies);
    std::vector<ClaimRequest> some;
    for (const auto i : which) some.push_back(requests[i]);
    std::vector<ClaimReply> answers(some.size());
    back_.claim(some, answers);
    for (std::size_t k = 0; k < which.size(); ++k) replies[which[k]] = std::move(answers[k]);
}

template <class Front, class Back>
std::string TieredStore<Front, Back>::copy_of(const ClaimReply& reply, Instant looked) {
    RecordHeader header;
    header.state = State::succeeded;
    header.token = reply.token;
    header.result = reply.result_kind;
    header.codec = reply.codec;
    header.attempt = reply.attempt;
    header.crashes = reply.crashes;
    header.fence = reply.fence;
    header.owner = reply.owner;
    header.fingerprint = reply.fingerprint;
    header.created = reply.created;
    header.started = reply.started;
    header.completed = reply.completed;
    header.retention_end = looked + reply.retention_left;  // by the front's clock, and no later
    Payload payload;
    payload.result = reply.result;
    payload.resource = reply.resource;
    return encode_record(header, payload);
}

template <class Front, class Back>
void TieredStore<Front, Back>::fill_front(std::span<const ClaimRequest> requests,
                                          std::span<const ClaimReply> replies,
                                          std::span<const std::size_t> which,
                                          std::span<const Asked> asked) {
    if (local_now() < state_->fill_after.load()) return;
    std::vector<std::string> copies;
    std::vector<std::size_t> filled;
    for (const auto i : which) {
        const ClaimReply& reply = replies[i];
        if (reply.trouble || reply.kind != ClaimKind::completed || !asked[i].seen ||
            reply.result.size() > state_->options.front_bytes_max)
            continue;
        copies.push_back(copy_of(reply, asked[i].looked));
        filled.push_back(i);
    }
    if (filled.empty()) return;
    std::vector<FrontPut> puts;
    for (std::size_t k = 0; k < filled.size(); ++k) {
        const ClaimReply& reply = replies[filled[k]];
        // The front looked before the back said this. What is late beyond its end is dead, however
        // long it was on its way: so it cannot outlive a tombstone that lasts as long.
        const Duration lasts = std::min(reply.retention_left, state_->options.front_ttl);
        puts.push_back(
            {requests[filled[k]].key, reply.fence, asked[filled[k]].looked + lasts, copies[k]});
    }
    std::vector<Trouble> troubles(puts.size());
    front_.put(puts, troubles);
    for (const Trouble& trouble : troubles)
        if (trouble) return front_takes_nothing(trouble);
}

template <class Front, class Back>
void TieredStore<Front, Back>::forget(std::span<const ForgetRequest> requests,
                                      std::span<ForgetReply> replies) {
    back_.forget(requests, replies);
    std::vector<FrontBury> buries;
    std::vector<std::size_t> which;
    for (std::size_t i = 0; i < requests.size(); ++i) {
        if (replies[i].trouble) continue;
        buries.push_back({requests[i].key, replies[i].fence, state_->options.front_ttl});
        which.push_back(i);
    }
    if (buries.empty()) return;
    std::vector<Trouble> troubles(buries.size());
    const auto began = LocalClock::now();
    front_.bury(buries, troubles);
    const auto failed = std::find_if(troubles.begin(), troubles.end(),
                                     [](const Trouble& trouble) { return bool(trouble); });
    if (failed != troubles.end()) front_failed(*failed, began);
    for (std::size_t k = 0; k < which.size(); ++k) {
        if (!troubles[k]) continue;
        replies[which[k]].trouble = Trouble::unavailable(
            "forgotten, but the front could not be told and may answer for a while: " +
                troubles[k].message,
            true);
    }
}

}  // namespace idem::inline v0_1

#endif
