#ifndef IDEM_IDEM_HPP
#define IDEM_IDEM_HPP

// The layer map, lowest first. A header may include only headers listed above it, and detail/.
// tests/tidy.cpp holds every header to this.

// clang-format off
// words
#include <idem/version.hpp>
#include <idem/fwd.hpp>
#include <idem/error.hpp>
#include <idem/key.hpp>
#include <idem/fingerprint.hpp>
#include <idem/failure.hpp>
#include <idem/clock.hpp>
#include <idem/record.hpp>
#include <idem/codec.hpp>
#include <idem/operation.hpp>
#include <idem/outcome.hpp>
// seeing
#include <idem/events.hpp>
#include <idem/options.hpp>
// rules
#include <idem/rules.hpp>
#include <idem/protocol.hpp>
#include <idem/http/response.hpp>
#include <idem/http/status.hpp>
#include <idem/http/problem.hpp>
#include <idem/http/key.hpp>
#include <idem/http/respond.hpp>
#include <idem/http/respond_error.hpp>
#include <idem/http/status_document.hpp>
#include <idem/http.hpp>
// port
#include <idem/store.hpp>
// clang-format on

#endif
