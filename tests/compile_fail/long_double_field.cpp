// A long double has padding and a width of its own on each platform: no canonical form.
// expect: this type has no canonical form
#include <idem/fingerprint.hpp>

int main() {
#ifdef MUST_FAIL
    const long double price = 9.95L;
#else
    const double price = 9.95;
#endif
    return idem::Fingerprint::of("order", price).present() ? 0 : 1;
}
