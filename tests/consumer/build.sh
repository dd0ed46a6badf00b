#!/usr/bin/env bash
# build.sh <cmake> <project> <out> <options...>: configures, builds and runs a consumer from
# nothing, as a cache from another compiler or another install would answer for this one.
set -euo pipefail
cmake=$1 project=$2 out=$3
shift 3

rm -rf "$out"
"$cmake" -S "$project" -B "$out" "$@"
"$cmake" --build "$out"
"$out/consumer"
