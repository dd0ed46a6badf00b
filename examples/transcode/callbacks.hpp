#ifndef TRANSCODE_CALLBACKS_HPP
#define TRANSCODE_CALLBACKS_HPP

#include <algorithm>
#include <chrono>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <httplib.h>

#include "files.hpp"

namespace transcode {

/// Reports finished work to the service over HTTP, as a worker on another machine would. At least
/// once: a message is on disk before it is sent and stays there until it was acknowledged. A lost
/// acknowledgement means that it is sent again, and the receiver has to see that.
class CallbackSender {
public:
    CallbackSender(const Files& files, std::string host, int port)
        : files_(files), host_(std::move(host)), port_(port) {
        for (const auto& entry : fs::directory_iterator(files_.spool()))
            left_over_.push_back(entry.path());
    }

    /// @throws std::runtime_error where nobody acknowledged in time; the message stays on disk.
    void send(const std::string& message_id, const std::string& body) {
        const fs::path waiting = files_.spool() / message_id;
        {
            std::ofstream file(waiting, std::ios::binary);
            file << body;
            file.close();
            if (!file) throw std::runtime_error("cannot write " + waiting.string());
        }
        sync_to_disk(waiting);
        deliver(message_id, body);
    }

    /// Sends what an earlier process was not able to. Some of it may have arrived.
    void send_waiting() {
        for (const fs::path& path : left_over_)
            deliver(path.filename().string(), read_tail(path, 4096));
    }

private:
    void deliver(const std::string& message_id, const std::string& body) {
        post(message_id, body);
        fs::rename(files_.spool() / message_id, files_.delivered() / message_id);
    }

    void post(const std::string& message_id, const std::string& body) {
        using std::chrono::milliseconds;
        milliseconds pause{100};
        for (int attempt = 0; attempt < attempts_max; ++attempt) {
            httplib::Client client(host_, port_);
            client.set_read_timeout(std::chrono::seconds{20});
            const auto answer = client.Post("/callbacks/transcode", {{"Message-Id", message_id}},
                                            body, "application/x-www-form-urlencoded");
            // A 4xx is an acknowledgement too: the receiver will never want this message.
            if (answer && answer->status < 500 && !answer->has_header("Retry-After")) return;
            std::this_thread::sleep_for(pause);
            pause = std::min(pause * 2, milliseconds{2000});
        }
        throw std::runtime_error("callback " + message_id + " was not acknowledged");
    }

    static constexpr int attempts_max = 10;

    const Files& files_;
    std::string host_;
    int port_;
    std::vector<fs::path> left_over_{};
};

}  // namespace transcode

#endif
