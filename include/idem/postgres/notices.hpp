#ifndef IDEM_POSTGRES_NOTICES_HPP
#define IDEM_POSTGRES_NOTICES_HPP

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <idem/detail/background_thread.hpp>
#include <idem/postgres/connection.hpp>

namespace idem::inline v0_1::postgres {

/// Hears what any process NOTIFYs on one channel, for any number of watchers: one connection that
/// LISTENs and one thread that reads it. Both are there only while somebody watches, and a moment
/// longer. A connection that breaks is made anew, and then every watcher is told, as what came
/// meanwhile is lost. For any thread; a forked child hears nothing.
class Notices {
public:
    Notices(Conninfo info, std::string channel, Duration connect_timeout,
            Duration statement_timeout)
        : info_(std::move(info)),
          channel_(std::move(channel)),
          connect_timeout_(connect_timeout),
          statement_timeout_(statement_timeout) {}
    Notices(const Notices&) = delete;
    Notices& operator=(const Notices&) = delete;
    ~Notices() {
        if (!made_in_.here()) {  // the thread is the parent's
            (void)thread_.release();
            return;
        }
        {
            const std::lock_guard lock(mutex_);
            stopped_ = true;
        }
        poke();
        if (thread_) thread_->join();
    }

    /// From before this returns until the handle goes, `notice` is called for each NOTIFY with
    /// this payload, and needlessly at times. It is called under a lock of this object: it must be
    /// short and must not drop the handle. Null where nothing can be heard: no connection until
    /// the deadline, or a pooler that gives each transaction another session.
    [[nodiscard]] static std::shared_ptr<void> watch(const std::shared_ptr<Notices>& notices,
                                                     const std::string& payload,
                                                     std::function<void()> notice,
                                                     LocalInstant deadline) {
        if (!notices->made_in_.here()) return nullptr;
        auto handle = std::make_shared<Watch>(notices);
        return notices->enter(*handle, payload, std::move(notice), deadline) ? handle : nullptr;
    }

private:
    using Watched = std::multimap<std::string, std::function<void()>>;

    static constexpr std::chrono::seconds linger{2};
    static constexpr std::chrono::seconds look_after{
        5};  ///< A silent connection may be a dead one.

    struct Watch {
        explicit Watch(std::shared_ptr<Notices> n) : notices(std::move(n)) {}
        Watch(const Watch&) = delete;
        Watch& operator=(const Watch&) = delete;
        ~Watch() {
            if (at && notices->made_in_.here()) notices->leave(*at);
        }
        std::shared_ptr<Notices> notices;
        std::optional<Watched::iterator> at{};
    };

    /// What wakes the thread out of its wait for the server.
    class Pipe {
    public:
        Pipe() {
            if (::pipe2(ends_.data(), O_CLOEXEC | O_NONBLOCK) != 0) ends_ = {-1, -1};
        }
        Pipe(const Pipe&) = delete;
        Pipe& operator=(const Pipe&) = delete;
        ~Pipe() {
            for (const int end : ends_)
                if (end >= 0) (void)::close(end);
        }
        [[nodiscard]] int out() const noexcept { return ends_[0]; }
        void put() const noexcept { (void)!::write(ends_[1], "", 1); }
        void drain() const noexcept {
            std::array<char, 64> bytes{};
            while (::read(ends_[0], bytes.data(), bytes.size()) > 0) {
            }
        }

    private:
        std::array<int, 2> ends_{};
    };

    [[nodiscard]] bool enter(Watch& handle, const std::string& payload,
                             std::function<void()> notice, LocalInstant deadline) {
        std::unique_lock lock(mutex_);
        // While the way is known to be blocked nobody waits for it: the thread goes on trying.
        if (pooled_ || (down_ && running_)) return false;
        handle.at = watched_.emplace(payload, std::move(notice));
        if (!running_) {
            if (thread_) thread_->join();  // it has left this object already
            thread_.reset();
            down_ = false;
            thread_ =
                std::make_unique<std::jthread>(idem::detail::background_thread([this] { loop(); }));
            running_ = true;
        }
        while (!listening_ && !down_ && !pooled_) {
            const auto left = deadline - LocalClock::now();
            if (left <= left.zero()) return false;
            changed_.wait_for(lock, left);
        }
        return listening_;
    }
    void leave(Watched::iterator at) noexcept {
        const std::lock_guard lock(mutex_);
        watched_.erase(at);
        if (watched_.empty()) idle_since_ = LocalClock::now();
    }
    void poke() const noexcept { pipe_.put(); }

