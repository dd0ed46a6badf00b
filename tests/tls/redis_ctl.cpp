// The operator's program over TLS.

#include <string>

#include <idem/redis.hpp>

#include "support/catch.hpp"
#include "support/certificates.hpp"
#include "support/ctl.hpp"
#include "support/redis_server.hpp"

namespace {

TEST_CASE("idemctl goes over TLS too, and trusts nobody that it was not told to",
          "[integration][redis][tls]") {
    const idem_test::Certificates files;
    const std::string port = std::to_string(idem_test::free_port());
    const idem_test::RedisServer server(
        {"--tls-port", port, "--tls-cert-file", files.cert("server"), "--tls-key-file",
         files.key("server"), "--tls-ca-cert-file", files.cert("ca"), "--tls-auth-clients", "no"});
    const std::string url = "rediss://127.0.0.1:" + port;
    const auto run = idem_test::Ctl(url + "?tls_ca=" + files.cert("ca"))({"check"});
    INFO(run.out << run.err);
    CHECK(run.says(", encrypted\n"));
    CHECK(run.says("ok       round trip"));
    const auto refused = idem_test::Ctl(url)({"check"});
    CHECK(refused.status == 3);
    CHECK(refused.says("certificate"));
}

}  // namespace
