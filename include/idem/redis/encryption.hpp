#ifndef IDEM_REDIS_ENCRYPTION_HPP
#define IDEM_REDIS_ENCRYPTION_HPP

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

/// The seam behind which TLS lies: without <idem/redis/tls.hpp> there is none, and no libssl.
namespace idem::inline v0_1::redis {

/// Files are PEM.
struct TlsSettings {
    bool verify = true;
    std::string name{};  ///< Whom the certificate must name; empty: the host.
    std::string ca{};    ///< Whom to trust; empty: whom the system trusts.
    std::string cert{};  ///< Our own certificate, and its key; empty: none.
    std::string key{};
};

/// The encryption of one connection. It does no I/O: the connection carries the bytes, with its own
/// deadlines and without SIGPIPE. For one thread at a time.
class Cipher {
public:
    enum class Handshake : std::uint8_t { goes_on, done, failed };

    Cipher() = default;
    Cipher(const Cipher&) = delete;
    Cipher& operator=(const Cipher&) = delete;
    virtual ~Cipher() = default;

    /// Takes what has arrived, and appends what is to be sent, at its end too.
    [[nodiscard]] virtual Handshake shake_hands(std::string_view arrived, std::string& out) = 0;
    /// Appends the bytes as they go over the wire. False where nothing can be sent any more.
    [[nodiscard]] virtual bool seal(std::string_view plain, std::string& out) = 0;
    /// Appends what has arrived, as it was meant. False at the end of the connection, or of sense.
    [[nodiscard]] virtual bool open(std::string_view arrived, std::string& plain) = 0;
    /// Why something was false or failed; may be empty.
    [[nodiscard]] virtual std::string why() const = 0;
    /// Whether one side does not trust the other's certificate: no retry will help.
    [[nodiscard]] virtual bool distrust() const = 0;
};

/// How the connections to a server are encrypted. For any thread.
class Encryption {
public:
    Encryption() = default;
    Encryption(const Encryption&) = delete;
    Encryption& operator=(const Encryption&) = delete;
    virtual ~Encryption() = default;

    /// @param host a name or an address, whom the certificate must be for.
    [[nodiscard]] virtual std::unique_ptr<Cipher> begin(const std::string& host) const = 0;
};

using MakeEncryption = std::shared_ptr<const Encryption> (*)(const TlsSettings&);

/// Set by the header that has TLS.
inline std::atomic<MakeEncryption> make_encryption{nullptr};

}  // namespace idem::inline v0_1::redis

#endif
