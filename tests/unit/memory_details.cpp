// The in-memory store where its own shortcuts could show: one hash for two keys, seconds for
// moments, a listing across growth, a reader beside a writer, the moment at which time is read.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <idem/memory/store.hpp>
#include <idem/testing/manual_clock.hpp>

#include "support/catch.hpp"

namespace memory_details_test {

using namespace idem;
using namespace std::chrono_literals;
using idem::testing::ManualClock;

Owner owner_of(std::uint32_t number) {
    Owner owner;
    for (std::size_t i = 0; i < 4; ++i) owner.bytes[i] = static_cast<char>(number >> (8 * i));
    owner.bytes[15] = 1;
    return owner;
}

ClaimRequest claim_of(std::string_view id, std::uint32_t owner, Duration retention = 1h) {
    return {.key = {Component::call, "s", id, {}},
            .owner = owner_of(owner),
            .lease = 30s,
            .retention = retention,
            .held_retention = 1h};
}

FinishReply complete(MemoryStore& store, std::string_view id, std::uint32_t owner, Fence fence,
                     std::string_view result, Duration retention = 1h) {
    return finish_one(store, {.key = {Component::call, "s", id, {}},
                              .owner = owner_of(owner),
                              .fence = fence,
                              .kind = FinishKind::complete,
                              .retention = retention,
                              .held_retention = 1h,
                              .result_kind = ResultKind::value,
                              .result = result});
}

void put(MemoryStore& store, std::string_view id, Duration retention = 1h) {
    const auto claimed = claim_one(store, claim_of(id, 1, retention));
    REQUIRE(claimed.kind == ClaimKind::acquired);
    REQUIRE_FALSE(complete(store, id, 1, claimed.fence, "result", retention).lost);
}

TEST_CASE("memory: two keys of one hash are two keys, whichever part differs", "[memory]") {
    const std::vector<KeyView> keys = {
        {Component::call, "s", "i", "t"}, {Component::lease, "s", "i", "t"},
        {Component::call, "S", "i", "t"}, {Component::call, "s", "I", "t"},
        {Component::call, "s", "i", "T"}, {Component::call, "s", "it", ""}};
    memory::Table table;
    std::vector<memory::Block*> blocks;
    for (const KeyView& key : keys) {
        CHECK(table.find(7, key) == nullptr);
        const auto size = memory::encoded_size(key);
        blocks.push_back(memory::make_block(sizeof(memory::Block) + size, size));
        memory::write_key(key, blocks.back()->bytes());
        REQUIRE(table.insert({7, 0, blocks.back()}) != nullptr);
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
        const auto* slot = table.find(7, keys[i]);
        REQUIRE(slot != nullptr);
        CHECK(slot->block == blocks[i]);
    }
    for (auto* block : blocks) memory::free_block(block);
}

TEST_CASE("memory: a record stays until its very moment, in the middle of a second", "[memory]") {
    ManualClock clock;
    MemoryStore store({.clock = clock});
    put(store, "a", 10s + 500ms);
    for (const auto step : {Duration(10s), Duration(499'999us)}) {
        clock.advance(step);
        CHECK(store.purge(10).removed == 0);
        CHECK(claim_one(store, claim_of("a", 2)).kind == ClaimKind::completed);
    }
    clock.advance(1us);
    CHECK(store.purge(10).removed == 1);
}

TEST_CASE("memory: between any two pages of a listing tables may grow and shrink", "[memory]") {
    ManualClock clock;
    MemoryStore store({.clock = clock});
    constexpr int kept = 500;
    for (int i = 0; i < kept; ++i) put(store, "keep" + std::to_string(i), 24h);
    std::map<std::string, int> seen;
    ListQuery query{.state = State::succeeded, .limit = 7};
    int added = 0;
    do {
        const auto page = store.list(query);
        for (const auto& record : page.records) ++seen[record.key.id];
        query.cursor = page.next;
        for (int i = 0; i < 100; ++i)
            (void)claim_one(store, claim_of("new" + std::to_string(added++), 1, 1s));
        if (added % 3000 != 0) continue;
        clock.advance(1min);
        (void)store.purge(10'000);
    } while (!query.cursor.empty());
    CHECK(seen.size() == kept);
    for (const auto& [id, times] : seen) {
        INFO(id);
        CHECK(times == 1);
    }
}

TEST_CASE("memory: find beside a writer sees whole records", "[memory]") {
    MemoryStore store;
    const std::string even(90'000, 'e');  // large: reading it takes a while
    const std::string odd(200'000, 'o');
    std::jthread writer([&](const std::stop_token& stop) {
        for (std::uint32_t round = 2; !stop.stop_requested(); ++round) {
            const auto claimed = claim_one(store, claim_of("a", round));
            (void)complete(store, "a", round, claimed.fence, round % 2 == 0 ? even : odd);
            (void)forget_one(store, {.key = {Component::call, "s", "a", {}}, .lease = 1min});
        }
    });
    const KeyView key(Component::call, "s", "a", {});
    int whole = 0;
    int torn = 0;
    while (whole < 3000 && torn == 0) {
        const auto found = find_one(store, key).record;
        if (!found || found->header.state != State::succeeded) continue;
        const auto& result = found->payload.result;
        ++(result == even || result == odd ? whole : torn);
    }
    writer.request_stop();
    writer.join();
    CHECK(torn == 0);
}

TEST_CASE("memory: a clock of the user's is read for each step, not for each call", "[memory]") {
    ManualClock clock;
    MemoryStore store({.clock = [clock] {
        clock.advance(1s);  // time goes on between the items of a batch
        return clock.now();
    }});
    const std::vector<ClaimRequest> claims = {claim_of("a", 1), claim_of("b", 2)};
    std::vector<ClaimReply> replies(claims.size());
    store.claim(claims, replies);
    CHECK(replies[1].started > replies[0].started);
}

}  // namespace memory_details_test
