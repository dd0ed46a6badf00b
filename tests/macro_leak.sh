#!/usr/bin/env bash
# macro_leak.sh <header> <compiler and its flags>: every macro that a header of this library
# defines, and leaves defined, is named IDEM_ something; a user's own names stay the user's.
set -euo pipefail
header=$1
shift

# -dD keeps the defines and the line markers, so that each define is known by the file it is in.
leaked=$("$@" -E -dD -x c++ "$header" | awk '
    /^# [0-9]+ "/ { ours = index($3, "include/idem/") > 0; next }
    ours && /^#define / { name = $2; sub(/\(.*/, "", name); defined[name] = 1; seen++ }
    ours && /^#undef /  { delete defined[$2] }
    END {
        if (seen == 0) print "(no macro seen at all: this check looks in the wrong place)"
        for (name in defined) if (name !~ /^IDEM_/) print name
    }')
if [[ -n $leaked ]]; then
    printf 'macros left behind by %s:\n%s\n' "$header" "$leaked"
    exit 1
fi
