// The operator's program where no server is needed: what it is told, and what it answers.

#include "support/ctl.hpp"

#include <string>
#include <vector>

#include "support/catch.hpp"

namespace ctl_test {

using idem_test::Ctl;
using Words = std::vector<std::string>;

const Ctl ctl("memory://");

TEST_CASE("idemctl: a store of this very process is empty, and check says what it is worth",
          "[ctl]") {
    CHECK(ctl({"list"}).status == 1);
    CHECK(ctl({"list"}).out == "no records\n");
    CHECK(ctl({"list", "--json"}).out == "");
    CHECK(ctl({"show", "--scope", "s", "--id", "i"}).status == 1);
    CHECK(ctl({"forget", "--tenant", "t", "--json"}).json().at(0) ==
          nlohmann::json({{"matched", 0}, {"forgotten", 0}, {"complete", true}}));
    CHECK(ctl({"purge", "--yes"}).out == "removed 0 records\n");
    const auto check = ctl({"check"});
    CHECK(check.status == 1);
    CHECK(check.says("warning  persistence  memory://"));
    CHECK(check.says("ok       round trip"));
    CHECK(ctl({"check", "--json"}).json().size() == 2);
}

TEST_CASE("idemctl: help says what each exit status means", "[ctl]") {
    for (const Words& words : {Words{"--help"}, Words{"help"}, Words{"list", "-h"}}) {
        const auto run = Ctl("")(words);
        CHECK(run.status == 0);
        CHECK(run.err == "");
        for (const char* word : {"Exit status", "list", "show", "forget", "resolve", "purge",
                                 "check", "IDEM_STORE", "--yes"})
            CHECK(run.says(word));
    }
}

TEST_CASE("idemctl: what cannot be meant is refused before any store is asked", "[ctl]") {
    const std::vector<std::pair<Words, std::string>> wrong = {
        {{}, "which command"},
        {{"lsit"}, "lsit"},
        {{"list", "more"}, "more"},
        {{"list", "--frobnicate"}, "--frobnicate"},
        {{"list", "--yes"}, "--yes is not for list"},
        {{"list", "--scope"}, "--scope needs a value"},
        {{"list", "--json=yes"}, "--json takes no value"},
        {{"list", "--state", "broken"}, "--state"},
        {{"list", "--component", "lock"}, "--component"},
        {{"list", "--older-than", "10"}, "--older-than"},
        {{"list", "--older-than", "99999999d"}, "--older-than"},
        {{"list", "--limit", "0"}, "--limit"},
        {{"show", "--scope", "s"}, "--id"},
        {{"show", "--scope", "s", "--id", ""}, "id"},
        {{"show", "--scope", "s", "--id", std::string(256, 'x')}, "256 bytes"},
        {{"show", "--scope", "s", "--id", "a\\q", "--escaped"}, "--escaped"},
        {{"forget", "--yes"}, "filter"},
        {{"forget", "--id", "i", "--yes"}, "--scope"},
        {{"forget", "--scope", "s", "--id", "i", "--lapsed", "--yes"}, "--id"},
        {{"resolve", "--scope", "s", "--id", "i", "--yes"}, "--done"},
        {{"resolve", "--scope", "s", "--id", "i", "--done", "--rerun"}, "--done"},
        {{"resolve", "--scope", "s", "--id", "i", "--rerun", "--result-file", "f"}, "--done"},
        {{"resolve", "--scope", "s", "--id", "i", "--done", "--codec", "text/0"}, "--codec"},
        {{"resolve", "--scope", "s", "--id", "i", "--done", "--result-file", "/no/such/file"},
         "cannot read"},
        {{"purge"}, "--yes"},
    };
    for (const auto& [words, says] : wrong) {
        INFO((words.empty() ? "nothing" : words.back()));
        const auto run = ctl(words);
        INFO(run.out << run.err);
        CHECK(run.status == 2);
        CHECK(run.err.find(says) != std::string::npos);
        CHECK(run.out == "");
    }
    CHECK(Ctl("")({"list"}).status == 2);
    CHECK(Ctl("")({"list"}).says("IDEM_STORE"));
    CHECK(Ctl("")({"list", "--store", "memory://"}).status == 1);
}

TEST_CASE("idemctl: an error as JSON is one object, and tells no password", "[ctl]") {
    for (const char* url : {"what://user:verysecret@host", "redis://user:verysecret@host?nothing=1",
                            "verysecret", "memory://verysecret"}) {
        const auto run = Ctl(url)({"list", "--json"});
        CHECK(run.status == 2);
        CHECK(nlohmann::json::parse(run.err).at("status") == 2);
        CHECK_FALSE(run.says("verysecret"));
    }
    const auto run = Ctl("")({"redis://user:verysecret@host", "list"});
    CHECK(run.status == 2);
    CHECK_FALSE(run.says("verysecret"));
    CHECK(Ctl("")({"l\x1bist"}).says("l\\x1bist"));
}

}  // namespace ctl_test
