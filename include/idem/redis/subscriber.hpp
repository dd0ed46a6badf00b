#ifndef IDEM_REDIS_SUBSCRIBER_HPP
#define IDEM_REDIS_SUBSCRIBER_HPP

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <idem/clock.hpp>
#include <idem/detail/fork.hpp>
#include <idem/redis/connection.hpp>

namespace idem::inline v0_1::redis {

/// Listens for the notices of settled keys, on one connection and one thread for a whole store,
/// both only while somebody watches and a second longer. For any thread. A connection that breaks
/// is a notice to everybody, for theirs may be lost with it. Nothing of it survives fork.
class Subscriber : public std::enable_shared_from_this<Subscriber> {
public:
    using Notice = std::function<void()>;
    using Connect = std::function<std::optional<Connection>(LocalInstant deadline, Fault& fault)>;

    /// @param limit of `watch`: it may not hold its caller up for longer than one request.
    Subscriber(Connect connect, Duration connect_timeout, Duration command_timeout, Duration limit)
        : connect_(std::move(connect)),
          connect_timeout_(connect_timeout),
          command_timeout_(command_timeout),
          limit_(limit) {}
    Subscriber(const Subscriber&) = delete;
    Subscriber& operator=(const Subscriber&) = delete;
    ~Subscriber() {
        if (wake_ >= 0) ::close(wake_);
    }

    /// The server has confirmed the subscription before this returns; null where it did not in
    /// time. `notice` is not called any more once the handle is gone.
    [[nodiscard]] std::shared_ptr<void> watch(std::string channel, Notice notice) {
        if (!made_in_.here()) return nullptr;
        auto watcher = std::make_shared<Watcher>(std::move(channel), std::move(notice));
        std::shared_ptr<void> handle(watcher.get(), [self = shared_from_this(), watcher](
                                                        void*) noexcept { self->leave(*watcher); });
        std::unique_lock lock(mutex_);
        if (stopped_ || !start()) return nullptr;
        watchers_.emplace(watcher->channel, watcher);
        const std::uint64_t failures = failures_;
        wake();
        const auto limit =
            std::min(connected_ ? command_timeout_ : connect_timeout_ + command_timeout_, limit_);
        const bool settled = changed_.wait_for(lock, limit, [&] {
            return stopped_ || failures_ != failures || confirmed_.contains(watcher->channel);
        });
        if (confirmed_.contains(watcher->channel)) return handle;
        if (!settled) suspect_ = true;  // a server that says nothing: another connection, then
        wake();
        lock.unlock();
        return nullptr;
    }

    /// Ends the thread. What is still watched hears nothing any more.
    void stop() noexcept {
        if (!made_in_.here()) {
            (void)thread_.release();  // NOLINT: the thread is the parent's
            return;
        }
        std::unique_ptr<std::thread> thread;
        {
            const std::lock_guard lock(mutex_);
            stopped_ = true;
            thread = std::move(thread_);
            wake();
        }
        changed_.notify_all();
        end(std::move(thread));
    }

    [[nodiscard]] bool running() const {
        const std::lock_guard lock(mutex_);
        return running_;
    }

private:
    static constexpr auto linger = std::chrono::seconds{1};

    struct Watcher {
        Watcher(std::string c, Notice n) : channel(std::move(c)), notice(std::move(n)) {}
        const std::string channel;
        const Notice notice;
        std::recursive_mutex mutex{};  ///< A notice may let its own handle go.
        bool gone = false;
    };

    void leave(Watcher& watcher) noexcept {
        if (!made_in_.here()) return;
        {
            const std::lock_guard lock(watcher.mutex);
            watcher.gone = true;
        }
        const std::lock_guard lock(mutex_);
        const auto [from, to] = watchers_.equal_range(watcher.channel);
        const auto at = std::find_if(
            from, to, [&](const auto& entry) { return entry.second.get() == &watcher; });
        if (at == to) return;
        watchers_.erase(at);
        wake();
    }

    static void end(std::unique_ptr<std::thread> thread) noexcept {
        if (!thread || !thread->joinable()) return;
        if (thread->get_id() == std::this_thread::get_id()) {
            thread->detach();  // a notice let the last store go
        } else {
            thread->join();
        }
    }

    void wake() const noexcept {
        const std::uint64_t one = 1;
        if (wake_ >= 0) (void)!::write(wake_, &one, sizeof one);
    }

    /// False where there is no thread to be had.
    [[nodiscard]] bool start() {
        if (running_) return true;
        if (wake_ < 0) wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (wake_ < 0) return false;
        end(std::move(thread_));  // it has ended, or is about to
        sigset_t all{};
        sigset_t before{};
        sigfillset(&all);
        (void)pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's threads
        try {
            thread_ = std::make_unique<std::thread>(
                [self = shared_from_this()]() noexcept { self->serve(); });
            running_ = true;
        } catch (const std::system_error&) {
        }
        (void)pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return running_;
    }

    // --- the thread -----------------------------------------------------------------------------

    /// What one connection has been told.
    struct Subscribed {
        std::set<std::string> channels{};
        std::map<std::string, int> awaited{};  ///< Answers to come.
    };

