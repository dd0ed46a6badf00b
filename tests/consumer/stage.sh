#!/usr/bin/env bash
# stage.sh <cmake> <source> <build> <stage>: installs, then moves what was installed, so that the
# consumers only work if nothing in it remembers where it was put or built.
set -euo pipefail
cmake=$1 source=$2 build=$3 stage=$4

rm -rf "$stage" "$stage.first"
"$cmake" --install "$build" --prefix "$stage.first"
mv "$stage.first" "$stage"

if grep -rnF -e "$source" -e "$build" -e "$stage.first" "$stage"; then
    echo "the installed files above name a folder of this machine"
    exit 1
fi
(cd "$source/include" && find . -name '*.hpp' | sort) >"$build/headers.there"
(cd "$stage/include" && find . -name '*.hpp' | sort) >"$build/headers.installed"
diff "$build/headers.there" "$build/headers.installed" || {
    echo "the headers marked < are not installed"
    exit 1
}
