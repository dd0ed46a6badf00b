#ifndef IDEM_TESTS_SUPPORT_HOLD_TO_PROMISES_HPP
#define IDEM_TESTS_SUPPORT_HOLD_TO_PROMISES_HPP

#include <functional>
#include <iostream>
#include <sstream>
#include <string>

#include <idem/testing/conformance.hpp>

#include "support/any_world.hpp"
#include "support/catch.hpp"

// The kit takes long to compile: the build does so once for all programs (IDEM_TESTS_KIT_APART), in
// hold_to_promises.cpp. Who compiles a single test gets it from here.
#ifdef IDEM_TESTS_KIT_APART
#define IDEM_TESTS_INLINE
#else
#define IDEM_TESTS_INLINE inline
#endif

namespace idem_test {

IDEM_TESTS_INLINE void hold_to_promises(const std::string& what,
                                        const std::function<AnyWorld()>& factory,
                                        const idem::testing::conformance::Options& options) {
    const auto report = idem::testing::conformance::run(factory, options);
    std::ostringstream text;
    text << what << ", ";
    report.print(text);
    std::cout << text.str();
    INFO(text.str());
    CHECK(report.ok());
}

}  // namespace idem_test

#endif
