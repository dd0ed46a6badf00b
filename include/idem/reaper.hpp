#ifndef IDEM_REAPER_HPP
#define IDEM_REAPER_HPP

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <idem/clock.hpp>
#include <idem/error.hpp>
#include <idem/key.hpp>
#include <idem/operation.hpp>
#include <idem/options.hpp>
#include <idem/record.hpp>
#include <idem/store.hpp>

namespace idem::inline v0_1 {

/// Settings that hold for the life of a `Reaper`. Durations are positive and at most ten years.
struct ReaperOptions {
    Component component = Component::call;
    std::optional<std::string> tenant{};  ///< Nothing: of all tenants.
    /// What has lapsed is settled only this many times the P99 of finished work after its start...
    std::uint32_t patience = 3;
    /// ...and not before this long after it, while too little has finished to know.
    Duration patience_min = std::chrono::minutes{1};
    Duration retention = std::chrono::hours{24};            ///< Of what may run again.
    Duration held_retention = std::chrono::hours{24 * 30};  ///< Of what is held, or given up.
};

/// What a pass has done.
struct ReaperReport {
    std::size_t released = 0;    ///< May run again (a token: be redeemed again).
    std::size_t held = 0;        ///< Wait for a person, by their policy.
    std::size_t given_up = 0;    ///< Too many holders have vanished over them.
    std::size_t waiting = 0;     ///< Lapsed, and their time is not over yet.
    std::size_t left = 0;        ///< Renewed meanwhile, settled by another, or left to be verified.
    std::size_t unreadable = 0;  ///< Pages with a record that could not be read.
};

/// Settles what its holders have left behind, without waiting for the next call of each key: by
/// the policy on record, in one scope. Never what is renewed: the store looks at fence and lease
/// again in the step itself, so several reapers at once, in any processes, are safe. How long work
/// takes is measured from what has finished there. Passes of one reaper exclude each other; any
/// thread may call. It remembers in this process since when it has seen what waits: a new one waits
/// anew, never too short.
template <store Store>
class Reaper {
public:
    /// Keeps a handle of the store. @throws UsageError for options that cannot be right.
    explicit Reaper(const Store& store, std::string scope, ReaperOptions options = {})
        : store_(store), scope_(std::move(scope)), options_(std::move(options)) {
        detail::check_duration(options_.patience_min, "ReaperOptions::patience_min");
        detail::check_duration(options_.retention, "ReaperOptions::retention");
        detail::check_duration(options_.held_retention, "ReaperOptions::held_retention");
        validate(KeyView(options_.component, scope_, "id", {}));
    }

    /// The time within which 99 of 100 that have finished were done, of at most a thousand of them;
    /// nothing where fewer than twenty are known. @throws UnavailableError.
    [[nodiscard]] std::optional<Duration> p99() {
        std::vector<Duration> took;
        each_page(State::succeeded, {}, [&](const ListPage& page) {
            for (const RecordView& record : page.records)
                took.push_back(std::chrono::duration_cast<Duration>(record.header.completed -
                                                                    record.header.started));
            return took.size() < 1000;
        });
        if (took.size() < 20) return std::nullopt;
        std::sort(took.begin(), took.end());
        return took[(took.size() * 99 + 99) / 100 - 1];
    }

    /// Looks at everything in the scope that has lapsed and settles at most `limit` of it. What
    /// must wait, or cannot be settled, is passed over and holds up nothing. Call it every few
    /// seconds. @throws UnavailableError: what was settled before stays so.
    ReaperReport pass(std::size_t limit = 1000, LocalInstant now = LocalClock::now()) {
        const std::lock_guard lock(mutex_);
        const Duration usual = p99().value_or(Duration::zero());
        const Duration patience =
            std::max(options_.patience_min, usual > duration_max / std::max(options_.patience, 1U)
                                                ? duration_max
                                                : usual * options_.patience);
        ReaperReport report;
        std::size_t settled = 0;
        ++pass_;
        each_page(State::running, true, [&](const ListPage& page) {
            if (page.trouble) ++report.unreadable;
            std::vector<const RecordView*> due;
            for (const RecordView& record : page.records) {
                if (is_due(record, patience, now)) {
                    due.push_back(&record);
                } else {
                    ++report.waiting;
                }
            }
            // What cannot be settled counts for nothing: it must not use up the limit.
            for (std::size_t at = 0; at < due.size() && settled < limit;) {
                const std::size_t count = std::min(due.size() - at, limit - settled);
                settled += settle(std::span(due).subspan(at, count), report);
                at += count;
            }
            return settled < limit;
        });
        // What was not looked at for the limit's sake goes on waiting from when it was seen first.
        if (settled < limit)
            std::erase_if(waiting_, [this](const auto& one) { return one.second.pass != pass_; });
        return report;
    }

private:
    /// One lapse of one holder: who renews after it has not lapsed so long.
    struct Since {
        Fence fence = 0;
        Instant lease_end{};
        LocalInstant seen{};
        std::uint64_t pass = 0;  ///< The last one that looked at it.
    };

    template <class Use>
    void each_page(State state, std::optional<bool> lapsed, Use&& use) {
        ListQuery query{.component = options_.component,
                        .scope = scope_,
                        .tenant = options_.tenant,
                        .state = state,
                        .lapsed = lapsed,
                        .limit = 100};
        for (;;) {
            const ListPage page = store_.list(query);
            if (page.trouble.kind != Trouble::Kind::schema) page.trouble.raise();
            if (!use(page) || page.next.empty()) return;
            query.cursor = page.next;
        }
    }

    /// When it was seen lapsed first, its lease had ended: so long after its start, at the least.
    /// The store's clock is never asked for, and never compared with this machine's.
    [[nodiscard]] bool is_due(const RecordView& record, Duration patience, LocalInstant now) {
        const RecordHeader& header = record.header;
        Since& since = waiting_[{record.key.tenant, record.key.id}];
        if (since.pass == 0 || since.fence != header.fence || since.lease_end != header.lease_end)
            since = {header.fence, header.lease_end, now};
        since.pass = pass_;
        return (header.lease_end - header.started) + (now - since.seen) >= patience;
    }

    /// How many have been settled.
    std::size_t settle(std::span<const RecordView* const> due, ReaperReport& report) {
        std::vector<ReapRequest> requests;
        for (const RecordView* record : due)
            requests.push_back({.key = KeyView(record->component, record->key),
                                .seen_fence = record->header.fence,
                                .retention = options_.retention,
                                .held_retention = options_.held_retention});
        std::vector<ReapReply> replies(due.size());
        store_.reap(requests, replies);
        std::size_t settled = 0;
        for (const ReapReply& reply : replies) {
            if (reply.trouble.kind != Trouble::Kind::schema) reply.trouble.raise();
            if (reply.trouble || !reply.reaped) {
                ++report.left;
                continue;
            }
            ++settled;
            switch (reply.state) {
                case State::unknown: ++report.held; break;
                case State::failed: ++report.given_up; break;
                default: ++report.released;
            }
        }
        return settled;
    }

    Store store_;
    std::string scope_;
    ReaperOptions options_;
    std::mutex mutex_{};
    std::map<std::pair<std::string, std::string>, Since> waiting_{};  ///< By tenant and id.
    std::uint64_t pass_ = 0;
};

}  // namespace idem::inline v0_1

#endif
