#include "exercise.hpp"

extern "C" bool idem_odr_exercise() {
    return exercise();
}
