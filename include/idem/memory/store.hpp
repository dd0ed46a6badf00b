#ifndef IDEM_MEMORY_STORE_HPP
#define IDEM_MEMORY_STORE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <idem/detail/bytes.hpp>
#include <idem/memory/state.hpp>
#include <idem/store.hpp>

namespace idem::inline v0_1 {

/// Remembers keys in this process's own memory: for one process, for tests, and where a restart
/// may run everything again. Models `idem::store`; its comment numbers the promises.
/// A handle: copies share the records, which go with the last copy. Any thread may call any
/// member at any time. Nothing survives a crash or the end of the process. After fork a child gets
/// `UsageError`: it must make a store of its own.
class MemoryStore {
public:
    /// @throws std::bad_alloc where there is no memory for `MemoryOptions::reserve`.
    explicit MemoryStore(MemoryOptions options = {})
        : state_(std::make_shared<memory::State>(std::move(options))) {}

    void claim(std::span<const ClaimRequest> requests, std::span<ClaimReply> replies) {
        each(requests, replies, [](Place& place, const ClaimRequest& request, ClaimReply& reply) {
            const auto answer = protocol::claim(place.found(), request, place.now());
            const Put put = place.put(answer.record, answer.change, {}, false);
            if (put == Put::done) protocol::fill_reply(reply, answer, place.parts());
            return put;
        });
    }

    void finish(std::span<const FinishRequest> requests, std::span<FinishReply> replies) {
        each(requests, replies, [](Place& place, const FinishRequest& request, FinishReply& reply) {
            const auto answer = protocol::finish(place.found(), request, place.now());
            reply = {answer.lost, answer.reason, after(answer), {}};
            return place.put(answer.record, answer.change,
                             {request.result, request.failure_code, request.failure_message,
                              request.checkpoint.value_or(""), request.resource.value_or("")},
                             true);
        });
    }

    void renew(std::span<const RenewRequest> requests, std::span<RenewReply> replies) {
        each(requests, replies, [](Place& place, const RenewRequest& request, RenewReply& reply) {
            const auto answer = protocol::renew(place.found(), request, place.now());
            reply = {answer.lost, answer.reason, answer.lease_left, {}};
            return place.put(
                answer.record, answer.change,
                {{}, {}, {}, request.checkpoint.value_or(""), request.resource.value_or("")}, true);
        });
    }

    void issue(std::span<const IssueRequest> requests, std::span<IssueReply> replies) {
        each(requests, replies, [](Place& place, const IssueRequest& request, IssueReply& reply) {
            const auto answer = protocol::issue(place.found(), request, place.now());
            const Put put = place.put(answer.record, answer.change, {}, false);
            reply = {answer.done && put == Put::done, {}};
            return put;
        });
    }

    void resolve(std::span<const ResolveRequest> requests, std::span<ResolveReply> replies) {
        each(requests, replies, [](Place& place, const ResolveRequest& request, ResolveReply& r) {
            const auto answer = protocol::resolve(place.found(), request, place.now());
            const Put put =
                place.put(answer.record, answer.change, {request.result, {}, {}, {}, {}}, false);
            r = {answer.done && put == Put::done, after(answer), {}};
            return put;
        });
    }

    void reap(std::span<const ReapRequest> requests, std::span<ReapReply> replies) {
        each(requests, replies, [](Place& place, const ReapRequest& request, ReapReply& reply) {
            const auto answer = protocol::reap(place.found(), request, place.now());
            const Put put = place.put(answer.record, answer.change, {}, false);
            reply = {answer.done && put == Put::done, after(answer), {}};
            return put;
        });
    }

    void forget(std::span<const ForgetRequest> requests, std::span<ForgetReply> replies) {
        each(requests, replies, [](Place& place, const ForgetRequest& request, ForgetReply& reply) {
            const auto answer = protocol::forget(place.found(), request, place.now());
            reply = {answer.done, answer.record.fence, {}};
            return place.put(answer.record, answer.change, {}, true);
        });
    }

    void find(std::span<const KeyView> keys, std::span<FindReply> replies) {
        const Instant called = state_->called();
        for (std::size_t i = 0; i < keys.size(); ++i) {
            const std::uint64_t hash = state_->approach(keys[i]);
            replies[i] = {{}, state_->refusal(keys[i])};
            if (replies[i].trouble) continue;
            memory::Shard& shard = state_->shard_of(hash);
            const std::lock_guard lock(shard.mutex);
            const Instant now = state_->now(shard, called);
            const Place place(*state_, shard, keys[i], hash, now, false);
            if (protocol::visible(place.found(), now))
                replies[i].record = shown(keys[i], *place.found(), place.parts(), now);
        }
    }

    /// In an order of its own. A page holds at most `limit` records, and ends where 10,000 have
    /// been looked at, so that a filter that fits nothing cannot hold the caller up.
    [[nodiscard]] ListPage list(const ListQuery& query);

    /// Where nobody calls it, what is past its retention goes a little with every other call.
    [[nodiscard]] PurgeReply purge(std::size_t limit) {
        PurgeReply reply;
        if ((reply.trouble = state_->refusal())) return reply;
        return state_->purge(limit);
    }

