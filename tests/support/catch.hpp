#ifndef IDEM_TESTS_SUPPORT_CATCH_HPP
#define IDEM_TESTS_SUPPORT_CATCH_HPP

// The only file that knows which Catch2 this is: 2.13 is one header, 3 is a library.

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

#endif
