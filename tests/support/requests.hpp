#ifndef IDEM_TESTS_SUPPORT_REQUESTS_HPP
#define IDEM_TESTS_SUPPORT_REQUESTS_HPP

#include <chrono>
#include <cstdint>
#include <cstring>
#include <string_view>

#include <idem/detail/random.hpp>
#include <idem/store.hpp>

/// Requests to a store, where a test is not about what else is in them.
namespace idem_test {

[[nodiscard]] inline idem::Owner random_owner() {
    idem::Owner out;
    idem::detail::fill_random(out.bytes.data(), out.bytes.size());
    return out;
}

[[nodiscard]] inline idem::Owner owner_of(std::uint64_t number) {
    idem::Owner out;
    std::memcpy(out.bytes.data(), &number, sizeof number);
    out.bytes.back() = 1;  // an owner is never all zeroes
    return out;
}

[[nodiscard]] inline idem::ClaimRequest claim_of(const idem::Key& key, const idem::Owner& owner) {
    idem::ClaimRequest out;
    out.key = idem::KeyView(idem::Component::call, key);
    out.owner = owner;
    out.lease = std::chrono::seconds{30};
    out.retention = std::chrono::hours{1};
    out.held_retention = std::chrono::hours{5};
    return out;
}

[[nodiscard]] inline idem::ClaimRequest claim_of(const idem::Key& key, std::uint64_t owner) {
    return claim_of(key, owner_of(owner));
}

[[nodiscard]] inline idem::FinishRequest complete_of(const idem::Key& key, const idem::Owner& owner,
                                                     idem::Fence fence, std::string_view result) {
    idem::FinishRequest out;
    out.key = idem::KeyView(idem::Component::call, key);
    out.owner = owner;
    out.fence = fence;
    out.lease = std::chrono::seconds{30};
    out.retention = std::chrono::hours{1};
    out.held_retention = std::chrono::hours{5};
    out.result_kind = idem::ResultKind::value;
    out.result = result;
    return out;
}

/// By the owner of a claim that was acquired.
[[nodiscard]] inline idem::FinishRequest complete_of(const idem::ClaimRequest& claim,
                                                     idem::Fence fence, std::string_view result) {
    auto out = complete_of({}, claim.owner, fence, result);
    out.key = claim.key;
    return out;
}

[[nodiscard]] inline idem::FinishRequest release_of(const idem::Key& key, const idem::Owner& owner,
                                                    idem::Fence fence) {
    idem::FinishRequest out = complete_of(key, owner, fence, "");
    out.kind = idem::FinishKind::release;
    out.result_kind = idem::ResultKind::none;
    out.failure = idem::FailureClass::retryable;
    return out;
}

[[nodiscard]] inline idem::KeyView view_of(const idem::Key& key) {
    return {idem::Component::call, key};
}

}  // namespace idem_test

#endif
