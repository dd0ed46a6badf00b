#ifndef TRANSCODE_ENCODER_HPP
#define TRANSCODE_ENCODER_HPP

#include <stdexcept>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <idem/failure.hpp>
#include <idem/fingerprint.hpp>
#include <idem/record.hpp>

#include "files.hpp"
#include "process.hpp"

namespace transcode {

/// What a client asks for.
struct Job {
    std::string caller{};
    std::string id{};     ///< Made from the idempotency key: the same on every repeat.
    std::string input{};  ///< SHA-256 of a merged upload of this caller.
    unsigned width = 0;
    unsigned height = 0;
    std::string preset{};  ///< libx264's, from "ultrafast" to "veryslow".
};

/// What was made.
struct Encoded {
    std::size_t bytes = 0;
    std::string sha256{};
};

/// ffmpeg did not do it; the class says what may be done about that.
class EncodeError : public std::runtime_error {
public:
    explicit EncodeError(idem::Failure failure)
        : std::runtime_error(failure.code + ": " + failure.message), failure_(std::move(failure)) {}
    [[nodiscard]] const idem::Failure& failure() const noexcept { return failure_; }

private:
    idem::Failure failure_;
};

/// Runs ffmpeg for one attempt at a job. The file it writes is named by the fence, which grows with
/// every attempt: an attempt that was given up, but is not dead yet, writes into a file of its own.
class Encoder {
public:
    Encoder(const Files& files, const Job& job, idem::Fence fence)
        : files_(files),
          job_(job),
          attempt_(job.id + '.' + std::to_string(fence)),
          log_(files.temporary(attempt_ + ".log")),
          made_(files.temporary(attempt_ + ".mp4")) {}

    /// Encodes into a temporary file. Input that is no video is *retryable*: nothing has happened,
    /// and the client may send another input under the same key. Options that ffmpeg refuses for
    /// good input are *final*: they can never work.
    /// @throws EncodeError.
    [[nodiscard]] Encoded encode(const std::stop_token& stop) {
        using idem::FailureClass;
        files_.note("started " + attempt_);
        run(with_input({"ffprobe", "-v", "error"}), stop,
            {FailureClass::retryable, "bad_input", {}});
        auto command = with_input({"ffmpeg", "-nostdin", "-v", "error", "-y"});
        const std::string size = std::to_string(job_.width) + ':' + std::to_string(job_.height);
        const std::string filter = "scale=" + size + ",setsar=1";
        for (const std::string_view option :
             {"-map", "0:v:0", "-map", "0:a:0?", "-vf", filter.c_str(), "-c:v", "libx264",
              "-preset", job_.preset.c_str(), "-pix_fmt", "yuv420p", "-c:a", "aac", "-f", "mp4"})
            command.emplace_back(option);
        command.push_back(made_.path().string());
        run(command, stop, {FailureClass::final, "encode_failed", {}});
        return {fs::file_size(made_.path()),
                hex(idem::Fingerprint::of_file(made_.path()).digest())};
    }

    /// Puts the file where the job's output belongs. An earlier one is replaced, never added to.
    void publish() {
        made_.publish(files_.output(job_.caller, job_.id));
        files_.note("finished " + attempt_);
    }

private:
    /// Containers only: a playlist from a stranger would have ffmpeg read other files and hosts.
    [[nodiscard]] std::vector<std::string> with_input(std::vector<std::string> command) const {
        for (const char* option :
             {"-format_whitelist", "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,flv,ogg",
              "-protocol_whitelist", "file", "-i"})
            command.emplace_back(option);
        command.push_back(files_.input(job_.caller, job_.input).string());
        return command;
    }

    void run(const std::vector<std::string>& command, const std::stop_token& stop,
             idem::Failure failure) {
        const Exit exit = run_program(command, log_.path(), stop);
        if (exit.success()) return;
        failure.message = complaint();
        if (exit.stopped) {
            failure = {idem::FailureClass::retryable, "stopped", "stopped before its end"};
        } else if (!exit.exited) {  // the kernel's OOM killer, or a person
            failure = {idem::FailureClass::retryable, "killed",
                       "ended by signal " + std::to_string(exit.code)};
        } else if (exit.code == 127) {
            failure = {idem::FailureClass::retryable, "no_ffmpeg", "cannot start " + command[0]};
        }
        files_.note(failure.code + ' ' + attempt_);
        throw EncodeError(std::move(failure));
    }

    /// What the program said, for the client to read: our folders are not its business.
    [[nodiscard]] std::string complaint() const {
        std::string text = read_tail(log_.path(), 1000);
        for (const auto& [path, name] :
             {std::pair(files_.input(job_.caller, job_.input).string(), "input"),
              std::pair(made_.path().string(), "output")}) {
            for (auto at = text.find(path); at != std::string::npos; at = text.find(path))
                text.replace(at, path.size(), name);
        }
        text.erase(text.find_last_not_of('\n') + 1);
        return text;
    }

    const Files& files_;
    const Job& job_;
    std::string attempt_;
    TemporaryFile log_;
    TemporaryFile made_;
};

}  // namespace transcode

#endif
