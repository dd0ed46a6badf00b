#ifndef IDEM_MEMORY_SHARD_HPP
#define IDEM_MEMORY_SHARD_HPP

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <idem/detail/spin_mutex.hpp>
#include <idem/memory/table.hpp>
#include <idem/rules.hpp>

namespace idem::inline v0_1::memory {

/// What is left of a bound that all shards share. A shard draws a little in advance, so that
/// threads do not meet here at every record; a small bound is drawn one by one, and kept exactly.
class Budget {
public:
    /// @param bound 0: none.
    explicit Budget(std::uint64_t bound) noexcept
        : left_(bound == 0 ? none
                           : static_cast<std::int64_t>(std::min<std::uint64_t>(bound, none))),
          ahead_(std::min<std::int64_t>(left_.load() / 8192, 1 << 20)) {}

    [[nodiscard]] bool take(std::int64_t& credit, std::int64_t amount) noexcept {
        if (credit < amount && !draw(credit, amount)) return false;
        credit -= amount;
        return true;
    }
    /// For what must not be refused: the bound may be passed.
    void force(std::int64_t& credit, std::int64_t amount) noexcept {
        if (take(credit, amount)) return;
        left_.fetch_sub(amount - credit, std::memory_order_relaxed);
        credit = 0;
    }
    void give(std::int64_t& credit, std::int64_t amount) noexcept {
        credit += amount;
        if (credit <= 2 * ahead_) return;
        left_.fetch_add(credit - ahead_, std::memory_order_relaxed);
        credit = ahead_;
    }

private:
    static constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max() / 2;

    [[nodiscard]] bool draw(std::int64_t& credit, std::int64_t amount) noexcept {
        std::int64_t left = left_.load(std::memory_order_relaxed);
        for (;;) {
            if (left < amount - credit) return false;
            const std::int64_t drawn = std::min(left, amount - credit + ahead_);
            if (left_.compare_exchange_weak(left, left - drawn, std::memory_order_relaxed)) {
                credit += drawn;
                return true;
            }
        }
    }

    alignas(128) std::atomic<std::int64_t> left_;
    std::int64_t ahead_;
};

/// The bounds of a store, and the moment its slots count seconds from.
struct Limits {
    Budget records;
    Budget bytes;
    Instant since;
};

enum class Put : std::uint8_t { done, full, no_memory };

/// How far a change goes to find room. What a holder says must not be lost for want of it.
struct Effort {
    bool must = false;  ///< Finish, renew, forget: do it with less rather than not at all.
    bool last = false;  ///< What has expired is removed already: there is no more room to be had.
};

/// One of the store's tables with its lock, its clock and its share of the bounds. All but `mutex`
/// is for the one who holds it.
class alignas(128) Shard {
public:
    idem::detail::SpinMutex mutex{};
    Instant seen{};  ///< The latest moment of any operation here, by the boot clock.
    Table table{};

    /// A place in the table costs 16 bytes, and a table is between 58 and 87 per cent full.
    static constexpr std::int64_t slot_cost = 24;
    /// Room that a claim leaves for its result: as much as the last ones took, up to this.
    static constexpr std::size_t guess_max = 512;
    /// What one record may add in failure, checkpoint and resource when the store is full: a
    /// failure of full length, or some 4 KiB of checkpoint.
    static constexpr std::size_t grace = 5120;

    Shard() = default;
    Shard(const Shard&) = delete;
    Shard& operator=(const Shard&) = delete;
    ~Shard() {
        if (table.count() == 0) return;
        for (Slot* at = table.first(0); !table.at_end(at); ++at) free_block(at->block);
    }

    [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }

    // --- writing --------------------------------------------------------------------------------

    /// A key that is not there. It has no opaque bytes yet.
    [[nodiscard]] Put create(Limits& limits, const KeyView& key, std::uint32_t hash,
                             const RecordHeader& record, Effort effort) noexcept;

    /// A record that is there: `parts` are its opaque bytes afterwards; those that stay lie in it.
    [[nodiscard]] Put update(Limits& limits, Slot& slot, RecordHeader record, Parts parts,
                             Effort effort) noexcept;

