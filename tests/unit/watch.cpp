// Goal: a call that waits learns from the store what another process settles, and is no worse off
// where the store cannot tell.

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <idem/any_store.hpp>
#include <idem/guard.hpp>

#include "support/catch.hpp"
#include "support/expect.hpp"
#include "support/features.hpp"

using namespace idem_test;
using namespace std::chrono_literals;

namespace watch_test {

/// A store whose watches a test can see, call and spoil.
class WatchedStore : public SpyStore {
public:
    [[nodiscard]] std::shared_ptr<void> watch(const idem::KeyView&, std::function<void()> notice) {
        Shared& shared = *shared_;
        std::function<void()> meanwhile;
        std::shared_ptr<std::function<void()>> handle;
        {
            std::scoped_lock const lock(shared.mutex);
            meanwhile = shared.meanwhile;
            if (!shared.refuses) handle = std::make_shared<std::function<void()>>(notice);
            shared.handles.push_back(handle);
        }
        if (meanwhile) meanwhile();
        return handle;
    }
    /// Happens while a watch is being taken.
    void on_watch(std::function<void()> what) { shared_->meanwhile = std::move(what); }
    void refuse() { shared_->refuses = true; }

    /// How many were taken, and how many of them are held still.
    [[nodiscard]] std::size_t taken() const {
        std::scoped_lock const lock(shared_->mutex);
        return shared_->handles.size();
    }
    [[nodiscard]] std::size_t held() const {
        std::scoped_lock const lock(shared_->mutex);
        return static_cast<std::size_t>(
            std::count_if(shared_->handles.begin(), shared_->handles.end(),
                          [](const auto& handle) { return !handle.expired(); }));
    }
    void tell() const {
        std::scoped_lock const lock(shared_->mutex);
        for (const auto& handle : shared_->handles)
            if (const auto notice = handle.lock()) (*notice)();
    }

private:
    struct Shared {
        std::mutex mutex{};
        std::vector<std::weak_ptr<std::function<void()>>> handles{};
        std::function<void()> meanwhile{};
        bool refuses = false;
    };
    std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

/// The holder of a key in another process: it asks the store, and tells nobody of this one.
struct Elsewhere {
    explicit Elsewhere(WatchedStore s) : store(std::move(s)) {
        request.key = idem::KeyView(idem::Component::call, held);
        request.owner.bytes.fill('x');
        request.lease = 1h;
        request.retention = 24h;
        fence = idem::claim_one(store, request).fence;
    }
    [[nodiscard]] bool finish() {
        idem::FinishRequest done{.key = request.key, .owner = request.owner, .fence = fence};
        done.kind = idem::FinishKind::complete;
        done.retention = 24h;
        return !idem::finish_one(store, done).lost;
    }
    WatchedStore store;
    idem::Key held = key();
    idem::ClaimRequest request{};
    idem::Fence fence = 0;
};

template <class Store>
void woken_by_notices(WatchedStore watched, Store store) {
    Elsewhere holder(watched);
    idem::IdempotencyGuard guard(store, {.wait = 150s});
    const auto before = watched.claims();
    // By polls alone, once a second in the end, this many looks do not fit into the time.
    Expect expect;
    std::jthread teller([&] {
        for (std::size_t i = 0; i < 200; ++i) {
            const bool looked = eventually([&] { return watched.claims() >= before + 2 + i; });
            if (!looked) break;
            watched.tell();
        }
        expect(holder.finish());
        watched.tell();
    });
    const auto outcome = guard.run(key(), {}, [] {});
    teller.join();
    CHECK(expect.failed() == 0);
    CHECK(outcome.replayed());
    CHECK(watched.claims() - before > 200);
    CHECK(watched.taken() == 1);
    CHECK(watched.held() == 0);
}

TEST_CASE("a waiting call is woken by what its store is told", "[watch]") {
    const WatchedStore store;
    woken_by_notices(store, store);
}

TEST_CASE("a store behind one type tells as it does by itself", "[watch]") {
    const WatchedStore store;
    woken_by_notices(store, idem::AnyStore(store));
}

TEST_CASE("what is settled while a call subscribes is seen before it sleeps", "[watch]") {
    WatchedStore store;
    Elsewhere holder(store);
    store.on_watch([&] { CHECK(holder.finish()); });
    idem::IdempotencyGuard guard(store, {.wait = 10min});
    const auto before = store.claims();
    CHECK(guard.run(key(), {}, [] {}).replayed());
    CHECK(store.claims() - before == 2);
}

/// The holder ends once the waiting call has looked three times, and nobody is told.
void answered_by_polling(WatchedStore& store, Elsewhere& holder) {
    idem::IdempotencyGuard guard(store, {.wait = 10min});
    const auto before = store.claims();
    Expect expect;
    std::jthread finisher([&] {
        expect(eventually([&] { return store.claims() >= before + 3; }));
        expect(holder.finish());
    });
    CHECK(guard.run(key(), {}, [] {}).replayed());
    finisher.join();
    CHECK(expect.failed() == 0);
}

TEST_CASE("a call whose notice is lost gets its answer by polling", "[watch]") {
    WatchedStore store;
    Elsewhere holder(store);
    answered_by_polling(store, holder);
}

TEST_CASE("a call polls where its store cannot tell, or fails to say so", "[watch]") {
    for (const bool throws : {false, true}) {
        WatchedStore store;
        Elsewhere holder(store);
        if (throws) {
            store.on_watch([] { throw 17; });
        } else {
            store.refuse();
        }
        answered_by_polling(store, holder);
        CHECK(store.taken() == 1);
    }
}

TEST_CASE("a call that does not wait takes no watch", "[watch]") {
    WatchedStore store;
    Elsewhere holder(store);
    idem::IdempotencyGuard guard(store);
    CHECK(guard.run(key(), {}, [] {}).kind() == idem::OutcomeKind::in_progress);
    CHECK(guard.run(key("other"), {}, {.wait = 1h}, [] {}).executed());
    CHECK(store.taken() == 0);
}

}  // namespace watch_test
