#!/usr/bin/env bash
# The first real job: examples/run.sh [--store memory|redis|postgres|redis+postgres] [VIDEO]
#
# Builds the transcoding service, starts it on a free port and drives it as a bad network would:
# requests arrive twice, twenty at once, after their client has died, with other content under the
# same key, or after they were cancelled. Ends with a table of what was sent and what was done, and
# fails unless ffmpeg completed exactly once for each accepted job, every final answer of a job is
# the same to the byte, and ffprobe accepts every output.
#
# Installs the Debian packages that are missing (as root or with sudo) and writes to build/ only.
# Without VIDEO it makes a clip. A VIDEO of some ten seconds suits best: it is encoded six times.
# With --store redis or postgres it starts a server of its own on a free port. Two services then
# share it, and one of them is killed with SIGKILL in the middle of a job; with postgres
# publish_article runs as well. With redis+postgres Redis is wiped, killed and started again
# meanwhile.
# SANITIZE=thread or SANITIZE=address instruments the service.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
sanitize=${SANITIZE:-}
build=$root/build/examples${sanitize:+-$sanitize}
run=$build/run
store=memory
video=''
failures=0
service_pid=''
server_pid=''
redis_pid=''
redis_port=''
services=0
log=''

say() { printf '[%3ds] %s\n' "$SECONDS" "$*"; }
die() { printf 'examples/run.sh: %s\n' "$*" >&2 && exit 2; }

# --- what is needed -------------------------------------------------------------------------------

have_everything() {
    local program
    for program in g++ cmake ninja pkg-config ffmpeg ffprobe curl; do
        command -v "$program" >/dev/null || return 1
    done
    pkg-config --exists libcrypto cpp-httplib || return 1
    if [[ $store == redis* ]]; then
        command -v redis-server >/dev/null && command -v redis-cli >/dev/null &&
            [[ -f /usr/include/hiredis/hiredis.h ]] || return 1
    fi
    if [[ $store == *postgres ]]; then
        pkg-config --exists libpq && compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null
    fi
}

install_packages() {
    if have_everything; then
        return
    fi
    command -v apt-get >/dev/null || die "needs g++, cmake, ninja, pkg-config, OpenSSL's headers," \
        "cpp-httplib, ffmpeg and curl"
    local more=() as_root=() quiet=(-q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
    if [[ $EUID -ne 0 ]]; then
        command -v sudo >/dev/null || die "neither root nor sudo, and packages are missing"
        as_root=(sudo)
    fi
    if [[ $store == redis* ]]; then more+=(libhiredis-dev redis-server redis-tools); fi
    if [[ $store == *postgres ]]; then more+=(libpq-dev postgresql); fi
    say "installing packages"
    local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "${quiet[@]}")
    "${apt[@]}" update
    "${apt[@]}" install -y --no-install-recommends g++ cmake ninja-build pkg-config libssl-dev \
        libcpp-httplib-dev ffmpeg curl "${more[@]}" </dev/null
    have_everything || die "packages are installed, and something is still missing"
}

build_service() {
    say "building the service in ${build#"$root"/}"
    local targets=(transcode_service) redis=AUTO postgres=AUTO
    if [[ $store == redis* ]]; then redis=ON; fi
    if [[ $store == *postgres ]]; then targets+=(publish_article) postgres=ON; fi
    cmake -S "$root" -B "$build" -G Ninja -DIDEM_BUILD_TESTS=OFF -DIDEM_SANITIZE="$sanitize" \
        -DIDEM_WITH_REDIS="$redis" -DIDEM_WITH_POSTGRES="$postgres" \
        -DCMAKE_BUILD_TYPE=Checked -DCMAKE_CXX_FLAGS_CHECKED='-O1 -g1' >"$build.log" ||
        { cat "$build.log" && die "cannot configure"; }
    cmake --build "$build" --target "${targets[@]}" -j "$(nproc)"
}

