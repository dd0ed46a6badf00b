#!/usr/bin/env bash
# Becomes a PostgreSQL server, or a pgbouncer before one, on a loopback port:
#
#   postgres_server.sh postgres DIR PORT [--small-disk=SIZE] [--standby-of=PORT] [option...]
#   postgres_server.sh pgbouncer DIR PORT SERVER_PORT
#
# A small disk is mounted at DIR/small, where only this server sees it. A standby begins as a copy
# of the server on the other port, and follows it. What else there is goes to the server.
#
# DIR is made if it is not there. Both refuse to run as root and are then run as the user postgres;
# both end when the process that started them does. The starter knows the process id: `exec`.
set -euo pipefail

kind=$1 dir=$2 port=$3
shift 3

# In a mount namespace of its own, of which nothing is left when the server ends.
if [[ ${1:-} == --small-disk=* ]]; then
    mkdir -p "$dir/small"
    mounts=(unshare --mount) owner=postgres back=()
    if [[ $EUID -ne 0 ]]; then
        mounts=(unshare --map-root-user --mount) owner=root
        back=(unshare --user --map-user="$EUID")
    fi
    exec "${mounts[@]}" bash -c \
        'mount -t tmpfs -o "size=$1,mode=700,uid=$(id -u "$2")" tmpfs "$3" && exec "${@:4}"' \
        - "${1#*=}" "$owner" "$dir/small" "${back[@]}" "$0" "$kind" "$dir" "$port" "${@:2}"
fi
standby_of=
if [[ ${1:-} == --standby-of=* ]]; then standby_of=${1#*=} && shift; fi

as_postgres=(setpriv --pdeathsig INT)
if [[ $EUID -eq 0 ]]; then
    as_postgres+=(--reuid=postgres --regid=postgres --clear-groups)
fi
mkdir -p "$dir"
if [[ $EUID -eq 0 ]]; then chown postgres "$dir"; fi

if [[ $kind == pgbouncer ]]; then
    cat >"$dir/pgbouncer.ini" <<INI
[databases]
* = host=127.0.0.1 port=$1 user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $port
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
server_reset_query =
log_connections = 0
log_disconnections = 0
INI
    PATH=$PATH:/usr/sbin exec "${as_postgres[@]}" pgbouncer -q "$dir/pgbouncer.ini"
fi

bin=$(pg_config --bindir 2>/dev/null || true)
if [[ ! -x $bin/initdb ]]; then
    bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
fi
cd "$dir"
if [[ ! -f $dir/data/PG_VERSION && -n $standby_of ]]; then
    "${as_postgres[@]}" "$bin/pg_basebackup" -D "$dir/data" -R -X stream -c fast --no-sync \
        -h 127.0.0.1 -p "$standby_of" -U postgres
elif [[ ! -f $dir/data/PG_VERSION ]]; then
    "${as_postgres[@]}" "$bin/initdb" -D "$dir/data" -U postgres --auth=trust --no-sync \
        --encoding=UTF8 --locale=C >"$dir/initdb.log"
fi
exec "${as_postgres[@]}" "$bin/postgres" -D "$dir/data" -p "$port" -c listen_addresses=127.0.0.1 \
    -c unix_socket_directories= -c fsync=off -c max_connections=100 -c autovacuum_naptime=5 \
    -c log_min_messages=panic "$@"
