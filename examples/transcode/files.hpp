#ifndef TRANSCODE_FILES_HPP
#define TRANSCODE_FILES_HPP

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include <idem/fingerprint.hpp>

namespace transcode {

namespace fs = std::filesystem;

[[noreturn]] inline void throw_errno(const std::string& what) {
    throw std::system_error(errno, std::generic_category(), what);
}

/// Lower-case hex digits of a digest: what stands in URLs, paths and answers.
[[nodiscard]] inline std::string hex(std::string_view bytes) {
    static constexpr char digits[] = "0123456789abcdef";
    std::string out;
    out.reserve(bytes.size() * 2);
    for (const char c : bytes) {
        const auto byte = static_cast<unsigned char>(c);
        out += digits[byte >> 4U];
        out += digits[byte & 15U];
    }
    return out;
}

/// 16 hex digits that nobody else draws.
[[nodiscard]] inline std::string random_id() {
    std::random_device device;
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(device() & 0xFFU);
    return hex(bytes);
}

/// What has reached the disk survives a power cut; a file or a directory.
inline void sync_to_disk(const fs::path& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) throw_errno("cannot open " + path.string());
    const int result = ::fsync(fd);
    const int error = errno;
    ::close(fd);
    errno = error;
    if (result != 0) throw_errno("cannot fsync " + path.string());
}

/// A file under construction. It is removed again unless it was published, so a failed or stopped
/// attempt leaves nothing behind.
class TemporaryFile {
public:
    explicit TemporaryFile(fs::path path) : path_(std::move(path)) {}
    ~TemporaryFile() {
        std::error_code ignored;
        if (!path_.empty()) fs::remove(path_, ignored);
    }
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;

    [[nodiscard]] const fs::path& path() const noexcept { return path_; }

    /// Gives the file its name in one step: a reader sees the old one or the new one, whole. The
    /// folder is synced as well, for the name is the folder's data.
    void publish(const fs::path& name) {
        sync_to_disk(path_);
        fs::create_directories(name.parent_path());
        fs::rename(path_, name);
        path_.clear();
        sync_to_disk(name.parent_path());
    }

private:
    fs::path path_;
};

/// Writes a stream of any length to a file and fingerprints it on the way.
class FingerprintingWriter {
public:
    explicit FingerprintingWriter(const fs::path& path) : file_(std::fopen(path.c_str(), "wbe")) {
        if (!file_) throw_errno("cannot create " + path.string());
    }
    void write(std::string_view piece) {
        if (std::fwrite(piece.data(), 1, piece.size(), file_.get()) != piece.size())
            throw_errno("cannot write an upload");
        hasher_.bytes(piece);
        bytes_ += piece.size();
    }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

    /// Closes the file; its last bytes may be refused only now. @returns SHA-256 in hex.
    [[nodiscard]] std::string finish() {
        if (std::fclose(file_.release()) != 0) throw_errno("cannot finish an upload");
        hasher_.bytes({});
        return hex(hasher_.finish().digest());
    }

private:
    struct Close {
        void operator()(std::FILE* file) const noexcept { std::fclose(file); }
    };
    std::unique_ptr<std::FILE, Close> file_;
    idem::FingerprintHasher hasher_{};
    std::size_t bytes_ = 0;
};

/// Where everything lies. Each path follows from an id alone, so that a repeat overwrites what is
/// there and never multiplies it. Ids come from URLs: the routes admit hex digits only.
class Files {
public:
    explicit Files(const fs::path& root) : root_(fs::absolute(root)) {
        for (const char* name : {"tmp", "spool", "delivered"}) fs::create_directories(root_ / name);
        remove_leftovers();
    }

    [[nodiscard]] fs::path upload(const std::string& caller, const std::string& id) const {
        return root_ / "uploads" / caller / id;
    }
    [[nodiscard]] fs::path part(const std::string& caller, const std::string& id,
                                unsigned number) const {
        return upload(caller, id) / std::to_string(number);
    }
    [[nodiscard]] fs::path input(const std::string& caller, const std::string& sha256) const {
        return root_ / "inputs" / caller / sha256;
    }
    [[nodiscard]] fs::path output(const std::string& caller, const std::string& job) const {
        return root_ / "outputs" / caller / (job + ".mp4");
    }
    [[nodiscard]] fs::path temporary(const std::string& name) const { return root_ / "tmp" / name; }
    [[nodiscard]] fs::path spool() const { return root_ / "spool"; }
    [[nodiscard]] fs::path delivered() const { return root_ / "delivered"; }

    /// One line for each start and each end of an ffmpeg. Appended in one write, so that lines of
    /// several threads and processes never mix. A line that cannot be written stops no job.
    void note(const std::string& line) const {
        const int fd =
            ::open((root_ / "ffmpeg.log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        const std::string text = line + '\n';
        const bool written = fd >= 0 && ::write(fd, text.data(), text.size()) > 0;
        if (!written) std::cerr << "cannot note: " + text;
        if (fd >= 0) ::close(fd);
    }

private:
    /// What a process that was killed has left. Young files may be another process's.
    void remove_leftovers() const {
        std::error_code ignored;
        const auto old = fs::file_time_type::clock::now() - std::chrono::hours{24};
        for (const auto& entry : fs::directory_iterator(root_ / "tmp", ignored))
            if (entry.last_write_time(ignored) < old) fs::remove(entry.path(), ignored);
    }

    fs::path root_;
};

/// The whole of a small file, or its end.
[[nodiscard]] inline std::string read_tail(const fs::path& path, std::size_t bytes_max) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) return {};
    const auto size = static_cast<std::size_t>(file.tellg());
    const std::size_t wanted = size < bytes_max ? size : bytes_max;
    file.seekg(static_cast<std::streamoff>(size - wanted));
    std::string text(wanted, '\0');
    file.read(text.data(), static_cast<std::streamsize>(wanted));
    return text;
}

}  // namespace transcode

#endif
