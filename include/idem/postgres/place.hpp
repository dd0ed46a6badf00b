#ifndef IDEM_POSTGRES_PLACE_HPP
#define IDEM_POSTGRES_PLACE_HPP

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <idem/error.hpp>

namespace idem::inline v0_1::postgres {

/// One server of a connection string.
struct Place {
    std::string host{};
    std::string address{};  ///< Numeric; empty: to be found by the host's name.
    std::string port{};

    [[nodiscard]] bool is_path() const noexcept {
        return host.empty() || host[0] == '/' || host[0] == '@';
    }
    /// For messages.
    [[nodiscard]] std::string name() const {
        const std::string& shown = host.empty() ? address : host;
        return (shown.empty() ? "the default socket" : shown) + (port.empty() ? "" : ":" + port);
    }
};

namespace detail {

[[nodiscard]] inline std::vector<std::string> split_at_commas(const std::string& list) {
    std::vector<std::string> out;
    for (std::size_t at = 0;;) {
        const auto comma = list.find(',', at);
        out.push_back(list.substr(at, comma - at));
        if (comma == std::string::npos) return out;
        at = comma + 1;
    }
}

}  // namespace detail

/// The places of libpq's comma-separated lists. @throws UsageError where they do not pair up.
[[nodiscard]] inline std::vector<Place> places_of(const std::string& host,
                                                  const std::string& address,
                                                  const std::string& port) {
    const auto hosts = detail::split_at_commas(host);
    const auto addresses = detail::split_at_commas(address);
    const auto ports = detail::split_at_commas(port);
    const std::size_t count = std::max(hosts.size(), addresses.size());
    const auto fits = [&](const auto& list) { return list.size() == 1 || list.size() == count; };
    if (!fits(hosts) || !fits(addresses) || !fits(ports))
        throw UsageError("the connection string names hosts, addresses and ports that do not pair");
    const auto at = [](const auto& list, std::size_t i) {
        return list.size() == 1 ? list[0] : list[i];
    };
    std::vector<Place> out;
    for (std::size_t i = 0; i < count; ++i)
        out.push_back({at(hosts, i), at(addresses, i), at(ports, i)});
    return out;
}

}  // namespace idem::inline v0_1::postgres

#endif
