// A table of processed ids that an audit can count and clear, by age.

#include <chrono>
#include <string>
#include <vector>

#include <idem/guard.hpp>

#include "support/catch.hpp"
#include "support/postgres_user.hpp"
#include "support/postgres_world.hpp"

namespace postgres_audit_test {

using namespace std::chrono_literals;
using idem_test::PostgresBench;
using idem_test::shared_server;
using idem_test::UserConnection;

constexpr auto day = 24h;

PostgresBench make_bench() {
    return PostgresBench(shared_server().conninfo(), shared_server().conninfo());
}
idem::GuardOptions kept_for_years() {
    return {.lease = 1h, .retention = idem::duration_max, .held_retention = idem::duration_max};
}

TEST_CASE("B4: processed ids are counted and dated, by scope, tenant, state and age",
          "[integration][postgres][audit]") {
    auto bench = make_bench();
    idem::PostgresAudit audit(bench.store());
    CHECK(audit.count().records == 0);
    CHECK(audit.count().oldest == idem::Duration::zero());
    idem::IdempotencyGuard messages(bench.store(), kept_for_years(), idem::Component::message);
    idem::IdempotencyGuard calls(bench.store(), kept_for_years());
    for (int i = 0; i < 4; ++i) {
        const std::string id = std::to_string(i);
        CHECK(messages.run({"orders", id, i % 2 == 0 ? "a" : "b"}, {}, [] {}).executed());
        bench.advance(10 * day);
    }
    CHECK(calls.run({"caf\xC3\xA9", "x"}, {}, [] {}).executed());
    auto held = std::get<idem::Claim<int>>(calls.claim<int>({"orders", "held"}, {}));
    std::move(held).quarantine();
    const auto all = audit.count();
    CHECK(all.records == 6);
    CHECK(all.oldest == 40 * day);
    CHECK(all.newest == idem::Duration::zero());
    CHECK(audit.count({.component = idem::Component::message}).records == 4);
    CHECK(audit.count({.scope = "orders"}).records == 5);
    CHECK(audit.count({.scope = "caf\xC3\xA9"}).records == 1);
    CHECK(audit.count({.tenant = "a"}).records == 2);
    CHECK(audit.count({.state = idem::State::unknown}).records == 1);
    const auto old = audit.count({.scope = "orders", .older_than = 20 * day});
    CHECK(old.records == 3);
    CHECK(old.newest == 20 * day);
    CHECK(audit.count({.scope = "nobody's"}).records == 0);
}

TEST_CASE("B4: a purge by age takes what is finished for so long, and nothing else",
          "[integration][postgres][audit]") {
    auto bench = make_bench();
    idem::PostgresAudit audit(bench.store());
    auto options = kept_for_years();
    options.lease = 100 * day;
    idem::IdempotencyGuard guard(bench.store(), options);
    for (int i = 0; i < 30; ++i)
        CHECK(guard.run({i < 20 ? "old" : "else", std::to_string(i), "t"}, {}, [] {}).executed());
    CHECK_THROWS_AS(
        guard.run({"old", "failed"}, {}, []() -> int { throw idem::FinalError("f", "never"); }),
        idem::FinalError);
    auto running = std::get<idem::Claim<int>>(guard.claim<int>({"old", "running"}, {}));
    std::move(std::get<idem::Claim<int>>(guard.claim<int>({"old", "held"}, {}))).quarantine();
    std::move(std::get<idem::Claim<int>>(guard.claim<int>({"old", "released"}, {}))).release();
    bench.advance(50 * day);
    CHECK(guard.run({"old", "young"}, {}, [] {}).executed());

    const idem::AuditQuery old{.scope = "old", .older_than = 50 * day};
    CHECK(audit.purge({.older_than = 51 * day}, 1000).removed == 0);
    CHECK(audit.purge({.tenant = "nobody", .older_than = 1 * day}, 1000).removed == 0);
    const auto first = audit.purge(old, 15);
    CHECK(first.removed == 15);
    CHECK(first.more);
    std::size_t rest = 0;
    for (bool more = true; more;) {
        const auto reply = audit.purge(old, 15);
        REQUIRE_FALSE(reply.trouble);
        rest += reply.removed;
        more = reply.more;
    }
    CHECK(rest == 6);
    CHECK(audit.count({.scope = "old"}).records == 4);  // running, held, released, young
    CHECK(audit.count({.scope = "else"}).records == 10);
    CHECK(std::move(running).complete(1).recorded());
    CHECK(guard.run({"old", "1", "t"}, {}, [] {}).executed());  // what is gone runs again
    CHECK(guard.run({"else", "25", "t"}, {}, [] {}).replayed());
    CHECK_THROWS_AS(audit.purge({}, 10), idem::UsageError);
    CHECK_THROWS_AS(audit.purge({.state = idem::State::failed, .older_than = day}, 10),
                    idem::UsageError);
    bench.sql()("DROP TABLE " + bench.table() + " CASCADE");
    CHECK_THROWS_AS(audit.count(), idem::SchemaError);
}

TEST_CASE("B4: ids written in the caller's own transaction stay for the years they are kept",
          "[integration][postgres][audit]") {
    auto bench = make_bench();
    const UserConnection user(shared_server().conninfo());
    idem::TransactionOptions options;
    options.schema = bench.schema();
    options.retention = idem::duration_max;
    options.component = idem::Component::message;
    const auto first_seen = [&](const std::string& id) {
        return idem::transact(user.get(), {"events", id}, {}, options, [] {}).executed();
    };
    CHECK(user("BEGIN") == "");
    CHECK(first_seen("1"));
    CHECK(first_seen("2"));
    CHECK_FALSE(first_seen("1"));
    CHECK(user("COMMIT") == "");
    bench.advance(9 * 365 * day);
    CHECK_FALSE(bench.store().purge(100).removed > 0);
    CHECK_FALSE(first_seen("2"));
    CHECK(idem::PostgresAudit(bench.store()).count().oldest == 9 * 365 * day);
    options.retention = idem::duration_max + idem::Duration{1};
    CHECK_THROWS_AS(first_seen("3"), idem::UsageError);
}

}  // namespace postgres_audit_test
