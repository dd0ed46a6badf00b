#ifndef IDEM_TESTING_MODEL_STORE_HPP
#define IDEM_TESTING_MODEL_STORE_HPP

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <idem/apply.hpp>
#include <idem/record_codec.hpp>
#include <idem/store.hpp>

namespace idem::inline v0_1::testing {

/// The reference model of a store: a map of encoded keys to encoded records, one mutex, and
/// `protocol.hpp`. Slow and plain on purpose; other stores are compared with it.
/// A handle, safe for use from any thread; nothing survives the last copy.
class ModelStore {
public:
    explicit ModelStore(StoreClock clock) : shared_(std::make_shared<Shared>()) {
        shared_->clock = clock ? std::move(clock) : StoreClock(idem::detail::boot_clock_now);
    }

    void claim(std::span<const ClaimRequest> requests, std::span<ClaimReply> replies) {
        each(requests, replies);
    }
    void finish(std::span<const FinishRequest> requests, std::span<FinishReply> replies) {
        each(requests, replies);
    }
    void renew(std::span<const RenewRequest> requests, std::span<RenewReply> replies) {
        each(requests, replies);
    }
    void issue(std::span<const IssueRequest> requests, std::span<IssueReply> replies) {
        each(requests, replies);
    }
    void resolve(std::span<const ResolveRequest> requests, std::span<ResolveReply> replies) {
        each(requests, replies);
    }
    void reap(std::span<const ReapRequest> requests, std::span<ReapReply> replies) {
        each(requests, replies);
    }
    void forget(std::span<const ForgetRequest> requests, std::span<ForgetReply> replies) {
        each(requests, replies);
    }

    void find(std::span<const KeyView> keys, std::span<FindReply> replies) {
        const std::lock_guard lock(shared_->mutex);
        for (std::size_t i = 0; i < keys.size(); ++i) {
            replies[i] = {};
            const auto at = shared_->records.find(encode_key(keys[i]));
            if (at == shared_->records.end()) continue;
            auto read = decode_record(at->second);
            const Instant now = shared_->clock();
            if (!read) {
                replies[i].trouble = Trouble::schema(read.trouble());
            } else if (protocol::visible(&read.header, now)) {
                replies[i].record =
                    protocol::view_of(keys[i], {read.header, std::move(read.payload)}, now);
            }
        }
    }

    /// By ascending encoded key. A record that cannot be read is left out and is `trouble` of its
    /// page; the pages go on behind it.
    [[nodiscard]] ListPage list(const ListQuery& query) {
        const std::lock_guard lock(shared_->mutex);
        const Instant now = shared_->clock();
        ListPage page;
        auto at = shared_->records.upper_bound(query.cursor);
        for (; at != shared_->records.end(); ++at) {
            const auto key = decode_key(at->first);
            auto read = decode_record(at->second);
            if (!key || !read) {
                page.trouble = Trouble::schema(read.trouble());
                continue;
            }
            if (!protocol::visible(&read.header, now)) continue;
            if (!protocol::matches(query, *key, read.header, now)) continue;
            if (page.records.size() >= std::max<std::size_t>(query.limit, 1)) {
                const RecordView& last = page.records.back();
                page.next = encode_key(KeyView(last.component, last.key));
                return page;
            }
            page.records.push_back(
                protocol::view_of(*key, {read.header, std::move(read.payload)}, now));
        }
        return page;
    }

    [[nodiscard]] PurgeReply purge(std::size_t limit) {
        const std::lock_guard lock(shared_->mutex);
        const Instant now = shared_->clock();
        PurgeReply reply;
        for (auto at = shared_->records.begin(); at != shared_->records.end();) {
            const auto read = decode_record(at->second);
            if (!read || protocol::stands(&read.header, now)) {
                ++at;
                continue;
            }
            if (reply.removed == limit) {
                reply.more = true;
                return reply;
            }
            at = shared_->records.erase(at);
            ++reply.removed;
        }
        return reply;
    }

    // --- for tests: the bytes themselves --------------------------------------------------------

    void put_raw(const KeyView& key, std::string_view bytes) {
        const std::lock_guard lock(shared_->mutex);
        shared_->records[encode_key(key)] = bytes;
    }
    [[nodiscard]] std::optional<std::string> get_raw(const KeyView& key) const {
        const std::lock_guard lock(shared_->mutex);
        const auto at = shared_->records.find(encode_key(key));
        if (at == shared_->records.end()) return std::nullopt;
        return at->second;
    }
    /// How many keys take up room, those past retention included.
    [[nodiscard]] std::size_t size() const {
        const std::lock_guard lock(shared_->mutex);
        return shared_->records.size();
    }

private:
    struct Shared {
        StoreClock clock{};
        std::mutex mutex{};
        std::map<std::string, std::string, std::less<>> records{};
    };

    template <class Request, class Reply>
    void each(std::span<const Request> requests, std::span<Reply> replies) {
        for (std::size_t i = 0; i < requests.size(); ++i) {
            const std::lock_guard lock(shared_->mutex);
            replies[i] = one(requests[i], Reply{});
        }
    }

    template <class Request, class Reply>
    [[nodiscard]] Reply one(const Request& request, Reply reply) {
        std::string key = encode_key(request.key);
        const auto at = shared_->records.find(key);
        protocol::Slot slot;
        if (at != shared_->records.end()) {
            auto read = decode_record(at->second);
            if (!read) {
                reply.trouble = Trouble::schema(read.trouble());
                return reply;
            }
            slot.emplace(protocol::Record{read.header, std::move(read.payload)});
        }
        auto step = protocol::apply(slot, request, shared_->clock());
        if (step.write)
            shared_->records.insert_or_assign(std::move(key),
                                              encode_record(slot->header, slot->payload));
        return std::move(step.reply);
    }

    std::shared_ptr<Shared> shared_;
};

}  // namespace idem::inline v0_1::testing

#endif
