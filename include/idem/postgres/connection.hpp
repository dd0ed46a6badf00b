#ifndef IDEM_POSTGRES_CONNECTION_HPP
#define IDEM_POSTGRES_CONNECTION_HPP

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <libpq-fe.h>
#include <poll.h>
#include <unistd.h>

#include <idem/clock.hpp>
#include <idem/detail/deadline.hpp>
#include <idem/detail/fork.hpp>
#include <idem/detail/resolve.hpp>
#include <idem/error.hpp>
#include <idem/postgres/fault.hpp>
#include <idem/postgres/params.hpp>
#include <idem/postgres/place.hpp>

namespace idem::inline v0_1::postgres {

inline constexpr int server_version_min = 130000;

/// The rows of one statement, in binary.
class Result {
public:
    Result() = default;
    explicit Result(PGresult* result) noexcept : result_(result) {}

    [[nodiscard]] explicit operator bool() const noexcept { return result_ != nullptr; }
    [[nodiscard]] int rows() const noexcept { return PQntuples(result_.get()); }
    [[nodiscard]] int columns() const noexcept { return PQnfields(result_.get()); }
    /// Nothing for NULL. Refers into the result.
    [[nodiscard]] std::optional<std::string_view> field(int row, int column) const noexcept {
        if (PQgetisnull(result_.get(), row, column) != 0) return std::nullopt;
        return std::string_view(PQgetvalue(result_.get(), row, column),
                                static_cast<std::size_t>(PQgetlength(result_.get(), row, column)));
    }
    template <class T>
    [[nodiscard]] std::optional<T> number(int row, int column) const noexcept {
        const auto bytes = field(row, column);
        return bytes ? read_number<T>(*bytes) : std::nullopt;
    }
    [[nodiscard]] bool flag(int row, int column) const noexcept {
        return field(row, column).value_or("") == std::string_view("\1", 1);
    }

private:
    friend class Connection;
    struct Clear {
        void operator()(PGresult* r) const noexcept { PQclear(r); }
    };
    [[nodiscard]] ExecStatusType status() const noexcept { return PQresultStatus(result_.get()); }
    [[nodiscard]] std::string error(int field) const {
        const char* text = PQresultErrorField(result_.get(), field);
        return text == nullptr ? "" : text;
    }

    std::unique_ptr<PGresult, Clear> result_{};
};

struct Answer {
    Result result{};
    std::optional<Fault> fault{};
    bool doubt = false;  ///< A try before the one that worked may have been applied too.
};

/// A statement under a name of its own, so that a connection can keep it prepared. The name is
/// made from the text: two versions of the library never mean different statements by one name.
struct Statement {
    std::string name{};
    std::string text{};
};

/// Where to connect to, taken apart so that every host gets its share of the time allowed.
class Conninfo {
public:
    /// Reads what libpq reads: `key=value` pairs or a URI, then its environment and service file.
    /// @throws UsageError; it repeats nothing of the text, which may hold a password.
    explicit Conninfo(const std::string& text) {
        const Options options(PQconninfoParse(text.c_str(), nullptr));
        if (!options)
            throw UsageError("PostgresOptions::conninfo is no connection string as libpq has them");
        const Options defaults(PQconndefaults());
        const auto value = [&](const char* keyword) { return find(options, defaults, keyword); };
        for (const auto* at = options.get(); at->keyword != nullptr; ++at) {
            const std::string keyword = at->keyword;
            if (keyword == "host" || keyword == "hostaddr" || keyword == "port") continue;
            if (at->val != nullptr) settings_.emplace_back(keyword, at->val);
        }
        database_ = value("dbname");
        if (database_.empty()) database_ = value("user");
        // A store that cannot write is of no use. libpq's default is a word, and it is "any".
        const auto session = find(options, nullptr, "target_session_attrs");
        if (session.empty() && value("target_session_attrs") == "any")
            settings_.emplace_back("target_session_attrs", "read-write");
        settings_.emplace_back("fallback_application_name", "idem");
        places_ = places_of(value("host"), value("hostaddr"), value("port"));
    }

