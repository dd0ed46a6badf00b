// The in-memory store on its own: its bounds, its handles, its tables, its threads. What every
// store promises is asked by the conformance suite.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <idem/memory/store.hpp>
#include <idem/testing/manual_clock.hpp>

#include "support/catch.hpp"

namespace memory_store_test {

using namespace idem;
using namespace std::chrono_literals;
using idem::testing::ManualClock;

static_assert(store<MemoryStore>);

constexpr bool instrumented =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    true;
#else
    false;
#endif

KeyView key_of(std::string_view id) {
    return {Component::call, "test", id, {}};
}

Owner owner_of(std::uint64_t number) {
    Owner owner;
    std::memcpy(owner.bytes.data(), &number, sizeof number);
    owner.bytes[15] = 1;
    return owner;
}

ClaimRequest claim_of(std::string_view id, std::uint64_t owner, Duration retention = 24h) {
    return {.key = key_of(id),
            .owner = owner_of(owner),
            .lease = 30s,
            .retention = retention,
            .held_retention = 24h};
}

FinishRequest complete_of(std::string_view id, std::uint64_t owner, Fence fence,
                          std::string_view result, Duration retention = 24h) {
    return {.key = key_of(id),
            .owner = owner_of(owner),
            .fence = fence,
            .kind = FinishKind::complete,
            .lease = 30s,
            .retention = retention,
            .held_retention = 24h,
            .result_kind = ResultKind::value,
            .codec = {7, 1},
            .result = result};
}

/// Runs one key through, as a guard would.
void run(MemoryStore& store, std::string_view id, std::uint64_t owner, std::string_view result,
         Duration retention = 24h) {
    const auto claimed = claim_one(store, claim_of(id, owner, retention));
    REQUIRE(claimed.kind == ClaimKind::acquired);
    REQUIRE_FALSE(claimed.trouble);
    const auto done = finish_one(store, complete_of(id, owner, claimed.fence, result, retention));
    REQUIRE_FALSE(done.lost);
    REQUIRE_FALSE(done.trouble);
}

/// Threads that begin together. Their failures are counted, for Catch is not for many threads.
template <class Work>
void together(int threads, Work work) {
    std::atomic<int> ready{0};
    std::vector<std::jthread> all;
    for (int i = 0; i < threads; ++i) {
        all.emplace_back([&, i] {
            ready.fetch_add(1);
            while (ready.load() < threads) std::this_thread::yield();
            work(i);
        });
    }
    for (auto& thread : all) thread.join();
}

// --- bounds
// ---------------------------------------------------------------------------------------

TEST_CASE("memory: unique keys that expire unread do not pile up", "[memory]") {
    const int keys = instrumented ? 200'000 : 1'000'000;
    ManualClock clock;
    MemoryStore store({.clock = clock});
    std::uint64_t most = 0;
    for (int i = 0; i < keys; ++i) {
        run(store, "k" + std::to_string(i), 1, "result", 10s);
        clock.advance(1ms);
        if (i % 1000 == 0) most = std::max(most, store.usage().records);
    }
    // 10 s at 1,000 keys a second are within their retention; as many again may wait for the sweep.
    CHECK(most <= 20'000);
    CHECK(store.usage().records >= 10'000);

    clock.advance(1h);
    CHECK(store.purge(1'000'000).more == false);
    CHECK(store.usage().records == 0);
    CHECK(store.usage().bytes == 0);
}

TEST_CASE("memory: a full store refuses new keys and keeps every old one", "[memory]") {
    ManualClock clock;
    MemoryStore store({.records_max = 100, .clock = clock});
    std::set<std::string> kept;
    int refused = 0;
    for (int i = 0; i < 200; ++i) {
        const auto id = "k" + std::to_string(i);
        const auto reply = claim_one(store, claim_of(id, 1, 1h));
        if (reply.trouble) {
            CHECK(reply.trouble.kind == Trouble::Kind::unavailable);
            CHECK_FALSE(reply.trouble.may_have_applied);
            CHECK(reply.trouble.message.find("full") != std::string::npos);
            CHECK_FALSE(find_one(store, key_of(id)).record);
            ++refused;
        } else {
            REQUIRE(reply.kind == ClaimKind::acquired);
            kept.insert(id);
        }
    }
    CHECK(refused == 100);
    CHECK(kept.size() == 100);
    CHECK(
        issue_one(store, {.key = key_of("token"), .validity = 1h, .retention = 1h}).trouble.kind ==
        Trouble::Kind::unavailable);
    for (const auto& id : kept) CHECK(find_one(store, key_of(id)).record);

    SECTION("a key that is there can be claimed, renewed, finished and forgotten") {
        const auto& id = *kept.begin();
        const auto fence = find_one(store, key_of(id)).record->header.fence;
        CHECK(claim_one(store, claim_of(id, 2)).kind == ClaimKind::in_progress);
        CHECK_FALSE(renew_one(store, {.key = key_of(id),
                                      .owner = owner_of(1),
                                      .fence = fence,
                                      .lease = 1min,
                                      .checkpoint = "half"})
                        .lost);
        CHECK(find_one(store, key_of(id)).record->payload.checkpoint == "half");
        CHECK_FALSE(finish_one(store, complete_of(id, 1, fence, "done")).lost);
        CHECK(claim_one(store, claim_of(id, 3)).result == "done");
        CHECK(forget_one(store, {.key = key_of(id), .lease = 30s}).existed);
        CHECK(claim_one(store, claim_of(id, 4)).kind == ClaimKind::acquired);
    }
    SECTION("a release of a key that is not there still leaves its mark") {
        const FinishRequest release{.key = key_of("late"),
                                    .owner = owner_of(9),
                                    .kind = FinishKind::release,
                                    .counted = false,
                                    .lease = 30s,
                                    .retention = 1h,
                                    .held_retention = 1h};
        const auto reply = finish_one(store, release);
        CHECK_FALSE(reply.trouble);
        CHECK(reply.state == State::released);
        CHECK(claim_one(store, claim_of("late", 9)).kind == ClaimKind::stale);
    }
    SECTION("what is past its retention makes room, read or not") {
        clock.advance(1h + 30s);
        for (int i = 0; i < 100; ++i)
            CHECK_FALSE(claim_one(store, claim_of("n" + std::to_string(i), 1, 1h)).trouble);
        CHECK(claim_one(store, claim_of("one more", 1)).trouble);
    }
}

TEST_CASE("memory: threads at the bound get exactly as many records as it allows", "[memory]") {
    MemoryStore store({.records_max = 1000});
    std::atomic<int> acquired{0};
    std::atomic<int> refused{0};
    together(8, [&](int thread) {
        for (int i = 0; i < 500; ++i) {
            const auto id = std::to_string(thread) + "/" + std::to_string(i);
            const auto reply = claim_one(store, claim_of(id, 1));
            (reply.trouble ? refused : acquired).fetch_add(1);
        }
    });
    CHECK(acquired == 1000);
    CHECK(refused == 3000);
    CHECK(store.usage().records == 1000);
}

TEST_CASE("memory: without room for bytes a finish goes on without the value", "[memory]") {
    MemoryStore store({.bytes_max = 8192});
    const auto claimed = claim_one(store, claim_of("a", 1));
    const auto failing = claim_one(store, claim_of("b", 2));
    const auto renewing = claim_one(store, claim_of("c", 3));
    int more = 0;
    while (!claim_one(store, claim_of("fill" + std::to_string(more), 4)).trouble) ++more;
    REQUIRE(more > 10);
    REQUIRE(store.usage().bytes <= 8192);

    SECTION("a result is left out, and its repeat says so") {
        const std::string large(4000, 'x');
        const auto reply = finish_one(store, complete_of("a", 1, claimed.fence, large));
        CHECK_FALSE(reply.lost);
        CHECK_FALSE(reply.trouble);
        CHECK(reply.state == State::succeeded);
        const auto repeat = claim_one(store, claim_of("a", 5));
        CHECK(repeat.kind == ClaimKind::completed);
        CHECK(repeat.result_kind == ResultKind::no_room);
        CHECK(repeat.result.empty());
        CHECK_FALSE(finish_one(store, complete_of("a", 1, claimed.fence, large)).lost);
    }
    SECTION("a failure keeps its words") {
        const std::string message(4096, 'm');
        const FinishRequest fail{.key = key_of("b"),
                                 .owner = owner_of(2),
                                 .fence = failing.fence,
                                 .kind = FinishKind::fail,
                                 .retention = 1h,
                                 .held_retention = 1h,
                                 .failure = FailureClass::final,
                                 .failure_code = "bad",
                                 .failure_message = message};
        CHECK_FALSE(finish_one(store, fail).lost);
        const auto repeat = claim_one(store, claim_of("b", 5));
        CHECK(repeat.kind == ClaimKind::failed);
        CHECK(repeat.failure == Failure{FailureClass::final, "bad", message});
    }
    SECTION("a renewal keeps a small checkpoint, and renews where a large one must go") {
        RenewRequest renew{.key = key_of("c"),
                           .owner = owner_of(3),
                           .fence = renewing.fence,
                           .lease = 1min,
                           .checkpoint = "small"};
        CHECK_FALSE(renew_one(store, renew).lost);
        const std::string large(100'000, 'x');
        renew.checkpoint = large;
        const auto reply = renew_one(store, renew);
        CHECK_FALSE(reply.lost);
        CHECK_FALSE(reply.trouble);
        CHECK(reply.lease_left > 59s);
        CHECK(find_one(store, key_of("c")).record->payload.checkpoint == "small");
    }
    SECTION("a person's result is refused rather than lost") {
        const FinishRequest quarantine{.key = key_of("a"),
                                       .owner = owner_of(1),
                                       .fence = claimed.fence,
                                       .kind = FinishKind::quarantine,
                                       .retention = 1h,
                                       .held_retention = 1h};
        REQUIRE_FALSE(finish_one(store, quarantine).lost);
        const std::string large(4000, 'x');
        ResolveRequest resolve{.key = key_of("a"),
                               .seen_fence = claimed.fence,
                               .succeeded = true,
                               .retention = 1h,
                               .result_kind = ResultKind::value,
                               .result = large};
        const auto reply = resolve_one(store, resolve);
        CHECK(reply.trouble.kind == Trouble::Kind::unavailable);
        CHECK_FALSE(reply.resolved);
        CHECK(find_one(store, key_of("a")).record->header.state == State::unknown);
        resolve.succeeded = false;
        CHECK(resolve_one(store, resolve).resolved);
    }
    SECTION("a claim after a release is no new key") {
        const FinishRequest release{.key = key_of("a"),
                                    .owner = owner_of(1),
                                    .fence = claimed.fence,
                                    .kind = FinishKind::release,
                                    .retention = 1h,
                                    .held_retention = 1h};
        REQUIRE_FALSE(finish_one(store, release).lost);
        auto again = claim_of("a", 6);
        again.fingerprint = Fingerprint::of_bytes("corrected");
        CHECK(claim_one(store, again).kind == ClaimKind::acquired);
    }
}

TEST_CASE("memory: a result that no block can hold is left out", "[memory]") {
    constexpr std::size_t size = std::size_t{5} << 30U;
    void* const pages =
        mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(pages != MAP_FAILED);
    MemoryStore store({.bytes_max = 0});
    const auto claimed = claim_one(store, claim_of("a", 1));
    const std::string_view huge(static_cast<const char*>(pages), size);
    CHECK_FALSE(finish_one(store, complete_of("a", 1, claimed.fence, huge)).lost);
    CHECK(claim_one(store, claim_of("a", 2)).result_kind == ResultKind::no_room);
    munmap(pages, size);
}

TEST_CASE("memory: purge removes at most its limit and nothing within retention", "[memory]") {
    ManualClock clock;
    MemoryStore store({.clock = clock});
    for (int i = 0; i < 1000; ++i) run(store, "old" + std::to_string(i), 1, "r", 1h);
    clock.advance(59min);
    for (int i = 0; i < 500; ++i) run(store, "new" + std::to_string(i), 1, "r", 1h);
    CHECK(store.purge(100).removed == 0);

    clock.advance(1min);  // a record is past its retention at that very moment
    const auto first = store.purge(100);
    CHECK(first.removed == 100);
    CHECK(first.more);
    CHECK(store.purge(0).removed == 0);
    std::size_t removed = 100;
    for (int i = 0; i < 20; ++i) {
        const auto reply = store.purge(100);
        CHECK(reply.removed <= 100);
        removed += reply.removed;
        if (!reply.more) break;
    }
    CHECK(removed == 1000);
    CHECK(store.usage().records == 500);
    for (int i = 0; i < 500; ++i) CHECK(find_one(store, key_of("new" + std::to_string(i))).record);
}

TEST_CASE("memory: an empty store gives its memory back, but for what was reserved", "[memory]") {
    ManualClock clock;
    MemoryStore store({.reserve = 1000, .clock = clock});
    for (int round = 0; round < 3; ++round) {
        for (int i = 0; i < 5000; ++i) run(store, std::to_string(i), 1, "r", 1min);
        CHECK(store.usage().records == 5000);
        clock.advance(1h);
        CHECK(store.purge(10'000).removed == 5000);
        CHECK(store.usage().bytes == 0);
    }
}

TEST_CASE("memory: a fence grows across removal even where it was ahead of the clock", "[memory]") {
    ManualClock clock;
    MemoryStore store({.clock = clock});
    const auto ahead = static_cast<Fence>((clock.now() + 1h).time_since_epoch().count());
    const FinishRequest release{.key = key_of("a"),
                                .owner = owner_of(1),
                                .fence = ahead,
                                .kind = FinishKind::release,
                                .lease = 1min,
                                .retention = 1min,
                                .held_retention = 1min};
    REQUIRE_FALSE(finish_one(store, release).lost);
    clock.advance(30min);
    (void)store.purge(100);
    CHECK_FALSE(find_one(store, key_of("a")).record);
    CHECK(claim_one(store, claim_of("a", 2)).fence > ahead);
}

// --- handles, keys, batches, clock
// ----------------------------------------------------------------

TEST_CASE("memory: copies share the records and keep them alive", "[memory]") {
    auto first = std::make_unique<MemoryStore>();
    run(*first, "a", 1, "result");
    MemoryStore second = *first;
    first.reset();
    CHECK(claim_one(second, claim_of("a", 2)).result == "result");
    MemoryStore other;
    CHECK(claim_one(other, claim_of("a", 2)).kind == ClaimKind::acquired);
}

TEST_CASE("memory: keys, results, checkpoints and resources of any bytes come back", "[memory]") {
    std::string every;
    for (int i = 0; i < 255; ++i) every += static_cast<char>(i + 1);
    const std::string zeros(255, '\0');
    const std::vector<std::string> texts = {every, zeros, std::string("\0", 1), "a", "\xFF\xFE"};
    MemoryStore store;
    int keys = 0;
    for (const auto& scope : texts) {
        for (const auto& id : texts) {
            for (const auto& tenant : {every, zeros, std::string()}) {
                const KeyView key(Component::message, scope, id, tenant);
                auto claim = claim_of("", 1);
                claim.key = key;
                const auto claimed = claim_one(store, claim);
                REQUIRE(claimed.kind == ClaimKind::acquired);
                const std::string result = id + scope;
                auto finish = complete_of("", 1, claimed.fence, result);
                finish.key = key;
                finish.resource = scope;
                finish.checkpoint = tenant;
                REQUIRE_FALSE(finish_one(store, finish).lost);
                ++keys;
            }
        }
    }
    CHECK(store.usage().records == static_cast<std::uint64_t>(keys));
    const auto page = store.list({.limit = 1000});
    CHECK(page.records.size() == static_cast<std::size_t>(keys));
    for (const auto& record : page.records) {
        CHECK(record.component == Component::message);
        CHECK(record.payload.result == record.key.id + record.key.scope);
        CHECK(record.payload.resource == record.key.scope);
        CHECK(record.payload.checkpoint == record.key.tenant);
        const auto found = find_one(store, {Component::message, record.key});
        REQUIRE(found.record);
        CHECK(found.record->payload == record.payload);
    }
}

TEST_CASE("memory: a key that no store may see is refused as usage", "[memory]") {
    MemoryStore store;
    const std::string longer(256, 'x');
    for (const auto& key :
         {KeyView(Component::call, "", "id", ""), KeyView(Component::call, "scope", "", ""),
          KeyView(Component::call, longer, "id", ""), KeyView(Component::call, "scope", longer, ""),
          KeyView(Component::call, "scope", "id", longer)}) {
        auto claim = claim_of("", 1);
        claim.key = key;
        CHECK(claim_one(store, claim).trouble.kind == Trouble::Kind::usage);
        CHECK(find_one(store, key).trouble.kind == Trouble::Kind::usage);
    }
    CHECK(store.usage().records == 0);
}

TEST_CASE("memory: the same key twice in a batch acts first to last", "[memory]") {
    MemoryStore store;
    const std::vector<ClaimRequest> claims = {claim_of("a", 1), claim_of("b", 2), claim_of("a", 3),
                                              claim_of("a", 1)};
    std::vector<ClaimReply> claimed(claims.size());
    store.claim(claims, claimed);
    CHECK(claimed[0].kind == ClaimKind::acquired);
    CHECK(claimed[1].kind == ClaimKind::acquired);
    CHECK(claimed[2].kind == ClaimKind::in_progress);
    CHECK(claimed[3].kind == ClaimKind::acquired);
    CHECK(claimed[3].fence == claimed[0].fence);

    const std::vector<FinishRequest> finishes = {complete_of("a", 1, claimed[0].fence, "first"),
                                                 complete_of("a", 3, claimed[0].fence, "second"),
                                                 complete_of("a", 1, claimed[0].fence, "third")};
    std::vector<FinishReply> finished(finishes.size());
    store.finish(finishes, finished);
    CHECK_FALSE(finished[0].lost);
    CHECK(finished[1].lost);
    CHECK_FALSE(finished[2].lost);
    CHECK(claim_one(store, claim_of("a", 9)).result == "first");
}

TEST_CASE("memory: one item's trouble does not harm its neighbours", "[memory]") {
    MemoryStore store({.records_max = 1});
    const std::vector<ClaimRequest> claims = {claim_of("a", 1), claim_of("b", 2), claim_of("", 3),
                                              claim_of("a", 4)};
    std::vector<ClaimReply> claimed(claims.size());
    store.claim(claims, claimed);
    CHECK(claimed[0].kind == ClaimKind::acquired);
    CHECK(claimed[1].trouble.kind == Trouble::Kind::unavailable);
    CHECK(claimed[2].trouble.kind == Trouble::Kind::usage);
    CHECK_FALSE(claimed[3].trouble);
    CHECK(claimed[3].kind == ClaimKind::in_progress);
}

TEST_CASE("memory: without a clock of the user's, time goes on by itself", "[memory]") {
    MemoryStore store;
    const auto first = claim_one(store, claim_of("first", 1));
    auto brief = claim_of("brief", 1);
    brief.lease = 1ms;
    REQUIRE(claim_one(store, brief).kind == ClaimKind::acquired);
    const auto wall = std::chrono::time_point_cast<Duration>(std::chrono::system_clock::now());
    CHECK(first.created > wall - 1h);
    CHECK(first.created < wall + 1h);

    ClaimReply reply;
    std::uint64_t tries = 0;
    do {  // the lease lapses, and the orphan is taken over by the default policy
        brief.owner = owner_of(2 + tries++);
        reply = claim_one(store, brief);
        std::this_thread::yield();
    } while (reply.kind == ClaimKind::in_progress && tries < 100'000'000);
    CHECK(reply.kind == ClaimKind::acquired);
    CHECK(reply.takeover);
    CHECK(reply.started >= first.created + 1ms);
}

// --- list
// -----------------------------------------------------------------------------------------

TEST_CASE("memory: a listing shows an untouched key once while others come and go", "[memory]") {
    ManualClock clock;
    MemoryStore store({.clock = clock});
    constexpr int before = 3000;
    for (int i = 0; i < before; ++i) run(store, "keep" + std::to_string(i), 1, "r");

    std::jthread writer([&](const std::stop_token& stop) {
        for (int i = 0; !stop.stop_requested();
             ++i) {  // grows every table again and again, and shrinks it
            const auto id = "new" + std::to_string(i);
            (void)claim_one(store, claim_of(id, 1, 1s));
            if (i % 5000 == 4999) {
                clock.advance(1min);
                (void)store.purge(5000);
            }
        }
    });
    std::map<std::string, int> seen;
    for (int walk = 0; walk < 3; ++walk) {
        ListQuery query{.state = State::succeeded, .limit = 7};
        std::size_t pages = 0;
        do {
            const auto page = store.list(query);
            CHECK_FALSE(page.trouble);
            CHECK(page.records.size() <= 7);
            for (const auto& record : page.records) ++seen[record.key.id];
            query.cursor = page.next;
        } while (!query.cursor.empty() && ++pages < 1'000'000);
    }
    writer.request_stop();
    writer.join();
    REQUIRE(seen.size() == before);
    for (const auto& [id, times] : seen) {
        INFO(id);
        CHECK(times == 3);
    }
}

TEST_CASE("memory: a listing filters, and never holds the caller up", "[memory]") {
    ManualClock clock;
    MemoryStore store({.clock = clock});
    for (int i = 0; i < 30'000; ++i) run(store, std::to_string(i), 1, "r");
    auto other = claim_of("x", 1);
    other.key = {Component::lease, "locks", "x", "acme"};
    REQUIRE(claim_one(store, other).kind == ClaimKind::acquired);
    clock.advance(1min);
    REQUIRE(claim_one(store, claim_of("young", 1)).kind == ClaimKind::acquired);

    const auto all = [&](ListQuery query) {
        std::vector<std::string> ids;
        int pages = 0;
        do {
            const auto page = store.list(query);
            for (const auto& record : page.records) ids.push_back(record.key.id);
            query.cursor = page.next;
            ++pages;
        } while (!query.cursor.empty());
        CHECK(pages >= 3);  // 30,000 records to look at, 10,000 in one call
        return ids;
    };
    const std::vector<std::string> x = {"x"};
    const std::vector<std::string> young = {"young"};
    CHECK(all({.component = Component::lease}) == x);
    CHECK(all({.scope = "locks"}) == x);
    CHECK(all({.tenant = "acme"}) == x);
    CHECK(all({.lapsed = true}) == x);
    CHECK(all({.state = State::running, .created_before = 1min}) == x);
    CHECK(all({.scope = "test", .state = State::running}) == young);
    CHECK(store.list({.limit = 1'000'000}).records.size() <= 10'000);
    CHECK(store.list({.cursor = "no cursor"}).trouble.kind == Trouble::Kind::usage);
}

// --- threads and fork
// -----------------------------------------------------------------------------

TEST_CASE("memory: of 64 claims of a fresh key at once one is acquired", "[memory]") {
    MemoryStore store;
    const int rounds = instrumented ? 50 : 500;
    std::vector<std::atomic<int>> acquired(static_cast<std::size_t>(rounds));
    std::vector<std::atomic<int>> others(static_cast<std::size_t>(rounds));
    std::atomic<int> arrived{0};
    together(64, [&](int thread) {
        for (int round = 0; round < rounds; ++round) {
            arrived.fetch_add(1);
            while (arrived.load() < 64 * (round + 1)) std::this_thread::yield();
            const auto id = "round" + std::to_string(round);
            const auto reply = claim_one(store, claim_of(id, static_cast<std::uint64_t>(thread)));
            const auto at = static_cast<std::size_t>(round);
            if (reply.kind == ClaimKind::acquired) acquired[at].fetch_add(1);
            if (reply.kind == ClaimKind::in_progress) others[at].fetch_add(1);
        }
    });
    for (std::size_t i = 0; i < acquired.size(); ++i) {
        INFO("round " << i);
        CHECK(acquired[i] == 1);
        CHECK(others[i] == 63);
    }
}

TEST_CASE("memory: 10,000 keys from 32 threads run once each and leave nothing", "[memory]") {
    ManualClock clock;
    MemoryStore store({.clock = clock});
    const int keys = instrumented ? 2000 : 10'000;
    std::vector<std::atomic<int>> ran(static_cast<std::size_t>(keys));
    std::atomic<int> wrong{0};
    together(32, [&](int thread) {
        const auto self = static_cast<std::uint64_t>(thread);
        for (int i = 0; i < keys; ++i) {
            const int number = (i + thread * keys / 32) % keys;
            const auto id = "key" + std::to_string(number);
            const auto reply = claim_one(store, claim_of(id, self, 1h));
            if (reply.kind == ClaimKind::acquired) {
                ran[static_cast<std::size_t>(number)].fetch_add(1);
                if (finish_one(store, complete_of(id, self, reply.fence, id, 1h)).lost)
                    wrong.fetch_add(1);
            } else if (reply.kind == ClaimKind::completed ? reply.result != id
                                                          : reply.kind != ClaimKind::in_progress) {
                wrong.fetch_add(1);
            }
        }
    });
    CHECK(wrong == 0);
    CHECK(std::all_of(ran.begin(), ran.end(), [](const auto& times) { return times == 1; }));
    CHECK(store.usage().records == static_cast<std::uint64_t>(keys));
    clock.advance(2h);
    CHECK(store.purge(static_cast<std::size_t>(keys)).removed == static_cast<std::size_t>(keys));
    CHECK(store.usage().records == 0);
}

TEST_CASE("memory: a child of fork is told, and its parent's store goes on", "[memory]") {
    MemoryStore store;
    run(store, "a", 1, "result");
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        const KeyView key = key_of("a");
        bool told = claim_one(store, claim_of("a", 2)).trouble.kind == Trouble::Kind::usage;
        told = told &&
               claim_one(store, claim_of("a", 2)).trouble.message.find("fork") != std::string::npos;
        told = told && find_one(store, key).trouble.kind == Trouble::Kind::usage;
        told = told &&
               finish_one(store, complete_of("a", 1, 1, "")).trouble.kind == Trouble::Kind::usage;
        told = told && store.list({}).trouble.kind == Trouble::Kind::usage;
        told = told && store.purge(1).trouble.kind == Trouble::Kind::usage;
        MemoryStore own;
        told = told && claim_one(own, claim_of("a", 2)).kind == ClaimKind::acquired;
        _exit(told ? 0 : 1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(claim_one(store, claim_of("a", 2)).result == "result");
}

// --- tables
// ---------------------------------------------------------------------------------------

TEST_CASE("memory: a table behaves as an ordered map through growth and erasure", "[memory]") {
    std::random_device device;
    const auto seed = device();
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    using Id = std::pair<std::uint32_t, std::string>;
    std::map<Id, memory::Block*> model;
    memory::Table table;

    const auto pick = [&](std::uint64_t bound) { return random() % bound; };
    // Few hashes, dense at both ends, so that runs of one hash and a full tail come about.
    const auto any_hash = [&]() -> std::uint32_t {
        switch (pick(4)) {
            case 0: return static_cast<std::uint32_t>(pick(5));
            case 1: return 0xFFFFFFFFU - static_cast<std::uint32_t>(pick(5));
            default: return static_cast<std::uint32_t>(random() & 0xFFFFF000U);
        }
    };
    const auto insert = [&](std::uint32_t hash, const std::string& id) {
        const auto key = key_of(id);
        auto* block = memory::make_block(sizeof(memory::Block) + memory::encoded_size(key),
                                         memory::encoded_size(key));
        memory::write_key(key, block->bytes());
        const auto* slot = table.insert({hash, 0, block});
        REQUIRE(slot != nullptr);
        REQUIRE(slot->block == block);
        model[{hash, id}] = block;
    };
    for (int step = 0; step < 100'000; ++step) {
        const bool grow = step % 20'000 < 12'000;
        if (model.empty() || pick(10) < (grow ? 8U : 2U)) {
            const auto id = std::to_string(pick(50));
            const auto hash = any_hash();
            if (model.count({hash, id}) == 0) insert(hash, id);
        } else {
            auto at = model.lower_bound({any_hash(), ""});
            if (at == model.end()) at = model.begin();
            auto* slot = table.find(at->first.first, key_of(at->first.second));
            REQUIRE(slot != nullptr);
            REQUIRE(slot->block == at->second);
            memory::free_block(slot->block);
            table.erase(slot);
            model.erase(at);
            if (pick(500) == 0) table.shrink(0);
        }
        REQUIRE(table.count() == model.size());
        const auto id = std::to_string(pick(50));
        const auto hash = any_hash();
        REQUIRE((table.find(hash, key_of(id)) != nullptr) == (model.count({hash, id}) == 1));
        if (step % 5000 != 0 || model.empty()) continue;

        std::vector<memory::Block*> walked;
        for (auto* slot = table.first(0); !table.at_end(slot); ++slot) {
            if (slot->block != nullptr) walked.push_back(slot->block);
        }
        std::vector<memory::Block*> expected;
        std::multimap<std::pair<std::uint32_t, std::string>, memory::Block*> ordered;
        for (const auto& [key, block] : model)
            ordered.emplace(std::pair{key.first, std::string(block->key())}, block);
        for (const auto& [key, block] : ordered) expected.push_back(block);
        REQUIRE(walked == expected);
    }
    for (const auto& [key, block] : model) memory::free_block(block);
}

}  // namespace memory_store_test
