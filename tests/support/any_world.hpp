#ifndef IDEM_TESTS_SUPPORT_ANY_WORLD_HPP
#define IDEM_TESTS_SUPPORT_ANY_WORLD_HPP

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <idem/any_store.hpp>
#include <idem/testing/conformance_base.hpp>

namespace idem_test {

/// Any world of the conformance kit behind one type, so that the kit is compiled once for all.
class AnyWorld {
public:
    /// @param make makes the world, in its place: some refer to themselves.
    template <class Make>
    [[nodiscard]] static AnyWorld made_by(Make& make) {
        return AnyWorld(std::make_shared<Holds<decltype(make())>>(make));
    }

    [[nodiscard]] idem::AnyStore& store() { return held_->store; }
    void advance(idem::Duration by) { held_->advance(by); }
    [[nodiscard]] idem::Instant now() { return held_->now(); }
    [[nodiscard]] std::string prefix() { return held_->prefix(); }
    [[nodiscard]] idem::Duration slack() { return held_->slack(); }
    [[nodiscard]] bool list_may_repeat() { return held_->list_may_repeat(); }
    [[nodiscard]] bool expires_unasked() { return held_->expires_unasked(); }
    [[nodiscard]] std::size_t message_bytes_max() { return held_->message_bytes_max(); }
    [[nodiscard]] bool holds_garbage() { return held_->holds_garbage(); }
    void put_raw(const idem::KeyView& key, std::string_view bytes) { held_->put_raw(key, bytes); }

private:
    struct Held {
        explicit Held(idem::AnyStore s) : store(std::move(s)) {}
        Held(const Held&) = delete;
        Held& operator=(const Held&) = delete;
        virtual ~Held() = default;
        virtual void advance(idem::Duration by) = 0;
        [[nodiscard]] virtual idem::Instant now() = 0;
        [[nodiscard]] virtual std::string prefix() = 0;
        [[nodiscard]] virtual idem::Duration slack() = 0;
        [[nodiscard]] virtual bool list_may_repeat() = 0;
        [[nodiscard]] virtual bool expires_unasked() = 0;
        [[nodiscard]] virtual std::size_t message_bytes_max() = 0;
        [[nodiscard]] virtual bool holds_garbage() = 0;
        virtual void put_raw(const idem::KeyView& key, std::string_view bytes) = 0;

        idem::AnyStore store;
    };
    template <class World>
    struct InPlace {
        World world;
    };
    template <class World>
    struct Holds final : private InPlace<World>, Held {
        template <class Make>
        explicit Holds(Make& make) : InPlace<World>{make()}, Held(this->world.store()) {}

        void advance(idem::Duration by) override { this->world.advance(by); }
        idem::Instant now() override { return this->world.now(); }
        std::string prefix() override { return idem::testing::conformance::prefix_of(this->world); }
        idem::Duration slack() override {
            return idem::testing::conformance::slack_of(this->world);
        }
        bool list_may_repeat() override {
            return idem::testing::conformance::list_may_repeat(this->world);
        }
        bool expires_unasked() override {
            return idem::testing::conformance::expires_unasked(this->world);
        }
        std::size_t message_bytes_max() override {
            return idem::testing::conformance::message_bytes_max_of(this->world);
        }
        bool holds_garbage() override { return idem::testing::conformance::holds_garbage<World>; }
        void put_raw(const idem::KeyView& key, std::string_view bytes) override {
            if constexpr (idem::testing::conformance::holds_garbage<World>)
                this->world.put_raw(key, bytes);
        }
    };
    explicit AnyWorld(std::shared_ptr<Held> held) : held_(std::move(held)) {}

    std::shared_ptr<Held> held_;
};

}  // namespace idem_test

#endif
