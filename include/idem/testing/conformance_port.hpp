#ifndef IDEM_TESTING_CONFORMANCE_PORT_HPP
#define IDEM_TESTING_CONFORMANCE_PORT_HPP

#include <algorithm>
#include <map>

#include <idem/testing/conformance_finish.hpp>

/// The other operations of the port, sentence by sentence.
namespace idem::inline v0_1::testing::conformance {

template <class B>
void issue_never_overwrites(B& b) {
    auto request = b.issue_request(b.key(), 1);
    request.binding = Fingerprint::of_bytes("P");
    expect(b.send(request).issued, "the first issue was refused");
    const auto record = b.must_find(b.key());
    expect_equal(record.header.state, State::issued, "the state");
    expect(record.header.token && record.header.bound, "the binding is not on record");
    b.expect_left(record.header.validity_end, B::validity, "the validity's end");
    b.expect_left(record.header.retention_end, B::validity + B::retention, "the retention's end");
    b.untouched(b.key(), [&] {
        expect(b.send(request).issued, "the same issue again was refused");
        expect(!b.send(b.issue_request(b.key(), 2)).issued, "another's issue was granted");
    });
    for (const auto kind : all_finishes) {
        const auto& key = b.key(to_string(kind));
        b.settle(key, 3, kind);
        b.untouched(key, [&] {
            expect(!b.send(b.issue_request(key, 1)).issued, "an issue over a record was granted");
        });
    }
    const Fence last = b.acquire(b.key("forgotten"), 1);
    b.forget(b.key("forgotten"));
    expect(b.send(b.issue_request(b.key("forgotten"), 2)).issued, "an issue over a tombstone");
    expect(b.must_find(b.key("forgotten")).header.fence > last, "its fence did not grow");
    expect_equal(b.claim(b.key("forgotten"), 1).kind, ClaimKind::stale,
                 "the forgotten holder's delayed claim");
}

template <class B>
void token_redeemed_in_time(B& b) {
    auto issue = b.issue_request(b.key(), 1);
    issue.binding = Fingerprint::of_bytes("P");
    expect(b.send(issue).issued, "the issue was refused");
    auto redeem = b.claim_request(b.key(), 2);
    redeem.redeem_only = true;
    redeem.fingerprint = Fingerprint::of_bytes("Q");
    b.untouched(b.key(), [&] {
        expect_equal(b.send(redeem).kind, ClaimKind::mismatch, "redeeming with another binding");
    });
    redeem.fingerprint = issue.binding;
    const auto reply = b.send(redeem);
    expect_equal(reply.kind, ClaimKind::acquired, "redeeming in time");
    expect_equal(reply.attempt, 1U, "the attempt");
    expect(!b.finish(b.key(), 2, reply.fence, FinishKind::complete).lost, "the redeemer lost");
    redeem.owner = B::owner(3);
    expect_equal(b.send(redeem).kind, ClaimKind::completed, "redeeming twice");

    expect(b.send(b.issue_request(b.key("late"), 1)).issued, "the issue was refused");
    b.advance(B::validity + b.slack());
    redeem.key = b.view(b.key("late"));
    expect_equal(b.send(redeem).kind, ClaimKind::expired, "redeeming when validity has ended");
    b.advance(B::retention + b.slack());
    expect_equal(b.send(redeem).kind, ClaimKind::absent, "redeeming when all is over");
}

template <class B>
void token_comes_back(B& b) {
    auto redeem = b.claim_request(b.key(), 2);
    redeem.redeem_only = true;
    redeem.fingerprint = Fingerprint::of_bytes("Q");
    const auto back_to_issued = [&](const Key& key, bool bound) {
        const auto record = b.must_find(key);
        expect_equal(record.header.state, State::issued, "the state of a token that came back");
        expect(record.payload == Payload{}, "a token came back with more than its binding");
        expect(record.header.fingerprint.present() == bound, "the binding changed");
    };
    for (const bool bound : {false, true}) {
        const auto& key = b.key(bound ? "bound" : "open");
        auto issue = b.issue_request(key, 1);
        if (bound) issue.binding = redeem.fingerprint;
        expect(b.send(issue).issued, "the issue was refused");
        redeem.key = b.view(key);
        redeem.owner = B::owner(2);
        auto release = b.finish_request(key, 2, b.acquire(redeem), FinishKind::release);
        release.checkpoint = "half";
        release.resource = "job-1";
        expect(!b.send(release).lost, "the redeemer's release was lost");
        back_to_issued(key, bound);
        redeem.owner = B::owner(3);
        const Fence fence = b.acquire(redeem);
        b.lapse();
        expect(b.send(b.reap_request(key, fence)).reaped, "a lapsed token was not reaped");
        back_to_issued(key, bound);
        redeem.owner = B::owner(4);
        expect(!b.finish(key, 4, b.acquire(redeem), FinishKind::fail).lost, "the redeemer lost");
        redeem.owner = B::owner(5);
        expect_equal(b.send(redeem).kind, ClaimKind::failed, "a token that was burned");
    }
}

template <class B>
void resolve_settles_the_held(B& b) {
    struct Row {
        const char* name;
        bool succeeded;
        ResultKind result;
    };
    constexpr Row rows[] = {{"with a result", true, ResultKind::value},
                            {"without one", true, ResultKind::none},
                            {"not done", false, ResultKind::none}};
    for (const auto& [name, succeeded, result] : rows) {
        const auto& key = b.key(name);
        const char* said = result == ResultKind::value ? "said so" : "";
        const Fence fence = b.settle(key, 1, FinishKind::quarantine);
        ResolveRequest request;
        request.key = b.view(key);
        request.seen_fence = fence + 1;
        request.succeeded = succeeded;
        request.retention = B::retention;
        request.result_kind = result;
        request.result = said;
        if (result == ResultKind::value) request.codec = {7, 1};
        b.untouched(key, [&] {
            const auto reply = b.send(request);
            expect(!reply.resolved, "a resolve of what was not seen was heard");
            expect_equal(reply.state, State::unknown, "the state in its answer");
        });
        request.seen_fence = fence;
        const auto reply = b.send(request);
        expect(reply.resolved, "a resolve of the held record was refused");
        const auto header = b.must_find(key).header;
        expect_equal(reply.state, header.state, "the state in its answer");
        expect_equal(header.state, succeeded ? State::succeeded : State::released, "the state");
        expect(header.fence > fence, "resolve did not raise the fence");
        b.expect_left(header.retention_end, B::retention, "the retention");
        b.untouched(key, [&] {
            expect_lost(b.finish(key, 1, fence, FinishKind::complete), LostReason::finished,
                        "the old owner's complete after resolve");
            expect(!b.send(request).resolved, "a resolve of what is no longer held was heard");
        });
        const auto next = b.claim(key, 2);
        expect_equal(next.kind, succeeded ? ClaimKind::completed : ClaimKind::acquired, "a repeat");
        expect_equal(next.result_kind, result, "whether it has a result");
        expect_equal(next.result, said, "its result");
    }
}

template <class B>
void resolve_only_the_held(B& b) {
    ResolveRequest request;
    request.retention = B::retention;
    request.succeeded = true;
    for (const auto kind : {FinishKind::complete, FinishKind::fail, FinishKind::release}) {
        const auto& key = b.key(to_string(kind));
        request.key = b.view(key);
        request.seen_fence = b.settle(key, 1, kind);
        b.untouched(key, [&] { expect(!b.send(request).resolved, "what is not held"); });
    }
    request.key = b.view(b.key("running"));
    request.seen_fence = b.acquire(b.key("running"), 1);
    expect(!b.send(request).resolved, "a running record was resolved");
    request.key = b.view(b.key("nothing"));
    const auto reply = b.send(request);
    expect(!reply.resolved && reply.state == State::forgotten, "nothing was resolved");
}

template <class B>
void reap_by_policy(B& b) {
    struct Row {
        const char* name;
        Policy policy;
        bool reaped;
        State after;
    };
    constexpr Row rows[] = {
        {"rerun", {Orphan::rerun, 0, 5}, true, State::released},
        {"hold", {Orphan::hold, 0, 5}, true, State::unknown},
        {"verify", {Orphan::verify, 0, 5}, false, State::running},
        {"cap", {Orphan::rerun, 0, 1}, true, State::failed},
        {"verify cap", {Orphan::verify, 0, 1}, true, State::unknown},
        {"last attempt", {Orphan::rerun, 1, 0}, true, State::failed},
    };
    for (const auto& row : rows) {
        const auto& key = b.key(row.name);
        auto request = b.claim_request(key, 1);
        request.policy = row.policy;
        const Fence fence = b.acquire(request);
        const std::string name = row.name;
        b.untouched(key, [&] {
            expect(!b.send(b.reap_request(key, fence)).reaped, name + ": a live lease was reaped");
        });
        b.lapse();
        b.untouched(key, [&] {
            expect(!b.send(b.reap_request(key, fence - 1)).reaped, name + ": an unseen fence");
        });
        const auto reply = b.send(b.reap_request(key, fence));
        expect_equal(reply.reaped, row.reaped, name + ": reaped");
        expect_equal(reply.state, row.after, name + ": the state in the answer");
        const auto header = b.must_find(key).header;
        expect_equal(header.state, row.after, name + ": the state");
        expect_equal(header.crashes, row.reaped ? 1U : 0U, name + ": the crashes");
        if (!row.reaped) continue;
        expect(!b.send(b.reap_request(key, fence)).reaped, name + ": reaped twice");
        const bool held = row.after == State::unknown;
        expect(b.finish(key, 1, fence, FinishKind::complete).lost != held,
               name + ": the vanished holder's complete");
    }
}

template <class B>
void reap_looks_again(B& b) {
    const Fence fence = b.acquire(b.key(), 1);
    b.lapse();
    expect(!b.send(b.renew_request(b.key(), 1, fence)).lost, "the renewal was lost");
    b.untouched(b.key(), [&] {
        expect(!b.send(b.reap_request(b.key(), fence)).reaped, "reaped although renewed");
    });
    b.lapse();
    b.acquire(b.key(), 2);
    b.lapse();
    expect(!b.send(b.reap_request(b.key(), fence)).reaped, "reaped although taken over");
    expect(!b.send(b.reap_request(b.key("none"), fence)).reaped, "reaped nothing");
}

template <class B>
void find_shows_what_stands(B& b) {
    expect(!b.find(b.key()), "find shows a record that never was");
    b.acquire(b.key(), 1);
    auto record = b.must_find(b.key());
    expect(!record.lapsed, "a live lease is shown as lapsed");
    b.expect_near(record.lease_left, B::lease, "the lease left");
    b.lapse();
    record = b.must_find(b.key());
    expect(record.lapsed && record.lease_left == Duration{}, "a lapsed lease is shown as live");
    expect_equal(record.header.state, State::running, "find reports the stored state");
    b.forget(b.key());
    expect(!b.find(b.key()), "find shows a tombstone");
    b.settle(b.key("expired"), 1, FinishKind::complete);
    b.advance(B::retention + b.slack());
    expect(!b.find(b.key("expired")), "find shows a record past its retention");
}

template <class B>
void components_never_meet(B& b) {
    auto request = b.claim_request(b.key(), 1);
    for (const auto component : components) {
        request.key = b.view(b.key(), component);
        expect_equal(b.send(request).kind, ClaimKind::acquired, "a component of its own");
    }
    const Key other{b.key().scope, b.key().id, "another"};
    request.key = b.view(other);
    expect_equal(b.send(request).kind, ClaimKind::acquired, "a tenant of its own");
    request.key = b.view(b.key("k", "another"));
    expect_equal(b.send(request).kind, ClaimKind::acquired, "a scope of its own");
}

template <class B>
void forget_leaves_a_tombstone(B& b) {
    expect(!b.forget(b.key()), "forget says there was one");
    expect_equal(b.forget_again(b.key("never")), 0U, "the fence of what never was");
    const Fence fence = b.acquire(b.key(), 1);
    expect(b.forget(b.key()), "forget says there was none");
    expect(!b.forget(b.key()), "forget says there was one, twice");
    expect_equal(b.forget_again(b.key()), fence, "the fence of the tombstone");
    const Fence other = b.acquire(b.key("first time"), 1);
    expect_equal(b.forget_again(b.key("first time")), other, "the fence of a new tombstone");
    b.advance(std::chrono::seconds{59} - b.slack());
    expect_lost(b.finish(b.key(), 1, fence, FinishKind::complete), LostReason::forgotten,
                "a late holder");
    expect_equal(b.claim(b.key(), 1).kind, ClaimKind::stale, "its delayed claim");
    b.acquire(b.key(), 2);
    for (const auto kind : all_finishes) {
        b.settle(b.key(to_string(kind)), 1, kind);
        expect(b.forget(b.key(to_string(kind))), "forget asks for no state");
    }
    b.settle(b.key("expired"), 1, FinishKind::complete);
    b.advance(B::retention + b.slack());
    expect(!b.forget(b.key("expired")), "there is nothing past retention");
}

template <class B>
void forget_looks_at_the_fence(B& b) {
    const auto forget = [&](Fence seen) {
        return b.send(ForgetRequest{b.view(b.key()), B::lease, seen});
    };
    const Fence first = b.settle(b.key(), 1, FinishKind::fail);
    expect(!forget(first + 1).existed, "forgotten by a fence that it has not");
    expect_equal(forget(first + 1).fence, 0U, "the fence of a tombstone that is none");
    expect(forget(first).existed, "not forgotten by its fence");
    expect(!forget(first).existed, "forgotten twice");
    const Fence second = b.acquire(b.key(), 2);
    expect(!forget(first).existed, "the fence of an earlier holder forgets the next one");
    expect(!b.finish(b.key(), 2, second, FinishKind::complete).lost, "the holder is lost");
    expect(!forget(first).existed, "the fence of an earlier holder forgets a result");
    expect_equal(b.claim(b.key(), 3).kind, ClaimKind::completed, "the result is kept");
}

/// Above the minimum a tombstone lasts as long as the longer lease: of the holder or of forget.
template <class B>
void forget_outlasts_the_lease(B& b) {
    const Fence asked = b.acquire(b.key("asked"), 1);
    b.send(ForgetRequest{b.view(b.key("asked")), B::long_lease});
    auto claim = b.claim_request(b.key("held"), 1);
    claim.lease = B::long_lease;
    const Fence held = b.acquire(claim);
    b.forget(b.key("held"));
    b.advance(B::long_lease - std::chrono::seconds{1} - b.slack());
    for (const auto& [name, fence] : {std::pair("asked", asked), std::pair("held", held)}) {
        const auto& key = b.key(name);
        expect_lost(b.finish(key, 1, fence, FinishKind::complete), LostReason::forgotten, name);
        expect_equal(b.claim(key, 1).kind, ClaimKind::stale, "a claim delayed by a long lease");
    }
}

template <class B>
std::vector<RecordView> list_all(B& b, ListQuery query) {
    std::vector<RecordView> all;
    for (int page = 0; page < 10'000; ++page) {
        auto got = b.store().list(query);
        if (got.trouble) throw Broken("trouble in list: " + got.trouble.message);
        expect(got.records.size() <= query.limit, "a page of list has more than its limit");
        for (auto& record : got.records) all.push_back(std::move(record));
        if (got.next.empty()) return all;
        query.cursor = got.next;
    }
    throw Broken("list never ends");
}

template <class B>
void expect_listed(B& b, const ListQuery& query, std::vector<std::string> ids,
                   const std::string& what) {
    std::vector<std::string> listed;
    for (const auto& record : list_all(b, query)) listed.push_back(record.key.id);
    std::sort(listed.begin(), listed.end());
    if (list_may_repeat(b.world))
        listed.erase(std::unique(listed.begin(), listed.end()), listed.end());
    std::sort(ids.begin(), ids.end());
    const auto join = [](const std::vector<std::string>& all) {
        std::string out;
        for (const auto& id : all) out += id + " ";
        return out;
    };
    expect_equal(join(listed), join(ids), what);
}

template <class B>
void list_pages_and_filters(B& b) {
    std::vector<std::string> all;
    for (int i = 0; i < 25; ++i) {
        all.push_back("id" + std::to_string(i));
        b.acquire(b.key(all.back()), 1);
    }
    b.acquire(b.key("elsewhere", "other"), 1);
    ListQuery query;
    query.scope = b.key().scope;
    for (const std::size_t limit : {1U, 7U, 25U, 1000U}) {
        query.limit = limit;
        expect_listed(b, query, all, "pages of " + std::to_string(limit));
    }
    query.tenant = "tenant";
    query.component = Component::call;
    expect_listed(b, query, all, "by tenant and component");
    query.tenant = "nobody";
    expect_listed(b, query, {}, "by another tenant");
    query.tenant.reset();
    query.component = Component::lease;
    expect_listed(b, query, {}, "by another component");
    query.component.reset();
    query.lapsed = true;
    expect_listed(b, query, {}, "the lapsed, while none is");
    b.lapse();
    expect_listed(b, query, all, "the lapsed");
    query.lapsed.reset();
    query.created_before = B::lease;
    b.settle(b.key("done"), 1, FinishKind::complete);
    expect_listed(b, query, all, "by age");
    query.created_before.reset();
    query.state = State::succeeded;
    expect_listed(b, query, {"done"}, "by state");
    b.forget(b.key("done"));
    expect_listed(b, query, {}, "a tombstone");
    query.state = State::running;
    b.advance(B::retention + b.slack());
    expect_listed(b, query, {}, "what is past retention");
}

template <class B>
void list_compares_whole_names(B& b) {
    const std::size_t cut = KeyView::part_bytes_max - 1;
    std::string scope = b.key().scope;
    scope.resize(cut, 's');
    const std::string tenant(cut, 't');
    const Key all[] = {{scope + "1", "this", tenant + "1"},
                       {scope + "2", "other scope", tenant + "1"},
                       {scope + "1", "other tenant", tenant + "2"}};
    for (const auto& key : all) b.acquire(key, 1);
    ListQuery query;
    query.scope = all[0].scope;
    expect_listed(b, query, {"this", "other tenant"}, "a scope of 255 bytes");
    query.tenant = all[0].tenant;
    expect_listed(b, query, {"this"}, "a tenant of 255 bytes");
    query.scope = scope;
    expect_listed(b, query, {}, "the beginning of a scope");
}

template <class B>
void purge_is_bounded(B& b) {
    auto alive = b.claim_request(b.key("alive"), 1);
    alive.lease = B::long_lease;
    b.acquire(alive);
    b.settle(b.key("held"), 1, FinishKind::quarantine);
    b.acquire(b.key("orphan"), 1);
    constexpr std::size_t expired = 7;
    for (std::size_t i = 0; i < expired; ++i) {
        const auto& key = b.key(std::to_string(i));
        auto complete = b.finish_request(key, 1, b.acquire(key, 1), FinishKind::complete);
        complete.retention = std::chrono::minutes{1};
        expect(!b.send(complete).lost, "the holder's complete was lost");
    }
    b.advance(std::chrono::minutes{1} + b.slack());
    std::size_t removed = 0;
    for (int round = 0; round < 10'000; ++round) {
        const auto reply = b.store().purge(3);
        if (reply.trouble) throw Broken("trouble in purge: " + reply.trouble.message);
        expect(reply.removed <= 3, "purge removed more than its limit");
        removed += reply.removed;
        if (!reply.more) break;
        expect(round < 9'999, "purge never ends");
    }
    expect(removed >= expired || expires_unasked(b.world),
           "purge was done when it had removed " + show(removed) + " of " + show(expired));
    expect(b.find(b.key("alive")).has_value(), "purge took a running record");
    expect(b.find(b.key("held")).has_value(), "purge took a held record");
    expect(b.must_find(b.key("orphan")).lapsed, "purge took an orphan within its retention");
}

template <class B>
void bytes_come_back(B& b) {
    std::string all;
    for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
    const std::string odd = std::string("\0{a}%s'\"\r\n\\ ", 13) + "\xff\xfe";
    const Key key{b.key().scope + odd, all.substr(0, 255), odd};
    const Fence fence = b.acquire(key, 1);
    auto renew = b.renew_request(key, 1, fence);
    renew.checkpoint = all;
    renew.resource = odd;
    expect(!b.send(renew).lost, "the holder's renewal was lost");
    auto record = b.must_find(key);
    expect(record.key == key, "the key differs");
    expect(record.payload.checkpoint == all && record.payload.resource == odd, "bytes differ");
    auto complete = b.finish_request(key, 1, fence, FinishKind::complete);
    const std::string large = all + std::string(100'000, '\0') + odd;
    complete.result = large;
    complete.codec = {0xFFFFFFFFU, 255};
    expect(!b.send(complete).lost, "the holder's complete was lost");
    const auto reply = b.claim(key, 2);
    expect(reply.result == large && reply.codec == complete.codec, "the result differs");
    ListQuery query;
    query.scope = key.scope;
    query.tenant = key.tenant;
    const auto listed = list_all(b, query);
    expect(!listed.empty() && listed.front().key == key, "list does not find the key again");
    b.acquire(b.key("empty"), 1);
    renew = b.renew_request(b.key("empty"), 1, b.must_find(b.key("empty")).header.fence);
    renew.checkpoint = "";
    expect(!b.send(renew).lost, "an empty checkpoint was lost");
}

template <world World>
[[nodiscard]] Promises<World> port_promises() {
    using B = Bench<World>;
    return {
        {2, "issue: never overwrites; its retry is granted", issue_never_overwrites<B>},
        {2, "token: redeemed once, with its binding, in time", token_redeemed_in_time<B>},
        {2, "token: release and reap bring it back, fail burns it", token_comes_back<B>},
        {2, "resolve: settles the held and raises the fence", resolve_settles_the_held<B>},
        {2, "resolve: touches nothing that is not held", resolve_only_the_held<B>},
        {2, "reap: settles the lapsed by its policy", reap_by_policy<B>},
        {2, "reap: looks at fence and lapse again", reap_looks_again<B>},
        {8, "find: the stored state, and nothing past retention", find_shows_what_stands<B>},
        {6, "keys of two components, tenants or scopes never meet", components_never_meet<B>},
        {7, "forget: unconditional, and leaves a tombstone", forget_leaves_a_tombstone<B>},
        {7, "forget: by a fence that was seen, only the record that has it",
         forget_looks_at_the_fence<B>},
        {7, "forget: the tombstone outlasts the lease", forget_outlasts_the_lease<B>},
        {11, "list: pages and filters, each key once", list_pages_and_filters<B>},
        {11, "list: compares whole scopes and tenants", list_compares_whole_names<B>},
        {11, "purge: bounded, and only what is past retention", purge_is_bounded<B>},
        {6, "bytes of any value come back as they were", bytes_come_back<B>},
    };
}

}  // namespace idem::inline v0_1::testing::conformance

#endif
