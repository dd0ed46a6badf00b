#ifndef IDEM_TESTS_SUPPORT_EXPECTED_HPP
#define IDEM_TESTS_SUPPORT_EXPECTED_HPP

#include <stdexcept>
#include <utility>
#include <variant>

namespace idem_test {

/// As much of std::expected (C++23) as a guarded handler's result needs.
template <class T, class E>
class Expected {
public:
    using value_type = T;
    using error_type = E;

    Expected(T value) : held_(std::in_place_index<0>, std::move(value)) {}  // NOLINT
    [[nodiscard]] static Expected fail(E error) {
        return Expected(std::in_place_index<1>, std::move(error));
    }

    [[nodiscard]] bool has_value() const { return held_.index() == 0; }
    [[nodiscard]] T& value() & { return checked(*this); }
    [[nodiscard]] const T& value() const& { return checked(*this); }
    [[nodiscard]] T&& value() && { return std::move(checked(*this)); }
    [[nodiscard]] const E& error() const { return std::get<1>(held_); }

private:
    Expected(std::in_place_index_t<1> place, E error) : held_(place, std::move(error)) {}

    template <class Self>
    static auto& checked(Self& self) {
        if (!self.has_value()) throw std::logic_error("value() of an Expected that holds an error");
        return std::get<0>(self.held_);
    }

    std::variant<T, E> held_;
};

/// The same for work that returns nothing.
template <class E>
class Expected<void, E> {
public:
    using value_type = void;
    using error_type = E;

    Expected() = default;
    [[nodiscard]] static Expected fail(E error) { return Expected(std::move(error)); }

    [[nodiscard]] bool has_value() const { return held_.index() == 0; }
    void value() const {
        if (!has_value()) throw std::logic_error("value() of an Expected that holds an error");
    }
    [[nodiscard]] const E& error() const { return std::get<1>(held_); }

private:
    explicit Expected(E error) : held_(std::in_place_index<1>, std::move(error)) {}

    std::variant<std::monostate, E> held_{};
};

}  // namespace idem_test

#endif
