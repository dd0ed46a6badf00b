#ifndef IDEM_REDIS_HPP
#define IDEM_REDIS_HPP

// The layer map of the Redis backend, lowest first; it goes on from idem.hpp. The first paragraph
// is the wire: it knows neither records nor guards. Needs idem::redis (hiredis).

// clang-format off
#include <idem/redis/fault.hpp>
#include <idem/redis/encryption.hpp>
#include <idem/redis/address.hpp>
#include <idem/redis/socket.hpp>
// needs idem::redis_tls (libssl):
// #include <idem/redis/tls.hpp>
#include <idem/redis/connection.hpp>
#include <idem/redis/pool.hpp>
#include <idem/redis/topology.hpp>
#include <idem/redis/subscriber.hpp>

#include <idem/redis/options.hpp>
#include <idem/redis/layout.hpp>
#include <idem/redis/script_common.hpp>
#include <idem/redis/script_claim.hpp>
#include <idem/redis/script_finish.hpp>
#include <idem/redis/script_settle.hpp>
#include <idem/redis/script.hpp>
#include <idem/redis/requests.hpp>
#include <idem/redis/listing.hpp>
#include <idem/redis/state.hpp>
#include <idem/redis/store.hpp>
#include <idem/redis/front.hpp>
#include <idem/redis/open.hpp>
// clang-format on

#endif
