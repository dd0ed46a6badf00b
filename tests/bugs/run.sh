#!/usr/bin/env bash
# Does a test notice? Puts plausible faults back into the library, one at a time, and expects the
# tests to fail: tests/bugs/run.sh [--sample [N]] [--seed S] [--family F] [--list] [NAME...]
#
# A fault is a file words/NAME.txt, protocol/NAME.txt, memory/NAME.txt, guard/NAME.txt,
# layers/NAME.txt, workers/NAME.txt, redis/NAME.txt or postgres/NAME.txt:
#
#   broken: what is wrong, in one line
#   promise: what it breaks
#   test: the source below tests/ that must notice, built alone into a small program
#   case: (optional) a pattern of test cases, where the others would only take time
#   simulation: "trace" where the simulation of the protocol must break a promise too, with the
#      steps that lead there, among one operation fewer than it usually has; else why it cannot
#   file: the file below the root that is changed, by blocks of
#   <<<<<<<
#   text that is there exactly once
#   =======
#   what stands there instead
#   >>>>>>>
#
# A block whose text is not there once, or a fault that does not compile, is an error: it asks
# nothing any more. A test that passes with the fault in is the finding: write the missing test.
# Without arguments all are tried; --sample takes some at random (8) and prints the seed. It writes
# to build/bugs and installs nothing: tests/run.sh installs what is needed. JOBS=<n>: at once (2).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bugs=$root/tests/bugs
out=$root/build/bugs
jobs=${JOBS:-2}
simulation=simulation/protocol.cpp
# One operation less: seconds for each fault instead of minutes.
export IDEM_SIMULATION_BOUND=${IDEM_SIMULATION_BOUND:--1}
families=(words protocol memory guard layers workers)
if [[ -f /usr/include/hiredis/hiredis.h ]]; then families+=(redis); fi
if command -v pg_config >/dev/null; then families+=(postgres); fi

die() { printf 'tests/bugs/run.sh: %s\n' "$*" >&2 && exit 2; }

sample=0 seed=$((RANDOM * 32768 + RANDOM)) list=0 wanted=()
while [[ $# -gt 0 ]]; do
    case $1 in
        --sample) sample=8 && [[ ${2:-} =~ ^[0-9]+$ ]] && sample=$2 && shift ;;
        --seed) seed=${2:?--seed needs a number} && shift ;;
        --family) families=("${2:?--family needs a name}") && shift ;;
        --list) list=1 ;;
        -*) die "unknown option $1" ;;
        *) wanted+=("$1") ;;
    esac
    shift
done

# --- which faults ---------------------------------------------------------------------------------
all=()
for family in "${families[@]}"; do
    [[ -d $bugs/$family ]] || die "there is no family '$family'"
    for file in "$bugs/$family"/*.txt; do
        [[ -f $file ]] && name=${file#"$bugs"/} && all+=("${name%.txt}")
    done
done
chosen=()
for name in "${all[@]}"; do
    for want in "${wanted[@]-}"; do
        if [[ -z $want || $name == "$want" || ${name#*/} == "$want" ]]; then
            chosen+=("$name") && break
        fi
    done