    [[nodiscard]] const std::vector<Place>& places() const noexcept { return places_; }
    [[nodiscard]] const std::string& database() const noexcept { return database_; }
    [[nodiscard]] const auto& settings() const noexcept { return settings_; }

private:
    struct Free {
        void operator()(PQconninfoOption* o) const noexcept { PQconninfoFree(o); }
    };
    using Options = std::unique_ptr<PQconninfoOption, Free>;

    [[nodiscard]] static std::string find(const Options& options, const Options& defaults,
                                          std::string_view keyword) {
        for (const auto* list : {options.get(), defaults.get()})
            for (const auto* at = list; at != nullptr && at->keyword != nullptr; ++at)
                if (at->keyword == keyword && at->val != nullptr) return at->val;
        return {};
    }
    std::vector<std::pair<std::string, std::string>> settings_{};
    std::vector<Place> places_{};
    std::string database_{};
};

/// One connection with our own deadlines, for one thread at a time. A connection that timed out or
/// broke in the middle of a reply says so by `usable`, and must be dropped: its next reply could
/// be the answer to another's request. In a forked child it is abandoned, never closed: a goodbye
/// on the shared socket would end the parent's session.
class Connection {
public:
    /// Tries each host in turn, with an equal share of the time that is left.
    [[nodiscard]] static std::optional<Connection> open(const Conninfo& info, LocalInstant deadline,
                                                        Fault& fault) {
        std::string tried;
        std::optional<Cure> cure;
        const auto& places = info.places();
        for (std::size_t i = 0; i < places.size(); ++i) {
            const auto share = idem::detail::share_of(deadline, places.size() - i);
            std::string why;
            std::string sqlstate{code::no_place};
            auto made = open_place(info, places[i], share, sqlstate, why);
            if (made) return made;
            const Cure of = fault_class(sqlstate).cure;
            cure = !cure || *cure == of ? of : Cure::unavailable;
            tried += (tried.empty() ? "" : "; ") + places[i].name() + ": " + why;
            fault.code = sqlstate;
        }
        fault.cure = cure == Cure::reconnect ? Cure::unavailable : cure.value_or(Cure::unavailable);
        fault.may_have_applied = false;
        fault.message = "no connection to the database \"" + info.database() + "\" (" + tried + ")";
        return std::nullopt;
    }

    Connection(Connection&&) noexcept = default;
    Connection& operator=(Connection&&) noexcept = default;

    /// Talks on a connection of the user's, which is never closed here, nor given settings.
    [[nodiscard]] static Connection borrow(PGconn* c) {
        Owned borrowed(c);
        borrowed.get_deleter().borrowed = true;
        const auto word = [](const char* text) { return std::string(text == nullptr ? "" : text); };
        return Connection(std::move(borrowed),
                          word(PQhost(c)) + ":" + word(PQport(c)) + "/" + word(PQdb(c)));
    }

    [[nodiscard]] bool usable() const noexcept {
        return !broken_ && made_in_.here() && PQstatus(connection_.get()) == CONNECTION_OK &&
               PQtransactionStatus(connection_.get()) == PQTRANS_IDLE;
    }

    /// Not to be used any more.
    void discard() noexcept { broken_ = true; }

    /// Whether the server has closed it while it lay idle, as a restart does. Sends nothing.
    [[nodiscard]] bool alive() noexcept {
        if (!usable()) return false;
        for (int reads = 0; reads < 4; ++reads) {  // a last word, and then the end
            pollfd at{PQsocket(connection_.get()), POLLIN, 0};
            if (::poll(&at, 1, 0) <= 0) break;
            if (PQconsumeInput(connection_.get()) == 0) return false;
            if (PQisBusy(connection_.get()) != 0) return false;
        }
        return usable();
    }

