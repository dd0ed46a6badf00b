#ifndef IDEM_LAYERED_FRONT_HPP
#define IDEM_LAYERED_FRONT_HPP

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <idem/clock.hpp>
#include <idem/error.hpp>
#include <idem/key.hpp>
#include <idem/record.hpp>

namespace idem::inline v0_1 {

// What a `TieredStore` asks of the fast layer in front of the truth: copies of finished results
// that may be lost at any time, and for each key the highest fence that was forgotten. Times are
// instants of the front's own clock, microseconds.

struct FrontGot {
    std::optional<std::string> bytes{};  ///< As they were put. Nothing past their end.
    Instant ends{};                      ///< Theirs.
    Instant now{};                       ///< The front's clock, read before it looked.
    Trouble trouble{};
};
/// Stands until `ends` if nothing stands under the key with this fence or a higher one. One that
/// arrives after `ends` is dead.
struct FrontPut {
    KeyView key{};
    Fence fence = 0;
    Instant ends{};
    std::string_view bytes{};
};
/// Refuses every put up to this fence for `lasts`, and takes away what stands with it. Fence 0, of
/// a key that the back does not know, takes away what was put; what is refused stays so.
struct FrontBury {
    KeyView key{};
    Fence fence = 0;
    Duration lasts{};
};

/// A handle as a store is; any thread, any time; each item one atomic step on one key. An operation
/// throws only `std::bad_alloc` and ends within `time_allowed()`.
template <class F>
concept front = std::copy_constructible<F> &&
    requires(F& f, const F& c, std::span<const KeyView> keys, std::span<FrontGot> got,
             std::span<const FrontPut> puts, std::span<const FrontBury> buries,
             std::span<Trouble> troubles) {
    { f.get(keys, got) } -> std::same_as<void>;
    { f.put(puts, troubles) } -> std::same_as<void>;
    { f.bury(buries, troubles) } -> std::same_as<void>;
    { c.time_allowed() } -> std::convertible_to<Duration>;
};

}  // namespace idem::inline v0_1

#endif