probe() { ffprobe -v error -of csv=p=0 "$@"; }
make_clip() {
    if [[ -n $video ]]; then
        probe -select_streams v:0 -show_entries format=duration "$video" |
            awk '{ exit !($1 >= 5) }' || die "$video: no video, or shorter than 5 seconds, which" \
            "is too short to be interrupted"
        return
    fi
    video=$build/clip.mp4
    say "making a clip: 10 s of 1280x720, H.264 and AAC"
    ffmpeg -nostdin -v error -y -f lavfi -i testsrc2=size=1280x720:rate=25 \
        -f lavfi -i sine=frequency=440 -t 10 -c:v libx264 -preset ultrafast -pix_fmt yuv420p \
        -c:a aac "$video"
}

# --- the service ----------------------------------------------------------------------------------

is_open() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
free_port() {
    local port=$((20000 + RANDOM % 20000))
    while is_open "$port"; do port=$((port + 1)); done
    printf '%s' "$port"
}
start_redis() {
    mkdir -p "$run/redis"
    redis-server --port "$redis_port" --bind 127.0.0.1 --dir "$run/redis" --save '' \
        --appendonly yes --appendfsync always >>"$run/redis.log" 2>&1 &
    redis_pid=$!
    await "Redis" is_open "$redis_port"
    say "  Redis listens on port $redis_port"
}
start_server() {
    if [[ $store == redis* ]]; then
        redis_port=$(free_port)
        start_redis
        store_url=redis://127.0.0.1:$redis_port
    fi
    if [[ $store == *postgres ]]; then
        local port
        port=$(free_port)
        "$root/tests/support/postgres_server.sh" postgres "$run/postgres" "$port" \
            >"$run/postgres.log" 2>&1 &
        server_pid=$!
        await "PostgreSQL" is_open "$port"
        say "  PostgreSQL listens on port $port"
        postgres_url=postgres://postgres@127.0.0.1:$port/postgres
        store_url=$postgres_url
    fi
    if [[ $store == redis+postgres ]]; then
        store_url="redis+$postgres_url?front=redis%3A%2F%2F127.0.0.1%3A$redis_port"
    fi
    # A request may take 5 s, or 10 where it may wait for others; three of them must fit.
    case $store in
        redis+postgres) lease=33 ;;
        redis | postgres) lease=15 ;;
    esac
}

start_service() {
    local start=()
    log=$run/service.$((++services)).log
    # ThreadSanitizer of g++ 12 cannot start where the kernel spreads addresses widely.
    if [[ $sanitize == thread ]]; then start=(setarch "$(uname -m)" -R); fi
    TSAN_OPTIONS=halt_on_error=1 "${start[@]}" "$build/examples/transcode_service" --port 0 \
        --store "$store_url" --data "$run/data" --lease "$lease" >"$log" 2>&1 &
    service_pid=$!
    await "the service" grep -qs '^listening on ' "$log"
    url=$(sed -n 's/^listening on //p' "$log")
    request health GET /healthz
    check "the service listens on $url and is well" test "$(status_of health)" = 200
}

stop_if_running() {
    local pid
    for pid in $service_pid $server_pid; do
        if kill -0 "$pid" 2>/dev/null; then kill -QUIT "$pid" || true; fi
    done
    # What is started in the background is deaf to QUIT unless it says otherwise, as Redis does not.
    if [[ -n $redis_pid ]]; then kill -TERM "$redis_pid" 2>/dev/null || true; fi
}

# Until the command succeeds; with dots, so that one sees what is waited for.
await() {
    local what=$1 waited=0
    shift
    until "$@"; do
        if [[ -n $service_pid ]] && ! kill -0 "$service_pid" 2>/dev/null; then
            cat "$log" >&2
            die "the service has ended by itself"
        fi
        waited=$((waited + 1))
        ((waited < 6000)) || die "waited too long for $what"
        if ((waited == 10)); then printf '[%3ds]   waiting for %s ' "$SECONDS" "$what"; fi
        if ((waited >= 10 && waited % 5 == 0)); then printf '.'; fi
        sleep 0.1
    done
    if ((waited >= 10)); then printf '\n'; fi
}

