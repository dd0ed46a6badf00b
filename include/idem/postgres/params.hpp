#ifndef IDEM_POSTGRES_PARAMS_HPP
#define IDEM_POSTGRES_PARAMS_HPP

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace idem::inline v0_1::postgres {

/// The types that travel, by their fixed ids in every PostgreSQL.
enum class Type : std::uint32_t {
    boolean = 16,
    bytea = 17,
    letter = 18,  ///< "char": one byte.
    int8 = 20,
    int2 = 21,
    int4 = 23,
    text = 25,
    tid = 27,
    uuid = 2950,
};

[[nodiscard]] constexpr std::uint32_t array_of(Type type) noexcept {
    switch (type) {
        case Type::boolean: return 1000;
        case Type::bytea: return 1001;
        case Type::letter: return 1002;
        case Type::int8: return 1016;
        case Type::int2: return 1005;
        case Type::int4: return 1007;
        case Type::text: return 1009;
        case Type::tid: return 1010;
        case Type::uuid: return 2951;
    }
    return 0;
}

namespace detail {

/// Appends a number as PostgreSQL's binary format has it: most significant byte first.
template <class T>
void put_number(std::string& out, T value) {
    using Bits = std::make_unsigned_t<T>;
    const auto bits = static_cast<Bits>(value);
    for (std::size_t i = sizeof(T); i-- > 0;)
        out += static_cast<char>(static_cast<std::uint64_t>(bits) >> (8 * i) & 0xFFU);
}

}  // namespace detail

/// One value in binary form; nothing is NULL.
class Value {
public:
    static Value null() { return {}; }
    static Value boolean(bool v) { return Value(std::string(1, v ? '\1' : '\0')); }
    static Value bytes(std::string_view v) { return Value(std::string(v)); }
    static Value maybe(const std::optional<std::string_view>& v) { return v ? bytes(*v) : null(); }
    static Value letter(char v) { return Value(std::string(1, v)); }
    template <class T>
    static Value number(T v) {
        std::string out;
        detail::put_number(out, v);
        return Value(std::move(out));
    }

    [[nodiscard]] const std::optional<std::string>& binary() const noexcept { return binary_; }

private:
    Value() = default;
    explicit Value(std::string binary) : binary_(std::move(binary)) {}
    std::optional<std::string> binary_{};
};

/// The parameters of one statement, in binary, kept alive until it has been sent.
class Params {
public:
    void add(Type type, const Value& value) {
        types_.push_back(static_cast<std::uint32_t>(type));
        push(value.binary());
    }

    /// An array with one dimension, of what `make(i)` gives for each of `count` items.
    template <class Make>
    void add_array(Type type, std::size_t count, Make&& make) {
        std::string out;
        bool nulls = false;
        std::string items;
        for (std::size_t i = 0; i < count; ++i) {
            const Value value = make(i);
            const auto& binary = value.binary();
            nulls = nulls || !binary;
            detail::put_number(items, binary ? static_cast<std::int32_t>(binary->size()) : -1);
            if (binary) items += *binary;
        }
        detail::put_number(out, std::int32_t{count > 0 ? 1 : 0});
        detail::put_number(out, std::int32_t{nulls ? 1 : 0});
        detail::put_number(out, static_cast<std::uint32_t>(type));
        if (count > 0) {
            detail::put_number(out, static_cast<std::int32_t>(count));
            detail::put_number(out, std::int32_t{1});
        }
        types_.push_back(array_of(type));
        push(out + items);
    }

    [[nodiscard]] int count() const noexcept { return static_cast<int>(types_.size()); }
    [[nodiscard]] const std::uint32_t* types() const noexcept { return types_.data(); }
    [[nodiscard]] const char* const* values() const noexcept { return values_.data(); }
    [[nodiscard]] const int* lengths() const noexcept { return lengths_.data(); }
    [[nodiscard]] const int* formats() const noexcept { return formats_.data(); }

private:
    void push(std::optional<std::string> binary) {
        values_.push_back(nullptr);
        lengths_.push_back(0);
        formats_.push_back(1);
        if (!binary) return;
        kept_.push_back(*std::move(binary));
        values_.back() = kept_.back().data();
        lengths_.back() = static_cast<int>(kept_.back().size());
    }

    std::vector<std::uint32_t> types_{};
    std::deque<std::string> kept_{};  // a deque never moves what it holds
    std::vector<const char*> values_{};
    std::vector<int> lengths_{};
    std::vector<int> formats_{};
};

/// The numbers and flags in a binary reply. Nothing for a field of another size.
template <class T>
[[nodiscard]] std::optional<T> read_number(std::string_view field) noexcept {
    if (field.size() != sizeof(T)) return std::nullopt;
    std::uint64_t bits = 0;
    for (const char c : field) bits = bits << 8U | static_cast<unsigned char>(c);
    return static_cast<T>(bits);
}

}  // namespace idem::inline v0_1::postgres

#endif
