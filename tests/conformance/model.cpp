// The reference model keeps every promise; and with one flaw put into it the kit says so. Both on
// one type of store, for the kit is a lot of template.

#include <algorithm>
#include <iostream>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <idem/testing/conformance.hpp>
#include <idem/testing/manual_clock.hpp>
#include <idem/testing/model_store.hpp>

#include "support/catch.hpp"

namespace model_test {

namespace conformance = idem::testing::conformance;
using idem::testing::ManualClock;
using idem::testing::ModelStore;

enum class Flaw {
    none,
    claim_forgets_the_fence,
    claim_loses_the_checkpoint,
    any_owner_may_finish,
    any_fence_may_renew,
    batch_runs_backwards,
    forget_leaves_nothing,
    issue_overwrites,
    reap_does_not_look_again,
    list_repeats_a_page,
    purge_ignores_its_limit,
    find_shows_the_lapsed_as_live,
    throws,
    forget_ignores_the_lease,
    release_ignores_the_lease,
    list_ignores_its_limit,
    list_cuts_the_scope,
    resolve_makes_up_a_value,
    // What only a promise can see: no reply of a history depends on it.
    purge_never_says_more,
    purge_counts_nothing,
    count_,
};

// A model store that lies in one way. The flaws are those that real stores had.
class FlawedStore : public ModelStore {
public:
    FlawedStore(idem::StoreClock clock, Flaw flaw) : ModelStore(std::move(clock)), flaw_(flaw) {}

    void claim(std::span<const idem::ClaimRequest> requests, std::span<idem::ClaimReply> replies) {
        if (flaw_ == Flaw::throws && requests.size() > 5) throw std::runtime_error("too many");
        if (flaw_ == Flaw::batch_runs_backwards) {
            const std::vector<idem::ClaimRequest> reversed(requests.rbegin(), requests.rend());
            ModelStore::claim(reversed, replies);
            return std::reverse(replies.begin(), replies.end());
        }
        ModelStore::claim(requests, replies);
        for (auto& reply : replies) {
            if (flaw_ == Flaw::claim_forgets_the_fence && reply.takeover) --reply.fence;
            if (flaw_ == Flaw::claim_loses_the_checkpoint) reply.checkpoint.clear();
        }
    }
    void finish(std::span<const idem::FinishRequest> requests,
                std::span<idem::FinishReply> replies) {
        std::vector<idem::FinishRequest> changed(requests.begin(), requests.end());
        for (auto& request : changed) {
            if (flaw_ == Flaw::release_ignores_the_lease) request.lease = {};
            if (flaw_ != Flaw::any_owner_may_finish) continue;
            const auto raw = get_raw(request.key);
            if (raw) request.owner = idem::decode_record(*raw).header.owner;
        }
        ModelStore::finish(changed, replies);
    }
    void renew(std::span<const idem::RenewRequest> requests, std::span<idem::RenewReply> replies) {
        std::vector<idem::RenewRequest> changed(requests.begin(), requests.end());
        for (auto& request : changed) {
            if (flaw_ != Flaw::any_fence_may_renew) break;
            const auto raw = get_raw(request.key);
            if (raw) request.fence = idem::decode_record(*raw).header.fence;
        }
        ModelStore::renew(changed, replies);
    }
    void issue(std::span<const idem::IssueRequest> requests, std::span<idem::IssueReply> replies) {
        if (flaw_ == Flaw::issue_overwrites)
            for (const auto& request : requests) erase(request.key);
        ModelStore::issue(requests, replies);
    }
    void resolve(std::span<const idem::ResolveRequest> requests,
                 std::span<idem::ResolveReply> replies) {
        std::vector<idem::ResolveRequest> changed(requests.begin(), requests.end());
        for (auto& request : changed)
            if (flaw_ == Flaw::resolve_makes_up_a_value && request.succeeded)
                request.result_kind = idem::ResultKind::value;
        ModelStore::resolve(changed, replies);
    }
    void reap(std::span<const idem::ReapRequest> requests, std::span<idem::ReapReply> replies) {
        std::vector<idem::ReapRequest> changed(requests.begin(), requests.end());
        for (auto& request : changed) {
            if (flaw_ != Flaw::reap_does_not_look_again) break;
            const auto raw = get_raw(request.key);
            if (raw) request.seen_fence = idem::decode_record(*raw).header.fence;
        }
        ModelStore::reap(changed, replies);
    }
    void forget(std::span<const idem::ForgetRequest> requests,
                std::span<idem::ForgetReply> replies) {
        std::vector<idem::ForgetRequest> changed(requests.begin(), requests.end());
        for (auto& request : changed)
            if (flaw_ == Flaw::forget_ignores_the_lease) request.lease = {};
        ModelStore::forget(changed, replies);
        if (flaw_ == Flaw::forget_leaves_nothing)
            for (const auto& request : requests) erase(request.key);
    }
    void find(std::span<const idem::KeyView> keys, std::span<idem::FindReply> replies) {
        ModelStore::find(keys, replies);
        for (auto& reply : replies)
            if (flaw_ == Flaw::find_shows_the_lapsed_as_live && reply.record)
                reply.record->lapsed = false;
    }
    idem::ListPage list(const idem::ListQuery& query) {
        auto changed = query;
        if (flaw_ == Flaw::list_ignores_its_limit) changed.limit = 1'000'000;
        if (flaw_ == Flaw::list_cuts_the_scope && query.scope)
            changed.scope = query.scope->substr(0, 20);
        auto page = ModelStore::list(changed);
        if (flaw_ == Flaw::list_repeats_a_page && !page.records.empty())
            page.records.push_back(page.records.front());
        return page;
    }
    idem::PurgeReply purge(std::size_t limit) {
        auto reply = ModelStore::purge(flaw_ == Flaw::purge_ignores_its_limit ? 1000 : limit);
        if (flaw_ == Flaw::purge_never_says_more) reply.more = false;
        if (flaw_ == Flaw::purge_counts_nothing) reply.removed = 0;
        return reply;
    }

private:
    // As good as gone: past its retention since 1970.
    void erase(const idem::KeyView& key) {
        const auto raw = get_raw(key);
        if (raw && idem::decode_record(*raw)) put_raw(key, idem::encode_record({}, {}));
    }