# --- requests -------------------------------------------------------------------------------------

# request NAME METHOD PATH [CURL OPTION...]: leaves NAME.status, NAME.headers and NAME.body.
request() {
    local file=$run/answers/$1 method=$2 path=$3
    shift 3
    curl -sS --max-time 120 -X "$method" -D "$file.headers" -o "$file.body" -w '%{http_code}' \
        "$@" "$url$path" >"$file.status" || echo "000" >"$file.status"
}
# The same request COUNT times at once, as NAME.1, NAME.2 and so on.
at_once() {
    local count=$1 name=$2 i clients=()
    shift 2
    for ((i = 1; i <= count; ++i)); do
        request "$name.$i" "$@" &
        clients+=($!)
    done
    wait "${clients[@]}"
}
status_of() { cat "$run/answers/$1.status"; }
# A text member of a JSON answer: the service's own, which are flat.
member() { sed -n "s/.*\"$2\":\"\([^\"]*\)\".*/\1/p" "$run/answers/$1.body"; }

submit() {  # submit NAME KEY BODY
    request "$1" POST /jobs -H "Idempotency-Key: \"$2\"" --data "$3"
}
job_of() { member "$1" status_url | sed 's,^/jobs/,,'; }
options() {  # options INPUT [PRESET [SIZE]]
    local size=${3:-640x360}
    echo "input=$1&width=${size%x*}&height=${size#*x}&preset=${2:-medium}"
}

job_state() {
    request status GET "/jobs/$1"
    member status state
}
has_ended() { [[ $(job_state "$1") != running ]]; }
was_noted() { grep -Eq "^($1) $2" "$run/data/ffmpeg.log" 2>/dev/null; }

# The table below counts a job once its answer is there: this waits for that.
await_job() { await "job ${1:0:8}" has_ended "$1"; }

# --- what is counted ------------------------------------------------------------------------------

check() {
    local text=$1
    shift
    if "$@"; then
        say "  ok: $text"
    else
        say "  FAILED: $text"
        failures=$((failures + 1))
    fi
}
expect() {  # expect STATUS NAME...
    local wanted=$1 name
    shift
    for name in "$@"; do
        check "$name was answered $wanted" test "$(status_of "$name")" = "$wanted"
    done
}
# How many of NAME.1, NAME.2 ... were answered so.
answered() {
    local wanted=$1 name=$2
    grep -lx "$wanted" "$run/answers/$name".*.status | wc -l
}

# What the service has decided about a scope, from its metrics, in the order of the table's columns.
decided() {
    sed -n "s/^idem_events_total{scope=\"$1\",kind=\"\(.*\)\"} /\1 /p" "$2" | awk '
        $1 == "executed" || $1 == "stored"             { executed += $2 }
        $1 == "replayed"                               { replayed += $2 }
        $1 == "in_progress"                            { in_progress += $2 }
        $1 ~ /^(mismatch|failed|absent|expired)$/      { refused += $2 }
        $1 == "released" || $1 == "unrecorded"         { rolled_back += $2 }
        END { print executed + 0, replayed + 0, in_progress + 0, refused + 0, rolled_back + 0 }'
}
begin() {
    scope=$1
    say "$2"
    request metrics GET /metrics
    cp "$run/answers/metrics.body" "$run/metrics.before"
}
# Since `begin`. The service counts a decision right after it is visible: hence the second look.
counts_since() {
    local before after i
    read -ra before < <(decided "$scope" "$run/metrics.before")
    read -ra after < <(decided "$scope" "$1")
    counts=()
    for i in 0 1 2 3 4; do counts+=($((after[i] - before[i]))); done
}
all_counted() {
    request metrics GET /metrics
    counts_since "$run/answers/metrics.body"
    (($1 == counts[0] + counts[1] + counts[2] + counts[3] + counts[4]))
}
end() {  # end LABEL SENT
    local tries=0
    until all_counted "$2" || ((++tries == 50)); do sleep 0.1; done
    add_row "$@"
}
add_row() {
    printf '%-34s %8d %9d %9d %12d %8d %12d\n' "$1" "$2" "${counts[@]}" >>"$run/table"
    local sum=$((counts[0] + counts[1] + counts[2] + counts[3] + counts[4]))
    check "$1: $2 sent, $2 accounted for" test "$2" = "$sum"
}

