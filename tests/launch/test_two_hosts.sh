#!/usr/bin/env bash
# test_two_hosts.sh RINGATTN MPIEXEC: jobs over two hosts that this machine plays. Skipped
# (77) where namespaces may not be made.
set -euo pipefail
ringattn=$1 mpiexec=$2
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
    printf 'two hosts: %s\n' "$*"
    cat "$folder/out"
    exit 1
}

# on_hosts COMMAND: its exit code into `code`, what it says into out. No process of it outlives it.
on_hosts() {
    code=0
    HOSTS=2 RATE="" timeout -k 5 200 unshare --mount --net --pid --fork --kill-child --mount-proc \
        "$here/hosts.sh" "$folder" "$1" >"$folder/out" 2>&1 || code=$?
}

if [ "$(id -u)" -ne 0 ] || ! command -v unshare >/dev/null || ! command -v ip >/dev/null; then
    echo "two hosts: skipped: needs root, unshare and ip"
    exit 77
fi
on_hosts true
if [ "$code" -ne 0 ]; then
    echo "two hosts: skipped: no namespaces here: $(tail -n 1 "$folder/out")"
    exit 77
fi

# Two ranks on each host: those share their keys, and between hosts each row travels once per host:
# forward and backward, keys and values of 1000 rows, 2 heads of 64, and float32 gradients.
on_hosts "\"$mpiexec\" -H host1:2,host2:2 -n 4 \"$ringattn\" run --verify --backward \
    --set shape.seq=1000 --set shape.heads=2 --set shape.head_dim=64 --set shape.dtype=bf16 \
    --set compute.threads=1 --json=$folder/report.json"
[ "$code" -eq 0 ] || fail "exit code $code"
grep -q '^ranks  *4 (mpi)' "$folder/out" || fail "not four ranks"
grep -q 'schedule shared' "$folder/out" || fail "ranks of a host share memory"
[ "$(grep -c ' ok$' "$folder/out")" -ge 5 ] || fail "five errors should have been checked"
python3 - "$folder/report.json" <<'END' || fail "other bytes were sent"
import json, sys

point = json.load(open(sys.argv[1]))["points"][0]
print(point["sent_bytes"], "bytes sent")
both = 1000 * 2 * 64 * 2 # elements of keys and values
sys.exit(point["sent_bytes"] != both * 2 + both * 2 + both * 4)
END

# The network goes: mpirun notices by its probes, before ranks do by their deadline, and ends. That
# of Open MPI 5 loses hosts of this kind at other times too, and then may end well.
case $("$mpiexec" --version) in *'(Open MPI) 5'*) exit 0 ;; esac
cat >"$folder/rank" <<END
#!/bin/sh
[ "\$OMPI_COMM_WORLD_RANK" != 1 ] || echo here >"$folder/started"
exec "$ringattn" "\$@"
END
chmod +x "$folder/rank"
cat >"$folder/cut" <<END
i=0
until [ -s "$folder/started" ] || [ \$i -gt 300 ]; do
    sleep 0.1
    i=\$((i + 1))
done
sleep 2
ip link set eth0 down
END
on_hosts "sh $folder/cut & \"$mpiexec\" -H host1:1,host2:1 -n 2 --mca oob_tcp_keepalive_time 5 \
    --mca oob_tcp_keepalive_intvl 2 --mca oob_tcp_keepalive_probes 3 $folder/rank run --quiet \
    --set shape.seq=16K --set job.repeat=100000 --set ring.schedule=direct \
    --set compute.threads=1"
[ "$code" -ne 0 ] || fail "a job over a cut network ended well"
case $code in 124 | 137) fail "a job over a cut network did not end" ;; esac
grep -q 'lost communication' "$folder/out" || fail "nobody said why"
