#ifndef IDEM_POSTGRES_PURGING_HPP
#define IDEM_POSTGRES_PURGING_HPP

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <idem/operation.hpp>
#include <idem/postgres/rows.hpp>
#include <idem/postgres/state.hpp>

namespace idem::inline v0_1::postgres {

/// What is taken before its retention ends; without an age only what is past it.
struct Filter {
    std::optional<Duration> age{};
    std::optional<Component> component{};
    std::optional<std::string> scope{};
    std::optional<std::string> tenant{};

    void add_to(Params& params) const {
        params.add(Type::letter,
                   component ? Value::letter(static_cast<char>(*component)) : Value::null());
        params.add(Type::text, scope ? Value::bytes(escape(*scope)) : Value::null());
        params.add(Type::text, tenant ? Value::bytes(escape(*tenant)) : Value::null());
    }
};

/// Removes in transactions of bounded size, leaving out what somebody holds, until the limit or the
/// time allowed is reached. Goes on where the last call on this block ended.
[[nodiscard]] inline PurgeReply purge(State& state, std::size_t limit, const Filter& filter,
                                      std::atomic<std::int64_t>& block) {
    constexpr std::size_t rows_max = 1000;
    PurgeReply reply;
    const LocalInstant deadline = LocalClock::now() + state.options().time_allowed;
    const bool from_start = block.load() == 0;
    reply.more = true;
    while (reply.removed < limit && LocalClock::now() < deadline) {
        const auto rows = std::min(rows_max, limit - reply.removed);
        Params p;
        p.add(Type::int8, Value::number(block.load()));
        p.add(Type::int4, Value::number(static_cast<std::int32_t>(rows)));
        p.add(Type::int8,
              filter.age ? Value::number(std::int64_t{filter.age->count()}) : Value::null());
        filter.add_to(p);
        const auto answer = state.ask(state.purge(), p, false);
        if (answer.fault) {
            reply.trouble = trouble_of(*answer.fault);
            return reply;
        }
        reply.removed +=
            static_cast<std::size_t>(answer.result.number<std::int64_t>(0, 0).value_or(0));
        const auto next = answer.result.number<std::int64_t>(0, 1);
        block.store(next.value_or(0));
        if (next) continue;
        reply.more = !from_start;  // what lies before the place where this call began
        return reply;
    }
    return reply;
}

}  // namespace idem::inline v0_1::postgres

#endif
