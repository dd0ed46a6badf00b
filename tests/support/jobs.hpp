#ifndef IDEM_TESTS_SUPPORT_JOBS_HPP
#define IDEM_TESTS_SUPPORT_JOBS_HPP

#include <array>

#include <idem/state_machine.hpp>

namespace idem_test {

enum class Job { pending, running, checking, succeeded, failed };

}  // namespace idem_test

/// A transcode job as a service has it.
template <>
struct idem::StateTable<idem_test::Job> {
    using Job = idem_test::Job;
    static constexpr std::array states = {
        idem::NamedState{Job::pending, "pending"}, idem::NamedState{Job::running, "running"},
        idem::NamedState{Job::checking, "checking"}, idem::NamedState{Job::succeeded, "succeeded"},
        idem::NamedState{Job::failed, "failed"}};
    static constexpr std::array transitions = {idem::Transition{Job::pending, Job::running},
                                               idem::Transition{Job::running, Job::pending},
                                               idem::Transition{Job::running, Job::checking},
                                               idem::Transition{Job::running, Job::failed},
                                               idem::Transition{Job::checking, Job::pending},
                                               idem::Transition{Job::checking, Job::failed},
                                               idem::Transition{Job::checking, Job::succeeded}};
};

#endif
