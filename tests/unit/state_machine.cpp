// What may become of what, as data.

#include <string>

#include "support/catch.hpp"
#include "support/jobs.hpp"

namespace state_machine_test {

using idem_test::Job;
using Machine = idem::StateMachine<Job>;

TEST_CASE("state machine: the steps that are declared are allowed, and no others", "[states]") {
    static_assert(Machine::allowed(Job::pending, Job::running));
    static_assert(!Machine::allowed(Job::pending, Job::succeeded));
    int allowed = 0;
    for (const auto from : {Job::pending, Job::running, Job::checking, Job::succeeded, Job::failed})
        for (const auto to :
             {Job::pending, Job::running, Job::checking, Job::succeeded, Job::failed})
            allowed += Machine::allowed(from, to) ? 1 : 0;
    CHECK(allowed == 7);
    CHECK_FALSE(Machine::allowed(Job::running, Job::running));
    CHECK_FALSE(Machine::allowed(static_cast<Job>(99), Job::pending));
}

TEST_CASE("state machine: it begins in the first state, and ends where no step leaves",
          "[states]") {
    static_assert(Machine::initial() == Job::pending);
    static_assert(Machine::terminal(Job::succeeded) && Machine::terminal(Job::failed));
    static_assert(!Machine::terminal(Job::pending) && !Machine::terminal(Job::checking));
    for (const auto to : {Job::pending, Job::running, Job::checking, Job::failed})
        CHECK_FALSE(Machine::allowed(Job::succeeded, to));
}

TEST_CASE("state machine: a state has one name, and is found by it", "[states]") {
    static_assert(Machine::name(Job::checking) == "checking");
    static_assert(Machine::parse("checking") == Job::checking);
    CHECK_FALSE(Machine::parse("Checking"));
    CHECK_FALSE(Machine::parse(""));
    CHECK(Machine::name(static_cast<Job>(99)) == "invalid");
}

TEST_CASE("state machine: it is drawn as a state diagram, with begin and ends", "[states]") {
    CHECK(Machine::mermaid() ==
          "stateDiagram-v2\n"
          "    [*] --> pending\n"
          "    pending --> running\n"
          "    running --> pending\n"
          "    running --> checking\n"
          "    running --> failed\n"
          "    checking --> pending\n"
          "    checking --> failed\n"
          "    checking --> succeeded\n"
          "    succeeded --> [*]\n"
          "    failed --> [*]\n");
}

}  // namespace state_machine_test