    // --- expiry ---------------------------------------------------------------------------------

    /// Whether anything here may be past its retention: a few compares, no memory touched.
    [[nodiscard]] bool due(const Limits& limits, Instant now) const noexcept {
        return table.count() != 0 && std::int64_t{earliest_} <= seconds(limits, now);
    }
    /// Looks at the next slots of a round through the table and removes what is past retention.
    /// A finished round knows when the next one can find something.
    std::size_t sweep(Limits& limits, Instant now, std::size_t looks,
                      std::size_t removals) noexcept;

    /// Removes all that is past its retention, because the store is full. Not again before ten
    /// times as long as it may have taken: new keys that are refused must not stop the others.
    void reclaim(Limits& limits, Instant now) noexcept {
        if (reclaimed_ <= now && now < reclaim_next_) return;
        reclaimed_ = now;
        reclaim_next_ = now + Duration(static_cast<std::int64_t>(table.count() / 32));
        // One round may have begun half-way, with an older idea of what comes next.
        for (int round = 0; round < 2 && due(limits, now); ++round) sweep(limits, now, all, all);
    }

    /// Rounds finished so far.
    [[nodiscard]] std::uint64_t rounds() const noexcept { return rounds_; }

    /// Slots that never give memory back below this many.
    std::size_t reserved = 0;

private:
    static constexpr std::size_t all = std::numeric_limits<std::size_t>::max();
    static constexpr std::uint32_t never = std::numeric_limits<std::uint32_t>::max();

    /// Rounded up for the clock as for an expiry: what has expired is never overlooked, and only
    /// in its last second a record itself has to be asked.
    [[nodiscard]] static std::int64_t seconds(const Limits& limits, Instant at) noexcept {
        return std::chrono::ceil<std::chrono::seconds>(at - limits.since).count();
    }
    [[nodiscard]] static std::uint32_t expiry_of(const Limits& limits, Instant end) noexcept {
        return static_cast<std::uint32_t>(std::clamp<std::int64_t>(seconds(limits, end), 0, never));
    }
    /// A fence that is ahead of the clock is kept until it is not: the next one has to be above it.
    [[nodiscard]] static bool removable(const Block& block, Instant now) noexcept {
        const std::int64_t clock = detail::micros(now);
        return clock > 0 && block.fence < static_cast<std::uint64_t>(clock);
    }
    [[nodiscard]] static std::int64_t cost_of(std::size_t size) noexcept {
        return static_cast<std::int64_t>(chunk_of(size)) + slot_cost;
    }
    [[nodiscard]] static std::int64_t cost_of(const Block& block) noexcept {
        return cost_of(block.capacity);
    }

    void expect(std::uint32_t expiry) noexcept {
        earliest_ = std::min(earliest_, expiry);
        earliest_next_ = std::min(earliest_next_, expiry);
    }
    void finish_round() noexcept {
        earliest_ = earliest_next_;
        earliest_next_ = never;
        sweep_from_ = 0;
        ++rounds_;
        table.shrink(reserved);
    }
    void remove(Limits& limits, Slot* slot) noexcept {
        charge_back(limits, cost_of(*slot->block));
        limits.records.give(record_credit_, 1);
        free_block(slot->block);
        table.erase(slot);
    }
    void charge_back(Limits& limits, std::int64_t amount) noexcept {
        bytes_ -= amount;
        limits.bytes.give(byte_credit_, amount);
    }
    [[nodiscard]] bool charge(Limits& limits, std::int64_t amount, bool force) noexcept {
        if (force) {
            limits.bytes.force(byte_credit_, amount);
        } else if (!limits.bytes.take(byte_credit_, amount)) {
            return false;
        }
        bytes_ += amount;
        return true;
    }

    void learn(std::size_t result_size) noexcept {
        const std::size_t size = result_size <= guess_max ? result_size : 0;
        guess_ = size >= guess_ ? size : guess_ - (guess_ - size + 7) / 8;
    }

