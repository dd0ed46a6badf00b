#ifndef IDEM_POSTGRES_HPP
#define IDEM_POSTGRES_HPP

// The layer map of the PostgreSQL backend, lowest first; it goes on from idem.hpp. The first
// paragraph is the wire: it knows neither records nor guards. Needs idem::postgres (libpq).

// clang-format off
#include <idem/postgres/fault.hpp>
#include <idem/postgres/params.hpp>
#include <idem/postgres/place.hpp>
#include <idem/postgres/connection.hpp>
#include <idem/postgres/pool.hpp>
#include <idem/postgres/notices.hpp>

#include <idem/postgres/options.hpp>
#include <idem/postgres/sql.hpp>
#include <idem/postgres/sql_claim.hpp>
#include <idem/postgres/sql_finish.hpp>
#include <idem/postgres/sql_settle.hpp>
#include <idem/postgres/sql_table.hpp>
#include <idem/postgres/schema.hpp>
#include <idem/postgres/requests.hpp>
#include <idem/postgres/rows.hpp>
#include <idem/postgres/state.hpp>
#include <idem/postgres/purging.hpp>
#include <idem/postgres/store.hpp>
#include <idem/postgres/audit.hpp>
#include <idem/postgres/open.hpp>
#include <idem/postgres/guarded_transaction.hpp>
#include <idem/postgres/transaction.hpp>
#include <idem/postgres/task_table.hpp>
// clang-format on

#endif
