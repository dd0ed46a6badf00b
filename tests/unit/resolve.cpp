// Names are looked up in bounded time, in a forked child too.

#include <chrono>
#include <string>

#include <idem/detail/resolve.hpp>

#include "support/catch.hpp"
#include "support/child.hpp"

namespace resolve_test {

using idem::detail::resolve;

idem::LocalInstant soon() {
    return idem::LocalClock::now() + std::chrono::seconds{30};
}

TEST_CASE("an address stands for itself", "[resolve]") {
    CHECK(resolve("127.0.0.1", soon()).addresses == std::vector<std::string>{"127.0.0.1"});
    CHECK(resolve("::1", soon()).addresses == std::vector<std::string>{"::1"});
}

TEST_CASE("a name that nobody has says so", "[resolve]") {
    const auto found = resolve("no-such-host.invalid", soon());
    CHECK(found.addresses.empty());
    CHECK_FALSE(found.error.empty());
}

TEST_CASE("a child that is forked right after a look-up can look up too", "[resolve][fork]") {
    for (int i = 0; i < 5; ++i) {
        (void)resolve("localhost", soon());
        CHECK(idem_test::in_child([] {
                  const auto deadline = idem::LocalClock::now() + std::chrono::seconds{20};
                  (void)resolve("localhost", deadline);
                  return idem::LocalClock::now() < deadline;
              }) == "");
    }
}

}  // namespace resolve_test
