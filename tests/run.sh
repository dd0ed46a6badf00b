#!/usr/bin/env bash
# The test command: tests/run.sh [plain|asan|tsan|clang|all [CTEST ARGUMENT...]]
#
#   plain  g++, optimised (the default)      asan  clang++, AddressSanitizer and UBSan
#   clang  clang++                           tsan  clang++, ThreadSanitizer
#
# Installs the Debian packages that are missing (as root or with sudo), then configures, builds and
# tests in build/<variant>, and writes nowhere else. JOBS=<n> sets how many at once. What else is
# given goes to ctest: -R unit, -LE integration. CMAKE_OPTIONS goes to cmake.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jobs=${JOBS:-$(nproc)}

say() { printf '\n== %s\n' "$*"; }
die() { printf 'tests/run.sh: %s\n' "$*" >&2 && exit 2; }

which=${1:-plain}
ctest_arguments=("${@:2}")
case $which in
    plain | asan | tsan | clang) variants=("$which") ;;
    all) variants=(plain clang asan tsan) ;;
    *) die "unknown variant '$which'; one of plain, asan, tsan, clang, all" ;;
esac

packages=(g++ cmake ninja-build pkg-config catch2 libssl-dev nlohmann-json3-dev libprotobuf-dev
    librabbitmq-dev librdkafka-dev)
if [[ ${variants[*]} =~ clang|asan|tsan ]]; then packages+=(clang); fi
if [[ ${variants[*]} =~ asan|tsan ]]; then packages+=(libclang-rt-dev); fi
# The server libraries and servers are wanted as soon as there is something to test with them.
if [[ -d $root/include/idem/redis ]]; then packages+=(libhiredis-dev redis-server openssl); fi
if [[ -d $root/include/idem/postgres ]]; then packages+=(libpq-dev postgresql pgbouncer openssl); fi

install_missing_packages() {
    if ! command -v apt-get >/dev/null; then
        say "not a Debian machine: taking what is installed"
        return
    fi
    # A package may stand in for another (pkgconf for pkg-config): compare with what is provided.
    local installed missing=() package
    installed=" $(dpkg-query -W -f='${db:Status-Status} ${Package} ${Provides}\n' |
        sed -n 's/^installed //p' | tr ',\n' '  ') "
    for package in "${packages[@]}"; do
        [[ $installed == *" $package "* ]] || missing+=("$package")
    done
    if [[ ${#missing[@]} -eq 0 ]]; then
        return
    fi

    say "installing ${missing[*]}"
    local as_root=()
    if [[ $EUID -ne 0 ]]; then
        command -v sudo >/dev/null || die "neither root nor sudo; install: ${missing[*]}"
        as_root=(sudo)
    fi
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300
        -o Acquire::Retries=3)
    "${as_root[@]}" "${apt[@]}" update
    "${as_root[@]}" "${apt[@]}" install -y --no-install-recommends "${missing[@]}" </dev/null
}

configure() {
    local variant=$1 compiler=g++ optimise=-O1 sanitize=''
    case $variant in
        # g++ takes twice as long to build these, and -O1 twice as long again.
        clang) compiler=clang++ optimise=-O0 ;;
        asan) compiler=clang++ optimise=-O0 sanitize=address,undefined ;;
        tsan) compiler=clang++ optimise=-O0 sanitize=thread ;;
    esac
    local options=(-DCMAKE_CXX_COMPILER="$compiler" -DIDEM_SANITIZE="$sanitize"
        # A library that was not found must stop the test, not leave a part of it out.
        -DIDEM_WITH_REDIS=ON -DIDEM_WITH_POSTGRES=ON
        # Neither Debug nor Release: optimised, and assert() stays.
        -DCMAKE_BUILD_TYPE=Checked -DCMAKE_CXX_FLAGS_CHECKED="$optimise -g0")
    # Off for whoever builds by hand, but what no test command builds rots.
    if [[ $variant != tsan ]]; then
        options+=(-DIDEM_BUILD_BENCHMARKS=ON)
    else
        options+=(-DIDEM_BUILD_BENCHMARKS=OFF -DIDEM_BUILD_EXAMPLES=OFF)
    fi
    if command -v ccache >/dev/null; then
        options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
    fi
    # A folder keeps the generator it was first made with.
    if [[ ! -f $root/build/$variant/CMakeCache.txt ]] && command -v ninja >/dev/null; then
        options+=(-G Ninja)
    fi
    # shellcheck disable=SC2086  # several words
    cmake -S "$root" -B "$root/build/$variant" "${options[@]}" ${CMAKE_OPTIONS:-}
}

# ThreadSanitizer cannot start where the kernel spreads addresses wider than 28 bits.
without_address_spread() {
    local bits=0
    [[ -r /proc/sys/vm/mmap_rnd_bits ]] && bits=$(cat /proc/sys/vm/mmap_rnd_bits)
    if [[ $bits -gt 28 ]] && setarch "$(uname -m)" -R true 2>/dev/null; then
        setarch "$(uname -m)" -R "$@"
    else
        "$@"
    fi
}

run() {
    local variant=$1
    say "$variant: configure"
    configure "$variant"
    say "$variant: build"
    cmake --build "$root/build/$variant" -j "$jobs"
    say "$variant: test"
    # One more than there are cores: those against real servers mostly wait.
    local test=(ctest --test-dir "$root/build/$variant" --output-on-failure --no-tests=error
        -j "$((jobs + 1))" --output-log "$root/build/$variant/ctest.log" "${ctest_arguments[@]}")
    if [[ $variant == tsan ]]; then
        without_address_spread "${test[@]}"
    else
        "${test[@]}"
    fi
}

if [[ -z ${HOME:-} && -z ${CCACHE_DIR:-} ]]; then
    export CCACHE_DIR=$root/build/.ccache
fi
export CCACHE_SLOPPINESS=pch_defines,time_macros

install_missing_packages
mkdir -p "$root/build"
for variant in "${variants[@]}"; do
    rm -f "$root/build/$variant/ctest.log"
    run "$variant"
done
