#ifndef IDEM_LAYERED_RESULT_CACHE_HPP
#define IDEM_LAYERED_RESULT_CACHE_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <idem/detail/hash.hpp>
#include <idem/detail/spin_mutex.hpp>
#include <idem/memory/block.hpp>
#include <idem/operation.hpp>

/// The inside of `CachedStore`: finished results by key, bounded in bytes.
namespace idem::inline v0_1::detail {

/// What the store answered to a repeat, and for whom the same answer holds.
class CachedResult {
public:
    CachedResult(const ClaimRequest& request, const ClaimReply& reply, std::uint64_t hash,
                 Instant sent, Duration age_max)
        : hash_(hash),
          key_(encode_key(request.key)),
          fingerprint_(request.fingerprint),
          redeemed_(request.redeem_only),
          sent_(sent),
          until_(sent + std::min(age_max, reply.retention_left)),
          reply_(reply) {}

    [[nodiscard]] std::uint64_t hash() const noexcept { return hash_; }
    [[nodiscard]] bool is(std::uint64_t hash, const KeyView& key) const noexcept {
        return hash_ == hash && decode_key(key_) == key;
    }
    /// A clock that runs backwards ends a life too: nobody knows how long it has been.
    [[nodiscard]] bool lives(Instant now) const noexcept { return sent_ <= now && now < until_; }

    /// The last owner's own claim is stale, and only a store tells tokens from other records.
    [[nodiscard]] bool answers(const ClaimRequest& request) const noexcept {
        return fingerprint_ == request.fingerprint && reply_.owner != request.owner &&
               (redeemed_ || !request.redeem_only);
    }
    void fill(ClaimReply& reply, Instant now) const {
        reply = reply_;
        reply.retention_left -= now - sent_;
    }

    /// All that is allocated for it.
    [[nodiscard]] std::size_t cost() const noexcept {
        std::size_t sum = memory::chunk_of(sizeof *this);
        for (const auto* text : {&key_, &reply_.result, &reply_.resource})
            if (text->capacity() > std::string().capacity())
                sum += memory::chunk_of(text->capacity() + 1);
        return sum;
    }

    std::unique_ptr<CachedResult> next{};  ///< In its bucket.
    bool used = false;                     ///< Since the clock's hand came by.

private:
    std::uint64_t hash_;
    std::string key_;
    Fingerprint fingerprint_;
    bool redeemed_;
    Instant sent_;
    Instant until_;
    ClaimReply reply_;
};

/// 64 tables, each with its lock and its share of the bytes. Where one is full a hand goes round
/// its buckets and takes what has not been asked for since it last came by (the clock algorithm).
class ResultCache {
public:
    static constexpr std::size_t shard_count = 64;
    /// A larger result would push too many others out.
    static constexpr std::size_t results_per_shard = 4;

    ResultCache(std::size_t bytes_max, Duration age_max)
        : share_(bytes_max / shard_count), age_max_(age_max) {}

    /// A key's place, and how often its results had been dropped when the store was asked.
    struct Place {
        std::uint64_t hash = 0;
        std::uint32_t epoch = 0;
    };
    [[nodiscard]] Place place(const KeyView& key) const noexcept { return {hash_.of_key(key), 0}; }

    /// Whether a request may be answered from here, and its answer be kept: without a fingerprint,
    /// or with two, nobody knows what the store has compared.
    [[nodiscard]] static bool takes(const ClaimRequest& request) noexcept {
        return request.fingerprint.present() && !request.fingerprint_before.present();
    }

    /// Answers from memory, or notes in `place` what `keep` wants to know. With `look` false only
    /// the latter.
    [[nodiscard]] bool answer(const ClaimRequest& request, Place& place, Instant now, bool look,
                              ClaimReply& reply) {
        Shard& shard = shard_of(place.hash);
        const std::lock_guard lock(shard.mutex);
        if (look && shard.count != 0 && takes(request)) {
            auto* const link = shard.find(place.hash, request.key);
            if (link != nullptr && !(*link)->lives(now)) {
                shard.remove(*link);
            } else if (link != nullptr && (*link)->answers(request)) {
                (*link)->used = true;
                ++shard.hits;
                (*link)->fill(reply, now);
                return true;
            }
        }
        ++shard.misses;
        place.epoch = shard.epoch(place.hash);
        return false;
    }

