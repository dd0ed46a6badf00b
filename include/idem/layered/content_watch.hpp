#ifndef IDEM_LAYERED_CONTENT_WATCH_HPP
#define IDEM_LAYERED_CONTENT_WATCH_HPP

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <idem/detail/bytes.hpp>
#include <idem/detail/sha256.hpp>
#include <idem/events.hpp>
#include <idem/options.hpp>
#include <idem/store.hpp>

namespace idem::inline v0_1 {

struct ContentOptions {
    /// How long a key's content is remembered, so that another key with the same is noticed.
    Duration remembered = std::chrono::hours{24};
    /// Gets an event `duplicate_content` with the key that came later.
    Observer events{};
    /// Ids may be personal data; they stay out of events unless this is set.
    bool event_raw_ids = false;
};

/// What a `ContentWatch` has seen so far.
struct ContentUsage {
    std::uint64_t watched = 0;     ///< Acquired claims whose content was looked up.
    std::uint64_t duplicates = 0;  ///< Of those: another key of the same scope and tenant had it.
    std::uint64_t unknown = 0;     ///< Of those: the store did not answer.
};

/// Notices equal content under different keys: a client that makes a new key for every retry runs
/// everything again, and nobody sees it. What has the same fingerprint in the same scope and tenant
/// counts as equal. It changes no answer: two keys are two operations (`run_coalesced` makes one of
/// them). Each acquired claim with a fingerprint costs one more request, and a record of the
/// component `content`. A handle; any thread may call any member at any time. After a crash the
/// marks are in the store below, the counts are not.
template <class Store>
class ContentWatch {
public:
    static_assert(store<Store>, "ContentWatch<Store>: Store is no idem::store");

    /// @throws UsageError for a duration that cannot be right.
    explicit ContentWatch(Store inner, ContentOptions options = {})
        : inner_(std::move(inner)),
          state_(std::make_shared<State>(
              (detail::check_duration(options.remembered, "ContentOptions::remembered"),
               std::move(options)))) {}

    void claim(std::span<const ClaimRequest> requests, std::span<ClaimReply> replies) {
        inner_.claim(requests, replies);
        watch_content(requests, replies);
    }
    void finish(std::span<const FinishRequest> requests, std::span<FinishReply> replies) {
        inner_.finish(requests, replies);
    }
    void renew(std::span<const RenewRequest> requests, std::span<RenewReply> replies) {
        inner_.renew(requests, replies);
    }
    void issue(std::span<const IssueRequest> requests, std::span<IssueReply> replies) {
        inner_.issue(requests, replies);
    }
    void resolve(std::span<const ResolveRequest> requests, std::span<ResolveReply> replies) {
        inner_.resolve(requests, replies);
    }
    void reap(std::span<const ReapRequest> requests, std::span<ReapReply> replies) {
        inner_.reap(requests, replies);
    }
    void find(std::span<const KeyView> keys, std::span<FindReply> replies) {
        inner_.find(keys, replies);
    }
    void forget(std::span<const ForgetRequest> requests, std::span<ForgetReply> replies) {
        inner_.forget(requests, replies);
    }
    /// The marks are shown only to who asks for them, by their component.
    [[nodiscard]] ListPage list(const ListQuery& query) {
        ListPage page = inner_.list(query);
        if (!query.component)
            std::erase_if(page.records, [](const RecordView& record) {
                return record.component == Component::content;
            });
        return page;
    }
    [[nodiscard]] PurgeReply purge(std::size_t limit) { return inner_.purge(limit); }

    /// A claim may take two requests. Zero where the store below does not say.
    [[nodiscard]] Duration time_allowed() const { return 2 * time_allowed_by(inner_); }
    [[nodiscard]] std::shared_ptr<void> watch(const KeyView& key, std::function<void()> notice) {
        return watch_with(inner_, key, std::move(notice));
    }

    [[nodiscard]] ContentUsage usage() const noexcept {
        return {state_->watched.load(), state_->duplicates.load(), state_->unknown.load()};
    }

private:
    struct State {
        explicit State(ContentOptions o) : options(std::move(o)) {}
        ContentOptions options;
        std::atomic<std::uint64_t> watched{0};
        std::atomic<std::uint64_t> duplicates{0};
        std::atomic<std::uint64_t> unknown{0};
    };

    /// A mark is issued by the key that comes with the content: the same key again finds its own.
    void watch_content(std::span<const ClaimRequest> requests,
                       std::span<const ClaimReply> replies) {
        std::vector<std::size_t> which;
        std::vector<std::string> ids;
        for (std::size_t i = 0; i < requests.size(); ++i) {
            if (replies[i].trouble || replies[i].kind != ClaimKind::acquired ||
                !requests[i].fingerprint.present())
                continue;
            auto print = detail::hex(requests[i].fingerprint.stored());
            if (requests[i].key.id == "content:" + print) continue;  // of `run_coalesced`
            which.push_back(i);
            ids.push_back(static_cast<char>(requests[i].key.component) + std::move(print));
        }
        if (which.empty()) return;
        std::vector<IssueRequest> marks(which.size());
        for (std::size_t k = 0; k < which.size(); ++k) {
            const KeyView& key = requests[which[k]].key;
            marks[k].key = {Component::content, key.scope, ids[k], key.tenant};
            const auto digest = detail::sha256(encode_key(key));
            detail::as_text(digest).copy(marks[k].owner.bytes.data(), marks[k].owner.bytes.size());
            marks[k].validity = state_->options.remembered;
            marks[k].retention = Duration{1};
        }
        std::vector<IssueReply> answers(marks.size());
        inner_.issue(marks, answers);
        state_->watched += marks.size();
        for (std::size_t k = 0; k < which.size(); ++k) {
            if (answers[k].trouble) {
                ++state_->unknown;
            } else if (!answers[k].issued) {
                ++state_->duplicates;
                tell(requests[which[k]].key, replies[which[k]]);
            }
        }
    }
    void tell(const KeyView& key, const ClaimReply& reply) noexcept {
        const ContentOptions& options = state_->options;
        if (!options.events) return;
        try {
            const std::string hash = key_hash(key);
            Event event;
            event.kind = EventKind::duplicate_content;
            event.component = key.component;
            event.scope = key.scope;
            event.tenant = key.tenant;
            event.key_hash = hash;
            if (options.event_raw_ids) event.raw_id = key.id;
            event.fence = reply.fence;
            event.attempt = reply.attempt;
            event.detail = "another key has come with the same content";
            options.events(event);
        } catch (...) {  // seeing must not change what happens
        }
    }

    Store inner_;
    std::shared_ptr<State> state_;
};

}  // namespace idem::inline v0_1

#endif
