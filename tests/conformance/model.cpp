// The reference model keeps every promise, and the kit notices a store that breaks one.

#include <iostream>
#include <sstream>
#include <string_view>

#include <idem/testing/conformance.hpp>
#include <idem/testing/manual_clock.hpp>
#include <idem/testing/model_store.hpp>

#include "support/catch.hpp"

namespace {

namespace conformance = idem::testing::conformance;
using idem::testing::ManualClock;
using idem::testing::ModelStore;

struct ModelWorld {
    ManualClock clock{};
    ModelStore made{clock};

    ModelStore& store() { return made; }
    void advance(idem::Duration by) { clock.advance(by); }
    idem::Instant now() { return clock.now(); }
    void put_raw(const idem::KeyView& key, std::string_view bytes) { made.put_raw(key, bytes); }
};

}  // namespace

TEST_CASE("conformance: the model keeps every promise", "[conformance]") {
    const auto report = conformance::run([] { return ModelWorld{}; });
    std::ostringstream text;
    report.print(text);
    INFO(text.str());
    CHECK(report.ok());
    std::cout << text.str();
}
