#ifndef IDEM_TESTS_SUPPORT_CTL_PROMISES_HPP
#define IDEM_TESTS_SUPPORT_CTL_PROMISES_HPP

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <idem/idem.hpp>

#include "support/catch.hpp"
#include "support/ctl.hpp"
#include "support/eventually.hpp"
#include "support/process.hpp"
#include "support/requests.hpp"

/// What idemctl promises on any store that outlives a process: the same questions for each.
namespace idem_test {

using Words = std::vector<std::string>;

/// The words that name a record.
[[nodiscard]] inline Words with_key(Words words, const idem::Key& key) {
    words.insert(words.end(), {"--scope", key.scope, "--id", key.id, "--tenant", key.tenant});
    return words;
}

/// Makes the key held, as a holder does that cannot know; gives the fence.
[[nodiscard]] inline idem::Fence hold(idem::AnyStore& store, const idem::Key& key) {
    const auto owner = random_owner();
    const auto claimed = idem::claim_one(store, claim_of(key, owner));
    REQUIRE(claimed.kind == idem::ClaimKind::acquired);
    auto finish = complete_of(key, owner, claimed.fence, "");
    finish.kind = idem::FinishKind::quarantine;
    finish.result_kind = idem::ResultKind::none;
    finish.failure = idem::FailureClass::unknown;
    finish.failure_code = "gateway";
    finish.failure_message = "no answer\nin 30 s";
    REQUIRE_FALSE(idem::finish_one(store, finish).lost);
    return claimed.fence;
}

[[nodiscard]] inline idem::State state_of(idem::AnyStore& store, const idem::Key& key) {
    const auto found = idem::find_one(store, view_of(key));
    REQUIRE_FALSE(found.trouble);
    return found.record ? found.record->header.state : idem::State::forgotten;
}

/// The ids that a listing with these words shows.
[[nodiscard]] inline std::set<std::string> listed(const Ctl& ctl, Words words) {
    words.insert(words.begin(), "list");
    words.emplace_back("--json");
    const auto run = ctl(words);
    INFO(run.err);
    CHECK(run.err.empty());
    std::set<std::string> ids;
    for (const auto& line : run.json()) ids.insert(line.at("id"));
    CHECK(run.status == (ids.empty() ? 1 : 0));
    return ids;
}

inline void ctl_finds_what_is_stuck(const Ctl& ctl, idem::AnyStore& store) {
    CHECK(ctl({"list"}).status == 1);
    CHECK(ctl({"list"}).out == "no records\n");
    const idem::Key running{"encode", "running", "alice"};
    REQUIRE(idem::claim_one(store, claim_of(running, 1)).fence != 0);
    auto lapsing = claim_of({"encode", "lapsed", "alice"}, 2);
    const idem::Key lapsed{"encode", "lapsed", "alice"};
    lapsing = claim_of(lapsed, 2);
    lapsing.lease = std::chrono::milliseconds{1};
    REQUIRE(idem::claim_one(store, lapsing).fence != 0);
    const auto fence = hold(store, {"charge", "held", "bob"});
    auto token = claim_of(running, 3);
    token.key.component = idem::Component::lease;
    REQUIRE(idem::claim_one(store, token).fence != 0);

    const std::set<std::string> all = {"running", "lapsed", "held"};
    CHECK(listed(ctl, {}) == all);
    CHECK(listed(ctl, {"--state", "held"}) == std::set<std::string>{"held"});
    CHECK(listed(ctl, {"--state", "failed"}).empty());
    CHECK(eventually([&] { return listed(ctl, {"--lapsed"}) == std::set<std::string>{"lapsed"}; }));
    CHECK(listed(ctl, {"--tenant", "alice", "--scope", "encode"}) ==
          std::set<std::string>{"running", "lapsed"});
    CHECK(listed(ctl, {"--component", "lease"}) == std::set<std::string>{"running"});
    CHECK(listed(ctl, {"--component=message"}).empty());
    CHECK(eventually([&] { return listed(ctl, {"--older-than", "1ms"}) == all; }));
    CHECK(listed(ctl, {"--older-than", "1d"}).empty());
    CHECK(ctl({"list", "--limit", "2", "--json"}).json().size() == 2);
    CHECK(ctl({"list", "--limit", "2"}).says("\n2 records: as many as --limit lets through\n"));

    const auto table = ctl({"list", "--state", "held"});
    CHECK(table.status == 0);
    CHECK(table.out.starts_with("COMPONENT  SCOPE   TENANT  ID    STATE  ATTEMPT  CRASHES  AGE"));
    CHECK(table.says("\ncall       charge  bob     held  held         1        0  "));
    CHECK(table.says(std::to_string(fence) + "\n1 record\n"));
    CHECK(ctl({"list", "--lapsed"}).says("  running        1        0  "));
    CHECK(ctl({"list", "--lapsed"}).says("  lapsed "));
    CHECK(ctl({"list", "--component", "lease"}).says("s left  "));
}

inline void ctl_shows_all_of_a_record(const Ctl& ctl, idem::AnyStore& store) {
    const idem::Key held{"charge", "7", "bob"};
    const auto fence = hold(store, held);
    const auto run = ctl(with_key({"show", "--json"}, held));
    REQUIRE(run.status == 0);
    const auto json = run.json().at(0);
    CHECK(json.at("state") == "unknown");
    CHECK(json.at("component") == "call");
    CHECK(json.at("fence") == fence);
    CHECK(json.at("attempt") == 1);
    CHECK(json.at("failure").at("class") == "unknown");
    CHECK(json.at("failure").at("code") == "gateway");
    CHECK(json.at("failure").at("message") == "no answer\\nin 30 s");
    const std::string created = json.at("created");
    CHECK(created.size() == std::string("2026-01-02T03:04:05.678Z").size());
    CHECK(created.ends_with("Z"));
    const auto text = ctl(with_key({"show"}, held));
    CHECK(text.says("state         held\n"));
    CHECK(text.says("  message     no answer\\nin 30 s\n"));
    CHECK(text.says("created       " + created + "  "));

    // A result of any bytes, and of more than a pipe holds at once.
    std::string result("\0\n\x1b[31m\xff\"", 9);
    result.resize(200'000, 'r');
    const idem::Key done{"encode", "done", ""};
    const auto claimed = idem::claim_one(store, claim_of(done, 1));
    auto complete = complete_of(done, owner_of(1), claimed.fence, result);
    complete.codec = idem::codec_id<std::string>();
    REQUIRE_FALSE(idem::finish_one(store, complete).lost);
    CHECK(ctl(with_key({"show", "--result"}, done)).out == result);
    const auto shown = ctl(with_key({"show"}, done));
    CHECK(shown.says("result        value, codec text/1\n"));
    CHECK(shown.says("  bytes       200000 bytes: \\x00\\n\\x1b[31m\\xff\"rrr"));
    CHECK(ctl(with_key({"show", "--json"}, done)).json().at(0).at("result").at("bytes") == 200'000);

    CHECK(ctl(with_key({"show", "--result"}, held)).status == 1);
    CHECK(ctl(with_key({"show"}, {"encode", "none", ""})).status == 1);
    CHECK(ctl(with_key({"show", "--component", "token"}, done)).status == 1);
    auto lock = claim_of(done, 1);
    lock.key.component = idem::Component::lease;
    REQUIRE(idem::claim_one(store, lock).fence != 0);
    CHECK(ctl(with_key({"show"}, done)).status == 2);
    CHECK(ctl(with_key({"show", "--component", "lease"}, done)).says("state         running"));
}

/// Keys that would break a table, clear a screen or end a JSON string.
inline void ctl_survives_any_key(const Ctl& ctl, idem::AnyStore& store) {
    std::string every;
    for (int byte = 1; byte < 256; ++byte) every += static_cast<char>(byte);
    const std::vector<idem::Key> keys = {
        {"s", "line\nbreak \x1b[2J\x07 \"quote\" back\\slash", "t"},
        {"s", every, "every"},
        {"s", std::string("nul\0 in it", 10), "t"},
        {"sc\xffope", "\xe2\x80\xae turned", "\xc0\x80"},
        {"s", "-", " "},
    };
    for (const auto& key : keys) REQUIRE(idem::claim_one(store, claim_of(key, 1)).fence != 0);
    for (const Words& words : {Words{"list"}, Words{"list", "--wide"}, Words{"list", "--json"}}) {
        const auto run = ctl(words);
        CHECK(run.status == 0);
        CHECK(std::none_of(run.out.begin(), run.out.end(), [](char c) {
            const auto byte = static_cast<unsigned char>(c);
            return (byte < 0x20 && c != '\n') || byte == 0x7F;
        }));
        const std::size_t more = words.back() == "--json" ? 0 : 2;  // the head, and the count
        CHECK(static_cast<std::size_t>(std::count(run.out.begin(), run.out.end(), '\n')) ==
              keys.size() + more);
    }
    CHECK(ctl({"list", "--wide"}).says("line\\nbreak \\x1b[2J\\x07 \"quote\" back\\\\slash"));
    CHECK(ctl({"list"}).says("\\x01\\x02\\x03\\x04\\x05\\x06\\x07\\x08\\t\\n\u2026"));
    CHECK(ctl({"list"}).says("  \\x2d "));  // a dash stands for "none"
    CHECK(ctl({"list"}).says("  \\x20 "));
    // What is shown can be given back, bytes that no command line can carry too.
    std::size_t seen = 0;
    for (const auto& line : ctl({"list", "--json"}).json()) {
        const idem::Key shown{line.at("scope"), line.at("id"), line.at("tenant")};
        const auto run = ctl(with_key({"show", "--json", "--escaped"}, shown));
        REQUIRE(run.status == 0);
        CHECK(run.json().at(0).at("id") == shown.id);
        CHECK(ctl(with_key({"forget", "--yes", "--escaped"}, shown)).status == 0);
        ++seen;
    }
    CHECK(seen == keys.size());
    for (const auto& key : keys) CHECK(state_of(store, key) == idem::State::forgotten);
}

inline void ctl_erases_a_tenant(const Ctl& ctl, idem::AnyStore& store) {
    constexpr std::size_t many = 1'234;
    std::vector<idem::Key> keys;
    for (std::size_t i = 0; i < many; ++i)
        keys.push_back({"s" + std::to_string(i % 3), std::to_string(i), "leaver"});
    for (std::size_t i = 0; i < 60; ++i) keys.push_back({"s1", std::to_string(i), "stayer"});
    std::vector<idem::ClaimRequest> claims;
    for (const auto& key : keys) claims.push_back(claim_of(key, 1));
    std::vector<idem::ClaimReply> replies(claims.size());
    store.claim(claims, replies);
    for (const auto& reply : replies) REQUIRE(reply.kind == idem::ClaimKind::acquired);

    const auto refused = ctl({"forget", "--tenant", "leaver"});
    CHECK(refused.status == 2);
    CHECK(refused.says("1234 records (1234 running)\n"));
    CHECK(refused.says("--yes"));
    const auto no = ctl.answer({"forget", "--tenant", "leaver"}, "n");
    CHECK(no.status == 1);
    CHECK(no.says("forget 1234 records? [y/N] "));
    CHECK(no.says("nothing was done\n"));
    CHECK(listed(ctl, {"--tenant", "leaver"}).size() == many);

    const auto run = ctl({"forget", "--tenant", "leaver", "--yes", "--json"});
    CHECK(run.err.empty());
    REQUIRE(run.status == 0);
    CHECK(run.json().at(0) ==
          nlohmann::json({{"matched", many}, {"forgotten", many}, {"complete", true}}));
    CHECK(listed(ctl, {"--tenant", "leaver"}).empty());
    CHECK(listed(ctl, {"--tenant", "stayer"}).size() == 60);
    const auto again = ctl({"forget", "--tenant", "leaver", "--yes"});
    CHECK(again.status == 1);
    CHECK(again.says("forgot 0 records\n"));
    const auto some = ctl.answer({"forget", "--scope", "s1", "--state", "running"}, "y");
    CHECK(some.status == 0);
    CHECK(some.says("forgot 60 records\n"));
    CHECK(ctl({"forget", "--yes"}).status == 2);  // never everything, by a slip
}

/// A file that is gone with it.
class TemporaryFile {
public:
    explicit TemporaryFile(const std::string& bytes)
        : path_(std::filesystem::temp_directory_path() /
                ("idem-ctl-" + idem::detail::hex(random_owner().stored()))) {
        std::ofstream(path_, std::ios::binary) << bytes;
    }
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;
    ~TemporaryFile() {
        std::error_code ignored;
        std::filesystem::remove(path_, ignored);
    }
    [[nodiscard]] std::string path() const { return path_.string(); }

private:
    std::filesystem::path path_;
};

inline void ctl_settles_what_is_held(const Ctl& ctl, idem::AnyStore& store) {
    idem::IdempotencyGuard guard(store);
    const auto run = [&](const idem::Key& key) {
        return guard.run(key, {}, [] { return std::string("ran"); });
    };
    const idem::Key done{"charge", "done", "bob"};
    (void)hold(store, done);
    CHECK(run(done).kind() == idem::OutcomeKind::unknown);
    CHECK(ctl(with_key({"resolve"}, done)).status == 2);            // done or rerun?
    CHECK(ctl(with_key({"resolve", "--done"}, done)).status == 2);  // nobody to ask
    CHECK(state_of(store, done) == idem::State::unknown);
    const TemporaryFile answer("receipt 7\n");
    const auto settled =
        ctl(with_key({"resolve", "--done", "--result-file", answer.path(), "--yes"}, done));
    CHECK(settled.status == 0);
    CHECK(settled.out == "resolved: it is succeeded\n");
    const auto replayed = run(done);
    REQUIRE(replayed.kind() == idem::OutcomeKind::replayed);
    CHECK(replayed.value() == "receipt 7\n");
    CHECK(ctl(with_key({"resolve", "--rerun", "--yes"}, done)).status == 1);  // it is not held

    const idem::Key plain{"charge", "plain", "bob"};
    (void)hold(store, plain);
    CHECK(ctl.answer(with_key({"resolve", "--done"}, plain), "y").status == 0);
    CHECK(run(plain).kind() == idem::OutcomeKind::replayed);
    CHECK_FALSE(run(plain).has_value());

    const idem::Key again{"charge", "again", "bob"};
    (void)hold(store, again);
    const auto rerun = ctl(with_key({"resolve", "--rerun", "--yes", "--json"}, again));
    CHECK(rerun.status == 0);
    CHECK(rerun.json().at(0) == nlohmann::json({{"resolved", true}, {"state", "released"}}));
    CHECK(run(again).kind() == idem::OutcomeKind::executed);
}

/// While the question stands somebody else settles the record.
inline void ctl_says_that_it_lost(const Ctl& ctl, idem::AnyStore& store) {
    const idem::Key key{"charge", "raced", "bob"};
    const auto fence = hold(store, key);
    const auto lost = ctl.answer(with_key({"resolve", "--done"}, key), "y", [&] {
        idem::ResolveRequest other;
        other.key = view_of(key);
        other.seen_fence = fence;
        other.retention = std::chrono::hours{1};
        REQUIRE(idem::resolve_one(store, other).resolved);
    });
    CHECK(lost.status == 5);
    CHECK(lost.says("lost: it has changed meanwhile, and is released"));
    CHECK(state_of(store, key) == idem::State::released);
    const auto gone = ctl.answer(with_key({"forget"}, key), "y", [&] {
        REQUIRE(idem::forget_one(store, {.key = view_of(key)}).existed);
    });
    CHECK(gone.status == 5);
    CHECK(ctl(with_key({"forget", "--yes"}, key)).status == 1);
}

/// The lines of check by name: their status.
[[nodiscard]] inline std::map<std::string, std::string> checked(const CtlRun& run) {
    std::map<std::string, std::string> out;
    for (const auto& line : run.json()) out[line.at("check")] = line.at("status");
    return out;
}

/// Each command says that nobody is there, or who refuses; none tells the password.
inline void ctl_cannot_get_in(const std::string& url, const std::string& secret) {
    const Ctl ctl(url);
    for (const Words& words : {Words{"list"}, Words{"show", "--scope", "s", "--id", "i"},
                               Words{"forget", "--tenant", "t", "--yes"},
                               Words{"resolve", "--scope", "s", "--id", "i", "--done", "--yes"},
                               Words{"check"}, Words{"check", "--json"}, Words{"list", "--json"}}) {
        INFO(words[0]);
        const auto run = ctl(words);
        INFO(run.out << run.err);
        CHECK(run.status == 3);
        CHECK_FALSE((run.out + run.err).empty());
        CHECK_FALSE(run.says(secret));
    }
}

}  // namespace idem_test

#endif
