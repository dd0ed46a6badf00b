#ifndef IDEM_REDIS_ADDRESS_HPP
#define IDEM_REDIS_ADDRESS_HPP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <idem/redis/encryption.hpp>

namespace idem::inline v0_1::redis {

/// One server: a host and a port, or the path of a Unix socket.
struct Place {
    std::string host{};
    std::uint16_t port = 6379;
    std::string path{};
    std::shared_ptr<const Encryption> encryption{};  ///< Null: bytes go as they are.

    /// For messages.
    [[nodiscard]] std::string name() const {
        if (!path.empty()) return path;
        const bool six = host.find(':') != std::string::npos;
        return (six ? "[" + host + "]" : host) + ":" + std::to_string(port);
    }
};

/// Who one is there, and in which database.
struct Login {
    std::string user{};
    std::string password{};
    unsigned database = 0;
    std::string name{};  ///< What CLIENT LIST shows.
};

}  // namespace idem::inline v0_1::redis

#endif
