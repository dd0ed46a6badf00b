#ifndef IDEM_TESTS_SUPPORT_HELD_TO_PROMISES_HPP
#define IDEM_TESTS_SUPPORT_HELD_TO_PROMISES_HPP

#include <functional>
#include <string>
#include <utility>

#include <idem/testing/conformance.hpp>

#include "support/any_world.hpp"
#ifndef IDEM_TESTS_KIT_APART
#include "support/hold_to_promises.hpp"
#endif

namespace idem_test {

/// Asks a store for every promise, prints what came of it and the seed, and checks that all were
/// kept.
void hold_to_promises(const std::string& what, const std::function<AnyWorld()>& factory,
                      const idem::testing::conformance::Options& options);

/// The same for a factory of any kind of world.
template <class Factory>
void held_to_promises(const std::string& what, Factory&& factory,
                      const idem::testing::conformance::Options& options) {
    hold_to_promises(
        what, [&] { return AnyWorld::made_by(factory); }, options);
}

}  // namespace idem_test

#endif
