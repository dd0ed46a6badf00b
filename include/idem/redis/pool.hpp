#ifndef IDEM_REDIS_POOL_HPP
#define IDEM_REDIS_POOL_HPP

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <idem/redis/connection.hpp>

namespace idem::inline v0_1::redis {

/// A bounded number of connections to one server, made when they are wanted. One is held for one
/// round trip only, never while a handler runs. For any thread; nothing of it survives fork, and a
/// child is told so.
class Pool {
public:
    Pool(Place place, Login login, std::size_t size, Duration connect_timeout)
        : place_(std::move(place)),
          login_(std::move(login)),
          size_(size),
          connect_timeout_(connect_timeout) {}

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

    /// Waits for a connection until the deadline. `fault` says why there is none. One that the
    /// server closed while it lay idle is replaced before anything is sent.
    [[nodiscard]] std::optional<Loan> borrow(LocalInstant deadline, Fault& fault) {
        if (!made_in_.here()) {
            fault = Fault::of_client(code::forked,
                                     "this RedisStore was made before fork: make one here");
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
                fault = Fault::of_client(
                    code::no_place, "all " + std::to_string(size_) + " connections to Redis at " +
                                        place_.name() + " stayed busy for the time allowed");
                return std::nullopt;
            }
            given_back_.wait_for(lock, left);
        }
        ++open_;
        lock.unlock();
        std::optional<Connection> made;
        try {
            made = make(std::min(deadline, LocalClock::now() + connect_timeout_), fault);
        } catch (...) {
            one_less();
            throw;
        }
        if (made) return Loan(*this, *std::move(made));
        one_less();
        return std::nullopt;
    }

    /// A connection outside the bound, for who keeps it (a subscriber).
    [[nodiscard]] std::optional<Connection> make(LocalInstant deadline, Fault& fault) const {
        return Connection::open(place_, login_, deadline, fault);
    }

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

    Place place_;
    Login login_;
    std::size_t size_;
    Duration connect_timeout_;
    idem::detail::MadeIn made_in_{};
    mutable std::mutex mutex_{};
    std::condition_variable given_back_{};
    std::vector<Connection> idle_{};
    std::size_t open_ = 0;
};

}  // namespace idem::inline v0_1::redis

#endif