done
[[ ${#chosen[@]} -ge ${#wanted[@]} && ${#chosen[@]} -gt 0 ]] || die "no such fault: ${wanted[*]-}"
if [[ $sample -gt 0 ]]; then
    RANDOM=$((seed % 32768))
    for ((i = ${#chosen[@]} - 1; i > 0; --i)); do
        j=$((RANDOM % (i + 1)))
        swap=${chosen[i]} chosen[i]=${chosen[j]} chosen[j]=$swap
    done
    chosen=("${chosen[@]:0:sample}")
    printf 'seed %s: %s of %s faults\n' "$seed" "${#chosen[@]}" "${#all[@]}"
fi

header() { sed -n "s/^$2: //p; /^file: /q" "$bugs/$1.txt"; }

if [[ $list -eq 1 ]]; then
    for name in "${chosen[@]}"; do printf '%-44s %s\n' "$name" "$(header "$name" broken)"; done
    exit 0
fi

# --- building -------------------------------------------------------------------------------------
compiler=${CXX:-g++}
command -v "$compiler" >/dev/null || die "there is no $compiler; tests/run.sh installs it"
flags=(-std=c++20 -O0 -pthread -DIDEM_SOURCE_DIR="\"$root\"")
libraries=(-lcrypto)
if command -v pkg-config >/dev/null && pkg-config --exists catch2 2>/dev/null; then
    read -r -a catch <<<"$(pkg-config --libs catch2)" && libraries+=("${catch[@]}")
fi

# Compiles tests/$1 against the headers in $2 into the program $3. Catch2 is parsed once, unless
# the program is better optimised: the simulation goes through millions of states.
build() {
    local options=("${flags[@]}")
    local linked=("${libraries[@]}")
    if [[ $1 == "$simulation" ]]; then options+=(-O2); fi
    if [[ $1 == integration/postgres_* ]]; then
        options+=(-I"$(pg_config --includedir)") && linked+=(-lpq)
    fi
    if [[ $1 == integration/redis_* ]]; then linked+=(-lhiredis); fi
    if [[ $1 == tls/redis_* ]]; then linked+=(-lhiredis -lssl); fi
    "$compiler" "${options[@]}" -I"$out/common" -include prefix.hpp -I"$2" -I"$root/tests" \
        -c "$root/tests/$1" -o "$3.o" &&
        "$compiler" -pthread "$3.o" "$out/common/main.o" "${linked[@]}" -o "$3" &&
        rm -f "$3.o"
}

build_common() {
    local stamp="$("$compiler" --version | head -1) ${flags[*]}"
    mkdir -p "$out/common"
    if [[ -f $out/common/stamp && $(<"$out/common/stamp") == "$stamp" &&
        ! $root/tests/main.cpp -nt $out/common/stamp &&
        ! $root/tests/support/catch.hpp -nt $out/common/stamp && ! $0 -nt $out/common/stamp ]]; then
        return
    fi
    rm -f "$out/common/stamp"
    printf '#include %s\n' '"support/catch.hpp"' '<algorithm>' '<array>' '<atomic>' '<chrono>' \
        '<condition_variable>' '<functional>' '<map>' '<memory>' '<mutex>' '<optional>' \
        '<random>' '<span>' '<sstream>' '<stop_token>' '<string>' '<thread>' '<tuple>' \
        '<unordered_map>' '<variant>' '<vector>' >"$out/common/prefix.hpp"
    "$compiler" "${flags[@]}" -I"$root/tests" -x c++-header "$out/common/prefix.hpp" \
        -o "$out/common/prefix.hpp.gch" &
    "$compiler" "${flags[@]}" -I"$root/tests" -c "$root/tests/main.cpp" -o "$out/common/main.o"
    wait $!
    printf '%s' "$stamp" >"$out/common/stamp"
}

# Runs the program $1 into the log $2, with more arguments if any. Bounded: a fault may loop. A
# server that it starts has its folder below the current one.
run() {
    local program=$1 log=$2
    shift 2
    (cd "$out" && ulimit -v 12000000 -c 0 -t 120 &&
        exec timeout -k 5 300 "$program" --abort "$@") >"$log" 2>&1
}

clean_of() {
    local name=${1%.cpp}
    printf '%s/clean/%s' "$out" "${name//\//.}"
}

# Without a fault every program must pass, or its failing says nothing.
check_clean() {
    local test=$1 program
    program=$(clean_of "$test")
    if ! build "$test" "$root/include" "$program" >"$program.log" 2>&1; then
        printf 'ERROR       %s does not compile without a fault: %s\n' "$test" "$program.log"
        return 1
    fi
    if ! run "$program" "$program.log"; then
        printf 'ERROR       %s fails without a fault: %s\n' "$test" "$program.log"
        return 1
    fi
}

# --- one fault ------------------------------------------------------------------------------------
# Changes the copy of the tree in $2, if any, as the fault $1 says; prints what does not apply.
apply_blocks() {
    awk -v root="$root" -v tree="${2:-}" '
        function fail(why) { printf "%s", why; failed = 1; exit 1 }
        function content(path,    text, line, got) {
            while ((got = (getline line < path)) > 0) text = text line "\n"
            if (got < 0) fail("there is no " file)
            close(path)
            return text
        }
        function apply(    text, at, rest) {
            if (!(file in texts)) texts[file] = content(root "/" file)
            text = texts[file]
            at = old == "" ? 0 : index(text, old)
            if (at == 0) fail("its text is not in " file)
            rest = substr(text, at + length(old))
            if (index(rest, old) > 0) fail("its text is more than once in " file)
            texts[file] = substr(text, 1, at - 1) new rest
            ++blocks
        }
        part == "" && /^file: / { file = substr($0, 7); next }
        part == "" && $0 == "<<<<<<<" { part = "old"; old = new = ""; next }
        part == "old" && $0 == "=======" { part = "new"; next }
        part == "new" && $0 == ">>>>>>>" { part = ""; apply(); next }
        part == "old" { old = old $0 "\n" }
        part == "new" { new = new $0 "\n" }
        END {
            if (failed) exit 1
            if (part != "" || blocks == 0) { printf "it has no block, or an open one"; exit 1 }
            if (tree != "") for (file in texts) printf "%s", texts[file] > (tree "/" file)
        }' "$bugs/$1.txt"
}

# The test case that failed first, from the log of Catch2.
test_case_in() {
    awk '/^-+$/ && length($0) > 70 { if (name != "") exit; inside = 1; next }
         inside && !/^ / { name = name (name == "" ? "" : " ") $0 }
         END { print name }' "$1"
}

# The promise that the simulation saw broken, from the log of Catch2.
violation_in() {
    grep -q '^  CHECK( violation.empty() )$' "$1" || return 0
    sed -n '/^with message:$/{n;s/^ *//;p;q;}' "$1"
}

# Prints how the program $3 of test $1 took the fault in $2; false where it passed.
how_caught() {
    local log=$2/$3.log status=0 name
    run "$2/$3" "$log" "${@:4}" || status=$?
    if [[ $1 == "$simulation" ]]; then
        name=$(violation_in "$log")
        [[ -n $name ]] && printf 'simulation: %s' "$name"
        return
    fi
    case $status in
        0) return 1 ;;
        124 | 137 | 152) printf 'timed out (%s)' "$1" ;;
        *)
            name=$(test_case_in "$log")
            if [[ $status -ge 128 ]]; then printf 'crashed: '; fi
            printf '%s (%s)' "${name:-exit status $status}" "$1" ;;
    esac
}

try_fault() {
    local name=$1 tree=$out/faults/${1/\//.} test trace only why
    rm -rf "$tree" && mkdir -p "$tree"
    cp -r "$root/include" "$tree/"
    test=$(header "$name" test) trace=$(header "$name" simulation) only=$(header "$name" case)
    if ! why=$(apply_blocks "$name" "$tree"); then
        printf 'ERROR       %s does not apply: %s\n' "$name" "$why"
        return 2
    fi
    local programs=("$test") program caught=() missed=() how
    [[ $trace == trace ]] && programs+=("$simulation")
    for program in "${programs[@]}"; do
        local exe=${program//\//.} cases=()
        [[ -n $only && $program == "$test" ]] && cases=("$only")
        if ! build "$program" "$tree/include" "$tree/$exe" >"$tree/$exe.log" 2>&1; then
            printf 'ERROR       %s does not compile: %s\n' "$name" "$tree/$exe.log"
            return 2
        fi
        if how=$(how_caught "$program" "$tree" "$exe" "${cases[@]}"); then
            caught+=("$how")
        else
            missed+=("$program")
        fi
        rm -f "$tree/$exe"
    done
    if [[ ${#missed[@]} -gt 0 ]]; then
        printf 'NOT CAUGHT  %s: %s passes; it should show: %s\n' "$name" "${missed[*]}" \
            "$(header "$name" broken)"
        return 1
    fi
    how=$(printf '; %s' "${caught[@]}")
    printf 'caught      %-40s %s\n' "$name" "${how:2}"
    rm -rf "$tree"
}

# --- all of them, some at a time ------------------------------------------------------------------
# Calls $1 with each further argument, at most `jobs` at once; counts in `failed`.
failed=0
each() {
    local what=$1 running=0 argument
    shift
    for argument; do
        if [[ $running -ge $jobs ]]; then
            wait -n || failed=$((failed + 1))
            running=$((running - 1))
        fi
        "$what" "$argument" &
        running=$((running + 1))
    done
    for ((; running > 0; --running)); do wait -n || failed=$((failed + 1)); done
}

mkdir -p "$out/clean" "$out/faults"
exec 9>"$out/lock"
flock 9  # two runs at once would build over each other

# All of them, chosen or not, must still apply: a change of the library moves its faults along.
for name in "${all[@]}"; do
    if ! why=$(apply_blocks "$name"); then
        printf 'ERROR       %s does not apply: %s\n' "$name" "$why"
        failed=$((failed + 1))
    fi
done
[[ $failed -eq 0 ]] || exit 1

build_common
declare -A tests=()
for name in "${chosen[@]}"; do
    test=$(header "$name" test)
    [[ -n $test && -f $root/tests/$test ]] || die "$name names no test: '$test'"
    tests[$test]=1
    if [[ $(header "$name" simulation) == trace ]]; then tests[$simulation]=1; fi
done
each check_clean "${!tests[@]}"
[[ $failed -eq 0 ]] || exit 1

each try_fault "${chosen[@]}"
printf '%d caught, %d missed or in error\n' $((${#chosen[@]} - failed)) "$failed"
[[ $failed -eq 0 ]]
