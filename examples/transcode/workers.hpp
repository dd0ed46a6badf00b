#ifndef TRANSCODE_WORKERS_HPP
#define TRANSCODE_WORKERS_HPP

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <iostream>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <idem/claim.hpp>
#include <idem/http/response.hpp>

#include "callbacks.hpp"
#include "encoder.hpp"

namespace transcode {

/// A job that was accepted: this process holds its claim, and the heartbeat keeps it.
struct Accepted {
    Job job{};
    idem::Claim<idem::http::Response> claim;
};

/// Encodes accepted jobs, a few at a time. Jobs that wait for their turn keep their claims, so
/// that repeats of their requests are told "in progress".
class Workers {
public:
    Workers(const Files& files, CallbackSender& callbacks, unsigned count)
        : files_(files), callbacks_(callbacks) {
        for (unsigned i = 0; i < count; ++i) threads_.emplace_back([this] { loop(); });
        threads_.emplace_back([this] { report_again(); });
    }
    ~Workers() { finish(); }
    Workers(const Workers&) = delete;
    Workers& operator=(const Workers&) = delete;

    void accept(Accepted accepted) {
        {
            const std::scoped_lock lock(mutex_);
            waiting_.push_back(std::move(accepted));
        }
        changed_.notify_one();
    }

    /// Returns when every accepted job has ended, one way or the other.
    void finish() {
        {
            const std::scoped_lock lock(mutex_);
            finishing_ = true;
        }
        changed_.notify_all();
        threads_.clear();
    }

private:
    void loop() {
        while (auto accepted = next()) run(*std::move(accepted));
    }
    [[nodiscard]] std::optional<Accepted> next() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return finishing_ || !waiting_.empty(); });
        if (waiting_.empty()) return std::nullopt;
        std::optional<Accepted> first(std::move(waiting_.front()));
        waiting_.pop_front();
        return first;
    }

    /// One attempt, and its end: finished by callback, failed by class, or given back.
    void run(Accepted accepted) noexcept {
        auto& [job, claim] = accepted;
        try {
            attempt(job, claim);
        } catch (const EncodeError& e) {
            say(job, e.what());
            std::move(claim).fail(e.failure());
        } catch (const idem::LeaseLostError& e) {
            files_.note("lost " + job.id);  // cancelled, or another process has taken it over
            say(job, e.what());
        } catch (const std::exception& e) {
            say(job, e.what());  // the claim's destructor gives it back: a repeat runs again
        }
    }

    void attempt(const Job& job, idem::Claim<idem::http::Response>& claim) {
        claim.execution().resource(job.id);
        const idem::Fence fence = claim.fence();
        Encoder encoder(files_, job, fence);
        const Encoded encoded = encoder.encode(claim.stop_token());
        // Asks the store, right before the step that others see, whether the job is still ours.
        claim.execution().checkpoint("encoded");
        encoder.publish();
        // From here on whoever has the ticket may finish the job: the callback, wherever it lands.
        const idem::Ticket ticket = std::move(claim).detach(std::chrono::minutes{10});
        callbacks_.send(job.id + '.' + std::to_string(fence),
                        "ticket=" + ticket.to_string() + "&sha256=" + encoded.sha256 +
                            "&bytes=" + std::to_string(encoded.bytes));
    }

    /// What an earlier process has finished and could not report.
    void report_again() noexcept {
        try {
            callbacks_.send_waiting();
        } catch (const std::exception& e) {
            std::cerr << std::string(e.what()) + '\n';
        }
    }

    static void say(const Job& job, const std::string& what) {
        std::cerr << "job " + job.id.substr(0, 8) + ": " + what + '\n';
    }

    const Files& files_;
    CallbackSender& callbacks_;
    std::mutex mutex_{};
    std::condition_variable changed_{};
    std::deque<Accepted> waiting_{};
    bool finishing_ = false;
    std::vector<std::jthread> threads_{};
};

}  // namespace transcode

#endif
