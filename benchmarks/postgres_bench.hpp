#ifndef IDEM_BENCHMARKS_POSTGRES_BENCH_HPP
#define IDEM_BENCHMARKS_POSTGRES_BENCH_HPP

#include <cstdint>
#include <string>

#include "harness.hpp"

namespace bench {

struct PostgresSettings {
    std::string conninfo{};           ///< Of a server that may be filled with rows.
    std::uint64_t operations = 2000;  ///< Per round and subject.
    int connections = 16;
    int rounds = 5;
};

/// P11 to P13 beside bare libpq, in one interleaved run. In a schema of its own, dropped at the
/// end.
void postgres(const PostgresSettings& settings, Report& report);

}  // namespace bench

#endif
