#ifndef IDEM_IDEM_HPP
#define IDEM_IDEM_HPP

// The layer map, lowest first. A header may include only headers listed above it, and detail/.
// tests/tidy.cpp holds every header to this.

// clang-format off
#include <idem/version.hpp>
// clang-format on

#endif
