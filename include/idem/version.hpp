#ifndef IDEM_VERSION_HPP
#define IDEM_VERSION_HPP

/// The one place the version lives; CMake reads it from here.
/// The inline namespace `v0_1` moves with every change of layout or meaning, so that two versions
/// of this library can meet in one binary without sharing a symbol.
#define IDEM_VERSION_MAJOR 0
#define IDEM_VERSION_MINOR 1
#define IDEM_VERSION_PATCH 0

#endif
