#ifndef IDEM_TESTING_CONFORMANCE_HPP
#define IDEM_TESTING_CONFORMANCE_HPP

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <idem/testing/conformance_batch.hpp>
#include <idem/testing/conformance_lockstep.hpp>

/// The kit that asks a store for its promises, independent of any test framework:
///
///     struct World {                       // a fresh store and power over its clock
///         ManualClock clock{};
///         MyStore made{clock};
///         MyStore& store() { return made; }
///         void advance(idem::Duration by) { clock.advance(by); }
///         idem::Instant now() { return clock.now(); }
///     };
///     const auto report = conformance::run([] { return World{}; });
///     report.print(std::cout);
///     return report.ok() ? 0 : 1;
///
/// First each promise on a store of its own, then random histories in lockstep with `protocol.hpp`:
/// every reply and every record is compared after every step, and a history that differs is cut
/// down to the steps that matter. `conformance_base.hpp` says what a world may have.
namespace idem::inline v0_1::testing::conformance {

struct Options {
    std::uint64_t seed = 1;
    /// At least so many, and up to ten times as many until each kind of event has been met.
    std::size_t histories = 200;
    std::size_t steps = 80;      ///< Of each history.
    std::size_t shrinks = 2000;  ///< Runs spent at most on cutting a failing history down.
    /// Off for a few short histories, which cannot meet everything.
    bool everything_reached = true;
};

struct Report {
    struct Asked {
        int number = 0;
        std::string sentence{};
        std::string broken{};  ///< Empty where the promise was kept.
    };

    std::uint64_t seed = 0;
    std::vector<Asked> promises{};
    std::size_t histories = 0;
    std::size_t steps = 0;
    std::string difference{};  ///< Of the first history that differs; empty where none does.
    std::string history{};     ///< That history, cut down.
    std::uint64_t history_seed = 0;
    Reached reached{};
    bool everything_reached = true;

    [[nodiscard]] bool ok() const {
        for (const auto& promise : promises)
            if (!promise.broken.empty()) return false;
        return difference.empty() && unreached().empty();
    }
    /// The kinds of event that no history has met although they must.
    [[nodiscard]] std::vector<Reach> unreached() const {
        std::vector<Reach> out;
        for (std::size_t i = 0; everything_reached && i < reached.size(); ++i)
            if (reached[i] == 0) out.push_back(static_cast<Reach>(i));
        return out;
    }

    void print(std::ostream& out) const {
        out << "seed " << seed << "\n";
        for (const auto& promise : promises) {
            out << (promise.broken.empty() ? "  kept   " : "  BROKEN ") << promise.number << " "
                << promise.sentence << "\n";
            if (!promise.broken.empty()) out << "         " << promise.broken << "\n";
        }
        out << "  " << histories << " histories, " << steps << " steps, which met\n";
        for (std::size_t i = 0; i < reached.size(); ++i)
            out << "    " << to_string(static_cast<Reach>(i)) << ": " << reached[i] << "\n";
        for (const auto reach : unreached())
            out << "  BROKEN no history met: " << to_string(reach) << "\n";
        if (difference.empty()) return;
        out << "  BROKEN the history of seed " << history_seed << " differs: " << difference << "\n"
            << history;
    }
};

namespace detail {

template <class Factory>
void ask_promises(Factory& factory, Report& report) {
    using World = std::remove_cvref_t<decltype(factory())>;
    for (const auto& part : {claim_promises<World>(), finish_promises<World>(),
                             port_promises<World>(), batch_promises<World>()}) {
        for (const auto& promise : part) {
            Report::Asked asked{promise.number, promise.sentence, {}};
            try {
                auto world = factory();
                Bench<World> bench(world);
                promise.ask(bench);
            } catch (const std::exception& error) {
                asked.broken = *error.what() != '\0' ? error.what() : "an exception without a text";
            } catch (...) {
                asked.broken = "threw something that is no std::exception";
            }
            report.promises.push_back(std::move(asked));
        }
    }
}

template <class Factory>
[[nodiscard]] std::optional<std::string> run_history(Factory& factory,
                                                     const std::vector<Step>& steps,
                                                     Reached& reached,
                                                     std::string* trace = nullptr) {
    auto world = factory();
    return Lockstep<std::remove_cvref_t<decltype(world)>>(world, reached).run(steps, trace);
}

/// Leaves out ever smaller pieces for as long as what is left still fails.
template <class Factory>
[[nodiscard]] std::vector<Step> shrink(Factory& factory, std::vector<Step> steps,
                                       std::size_t runs) {
    Reached ignored{};
    for (std::size_t piece = steps.size() / 2; piece > 0;) {
        bool shorter = false;
        for (std::size_t at = 0; at + piece <= steps.size() && runs > 0;) {
            std::vector<Step> fewer = steps;
            const auto from = fewer.begin() + static_cast<std::ptrdiff_t>(at);
            fewer.erase(from, from + static_cast<std::ptrdiff_t>(piece));
            --runs;
            if (run_history(factory, fewer, ignored)) {
                steps = std::move(fewer);
                shorter = true;
            } else {
                at += piece;
            }
        }
        if (piece > 1) {
            piece /= 2;
        } else if (!shorter || runs == 0) {
            break;
        }
    }
    return steps;
}

template <class Factory>
void run_histories(Factory& factory, const Options& options, Report& report) {
    const auto goes_on = [&](std::size_t done) {
        return done < options.histories ||
               (done < 10 * options.histories && !report.unreached().empty());
    };
    for (std::size_t i = 0; goes_on(i); ++i) {
        const std::uint64_t seed = options.seed * 1'000'003 + i;
        const auto steps = make_history(seed, options.steps);
        ++report.histories;
        report.steps += steps.size();
        if (!run_history(factory, steps, report.reached)) continue;
        const auto least = shrink(factory, steps, options.shrinks);
        Reached ignored{};
        report.history_seed = seed;
        const auto difference = run_history(factory, least, ignored, &report.history);
        report.difference = difference.value_or("it did not fail again when it was repeated");
        return;
    }
}

}  // namespace detail

/// Asks every promise and runs the histories. `factory` makes a world: a store of its own, or a
/// prefix of its own on a shared one. It is called once for each promise and history.
template <class Factory>
[[nodiscard]] Report run(Factory&& factory, const Options& options = {}) {
    static_assert(world<std::remove_cvref_t<decltype(factory())>>);
    Report report;
    report.seed = options.seed;
    report.everything_reached = options.everything_reached;
    detail::ask_promises(factory, report);
    detail::run_histories(factory, options, report);
    return report;
}

}  // namespace idem::inline v0_1::testing::conformance

#endif
