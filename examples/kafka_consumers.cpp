// Billing by messages from Kafka, each once however often it is read: kafka_consumers [JOBS]
//
// Kafka has no acknowledgement of one message, only an offset for each partition. A consumer here
// commits its offsets itself, in order, behind what the inbox has said of each message; at a
// rebalance it first commits what it has done. A cluster of librdkafka's own stands in for brokers.
// While jobs flow, in copies and in disorder, one consumer joins and one is gone without a word. In
// the end every offset must be committed to the last, and every job done once.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>

#include <idem/idem.hpp>

namespace {

using namespace std::chrono_literals;

constexpr const char* topic = "billing";
constexpr const char* dead_topic = "billing.dead";
constexpr int partitions = 4;
constexpr auto session_timeout = 6000ms;

void check(rd_kafka_resp_err_t error, const char* what) {
    if (error != RD_KAFKA_RESP_ERR_NO_ERROR)
        throw std::runtime_error(std::string(what) + ": " + rd_kafka_err2str(error));
}

using Settings = std::vector<std::pair<const char*, std::string>>;
using Handle = std::shared_ptr<rd_kafka_t>;

rd_kafka_conf_t* configured(const Settings& settings) {
    rd_kafka_conf_t* conf = rd_kafka_conf_new();
    char why[256];
    for (const auto& [key, value] : settings)
        if (rd_kafka_conf_set(conf, key, value.c_str(), why, sizeof why) != RD_KAFKA_CONF_OK)
            throw std::runtime_error(why);
    return conf;
}
rd_kafka_t* opened(rd_kafka_type_t type, rd_kafka_conf_t* conf) {
    char why[256];
    rd_kafka_t* handle = rd_kafka_new(type, conf, why, sizeof why);
    if (handle == nullptr) throw std::runtime_error(why);
    return handle;
}

/// Brokers in this process.
class Cluster {
public:
    Cluster()
        : home_(opened(RD_KAFKA_PRODUCER, configured({})), rd_kafka_destroy),
          mock_(rd_kafka_mock_cluster_new(home_.get(), 3), rd_kafka_mock_cluster_destroy) {
        check(rd_kafka_mock_topic_create(mock_.get(), topic, partitions, 1), "topic");
        check(rd_kafka_mock_topic_create(mock_.get(), dead_topic, 1, 1), "topic");
    }
    [[nodiscard]] std::string address() const {
        return rd_kafka_mock_cluster_bootstraps(mock_.get());
    }

private:
    Handle home_;
    std::unique_ptr<rd_kafka_mock_cluster_t, void (*)(rd_kafka_mock_cluster_t*)> mock_;
};

/// Returns from `send` once the brokers have it.
class Producer {
public:
    explicit Producer(const std::string& address)
        : handle_(opened(RD_KAFKA_PRODUCER, configured({{"bootstrap.servers", address},
                                                        {"enable.idempotence", "false"},
                                                        {"acks", "all"}})),
                  rd_kafka_destroy) {}
    void send(const char* to, const std::string& key, const std::string& body) {
        add(to, key, body);
        flush();
    }
    void add(const char* to, std::string key, std::string body) {
        std::array<rd_kafka_vu_t, 4> parts{};
        parts[0].vtype = RD_KAFKA_VTYPE_TOPIC;
        parts[0].u.cstr = to;
        parts[1].vtype = RD_KAFKA_VTYPE_MSGFLAGS;
        parts[1].u.i = RD_KAFKA_MSG_F_COPY;
        parts[2].vtype = RD_KAFKA_VTYPE_KEY;
        parts[2].u.mem = {key.data(), key.size()};
        parts[3].vtype = RD_KAFKA_VTYPE_VALUE;
        parts[3].u.mem = {body.data(), body.size()};
        const std::unique_ptr<rd_kafka_error_t, void (*)(rd_kafka_error_t*)> error(
            rd_kafka_produceva(handle_.get(), parts.data(), parts.size()), rd_kafka_error_destroy);
        if (error) throw std::runtime_error(rd_kafka_error_string(error.get()));
    }
    void flush() { check(rd_kafka_flush(handle_.get(), 20'000), "flush"); }

private:
    Handle handle_;
};

/// What the jobs have done: how often each.
class Effects {
public:
    void note(int job) {
        const std::lock_guard lock(mutex_);
        ++done_[job];
        ++count_;
    }
    [[nodiscard]] int count() const { return count_; }
    /// How many jobs were not done once. No consumer ends inside a handler here.
    [[nodiscard]] int wrong(int jobs) {
        const std::lock_guard lock(mutex_);
        int wrong = 0;
        for (int job = 0; job < jobs; ++job)
            wrong += done_[job] == (job % 10 == 0 ? 0 : 1) ? 0 : 1;  // every tenth can never work
        return wrong;
    }

private:
    std::mutex mutex_{};
    std::map<int, int> done_{};
    std::atomic<int> count_{0};
};

/// One member of the group, for one thread.
class Consumer {
public:
    Consumer(const std::string& address, idem::Inbox<idem::MemoryStore> inbox, Effects& effects)
        : inbox_(std::move(inbox)), effects_(effects), dead_(address) {
        rd_kafka_conf_t* conf =
            configured({{"bootstrap.servers", address},
                        {"group.id", "billing"},
                        {"enable.auto.commit", "false"},
                        {"auto.offset.reset", "earliest"},
                        {"session.timeout.ms", std::to_string(session_timeout.count())},
                        {"heartbeat.interval.ms", "500"}});
        rd_kafka_conf_set_opaque(conf, this);
        rd_kafka_conf_set_rebalance_cb(conf, rebalance);
        handle_ = opened(RD_KAFKA_CONSUMER, conf);
        (void)rd_kafka_poll_set_consumer(handle_);
        const auto topics = made_of(1);
        rd_kafka_topic_partition_list_add(topics.get(), topic, RD_KAFKA_PARTITION_UA);
        check(rd_kafka_subscribe(handle_, topics.get()), "subscribe");
    }
    Consumer(const Consumer&) = delete;
    Consumer& operator=(const Consumer&) = delete;
    ~Consumer() {
        // Gone without a word: nothing more is committed, and the group finds out by itself.
        rd_kafka_destroy_flags(handle_, vanishes_ ? RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE : 0);
    }
    void vanish() { vanishes_ = true; }

    /// Handles what comes within a moment.
    void step() {
        const std::unique_ptr<rd_kafka_message_t, void (*)(rd_kafka_message_t*)> message(
            rd_kafka_consumer_poll(handle_, 100), rd_kafka_message_destroy);
        if (!message) return commit();
        if (message->err != RD_KAFKA_RESP_ERR_NO_ERROR) return;
        const std::string body(static_cast<const char*>(message->payload), message->len);
        const std::string id(static_cast<const char*>(message->key), message->key_len);
        for (;;) {
            const auto outcome = inbox_.consume({id, body}, [&](idem::Execution& execution) {
                const int job = std::stoi(body);
                if (job % 10 == 0) throw idem::FinalError("no_account", body);
                if (job % 7 == 0 && execution.attempt() == 1)
                    throw std::runtime_error("the bank is away");
                std::this_thread::sleep_for(1ms);
                effects_.note(job);
            });
            if (outcome.action == idem::InboxAction::retry_later) {
                // In place: what is behind it in the partition waits, and keeps its order.
                std::this_thread::sleep_for(outcome.delay);
                continue;
            }
            if (outcome.action == idem::InboxAction::dead_letter) dead_.send(dead_topic, id, body);
            break;
        }
        done_[message->partition] = message->offset + 1;
        if (++uncommitted_ >= 10) commit();
    }
    void commit() {
        if (done_.empty()) return;
        const auto offsets = made_of(static_cast<int>(done_.size()));
        for (const auto& [partition, offset] : done_)
            rd_kafka_topic_partition_list_add(offsets.get(), topic, partition)->offset = offset;
        uncommitted_ = 0;
        // Refused while the group rebalances: again later, or by whoever has the partition then.
        // The inbox knows what that one reads again.
        if (rd_kafka_commit(handle_, offsets.get(), 0) == RD_KAFKA_RESP_ERR_NO_ERROR) done_.clear();
    }

private:
    using List = std::unique_ptr<rd_kafka_topic_partition_list_t,
                                 void (*)(rd_kafka_topic_partition_list_t*)>;
    [[nodiscard]] static List made_of(int size) {
        return {rd_kafka_topic_partition_list_new(size), rd_kafka_topic_partition_list_destroy};
    }
    static void rebalance(rd_kafka_t* handle, rd_kafka_resp_err_t what,
                          rd_kafka_topic_partition_list_t* partitions_of_it, void* self) {
        if (what == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS) {
            (void)rd_kafka_assign(handle, partitions_of_it);
            return;
        }
        auto& consumer = *static_cast<Consumer*>(self);
        if (!consumer.vanishes_) consumer.commit();
        consumer.done_.clear();  // these partitions may be another's now
        (void)rd_kafka_assign(handle, nullptr);
    }

    idem::Inbox<idem::MemoryStore> inbox_;
    Effects& effects_;
    Producer dead_;
    rd_kafka_t* handle_ = nullptr;
    std::map<std::int32_t, std::int64_t> done_{};
    int uncommitted_ = 0;
    bool vanishes_ = false;
};

/// Whether every partition is committed up to its end. Asks as a member of nothing.
bool all_committed(rd_kafka_t* asks) {
    const std::unique_ptr<rd_kafka_topic_partition_list_t,
                          void (*)(rd_kafka_topic_partition_list_t*)>
        offsets(rd_kafka_topic_partition_list_new(partitions),
                rd_kafka_topic_partition_list_destroy);
    for (int p = 0; p < partitions; ++p) rd_kafka_topic_partition_list_add(offsets.get(), topic, p);
    if (rd_kafka_committed(asks, offsets.get(), 5'000) != RD_KAFKA_RESP_ERR_NO_ERROR) return false;
    for (int p = 0; p < partitions; ++p) {
        std::int64_t low = 0;
        std::int64_t high = 0;
        if (rd_kafka_query_watermark_offsets(asks, topic, p, &low, &high, 5'000) !=
            RD_KAFKA_RESP_ERR_NO_ERROR)
            return false;
        if (offsets->elems[p].offset != high && !(high == 0 && offsets->elems[p].offset < 0))
            return false;
    }
    return true;
}

/// How long this process has stood still at the longest. Where that is longer than a session of the
/// group, its brokers take every member for dead, and may never come to an agreement again.
class Standstill {
public:
    [[nodiscard]] std::chrono::milliseconds longest() const {
        return std::chrono::milliseconds(longest_.load());
    }

private:
    std::atomic<std::int64_t> longest_{0};
    std::jthread looks_{[this](const std::stop_token& stop) {
        for (auto last = std::chrono::steady_clock::now(); !stop.stop_requested();) {
            std::this_thread::sleep_for(50ms);
            const auto now = std::chrono::steady_clock::now();
            const std::int64_t gap =
                std::chrono::duration_cast<std::chrono::milliseconds>(now - last).count();
            longest_ = std::max(longest_.load(), gap);
            last = now;
        }
    }};
};

/// Whether each job was done once, and every offset committed.
bool all_goes_well(int jobs) {
    const Cluster cluster;
    Producer producer(cluster.address());
    std::mt19937 random(1);
    std::vector<int> copies;
    for (int job = 0; job < jobs; ++job) copies.insert(copies.end(), 1 + random() % 3, job);
    std::shuffle(copies.begin(), copies.end(), random);
    for (const int job : copies)
        producer.add(topic, "job-" + std::to_string(job), std::to_string(job));
    producer.flush();

    const idem::MemoryStore store;
    idem::InboxOptions options;
    options.group = "billing";
    options.retry = {.first = 5ms, .longest = 50ms};
    const idem::Inbox inbox(store, options);
    Effects effects;
    std::atomic<bool> over{false};
    std::atomic<int> failures{0};
    const int expected = jobs - (jobs + 9) / 10;
    const auto member = [&](int begins_at, int vanishes_at) {
        while (effects.count() < begins_at && !over) std::this_thread::sleep_for(1ms);
        try {
            Consumer consumer(cluster.address(), inbox, effects);
            while (!over) {
                consumer.step();
                if (effects.count() >= vanishes_at) {
                    consumer.vanish();
                    return;
                }
            }
            consumer.commit();
        } catch (const std::exception& error) {
            std::fprintf(stderr, "kafka_consumers: %s\n", error.what());
            ++failures;
        }
    };
    constexpr int never = 1 << 30;
    std::vector<std::jthread> members;
    members.emplace_back(member, 0, never);
    members.emplace_back(member, 0, expected * 2 / 3);  // gone without a word
    members.emplace_back(member, expected / 3, never);  // joins in the middle

    const Handle asks(
        opened(RD_KAFKA_CONSUMER,
               configured({{"bootstrap.servers", cluster.address()}, {"group.id", "billing"}})),
        rd_kafka_destroy);
    // The members commit every ten messages, and when nothing comes.
    auto moved = std::chrono::steady_clock::now();
    for (int before = 0; before < expected && std::chrono::steady_clock::now() < moved + 45s;) {
        std::this_thread::sleep_for(50ms);
        if (effects.count() > before) moved = std::chrono::steady_clock::now();
        before = effects.count();
    }
    bool committed = false;
    const auto done = std::chrono::steady_clock::now();
    while (!committed && std::chrono::steady_clock::now() < done + 45s) {
        std::this_thread::sleep_for(50ms);
        committed = all_committed(asks.get());
    }
    over = true;
    members.clear();
    const int wrong = effects.wrong(jobs);
    std::printf("%d jobs in %zu messages: %d effects, %d wrong; offsets %s\n", jobs, copies.size(),
                effects.count(), wrong, committed ? "committed to the last" : "NOT COMMITTED");
    return wrong == 0 && committed && failures == 0;
}

int run(int jobs) {
    for (int scene = 0; scene < 3; ++scene) {
        const Standstill standstill;
        if (all_goes_well(jobs)) return 0;
        if (standstill.longest() < session_timeout / 2) break;
        std::printf("this machine stood still for %lld ms meanwhile: once more\n",
                    static_cast<long long>(standstill.longest().count()));
    }
    return 1;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc > 1 ? std::stoi(argv[1]) : 500);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "kafka_consumers: %s\n", error.what());
        return 1;
    }
}
