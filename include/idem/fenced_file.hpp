#ifndef IDEM_FENCED_FILE_HPP
#define IDEM_FENCED_FILE_HPP

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <idem/clock.hpp>
#include <idem/detail/bytes.hpp>
#include <idem/detail/deadline.hpp>
#include <idem/detail/random.hpp>
#include <idem/error.hpp>
#include <idem/record.hpp>

namespace idem::inline v0_1 {

namespace detail {

[[noreturn]] inline void throw_file_error(const char* what, const std::filesystem::path& path) {
    const std::error_code why(errno, std::generic_category());
    throw std::filesystem::filesystem_error(std::string("idem: cannot ") + what, path, why);
}

/// An open file. @throws std::filesystem::filesystem_error, as all that is done to it.
class OpenFile {
public:
    OpenFile(std::filesystem::path path, int flags)
        : path_(std::move(path)), fd_(::open(path_.c_str(), flags | O_CLOEXEC, 0666)) {
        if (fd_ < 0) throw_file_error("open", path_);
    }
    ~OpenFile() { (void)::close(fd_); }
    OpenFile(const OpenFile&) = delete;
    OpenFile& operator=(const OpenFile&) = delete;

    [[nodiscard]] int fd() const noexcept { return fd_; }
    void write(std::string_view bytes) {
        while (!bytes.empty()) {
            const auto put = ::write(fd_, bytes.data(), bytes.size());
            if (put >= 0) {
                bytes.remove_prefix(static_cast<std::size_t>(put));
            } else if (errno != EINTR) {
                throw_file_error("write", path_);
            }
        }
    }
    /// A folder that cannot be synced (EINVAL) is of a file system that does not need it.
    void sync() {
        if (::fsync(fd_) != 0 && errno != EINVAL) throw_file_error("sync", path_);
    }

private:
    std::filesystem::path path_;
    int fd_;
};

/// The highest fence that a file has seen, in a file of its own that is locked while this lives.
class LockedFence {
public:
    /// @throws UnavailableError where somebody else has it locked for all of `patience`.
    LockedFence(const std::filesystem::path& path, Duration patience) : path_(path) {
        const auto deadline = LocalClock::now() + std::min(patience, duration_max);
        for (int tries = 0;; pause_after(tries++, deadline)) {
            file_.emplace(path, O_RDWR | O_CREAT);
            const bool locked = ::flock(file_->fd(), LOCK_EX | LOCK_NB) == 0;
            if (locked && is_still_there()) return;
            if (!locked && errno != EWOULDBLOCK && errno != EINTR) throw_file_error("lock", path);
            if (LocalClock::now() >= deadline)
                throw UnavailableError("another writer has locked " + path.string());
        }
    }
    /// By word, for a forked child may have the file open still.
    ~LockedFence() { (void)::flock(file_->fd(), LOCK_UN); }
    LockedFence(const LockedFence&) = delete;
    LockedFence& operator=(const LockedFence&) = delete;

    /// 0 where none has been here. @throws SchemaError for what `raise` has not written.
    [[nodiscard]] Fence highest() const {
        std::array<char, digits + 2> text{};
        const auto size = ::pread(file_->fd(), text.data(), text.size(), 0);
        if (size < 0) throw_file_error("read", path_);
        if (size == 0) return 0;
        Fence fence = 0;
        const char* const end = text.data() + digits;
        const auto [at, error] = std::from_chars(text.data(), end, fence);
        if (size != digits + 1 || at != end || error != std::errc{} || *end != '\n')
            throw SchemaError(path_.string() + " holds no fence; nothing is written beside it");
        return fence;
    }
    /// In place, for the lock is on this very file: one line of fixed length, on disk on return.
    void raise(Fence fence) {
        std::string text = std::to_string(fence);
        text.insert(0, digits - text.size(), '0');
        text += '\n';
        if (::pwrite(file_->fd(), text.data(), text.size(), 0) != digits + 1)
            throw_file_error("write", path_);
        file_->sync();
    }

private:
    static constexpr std::size_t digits = 20;

    /// Else what is locked was removed, and is nobody's.
    [[nodiscard]] bool is_still_there() const noexcept {
        struct stat opened {};
        struct stat named {};
        return ::fstat(file_->fd(), &opened) == 0 && ::stat(path_.c_str(), &named) == 0 &&
               opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
    }

