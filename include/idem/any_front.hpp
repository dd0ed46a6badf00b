#ifndef IDEM_ANY_FRONT_HPP
#define IDEM_ANY_FRONT_HPP

#include <concepts>
#include <memory>
#include <span>
#include <utility>

#include <idem/layered/front.hpp>

namespace idem::inline v0_1 {

/// Any front behind one type, as `AnyStore` is any store. A handle; costs one virtual call a batch.
class AnyFront {
public:
    // The type first, as in AnyStore.
    template <class Front>
    requires(!std::same_as<Front, AnyFront> && front<Front>) AnyFront(Front front)
        : held_(std::make_shared<Holds<Front>>(std::move(front))) {}  // NOLINT

    void get(std::span<const KeyView> keys, std::span<FrontGot> got) { held_->get(keys, got); }
    void put(std::span<const FrontPut> puts, std::span<Trouble> troubles) {
        held_->put(puts, troubles);
    }
    void bury(std::span<const FrontBury> buries, std::span<Trouble> troubles) {
        held_->bury(buries, troubles);
    }
    [[nodiscard]] Duration time_allowed() const { return held_->time_allowed(); }

private:
    struct Held {
        virtual ~Held() = default;
        virtual void get(std::span<const KeyView>, std::span<FrontGot>) = 0;
        virtual void put(std::span<const FrontPut>, std::span<Trouble>) = 0;
        virtual void bury(std::span<const FrontBury>, std::span<Trouble>) = 0;
        [[nodiscard]] virtual Duration time_allowed() const = 0;
    };
    template <class Front>
    struct Holds final : Held {
        explicit Holds(Front f) : front(std::move(f)) {}
        void get(std::span<const KeyView> keys, std::span<FrontGot> got) override {
            front.get(keys, got);
        }
        void put(std::span<const FrontPut> puts, std::span<Trouble> troubles) override {
            front.put(puts, troubles);
        }
        void bury(std::span<const FrontBury> buries, std::span<Trouble> troubles) override {
            front.bury(buries, troubles);
        }
        Duration time_allowed() const override { return front.time_allowed(); }
        Front front;
    };

    std::shared_ptr<Held> held_;
};

static_assert(front<AnyFront>);

}  // namespace idem::inline v0_1

#endif
