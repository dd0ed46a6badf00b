// Billing by messages from RabbitMQ, each once however often it is delivered:
//
//   rabbitmq_worker publish BROKER COUNT SEED       COUNT jobs, each up to three times, in disorder
//   rabbitmq_worker work BROKER STORE-URL EFFECTS   until SIGTERM; notes each effect in a file
//   rabbitmq_worker left BROKER                     what lies in the queues, and in the dead
//   letters rabbitmq_worker check COUNT EFFECTS             whether each job was done once
//
// BROKER is HOST:PORT. The inbox says what to do; this program tells the broker. A message is only
// acknowledged when what was made of it is safe: its record, its place in the queue of dead
// letters, or its next delivery.

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <idem/idem.hpp>
#include <idem/redis.hpp>

#include "rabbitmq/broker.hpp"

namespace {

using namespace std::chrono_literals;
using rabbitmq::Broker;

constexpr const char* queue = "billing";
constexpr const char* dead_queue = "billing.dead";

volatile std::sig_atomic_t stopping = 0;

Broker connect(const std::string& address) {
    const auto colon = address.rfind(':');
    if (colon == std::string::npos) throw std::runtime_error("BROKER is HOST:PORT");
    Broker broker(address.substr(0, colon), std::stoi(address.substr(colon + 1)));
    broker.declare(queue);
    broker.declare(dead_queue);
    return broker;
}

/// Every fifth job fails at first, every tenth for good.
bool fails_at_first(int job) {
    return job % 5 == 1;
}
bool fails_for_good(int job) {
    return job % 10 == 0;
}

void publish(const std::string& address, int count, unsigned seed) {
    auto broker = connect(address);
    std::mt19937 random(seed);
    std::vector<int> jobs;
    for (int job = 0; job < count; ++job) jobs.insert(jobs.end(), 1 + random() % 3, job);
    std::shuffle(jobs.begin(), jobs.end(), random);
    for (const int job : jobs)
        broker.publish(queue, "job-" + std::to_string(job), std::to_string(job));
    std::printf("%d jobs in %zu messages\n", count, jobs.size());
}

/// One line for each effect, written at once: "JOB FENCE ATTEMPT TAKEOVER".
class Effects {
public:
    explicit Effects(const char* path)
        : fd_(open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
        if (fd_ < 0) throw std::runtime_error("cannot open " + std::string(path));
    }
    Effects(const Effects&) = delete;
    Effects& operator=(const Effects&) = delete;
    ~Effects() { (void)close(fd_); }
    void note(int job, const idem::Execution& execution) const {
        const std::string line = std::to_string(job) + " " + std::to_string(execution.fence()) +
                                 " " + std::to_string(execution.attempt()) + " " +
                                 (execution.takeover() ? "1" : "0") + "\n";
        if (write(fd_, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
            throw std::runtime_error("cannot note an effect");
    }

private:
    int fd_;
};

void handle(int job, idem::Execution& execution, const Effects& effects) {
    if (fails_for_good(job)) throw idem::FinalError("no_account", "job " + std::to_string(job));
    if (fails_at_first(job) && execution.attempt() == 1)
        throw std::runtime_error("the bank is away");
    std::this_thread::sleep_for(15ms);
    effects.note(job, execution);
    std::this_thread::sleep_for(45ms);  // here a worker may die: done, and not on record
}

void work(const std::string& address, const std::string& store_url, const char* path) {
    // Deliveries and confirms would get in each other's way on one connection.
    auto in = connect(address);
    auto out = connect(address);
    const Effects effects(path);
    idem::InboxOptions options;
    options.group = "billing";
    options.lease = 3s;
    options.retry = {.attempts = 50, .first = 100ms, .longest = 1s, .jitter = idem::Jitter::half};
    options.max_crashes = 0;
    idem::Inbox inbox(idem::open_store(store_url), options);
    in.subscribe(queue, 8);
    while (stopping == 0) {
        const auto delivery = in.next(200ms);
        if (!delivery) continue;
        const auto outcome =
            inbox.consume({delivery->id, delivery->body}, [&](idem::Execution& execution) {
                handle(std::stoi(delivery->body), execution, effects);
            });
        switch (outcome.action) {
            case idem::InboxAction::ack: break;
            case idem::InboxAction::retry_later:
                out.publish_later(queue, delivery->id, delivery->body,
                                  std::chrono::ceil<rabbitmq::Milliseconds>(outcome.delay));
                break;
            case idem::InboxAction::dead_letter:
                // Each copy: who noted the first as failed may have died before it got here.
                out.publish(dead_queue, delivery->id, delivery->body,
                            outcome.failure.code + ": " + outcome.failure.message);
                break;
        }
        in.acknowledge(*delivery);
    }
}

/// Empties the queue of dead letters: each job that can never work is there, and no other.
int take_dead(const std::string& address, int count) {
    auto broker = connect(address);
    broker.subscribe(dead_queue, 100);
    std::set<int> dead;
    while (const auto delivery = broker.next(1s)) {
        dead.insert(std::stoi(delivery->body));
        broker.acknowledge(*delivery);
    }
    std::set<int> expected;
    for (int job = 0; job < count; ++job)
        if (fails_for_good(job)) expected.insert(job);
    std::printf("%zu dead letters, %zu expected\n", dead.size(), expected.size());
    return dead == expected ? 0 : 1;
}

int check(int count, const char* path) {
    struct Seen {
        int effects = 0;
        int takeovers = 0;
        std::uint64_t fence = 0;
        bool fences_rise = true;
    };
    std::map<int, Seen> seen;
    std::ifstream in(path);
    int job = 0;
    std::uint64_t fence = 0;
    std::uint32_t attempt = 0;
    int takeover = 0;
    while (in >> job >> fence >> attempt >> takeover) {
        Seen& one = seen[job];
        ++one.effects;
        one.takeovers += takeover;
        one.fences_rise = one.fences_rise && fence > one.fence;
        one.fence = fence;
    }
    int wrong = 0;
    int repeats = 0;
    for (int expected = 0; expected < count; ++expected) {
        const Seen one = seen[expected];
        const int least = fails_for_good(expected) ? 0 : 1;
        // More than once only where a worker died in the middle, and each time under a new fence.
        const bool right =
            one.effects >= least && one.effects <= least + one.takeovers && one.fences_rise;
        repeats += std::max(0, one.effects - 1);
        if (right) continue;
        ++wrong;
        std::printf("job %d: %d effects, %d takeovers%s\n", expected, one.effects, one.takeovers,
                    one.fences_rise ? "" : ", fences that do not rise");
    }
    std::printf("%d jobs, %d wrong, %d repeated by a takeover\n", count, wrong, repeats);
    return wrong == 0 ? 0 : 1;
}

int run(std::span<const std::string> words) {
    const auto is = [&](const char* command, std::size_t count) {
        return words.size() == count && words[0] == command;
    };
    if (is("publish", 4)) {
        publish(words[1], std::stoi(words[2]), static_cast<unsigned>(std::stoul(words[3])));
    } else if (is("work", 4)) {
        work(words[1], words[2], words[3].c_str());
    } else if (is("left", 2)) {
        auto broker = connect(words[1]);
        std::printf("%u %u\n", broker.depth(queue), broker.depth(dead_queue));
    } else if (is("dead", 3)) {
        return take_dead(words[1], std::stoi(words[2]));
    } else if (is("check", 3)) {
        return check(std::stoi(words[1]), words[2].c_str());
    } else {
        std::fprintf(stderr, "rabbitmq_worker: see the head of its source\n");
        return 2;
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    (void)std::signal(SIGTERM, [](int) { stopping = 1; });
    const std::vector<std::string> words(argv + 1, argv + argc);
    try {
        return run(words);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "rabbitmq_worker: %s\n", error.what());
        return 1;
    }
}
