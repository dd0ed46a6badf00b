#ifndef IDEM_DETAIL_CHUNK_HPP
#define IDEM_DETAIL_CHUNK_HPP

#include <cstddef>

namespace idem::inline v0_1::detail {

/// How much of a batch goes out at once.
struct ChunkLimits {
    std::size_t items = 0;
    std::size_t bytes = 0;
};

/// About how many bytes a request brings.
template <class Request>
[[nodiscard]] std::size_t weight_of(const Request& request) {
    std::size_t weight = 300;
    if constexpr (requires { request.result; }) weight += request.result.size();
    if constexpr (requires { request.checkpoint; })
        weight += request.checkpoint.value_or("").size() + request.resource.value_or("").size();
    return weight;
}

/// Where the chunk ends that begins at `from`, of `count` items of `weight(i)` bytes each. At least
/// one item, whatever it weighs.
template <class Weight>
[[nodiscard]] std::size_t chunk_end(std::size_t from, std::size_t count, const ChunkLimits& limits,
                                    Weight&& weight) {
    std::size_t end = from;
    for (std::size_t bytes = 0; end < count && end - from < limits.items; ++end) {
        bytes += weight(end);
        if (end > from && bytes > limits.bytes) break;
    }
    return end;
}

}  // namespace idem::inline v0_1::detail

#endif
