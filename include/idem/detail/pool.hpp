#ifndef IDEM_DETAIL_POOL_HPP
#define IDEM_DETAIL_POOL_HPP

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <idem/clock.hpp>
#include <idem/detail/fork.hpp>

namespace idem::inline v0_1::detail {

/// A bounded number of connections to one server, made when they are wanted. One is held for one
/// request only, never while a handler runs: handlers that query too could otherwise starve each
/// other. For any thread; nothing of it survives fork, and a child is told so.
///
/// A `Server` has the types `Connection` (with `alive()` and `usable()`) and `Fault`, and
///     std::optional<Connection> open(LocalInstant deadline, Fault& why_not) const
///     Fault forked() const, all_busy(std::size_t connections) const
template <class Server>
class Pool {
public:
    using Connection = typename Server::Connection;
    using Fault = typename Server::Fault;

    Pool(Server server, std::size_t size, Duration connect_timeout)
        : server_(std::move(server)), size_(size), connect_timeout_(connect_timeout) {}

    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;
    ~Pool() = default;

    /// A connection on loan. It goes back when this ends, or is closed where it cannot be reused.
    class Loan {
    public:
        Loan(Pool& pool, Connection connection) noexcept
            : pool_(&pool), connection_(std::move(connection)) {}
        Loan(Loan&& other) noexcept
            : pool_(std::exchange(other.pool_, nullptr)),
              connection_(std::move(other.connection_)) {}
        Loan& operator=(Loan&&) = delete;
        ~Loan() {
            if (pool_ != nullptr) pool_->give_back(std::move(connection_));
        }
        Connection* operator->() noexcept { return &connection_; }
        Connection& operator*() noexcept { return connection_; }

    private:
        Pool* pool_;
        Connection connection_;
    };

    /// Waits for a connection until the deadline. `why_not` says why there is none. One that the
    /// server closed while it lay idle is replaced before anything is sent.
    [[nodiscard]] std::optional<Loan> borrow(LocalInstant deadline, Fault& why_not) {
        if (!made_in_.here()) {
            why_not = server_.forked();
            return std::nullopt;
        }
        std::unique_lock lock(mutex_);
        for (;;) {
            while (!idle_.empty()) {
                Connection connection = std::move(idle_.back());
                idle_.pop_back();
                if (connection.alive()) return Loan(*this, std::move(connection));
                --open_;
            }
            if (open_ < size_) break;
            const auto left = deadline - LocalClock::now();
            if (left <= left.zero()) {
                why_not = server_.all_busy(size_);
                return std::nullopt;
            }
            given_back_.wait_for(lock, left);
        }
        ++open_;
        lock.unlock();
        std::optional<Connection> made;
        try {
            made = server_.open(std::min(deadline, LocalClock::now() + connect_timeout_), why_not);
        } catch (...) {
            one_less();
            throw;
        }
        if (made) return Loan(*this, *std::move(made));
        one_less();
        return std::nullopt;
    }

    [[nodiscard]] const Server& server() const noexcept { return server_; }

    /// Connections that are open at this moment, on loan or idle.
    [[nodiscard]] std::size_t open() const {
        const std::lock_guard lock(mutex_);
        return open_;
    }

private:
    void give_back(Connection connection) noexcept {
        if (!made_in_.here()) return;  // the parent's other threads may have held the lock
        {
            const std::lock_guard lock(mutex_);
            bool kept = false;
            if (connection.usable()) {
                try {
                    idle_.push_back(std::move(connection));
                    kept = true;
                } catch (...) {  // no memory to keep it: closed instead
                }
            }
            if (!kept) --open_;
        }
        given_back_.notify_one();
    }
    void one_less() noexcept {
        {
            const std::lock_guard lock(mutex_);
            --open_;
        }
        given_back_.notify_one();
    }

    Server server_;
    std::size_t size_;
    Duration connect_timeout_;
    MadeIn made_in_{};
    mutable std::mutex mutex_{};
    std::condition_variable given_back_{};
    std::vector<Connection> idle_{};
    std::size_t open_ = 0;
};

}  // namespace idem::inline v0_1::detail

#endif
