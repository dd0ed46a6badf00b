#ifndef IDEM_BENCHMARKS_HARNESS_HPP
#define IDEM_BENCHMARKS_HARNESS_HPP

// Timing by interleaved rounds, ratios, and the two reports: a table and JSON.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace bench {

/// Measure by the CPU time that was used, for a machine that others use meanwhile. Of one thread it
/// is as good as the wall clock on a free machine. Of several it is divided by the cores they could
/// have had: spinning for a lock counts, sleeping for one does not, so it flatters a little.
inline bool by_cpu_time = false;

[[nodiscard]] inline double nanoseconds(clockid_t clock) {
    timespec now{};
    (void)clock_gettime(clock, &now);
    return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

/// Runs `work(thread, begin, end)` on so many threads over [0, count), and answers nanoseconds per
/// item by the wall clock: what the machine gets done, not what one thread waits for.
template <class Work>
double time_threads(int threads, std::uint64_t count, const Work& work) {
    if (threads == 1) {  // in this thread, so that its memory is where the last round left it
        const clockid_t clock = by_cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
        const double from = nanoseconds(clock);
        work(0, std::uint64_t{0}, count);
        return (nanoseconds(clock) - from) / static_cast<double>(count);
    }
    std::atomic<int> ready{0};
    std::atomic<bool> go{false};
    std::vector<std::thread> all;
    const auto share = count / static_cast<std::uint64_t>(threads);
    for (int i = 0; i < threads; ++i) {
        all.emplace_back([&, i] {
            const auto begin = share * static_cast<std::uint64_t>(i);
            ready.fetch_add(1);
            while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
            work(i, begin, begin + share);
        });
    }
    while (ready.load() < threads) std::this_thread::yield();
    const clockid_t clock = by_cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
    const double from = nanoseconds(clock);
    go.store(true, std::memory_order_release);
    for (auto& thread : all) thread.join();
    const double took = nanoseconds(clock) - from;
    const int cores = std::min(threads, static_cast<int>(std::thread::hardware_concurrency()));
    return took / (by_cpu_time ? std::max(cores, 1) : 1) /
           static_cast<double>(share * static_cast<std::uint64_t>(threads));
}

[[nodiscard]] inline double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const auto half = values.size() / 2;
    return values.size() % 2 != 0 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// What is compared: one round of it gives a figure (ns per operation, bytes per record).
struct Subject {
    std::string name;
    std::function<double()> round;
};

/// The figures of each subject by round, so that ratios are taken within a round.
using Rounds = std::map<std::string, std::vector<double>>;

/// A B C A B C …: what the machine does meanwhile hits all alike.
[[nodiscard]] inline Rounds interleave(const std::vector<Subject>& subjects, int rounds) {
    Rounds out;
    for (int i = 0; i < rounds; ++i) {
        for (const auto& subject : subjects) out[subject.name].push_back(subject.round());
    }
    return out;
}

/// Median over rounds of a / b.
[[nodiscard]] inline double ratio(const Rounds& rounds, const std::string& a,
                                  const std::string& b) {
    std::vector<double> ratios;
    const auto& over = rounds.at(a);
    const auto& under = rounds.at(b);
    for (std::size_t i = 0; i < over.size(); ++i) ratios.push_back(over[i] / under[i]);
    return median(std::move(ratios));
}

class Report {
public:
    /// A measured figure with its spread over the rounds.
    void figures(const std::string& workload, const std::string& setting, const Rounds& rounds,
                 const std::string& unit = "ns/op") {
        for (const auto& [name, values] : rounds) {
            const auto [low, high] = std::minmax_element(values.begin(), values.end());
            const double middle = median(values);
            std::printf("%-12s %-18s %-26s %9.1f %-6s [%.1f .. %.1f]\n", workload.c_str(),
                        setting.c_str(), name.c_str(), middle, unit.c_str(), *low, *high);
            add("figure",
                {{"workload", workload}, {"setting", setting}, {"subject", name}, {"unit", unit}},
                {{"median", middle}, {"min", *low}, {"max", *high}});
        }
        (void)std::fflush(stdout);
    }

    /// A ratio beside its target; says whether it is met, and judges nobody.
    void target(const std::string& id, const std::string& what, double value, bool at_least,
                double wanted) {
        const bool met = at_least ? value >= wanted : value <= wanted;
        std::printf("%-12s %-46s %8.2f  target %s %.2f  %s\n", id.c_str(), what.c_str(), value,
                    at_least ? ">=" : "<=", wanted, met ? "met" : "MISSED");
        add("target", {{"id", id}, {"what", what}, {"met", met ? "yes" : "no"}},
            {{"value", value}, {"wanted", wanted}});
        (void)std::fflush(stdout);
    }

    /// @return false where the file cannot be written.
    [[nodiscard]] bool write_json(const std::string& path) const {
        std::ofstream out(path);
        out << "[\n";
        for (std::size_t i = 0; i < rows_.size(); ++i)
            out << "  " << rows_[i] << (i + 1 < rows_.size() ? ",\n" : "\n");
        out << "]\n";
        return static_cast<bool>(out.flush());
    }

private:
    /// Texts are the program's own words: they hold nothing that JSON would escape.
    void add(const std::string& kind, const std::vector<std::pair<std::string, std::string>>& texts,
             const std::vector<std::pair<std::string, double>>& numbers) {
        std::string row = "{\"kind\": \"" + kind + "\"";
        for (const auto& [name, value] : texts) row += ", \"" + name + "\": \"" + value + "\"";
        for (const auto& [name, value] : numbers)
            row += ", \"" + name + "\": " + std::to_string(value);
        rows_.push_back(row + "}");
    }

    std::vector<std::string> rows_{};
};

}  // namespace bench

#endif
