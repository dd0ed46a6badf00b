// A gateway before a model: inference_gateway [STORE-URL]. The same (request id, input) is inferred
// once, in a batch with others; a training job is begun once for its id. Sends itself what
// impatient clients send, counts what reached the model, and fails if that was anything twice.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <exception>
#include <map>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <idem/idem.hpp>
#ifdef GATEWAY_HAS_REDIS
#include <idem/redis.hpp>
#endif
#ifdef GATEWAY_HAS_POSTGRES
#include <idem/postgres.hpp>
#endif

namespace {

using namespace std::chrono_literals;
using Kind = idem::OutcomeKind;

struct Inference {
    std::string label{};
    double score = 0;
    static constexpr std::string_view idem_name = "gateway.Inference";
    static constexpr auto idem_fields = std::tuple{&Inference::label, &Inference::score};
};

struct Request {
    std::string id{};
    std::string input{};
};

/// Stands for the GPU: one pass takes as long for sixteen inputs as for one.
class Model {
public:
    static constexpr const char* version = "tone-3";

    std::vector<Inference> infer(std::span<const std::string> inputs) {
        std::this_thread::sleep_for(2ms);
        ++passes;
        std::vector<Inference> out;
        for (const auto& input : inputs) {
            const auto loud = std::count_if(input.begin(), input.end(),
                                            [](unsigned char c) { return c >= 'A' && c <= 'Z'; });
            const double score = static_cast<double>(loud) / static_cast<double>(input.size() + 1);
            out.push_back({score > 0.3 ? "loud" : "calm", score});
        }
        const std::lock_guard lock(mutex_);
        for (const auto& input : inputs) ++seen_[input];
        return out;
    }
    std::string train(const std::string& job) {
        std::this_thread::sleep_for(5ms);
        const std::lock_guard lock(mutex_);
        return "model-" + std::to_string(++trained) + "-of-" + job;
    }
    [[nodiscard]] std::size_t inferred_twice() const {
        return static_cast<std::size_t>(std::count_if(
            seen_.begin(), seen_.end(), [](const auto& input) { return input.second > 1; }));
    }
    [[nodiscard]] std::size_t inputs() const { return seen_.size(); }

    std::atomic<int> passes{0};
    int trained = 0;

private:
    std::mutex mutex_{};
    std::map<std::string, int> seen_{};
};

class Gateway {
public:
    Gateway(const idem::AnyStore& store, Model& model)
        : guard_(store, {.wait = 10s}), model_(model) {}

    /// One pass for those of the requests that nobody has inferred yet.
    void infer(std::span<const Request> requests) {
        std::vector<idem::BatchCall> calls;
        for (const auto& request : requests) calls.push_back(call_of(request));
        const auto outcomes =
            guard_.run_batch(calls, [&](std::span<idem::Execution* const> executions) {
                std::vector<std::string> inputs;
                for (const auto* execution : executions)
                    inputs.push_back(requests[execution->index()].input);
                return model_.infer(inputs);
            });
        for (std::size_t i = 0; i < requests.size(); ++i) {
            const auto& first = outcomes[i].get();
            if (first.kind() != Kind::in_progress) {
                note(requests[i], first);
                continue;
            }
            // Another batch has it: its answer is waited for.
            note(requests[i], guard_.run(calls[i].key, calls[i].fingerprint, [&] {
                return model_.infer(std::array{requests[i].input}).front();
            }));
        }
    }
    void train(const std::string& job) {
        const auto outcome =
            guard_.run({.scope = "training", .id = job}, {}, [&] { return model_.train(job); });
        const std::lock_guard lock(mutex_);
        ++counts_["training asked for"];
        if (models_.emplace(job, outcome.value()).first->second != outcome.value()) ++wrong_;
    }
    /// Prints the table. The number of answers that were not the first one.
    int report() {
        for (const auto& [what, count] : counts_) std::printf("%-28s %6d\n", what.c_str(), count);
        const int spared = counts_["answered from the record"];
        std::printf("%-28s %6d\n%-28s %6d\n%-28s %5.1f%%\n", "passes of the model",
                    model_.passes.load(), "training runs", model_.trained, "interception rate",
                    100.0 * spared / std::max(1, spared + counts_["inferred"]));
        return wrong_;
    }

private:
    [[nodiscard]] static idem::BatchCall call_of(const Request& request) {
        return {{.scope = "inference", .id = request.id},
                idem::Fingerprint::of(Model::version, request.input)};
    }
    void note(const Request& request, const idem::Outcome<Inference>& outcome) {
        const std::lock_guard lock(mutex_);
        const bool executed = outcome.kind() == Kind::executed;
        ++counts_[executed                           ? "inferred"
                  : outcome.kind() == Kind::replayed ? "answered from the record"
                                                     : "refused: other input"];
        if (!outcome.has_value()) return;
        const auto& value = outcome.value();
        const auto [first, fresh] = answers_.emplace(request.id, value);
        if (first->second.label != value.label || first->second.score != value.score) ++wrong_;
    }

    idem::IdempotencyGuard<idem::AnyStore> guard_;
    Model& model_;
    std::mutex mutex_{};
    std::map<std::string, int> counts_{};
    std::map<std::string, Inference> answers_{};
    std::map<std::string, std::string> models_{};
    int wrong_ = 0;
};

/// Each request one to five times, a few ids with another input, all in disorder.
std::vector<Request> impatient(const std::string& run, std::size_t count) {
    std::mt19937 random(7);
    std::vector<Request> out;
    for (std::size_t i = 0; i < count; ++i) {
        const auto number = std::to_string(i);
        const Request request{run + "/" + number, (i % 3 == 0 ? "TAKE " : "take ") + number};
        out.insert(out.end(), 1 + random() % 5, request);
    }
    std::shuffle(out.begin(), out.end(), random);
    return out;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        Model model;
        const std::string run = std::to_string(idem::LocalClock::now().time_since_epoch().count());
        const std::string url = argc > 1 ? argv[1] : "memory://";
#ifdef GATEWAY_HAS_POSTGRES
        if (url.starts_with("postgres")) idem::PostgresStore({.conninfo = url}).create_schema();
#endif
        Gateway gateway(idem::open_store(url), model);
        const auto requests = impatient(run, 400);
        std::atomic<std::size_t> next{0};
        {
            std::vector<std::jthread> clients;
            for (int i = 0; i < 4; ++i)
                clients.emplace_back([&] {
                    constexpr std::size_t batch = 16;
                    for (auto at = next.fetch_add(batch); at < requests.size();
                         at = next.fetch_add(batch))
                        gateway.infer(
                            std::span(requests).subspan(at, std::min(batch, requests.size() - at)));
                    for (int job = 0; job < 3; ++job)
                        gateway.train(run + "." + std::to_string(job));
                });
        }
        const std::array corrected{Request{requests.front().id, "another input"}};
        gateway.infer(corrected);
        const int wrong = gateway.report();
        const bool good = wrong == 0 && model.inferred_twice() == 0 && model.inputs() == 400 &&
                          model.trained == 3;
        std::printf("%s\n", good ? "each input was inferred once" : "SOMETHING RAN TWICE");
        return good ? 0 : 1;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "inference_gateway: %s\n", error.what());
        return 1;
    }
}
