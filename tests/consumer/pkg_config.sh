#!/usr/bin/env bash
# pkg_config.sh <compiler> <stage> <version> <main.cpp> <out>: builds the consumer with pkg-config.
set -euo pipefail
compiler=$1 stage=$2 version=$3 main=$4 out=$5
export PKG_CONFIG_PATH=$stage/share/pkgconfig

[[ $(pkg-config --modversion idem) == "$version" ]]
if pkg-config --exists 'idem > '"$version"; then
    echo "a later version than $version was promised"
    exit 1
fi
cflags=$(pkg-config --cflags idem) libs=$(pkg-config --libs idem)
case $cflags in *-std=*) echo "the standard is the user's choice: $cflags" && exit 1 ;; esac
# shellcheck disable=SC2086  # flags are words
"$compiler" -std=c++20 $cflags "$main" -o "$out/pkg_config_consumer" $libs
"$out/pkg_config_consumer"