    /// Sends one statement and waits for its answer. `keep` keeps it prepared on this connection,
    /// which must have its session for itself: it gets settings for the plans that are kept.
    [[nodiscard]] Answer run(const Statement& statement, const Params& params, bool keep,
                             LocalInstant deadline) {
        if (auto fault = prepare(statement, params, keep, deadline)) return {{}, std::move(fault)};
        if (!send(statement, params, keep)) return {{}, unsent()};
        return collect(deadline, false);
    }

    /// The same in a transaction at READ COMMITTED, still in one round trip: where the session's
    /// default is stricter, who lost a race could not see who won.
    [[nodiscard]] Answer run_read_committed(const Statement& statement, const Params& params,
                                            bool keep, LocalInstant deadline) {
        Answer answer = run_between("BEGIN ISOLATION LEVEL READ COMMITTED", statement, params, keep,
                                    "COMMIT", deadline);
        if (!broken_ && PQtransactionStatus(connection_.get()) == PQTRANS_INERROR &&
            script("ROLLBACK", deadline).fault)
            broken_ = true;
        return answer;
    }

    /// Three statements in one round trip; what comes after one that failed is not done. Gives the
    /// rows of the middle one.
    [[nodiscard]] Answer run_between(const char* before, const Statement& statement,
                                     const Params& params, bool keep, const char* after,
                                     LocalInstant deadline) {
        if (auto fault = prepare(statement, params, keep, deadline)) return {{}, std::move(fault)};
        PGconn* c = connection_.get();
        const bool sent = PQenterPipelineMode(c) == 1 && send_plain(before) &&
                          send(statement, params, keep) && send_plain(after) &&
                          PQpipelineSync(c) == 1;
        if (!sent) {
            broken_ = true;
            return {{}, unsent()};
        }
        Answer answer = collect(deadline, true);
        if (!broken_ && PQexitPipelineMode(c) == 0) broken_ = true;
        return answer;
    }

    /// Runs statements without parameters, separated by semicolons; gives the last one's rows, in
    /// text. Without a BEGIN among them they are one transaction.
    [[nodiscard]] Answer script(const std::string& text, LocalInstant deadline) {
        if (PQsendQuery(connection_.get(), text.c_str()) == 0) return {{}, unsent()};
        return collect(deadline, false);
    }

    /// Waits for what others NOTIFY, until the deadline or until the descriptor `wake` can be
    /// read; adds the payloads that have come. False: the connection is of no more use.
    [[nodiscard]] bool take_notices(int wake, LocalInstant deadline,
                                    std::vector<std::string>& payloads) {
        struct Free {
            void operator()(PGnotify* n) const noexcept { PQfreemem(n); }
        };
        PGconn* c = connection_.get();
        while (usable()) {
            if (PQconsumeInput(c) == 0) break;
            while (const auto notice = std::unique_ptr<PGnotify, Free>(PQnotifies(c)))
                payloads.emplace_back(notice->extra);
            const auto left = deadline - LocalClock::now();
            if (!payloads.empty() || left <= left.zero()) return true;
            std::array<pollfd, 2> at = {{{PQsocket(c), POLLIN, 0}, {wake, POLLIN, 0}}};
            const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
            (void)::poll(at.data(), at.size(),
                         static_cast<int>(std::min<std::int64_t>(ms, 1'000'000)));
            if (at[1].revents != 0) return true;
        }
        broken_ = true;
        return false;
    }

    [[nodiscard]] int server_version() const noexcept { return PQserverVersion(connection_.get()); }
    /// The process that greeted us, by its own words. A pooler makes a number up.
    [[nodiscard]] int server_process() const noexcept { return PQbackendPID(connection_.get()); }
    [[nodiscard]] const std::string& place() const noexcept { return place_; }

private:
    struct Finish {
        Finish() noexcept {}  // NOLINT: a default argument would need the whole class
        idem::detail::MadeIn made_in;
        bool borrowed = false;
        void operator()(PGconn* c) const noexcept {
            if (borrowed) return;
            if (made_in.here()) return PQfinish(c);
            if (const int fd = PQsocket(c); fd >= 0) (void)::close(fd);  // the child's copy only
        }
    };
    using Owned = std::unique_ptr<PGconn, Finish>;

