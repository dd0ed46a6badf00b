#ifndef IDEM_REDIS_STATE_HPP
#define IDEM_REDIS_STATE_HPP

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <idem/detail/deadline.hpp>
#include <idem/redis/options.hpp>
#include <idem/redis/requests.hpp>
#include <idem/redis/topology.hpp>

namespace idem::inline v0_1 {

/// What a `RedisStore` has sent so far.
struct RedisTraffic {
    std::uint64_t round_trips = 0;
    std::uint64_t commands = 0;  ///< Each script, GET, WAIT is one; a login is none.
};

namespace redis {

/// What all copies of a `RedisStore` share: the way to the servers, the scripts, and what was
/// learnt about both. For any thread.
class State {
public:
    State(RedisOptions options, const Target& target)
        : options_(std::move(options)),
          topology_(std::make_unique<SingleServer>(target.place, target.login, options_.connections,
                                                   options_.connect_timeout)),
          plain_(options_.clock_lua, false),
          flagged_(options_.clock_lua, true) {}

    [[nodiscard]] const RedisOptions& options() const noexcept { return options_; }
    [[nodiscard]] Topology& topology() noexcept { return *topology_; }
    [[nodiscard]] RedisTraffic traffic() const noexcept {
        return {round_trips_.load(std::memory_order_relaxed),
                commands_.load(std::memory_order_relaxed)};
    }

    /// Carries the calls out, in this order for each key, until each has a reply or a fault that no
    /// further try cures in the time allowed. `repeatable`: the same again, after its answer was
    /// lost, answers as the first did; what is not is never sent twice where it may have been
    /// applied. After the deadline nothing is sent at all.
    void carry_out(std::span<Call> calls, bool repeatable, LocalInstant deadline) {
        std::vector<Call*> pending;
        pending.reserve(calls.size());
        for (auto& call : calls) pending.push_back(&call);
        std::vector<Call*> doubtful;
        for (int tries = 0;; ++tries) {
            for (Call* call : pending) call->fault.reset();
            for (std::size_t node = 0, nodes = topology_->nodes(); node < nodes; ++node)
                carry_out_at(node, nodes, pending, deadline);
            for (Call* call : pending)
                if (call->fault && call->fault->may_have_applied) doubtful.push_back(call);
            std::vector<Call*> again;
            for (Call* call : pending) {
                if (!call->fault) continue;
                Fault& fault = *call->fault;
                const bool doubt = !doubtful.empty() && contains(doubtful, call);
                fault.may_have_applied = doubt;
                if (curable(fault, tries) && (repeatable || !doubt) && !overtaken(call, pending))
                    again.push_back(call);
            }
            if (again.empty() || too_late(deadline)) return;
            pending = std::move(again);
            if (tries > 0) idem::detail::pause_after(tries, deadline);
        }
    }

    [[nodiscard]] LocalInstant deadline() const noexcept {
        return LocalClock::now() + options_.time_allowed;
    }

    /// Commands that only read, to one node. All replies, or a fault.
    [[nodiscard]] Answers read(std::size_t node, const Request& request, LocalInstant deadline) {
        for (int tries = 0;; ++tries) {
            Answers answers;
            Fault fault;
            if (auto loan = borrow(node, deadline, fault)) {
                answers = exchange(*loan, request, deadline);
                if (!answers.fault)  // LOADING and its like are said to each command alike
                    for (const auto& reply : answers.replies)
                        if (reply.is_error() && !answers.fault) note_error(reply, *loan, answers);
                if (answers.fault) part_if_useless(*loan, *answers.fault);
            } else {
                answers.fault = std::move(fault);
            }
            if (!answers.fault) return answers;
            answers.fault->may_have_applied = false;
            if (!curable(*answers.fault, tries) || too_late(deadline)) return answers;
            if (tries > 0) idem::detail::pause_after(tries, deadline);
        }
    }

    /// Adds the command that answers the server's clock to a request.
    void add_clock(Request& request) const {
        if (options_.clock_lua.empty()) {
            request.command({"TIME"});
        } else {
            request.command({"EVAL", plain_.clock_text(), "0"});
        }
    }
    [[nodiscard]] static std::optional<Instant> read_clock(const Reply& reply) noexcept {
        const auto number = [](std::optional<std::string_view> text) {
            std::int64_t value = -1;
            if (text) (void)std::from_chars(text->data(), text->data() + text->size(), value);
            return value;
        };
        const bool pair = reply.size() == 2;
        const std::int64_t whole = number(pair ? reply.text(0) : reply.text());
        const std::int64_t micros = pair ? number(reply.text(1)) : 0;
        if (whole < 0 || micros < 0) return std::nullopt;
        return Instant(Duration(pair ? whole * 1'000'000 + micros : whole));
    }

