// A reaper on the embedded store, and over stores of stores.

#include <chrono>
#include <string>

#include <idem/memory/store.hpp>
#include <idem/reaper.hpp>
#include <idem/testing/faulty_store.hpp>

#include "support/catch.hpp"
#include "support/layered_world.hpp"
#include "support/reaper_promises.hpp"

namespace reaper_test {

using namespace idem_test;
using namespace std::chrono_literals;

TEST_CASE("memory: a reaper keeps its promises", "[reaper]") {
    MemoryWorld world;
    reapers_keep_their_promises(world);
}

TEMPLATE_TEST_CASE("a reaper keeps its promises over a store of stores", "[reaper]",
                   EncryptedWorld<CombiningWorld<MemoryWorld>>, CachedWorld<MemoryWorld>,
                   TieredWorld<MemoryWorld>) {
    TestType world;
    only_what_has_lapsed_is_reaped(world);
    each_is_settled_by_its_policy(world);
}

TEST_CASE("a reaper says when its store cannot be asked, and options that cannot be right",
          "[reaper]") {
    idem::testing::FaultyStore store{idem::MemoryStore()};
    idem::Reaper reaper(store, "s");
    store.fail_call(1, idem::testing::Fault::refused);
    CHECK_THROWS_AS(reaper.pass(), idem::UnavailableError);
    CHECK(reaper.pass().released == 0);
    const auto refused = [&](auto change) {
        idem::ReaperOptions options;
        change(options);
        try {
            const idem::Reaper one(idem::MemoryStore(), "s", options);
        } catch (const idem::UsageError& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    CHECK(refused([](auto& o) { o.patience_min = 0s; }).find("ReaperOptions::patience_min") == 0);
    CHECK(refused([](auto& o) { o.retention = -1s; }).find("ReaperOptions::retention") == 0);
    CHECK_THROWS_AS(idem::Reaper(idem::MemoryStore(), ""), idem::UsageError);
}

}  // namespace reaper_test