    Connection(Owned connection, std::string place)
        : connection_(std::move(connection)), place_(std::move(place)) {}

    [[nodiscard]] static std::optional<Connection> open_place(const Conninfo& info,
                                                              const Place& place,
                                                              LocalInstant deadline,
                                                              std::string& sqlstate,
                                                              std::string& why) {
        std::vector<std::string> addresses = {place.address};
        if (place.address.empty() && !place.is_path()) {
            auto resolved = idem::detail::resolve(place.host, idem::detail::share_of(deadline, 2));
            why = resolved.error;
            addresses = std::move(resolved.addresses);
        }
        for (std::size_t i = 0; i < addresses.size(); ++i) {
            auto made =
                open_address(info, place, addresses[i],
                             idem::detail::share_of(deadline, addresses.size() - i), sqlstate, why);
            if (made) return made;
        }
        return std::nullopt;
    }

    [[nodiscard]] static std::optional<Connection> open_address(
        const Conninfo& info, const Place& place, const std::string& address, LocalInstant deadline,
        std::string& sqlstate, std::string& why) {
        std::vector<const char*> keywords;
        std::vector<const char*> values;
        const auto set = [&](const char* keyword, const std::string& value) {
            if (value.empty()) return;
            keywords.push_back(keyword);
            values.push_back(value.c_str());
        };
        for (const auto& [keyword, value] : info.settings()) set(keyword.c_str(), value);
        set("host", place.host);
        set("hostaddr", address);
        set("port", place.port);
        keywords.push_back(nullptr);
        values.push_back(nullptr);
        Owned made(PQconnectStartParams(keywords.data(), values.data(), 0));
        why = "out of memory";
        if (!made) return std::nullopt;
        PQsetErrorVerbosity(made.get(), PQERRORS_VERBOSE);  // the only way to learn the SQLSTATE
        PQsetNoticeProcessor(
            made.get(), [](void*, const char*) {}, nullptr);
        if (!shake_hands(made.get(), deadline, why)) {
            if (auto found = take_sqlstate(why); !found.empty()) sqlstate = std::move(found);
            return std::nullopt;
        }
        if (PQserverVersion(made.get()) < server_version_min) {
            sqlstate = code::too_old;
            why = "the server is older than PostgreSQL 13";
            return std::nullopt;
        }
        if (PQsetnonblocking(made.get(), 1) != 0) return std::nullopt;
        return Connection(std::move(made), place.name() + "/" + info.database());
    }

    [[nodiscard]] static bool shake_hands(PGconn* c, LocalInstant deadline, std::string& why) {
        auto next = PGRES_POLLING_WRITING;
        while (PQstatus(c) != CONNECTION_BAD) {
            const short events = next == PGRES_POLLING_READING ? POLLIN : POLLOUT;
            if (!idem::detail::await(PQsocket(c), events, deadline)) {
                why = "no answer in the time allowed";
                return false;
            }
            next = PQconnectPoll(c);
            if (next == PGRES_POLLING_OK) return true;
            if (next == PGRES_POLLING_FAILED) break;
        }
        why = PQerrorMessage(c);
        return false;
    }

    [[nodiscard]] std::optional<Fault> prepare(const Statement& statement, const Params& params,
                                               bool keep, LocalInstant deadline) {
        if (!made_in_.here())
            return Fault::of(code::forked, "this connection belongs to the parent process");
        if (!keep || prepared_.count(statement.name) == 1) return std::nullopt;
        if (prepared_.empty()) {
            auto settings = script(plan_settings, deadline);
            if (settings.fault) {
                settings.fault->may_have_applied = false;
                return std::move(settings.fault);
            }
        }
        if (PQsendPrepare(connection_.get(), statement.name.c_str(), statement.text.c_str(),
                          params.count(), params.types()) == 0)
            return unsent();
        Answer answer = collect(deadline, false);
        if (answer.fault) {
            answer.fault->may_have_applied = false;
            return std::move(answer.fault);
        }
        prepared_.insert(statement.name);
        return std::nullopt;
    }