    /// Whether records that do not pass through Lua were met lately: then their value comes along.
    [[nodiscard]] bool large_values() const noexcept {
        return large_values_.load(std::memory_order_relaxed) > 0;
    }
    void met_large_value(bool met) noexcept {
        const int left = large_values_.load(std::memory_order_relaxed);
        if (met && left != 64) large_values_.store(64, std::memory_order_relaxed);
        if (!met && left > 0) large_values_.store(left - 1, std::memory_order_relaxed);
    }

private:
    using Sent = std::vector<Call*>;

    static constexpr int reconnects_max = 10;

    [[nodiscard]] static bool contains(const std::vector<Call*>& calls, const Call* call) {
        return std::find(calls.begin(), calls.end(), call) != calls.end();
    }

    /// One of the same key that comes after it in the batch has been carried out already: some
    /// other client stepped in between the two, and it is too late for this one.
    [[nodiscard]] static bool overtaken(const Call* call, const std::vector<Call*>& sent) {
        const auto at = std::find(sent.begin(), sent.end(), call);
        return std::any_of(at, sent.end(), [&](const Call* later) {
            return !later->fault && later->name == call->name;
        });
    }

    /// A try that has hardly any time left would only turn a plain no into a doubt.
    [[nodiscard]] bool too_late(LocalInstant deadline) const noexcept {
        return LocalClock::now() >= deadline - options_.time_allowed / 4;
    }
    /// A server that is busy is waited for. What breaks one connection after the other is not.
    [[nodiscard]] bool curable(Fault& fault, int tries) {
        if (fault.cure == Cure::retry_here) return true;
        if (fault.cure != Cure::reconnect && fault.cure != Cure::redirect) return false;
        return topology_->moved(fault) && tries < reconnects_max;
    }

    [[nodiscard]] std::optional<Pool::Loan> borrow(std::size_t node, LocalInstant deadline,
                                                   Fault& fault) {
        if (LocalClock::now() >= deadline) {
            fault =
                Fault::of_client(code::no_place, "the time allowed was over before it was sent");
            return std::nullopt;
        }
        auto loan = topology_->pool(node).borrow(deadline, fault);
        if (!loan) return loan;
        const std::string& policy = (*loan)->facts().eviction;
        if (policy.empty()) return loan;
        if (options_.refuse_eviction) {
            (*loan)->discard();  // the next one asks again
            fault = Fault::of_client(code::evicts, "Redis at " + (*loan)->place() +
                                                       " has the maxmemory-policy " + policy +
                                                       ", which may evict claims");
            return std::nullopt;
        }
        tell_eviction((*loan)->place(), policy);
        return loan;
    }
    void tell_eviction(const std::string& place, const std::string& policy) {
        if (!options_.notice) return;
        {
            const std::lock_guard lock(notice_mutex_);
            if (noticed_policy_ == policy) return;
            noticed_policy_ = policy;
        }
        try {
            options_.notice("Redis at " + place + " has the maxmemory-policy " + policy +
                            ": a claim that it evicts can run twice");
        } catch (...) {  // seeing must not change what happens
        }
    }

    [[nodiscard]] Answers exchange(Pool::Loan& loan, const Request& request,
                                   LocalInstant deadline) {
        round_trips_.fetch_add(1, std::memory_order_relaxed);
        commands_.fetch_add(request.count(), std::memory_order_relaxed);
        return loan->exchange(request,
                              std::min(deadline, LocalClock::now() + options_.command_timeout));
    }
    static void note_error(const Reply& reply, Pool::Loan& loan, Answers& answers) {
        Fault fault = Fault::of(reply.text().value_or(""), loan->place());
        // What is wrong with one key is its caller's business.
        if (fault.cure != Cure::schema) answers.fault = std::move(fault);
    }

    /// A server that is no master any more, or sends us away, says so on this connection for ever.
    static void part_if_useless(Pool::Loan& loan, const Fault& fault) noexcept {
        if (fault.cure == Cure::reconnect || fault.cure == Cure::redirect) loan->discard();
    }