    /// Keeps what the store has answered, unless the key has been dropped since it was asked.
    void keep(const ClaimRequest& request, const ClaimReply& reply, const Place& place,
              Instant sent) noexcept {
        if (reply.retention_left <= Duration{} || reply.result.size() > share_ / results_per_shard)
            return;
        try {
            auto made = std::make_unique<CachedResult>(request, reply, place.hash, sent, age_max_);
            if (made->cost() > share_ / results_per_shard) return;
            Shard& shard = shard_of(place.hash);
            const std::lock_guard lock(shard.mutex);
            if (shard.epoch(place.hash) != place.epoch) return;
            if (auto* const link = shard.find(place.hash, request.key)) shard.remove(*link);
            shard.insert(std::move(made), share_);
        } catch (const std::bad_alloc&) {  // the caller has its answer
        }
    }

    /// A result under way from the store is not kept either.
    void drop(const KeyView& key) noexcept { drop(key, place(key).hash); }
    void drop(const KeyView& key, std::uint64_t hash) noexcept {
        Shard& shard = shard_of(hash);
        const std::lock_guard lock(shard.mutex);
        ++shard.epoch(hash);
        if (auto* const link = shard.find(hash, key)) shard.remove(*link);
    }

    /// Calls `look(hits, misses, entries, bytes)` for each shard.
    template <class Look>
    void each_shard(Look look) const {
        for (auto& shard : shards_) {
            const std::lock_guard lock(shard.mutex);
            look(shard.hits, shard.misses, shard.count, shard.bytes);
        }
    }

private:
    using Link = std::unique_ptr<CachedResult>;

    struct alignas(128) Shard {
        mutable SpinMutex mutex{};
        std::vector<Link> buckets{};  ///< A power of two of them, or none.
        std::size_t count = 0;
        std::size_t bytes = 0;
        std::size_t hand = 0;
        std::uint64_t hits = 0;
        std::uint64_t misses = 0;
        /// Several, so that first calls do not keep the results of other keys from being kept.
        std::array<std::uint32_t, 32> epochs{};

        [[nodiscard]] std::uint32_t& epoch(std::uint64_t hash) noexcept {
            return epochs[(hash >> 40U) % epochs.size()];
        }
        [[nodiscard]] Link& bucket(std::uint64_t hash) noexcept {
            return buckets[hash & (buckets.size() - 1)];
        }
        /// What holds the key's entry; null where there is none.
        [[nodiscard]] Link* find(std::uint64_t hash, const KeyView& key) noexcept {
            if (buckets.empty()) return nullptr;
            for (Link* link = &bucket(hash); *link != nullptr; link = &(*link)->next)
                if ((*link)->is(hash, key)) return link;
            return nullptr;
        }
        void remove(Link& link) noexcept {
            bytes -= link->cost();
            --count;
            Link next = std::move(link->next);
            link = std::move(next);
        }
        void insert(Link made, std::size_t bytes_max) {
            if (count >= buckets.size()) grow();
            const std::size_t cost = made->cost();
            while (count != 0 && bytes + cost > bytes_max) take_one();
            if (bytes + cost > bytes_max) return;
            bytes += cost;
            ++count;
            Link& head = bucket(made->hash());
            made->next = std::move(head);
            head = std::move(made);
        }
        void take_one() noexcept {
            for (;; ++hand) {
                Link* link = &buckets[hand & (buckets.size() - 1)];
                while (*link != nullptr) {
                    if (!std::exchange((*link)->used, false)) return remove(*link);
                    link = &(*link)->next;
                }
            }
        }
        void grow() {
            std::vector<Link> old(std::max<std::size_t>(16, 2 * buckets.size()));
            old.swap(buckets);
            for (auto& head : old) {
                while (head != nullptr) {
                    Link next = std::move(head->next);
                    Link& to = bucket(head->hash());
                    head->next = std::move(to);
                    to = std::move(head);
                    head = std::move(next);
                }
            }
            if (!old.empty()) bytes -= memory::chunk_of(old.size() * sizeof(Link));
            bytes += memory::chunk_of(buckets.size() * sizeof(Link));
        }
    };

    [[nodiscard]] Shard& shard_of(std::uint64_t hash) noexcept { return shards_[hash >> 58U]; }

    std::size_t share_;
    Duration age_max_;
    SeededHash hash_{};
    std::array<Shard, shard_count> shards_{};
};

}  // namespace idem::inline v0_1::detail

#endif