    /// What the store holds now. Of a store that was made before fork: nothing.
    [[nodiscard]] MemoryUsage usage() const {
        MemoryUsage out;
        if (state_->forked()) return out;
        for (auto& shard : state_->shards()) {
            const std::lock_guard lock(shard.mutex);
            out.records += shard.table.count();
            out.bytes += static_cast<std::uint64_t>(shard.bytes());
        }
        return out;
    }

private:
    using Place = memory::Place;
    using Put = memory::Put;

    template <class Answer>
    [[nodiscard]] static State after(const Answer& answer) noexcept {
        return answer.exists ? answer.record.state : State::forgotten;
    }

    /// Item by item: each under its shard's lock, and a second time where the store was full and
    /// what is past its retention had to go first.
    template <class Request, class Reply, class Decide>
    void each(std::span<const Request> requests, std::span<Reply> replies, Decide decide) {
        if (requests.empty()) return;
        memory::State& state = *state_;
        std::uint64_t next = state.approach(requests[0].key);
        const Instant called = state.called();
        for (std::size_t i = 0; i < requests.size(); ++i) {
            const KeyView& key = requests[i].key;
            const std::uint64_t hash = next;
            if (i + 1 < requests.size()) next = state.approach(requests[i + 1].key);
            if (state.forked() || !key.valid()) {
                replies[i].trouble = state.refusal(key);
                continue;
            }
            memory::Shard& shard = state.shard_of(hash);
            const auto attempt = [&](bool last) {
                const std::lock_guard lock(shard.mutex);
                const Instant now = state.now(shard, called);
                if (shard.due(state.limits(), now))
                    shard.sweep(state.limits(), now, memory::State::looks_per_call, 2);
                Place place(state, shard, key, hash, now, last);
                return decide(place, requests[i], replies[i]);
            };
            Put put = attempt(false);
            if (put == Put::full) {
                state.reclaim(called);
                put = attempt(true);
            }
            if (put == Put::done) continue;
            replies[i] = Reply{};
            replies[i].trouble = Trouble::no_room(put == Put::full
                                                      ? "the MemoryStore is full"
                                                      : "the MemoryStore got no memory");
        }
    }

    [[nodiscard]] static RecordView shown(const KeyView& key, const RecordHeader& header,
                                          const memory::Parts& parts, Instant now) {
        return protocol::view_of(key,
                                 {header,
                                  {std::string(parts.result), std::string(parts.failure_code),
                                   std::string(parts.failure_message),
                                   std::string(parts.checkpoint), std::string(parts.resource)}},
                                 now);
    }

    /// Where a listing goes on: behind (hash, key) in a shard, or with `hash` where `key` is empty.
    struct Cursor {
        std::size_t shard = 0;
        std::uint32_t hash = 0;
        std::string key{};

        [[nodiscard]] static std::optional<Cursor> read(std::string_view bytes) {
            if (bytes.empty()) return Cursor{};
            idem::detail::ByteReader in(bytes);
            const auto shard = in.fixed(1);
            const auto hash = in.fixed(4);
            if (!shard || !hash || *shard >= memory::State::shard_count) return std::nullopt;
            return Cursor{static_cast<std::size_t>(*shard), static_cast<std::uint32_t>(*hash),
                          std::string(in.rest())};
        }
        [[nodiscard]] std::string written() const {
            std::string out;
            idem::detail::put_fixed(out, shard, 1);
            idem::detail::put_fixed(out, hash, 4);
            return out + key;
        }
    };

    static constexpr std::size_t looks_per_lock = 512;
    static constexpr std::size_t looks_per_page = 10'000;

    /// Goes on in one shard, under its lock, for at most `looks` records. True at its end.
    [[nodiscard]] bool list_some(const ListQuery& query, Cursor& cursor, ListPage& page,
                                 std::size_t limit, std::size_t& looks) const {
        memory::Shard& shard = state_->shards()[cursor.shard];
        const Instant called = state_->called();
        const std::lock_guard lock(shard.mutex);
        if (shard.table.count() == 0) return true;
        const Instant now = state_->now(shard, called);
        std::size_t left = std::min(looks, looks_per_lock);
        const memory::Slot* at = shard.table.after(cursor.hash, cursor.key);
        for (; !shard.table.at_end(at); ++at) {
            if (at->block == nullptr) continue;
            if (left == 0 || page.records.size() == limit) return false;
            --left;
            --looks;
            const auto key = decode_key(at->block->key());
            const RecordHeader header = at->block->header();
            if (key && protocol::visible(&header, now) &&
                protocol::matches(query, *key, header, now))
                page.records.push_back(shown(*key, header, at->block->parts(), now));
            cursor.hash = at->hash;
            cursor.key = at->block->key();
        }
        return true;
    }

    std::shared_ptr<memory::State> state_;
};

inline ListPage MemoryStore::list(const ListQuery& query) {
    ListPage page;
    if ((page.trouble = state_->refusal())) return page;
    auto cursor = Cursor::read(query.cursor);
    if (!cursor) {
        page.trouble = {Trouble::Kind::usage, false, "ListQuery::cursor is not from this store"};
        return page;
    }
    const std::size_t limit = std::max<std::size_t>(query.limit, 1);
    std::size_t looks = looks_per_page;
    while (looks > 0 && page.records.size() < limit) {
        if (!list_some(query, *cursor, page, limit, looks)) continue;
        *cursor = {cursor->shard + 1, 0, {}};
        if (cursor->shard == memory::State::shard_count) return page;
    }
    page.next = cursor->written();
    return page;
}

}  // namespace idem::inline v0_1

#endif
