#ifndef IDEM_TOKEN_HPP
#define IDEM_TOKEN_HPP

#include <array>
#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <idem/detail/bytes.hpp>
#include <idem/detail/random.hpp>
#include <idem/guard.hpp>

namespace idem::inline v0_1 {

struct TokenOptions {
    /// How long a token can be redeemed. Longer than a person needs between form and submit.
    Duration validity = std::chrono::minutes{15};
    /// Lease, retention and policies of the work that is done under a token. `retention` is also
    /// how long an expired or used token is told from an unknown one.
    GuardOptions guard{};
};

/// One-time tokens: a client asks for one, then submits with it. Of any number of concurrent
/// redemptions one runs; the others learn that it was used, and when. A request that fails before
/// its effect gives the token back; one for another tenant or scope never consumes it.
/// Any thread may use it; what was issued survives as the store does.
template <store Store>
class TokenIssuer {
public:
    /// @throws UsageError for an empty scope or options that cannot work.
    TokenIssuer(const Store& store, std::string scope, TokenOptions options = {})
        : guard_(store, std::move(options.guard), Component::token),
          scope_(std::move(scope)),
          validity_(options.validity) {
        detail::check_duration(validity_, "TokenOptions::validity");
        validate(KeyView(Component::token, scope_, "token", {}));
    }

    /// A new token: 32 hex digits, 128 random bits. With a binding a request of another fingerprint
    /// is a `mismatch`; one that is redeemed without a fingerprint is not compared. @throws
    /// UnavailableError: no token was handed out.
    [[nodiscard]] std::string issue(std::string_view tenant = {}, const Fingerprint& binding = {}) {
        std::array<char, token_digits / 2> random{};
        detail::fill_random(random.data(), random.size());
        std::string token = detail::hex({random.data(), random.size()});
        const Key key = key_of(token, tenant);
        const KeyView view(Component::token, key);
        validate(view);
        const IssueReply reply =
            issue_one(guard_.store(), {.key = view,
                                       .binding = binding,
                                       .owner = detail::new_owner(),
                                       .validity = validity_,
                                       .retention = guard_.options().retention});
        reply.trouble.raise();
        if (!reply.issued) throw UnavailableError("the token drawn is in use already; draw again");
        return token;
    }

    /// Redeems and runs in one step. `executed`: this call did it. `replayed`: it was used before,
    /// at `first_used`, and this is its result. `in_progress`: being used now. `absent`: never
    /// issued here (or too long ago). `expired`: too late. `mismatch`: bound to another request.
    template <detail::handler Handler>
    [[nodiscard]] auto redeem(std::string_view token, std::string_view tenant,
                              const Fingerprint& fingerprint, RunOptions options,
                              Handler&& handler) {
        options.redeem_only = true;
        return guard_.run(key_of(token, tenant), fingerprint, options,
                          std::forward<Handler>(handler));
    }
    template <detail::handler Handler>
    [[nodiscard]] auto redeem(std::string_view token, std::string_view tenant,
                              const Fingerprint& fingerprint, Handler&& handler) {
        return redeem(token, tenant, fingerprint, RunOptions{}, std::forward<Handler>(handler));
    }

    /// The first of two steps: the token is this caller's until it is confirmed by
    /// `Claim::complete`, or given back by `release`, a failure, or the end of the lease.
    template <class R>
    [[nodiscard]] std::variant<Claim<R>, Outcome<R>> reserve(std::string_view token,
                                                             std::string_view tenant = {},
                                                             const Fingerprint& fingerprint = {},
                                                             RunOptions options = {}) {
        options.redeem_only = true;
        return guard_.template claim<R>(key_of(token, tenant), fingerprint, options);
    }

    /// Takes a token back before it is used; says whether there was one.
    bool revoke(std::string_view token, std::string_view tenant = {}) {
        return guard_.forget(key_of(token, tenant));
    }

    /// The guard beneath, for `find`, `list`, `drain` and `resume` of a detached reservation.
    [[nodiscard]] IdempotencyGuard<Store>& guard() noexcept { return guard_; }

private:
    static constexpr std::size_t token_digits = 32;

    /// What cannot have been issued is looked up under an id that never is: whatever a client sends
    /// for a token, it is absent and not an error.
    [[nodiscard]] Key key_of(std::string_view token, std::string_view tenant) const {
        if (token.size() != token_digits) token = "not a token";
        return {.scope = scope_, .id = std::string(token), .tenant = std::string(tenant)};
    }

    IdempotencyGuard<Store> guard_;
    std::string scope_;
    Duration validity_;
};

}  // namespace idem::inline v0_1

#endif
