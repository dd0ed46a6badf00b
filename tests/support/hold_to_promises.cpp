// The conformance kit, compiled once for every program of tests.

#include "support/hold_to_promises.hpp"