    /// Whether the record can be written where it is. What stays must not have to move.
    [[nodiscard]] static bool fits(const Block& block, const RecordHeader& record,
                                   const Parts& parts) noexcept;
    void write(const Limits& limits, Slot& slot, const RecordHeader& record,
               const Parts& parts) noexcept {
        slot.block->write(record, parts);
        slot.expiry = expiry_of(limits, record.retention_end);
        expect(slot.expiry);
    }
    [[nodiscard]] Put move(Limits& limits, Slot& slot, const RecordHeader& record,
                           const Parts& parts, std::size_t size, bool force) noexcept;
    [[nodiscard]] Put make_do(Limits& limits, Slot& slot, RecordHeader& record,
                              Parts parts) noexcept;

    std::uint32_t earliest_ = never;       ///< Nothing expires before this second.
    std::uint32_t earliest_next_ = never;  ///< The same, of what this round has seen or come by.
    std::uint32_t sweep_from_ = 0;
    std::uint64_t rounds_ = 0;
    Instant reclaimed_{};
    Instant reclaim_next_{};
    std::size_t guess_ = 0;
    std::int64_t bytes_ = 0;
    std::int64_t record_credit_ = 0;
    std::int64_t byte_credit_ = 0;
};

inline Put Shard::create(Limits& limits, const KeyView& key, std::uint32_t hash,
                         const RecordHeader& record, Effort effort) noexcept {
    const bool force = effort.must && effort.last;
    const std::size_t key_size = encoded_size(key);
    const std::size_t room = record.state == State::running ? guess_ : 0;
    const std::size_t size = Block::size_of(key_size, record, {}) + room;
    if (force) {
        limits.records.force(record_credit_, 1);
    } else if (!limits.records.take(record_credit_, 1)) {
        return Put::full;
    }
    if (!charge(limits, cost_of(size), force)) {
        limits.records.give(record_credit_, 1);
        return Put::full;
    }
    Block* const block = make_block(size, key_size);
    if (block != nullptr) {
        write_key(key, block->bytes());
        block->write(record, {});
        const std::uint32_t expiry = expiry_of(limits, record.retention_end);
        if (table.insert({hash, expiry, block}) != nullptr) {
            expect(expiry);
            return Put::done;
        }
        free_block(block);
    }
    charge_back(limits, cost_of(size));
    limits.records.give(record_credit_, 1);
    return Put::no_memory;
}

inline bool Shard::fits(const Block& block, const RecordHeader& record,
                        const Parts& parts) noexcept {
    if (Block::size_of(block.key_size, record, parts) > block.capacity) return false;
    const Parts old = block.parts();
    const auto stays = [](std::string_view before, std::string_view after) {
        return !after.empty() && before.data() == after.data();
    };
    bool any_stays = stays(old.result, parts.result);
    bool all_extras_stay = true;
    const auto before = old.extras();
    const auto after = parts.extras();
    for (std::size_t i = 0; i < after.size(); ++i) {
        any_stays = any_stays || stays(before[i], after[i]);
        all_extras_stay = all_extras_stay && before[i].size() == after[i].size() &&
                          (after[i].empty() || stays(before[i], after[i]));
    }
    return !any_stays ||
           (all_extras_stay && block.extras_at() == block.key_size + Block::meta_size(record));
}

inline Put Shard::update(Limits& limits, Slot& slot, RecordHeader record, Parts parts,
                         Effort effort) noexcept {
    Block& block = *slot.block;
    const std::size_t size = Block::size_of(block.key_size, record, parts);
    const bool settled = record.state != State::running;
    if (record.state == State::succeeded && record.result == ResultKind::value)
        learn(parts.result.size());
    const bool wasteful = settled && block.capacity > size + std::max<std::size_t>(64, size / 4);
    if (!wasteful && fits(block, record, parts)) {
        write(limits, slot, record, parts);
        return Put::done;
    }
    const std::size_t room = settled || !parts.result.empty() || effort.last ? 0 : guess_;
    Put put = move(limits, slot, record, parts, size + room, false);
    if (put == Put::done || (put == Put::full && !effort.last)) return put;
    // Small things pass the bound rather than being lost; a new result and what is large do not.
    const char* const old_result = block.parts().result.data();
    const bool new_result = !parts.result.empty() && parts.result.data() != old_result;
    if (put == Put::full && !new_result && size <= block.capacity + grace)
        put = move(limits, slot, record, parts, size, true);
    if (put == Put::done) return put;
    if (wasteful && fits(block, record, parts)) {
        write(limits, slot, record, parts);
        return Put::done;
    }
    return effort.must ? make_do(limits, slot, record, parts) : put;
}

/// Into a block of its size, with the parts from wherever they are.
inline Put Shard::move(Limits& limits, Slot& slot, const RecordHeader& record, const Parts& parts,
                       std::size_t size, bool force) noexcept {
    if (size > block_size_max) return Put::no_memory;
    Block* const old = slot.block;
    const std::int64_t more = cost_of(size) - cost_of(*old);
    if (more > 0 && !charge(limits, more, force)) return Put::full;
    Block* const block = make_block(size, old->key_size);
    if (block == nullptr) {
        if (more > 0) charge_back(limits, more);
        return Put::no_memory;
    }
    if (more < 0) charge_back(limits, -more);
    std::memcpy(block->bytes(), old->bytes(), old->key_size);
    slot.block = block;
    write(limits, slot, record, parts);
    free_block(old);
    return Put::done;
}

/// No room, and yet it has to be said: without the result, then without what is large, and in
/// the end with nothing but the head, which always fits in its place.
inline Put Shard::make_do(Limits& limits, Slot& slot, RecordHeader& record, Parts parts) noexcept {
    const Parts old = slot.block->parts();
    const std::size_t allowed = slot.block->capacity + grace;
    const auto size = [&] { return Block::size_of(slot.block->key_size, record, parts); };
    const bool ends = record.state != State::running;
    if (!parts.result.empty() && parts.result.data() != old.result.data()) {
        parts.result = {};
        record.result = ResultKind::no_room;
        record.codec = {};
    }
    if (size() > allowed) parts.checkpoint = ends ? std::string_view() : old.checkpoint;
    if (size() > allowed) parts.resource = old.resource;
    if (fits(*slot.block, record, parts)) {
        write(limits, slot, record, parts);
        return Put::done;
    }
    if (size() <= allowed && move(limits, slot, record, parts, size(), true) == Put::done)
        return Put::done;
    parts = ends ? Parts{} : old;  // of a renewal the lease counts; the older checkpoint stays
    if (!fits(*slot.block, record, parts)) return Put::no_memory;
    write(limits, slot, record, parts);
    return Put::done;
}

inline std::size_t Shard::sweep(Limits& limits, Instant now, std::size_t looks,
                                std::size_t removals) noexcept {
    if (table.count() == 0) return 0;
    const std::int64_t second = seconds(limits, now);
    std::size_t removed = 0;
    std::uint32_t hash = sweep_from_;
    Slot* at = table.first(hash);
    while (table.count() != 0 && !table.at_end(at)) {
        // Slots of one hash are looked at together: a round goes on behind a hash.
        const bool same = at->block != nullptr && at->hash == hash;
        if (removed == removals || (looks == 0 && !same)) {
            sweep_from_ = table.hash_at(at);
            return removed;
        }
        if (looks != 0) --looks;
        if (at->block == nullptr) {
            ++at;
            continue;
        }
        hash = at->hash;
        std::int64_t again = at->expiry;
        if (again <= second && detail::instant(at->block->retention_end) <= now) {
            if (removable(*at->block, now)) {
                remove(limits, at);  // the next one stands here now
                ++removed;
                continue;
            }
            again = second + 1;
        }
        earliest_next_ = std::min(earliest_next_,
                                  static_cast<std::uint32_t>(std::min<std::int64_t>(again, never)));
        ++at;
    }
    finish_round();
    return removed;
}

}  // namespace idem::inline v0_1::memory

#endif
