#ifndef IDEM_LAYERED_NESTING_HPP
#define IDEM_LAYERED_NESTING_HPP

#include <type_traits>

#include <idem/fwd.hpp>

namespace idem::inline v0_1::detail {

/// Whether a store is this layer, for layers that make no sense over each other.
template <class Store, template <class> class Layer>
inline constexpr bool is_layer = false;
template <class Store, template <class> class Layer>
inline constexpr bool is_layer<Layer<Store>, Layer> = true;

/// Whether it is, or is a layer over one that is.
template <class Store, template <class> class Layer>
inline constexpr bool has_layer = false;
template <template <class> class Over, class Store, template <class> class Layer>
inline constexpr bool has_layer<Over<Store>, Layer> =
    std::is_same_v<Over<Store>, Layer<Store>> || has_layer<Store, Layer>;

template <class Store>
inline constexpr bool is_tiered = false;
template <class Front, class Back>
inline constexpr bool is_tiered<TieredStore<Front, Back>> = true;

}  // namespace idem::inline v0_1::detail

#endif
