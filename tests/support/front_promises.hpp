#ifndef IDEM_TESTS_SUPPORT_FRONT_PROMISES_HPP
#define IDEM_TESTS_SUPPORT_FRONT_PROMISES_HPP

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include <idem/layered/front.hpp>

#include "support/catch.hpp"
#include "support/requests.hpp"

namespace idem_test {

/// What `TieredStore` takes for granted of a front whose clock `advance` moves.
template <idem::front Front>
class FrontPromises {
public:
    FrontPromises(Front front, std::function<void(idem::Duration)> advance)
        : front_(std::move(front)), advance_(std::move(advance)) {}

    void ask() {
        const auto minute = std::chrono::minutes{1};
        CHECK_FALSE(get());
        put(5, minute, "five");
        CHECK(get() == "five");
        put(5, minute, "five again");
        CHECK(get() == "five");
        put(4, minute, "older");
        CHECK(get() == "five");
        put(6, minute, std::string("si\0x\xFF", 5));
        CHECK(get() == std::string("si\0x\xFF", 5));

        bury(5, minute);  // of the older life
        CHECK(get() == std::string("si\0x\xFF", 5));
        bury(6, minute);
        CHECK_FALSE(get());
        put(6, minute, "late");
        CHECK_FALSE(get());
        put(7, minute, "next life");
        CHECK(get() == "next life");

        advance_(minute - idem::Duration{1});
        CHECK(get() == "next life");
        advance_(idem::Duration{1});
        CHECK_FALSE(get());
        put(3, minute, "nothing stands any more");
        CHECK(get() == "nothing stands any more");

        bury(8, minute);
        bury(0, minute);
        put(8, minute, "what was refused stays so");
        CHECK_FALSE(get());
        advance_(minute);

        put(3, minute, "of a key that is gone");
        bury(0, minute);
        CHECK_FALSE(get());
        put(1, minute, "nothing was refused");
        CHECK(get() == "nothing was refused");

        const auto late = now() + minute;
        advance_(minute);
        put_until(9, late, "dead on arrival");
        CHECK_FALSE(get());
        put_until(9, now() + minute, "");
        CHECK(get() == "");
        CHECK(find().ends == now() + minute);
        CHECK_FALSE(get("other"));
    }

private:
    [[nodiscard]] idem::FrontGot find(const std::string& id = "k") {
        const idem::Key key{"front", id};
        const auto view = view_of(key);
        idem::FrontGot got;
        front_.get(std::span(&view, 1), std::span(&got, 1));
        CHECK(got.trouble.message == "");
        return got;
    }
    [[nodiscard]] std::optional<std::string> get(const std::string& id = "k") {
        return find(id).bytes;
    }
    [[nodiscard]] idem::Instant now() { return find().now; }
    void put(idem::Fence fence, idem::Duration lasts, const std::string& bytes) {
        put_until(fence, now() + lasts, bytes);
    }
    void put_until(idem::Fence fence, idem::Instant ends, const std::string& bytes) {
        const idem::Key key{"front", "k"};
        const idem::FrontPut one{view_of(key), fence, ends, bytes};
        idem::Trouble trouble;
        front_.put(std::span(&one, 1), std::span(&trouble, 1));
        CHECK(trouble.message == "");
    }
    void bury(idem::Fence fence, idem::Duration lasts) {
        const idem::Key key{"front", "k"};
        const idem::FrontBury one{view_of(key), fence, lasts};
        idem::Trouble trouble;
        front_.bury(std::span(&one, 1), std::span(&trouble, 1));
        CHECK(trouble.message == "");
    }

    Front front_;
    std::function<void(idem::Duration)> advance_;
};

}  // namespace idem_test

#endif