    std::filesystem::path path_;
    std::optional<OpenFile> file_{};
};

}  // namespace detail

/// A file that is replaced as a whole by whoever holds the highest fence (`Lease::fence`,
/// `Execution::fence`): a holder that was paused past its lease, and wakes up after the next one
/// has begun, changes nothing. The highest fence seen is kept beside the file, in `NAME.fence`; who
/// removes that one lets the old back in. Make one at the begin of each holding: before that, the
/// last holder may still write. It holds nothing open; any thread may write, and one that writes
/// later replaces. After a crash or a power cut the file is the old or the new one, whole, and a
/// fence once seen is still seen. For file systems whose flock all writers share.
class FencedFile {
public:
    /// From here on every lower fence is refused. @throws LeaseLostError where a higher one has
    /// been here: stop; UnavailableError where a writer that is stopped in the middle of its last
    /// step keeps the fence locked for all of `patience`; std::filesystem::filesystem_error;
    /// SchemaError for a damaged `NAME.fence`; UsageError for fence 0.
    FencedFile(std::filesystem::path path, Fence fence,
               Duration patience = std::chrono::seconds{10})
        : path_(std::move(path)), fence_(fence), patience_(patience) {
        if (fence == 0) throw UsageError("FencedFile: fence 0 stands for no fence");
        if (!path_.has_filename()) throw UsageError("FencedFile: the path names no file");
        detail::LockedFence seen(beside("fence"), patience_);
        admit(seen);
    }

    /// Replaces the content. Readers see the old or the new one; on return the new one is on disk.
    /// Throws as the constructor, and has changed nothing then, unless it is the folder that could
    /// not be synced.
    void write(std::string_view bytes) {
        std::array<char, 8> random{};
        detail::fill_random(random.data(), random.size());
        const auto name = detail::hex({random.data(), random.size()});
        const Draft draft{beside(std::to_string(fence_) + "." + name + ".draft")};
        detail::OpenFile(draft.path, O_WRONLY | O_CREAT | O_EXCL).write(bytes);
        publish(draft.path);
    }

    /// Replaces it by a file that another program has finished, on the same file system. Refused,
    /// that one stays where it is. Throws as the constructor.
    void publish(const std::filesystem::path& finished) {
        try {
            detail::OpenFile file(finished, O_RDONLY);
            struct stat replaced {};
            if (::stat(path_.c_str(), &replaced) == 0 &&
                ::fchmod(file.fd(), replaced.st_mode & 07777U) != 0)
                detail::throw_file_error("set the mode of", finished);
            file.sync();
        } catch (const std::filesystem::filesystem_error&) {
            // A higher fence removes the drafts of the lower ones: then that is the reason.
            detail::LockedFence seen(beside("fence"), patience_);
            admit(seen);
            throw;
        }
        {
            detail::LockedFence seen(beside("fence"), patience_);
            admit(seen);
            std::filesystem::rename(finished, path_);
        }
        sync_folder();
    }

    /// A name for what is to be published. Drafts that were left by a crash are removed when a
    /// higher fence comes.
    [[nodiscard]] std::filesystem::path draft() const {
        return beside(std::to_string(fence_) + ".draft");
    }
    [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
    [[nodiscard]] Fence fence() const noexcept { return fence_; }

private:
    struct Draft {
        std::filesystem::path path;
        ~Draft() { (void)::unlink(path.c_str()); }
    };

    /// The fence is on disk before anything that comes with it.
    void admit(detail::LockedFence& seen) const {
        const Fence highest = seen.highest();
        if (highest > fence_)
            throw LeaseLostError("fence " + std::to_string(highest) + " has been at " +
                                     path_.string() + "; " + std::to_string(fence_) +
                                     " writes no more",
                                 LostReason::other_owner);
        if (highest == fence_) return;
        seen.raise(fence_);
        sync_folder();
        remove_older_drafts();
    }
    void remove_older_drafts() const {
        const std::string prefix = path_.filename().string() + ".";
        std::error_code error;
        for (std::filesystem::directory_iterator at(folder(), error), end; !error && at != end;
             at.increment(error)) {
            const std::string name = at->path().filename().string();
            if (!name.starts_with(prefix) || !name.ends_with(".draft")) continue;
            Fence of = fence_;
            (void)std::from_chars(name.data() + prefix.size(), name.data() + name.size(), of);
            if (of < fence_) (void)::unlink(at->path().c_str());
        }
    }
    [[nodiscard]] std::filesystem::path beside(const std::string& what) const {
        return path_.string() + "." + what;
    }
    [[nodiscard]] std::filesystem::path folder() const {
        return path_.has_parent_path() ? path_.parent_path() : std::filesystem::path(".");
    }
    void sync_folder() const { detail::OpenFile(folder(), O_RDONLY | O_DIRECTORY).sync(); }

    std::filesystem::path path_;
    Fence fence_;
    Duration patience_;
};

}  // namespace idem::inline v0_1

#endif
