#!/usr/bin/env bash
# Redis on a newer system: tests/run_debian13.sh [CATCH2 ARGUMENT...]
#
# Makes a folder with Debian 13 in it (build/debian13, kept for the next time), and builds and runs
# there the tests of the Redis backend: Valkey 8, hiredis 1.2, Catch2 3, g++ 14; over TCP, a Unix
# socket and TLS. Needs root, debootstrap and a Debian mirror (MIRROR=<url>). Writes to build/ only.
# JOBS=<n> sets how many at once.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
system=$root/build/debian13
mirror=${MIRROR:-http://deb.debian.org/debian}
jobs=${JOBS:-$(nproc)}
# libprotobuf-dev is only for the configuration: other tests want it.
packages=(g++ cmake ninja-build catch2 libhiredis-dev libssl-dev openssl valkey-server
    nlohmann-json3-dev libprotobuf-dev)

say() { printf '\n== %s\n' "$*"; }
die() { printf 'tests/run_debian13.sh: %s\n' "$*" >&2 && exit 2; }

[[ $EUID -eq 0 ]] || die "needs root, for chroot"
if [[ $(cat "$system/made" 2>/dev/null) != "${packages[*]}" ]]; then
    command -v debootstrap >/dev/null || die "needs debootstrap (apt-get install debootstrap)"
    say "making Debian 13 in ${system#"$root"/}"
    rm -rf "$system"
    mkdir -p "$system"
    debootstrap --variant=minbase --include="$(IFS=, && echo "${packages[*]}")" trixie "$system" \
        "$mirror" >"$system.log" 2>&1 || { tail -20 "$system.log" && die "debootstrap failed"; }
    echo "127.0.0.1 localhost" >"$system/etc/hosts"
    echo "${packages[*]}" >"$system/made"
fi

# A copy instead of mounts: nothing to undo when this is interrupted.
say "copying the source"
rm -rf "$system/src" && mkdir "$system/src"
(cd "$root" && tar -c --exclude=./build --exclude=./.git .) | tar -x -C "$system/src"

# PostgreSQL and what only the other tests need stay out: the two programs are built by name.
cat >"$system/inside" <<END
set -euo pipefail
cd /src
valkey-server --version
g++ --version | head -1
cmake -S . -B /build -G Ninja -DIDEM_WITH_REDIS=ON -DIDEM_WITH_POSTGRES=OFF \
    -DIDEM_BUILD_EXAMPLES=OFF \
    -DCMAKE_BUILD_TYPE=Checked -DCMAKE_CXX_FLAGS_CHECKED='-O1 -g1'
cmake --build /build -j $jobs --target idem_integration idem_tls idem_redis_headers
cd /build/tests
export IDEM_REDIS_SERVER=valkey-server
./idem_integration --order rand "\$@"
./idem_tls --order rand "\$@"
END
say "building and testing there"
# The mounts are this process's own, and gone with it. A test types at a terminal.
unshare --mount --propagation private bash -c '
    mount -t proc proc "$1/proc"
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$1/dev/pts"
    ln -sf pts/ptmx "$1/dev/ptmx"
    exec chroot "$1" /bin/bash /inside "${@:2}"' - "$system" "$@"
