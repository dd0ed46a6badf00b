// A store of your own: one file per record in a folder, shared by all processes of a machine.
//
// What it takes: keep one record per key, make each step on a key atomic, and let `protocol::apply`
// decide. The kit at the end asks for every promise of the port; what passes it carries the guard
// and every component. A real store would fsync before it answers.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <idem/idem.hpp>
#include <idem/testing/conformance.hpp>
#include <idem/testing/manual_clock.hpp>

namespace fs = std::filesystem;

class FolderStore {
public:
    FolderStore(fs::path folder, idem::StoreClock clock)
        : folder_(std::move(folder)), clock_(std::move(clock)) {
        fs::create_directories(folder_);
    }

    template <class Request>
    using In = std::span<const Request>;
    template <class Reply>
    using Out = std::span<Reply>;

    // Seven operations are one: load, let the protocol decide, save.
    void claim(In<idem::ClaimRequest> requests, Out<idem::ClaimReply> replies) {
        each(requests, replies);
    }
    void finish(In<idem::FinishRequest> requests, Out<idem::FinishReply> replies) {
        each(requests, replies);
    }
    void renew(In<idem::RenewRequest> requests, Out<idem::RenewReply> replies) {
        each(requests, replies);
    }
    void issue(In<idem::IssueRequest> requests, Out<idem::IssueReply> replies) {
        each(requests, replies);
    }
    void resolve(In<idem::ResolveRequest> requests, Out<idem::ResolveReply> replies) {
        each(requests, replies);
    }
    void reap(In<idem::ReapRequest> requests, Out<idem::ReapReply> replies) {
        each(requests, replies);
    }
    void forget(In<idem::ForgetRequest> requests, Out<idem::ForgetReply> replies) {
        each(requests, replies);
    }

    void find(In<idem::KeyView> keys, Out<idem::FindReply> replies) {
        const Lock lock(folder_);
        for (std::size_t i = 0; i < keys.size(); ++i) {
            replies[i] = {};
            auto file = load(path_of(keys[i]));
            if (!file) continue;
            if (!file->read) {
                replies[i].trouble = idem::Trouble::schema(file->read.trouble());
            } else if (idem::protocol::visible(&file->read.header, clock_())) {
                replies[i].record = idem::protocol::view_of(
                    keys[i], {file->read.header, std::move(file->read.payload)}, clock_());
            }
        }
    }

    idem::ListPage list(const idem::ListQuery& query) {  // the cursor is the last file's path
        const Lock lock(folder_);
        idem::ListPage page;
        std::string last;
        for (const auto& path : paths()) {
            if (path.native() <= query.cursor) continue;
            auto file = load(path);
            const auto key = idem::decode_key(file->key);
            if (!key || !file->read) {
                page.trouble = idem::Trouble::schema(file->read.trouble());
            } else if (idem::protocol::visible(&file->read.header, clock_()) &&
                       idem::protocol::matches(query, *key, file->read.header, clock_())) {
                if (page.records.size() == query.limit) {
                    page.next = last;
                    break;
                }
                page.records.push_back(idem::protocol::view_of(
                    *key, {file->read.header, std::move(file->read.payload)}, clock_()));
                last = path.native();
            }
        }
        return page;
    }

    idem::PurgeReply purge(std::size_t limit) {
        const Lock lock(folder_);
        idem::PurgeReply reply;
        for (const auto& path : paths()) {
            const auto file = load(path);
            if (!file->read || idem::protocol::stands(&file->read.header, clock_())) continue;
            reply.more = reply.removed == limit;
            if (reply.more) break;
            reply.removed += fs::remove(path) ? 1 : 0;
        }
        return reply;
    }

    void save(const idem::KeyView& key, std::string_view record) {
        const auto path = path_of(key);
        const auto fresh = fs::path(path).replace_extension("new");
        const auto bytes = idem::encode_key(key);
        std::ofstream(fresh, std::ios::binary) << bytes.size() << '\n' << bytes << record;
        fs::rename(fresh, path);  // a crash leaves the old record or the new one, never half
    }

private:
    struct Lock {  // for threads and processes alike; the kernel lets go of it after a crash
        explicit Lock(const fs::path& folder)
            : file(::open((folder / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
            while (::flock(file, LOCK_EX) != 0) continue;
        }
        Lock(const Lock&) = delete;
        Lock& operator=(const Lock&) = delete;
        ~Lock() { ::close(file); }
        int file;
    };
    struct File {
        std::string key{};
        idem::DecodedRecord read{};
    };

    // Any key, of any bytes and length, as a name that a file may have.
    fs::path path_of(const idem::KeyView& key) const {
        return folder_ / (idem::content_key("file", idem::encode_key(key)).id + ".record");
    }
    std::vector<fs::path> paths() const {
        std::vector<fs::path> out;
        for (const auto& entry : fs::directory_iterator(folder_))
            if (entry.path().extension() == ".record") out.push_back(entry.path());
        std::sort(out.begin(), out.end());
        return out;
    }
    static std::optional<File> load(const fs::path& path) {
        std::ifstream in(path, std::ios::binary);
        if (!in) return std::nullopt;
        std::size_t size = 0;
        File out;
        if (!(in >> size) || size > 1000 || in.get() != '\n') return out;
        out.key.resize(size);
        in.read(out.key.data(), static_cast<std::streamsize>(size));
        out.read = idem::decode_record(std::string(std::istreambuf_iterator<char>(in), {}));
        return out;
    }

    template <class Request, class Reply>
    void each(In<Request> requests, Out<Reply> replies) {
        const Lock lock(folder_);
        for (std::size_t i = 0; i < requests.size(); ++i) {
            auto file = load(path_of(requests[i].key));
            if (file && !file->read) {  // garbage, or a newer version's: never overwritten
                replies[i] = {};
                replies[i].trouble = idem::Trouble::schema(file->read.trouble());
                continue;
            }
            idem::protocol::Slot slot;
            if (file) slot.emplace(idem::protocol::Record{file->read.header, file->read.payload});
            auto step = idem::protocol::apply(slot, requests[i], clock_());
            if (step.write) save(requests[i].key, idem::encode_record(slot->header, slot->payload));
            replies[i] = std::move(step.reply);
        }
    }

    fs::path folder_;
    idem::StoreClock clock_;
};

static_assert(idem::store<FolderStore>);

// What the kit needs: a store that is empty, and power over its clock.
struct World {
    fs::path folder = fs::temp_directory_path() / ("idem-own-store-" + std::to_string(::getpid()));
    idem::testing::ManualClock clock{};
    FolderStore made{(fs::remove_all(folder), folder), clock};

    FolderStore& store() { return made; }
    void advance(idem::Duration by) { clock.advance(by); }
    idem::Instant now() { return clock.now(); }
    void put_raw(const idem::KeyView& key, std::string_view bytes) { made.save(key, bytes); }
};

int main() {
    namespace conformance = idem::testing::conformance;
    const auto report = conformance::run([] { return World{}; }, {.seed = 2024, .histories = 60});
    report.print(std::cout);
    fs::remove_all(World{}.folder);
    return report.ok() ? 0 : 1;
}
