#ifndef IDEM_TESTS_SUPPORT_EXPECT_HPP
#define IDEM_TESTS_SUPPORT_EXPECT_HPP

#include <atomic>

namespace idem_test {

/// Catch2 takes assertions from one thread only: the others note here what was not as it must be.
class Expect {
public:
    void operator()(bool right) {
        if (!right) ++failed_;
    }
    [[nodiscard]] int failed() const { return failed_; }

private:
    std::atomic<int> failed_{0};
};

}  // namespace idem_test

#endif
