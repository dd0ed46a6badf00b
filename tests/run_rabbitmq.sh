#!/usr/bin/env bash
# Workers of a real RabbitMQ that are killed: tests/run_rabbitmq.sh [MESSAGES [KILLS]]
#
# Starts a broker and a Redis of its own on free ports, publishes so many jobs (500), each up to
# three times, and kills workers with SIGKILL so many times (50) while they are at it. Then every
# job must have had its effect once, but for those that a takeover accounts for by a higher fence;
# those that cannot work must be in the queue of dead letters, and nothing in the other queues.
# Installs what is missing (as root or with sudo). Writes to build/rabbitmq only.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=$root/build/rabbitmq
messages=${1:-500}
kills=${2:-50}
workers=3

say() { printf '[%3ds] %s\n' "$SECONDS" "$*"; }
die() { printf 'tests/run_rabbitmq.sh: %s\n' "$*" >&2 && exit 1; }

have_everything() {
    [[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ]] && command -v redis-server >/dev/null &&
        pkg-config --exists librabbitmq libcrypto && [[ -f /usr/include/hiredis/hiredis.h ]] &&
        command -v cmake >/dev/null && command -v ninja >/dev/null && command -v g++ >/dev/null
}
if ! have_everything; then
    command -v apt-get >/dev/null ||
        die "needs RabbitMQ, rabbitmq-c, Redis, hiredis, OpenSSL, cmake"
    as_root=()
    if [[ $EUID -ne 0 ]]; then as_root=(sudo); fi
    "${as_root[@]}" apt-get -q -o DPkg::Lock::Timeout=300 update
    # The broker that the package starts by itself is not ours.
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -q -y \
        -o DPkg::Lock::Timeout=300 install --no-install-recommends g++ cmake ninja-build \
        pkg-config libssl-dev libhiredis-dev redis-server librabbitmq-dev rabbitmq-server </dev/null
fi

say "building the worker"
cmake -S "$root" -B "$out/build" -G Ninja -DIDEM_BUILD_TESTS=OFF -DIDEM_WITH_REDIS=ON \
    -DIDEM_WITH_POSTGRES=OFF -DCMAKE_BUILD_TYPE=Release >"$out.configure.log" 2>&1 ||
    { cat "$out.configure.log" && die "cannot be configured"; }
cmake --build "$out/build" --target rabbitmq_worker >"$out.build.log" 2>&1 ||
    { tail -30 "$out.build.log" && die "does not compile"; }
worker=$out/build/examples/rabbitmq_worker

# --- the servers ----------------------------------------------------------------------------------
run=$out/run
rm -rf "$run"
mkdir -p "$run/redis" "$run/rabbit"
pids=()
declare -A at_work=()
free_port() {
    local port
    while :; do
        port=$((20000 + RANDOM % 30000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port" && return; }
    done
}
clean_up() {
    local pid
    for pid in "${!at_work[@]}" "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
}
trap clean_up EXIT

redis_port=$(free_port) amqp_port=$(free_port) dist_port=$(free_port) epmd_port=$(free_port)
redis-server --port "$redis_port" --bind 127.0.0.1 --dir "$run/redis" --save '' --appendonly yes \
    --appendfsync always >"$run/redis.log" 2>&1 &
pids+=($!)
store="redis://127.0.0.1:$redis_port/?time_allowed_ms=900&command_timeout_ms=400"
store+="&connect_timeout_ms=400"

export ERL_EPMD_PORT=$epmd_port ERL_EPMD_ADDRESS=127.0.0.1 HOME=$run/rabbit
epmd -port "$epmd_port" -address 127.0.0.1 >"$run/epmd.log" 2>&1 &
pids+=($!)
export RABBITMQ_NODENAME=idem@localhost RABBITMQ_NODE_IP_ADDRESS=127.0.0.1
export RABBITMQ_NODE_PORT=$amqp_port RABBITMQ_DIST_PORT=$dist_port
export RABBITMQ_MNESIA_BASE=$run/rabbit RABBITMQ_LOG_BASE=$run/rabbit
export RABBITMQ_PID_FILE=$run/rabbit/pid RABBITMQ_ENABLED_PLUGINS_FILE=$run/rabbit/plugins
export RABBITMQ_CONF_ENV_FILE=$run/rabbit/none RABBITMQ_CONFIG_FILE=$run/rabbit/none
echo '[].' >"$RABBITMQ_ENABLED_PLUGINS_FILE"
setpriv --pdeathsig TERM /usr/lib/rabbitmq/bin/rabbitmq-server >"$run/rabbit.log" 2>&1 &
pids+=($!)
broker=127.0.0.1:$amqp_port

say "waiting for RabbitMQ"
for ((tries = 0; ; tries++)); do
    "$worker" left "$broker" >/dev/null 2>&1 && break
    [[ $tries -lt 600 ]] || { tail -20 "$run/rabbit.log" && die "RabbitMQ did not start"; }
    sleep 0.2
done
# The shell that started it may have gone; the broker itself is ended by its own number.
if [[ -s $RABBITMQ_PID_FILE ]]; then pids+=("$(cat "$RABBITMQ_PID_FILE")"); fi

# --- the work, and the kills ----------------------------------------------------------------------
effects=$run/effects
: >"$effects"
start_worker() {
    setpriv --pdeathsig KILL "$worker" work "$broker" "$store" "$effects" 2>>"$run/workers.log" &
    at_work[$!]=1
}
say "$("$worker" publish "$broker" "$messages" "${SEED:-1}")"
for ((i = 0; i < workers; i++)); do start_worker; done
for ((killed = 0; killed < kills; killed++)); do
    sleep "0.$(printf '%02d' $((RANDOM % 13 + 4)))"
    victims=("${!at_work[@]}")
    victim=${victims[RANDOM % ${#victims[@]}]}
    kill -KILL "$victim"
    wait "$victim" 2>/dev/null || true
    unset "at_work[$victim]"
    start_worker
done
say "killed $killed workers; $(wc -l <"$effects") effects so far"
read -r ready _ < <("$worker" left "$broker")
[[ $ready -gt 0 ]] || die "the work was done before the last kill: more messages, or fewer kills"

# What waits for its next try lies in queues of its own, for two seconds at most.
quiet=0
for ((tries = 0; quiet < 8; tries++)); do
    [[ $tries -lt 600 ]] || die "the queue is not empty: $("$worker" left "$broker")"
    read -r ready _ < <("$worker" left "$broker")
    # A lease of a worker that was killed takes three seconds to end.
    if [[ $ready -eq 0 ]]; then quiet=$((quiet + 1)); else quiet=0; fi
    sleep 0.5
done
for pid in "${!at_work[@]}"; do kill -TERM "$pid"; done
for pid in "${!at_work[@]}"; do
    wait "$pid" || die "a worker ended badly: $(tail -3 "$run/workers.log")"
done
at_work=()

# --- what has become of it ------------------------------------------------------------------------
"$worker" check "$messages" "$effects"
"$worker" dead "$broker" "$messages"
left=$("$worker" left "$broker")
[[ $left == "0 0" ]] || die "left in the queues: $left"
say "every queue is empty"
