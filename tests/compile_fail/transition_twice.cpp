// The same step twice can only be a slip for another one.
// expect: idem: a transition is there twice
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
        idem::Transition{Light::red, Light::green}, idem::Transition{Light::green, Light::off},
        idem::Transition{Light::red, Light::green}
#else
        idem::Transition{Light::red, Light::green}, idem::Transition{Light::green, Light::off}
#endif
    };
};

int main() {
    return idem::StateMachine<Light>::terminal(Light::off) ? 0 : 1;
}
