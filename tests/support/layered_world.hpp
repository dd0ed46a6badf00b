#ifndef IDEM_TESTS_SUPPORT_LAYERED_WORLD_HPP
#define IDEM_TESTS_SUPPORT_LAYERED_WORLD_HPP

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <idem/layered/cached.hpp>
#include <idem/layered/combining.hpp>
#include <idem/layered/content_watch.hpp>
#include <idem/layered/encrypted.hpp>
#include <idem/layered/tiered.hpp>
#include <idem/memory/store.hpp>
#include <idem/testing/manual_clock.hpp>
#include <idem/testing/memory_front.hpp>

#include "support/requests.hpp"

namespace idem_test {

/// The embedded store on a clock that is moved by hand, as the conformance kit wants it.
class MemoryWorld {
public:
    explicit MemoryWorld(idem::MemoryOptions options = {})
        : store_((options.clock = clock_, std::move(options))) {}

    [[nodiscard]] idem::MemoryStore& store() { return store_; }
    void advance(idem::Duration by) { clock_.advance(by); }
    [[nodiscard]] idem::Instant now() const { return clock_.now(); }

private:
    idem::testing::ManualClock clock_{};
    idem::MemoryStore store_;
};

template <class World>
using StoreOf = std::remove_cvref_t<decltype(std::declval<World&>().store())>;

[[nodiscard]] inline idem::EncryptionKeys encryption_keys() {
    return {7, {{7, "0123456789abcdef0123456789ABCDEF"}}};
}

/// A world whose store is encrypted; all else is as in the world beneath.
template <class World>
class EncryptedWorld : public World {
public:
    template <class... Args>
    explicit EncryptedWorld(Args&&... args)
        : World(std::forward<Args>(args)...), encrypted_(World::store(), encryption_keys()) {}

    [[nodiscard]] idem::EncryptedStore<StoreOf<World>>& store() { return encrypted_; }
    [[nodiscard]] std::size_t message_bytes_max() const {
        return idem::EncryptedStore<StoreOf<World>>::message_bytes_max;
    }

private:
    idem::EncryptedStore<StoreOf<World>> encrypted_;
};

/// Whether the second repeat of a finished call is answered by the layer whose answers `answered`
/// counts. The histories of the kit, which are left to chance, may meet no such repeat.
template <class Store, class Answered>
[[nodiscard]] bool answers_repeats(Store& store, const Answered& answered) {
    const idem::Key key{"repeats", "k"};
    const auto claim = [&](std::uint64_t owner) {
        auto request = claim_of(key, owner);
        request.fingerprint = idem::Fingerprint::of_bytes("request");
        return idem::claim_one(store, request);
    };
    const auto fence = claim(1).fence;
    (void)idem::finish_one(store, complete_of(key, owner_of(1), fence, "result"));
    (void)claim(2);  // fills it
    const auto before = answered();
    return claim(3).result == "result" && answered() == before + 1;
}

/// A world with a cache in front of its store, by the same clock. What it answered is counted over
/// all worlds of a type: a cache that answers nothing would keep every promise.
template <class World>
class CachedWorld : public World {
public:
    template <class... Args>
    explicit CachedWorld(Args&&... args)
        : World(std::forward<Args>(args)...),
          cached_(World::store(),
                  {.max_age = std::chrono::hours{1}, .clock = [this] { return World::now(); }}) {}
    ~CachedWorld() { hits += cached_.usage().hits; }
    CachedWorld(const CachedWorld&) = delete;  // its clock refers to it
    CachedWorld& operator=(const CachedWorld&) = delete;

    [[nodiscard]] idem::CachedStore<StoreOf<World>>& store() { return cached_; }
    [[nodiscard]] bool answers_repeats() {
        return idem_test::answers_repeats(cached_, [&] { return cached_.usage().hits; });
    }

    static inline std::atomic<std::uint64_t> hits{0};

private:
    idem::CachedStore<StoreOf<World>> cached_;
};

/// A world whose store combines what comes at once; what comes alone goes straight through.
template <class World>
class CombiningWorld : public World {
public:
    template <class... Args>
    explicit CombiningWorld(Args&&... args)
        : World(std::forward<Args>(args)...), combining_(World::store()) {}

    [[nodiscard]] idem::CombiningStore<StoreOf<World>>& store() { return combining_; }

private:
    idem::CombiningStore<StoreOf<World>> combining_;
};

/// A world whose store looks out for equal content. Its marks go with a purge too.
template <class World>
class ContentWorld : public World {
public:
    template <class... Args>
    explicit ContentWorld(Args&&... args)
        : World(std::forward<Args>(args)...), watch_(World::store()) {}
    ~ContentWorld() { watched += watch_.usage().watched; }
    ContentWorld(const ContentWorld&) = default;
    ContentWorld& operator=(const ContentWorld&) = default;

    [[nodiscard]] idem::ContentWatch<StoreOf<World>>& store() { return watch_; }
    [[nodiscard]] bool expires_unasked() const { return true; }

    static inline std::atomic<std::uint64_t> watched{0};

private:
    idem::ContentWatch<StoreOf<World>> watch_;
};

/// A world whose store is the back of two layers, with a front in memory on the same clock. What
/// the front answered is counted over all worlds of a type.
template <class World>
class TieredWorld : public World {
public:
    template <class... Args>
    explicit TieredWorld(Args&&... args)
        : World(std::forward<Args>(args)...),
          tiered_(idem::testing::MemoryFront([this] { return World::now(); }), World::store(),
                  {.front_ttl = std::chrono::hours{1}}) {}
    ~TieredWorld() { hits += tiered_.usage().front_answers; }
    TieredWorld(const TieredWorld&) = delete;  // its clock refers to it
    TieredWorld& operator=(const TieredWorld&) = delete;

    [[nodiscard]] auto& store() { return tiered_; }

    static inline std::atomic<std::uint64_t> hits{0};

private:
    idem::TieredStore<idem::testing::MemoryFront, StoreOf<World>> tiered_;
};

}  // namespace idem_test

#endif