    void carry_out_at(std::size_t node, std::size_t nodes, const Sent& pending,
                      LocalInstant deadline) {
        Sent mine;
        if (nodes == 1) {
            mine = pending;
        } else {
            for (Call* call : pending)
                if (topology_->node_of(call->name) == node) mine.push_back(call);
        }
        if (mine.empty()) return;
        Fault fault;
        auto loan = borrow(node, deadline, fault);
        if (!loan) {
            for (Call* call : mine) call->fault = fault;
            return;
        }
        const Scripts& scripts = (*loan)->facts().major >= 7 ? flagged_ : plain_;
        // Which script is not there is found out by its name; its text brings it along. Once for
        // each, and where even that was flushed between two of them, with every item.
        for (const auto how : {How::names, How::first_text, How::texts}) {
            send(*loan, scripts, mine, how, deadline);
            const Sent sent = mine;
            std::erase_if(mine, [&](const Call* call) {
                return !call->fault || !call->fault->is(code::no_script) || overtaken(call, sent);
            });
            if (mine.empty() || !(*loan)->usable()) break;
        }
        for (Call* call : pending)  // it says so to the text itself, or was overtaken
            if (call->fault && call->fault->is(code::no_script))
                call->fault->cure = Cure::unavailable;
        if (options_.replicas > 0) await_replicas(*loan, pending, node, nodes, deadline);
    }

    enum class How : std::uint8_t { names, first_text, texts };

    void send(Pool::Loan& loan, const Scripts& scripts, const Sent& calls, How how,
              LocalInstant deadline) {
        Request request;
        std::array<bool, 7> there{};
        for (const Call* call : calls) {
            const Script& script = scripts[call->operation];
            bool& known = there[static_cast<std::size_t>(call->operation)];
            const bool by_name = how == How::names || (how == How::first_text && known);
            known = true;
            std::array<std::string_view, 10> words = {by_name ? "EVALSHA" : "EVAL",
                                                      by_name ? script.sha : script.text, "1",
                                                      call->name, call->packed};
            std::copy_n(call->bytes.begin(), call->bytes_count, words.begin() + 5);
            request.command(std::span(words).first(5 + call->bytes_count));
            if (call->with_value) request.command({"GET", call->name});
        }
        Answers answers = exchange(loan, request, deadline);
        std::size_t at = 0;
        const auto next = [&]() -> std::optional<Reply> {
            if (at == answers.replies.size()) return std::nullopt;
            return std::move(answers.replies[at++]);
        };
        for (Call* call : calls) {
            call->reply = next();
            if (call->with_value) call->value = next();
            call->fault.reset();
            if (!call->reply) {
                call->fault = answers.fault;
            } else if (call->reply->is_error()) {
                call->fault = Fault::of(call->reply->text().value_or(""), loan->place());
            }
            if (call->fault) part_if_useless(loan, *call->fault);
        }
    }

    /// What too few replicas have may be lost with this server: it counts as not done.
    void await_replicas(Pool::Loan& loan, const Sent& pending, std::size_t node, std::size_t nodes,
                        LocalInstant deadline) {
        Sent written;
        for (Call* call : pending)
            if ((nodes == 1 || topology_->node_of(call->name) == node) && !call->fault &&
                wrote(*call))
                written.push_back(call);
        if (written.empty()) return;
        Request request;
        const auto millis =
            std::chrono::ceil<std::chrono::milliseconds>(options_.replica_timeout).count();
        request.command({"WAIT", std::to_string(options_.replicas), std::to_string(millis)});
        // One that broke in the middle would give the answer to something else.
        const Answers answers = loan->usable() ? exchange(loan, request, deadline) : Answers{};
        const auto reply = answers.replies.empty() ? std::nullopt : answers.replies[0].integer();
        if (reply && *reply >= static_cast<std::int64_t>(options_.replicas)) return;
        for (Call* call : written)
            call->fault = Fault::of_client(
                code::unacked, "Redis at " + loan->place() + ": only " +
                                   std::to_string(reply.value_or(0)) + " of " +
                                   std::to_string(options_.replicas) +
                                   " replicas acknowledged the write in the time allowed");
    }

    RedisOptions options_;
    std::unique_ptr<Topology> topology_;
    Scripts plain_;
    Scripts flagged_;
    std::mutex notice_mutex_{};
    std::string noticed_policy_{};
    std::atomic<std::uint64_t> round_trips_{0};
    std::atomic<std::uint64_t> commands_{0};
    std::atomic<int> large_values_{0};
};

}  // namespace redis

}  // namespace idem::inline v0_1

#endif
