// For whoever is on call: looks after the records of a store, from outside of the services that use
// it. `idemctl --help` says how; what it can do is in idemctl/commands.hpp and idemctl/check.hpp.

#include <algorithm>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include <idem/any_store.hpp>

#include "idemctl/arguments.hpp"
#include "idemctl/check.hpp"
#include "idemctl/commands.hpp"
#include "idemctl/output.hpp"

namespace {

using namespace idemctl;

int carry_out(idem::AnyStore& store, const Arguments& a) {
    if (a.command == "list") return list(store, a);
    if (a.command == "show") return show(store, a);
    if (a.command == "forget") return forget(store, a);
    if (a.command == "resolve") return resolve(store, a);
    if (a.command == "purge") return purge(store, a);
    return check(store, a);
}

int complain(const std::string& what, bool json, Status status) {
    if (json) {
        JsonObject out;
        out.text("error", escape(what)).number("status", status);
        std::cerr << std::move(out).finish() << '\n';
    } else {
        std::cerr << "idemctl: " << escape(what) << '\n';
    }
    return status;
}

int run(const std::vector<std::string>& words, bool json) {
    try {
        const Arguments a = parse(words);
        if (a.help) {
            std::cout << help;
            return ok;
        }
        idem::AnyStore store = idem::open_store(a.store);
        try {
            return carry_out(store, a);
        } catch (const idem::UsageError& error) {  // the store refuses us: no login, no right
            return complain(error.what(), json, unavailable);
        }
    } catch (const WrongUsage& error) {
        return complain(error.what(), json, usage);
    } catch (const idem::UsageError& error) {
        return complain(error.what(), json, usage);
    } catch (const idem::SchemaError& error) {
        return complain(error.what(), json, damaged);
    } catch (const std::exception& error) {
        return complain(error.what(), json, unavailable);
    }
}

}  // namespace

int main(int count, char** arguments) {
    const std::vector<std::string> words(arguments + 1, arguments + count);
    const bool json = std::find(words.begin(), words.end(), "--json") != words.end();
    const int status = run(words, json);
    std::cout.flush();
    if (!std::cout) return complain("the output could not be written", json, unavailable);
    return status;
}
