// Goal: a program, its plugins and their plugins may each carry this library. Method: link two
// translation units, load two shared objects that export every symbol, and unload one of them
// while threads are inside the other.

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <dlfcn.h>

#include "odr/exercise.hpp"
#include "support/catch.hpp"

bool exercise_in_second_unit();

namespace {

class Module {
public:
    Module(std::string path, int scope)
        : path_(std::move(path)), handle_(dlopen(path_.c_str(), RTLD_NOW | scope)) {
        if (handle_ == nullptr) FAIL(dlerror());
        exercise_ = reinterpret_cast<bool (*)()>(dlsym(handle_, "idem_odr_exercise"));
        REQUIRE(exercise_ != nullptr);
    }
    Module(const Module&) = delete;
    Module& operator=(const Module&) = delete;
    ~Module() { close(); }

    [[nodiscard]] bool exercise() const { return exercise_(); }
    [[nodiscard]] bool loaded() const {
        void* const again = dlopen(path_.c_str(), RTLD_NOW | RTLD_NOLOAD);
        if (again != nullptr) dlclose(again);
        return again != nullptr;
    }
    void close() {
        if (handle_ != nullptr) dlclose(std::exchange(handle_, nullptr));
    }

private:
    std::string path_;
    void* handle_;
    bool (*exercise_)() = nullptr;
};

TEST_CASE("two translation units of one program share the library", "[odr]") {
    CHECK(exercise());
    CHECK(exercise_in_second_unit());
}

TEST_CASE("a shared object is unloaded while another goes on", "[odr]") {
    const auto [leaves, stays] = GENERATE(std::pair{IDEM_ODR_left, IDEM_ODR_right},
                                          std::pair{IDEM_ODR_right, IDEM_ODR_left});
    CAPTURE(leaves, stays);

    const Module staying(stays, RTLD_LOCAL);
    std::atomic<bool> stop = false;
    std::atomic<int> wrong = 0;
    std::vector<std::jthread> threads;
    for (int i = 0; i < 2; ++i) {
        threads.emplace_back([&] {
            while (!stop) wrong += staying.exercise() ? 0 : 1;
        });
    }
    int still_loaded = 0;
    for (int round = 0; round < 20; ++round) {
        Module leaving(leaves, RTLD_LOCAL);
        CHECK(leaving.exercise());
        leaving.close();
        still_loaded += leaving.loaded() ? 1 : 0;
    }
    stop = true;
    threads.clear();
    CHECK(wrong == 0);
    CHECK(still_loaded == 0);  // else nothing was unloaded and the rounds proved nothing
}

TEST_CASE("shared objects that bind to each other's symbols work, and after one closes", "[odr]") {
    const auto [first, second] = GENERATE(std::pair{IDEM_ODR_left, IDEM_ODR_right},
                                          std::pair{IDEM_ODR_right, IDEM_ODR_left});
    Module one(first, RTLD_GLOBAL);
    Module two(second, RTLD_GLOBAL);
    CHECK(one.exercise());
    CHECK(two.exercise());
    one.close();
    CHECK(two.exercise());
}

}  // namespace
