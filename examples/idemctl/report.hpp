#ifndef IDEMCTL_REPORT_HPP
#define IDEMCTL_REPORT_HPP

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include <idem/any_store.hpp>
#include <idem/detail/bytes.hpp>
#include <idem/detail/random.hpp>

#include "output.hpp"

namespace idemctl {

/// One line a check, and the exit status that all of them come to.
class Report {
public:
    explicit Report(bool json) : json_(json) {}

    void ok(const std::string& check, const std::string& what) {
        line("ok", check, what, Status{});
    }
    void warn(const std::string& check, const std::string& what) {
        line("warning", check, what, nothing);
    }
    void fail(const std::string& check, const std::string& what, Status status = damaged) {
        line("FAILED", check, what, status);
    }
    /// Unreachable is worse than damaged, and that is worse than a warning.
    [[nodiscard]] Status status() const noexcept { return status_; }

private:
    void line(std::string word, std::string check, const std::string& what, Status status) {
        if (status_ != unavailable && (status > status_ || status == unavailable)) status_ = status;
        if (json_) {
            JsonObject out;
            out.text("check", check).text("status", word == "FAILED" ? "failed" : word);
            out.text("what", escape(what));
            return print(std::move(out));
        }
        word.resize(9, ' ');
        check.resize(std::max<std::size_t>(check.size() + 1, 13), ' ');
        print(word + check + escape(what));
    }
    bool json_;
    Status status_ = Status::ok;
};

/// @param half_way this machine's clock when the server was asked, and half of the time it took.
inline void check_clock(Report& report, idem::Instant server, idem::Instant half_way) {
    const idem::Duration apart = server > half_way ? server - half_way : half_way - server;
    const std::string words =
        "the server's clock is " + in_words(apart) + (server > half_way ? " ahead" : " behind");
    if (apart < std::chrono::seconds{2}) return report.ok("clock", words);
    report.warn("clock", words +
                             ": records go by the server's, ages shown here are wrong by "
                             "that; run an NTP client on both");
}

/// Claims, releases and forgets a key that nobody else has: scripts or functions and every right
/// that they need.
inline void check_round_trip(Report& report, idem::AnyStore& store) {
    idem::ClaimRequest claim;
    idem::detail::fill_random(claim.owner.bytes.data(), claim.owner.bytes.size());
    const std::string id = "probe-" + idem::detail::hex(claim.owner.stored());
    claim.key = {idem::Component::call, "idem.check", id, {}};
    claim.lease = std::chrono::seconds{30};
    claim.retention = claim.held_retention = std::chrono::minutes{1};
    const auto failed = [&](const idem::Trouble& trouble, const char* what) {
        if (!trouble) return false;
        const bool away = trouble.kind == idem::Trouble::Kind::unavailable;
        report.fail("round trip", std::string(what) + ": " + trouble.message,
                    away ? unavailable : damaged);
        return true;
    };
    const auto begun = idem::LocalClock::now();
    const auto claimed = idem::claim_one(store, claim);
    if (failed(claimed.trouble, "a claim")) return;
    idem::FinishRequest release;
    release.key = claim.key;
    release.owner = claim.owner;
    release.fence = claimed.fence;
    release.kind = idem::FinishKind::release;
    release.lease = claim.lease;
    release.retention = release.held_retention = claim.retention;
    const auto released = idem::finish_one(store, release);
    if (failed(released.trouble, "a release")) return;
    const auto forgotten = idem::forget_one(store, {.key = claim.key, .lease = claim.lease});
    if (failed(forgotten.trouble, "a forget")) return;
    if (claimed.kind != idem::ClaimKind::acquired || released.lost || !forgotten.existed)
        return report.fail("round trip", "a claim that was released and forgotten came out wrong");
    const auto took = std::chrono::duration_cast<idem::Duration>(idem::LocalClock::now() - begun);
    report.ok("round trip", "claim, release and forget took " + in_words(took));
    idem::ListQuery query;
    query.limit = 1;
    const auto page = store.list(query);
    if (page.trouble.kind == idem::Trouble::Kind::schema) {
        report.fail("list", page.trouble.message);
    } else if (page.trouble) {
        report.warn("list", page.trouble.message + ": list and forget by filter need it");
    }
}

}  // namespace idemctl

#endif
