// Two equal unordered containers may iterate differently: the key would not be one.
// expect: this type has no canonical form
#include <set>
#include <string>
#include <unordered_set>

#include <idem/key.hpp>

int main() {
#ifdef MUST_FAIL
    const std::unordered_set<std::string> items{"a", "b"};
#else
    const std::set<std::string> items{"a", "b"};
#endif
    return idem::content_key("order", items).id.empty() ? 1 : 0;
}