# --- what a bad network does ----------------------------------------------------------------------

# The plain way from a file to an input: sets `input`.
upload() {  # upload NAME FILE
    local token id
    input=$(sha256sum "$2" | cut -d' ' -f1)
    request "$1.token" POST /tokens --data ''
    token=$(member "$1.token" token)
    request "$1.create" POST /uploads --data '' -H "Upload-Token: $token"
    id=$(member "$1.create" upload)
    request "$1.part" PUT "/uploads/$id/parts/1" -T "$2"
    request "$1.merge" POST "/uploads/$id/merge" --data "parts=1&sha256=$input"
    expect 201 "$1.merge"
}

redeem_tokens() {
    begin upload.create "tokens: one redeemed three times, twice at once, and one never issued"
    local token
    request token POST /tokens --data ''
    token=$(member token token)
    at_once 2 create POST /uploads --data '' -H "Upload-Token: $token"
    request create.3 POST /uploads --data '' -H "Upload-Token: $token"
    request forged POST /uploads --data '' -H "Upload-Token: 00000000000000000000000000000000"
    expect 404 forged
    upload_id=$(member create.3 upload)
    check "one upload was made" test "$(cat "$run"/answers/create.?.body | sort -u | wc -l)" = 1
    end "token redeemed" 4
}

send_parts() {
    begin upload.part "parts: four, each sent twice, all at once"
    split -n 4 -a 1 --numeric-suffixes=1 "$video" "$run/part."
    local part again senders=()
    for again in 1 2; do
        for part in 1 2 3 4; do
            request "part.$part.$again" PUT "/uploads/$upload_id/parts/$part" \
                -T "$run/part.$part" &
            senders+=($!)
        done
    done
    wait "${senders[@]}"
    check "each of 8 was stored" test "$(answered 200 part)" = 8
    end "part (overwrites itself)" 8
}

merge_parts() {
    begin upload.merge "merge: five times, four of them at once"
    local body
    clip=$(sha256sum "$video" | cut -d' ' -f1)
    body="parts=4&sha256=$clip"
    at_once 4 merge POST "/uploads/$upload_id/merge" --data "$body"
    request merge.5 POST "/uploads/$upload_id/merge" --data "$body"
    check "every repeat got the first confirmation" \
        test "$(cat "$run"/answers/merge.*.body | sort -u | wc -l) $(answered 201 merge)" = "1 5"
    end "merge" 5
}

submit_twenty() {
    begin transcode.submit "submit: twenty times at once, then three times after it is done"
    at_once 20 twenty POST /jobs -H 'Idempotency-Key: "twenty"' --data "$(options "$clip")"
    first=$(job_of twenty.1)
    accepted+=("$first")
    await_job "$first"
    at_once 3 twenty.after POST /jobs -H 'Idempotency-Key: "twenty"' --data "$(options "$clip")"
    check "every repeat got the final answer" test "$(answered 201 twenty.after)" = 3
    end "submit, 20 at once and 3 after" 23
}

submit_other_content() {
    begin transcode.submit "submit: the same key with another size, while the job runs and after"
    local job asked other
    asked=$(options "$clip" faster)
    other=$(options "$clip" faster 320x180)
    submit asked other "$asked"
    job=$(job_of asked)
    accepted+=("$job")
    at_once 2 other POST /jobs -H 'Idempotency-Key: "other"' --data "$other"
    say "  the job is $(job_state "$job")"
    await_job "$job"
    submit other.3 other "$other"
    expect 409 other.1 other.2 other.3
    end "submit, other content" 4
}

