// An address is another one on every retry.
// expect: this type has no canonical form
#include <idem/key.hpp>

int main() {
    const int order = 7;
#ifdef MUST_FAIL
    const auto* field = &order;
#else
    const auto field = order;
#endif
    return idem::content_key("order", field).id.empty() ? 1 : 0;
}
