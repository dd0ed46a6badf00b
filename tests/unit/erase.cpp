// Everything that a query matches is forgotten, however many pages that takes and whatever goes
// wrong on the way.

#include <span>
#include <string>

#include <idem/erase.hpp>
#include <idem/memory/store.hpp>
#include <idem/testing/faulty_store.hpp>

#include "support/catch.hpp"
#include "support/requests.hpp"

namespace erase_test {

using idem::erase;
using idem::testing::Fault;
using idem::testing::StoreCall;
using idem_test::claim_of;
using idem_test::owner_of;

/// So many running records of a tenant.
void fill(auto& store, const std::string& tenant, int count) {
    for (int i = 0; i < count; ++i) {
        const idem::Key key{"s", std::to_string(i), tenant};
        REQUIRE(idem::claim_one(store, claim_of(key, 1)).kind == idem::ClaimKind::acquired);
    }
}

/// How many records there are, by a listing in one page.
std::size_t count_of(auto& store, const std::string& tenant) {
    idem::ListQuery query;
    query.tenant = tenant;
    query.limit = 1'000'000;
    const auto page = store.list(query);
    REQUIRE_FALSE(page.trouble);
    REQUIRE(page.next.empty());
    return page.records.size();
}

idem::ListQuery of_tenant(const std::string& tenant, std::size_t page) {
    idem::ListQuery query;
    query.tenant = tenant;
    query.limit = page;
    return query;
}

TEST_CASE("erase: all of one tenant goes, over many pages, and nothing of another", "[erase]") {
    idem::MemoryStore store;
    fill(store, "leaver", 1'234);
    fill(store, "stayer", 300);
    const auto reply = erase(store, of_tenant("leaver", 100));
    CHECK(reply.complete);
    CHECK(reply.erased == 1'234);
    CHECK(reply.cursor == "");
    CHECK_FALSE(reply.trouble);
    CHECK(count_of(store, "leaver") == 0);
    CHECK(count_of(store, "stayer") == 300);
    const auto again = erase(store, of_tenant("leaver", 100));
    CHECK(again.complete);
    CHECK(again.erased == 0);
}

TEST_CASE("erase: a late holder is lost, and the next one has a higher fence", "[erase]") {
    idem::MemoryStore store;
    const idem::Key key{"s", "k", "t"};
    const auto held = idem::claim_one(store, claim_of(key, 1));
    CHECK(erase(store, of_tenant("t", 10)).erased == 1);
    const auto late = idem_test::complete_of(key, owner_of(1), held.fence, "late");
    const auto finished = idem::finish_one(store, late);
    CHECK(finished.lost);
    CHECK(finished.reason == idem::LostReason::forgotten);
    const auto next = idem::claim_one(store, claim_of(key, 2));
    CHECK(next.kind == idem::ClaimKind::acquired);
    CHECK(next.fence > held.fence);
}

TEST_CASE("erase: trouble on the way is told, and it goes on from there", "[erase]") {
    for (const auto call : {StoreCall::list, StoreCall::forget}) {
        for (const auto fault : {Fault::refused, Fault::reply_lost}) {
            INFO(static_cast<int>(call) << ' ' << static_cast<int>(fault));
            idem::MemoryStore memory;
            idem::testing::FaultyStore store(memory);
            fill(store, "t", 250);
            store.fail_call(2, fault, call);
            auto query = of_tenant("t", 100);
            const auto first = erase(store, query);
            CHECK_FALSE(first.complete);
            CHECK(first.trouble.kind == idem::Trouble::Kind::unavailable);
            CHECK(first.erased == 100);
            query.cursor = first.cursor;
            const auto second = erase(store, query);
            CHECK(second.complete);
            CHECK(count_of(memory, "t") == 0);
        }
    }
}

/// One of its records is locked by somebody.
struct Locked : idem::MemoryStore {
    std::string id = "7";
    void forget(std::span<const idem::ForgetRequest> requests,
                std::span<idem::ForgetReply> replies) {
        for (std::size_t i = 0; i < requests.size(); ++i) {
            if (requests[i].key.id == id)
                replies[i].trouble = idem::Trouble::unavailable("locked", false);
            else
                idem::MemoryStore::forget(requests.subspan(i, 1), replies.subspan(i, 1));
        }
    }
};

TEST_CASE("erase: one record that is locked does not keep the rest", "[erase]") {
    Locked store;
    fill(store, "t", 250);
    auto query = of_tenant("t", 20);
    const auto first = erase(store, query);
    CHECK_FALSE(first.complete);
    CHECK(first.trouble.message == "locked");
    CHECK(first.erased == 249);
    CHECK(count_of(store, "t") == 1);
    store.id.clear();
    query.cursor = first.cursor;
    CHECK(erase(store, query).erased == 1);
    CHECK(count_of(store, "t") == 0);
}

/// The first page holds a record that cannot be read.
struct Damaged : idem::MemoryStore {
    idem::ListPage list(const idem::ListQuery& query) {
        auto page = idem::MemoryStore::list(query);
        if (query.cursor.empty()) page.trouble = idem::Trouble::schema("garbage");
        return page;
    }
};

TEST_CASE("erase: a record that cannot be read is no success, and the rest goes", "[erase]") {
    Damaged store;
    fill(store, "t", 250);
    const auto reply = erase(store, of_tenant("t", 100));
    CHECK_FALSE(reply.complete);
    CHECK(reply.trouble.kind == idem::Trouble::Kind::schema);
    CHECK(reply.erased == 250);
}

}  // namespace erase_test