    [[nodiscard]] bool send(const Statement& statement, const Params& params, bool keep) {
        if (keep)
            return PQsendQueryPrepared(connection_.get(), statement.name.c_str(), params.count(),
                                       params.values(), params.lengths(), params.formats(), 1) == 1;
        return PQsendQueryParams(connection_.get(), statement.text.c_str(), params.count(),
                                 params.types(), params.values(), params.lengths(),
                                 params.formats(), 1) == 1;
    }
    [[nodiscard]] bool send_plain(const char* text) {
        return PQsendQueryParams(connection_.get(), text, 0, nullptr, nullptr, nullptr, nullptr,
                                 1) == 1;
    }

    [[nodiscard]] Fault unsent() {
        const bool bad = PQstatus(connection_.get()) != CONNECTION_OK;
        broken_ = true;
        Fault fault = Fault::of(bad ? code::broken : code::no_memory,
                                place_ + ": " + PQerrorMessage(connection_.get()));
        fault.may_have_applied = false;
        return fault;
    }

    [[nodiscard]] Fault fault_of(const Result& result) const {
        const std::string sqlstate = result.error(PG_DIAG_SQLSTATE);
        const std::string text = result.error(PG_DIAG_MESSAGE_PRIMARY);
        if (sqlstate.empty())  // libpq's own: the connection ended
            return Fault::of(code::broken, place_ + ": " + PQerrorMessage(connection_.get()));
        return Fault::of(sqlstate, place_ + ": " + text + " (" + sqlstate + ")");
    }

    /// Reads everything that belongs to what was sent. A statement has worked only where nothing
    /// of it has failed: at SERIALIZABLE the error of the commit comes after the rows.
    [[nodiscard]] Answer collect(LocalInstant deadline, bool pipeline) {
        PGconn* c = connection_.get();
        Answer answer;
        for (;;) {
            const int unsent = PQflush(c);
            if (PQisBusy(c) == 0 || PQstatus(c) != CONNECTION_OK) {  // then libpq does not wait
                Result result(PQgetResult(c));
                const bool ended = PQstatus(c) != CONNECTION_OK;
                if (!result && (ended || !pipeline)) break;
                if (!result) continue;
                if (result.status() == PGRES_PIPELINE_SYNC) break;
                take(std::move(result), answer);
                continue;
            }
            const short events = unsent > 0 ? POLLIN | POLLOUT : POLLIN;
            if (!idem::detail::await(PQsocket(c), events, deadline)) {
                broken_ = true;
                answer.fault =
                    Fault::of(code::timed_out, place_ + ": no answer in the time allowed");
                return answer;
            }
            (void)PQconsumeInput(c);  // where it fails the status says so
        }
        if (PQstatus(c) == CONNECTION_OK) return answer;
        broken_ = true;
        if (!answer.fault)
            answer.fault = Fault::of(code::broken, place_ + ": " + PQerrorMessage(c));
        return answer;
    }

    void take(Result result, Answer& answer) {
        switch (result.status()) {
            case PGRES_TUPLES_OK: answer.result = std::move(result); return;
            case PGRES_COMMAND_OK:
                if (!answer.result) answer.result = std::move(result);
                return;
            case PGRES_PIPELINE_ABORTED: return;  // the error has come before
            default:
                if (!answer.fault) answer.fault = fault_of(result);
        }
    }

    /// A plan that was made while the table was small would scan all of it when it has grown.
    static constexpr const char* plan_settings =
        "SET enable_seqscan TO off; SET enable_hashjoin TO off; SET enable_mergejoin TO off";

    Owned connection_;
    std::string place_;
    idem::detail::MadeIn made_in_{};
    std::set<std::string> prepared_{};
    bool broken_ = false;
};

}  // namespace idem::inline v0_1::postgres

#endif
