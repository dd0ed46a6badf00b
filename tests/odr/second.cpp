// A second translation unit of the same program: a missing `inline` fails the link.
#include "odr/exercise.hpp"

bool exercise_in_second_unit() {
    return exercise();
}