    void serve() noexcept {
        std::optional<Connection> connection;
        Subscribed subscribed;
        LocalInstant idle_since = LocalClock::now();
        Duration pause = std::chrono::milliseconds{50};
        for (;;) {
            try {
                if (suspected(connection)) failed();
                if (!go_on(idle_since)) return;
                if (!connection) {
                    subscribed = {};
                    Fault ignored;
                    connection = connect_(LocalClock::now() + connect_timeout_, ignored);
                    if (!connection) {
                        failed();
                        rest(pause);
                        pause = std::min<Duration>(pause * 2, std::chrono::seconds{2});
                        continue;
                    }
                    pause = std::chrono::milliseconds{50};
                    set_connected(true);
                }
                if (change(*connection, subscribed) && listen(*connection, subscribed)) continue;
            } catch (const std::exception&) {  // no memory: as if the connection had broken
            }
            connection.reset();
            set_connected(false);
            failed();
        }
    }

    /// Lets a connection go that somebody waited on in vain.
    [[nodiscard]] bool suspected(std::optional<Connection>& connection) {
        const std::lock_guard lock(mutex_);
        if (!std::exchange(suspect_, false)) return false;
        connection.reset();
        connected_ = false;
        confirmed_.clear();
        return true;
    }

    /// Whether there is still somebody to listen for.
    [[nodiscard]] bool go_on(LocalInstant& idle_since) {
        const std::lock_guard lock(mutex_);
        const auto now = LocalClock::now();
        if (!watchers_.empty()) idle_since = now;
        if (!stopped_ && now - idle_since < linger) return true;
        running_ = false;
        connected_ = false;
        confirmed_.clear();
        return false;
    }

    void set_connected(bool connected) {
        const std::lock_guard lock(mutex_);
        connected_ = connected;
        if (!connected) confirmed_.clear();
    }

    /// Everybody may have missed something.
    void failed() noexcept {
        std::vector<std::shared_ptr<Watcher>> all;
        try {
            const std::lock_guard lock(mutex_);
            ++failures_;
            for (const auto& [channel, watcher] : watchers_) all.push_back(watcher);
        } catch (const std::exception&) {  // they poll
        }
        changed_.notify_all();
        for (const auto& watcher : all) deliver(*watcher);
    }

    static void deliver(Watcher& watcher) noexcept {
        const std::lock_guard lock(watcher.mutex);
        if (watcher.gone) return;
        try {
            watcher.notice();
        } catch (...) {  // what it throws is nobody's
        }
    }

    /// Subscribes to what is watched, and to nothing else.
    [[nodiscard]] bool change(Connection& connection, Subscribed& subscribed) {
        Request request;
        {
            const std::lock_guard lock(mutex_);
            auto& channels = subscribed.channels;
            for (auto at = channels.begin(); at != channels.end();) {
                if (watchers_.contains(*at)) {
                    ++at;
                    continue;
                }
                request.command({"UNSUBSCRIBE", *at});
                confirmed_.erase(*at);
                at = channels.erase(at);
            }
            for (const auto& [channel, watcher] : watchers_) {
                if (!channels.insert(channel).second) continue;
                request.command({"SUBSCRIBE", channel});
                ++subscribed.awaited[channel];
            }
        }
        return request.count() == 0 ||
               connection.send(request, LocalClock::now() + command_timeout_);
    }

    /// Waits for something to happen and carries the word on.
    [[nodiscard]] bool listen(Connection& connection, Subscribed& subscribed) {
        wait(connection.fd(), linger);
        std::vector<Reply> replies;
        const bool stands = connection.receive(replies);
        for (const auto& reply : replies) {
            const auto kind = reply.text(0).value_or("");
            const std::string channel(reply.text(1).value_or(""));
            if (reply.is_error()) return false;  // for example: no right to the channel
            if (kind == "subscribe") confirm(channel, subscribed);
            if (kind == "message") tell(channel);
        }
        return stands;
    }

    /// The answer to the last SUBSCRIBE counts: behind an earlier one lies an UNSUBSCRIBE.
    void confirm(const std::string& channel, Subscribed& subscribed) {
        const auto awaited = subscribed.awaited.find(channel);
        if (awaited == subscribed.awaited.end() || --awaited->second > 0) return;
        subscribed.awaited.erase(awaited);
        if (!subscribed.channels.contains(channel)) return;
        {
            const std::lock_guard lock(mutex_);
            confirmed_.insert(channel);
        }
        changed_.notify_all();
    }

    void tell(const std::string& channel) {
        std::vector<std::shared_ptr<Watcher>> told;
        {
            const std::lock_guard lock(mutex_);
            const auto [from, to] = watchers_.equal_range(channel);
            for (auto at = from; at != to; ++at) told.push_back(at->second);
        }
        for (const auto& watcher : told) deliver(*watcher);
    }

    void wait(int fd, Duration limit) const noexcept {
        std::array<pollfd, 2> at = {pollfd{wake_, POLLIN, 0}, pollfd{fd, POLLIN, 0}};
        const auto millis = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
        if (::poll(at.data(), fd < 0 ? 1 : 2, static_cast<int>(millis)) <= 0) return;
        std::uint64_t count = 0;
        if ((at[0].revents & POLLIN) != 0) (void)!::read(wake_, &count, sizeof count);
    }
    void rest(Duration pause) const noexcept { wait(-1, pause); }

    Connect connect_;
    Duration connect_timeout_;
    Duration command_timeout_;
    Duration limit_;
    idem::detail::MadeIn made_in_{};
    mutable std::mutex mutex_{};
    std::condition_variable changed_{};
    std::multimap<std::string, std::shared_ptr<Watcher>> watchers_{};
    std::set<std::string> confirmed_{};
    std::unique_ptr<std::thread> thread_{};
    std::uint64_t failures_ = 0;
    int wake_ = -1;
    bool running_ = false;
    bool connected_ = false;
    bool suspect_ = false;
    bool stopped_ = false;
};

}  // namespace idem::inline v0_1::redis

#endif