    /// Whether nobody has watched for a while, or nobody may: then the thread has left.
    [[nodiscard]] bool leaves() {
        const std::lock_guard lock(mutex_);
        const bool idle = watched_.empty() && LocalClock::now() - idle_since_ >= linger;
        if (!idle && !stopped_ && !pooled_) return false;
        listening_ = false;
        running_ = false;
        return true;
    }

    void loop() noexcept {
        std::optional<Connection> connection;
        Duration pause = std::chrono::milliseconds{20};
        auto looked = LocalClock::now();
        bool missed = false;  // something, while there was no connection
        while (!leaves()) {
            try {
                if (!connection) {
                    connection = listen();
                    report(connection.has_value(), missed);
                    missed = true;
                    looked = LocalClock::now();
                    if (!connection) {
                        rest(pause);
                        pause = std::min<Duration>(pause * 2, linger);
                        continue;
                    }
                    pause = std::chrono::milliseconds{20};
                }
                if (!hear(*connection, looked)) connection.reset();
            } catch (...) {  // no memory
                connection.reset();
            }
            if (!connection) broken();
        }
    }

    /// A connection that listens. Nothing where there is none to be had, or where another process
    /// answers than the one that greeted us: a pooler, with which notices go to whom they may.
    [[nodiscard]] std::optional<Connection> listen() {
        Fault fault;
        auto made = Connection::open(info_, LocalClock::now() + connect_timeout_, fault);
        if (!made) return std::nullopt;
        const Answer who = made->script("SELECT pg_catalog.pg_backend_pid()", soon());
        if (who.fault || who.result.rows() != 1) return std::nullopt;
        if (who.result.field(0, 0) != std::to_string(made->server_process())) {
            const std::lock_guard lock(mutex_);
            pooled_ = true;
            return std::nullopt;
        }
        if (made->script("LISTEN \"" + channel_ + "\"", soon()).fault) return std::nullopt;
        return made;
    }
    [[nodiscard]] LocalInstant soon() const { return LocalClock::now() + statement_timeout_; }

    void report(bool listening, bool missed) {
        const std::lock_guard lock(mutex_);
        listening_ = listening;
        down_ = !listening;
        if (listening && missed)
            for (const auto& [payload, notice] : watched_) notice();
        changed_.notify_all();
    }
    void broken() noexcept {
        const std::lock_guard lock(mutex_);
        listening_ = false;
    }
    void rest(Duration pause) const {
        pollfd at{pipe_.out(), POLLIN, 0};
        const auto ms = std::chrono::ceil<std::chrono::milliseconds>(pause).count();
        (void)::poll(&at, 1, static_cast<int>(ms));
        pipe_.drain();
    }

    /// Passes on what comes for a while. False: the connection is of no more use.
    [[nodiscard]] bool hear(Connection& connection, LocalInstant& looked) {
        std::vector<std::string> payloads;
        const auto now = LocalClock::now();
        const auto until = std::min<LocalInstant>(looked + look_after, now + linger);
        bool alive = connection.take_notices(pipe_.out(), until, payloads);
        pipe_.drain();
        if (alive && LocalClock::now() - looked >= look_after) {
            alive = !connection.script("SELECT", soon()).fault;
            looked = LocalClock::now();
        }
        const std::lock_guard lock(mutex_);
        for (const auto& payload : payloads) {
            const auto [from, to] = watched_.equal_range(payload);
            for (auto at = from; at != to; ++at) at->second();
        }
        return alive;
    }

    Conninfo info_;
    std::string channel_;
    Duration connect_timeout_;
    Duration statement_timeout_;
    idem::detail::MadeIn made_in_{};
    Pipe pipe_{};
    std::mutex mutex_{};  ///< Of what follows.
    std::condition_variable changed_{};
    Watched watched_{};
    LocalInstant idle_since_{};
    bool running_ = false;    ///< The thread has not left yet.
    bool listening_ = false;  ///< What is told from now on is heard.
    bool down_ = false;       ///< The last try to connect failed.
    bool pooled_ = false;
    bool stopped_ = false;
    std::unique_ptr<std::jthread> thread_{};
};

}  // namespace idem::inline v0_1::postgres

#endif
