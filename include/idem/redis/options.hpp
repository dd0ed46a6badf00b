#ifndef IDEM_REDIS_OPTIONS_HPP
#define IDEM_REDIS_OPTIONS_HPP

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include <idem/clock.hpp>
#include <idem/detail/url.hpp>
#include <idem/error.hpp>
#include <idem/options.hpp>
#include <idem/redis/address.hpp>

namespace idem::inline v0_1 {

/// Where a `RedisStore` keeps its records and how long it waits for them.
struct RedisOptions {
    /// redis://[[user]:password@]host[:port][/database], redis+unix://[[user]:password@]/path. The
    /// options behind `?` are the fields below by name (`database` too); times with `_ms` behind.
    /// rediss:// is redis:// over TLS, in a program that includes <idem/redis/tls.hpp>.
    std::string url{};
    /// Goes before every key: two programs with the same prefix share their records. At most 64
    /// bytes, no `{`.
    std::string prefix = "idem:";
    /// What CLIENT LIST shows of each connection. Visible ASCII without blanks; empty: nothing.
    std::string client_name = "idem";
    /// At most so many at once; more callers than that wait for each other.
    std::size_t connections = 8;
    /// For name resolution, every address of the host, and the login together.
    Duration connect_timeout = std::chrono::seconds{2};
    /// For one round trip. A server that does not answer in it is taken for dead.
    Duration command_timeout = std::chrono::seconds{2};
    /// For a whole request: a free connection, connecting, and every retry. What cannot be done in
    /// it is `UnavailableError`. At most a third of the shortest lease, or heartbeats come too
    /// late.
    Duration time_allowed = std::chrono::seconds{5};
    /// So many replicas must have acknowledged a write (WAIT), or it counts as not done and a claim
    /// is undone. Narrows what a failover loses; some failovers lose it all the same.
    std::size_t replicas = 0;
    /// How long they have for it. Must be shorter than `command_timeout`.
    Duration replica_timeout = std::chrono::milliseconds{500};
    /// Refuse a server whose maxmemory-policy may evict a claim: its key would run twice.
    bool refuse_eviction = false;
    /// PEM files: whom to trust (empty: whom the system trusts), and our own certificate with its
    /// key, where the server asks for one. Read once, when the store is made.
    std::string tls_ca{};
    std::string tls_cert{};
    std::string tls_key{};
    /// Whom the server's certificate must name, and SNI. Empty: the host of the URL.
    std::string tls_name{};
    /// False takes any certificate: whoever sits between reads the password.
    bool tls_verify = true;
    /// Told, once for each store and policy, where the server may evict claims. Called in the
    /// thread of the request that found it out; what it throws is swallowed.
    std::function<void(std::string_view)> notice{};
    /// Whether a claim is first tried as a plain read, which answers a repeat at a fraction of the
    /// server's work and costs a first call one round trip more. Empty: while most are repeats.
    std::optional<bool> look_first{};
    /// For tests: a Lua expression of "now", in microseconds since 1970. Empty: the server's clock.
    std::string clock_lua{};
};

namespace redis {

/// What a URL says. @throws UsageError; it repeats nothing of the place, which may hold a password.
struct Target {
    Place place{};
    Login login{};
};

namespace detail {

[[noreturn]] inline void refuse_url(const std::string& why) {
    throw UsageError("RedisOptions::url: " + why);
}

template <class Number>
[[nodiscard]] Number number_of(std::string_view name, std::string_view text) {
    Number number{};
    const auto* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc{} || at != end)
        refuse_url(std::string(name) + " must be a whole number, in its range");
    return number;
}

[[nodiscard]] inline bool flag_of(std::string_view name, std::string_view text) {
    if (text == "yes") return true;
    if (text != "no") refuse_url(std::string(name) + " must be yes or no");
    return false;
}

inline void read_option(RedisOptions& o, Target& to, const std::string& name,
                        const std::string& value) {
    const auto millis = [&] {
        return Duration(std::chrono::milliseconds(number_of<std::uint32_t>(name, value)));
    };
    if (name == "prefix") {
        o.prefix = value;
    } else if (name == "client_name") {
        o.client_name = value;
    } else if (name == "database") {
        to.login.database = number_of<unsigned>(name, value);
    } else if (name == "connections") {
        o.connections = number_of<std::size_t>(name, value);
    } else if (name == "connect_timeout_ms") {
        o.connect_timeout = millis();
    } else if (name == "command_timeout_ms") {
        o.command_timeout = millis();
    } else if (name == "time_allowed_ms") {
        o.time_allowed = millis();
    } else if (name == "replicas") {
        o.replicas = number_of<std::size_t>(name, value);
    } else if (name == "replica_timeout_ms") {
        o.replica_timeout = millis();
    } else if (name == "refuse_eviction") {
        o.refuse_eviction = flag_of(name, value);
    } else if (name == "tls_ca") {
        o.tls_ca = value;
    } else if (name == "tls_cert") {
        o.tls_cert = value;
    } else if (name == "tls_key") {
        o.tls_key = value;
    } else if (name == "tls_name") {
        o.tls_name = value;
    } else if (name == "tls_verify") {
        o.tls_verify = flag_of(name, value);
    } else {
        refuse_url("there is no option \"" + name +
                   "\"; there are prefix, client_name, database, connections, connect_timeout_ms, "
                   "command_timeout_ms, time_allowed_ms, replicas, replica_timeout_ms, "
                   "refuse_eviction, tls_ca, tls_cert, tls_key, tls_name, tls_verify");
    }
}

inline void read_host(std::string_view text, Target& to) {
    auto port = std::string_view();
    if (text.starts_with('[')) {
        const auto end = text.find(']');
        if (end == text.npos) refuse_url("an address in brackets has no end");
        to.place.host = text.substr(1, end - 1);
        port = text.substr(end + 1);
        if (!port.empty() && port[0] != ':') refuse_url("there is something behind the bracket");
    } else {
        const auto colon = text.find(':');
        to.place.host = idem::detail::percent_decode(text.substr(0, colon));
        port = colon == text.npos ? std::string_view() : text.substr(colon);
    }
    if (to.place.host.empty()) refuse_url("it names no host");
    if (port.empty()) return;
    to.place.port = number_of<std::uint16_t>("the port", port.substr(1));
    if (to.place.port == 0) refuse_url("the port is 0");
}

[[nodiscard]] inline std::shared_ptr<const Encryption> encryption_of(const RedisOptions& o) {
    const MakeEncryption make = make_encryption.load();
    if (make == nullptr)
        refuse_url("rediss:// needs TLS: include <idem/redis/tls.hpp> and link idem::redis_tls");
    if (o.tls_cert.empty() != o.tls_key.empty())
        throw UsageError("RedisOptions: tls_cert and tls_key must be given together");
    return make({o.tls_verify, o.tls_name, o.tls_ca, o.tls_cert, o.tls_key});
}
/// Whoever sets one means to be encrypted.
inline void refuse_tls_options(const RedisOptions& o) {
    if (!o.tls_verify || !(o.tls_ca + o.tls_cert + o.tls_key + o.tls_name).empty())
        throw UsageError("RedisOptions: tls_... is set, and the URL is not rediss://");
}

}  // namespace detail

/// Reads the URL; its options go into `options`.
[[nodiscard]] inline Target read_url(RedisOptions& options) {
    using idem::detail::percent_decode;
    const auto url = idem::detail::parse_url(options.url);
    if (!url) detail::refuse_url("it is not redis://host:port/database?name=value");
    const bool tls = url->scheme == "rediss";
    const bool path = url->scheme == "redis+unix";
    if (!path && !tls && url->scheme != "redis")
        detail::refuse_url("its scheme is none of redis, rediss and redis+unix");
    Target to;
    std::string_view place = url->place;
    const auto slash = place.find('/');
    const auto at = place.substr(0, slash).rfind('@');
    if (at != place.npos) {
        const auto login = place.substr(0, at);
        place.remove_prefix(at + 1);
        const auto colon = login.find(':');
        if (colon == login.npos) detail::refuse_url("a user without a password: user:password@");
        to.login.user = percent_decode(login.substr(0, colon));
        to.login.password = percent_decode(login.substr(colon + 1));
    }
    if (path) {
        to.place.path = percent_decode(place);
        if (!place.starts_with('/')) detail::refuse_url("a socket's path begins with /");
    } else {
        const auto end = std::min(place.find('/'), place.size());
        detail::read_host(place.substr(0, end), to);
        const auto database = place.substr(std::min(end + 1, place.size()));
        if (!database.empty())
            to.login.database = detail::number_of<unsigned>("the database", database);
    }
    for (const auto& [name, value] : url->options) detail::read_option(options, to, name, value);
    to.login.name = options.client_name;
    if (tls) {
        to.place.encryption = detail::encryption_of(options);
        (void)to.place.encryption->begin(to.place.host);  // a name that TLS cannot use
    }
    if (!tls) detail::refuse_tls_options(options);
    return to;
}

/// @throws UsageError, naming the field.
inline void check(const RedisOptions& o) {
    idem::detail::check_duration(o.connect_timeout, "RedisOptions::connect_timeout");
    idem::detail::check_duration(o.command_timeout, "RedisOptions::command_timeout");
    idem::detail::check_duration(o.time_allowed, "RedisOptions::time_allowed");
    idem::detail::check_duration(o.replica_timeout, "RedisOptions::replica_timeout");
    if (o.connections == 0) throw UsageError("RedisOptions::connections is 0");
    if (o.prefix.size() > 64 || o.prefix.find('{') != std::string::npos)
        throw UsageError("RedisOptions::prefix has more than 64 bytes, or a {");
    for (const char c : o.client_name)
        if (c < '!' || c > '~')
            throw UsageError("RedisOptions::client_name must be visible ASCII without blanks");
    if (o.replicas > 0 && o.replica_timeout >= o.command_timeout)
        throw UsageError(
            "RedisOptions::replica_timeout must be shorter than RedisOptions::command_timeout: a "
            "slow replica would look like a dead server");
}

}  // namespace redis

}  // namespace idem::inline v0_1

#endif
