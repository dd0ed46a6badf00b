// The numbers of two sources count by two clocks.
// expect: no matching function for call
#include <idem/version_rule.hpp>

struct Encoder {
    static constexpr std::string_view name = "encoder";
};
struct Storage {
    static constexpr std::string_view name = "storage";
};
#ifdef MUST_FAIL
using Other = Storage;
#else
using Other = Encoder;
#endif

int main() {
    const idem::Version<Encoder> before{.number = 1};
    const idem::Version<Other> offered{.number = 2};
    return compare(offered, before, idem::EqualVersions::refuse) == idem::VersionVerdict::newer ? 0
                                                                                                : 1;
}
