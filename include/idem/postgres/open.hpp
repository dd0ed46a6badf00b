#ifndef IDEM_POSTGRES_OPEN_HPP
#define IDEM_POSTGRES_OPEN_HPP

#include <string>
#include <utility>

#include <idem/any_store.hpp>
#include <idem/postgres/store.hpp>

/// Teaches `open_store` the schemes `postgres://` and `postgresql://`.
namespace idem::inline v0_1::postgres {

/// libpq's own URI, with three more options: idem_schema, idem_table, idem_connections.
/// @throws UsageError.
[[nodiscard]] inline PostgresOptions options_of(const idem::detail::Url& url) {
    PostgresOptions options;
    const std::string query = url.text.substr(std::min(url.text.find('?'), url.text.size()));
    std::string kept;
    for (std::size_t at = 1; at < query.size();) {
        const auto end = std::min(query.find('&', at), query.size());
        const std::string option = query.substr(at, end - at);
        at = end + 1;
        const auto equals = option.find('=');
        const std::string name = option.substr(0, equals);
        const std::string value = idem::detail::percent_decode(option.substr(equals + 1));
        if (name == "idem_schema") {
            options.schema = value;
        } else if (name == "idem_table") {
            options.table = value;
        } else if (name == "idem_connections") {
            options.connections = idem::detail::url_number(name, value);
        } else {
            kept += (kept.empty() ? "?" : "&") + option;
        }
    }
    options.conninfo = url.text.substr(0, url.text.size() - query.size()) + kept;
    return options;
}

/// @throws UsageError. The table is looked at by the first request, or by `verify`.
[[nodiscard]] inline AnyStore open_postgres_store(const idem::detail::Url& url) {
    return PostgresStore(options_of(url));
}

inline const bool schemes_added = idem::detail::add_store_scheme("postgres", open_postgres_store) &&
                                  idem::detail::add_store_scheme("postgresql", open_postgres_store);

}  // namespace idem::inline v0_1::postgres

#endif
