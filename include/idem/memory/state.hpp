#ifndef IDEM_MEMORY_STATE_HPP
#define IDEM_MEMORY_STATE_HPP

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>

#include <idem/apply.hpp>
#include <idem/detail/fork.hpp>
#include <idem/detail/hash.hpp>
#include <idem/memory/options.hpp>
#include <idem/memory/shard.hpp>

namespace idem::inline v0_1::memory {

/// What all handles of one store share.
class State {
public:
    static constexpr std::size_t shard_count = 64;
    static constexpr std::size_t looks_per_call = 4;

    explicit State(MemoryOptions options)
        : clock_(std::move(options.clock)),
          limits_{Budget(options.records_max), Budget(options.bytes_max),
                  clock_ ? clock_() : idem::detail::boot_clock_now()} {
        if (options.reserve == 0) return;
        // Some shards get more keys than others; a few per cent of room saves them from growing.
        const std::uint64_t each = options.reserve / shard_count * 21 / 20 + 32;
        for (auto& shard : shards_) {
            if (!shard.table.reserve(each)) throw std::bad_alloc{};
            shard.reserved = each;
        }
    }
    /// A child of fork frees what it can: a locked shard was being changed by a thread that does
    /// not exist here.
    ~State() {
        if (!forked()) return;
        for (auto& shard : shards_) {
            if (shard.mutex.locked()) shard.table.abandon();
        }
    }
    State(const State&) = delete;
    State& operator=(const State&) = delete;

    [[nodiscard]] bool forked() const noexcept {
        return idem::detail::process_generation() != made_in_;
    }

    /// Where a key lives: the upper bits choose the shard, the lower ones its place there.
    [[nodiscard]] std::uint64_t hash(const KeyView& key) const noexcept {
        return hash_.of_key(key);
    }
    /// The hash, with the slot on its way into the cache: a large table's slot is not there, and
    /// waiting for it is a third of an operation.
    [[nodiscard]] std::uint64_t approach(const KeyView& key) const noexcept {
        const std::uint64_t at = hash(key);
        shards_[at >> 58U].table.prefetch(static_cast<std::uint32_t>(at));
        return at;
    }
    [[nodiscard]] Shard& shard_of(std::uint64_t hash) noexcept { return shards_[hash >> 58U]; }
    [[nodiscard]] std::array<Shard, shard_count>& shards() noexcept { return shards_; }
    [[nodiscard]] Limits& limits() noexcept { return limits_; }

    /// The boot clock is read once for a call; one of the user's is read under the lock, by `now`.
    [[nodiscard]] Instant called() const noexcept {
        return clock_ ? Instant{} : idem::detail::boot_clock_now();
    }
    /// Time never runs backwards in a shard, though its lock may be got in another order than the
    /// clock was read. A clock of the user's is taken as it is.
    [[nodiscard]] Instant now(Shard& shard, Instant called) const {
        if (clock_) return clock_();
        shard.seen = std::max(shard.seen, called);
        return shard.seen;
    }

    /// Why nothing can be asked here at all.
    [[nodiscard]] Trouble refusal() const {
        if (!forked()) return {};
        return Trouble::usage("MemoryStore was made before fork; make a new store in the child");
    }
    /// Why nothing can be asked about this key.
    [[nodiscard]] Trouble refusal(const KeyView& key) const {
        return forked() || key.valid() ? refusal() : KeyView::refusal();
    }

    /// Removes everything past its retention: the store is full, and may not be.
    void reclaim(Instant called) {
        for (auto& shard : shards_) {
            const std::lock_guard lock(shard.mutex);
            shard.reclaim(limits_, now(shard, called));
        }
    }

    /// As `store::purge`: one round through each shard, starting with another one each time.
    [[nodiscard]] PurgeReply purge(std::size_t limit) {
        PurgeReply reply;
        const Instant begin = called();
        const std::size_t first = purge_next_.fetch_add(1, std::memory_order_relaxed);
        for (std::size_t i = 0; i < shard_count; ++i) {
            Shard& shard = shards_[(first + i) % shard_count];
            bool done = false;
            for (std::uint64_t rounds = 0, looked = 0; !done; ++looked) {
                const std::lock_guard lock(shard.mutex);
                const Instant time = now(shard, begin);
                if (looked == 0) rounds = shard.rounds() + 2;
                done = shard.rounds() >= rounds || !shard.due(limits_, time);
                if (done) break;
                if (reply.removed == limit) {
                    reply.more = true;
                    return reply;
                }
                reply.removed += shard.sweep(limits_, time, looks_per_lock, limit - reply.removed);
            }
        }
        return reply;
    }

private:
    static constexpr std::size_t looks_per_lock = 512;


    std::uint32_t made_in_ = idem::detail::process_generation();
    StoreClock clock_;
    idem::detail::SeededHash hash_{};
    Limits limits_;
    std::atomic<std::size_t> purge_next_{0};
    std::array<Shard, shard_count> shards_{};
};

/// One key while its shard is locked: what the protocol is asked about, and where its answer goes.
class Place {
public:
    Place(State& state, Shard& shard, const KeyView& key, std::uint64_t hash, Instant now,
          bool last) noexcept
        : limits_(state.limits()),
          shard_(shard),
          key_(key),
          hash_(static_cast<std::uint32_t>(hash)),
          now_(now),
          last_(last),
          slot_(shard.table.find(hash_, key)),
          header_(slot_ != nullptr ? slot_->block->header() : RecordHeader{}) {}

    [[nodiscard]] const RecordHeader* found() const noexcept {
        return slot_ == nullptr ? nullptr : &header_;
    }
    [[nodiscard]] Instant now() const noexcept { return now_; }
    /// The opaque bytes as they stand; null and empty where there is nothing.
    [[nodiscard]] Parts parts() const noexcept {
        return slot_ == nullptr ? Parts{} : slot_->block->parts();
    }

    /// Writes what an answer says. @param must as in `Effort`.
    [[nodiscard]] Put put(const RecordHeader& record, const protocol::Change& change,
                          const Parts& brought, bool must) noexcept {
        if (!change.write) return Put::done;
        const Effort effort{must, last_};
        if (slot_ == nullptr) return shard_.create(limits_, key_, hash_, record, effort);
        return shard_.update(limits_, *slot_, record, changed(change, brought), effort);
    }

private:
    [[nodiscard]] Parts changed(const protocol::Change& change,
                                const Parts& brought) const noexcept {
        const auto pick = [](protocol::Part how, std::string_view old, std::string_view taken) {
            if (how == protocol::Part::keep) return old;
            return how == protocol::Part::take ? taken : std::string_view();
        };
        const Parts old = parts();
        return {pick(change.result, old.result, brought.result),
                pick(change.failure, old.failure_code,
                     brought.failure_code.substr(0, Failure::code_bytes_max)),
                pick(change.failure, old.failure_message,
                     brought.failure_message.substr(0, Failure::message_bytes_max)),
                pick(change.checkpoint, old.checkpoint, brought.checkpoint),
                pick(change.resource, old.resource, brought.resource)};
    }

    Limits& limits_;
    Shard& shard_;
    const KeyView& key_;
    std::uint32_t hash_;
    Instant now_;
    bool last_;
    Slot* slot_;
    RecordHeader header_;
};

}  // namespace idem::inline v0_1::memory

#endif
