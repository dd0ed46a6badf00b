#ifndef IDEM_LAYERED_NESTING_HPP
#define IDEM_LAYERED_NESTING_HPP

#include <idem/fwd.hpp>

namespace idem::inline v0_1::detail {

/// Which layer a store is, for layers that make no sense over each other.
template <class Store, template <class> class Layer>
inline constexpr bool is_layer = false;
template <class Store, template <class> class Layer>
inline constexpr bool is_layer<Layer<Store>, Layer> = true;

template <class Store>
inline constexpr bool is_tiered = false;
template <class Front, class Back>
inline constexpr bool is_tiered<TieredStore<Front, Back>> = true;

}  // namespace idem::inline v0_1::detail

#endif
