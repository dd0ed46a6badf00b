// An inbox on the embedded store, and what it refuses.

#include <chrono>
#include <string>

#include <idem/inbox.hpp>
#include <idem/memory/store.hpp>

#include "support/catch.hpp"
#include "support/inbox_promises.hpp"
#include "support/layered_world.hpp"
#include "support/spy_store.hpp"

namespace inbox_test {

using namespace idem_test;
using namespace std::chrono_literals;

TEST_CASE("memory: an inbox keeps its promises", "[inbox]") {
    MemoryWorld world;
    inboxes_keep_their_promises(world);
}

TEMPLATE_TEST_CASE("an inbox keeps its promises over a store of stores", "[inbox]",
                   EncryptedWorld<CombiningWorld<MemoryWorld>>, CachedWorld<MemoryWorld>,
                   TieredWorld<MemoryWorld>) {
    TestType world;
    messages_are_handled_once(world);
    failures_are_tried_again_and_then_set_aside(world);
    what_cannot_work_is_a_dead_letter(world);
}

TEST_CASE("an inbox made without options works", "[inbox]") {
    idem::MemoryStore store;
    idem::Inbox inbox(store);
    CHECK(inbox.consume({"1", "b"}, [] {}).action == idem::InboxAction::ack);
}

TEST_CASE("R43 a lease that outlasts the broker's patience is refused, and the options are named",
          "[inbox][field]") {
    const auto refused = [](auto change) {
        idem::InboxOptions options;
        change(options);
        try {
            const idem::Inbox inbox(idem::MemoryStore(), options);
        } catch (const idem::UsageError& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    const auto fit = [&](idem::Duration lease, idem::Duration redelivery) {
        return refused([&](idem::InboxOptions& o) {
            o.lease = lease;
            o.redelivery = redelivery;
        });
    };
    CHECK(fit(30s, 31s).empty());
    CHECK(fit(30s, 0s).empty());
    for (const idem::Duration redelivery : {idem::Duration(30s), idem::Duration(10s)}) {
        CHECK(fit(30s, redelivery).find("InboxOptions::lease") != std::string::npos);
        CHECK(fit(30s, redelivery).find("InboxOptions::redelivery") != std::string::npos);
    }
    // Three requests at their slowest would not fit into a lease.
    CHECK_THROWS_WITH(idem::Inbox(SpyStore({}, 11s)), Catch::StartsWith("InboxOptions::lease"));
    CHECK(refused([](auto& o) { o.group = ""; }).find("scope") != std::string::npos);
    CHECK(refused([](auto& o) { o.retry.factor = 0.5; }).find("RetryPolicy::factor") !=
          std::string::npos);
    CHECK(refused([](auto& o) { o.lease = 0s; }).find("InboxOptions::lease") != std::string::npos);
}

}  // namespace inbox_test
