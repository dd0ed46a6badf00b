#ifndef TRANSCODE_COUNTERS_HPP
#define TRANSCODE_COUNTERS_HPP

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include <idem/events.hpp>

namespace transcode {

/// What was decided how often, by scope and kind of event. Any thread may call any member.
class Counters {
public:
    void count(const std::string& scope, const std::string& kind) {
        const std::scoped_lock lock(mutex_);
        ++counts_[{scope, kind}];
    }
    void count(const idem::Event& event) { count(std::string(event.scope), to_string(event.kind)); }

    /// In the text format that Prometheus reads.
    [[nodiscard]] std::string text() const {
        const std::scoped_lock lock(mutex_);
        std::string out = "# TYPE idem_events_total counter\n";
        for (const auto& [name, value] : counts_)
            out += "idem_events_total{scope=\"" + name.first + "\",kind=\"" + name.second + "\"} " +
                   std::to_string(value) + '\n';
        return out;
    }

private:
    mutable std::mutex mutex_{};
    std::map<std::pair<std::string, std::string>, std::uint64_t> counts_{};
};

}  // namespace transcode

#endif
