#ifndef IDEM_POSTGRES_STATE_HPP
#define IDEM_POSTGRES_STATE_HPP

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include <idem/detail/deadline.hpp>
#include <idem/detail/look.hpp>
#include <idem/postgres/notices.hpp>
#include <idem/postgres/options.hpp>
#include <idem/postgres/pool.hpp>
#include <idem/postgres/schema.hpp>

namespace idem::inline v0_1::postgres {

/// What all copies of a `PostgresStore` share: connections, statements, and what they have learnt
/// about the way to the server. For any thread.
class State {
public:
    explicit State(PostgresOptions options)
        : options_((check(options), std::move(options))),
          names_(options_.schema, options_.table, options_.clock_sql),
          pool_({Conninfo(options_.conninfo)}, options_.connections, options_.connect_timeout),
          read_(statement(read_text(names_, Form::one))),
          read_batch_(statement(read_text(names_, Form::batch))),
          list_(statement(list_text(names_))),
          purge_(statement(purge_text(names_))),
          watch_(statement(watch_text(names_))),
          notices_(std::make_shared<Notices>(Conninfo(options_.conninfo), names_.channel(),
                                             options_.connect_timeout,
                                             options_.statement_timeout)) {
        for (const auto* operation : operations)
            for (const Form form : forms)
                for (const bool at_once : {false, true})
                    calls_.emplace(Call{operation, form, at_once},
                                   statement(at_once ? at_once_text(names_, *operation, form)
                                                     : call_text(names_, *operation, form)));
    }

    [[nodiscard]] const PostgresOptions& options() const noexcept { return options_; }
    [[nodiscard]] const Names& names() const noexcept { return names_; }
    [[nodiscard]] Pool& pool() noexcept { return pool_; }
    [[nodiscard]] const Statement& read(Form form) const noexcept {
        return form == Form::one ? read_ : read_batch_;
    }
    [[nodiscard]] idem::detail::LookFirst& look_first() noexcept { return look_first_; }
    [[nodiscard]] const Statement& list() const noexcept { return list_; }
    [[nodiscard]] const Statement& purge() const noexcept { return purge_; }
    /// Through a pooler nothing is kept, and to plan the longer statement costs more for a single
    /// item than it saves.
    [[nodiscard]] const Statement& call(const Operation& operation, Form form) const {
        const bool at_once = *operation.at_once != '\0' && form != Form::patient &&
                             (form == Form::batch || !unnamed_only_.load());
        return calls_.at({&operation, form, at_once});
    }

    /// Carries one statement out, with what the table of faults says about each error, until the
    /// time allowed is over. `repeatable`: the same again, after its answer was lost, answers as
    /// the first did; what is not is never sent twice where it may have been applied.
    [[nodiscard]] Answer ask(const Statement& statement, const Params& params, bool repeatable) {
        return ask(statement, params, repeatable, deadline());
    }
    [[nodiscard]] LocalInstant deadline() const noexcept {
        return LocalClock::now() + options_.time_allowed;
    }
    /// The same for a statement that needs its own time, each try all of it.
    [[nodiscard]] Answer ask(const Statement& statement, const Params& params, bool repeatable,
                             Duration time_allowed) {
        return ask(statement, params, repeatable, LocalClock::now() + time_allowed, time_allowed);
    }
    [[nodiscard]] Answer ask(const Statement& statement, const Params& params, bool repeatable,
                             LocalInstant deadline, std::optional<Duration> each_try = {}) {
        bool doubt = false;
        Answer answer;
        for (int tries = 0; tries < tries_max; ++tries) {
            if (tries > 0) idem::detail::pause_after(tries, deadline);
            answer =
                once(statement, params, deadline, each_try.value_or(options_.statement_timeout));
            answer.doubt = doubt;
            if (!answer.fault) return answer;
            Fault& fault = *answer.fault;
            learn(fault);
            doubt = doubt || fault.may_have_applied;
            fault.may_have_applied = doubt;
            const bool again = fault.cure == Cure::retry_here || fault.cure == Cure::reconnect;
            if (!again || (doubt && !repeatable) || LocalClock::now() >= deadline) break;
        }
        return answer;
    }

