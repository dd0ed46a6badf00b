#ifndef IDEM_MEMORY_TABLE_HPP
#define IDEM_MEMORY_TABLE_HPP

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string_view>

#include <idem/memory/block.hpp>

namespace idem::inline v0_1::memory {

/// What the table knows of a record without touching it. `expiry` is in seconds since the store
/// was made, rounded up.
struct Slot {
    std::uint32_t hash = 0;
    std::uint32_t expiry = 0;
    Block* block = nullptr;  ///< Null: the slot is empty.
};
static_assert(sizeof(Slot) == 16);

/// An open-addressing table whose slots stand in the order of (hash, key), with gaps: a slot's
/// home grows with its hash, and who comes later moves others up by one. So any capacity will do,
/// a missing key is known at the first larger hash, growing copies from front to back, and a walk
/// can go on behind a hash whatever has been inserted, erased or grown meanwhile.
/// Slots move with every insert and erase: a `Slot*` is good until the next of these.
class Table {
public:
    Table() = default;
    Table(const Table&) = delete;
    Table& operator=(const Table&) = delete;
    ~Table() { clear(); }

    [[nodiscard]] std::size_t count() const noexcept { return count_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return (size_ + 1) * sizeof(Slot); }
    [[nodiscard]] Slot* end() noexcept { return slots() + size_; }
    /// Whether no slot from here on holds anything. Beyond the last home there are no gaps.
    [[nodiscard]] bool at_end(const Slot* at) const noexcept {
        return at->block == nullptr && at >= slots() + capacity();
    }

    /// Fetches a key's slot into the cache, without the lock: it may look at the wrong place, and
    /// then helps nobody.
    void prefetch(std::uint32_t hash) const noexcept { __builtin_prefetch(slots() + home(hash)); }

    [[nodiscard]] Slot* find(std::uint32_t hash, const KeyView& key) noexcept {
        if (count_ == 0) return nullptr;
        for (Slot* at = first(hash); at->block != nullptr && at->hash == hash; ++at) {
            if (at->block->is(key)) return at;
        }
        return nullptr;
    }

    /// The first slot, empty or not, behind which nothing of a smaller hash stands. Not for a table
    /// without a record, like all that follows.
    [[nodiscard]] Slot* first(std::uint32_t hash) noexcept {
        Slot* at = slots() + home(hash);
        while (at->block != nullptr && at->hash < hash) ++at;
        return at;
    }
    /// Likewise for what comes after (hash, key).
    [[nodiscard]] Slot* after(std::uint32_t hash, std::string_view key) noexcept {
        Slot* at = first(hash);
        while (at->block != nullptr && at->hash == hash && at->block->key() <= key) ++at;
        return at;
    }
    /// A hash with which `first` leads to this slot again. Not for the end.
    [[nodiscard]] std::uint32_t hash_at(const Slot* at) const noexcept {
        if (at->block != nullptr) return at->hash;
        const auto place = static_cast<std::uint64_t>(at - slots());
        return static_cast<std::uint32_t>(((place << 32U) + capacity() - 1) / capacity());
    }

    /// Null, and nothing has changed, where there is no memory. The key must not be there yet.
    [[nodiscard]] Slot* insert(const Slot& slot) noexcept {
        if ((count_ + 1) * 8 > capacity() * 7 &&
            !rebuild(std::max(capacity() + capacity() / 2, least)))
            return nullptr;
        for (;;) {
            Slot* const at = after(slot.hash, slot.block->key());
            Slot* gap = at;
            while (gap != end() && gap->block != nullptr) ++gap;
            if (gap != end()) {
                std::memmove(at + 1, at, static_cast<std::size_t>(gap - at) * sizeof(Slot));
                *at = slot;
                ++count_;
                return at;
            }
            if (!rebuild(capacity(), 2 * (size_ - capacity()))) return nullptr;
        }
    }

    /// The slot that follows, if any, then stands in its place.
    void erase(Slot* at) noexcept {
        Slot* next = at + 1;
        while (next->block != nullptr && slots() + home(next->hash) < next) ++next;
        std::memmove(at, at + 1, static_cast<std::size_t>(next - at - 1) * sizeof(Slot));
        next[-1] = Slot{};
        --count_;
    }

    /// Room for so many without growing; false where there is no memory.
    [[nodiscard]] bool reserve(std::size_t count) noexcept {
        const std::size_t wanted = count + count / 7 + least;
        return wanted <= capacity() || rebuild(wanted);
    }
    /// Gives memory back, down to room for `kept`. Does nothing where there is no memory to do so.
    void shrink(std::size_t kept) noexcept {
        const std::size_t wanted = std::max(count_, kept) + std::max(count_, kept) / 2 + least;
        if (count_ == 0 && kept == 0) {
            clear();
        } else if (wanted < capacity() / 2) {
            (void)rebuild(wanted);
        }
    }

    /// Forgets its memory without freeing it: it may be half-way through a change.
    void abandon() noexcept {
        set(nullptr, 0, 0);
        count_ = 0;
    }

private:
    static constexpr std::size_t least = 8;

    [[nodiscard]] std::size_t home(std::uint32_t hash) const noexcept {
        return static_cast<std::size_t>(hash * static_cast<std::uint64_t>(capacity()) >> 32U);
    }

    void clear() noexcept {
        ::operator delete(slots());
        set(nullptr, 0, 0);
        count_ = 0;
    }

    /// A tail takes what is pushed beyond the last home; one more slot is always empty and ends
    /// every walk.
    [[nodiscard]] bool rebuild(std::size_t homes, std::size_t tail = 0) noexcept {
        for (tail = std::max(tail, std::min<std::size_t>(least + homes / 16, 64));; tail *= 2) {
            const std::size_t bytes = (homes + tail + 1) * sizeof(Slot);
            auto* const to = static_cast<Slot*>(::operator new(bytes, std::nothrow));
            if (to == nullptr) return false;
            std::memset(static_cast<void*>(to), 0, bytes);
            if (move_to(to, homes, homes + tail)) return true;
            ::operator delete(to);
        }
    }
    [[nodiscard]] bool move_to(Slot* to, std::size_t homes, std::size_t size) noexcept {
        std::size_t place = 0;
        for (const Slot* at = slots(); at != end(); ++at) {
            if (at->block == nullptr) continue;
            place =
                std::max(place, static_cast<std::size_t>(at->hash * std::uint64_t{homes} >> 32U));
            if (place == size) return false;
            to[place++] = *at;
        }
        ::operator delete(slots());
        set(to, homes, size);
        return true;
    }

    [[nodiscard]] Slot* slots() const noexcept { return slots_.load(std::memory_order_relaxed); }
    [[nodiscard]] std::size_t capacity() const noexcept {
        return capacity_.load(std::memory_order_relaxed);
    }
    void set(Slot* to, std::size_t homes, std::size_t size) noexcept {
        slots_.store(to, std::memory_order_relaxed);
        capacity_.store(homes, std::memory_order_relaxed);
        size_ = size;
    }

    // Atomic for `prefetch` alone, which asks without the lock.
    std::atomic<Slot*> slots_{nullptr};
    std::atomic<std::size_t> capacity_{0};  ///< Homes.
    std::size_t size_ = 0;                  ///< Homes and tail.
    std::size_t count_ = 0;
};

}  // namespace idem::inline v0_1::memory

#endif
