// Services built with -fno-rtti use this library too.
#include "odr/exercise.hpp"

int main() {
    return exercise() ? 0 : 1;
}
