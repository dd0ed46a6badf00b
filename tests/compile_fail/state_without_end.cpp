// Work in such a state would run for ever.
// expect: idem: no way leads from a state to a terminal one
#include <array>

#include <idem/state_machine.hpp>

enum class Light { red, green, off };

template <>
struct idem::StateTable<Light> {
    static constexpr std::array states = {idem::NamedState{Light::red, "red"},
                                          idem::NamedState{Light::green, "green"},
                                          idem::NamedState{Light::off, "off"}};
    static constexpr std::array transitions = {
#ifdef MUST_FAIL
        idem::Transition{Light::red, Light::green}, idem::Transition{Light::green, Light::red},
        idem::Transition{Light::red, Light::off}, idem::Transition{Light::off, Light::red}
#else
        idem::Transition{Light::red, Light::green}, idem::Transition{Light::green, Light::off}
#endif
    };
};

int main() {
    return idem::StateMachine<Light>::terminal(Light::off) ? 0 : 1;
}
