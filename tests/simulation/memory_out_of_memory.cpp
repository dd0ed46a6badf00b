// The in-memory store when the allocator says no: at the first request, then at the second, and so
// on until a whole history gets through. What was refused can be asked again; nothing is lost.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <set>
#include <string>

#include <idem/memory/store.hpp>
#include <idem/testing/manual_clock.hpp>

#include "support/catch.hpp"

namespace {

thread_local std::int64_t allocations_left = -1;  // negative: all are granted
thread_local bool refused = false;

}  // namespace

// The store asks for its blocks and tables in this way; replies, and Catch, do not.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
    if (allocations_left == 0) {
        allocations_left = -1;
        refused = true;
        return nullptr;
    }
    if (allocations_left > 0) --allocations_left;
    try {
        return ::operator new(size);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

namespace {

using namespace idem;
using namespace std::chrono_literals;

Owner owner_of(int number) {
    Owner owner;
    owner.bytes[0] = static_cast<char>(number);
    owner.bytes[15] = 1;
    return owner;
}

/// Asks again where there was no memory; a refusal leaves the key as it was.
template <class Ask>
auto insist(MemoryStore& store, const KeyView& key, Ask ask) {
    const auto before = find_one(store, key).record;
    auto reply = ask();
    if (!reply.trouble) return reply;
    CHECK(reply.trouble.kind == Trouble::Kind::unavailable);
    CHECK_FALSE(reply.trouble.may_have_applied);
    const auto after = find_one(store, key).record;
    REQUIRE(before.has_value() == after.has_value());
    if (before) {
        CHECK(before->header == after->header);
        CHECK(before->payload == after->payload);
    }
    reply = ask();
    REQUIRE_FALSE(reply.trouble);
    return reply;
}

/// One key through all that a record can meet. Finish, renew and forget must not fail at all.
void history(MemoryStore& store, int number) {
    const std::string id = "key" + std::to_string(number);
    const KeyView key(Component::call, "test", id, {});
    const std::string large(700, 'x');
    const auto finish = [&](Owner owner, Fence fence, FinishKind kind) {
        FinishRequest request{.key = key,
                              .owner = owner,
                              .fence = fence,
                              .kind = kind,
                              .lease = 30s,
                              .retention = 1h,
                              .held_retention = 1h};
        request.failure_message = large;
        if (kind == FinishKind::complete) {
            request.result_kind = ResultKind::value;
            request.codec = {3, 4};
            request.result = large;
        }
        const auto reply = finish_one(store, request);
        CHECK_FALSE(reply.trouble);
        CHECK_FALSE(reply.lost);
    };
    ClaimRequest claim{.key = key,
                       .fingerprint = Fingerprint::of_bytes(id),
                       .owner = owner_of(1),
                       .lease = 30s,
                       .retention = 1h,
                       .held_retention = 1h};
    auto claimed = insist(store, key, [&] { return claim_one(store, claim); });
    REQUIRE(claimed.kind == ClaimKind::acquired);
    const auto renewed = renew_one(store, {.key = key,
                                           .owner = claim.owner,
                                           .fence = claimed.fence,
                                           .lease = 1min,
                                           .checkpoint = large});
    CHECK_FALSE(renewed.trouble);
    CHECK_FALSE(renewed.lost);
    finish(claim.owner, claimed.fence, FinishKind::release);
    CHECK(find_one(store, key).record->header.state == State::released);

    claim.owner = owner_of(2);
    claimed = insist(store, key, [&] { return claim_one(store, claim); });
    REQUIRE(claimed.kind == ClaimKind::acquired);
    CHECK(claimed.attempt == 2);
    finish(claim.owner, claimed.fence, FinishKind::quarantine);
    const auto resolved = insist(store, key, [&] {
        return resolve_one(store, {.key = key, .seen_fence = claimed.fence, .retention = 1h});
    });
    CHECK(resolved.resolved);

    claim.owner = owner_of(3);
    claimed = insist(store, key, [&] { return claim_one(store, claim); });
    REQUIRE(claimed.kind == ClaimKind::acquired);
    finish(claim.owner, claimed.fence, FinishKind::complete);
    claim.owner = owner_of(4);
    const auto repeat = claim_one(store, claim);
    CHECK(repeat.kind == ClaimKind::completed);
    const bool kept = repeat.result_kind == ResultKind::value;
    CHECK((kept || repeat.result_kind == ResultKind::no_room));
    CHECK(repeat.result == (kept ? large : std::string()));
    CHECK((kept || refused));

    if (number % 2 == 0) {
        CHECK(forget_one(store, {.key = key, .lease = 30s}).existed);
        claim.owner = owner_of(5);
        claimed = insist(store, key, [&] { return claim_one(store, claim); });
        CHECK(claimed.kind == ClaimKind::acquired);
        CHECK(claimed.fence > repeat.fence);
    }
}

TEST_CASE("memory: whichever allocation fails, nothing is lost and all can be asked again",
          "[memory]") {
    constexpr int keys = 200;  // some shards' tables begin, and grow
    int sweeps = 0;
    do {
        refused = false;
        testing::ManualClock clock;
        MemoryStore store({.clock = clock});
        allocations_left = sweeps;
        for (int i = 0; i < keys; ++i) {
            clock.advance(1ms);
            history(store, i);
        }
        allocations_left = -1;
        std::set<std::string> listed;
        const auto page = store.list({.limit = 1000});
        for (const auto& record : page.records) listed.insert(record.key.id);
        CHECK(page.records.size() == keys);
        CHECK(listed.size() == keys);
        clock.advance(24h);
        CHECK(store.purge(1000).removed == keys);
        CHECK(store.usage().bytes == 0);
        ++sweeps;
    } while (refused);
    CHECK(sweeps > keys * 4);
}

}  // namespace
