#ifndef IDEM_TESTS_SUPPORT_HELD_TO_PROMISES_HPP
#define IDEM_TESTS_SUPPORT_HELD_TO_PROMISES_HPP

#include <iostream>
#include <sstream>
#include <string>
#include <utility>

#include <idem/testing/conformance.hpp>

#include "support/catch.hpp"

namespace idem_test {

/// Asks a store for every promise, prints what came of it and the seed, and checks that all were
/// kept.
template <class Factory>
void held_to_promises(const std::string& what, Factory&& factory,
                      const idem::testing::conformance::Options& options) {
    const auto report =
        idem::testing::conformance::run(std::forward<Factory>(factory), options);
    std::ostringstream text;
    text << what << ", ";
    report.print(text);
    std::cout << text.str();
    INFO(text.str());
    CHECK(report.ok());
}

}  // namespace idem_test

#endif
