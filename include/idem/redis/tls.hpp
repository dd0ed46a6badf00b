#ifndef IDEM_REDIS_TLS_HPP
#define IDEM_REDIS_TLS_HPP

#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include <idem/error.hpp>
#include <idem/redis/encryption.hpp>

/// Makes `rediss://` work in the program that includes this once, anywhere: TLS 1.2 or later, and
/// the server's certificate is verified, its name too, unless `tls_verify=no`. Needs
/// idem::redis_tls (OpenSSL's libssl). hiredis_ssl is not used: its sockets would be hiredis's.
namespace idem::inline v0_1::redis {

namespace detail {

struct FreeSsl {
    void operator()(SSL_CTX* c) const noexcept { SSL_CTX_free(c); }
    void operator()(SSL* s) const noexcept { SSL_free(s); }
};

/// OpenSSL's word for the first error of this thread, which is taken away.
[[nodiscard]] inline std::string ssl_error() {
    const auto code = ERR_get_error();
    ERR_clear_error();
    const char* text = code == 0 ? nullptr : ERR_reason_error_string(code);
    return text == nullptr ? std::string() : std::string(text);
}

[[nodiscard]] inline bool is_address(const std::string& host) {
    in6_addr ignored{};
    return inet_pton(AF_INET, host.c_str(), &ignored) == 1 ||
           inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

class TlsCipher final : public Cipher {
public:
    TlsCipher(SSL_CTX* context, const std::string& name, bool verify) : ssl_(SSL_new(context)) {
        BIO* in = BIO_new(BIO_s_mem());
        BIO* out = BIO_new(BIO_s_mem());
        if (!ssl_ || in == nullptr || out == nullptr) {
            BIO_free(in);
            BIO_free(out);
            throw std::bad_alloc();
        }
        BIO_set_mem_eof_return(in, -1);  // empty means: more will come
        SSL_set_bio(ssl_.get(), in, out);
        SSL_set_connect_state(ssl_.get());
        const bool address = is_address(name);
        std::string sni = name;
        bool set = address || SSL_ctrl(ssl_.get(), SSL_CTRL_SET_TLSEXT_HOSTNAME,
                                       TLSEXT_NAMETYPE_host_name, sni.data()) == 1;
        if (set && verify && address)
            set = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), name.c_str()) == 1;
        if (set && verify && !address) set = SSL_set1_host(ssl_.get(), name.c_str()) == 1;
        // Without a name to compare, anybody's certificate would do.
        if (!set) throw UsageError("RedisOptions::url: \"" + name + "\" is no name for TLS");
    }

    [[nodiscard]] Handshake shake_hands(std::string_view arrived, std::string& out) override {
        ERR_clear_error();
        if (!feed(arrived)) return Handshake::failed;
        const int done = SSL_do_handshake(ssl_.get());
        const bool goes_on = done != 1 && waits(done);
        if (done != 1 && !goes_on) note();
        drain(out);
        return done == 1 ? Handshake::done : goes_on ? Handshake::goes_on : Handshake::failed;
    }
    [[nodiscard]] bool seal(std::string_view plain, std::string& out) override {
        ERR_clear_error();
        bool whole = true;
        for (std::size_t sent = 0; whole && !plain.empty(); plain.remove_prefix(sent))
            whole = SSL_write_ex(ssl_.get(), plain.data(), plain.size(), &sent) == 1;
        if (!whole) note();
        drain(out);
        return whole;
    }
    [[nodiscard]] bool open(std::string_view arrived, std::string& plain) override {
        ERR_clear_error();
        if (!feed(arrived)) return false;
        std::array<char, 16384> buffer;  // NOLINT: filled before it is read
        for (;;) {
            std::size_t got = 0;
            const int read = SSL_read_ex(ssl_.get(), buffer.data(), buffer.size(), &got);
            plain.append(buffer.data(), got);
            if (read == 1) continue;
            if (waits(read)) return true;
            note();
            return false;
        }
    }
    [[nodiscard]] std::string why() const override { return why_; }
    [[nodiscard]] bool distrust() const override { return distrust_; }

private:
    [[nodiscard]] bool feed(std::string_view bytes) {
        std::size_t written = 0;
        return bytes.empty() ||
               (BIO_write_ex(SSL_get_rbio(ssl_.get()), bytes.data(), bytes.size(), &written) == 1 &&
                written == bytes.size());
    }
    void drain(std::string& out) {
        BIO* from = SSL_get_wbio(ssl_.get());
        const std::size_t there = BIO_ctrl_pending(from);
        const std::size_t before = out.size();
        out.resize(before + there);
        std::size_t got = 0;
        if (there > 0) (void)BIO_read_ex(from, out.data() + before, there, &got);
        out.resize(before + got);
    }
    [[nodiscard]] bool waits(int result) const {
        const int error = SSL_get_error(ssl_.get(), result);
        return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
    }
    void note() {
        const int reason = ERR_GET_REASON(ERR_peek_error());
        why_ = ssl_error();
        const long verified = SSL_get_verify_result(ssl_.get());
        if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED && verified != X509_V_OK)
            why_ += std::string(": ") + X509_verify_cert_error_string(verified);
        switch (reason) {
            case SSL_R_CERTIFICATE_VERIFY_FAILED:
            case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
            case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
            case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
            case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
            case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:  // TLS 1.2 has no other word for "none"
            case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
            case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
            case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
            case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED: distrust_ = true; break;
            default: break;
        }
    }

    std::unique_ptr<SSL, FreeSsl> ssl_;
    std::string why_{};
    bool distrust_ = false;
};

class Tls final : public Encryption {
public:
    /// @throws UsageError, naming the file that is no good.
    explicit Tls(const TlsSettings& settings)
        : context_(SSL_CTX_new(TLS_client_method())), settings_(settings) {
        if (!context_) throw std::bad_alloc();
        ERR_clear_error();
        SSL_CTX* c = context_.get();
        (void)SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
        (void)SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION);
        (void)SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS);
        SSL_CTX_set_verify(c, settings.verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, nullptr);
        const auto must = [](int done, const char* field, const std::string& file) {
            if (done != 1)
                throw UsageError(std::string("RedisOptions::") + field + ": " + file + ": " +
                                 ssl_error());
        };
        if (settings.ca.empty()) {
            must(SSL_CTX_set_default_verify_paths(c), "tls_ca", "the system's");
        } else {
            must(SSL_CTX_load_verify_file(c, settings.ca.c_str()), "tls_ca", settings.ca);
        }
        if (settings.cert.empty()) return;
        must(SSL_CTX_use_certificate_chain_file(c, settings.cert.c_str()), "tls_cert",
             settings.cert);
        must(SSL_CTX_use_PrivateKey_file(c, settings.key.c_str(), SSL_FILETYPE_PEM), "tls_key",
             settings.key);
        must(SSL_CTX_check_private_key(c), "tls_key", settings.key);
    }

    [[nodiscard]] std::unique_ptr<Cipher> begin(const std::string& host) const override {
        return std::make_unique<TlsCipher>(
            context_.get(), settings_.name.empty() ? host : settings_.name, settings_.verify);
    }

private:
    std::unique_ptr<SSL_CTX, FreeSsl> context_;
    TlsSettings settings_;
};

[[nodiscard]] inline std::shared_ptr<const Encryption> make_tls(const TlsSettings& settings) {
    return std::make_shared<Tls>(settings);
}

}  // namespace detail

inline const bool tls_added = (make_encryption.store(detail::make_tls), true);

}  // namespace idem::inline v0_1::redis

#endif