    Flaw flaw_;
};

struct World {
    explicit World(Flaw flaw) : made(clock, flaw) {}

    ManualClock clock{};
    FlawedStore made;

    FlawedStore& store() { return made; }
    void advance(idem::Duration by) { clock.advance(by); }
    idem::Instant now() { return clock.now(); }
    void put_raw(const idem::KeyView& key, std::string_view bytes) { made.put_raw(key, bytes); }
};

std::string text_of(const conformance::Report& report) {
    std::ostringstream text;
    report.print(text);
    return text.str();
}

TEST_CASE("conformance: the model keeps every promise", "[conformance]") {
    const auto report = conformance::run([] { return World(Flaw::none); });
    INFO(text_of(report));
    CHECK(report.ok());
    std::cout << text_of(report);
}

TEST_CASE("conformance: every flaw breaks a promise and a history", "[conformance]") {
    for (int flaw = 1; flaw < static_cast<int>(Flaw::count_); ++flaw) {
        const auto report =
            conformance::run([=] { return World(static_cast<Flaw>(flaw)); }, {.seed = 7});
        const auto broken = std::count_if(report.promises.begin(), report.promises.end(),
                                          [](const auto& asked) { return !asked.broken.empty(); });
        INFO("flaw " << flaw << "\n" << text_of(report));
        CHECK(broken > 0);
        if (flaw >= static_cast<int>(Flaw::purge_never_says_more)) continue;
        CHECK_FALSE(report.difference.empty());
        const auto steps = std::count(report.history.begin(), report.history.end(), '#');
        CHECK((steps > 0 && steps <= 8));  // cut down to what matters
    }
}

}  // namespace model_test