correct_input() {
    begin transcode.submit "submit: the input is no video; the same key again with one that is"
    local job
    echo "this is no video" >"$run/garbage"
    upload garbage "$run/garbage"
    submit bad.1 corrected "$(options "$input")"
    expect 202 bad.1
    job=$(job_of bad.1)
    await_job "$job"
    check "it was rolled back, and its status says why" \
        test "$(job_state "$job") $(member status code)" = "released bad_input"
    submit bad.2 corrected "$(options "$clip")"
    expect 202 bad.2
    accepted+=("$job")
    await_job "$job"
    submit bad.3 corrected "$(options "$clip")"
    expect 201 bad.3
    end "submit, bad input, then corrected" 3
}

refuse_for_good() {
    begin transcode.submit "submit: a preset that ffmpeg refuses; the failure is the answer"
    local job
    submit final.1 final "$(options "$clip" warpspeed)"
    job=$(job_of final.1)
    await_job "$job"
    at_once 2 final.after POST /jobs -H 'Idempotency-Key: "final"' \
        --data "$(options "$clip" warpspeed)"
    expect 422 final.after.1 final.after.2
    check "both got the same failure" \
        cmp -s "$run/answers/final.after.1.body" "$run/answers/final.after.2.body"
    end "submit, refused by ffmpeg" 3
}