    /// Listens for the key of this digest, then marks its row, so that only what somebody waits
    /// for is told. Null where it cannot be.
    [[nodiscard]] std::shared_ptr<void> watch(const std::string& digest,
                                              std::function<void()> notice) {
        if (!options_.notices) return nullptr;
        const LocalInstant deadline = LocalClock::now() + options_.time_allowed;
        auto handle =
            Notices::watch(notices_, idem::detail::hex(digest), std::move(notice), deadline);
        if (!handle) return nullptr;
        Params params;
        params.add(Type::uuid, Value::bytes(digest));
        params.add(Type::text, Value::bytes(lock_wait()));
        return ask(watch_, params, true, deadline).fault ? nullptr : handle;
    }

    /// `lock_timeout` as the server's setting has it.
    [[nodiscard]] std::string lock_wait() const {
        const auto wait = std::chrono::ceil<std::chrono::milliseconds>(options_.lock_timeout);
        return std::to_string(wait.count());
    }

    /// One script on a connection of the pool, as `create_schema` needs it. Not repeated.
    [[nodiscard]] Answer run_script(const std::string& text) {
        const LocalInstant deadline = LocalClock::now() + options_.time_allowed;
        Answer answer;
        Fault fault;
        auto loan = pool_.borrow(deadline, fault);
        if (!loan) return {{}, fault};
        return (*loan)->script(text, deadline);
    }

    /// Looks at the table now, whatever was seen of it before.
    [[nodiscard]] std::optional<Fault> look() {
        const LocalInstant deadline = LocalClock::now() + options_.time_allowed;
        Fault fault;
        auto loan = pool_.borrow(deadline, fault);
        if (!loan) return fault;
        return look(**loan, deadline);
    }

    /// Where the next purge goes on, so that each looks at another part of the table.
    [[nodiscard]] std::atomic<std::int64_t>& purge_block() noexcept { return purge_block_; }

    /// The name is made of the text: 63 bits are plenty for the thirty statements of a table.
    [[nodiscard]] static Statement statement(std::string text) {
        return {"idem_" + detail::source_hash(text).substr(0, 16), std::move(text)};
    }

private:
    static constexpr int tries_max = 12;

    [[nodiscard]] Answer once(const Statement& statement, const Params& params,
                              LocalInstant deadline, Duration each_try) {
        if (LocalClock::now() >= deadline)
            return {{}, Fault::of(code::no_place, "the time allowed was over before it was sent")};
        Fault fault;
        auto loan = pool_.borrow(deadline, fault);
        if (!loan) return {{}, std::move(fault)};
        const LocalInstant limit = std::min(deadline, LocalClock::now() + each_try);
        if (!verified_.load()) {
            if (auto wrong = look(**loan, limit)) {
                wrong->may_have_applied = false;
                return {{}, std::move(wrong)};
            }
        }
        const bool keep = !unnamed_only_.load();
        Answer answer = read_committed_.load()
                            ? (*loan)->run_read_committed(statement, params, keep, limit)
                            : (*loan)->run(statement, params, keep, limit);
        // A server that only reads now says so on this connection for ever.
        if (answer.fault && answer.fault->cure == Cure::reconnect) (*loan)->discard();
        return answer;
    }

    [[nodiscard]] std::optional<Fault> look(Connection& connection, LocalInstant deadline) {
        auto seen = verify(connection, names_, deadline);
        // What is prepared through a pooler lies about in the sessions of others.
        if (seen.pooled) unnamed_only_.store(true);
        verified_.store(!seen.wrong);
        return std::move(seen.wrong);
    }

    void learn(const Fault& fault) noexcept {
        // A session whose default is stricter: from now on each request says what it needs.
        if (fault.is(code::serialization)) read_committed_.store(true);
        // A pooler hands each transaction to another server: nothing can be kept there.
        if (fault.is(code::no_such_statement) || fault.is(code::statement_exists) ||
            fault.is(code::protocol))
            unnamed_only_.store(true);
        if (fault.cure == Cure::schema) verified_.store(false);
    }

    PostgresOptions options_;
    Names names_;
    Pool pool_;
    Statement read_;
    Statement read_batch_;
    Statement list_;
    Statement purge_;
    Statement watch_;
    std::shared_ptr<Notices> notices_;
    using Call = std::tuple<const Operation*, Form, bool>;
    std::map<Call, Statement> calls_{};
    idem::detail::LookFirst look_first_{options_.look_first};
    std::atomic<bool> verified_{false};
    std::atomic<bool> unnamed_only_{false};
    std::atomic<bool> read_committed_{false};
    std::atomic<std::int64_t> purge_block_{0};
};

}  // namespace idem::inline v0_1::postgres

#endif
