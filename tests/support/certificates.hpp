#ifndef IDEM_TESTS_SUPPORT_CERTIFICATES_HPP
#define IDEM_TESTS_SUPPORT_CERTIFICATES_HPP

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "support/process.hpp"

namespace idem_test {

/// Certificates that live for a test: two authorities that do not know each other, and what each
/// has signed. Made by the openssl program.
class Certificates {
public:
    Certificates() : folder_(server_folder("certificates")) {
        std::filesystem::create_directories(folder_);
        authority("ca");
        authority("other");
        signed_by("ca", "server", "subjectAltName=DNS:localhost,IP:127.0.0.1");
        signed_by("ca", "elsewhere", "subjectAltName=DNS:elsewhere.invalid");
        signed_by("ca", "expired", "subjectAltName=DNS:localhost,IP:127.0.0.1", Dates::over);
        signed_by("ca", "client", "extendedKeyUsage=clientAuth");
        signed_by("other", "stranger", "extendedKeyUsage=clientAuth");
    }
    Certificates(const Certificates&) = delete;
    Certificates& operator=(const Certificates&) = delete;
    ~Certificates() {
        std::error_code ignored;
        std::filesystem::remove_all(folder_, ignored);
    }

    [[nodiscard]] std::string cert(const std::string& name) const { return file(name + ".crt"); }
    [[nodiscard]] std::string key(const std::string& name) const { return file(name + ".key"); }
    [[nodiscard]] std::string file(const std::string& name) const {
        return (folder_ / name).string();
    }

private:
    enum class Dates { now, over };

    void run(const std::string& command) const {
        const std::string whole = "cd '" + folder_.string() + "' && " + command + " 2>>log";
        if (std::system(whole.c_str()) != 0) throw std::runtime_error("openssl failed: " + whole);
    }
    void authority(const std::string& name) const {
        run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
            " -subj /CN=" +
            name + " -keyout " + name + ".key -out " + name + ".crt");
    }
    void signed_by(const std::string& ca, const std::string& name, const std::string& extensions,
                   Dates dates = Dates::now) const {
        std::ofstream(file(name + ".ext")) << extensions << '\n';
        run("openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=" +
            name + " -keyout " + name + ".key -out " + name + ".csr");
        if (dates == Dates::now)
            return run("openssl x509 -req -in " + name + ".csr -CA " + ca + ".crt -CAkey " + ca +
                       ".key -CAcreateserial -days 2 -extfile " + name + ".ext -out " + name +
                       ".crt");
        // Only `ca` of OpenSSL 3.0 takes dates, and it wants a database.
        std::ofstream(file("index.txt"));
        std::ofstream(file("ca.cnf")) << "[ca]\ndefault_ca=one\n[one]\ndatabase=index.txt\n"
                                         "new_certs_dir=.\nrand_serial=yes\ndefault_md=sha256\n"
                                         "policy=any\n[any]\ncommonName=supplied\n";
        run("openssl ca -batch -config ca.cnf -in " + name + ".csr -cert " + ca + ".crt -keyfile " +
            ca + ".key -extfile " + name + ".ext -out " + name + ".crt -startdate " +
            "20200101000000Z -enddate 20200102000000Z >>log");
    }

    std::filesystem::path folder_;
};

}  // namespace idem_test

#endif
