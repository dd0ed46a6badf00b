// Goal: a file that only the latest holder writes, whole. Method: write as holders of all ages,
// race them, stop one in the middle, and end one there as a crash does.

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <idem/fenced_file.hpp>

#include "support/catch.hpp"
#include "support/child.hpp"
#include "support/eventually.hpp"
#include "support/folder.hpp"
#include "support/stopped_holder.hpp"

using namespace idem_test;
using namespace std::chrono_literals;

namespace fenced_file_test {

namespace fs = std::filesystem;
using idem::FencedFile;

TEST_CASE("a write below the highest fence changes nothing, and says so", "[fenced]") {
    const Folder folder;
    const auto path = folder / "result";
    FencedFile old(path, 7);
    old.write("of 7");
    old.write("of 7 again");
    CHECK(content_of(path) == "of 7 again");
    FencedFile next(path, 8);  // has written nothing yet
    CHECK_THROWS_AS(old.write("late"), idem::LeaseLostError);
    CHECK(content_of(path) == "of 7 again");
    next.write("of 8");
    CHECK_THROWS_AS(old.write("late"), idem::LeaseLostError);
    CHECK_THROWS_AS(FencedFile(path, 7), idem::LeaseLostError);
    CHECK(content_of(path) == "of 8");
    FencedFile(path, 8).write("of 8 elsewhere");
    CHECK(content_of(path) == "of 8 elsewhere");
    try {
        FencedFile(path, 7).write("");
    } catch (const idem::LeaseLostError& e) {
        CHECK(e.reason() == idem::LostReason::other_owner);
    }
    FencedFile(path, ~idem::Fence{0}).write(std::string("\0any", 4));
    CHECK(content_of(path) == std::string("\0any", 4));
    CHECK(folder.names() == std::vector<std::string>{"result", "result.fence"});
}

TEST_CASE("what another program has finished is published, or stays where it is", "[fenced]") {
    const Folder folder;
    const auto path = folder / "video";
    FencedFile old(path, 1);
    put_content(old.draft(), "first");
    fs::permissions(old.draft(), fs::perms::owner_all);
    old.publish(old.draft());
    CHECK(content_of(path) == "first");
    CHECK_FALSE(fs::exists(old.draft()));
    put_content(folder / "mine", "late");
    FencedFile next(path, 2);
    CHECK_THROWS_AS(old.publish(folder / "mine"), idem::LeaseLostError);
    CHECK(content_of(folder / "mine") == "late");
    CHECK_THROWS_AS(old.publish(old.draft()), idem::LeaseLostError);  // it is not there any more
    next.write("second");
    CHECK(fs::status(path).permissions() == fs::perms::owner_all);  // as it was
    CHECK_THROWS_AS(next.publish(folder / "nothing"), fs::filesystem_error);
    CHECK(content_of(path) == "second");
}

TEST_CASE("drafts of vanished holders go when the next one comes, and nothing else", "[fenced]") {
    const Folder folder;
    for (const char* name : {"a.4.draft", "a.4.17.draft", "a.5.draft", "a.6.draft", "a.x.draft",
                             "b.4.draft", "a.4.other", "a"})
        put_content(folder / name, "left");
    FencedFile file(folder / "a", 5);
    CHECK(folder.names() == std::vector<std::string>{"a", "a.4.other", "a.5.draft", "a.6.draft",
                                                     "a.fence", "a.x.draft", "b.4.draft"});
    CHECK(content_of(folder / "a") == "left");
}

TEST_CASE("a damaged fence lets nobody write", "[fenced]") {
    const Folder folder;
    for (const std::string bad :
         {"x", "12", "00000000000000000007", "00000000000000000007\n\n", "0000000000000000000x\n",
          "99999999999999999999\n", "-0000000000000000007\n"}) {
        CAPTURE(bad);
        put_content(folder / "a", "old");
        put_content(folder / "a.fence", bad);
        CHECK_THROWS_AS(FencedFile(folder / "a", 9), idem::SchemaError);
        CHECK(content_of(folder / "a.fence") == bad);
    }
    put_content(folder / "a.fence", "");  // made, and not yet written when its machine stopped
    FencedFile(folder / "a", 9).write("new");
    CHECK(content_of(folder / "a.fence") == "00000000000000000009\n");
    CHECK(content_of(folder / "a") == "new");
}

TEST_CASE("what cannot be written is said, by name", "[fenced]") {
    const Folder folder;
    CHECK_THROWS_AS(FencedFile(folder / "a", 0), idem::UsageError);
    CHECK_THROWS_AS(FencedFile(folder / "", 1), idem::UsageError);
    CHECK_THROWS_AS(FencedFile(folder / "none" / "a", 1), fs::filesystem_error);
    fs::create_directory(folder / "dir");
    FencedFile file(folder / "dir", 1);
    CHECK_THROWS_AS(file.write("x"), fs::filesystem_error);
    CHECK(folder.names() == std::vector<std::string>{"dir", "dir.fence"});
}

TEST_CASE("of many writers at once the last content is the highest fence's, whole", "[fenced]") {
    const Folder folder;
    const auto path = folder / "raced";
    constexpr idem::Fence count = 16;
    std::atomic<int> torn{0};
    std::atomic<bool> done{false};
    std::jthread reader([&] {
        while (!done) {
            if (!fs::exists(path)) continue;
            const auto seen = content_of(path);
            torn += seen.size() == 4096 && seen.find_first_not_of(seen[0]) == seen.npos ? 0 : 1;
        }
    });
    std::vector<std::jthread> writers;
    for (idem::Fence fence = 1; fence <= count; ++fence)
        writers.emplace_back([&, fence] {
            const std::string content(4096, static_cast<char>('a' + fence));
            try {
                FencedFile file(path, fence, 1h);
                for (int i = 0; i < 3; ++i) file.write(content);
            } catch (const idem::LeaseLostError&) {  // a higher one has been here
            }
        });
    writers.clear();
    done = true;
    reader.join();
    CHECK(torn == 0);
    CHECK(content_of(path) == std::string(4096, static_cast<char>('a' + count)));
}

TEST_CASE("a writer that is stopped in its last step makes others wait, not hang", "[fenced]") {
    const Folder folder;
    const auto path = folder / "a";
    FencedFile(path, 1).write("old");
    const int held = ::open((path.string() + ".fence").c_str(), O_RDWR | O_CLOEXEC);
    REQUIRE(::flock(held, LOCK_EX) == 0);
    CHECK_THROWS_AS(FencedFile(path, 2, 20ms), idem::UnavailableError);
    std::atomic<bool> written{false};
    std::jthread waits([&] {
        FencedFile(path, 2, 1h).write("new");
        written = true;
    });
    outlast(50ms);
    CHECK_FALSE(written);
    ::close(held);
    waits.join();
    CHECK(content_of(path) == "new");
}

TEST_CASE("a forked child does not keep the fence locked", "[fenced][fork]") {
    const Folder folder;
    const auto path = folder / "a";
    pid_t child = -1;
    {
        const idem::detail::LockedFence locked(folder / "a.fence", 1s);
        child = fork();
        if (child == 0) {
            alarm(60);
            for (;;) pause();
        }
    }
    CHECK_NOTHROW(FencedFile(path, 1, 1s).write("x"));
    kill(child, SIGKILL);
    CHECK(ended_by(child, SIGKILL));
}

TEST_CASE("a holder that is stopped past its lease writes nothing when it goes on",
          "[fenced][fork]") {
    const Folder folder;
    const auto path = folder / "a";
    StoppedHolder old([&](const StoppedHolder::Go& go) {
        FencedFile file(path, 1);
        file.write("of the first");
        go.ready();  // stopped here
        file.write("late");
    });
    REQUIRE(old.stopped());
    CHECK(content_of(path) == "of the first");
    FencedFile(path, 2).write("of the next");
    CHECK(old.goes_on() == StoppedHolder::refused);
    CHECK(content_of(path) == "of the next");
}

}  // namespace fenced_file_test