# Sends a whole request and hangs up without reading a byte.
send_and_die() {
    local host=${url#http://} body
    body=$(options "$clip" fast)
    exec 3<>"/dev/tcp/${host%:*}/${host#*:}"
    printf 'POST /jobs HTTP/1.1\r\nHost: %s\r\nIdempotency-Key: "died"\r\n' "$host" >&3
    printf 'Content-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n%s' \
        ${#body} "$body" >&3
    exec 3>&-
}
starts() { grep -c '^started' "$run/data/ffmpeg.log"; }
started_more_than() { (($(starts) > $1)); }
lose_client() {
    begin transcode.submit "submit: the client dies before it reads the answer, and comes back"
    local before
    before=$(starts)
    send_and_die
    await "its job" started_more_than "$before"
    submit back.1 died "$(options "$clip" fast)"
    local job
    job=$(job_of back.1)
    accepted+=("$job")
    await_job "$job"
    submit back.2 died "$(options "$clip" fast)"
    expect 201 back.2
    check "one ffmpeg was started for it" \
        test "$(grep -c "^started $job" "$run/data/ffmpeg.log")" = 1
    end "submit, client died, came back" 3
}

cancel_job() {
    local job slow cancels
    slow=$(options "$clip" veryslow 1920x1080)
    begin transcode.submit "cancel: a slow job is stopped; then the key is used again"
    submit slow.1 cancelled "$slow"
    job=$(job_of slow.1)
    await "ffmpeg" was_noted started "$job"
    at_once 2 cancel DELETE "/jobs/$job"
    await "the worker to stop" was_noted "stopped|lost" "$job"
    cancels=("$(answered 204 cancel)" 0 0 "$(answered 404 cancel)" 0)
    check "one of two DELETEs met it" test "${cancels[*]}" = "1 0 0 1 0"
    check "nothing was put out" test ! -e "$run/data/outputs/demo/$job.mp4"
    submit slow.2 cancelled "$(options "$clip")"
    expect 202 slow.2
    accepted+=("$job")
    await_job "$job"
    submit slow.3 cancelled "$(options "$clip")"
    expect 201 slow.3
    end "submit, cancelled, sent again" 3
    counts=("${cancels[@]}")
    add_row "cancel" 2
}

repeat_callback() {
    begin transcode.callback "callback: the one that finished the first job, three times more"
    local message fields
    message=$(basename "$run/data/delivered/$first".*)
    fields=$(cat "$run/data/delivered/$message")
    at_once 3 callback POST /callbacks/transcode -H "Message-Id: $message" --data "$fields"
    check "each was acknowledged" test "$(answered 200 callback)" = 3
    submit twenty.last twenty "$(options "$clip")"
    expect 201 twenty.last
    end "callback, repeated" 3
}

# What the layer in front may suffer while the one behind goes on.
front_keys() { redis-cli -p "$redis_port" DBSIZE | tr -dc 0-9; }
wipe_front() {
    local before
    before=$(front_keys)
    redis-cli -p "$redis_port" FLUSHALL >/dev/null
    check "Redis is wiped: it held $before results" test "$((before > 0)) $(front_keys)" = "1 0"
}
kill_front() {
    kill -KILL "$redis_pid"
    wait "$redis_pid" 2>/dev/null || true
    redis_pid=''
    say "SIGKILL: Redis is gone, PostgreSQL carries on"
}
restart_front() {
    check "the service has told that it goes on without Redis" \
        grep -q '^front: the front is left alone' "$log"
    start_redis
}
front_is_back() {
    submit twenty.back twenty "$(options "$clip")"
    grep -q '^front: the front answers again' "$log"
}

# The service that runs a job is killed; another one on the same store takes the job over when its
# lease has ended. What the dead one had counted is gone with it: no row of the table.
is_final() {
    submit "$1" killed "$(options "$clip" slow)"
    [[ $(status_of "$1") == 201 ]]
}
kill_one_of_two() {
    say "SIGKILL: the service dies in the middle of a job, and a second one takes it over"
    local job
    submit killed.1 killed "$(options "$clip" slow)"
    expect 202 killed.1
    job=$(job_of killed.1)
    killed=$job
    accepted+=("$job")
    await "ffmpeg" was_noted started "$job"
    local first=$service_pid
    start_service
    kill -KILL "$first"
    wait "$first" 2>/dev/null || true
    at_once 5 killed.early POST /jobs -H 'Idempotency-Key: "killed"' \
        --data "$(options "$clip" slow)"
    check "the job is not run a second time while its lease lasts" \
        test "$(answered 202 killed.early) $(grep -c "^started $job" "$run/data/ffmpeg.log")" = \
        "5 1"
    await "its lease to end and the job to be done again" is_final killed.2
    at_once 5 killed.after POST /jobs -H 'Idempotency-Key: "killed"' \
        --data "$(options "$clip" slow)"
    check "every client has the one answer" test "$(answered 201 killed.after)" = 5
    check "a second attempt finished it" \
        test "$(grep -c "^started $job" "$run/data/ffmpeg.log")" = 2
}

# The last job runs while the service is told to end.
terminate() {
    begin transcode.submit "SIGTERM: while a job runs, and then one more submit"
    submit last.1 last "$(options "$clip" slow)"
    local job status=0
    job=$(job_of last.1)
    accepted+=("$job")
    await "ffmpeg" was_noted started "$job"
    kill -TERM "$service_pid"
    await "the drain to begin" grep -q '^draining' "$log"
    submit last.2 refused "$(options "$clip")"
    request health GET /healthz
    wait "$service_pid" || status=$?
    service_pid=''
    expect 503 last.2 health
    check "the service drained and ended well" grep -q '^drained$' "$log"
    check "its exit status is 0" test "$status" = 0
    counts_since "$log"  # where it has written its last counts
    counts[3]=$(answered 503 last)   # refused before anything was decided
    add_row "submit, before and after SIGTERM" 2
}

# --- the proof ------------------------------------------------------------------------------------

# Status and body, and every header but the one that says that it is a repeat.
final_answer() {
    cat "$run/answers/$1.status"
    tr -d '\r' <"$run/answers/$1.headers" | grep -v '^Idempotency-Replayed: true$'
    cat "$run/answers/$1.body"
}
check_answers() {
    local file name job finals=0 different=0
    for file in "$run"/answers/*.status; do
        name=$(basename "$file" .status)
        [[ $(cat "$file") == 201 ]] || continue
        job=$(member "$name" job)
        [[ -n $job ]] || continue
        finals=$((finals + 1))
        if [[ ! -e $run/final.$job ]]; then final_answer "$name" >"$run/final.$job"; fi
        final_answer "$name" | cmp -s - "$run/final.$job" || different=$((different + 1))
    done
    check "$finals final answers, each the same as its job's first to the byte" \
        test "$((finals > 0)) $different" = "1 0"
    check "no answer was a 500" test -z "$(grep -l '^500' "$run"/answers/*.status)"
}
accepts() {  # accepts FILE: codecs and size are as asked, the length is the clip's
    local audio
    audio=$(probe -select_streams a:0 -show_entries stream=codec_name "$video")
    [[ $(probe -select_streams v:0 -show_entries stream=codec_name,width,height "$1") == \
        h264,640,360 ]] || return 1
    [[ $(probe -select_streams a:0 -show_entries stream=codec_name "$1") == \
        "${audio:+aac}" ]] || return 1
    awk -v made="$(probe -show_entries format=duration "$1")" \
        -v wanted="$(probe -show_entries format=duration "$video")" \
        'BEGIN { d = made - wanted; exit !(d < 0.5 && d > -0.5) }'
}
check_outputs() {
    local job once=0 good=0 count=${#accepted[@]}
    for job in "${accepted[@]}"; do
        if [[ $(grep -c "^finished $job" "$run/data/ffmpeg.log") == 1 ]]; then
            once=$((once + 1))
        fi
        if accepts "$run/data/outputs/demo/$job.mp4"; then good=$((good + 1)); fi
    done
    check "ffmpeg completed once for each of $count accepted jobs" test "$once" = "$count"
    check "ffmpeg completed $count times in all" \
        test "$(grep -c '^finished' "$run/data/ffmpeg.log")" = "$count"
    check "there are $count output files" \
        test "$(find "$run/data/outputs" -type f | wc -l)" = "$count"
    check "ffprobe accepts all $count: codecs, size, length" test "$good" = "$count"
    check "nothing temporary was left" test -z \
        "$(find "$run/data/tmp" "$run/data/spool" -type f ! -name "$killed.*")"
}

# --- all of it ------------------------------------------------------------------------------------

while (($# > 0)); do
    case $1 in
        --store) store=${2:-} && shift 2 ;;
        --store=*) store=${1#*=} && shift ;;
        -*) die "unknown option $1" ;;
        *) video=$(realpath "$1") && shift ;;
    esac
done
store_url=$store:// lease=6 killed=none
case $store in
    memory | redis | postgres | redis+postgres) ;;
    *) die "unknown store '$store'; one of memory, redis, postgres, redis+postgres" ;;
esac
[[ -z $video || -f $video ]] || die "there is no file $video"

mkdir -p "$build"
install_packages
build_service
make_clip
rm -rf "$run"
mkdir -p "$run/answers"
trap stop_if_running EXIT
start_server
start_service

accepted=()
redeem_tokens
send_parts
merge_parts
submit_twenty
submit_other_content
if [[ $store == redis+postgres ]]; then wipe_front; fi
correct_input
if [[ $store == redis+postgres ]]; then kill_front; fi
refuse_for_good
lose_client
if [[ $store == redis+postgres ]]; then
    restart_front
    await "Redis to be used again" front_is_back
fi
cancel_job
repeat_callback
if [[ $store != memory ]]; then kill_one_of_two; fi
terminate
if [[ $store == *postgres ]]; then
    say "publish_article: row, record and URL in one transaction"
    check "publish_article" "$build/examples/publish_article" "$postgres_url"
fi

say "the proof"
check_outputs
check_answers
printf '\n%-34s %8s %9s %9s %12s %8s %12s\n' request sent executed replayed 'in progress' refused \
    'rolled back'
cat "$run/table"
awk '{ for (i = 0; i < 6; ++i) sum[i] += $(NF - i) }
    END { printf "%-34s %8d %9d %9d %12d %8d %12d\n\n",
          "all", sum[5], sum[4], sum[3], sum[2], sum[1], sum[0] }' "$run/table"
if ((failures > 0)); then
    say "$failures checks FAILED; see ${run#"$root"/}"
    exit 1
fi
say "every request may be repeated: all checks passed"
