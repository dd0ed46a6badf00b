#ifndef IDEM_TESTS_ODR_EXERCISE_HPP
#define IDEM_TESTS_ODR_EXERCISE_HPP

#include <idem/idem.hpp>

// One use of the library that reaches its inline state. `static`, so that each program and shared
// object runs its own copy and not the first one the loader met.
[[nodiscard]] static inline bool exercise() {
    return IDEM_VERSION_MAJOR == 0;
}

#endif
