#ifndef IDEM_REDIS_TOPOLOGY_HPP
#define IDEM_REDIS_TOPOLOGY_HPP

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include <idem/redis/pool.hpp>

namespace idem::inline v0_1::redis {

/// Which server has a key, and what to do where it says that it has not: the seam behind which one
/// server, a Sentinel's master or a Cluster lie. For any thread.
class Topology {
public:
    virtual ~Topology() = default;
    Topology() = default;
    Topology(const Topology&) = delete;
    Topology& operator=(const Topology&) = delete;

    /// How many servers there are to ask at the moment; at least one.
    [[nodiscard]] virtual std::size_t nodes() const = 0;
    /// The one that has a key. Keys of one batch go out by node.
    [[nodiscard]] virtual std::size_t node_of(std::string_view name) const = 0;
    [[nodiscard]] virtual Pool& pool(std::size_t node) = 0;
    /// A server has sent us away or is not the master any more. True where the same again may find
    /// another one; else the fault is changed to what the caller is to be told.
    [[nodiscard]] virtual bool moved(Fault& fault) = 0;
};

/// One server, always the same.
class SingleServer final : public Topology {
public:
    SingleServer(Place place, Login login, std::size_t connections, Duration connect_timeout)
        : pool_({std::move(place), std::move(login)}, connections, connect_timeout) {}

    [[nodiscard]] std::size_t nodes() const override { return 1; }
    [[nodiscard]] std::size_t node_of(std::string_view) const override { return 0; }
    [[nodiscard]] Pool& pool(std::size_t) override { return pool_; }
    /// A name that leads to another master after a failover is worth a new connection; a node of a
    /// cluster stays one.
    [[nodiscard]] bool moved(Fault& fault) override {
        if (fault.cure != Cure::redirect) return true;
        fault.cure = Cure::usage;
        fault.message += " (the server is a node of a cluster; redis:// is for a single server)";
        return false;
    }

private:
    Pool pool_;
};

}  // namespace idem::inline v0_1::redis

#endif
