#ifndef IDEM_COALESCE_HPP
#define IDEM_COALESCE_HPP

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include <idem/detail/bytes.hpp>
#include <idem/guard.hpp>

namespace idem::inline v0_1 {

namespace detail {

template <class Outcome>
struct ResultIn;
template <class T>
struct ResultIn<Outcome<T>> {
    using Type = T;
};

}  // namespace detail

/// The one key under which `run_coalesced` runs all calls of equal content: of this scope and
/// tenant, with this fingerprint. @throws UsageError for a fingerprint that is absent.
[[nodiscard]] inline Key coalesced_key(const Key& key, const Fingerprint& fingerprint) {
    if (!fingerprint.present())
        throw UsageError("run_coalesced needs a fingerprint: it says what is equal");
    return {key.scope, "content:" + detail::hex(fingerprint.stored()), key.tenant};
}

/// As `guard.run`, but equal content under different keys is one operation: it runs once, and every
/// key gets that result. The key with other content is still a mismatch. Costs two records and
/// twice the round trips. Equal content in progress under another key answers `in_progress`, and
/// this key may be tried again. What a crash leaves is taken over for the content, by any of its
/// keys. Throws what `run` throws; the same content again is safe then.
template <class Guard, class Handler>
[[nodiscard]] auto run_coalesced(Guard& guard, const Key& key, const Fingerprint& fingerprint,
                                 const RunOptions& options, Handler&& handler) {
    const Key content = coalesced_key(key, fingerprint);
    using Result =
        decltype(guard.run(content, fingerprint, options, std::forward<Handler>(handler)));
    using Value = typename detail::ResultIn<Result>::Type;
    auto claimed = guard.template claim<Value>(key, fingerprint, options);
    if (auto* answered = std::get_if<Result>(&claimed)) return std::move(*answered);
    auto& claim = std::get<Claim<Value>>(claimed);
    // Attempts are counted where the handler runs: under the content's key.
    std::optional<Result> outcome;
    try {
        outcome.emplace(guard.run(content, fingerprint, options, std::forward<Handler>(handler)));
    } catch (...) {
        std::move(claim).give_back();
        throw;
    }
    if (outcome->has_value()) {
        auto copy = outcome->value();
        (void)std::move(claim).complete(std::move(copy));
    } else if (outcome->kind() == OutcomeKind::failed &&
               outcome->failure().kind != FailureClass::retryable) {
        std::move(claim).fail(outcome->failure());
    } else {
        std::move(claim).give_back();
    }
    return *std::move(outcome);
}
template <class Guard, class Handler>
[[nodiscard]] auto run_coalesced(Guard& guard, const Key& key, const Fingerprint& fingerprint,
                                 Handler&& handler) {
    return run_coalesced(guard, key, fingerprint, RunOptions{}, std::forward<Handler>(handler));
}

}  // namespace idem::inline v0_1

#endif
