// A transcoding service whose clients may repeat every request: examples/run.sh drives it as a bad
// network would. The handlers are in transcode/service.hpp; this file is HTTP and the process.
//
//   transcode_service [--data DIR] [--store URL] [--host ADDRESS] [--port N] [--workers N]
//                     [--lease SECONDS] [--drain SECONDS]
//
// Ends on SIGTERM: takes no new work, lets running jobs finish, and says whether that succeeded.

#include <algorithm>
#include <array>
#include <csignal>
#include <ctime>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include <httplib.h>

#include <idem/http.hpp>

#include "transcode/callbacks.hpp"
#include "transcode/files.hpp"
#include "transcode/requests.hpp"
#include "transcode/service.hpp"
#include "transcode/stores.hpp"
#include "transcode/workers.hpp"

namespace {

using transcode::Service;

struct Settings {
    std::string data = "transcode-data";
    std::string store = "memory://";
    std::string host = "127.0.0.1";
    int port = 8080;  // 0: any that is free
    unsigned workers = 2;
    std::chrono::seconds lease{10};
    std::chrono::seconds drain{30};
};

Settings parse(int count, char** arguments) {
    Settings out;
    for (int i = 1; i < count; i += 2) {
        const std::string name = arguments[i];
        if (i + 1 == count) throw std::invalid_argument(name + " needs a value");
        const std::string value = arguments[i + 1];
        if (name == "--data") {
            out.data = value;
        } else if (name == "--store") {
            out.store = value;
        } else if (name == "--host") {
            out.host = value;
        } else if (name == "--port") {
            out.port = std::stoi(value);
        } else if (name == "--workers") {
            out.workers = std::max(1U, static_cast<unsigned>(std::stoul(value)));
        } else if (name == "--lease") {
            out.lease = std::chrono::seconds(std::stoi(value));
        } else if (name == "--drain") {
            out.drain = std::chrono::seconds(std::stoi(value));
        } else {
            throw std::invalid_argument("unknown option " + name);
        }
    }
    return out;
}

// --- HTTP ---------------------------------------------------------------------------------------

void reply(httplib::Response& out, const idem::http::Response& answer) {
    out.status = answer.status;
    for (const auto& header : answer.headers) out.headers.emplace(header.name, header.value);
    out.body = answer.body;
}

// What the library throws has an answer of its own. Anything else that a handler threw has rolled
// its claim back, so "try again" is the truth: no request ends in a 500, and no duplicate can.
idem::http::Response answer_to(const std::exception_ptr& thrown) {
    try {
        return idem::http::respond(thrown);
    } catch (const transcode::BadRequest& e) {
        return idem::http::problem(400, {}, "Bad Request", e.what());
    } catch (const std::exception& e) {
        std::cerr << std::string("request failed: ") + e.what() + '\n';
        return idem::http::respond(idem::UnavailableError(e.what()));
    }
}

// A large file goes out piece by piece.
void send_file(httplib::Response& out, const std::filesystem::path& path) {
    const auto file = std::make_shared<std::ifstream>(path, std::ios::binary | std::ios::ate);
    if (!*file) return reply(out, transcode::not_found("there is no such output"));
    const auto size = static_cast<std::size_t>(file->tellg());
    const auto send = [file](std::size_t offset, std::size_t length, httplib::DataSink& sink) {
        std::array<char, 65536> piece{};
        const std::size_t wanted = std::min(length, piece.size());
        file->seekg(static_cast<std::streamoff>(offset));
        file->read(piece.data(), static_cast<std::streamsize>(wanted));
        const auto read = static_cast<std::size_t>(file->gcount());
        return read > 0 && sink.write(piece.data(), read);
    };
    out.status = 200;
    out.set_content_provider(size, "video/mp4", send);
}

using Handle = idem::http::Response (Service::*)(const httplib::Request&);

void add_routes(httplib::Server& server, Service& service) {
    const auto call = [&service](Handle handle) {
        return [&service, handle](const httplib::Request& request, httplib::Response& out) {
            reply(out, (service.*handle)(request));
        };
    };
    const std::string upload = "/uploads/([0-9a-f]{16})";
    const std::string job = "/jobs/([0-9a-f]{64})";
    server.Post("/tokens", call(&Service::issue_token));
    server.Post("/uploads", call(&Service::create_upload));
    server.Put(upload + "/parts/([1-9][0-9]{0,4})",
               [&service](const httplib::Request& request, httplib::Response& out,
                          const httplib::ContentReader& body) {
                   reply(out, service.put_part(request, body));
               });
    server.Post(upload + "/merge", call(&Service::merge));
    server.Post("/jobs", call(&Service::submit));
    server.Get(job, call(&Service::status));
    server.Delete(job, call(&Service::cancel));
    server.Get(job + "/output",
               [&service](const httplib::Request& request, httplib::Response& out) {
                   send_file(out, service.output(request));
               });
    server.Post("/callbacks/transcode", call(&Service::callback));
    server.Get("/healthz", [&service](const httplib::Request&, httplib::Response& out) {
        reply(out, service.health());
    });
    server.Get("/metrics", [&service](const httplib::Request&, httplib::Response& out) {
        reply(out, service.metrics());
    });
    server.set_exception_handler(
        [](const httplib::Request&, httplib::Response& out, const std::exception_ptr& thrown) {
            reply(out, answer_to(thrown));
        });
}

void configure(httplib::Server& server) {
    server.new_task_queue = [] { return new httplib::ThreadPool(32); };
    server.set_keep_alive_timeout(1);  // stopping waits for idle connections
    // The default sets SO_REUSEPORT too: a second service would silently share the port.
    server.set_socket_options([](socket_t socket) {
        const int yes = 1;
        (void)::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
}

// Binds before anything else exists: the workers report to this port.
int bind(httplib::Server& server, const Settings& settings) {
    if (settings.port == 0) return server.bind_to_any_port(settings.host);
    return server.bind_to_port(settings.host, settings.port) ? settings.port : -1;
}

// --- the process --------------------------------------------------------------------------------

// Blocked in every thread, so that one place waits for it.
sigset_t block_signals() {
    sigset_t ending;
    sigemptyset(&ending);
    sigaddset(&ending, SIGTERM);
    sigaddset(&ending, SIGINT);
    pthread_sigmask(SIG_BLOCK, &ending, nullptr);
    return ending;
}

// Until the signal comes, removes what is past its retention: nothing accumulates without bound.
void serve_until(const sigset_t& ending, idem::AnyStore& store) {
    const timespec minute{60, 0};
    while (sigtimedwait(&ending, nullptr, &minute) < 0) (void)store.purge(10'000);
}

// Listens from its making to its end, however that comes about.
class Listener {
public:
    explicit Listener(httplib::Server& server)
        : server_(server), thread_([&server] { server.listen_after_bind(); }) {
        while (!server.is_running()) std::this_thread::yield();  // else `stop` may come too early
    }
    ~Listener() { server_.stop(); }
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

private:
    httplib::Server& server_;
    std::jthread thread_;
};

int run(const Settings& settings) {
    const sigset_t ending = block_signals();
    idem::AnyStore store = transcode::open_store(settings.store);
    const transcode::Files files(settings.data);

    httplib::Server server;
    configure(server);
    const int port = bind(server, settings);
    if (port < 0) throw std::runtime_error("cannot bind " + settings.host);

    transcode::CallbackSender callbacks(files, settings.host, port);
    transcode::Workers workers(files, callbacks, settings.workers);
    Service service(store, files, workers, settings.lease);
    add_routes(server, service);
    std::optional<Listener> listener(std::in_place, server);
    std::cout << "listening on http://" << settings.host << ':' << port << std::endl;

    serve_until(ending, store);
    std::cout << "draining" << std::endl;
    bool clean = service.drain_requests(settings.drain);
    workers.finish();  // the last of them reports to a server that still listens
    clean = service.drain_callbacks(settings.drain) && clean;
    listener.reset();
    std::cout << service.metrics().body << (clean ? "drained" : "drain: work was left")
              << std::endl;
    return clean ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
    try {
        return run(parse(count, arguments));
    } catch (const std::exception& e) {
        std::cerr << "transcode_service: " << e.what() << '\n';
        return 2;
    }
}
