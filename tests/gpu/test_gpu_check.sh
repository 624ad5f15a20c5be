#!/usr/bin/env bash
# test_gpu_check.sh SOURCE: gpu-check.sh where there is no GPU, and where one is played by programs
# that pass, refuse, fail and hang: the report says which did what, and comes in time.
set -u
source_dir=$1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
unset CUDA_VISIBLE_DEVICES
# In a language that writes figures with a comma, where the system can make one.
if localedef -i de_DE -f UTF-8 "$work/de_DE.UTF-8" 2>/dev/null; then
    unset LC_ALL
    export LOCPATH=$work
    export LC_NUMERIC=de_DE.UTF-8 2>/dev/null # this shell itself does not find it
fi
fail() {
    echo "test_gpu_check: $*" >&2
    cat "$work/output" "$work/build/report/report.md" >&2
    exit 1
}

fake() {
    mkdir -p "$(dirname "$work/$1")"
    printf '#!/bin/sh\n%s\n' "$2" >"$work/$1"
    chmod +x "$work/$1"
}

# run CODE ARG...
run() {
    local want=$1 code
    shift
    "$source_dir/launch/gpu-check.sh" "$@" >"$work/output" 2>&1
    code=$?
    [ "$code" -eq "$want" ] || fail "$*: exit code $code, not $want"
}

# verdict NAME WANT: of a row of the Markdown report.
verdict() {
    grep -qF "| $1 | $2 |" "$work/build/report/report.md" || fail "'$1' is not '$2'"
}

# until_line TEXT FILE: waits for a line in what the call in the background writes, or for its end.
until_line() {
    while ! grep -qs -- "$1" "$2" && kill -0 "$pid" 2>/dev/null; do
        sleep 0.1
    done
}

lines() {
    [ "$(wc -l <"$work/output")" -eq "$1" ] || fail "not $1 lines"
}

# limits_of STAGE...: what the limits of their checks add up to, where all pass. Each must leave
# 10 s beside the nine eighths of comm.timeout after which the command says what hangs.
# shellcheck disable=SC2034,SC2317 # the stages use what is set, and call what is here
limits_of() (
    root=$source_dir build_dir=$work logs=$work out_dir=$work python=false capability=9.0
    deadline=$((SECONDS + 100000)) tool=tool
    . "$source_dir/launch/common.sh"
    . "$source_dir/launch/gpu-checks.sh"
    check() {
        local name=$1 limit=$2 word waits=0
        sum=$((sum + limit)) log=/dev/null last_verdict=passed code=0
        for word in "$@"; do
            case $word in comm.timeout=*) waits=${word#*=} waits=${waits%s} ;; esac
        done
        [ $((waits * 9 / 8 + 10)) -le "$limit" ] || echo "$name: too late" >>"$work/late"
        case " $* " in
        *=nccl*) [ "$waits" -eq 20 ] ;;
        *compute.backend=cuda*) [ "$waits" -gt 0 ] ;;
        esac || echo "$name: another comm.timeout" >>"$work/late"
    }
    figure() { :; }
    add_row() { :; }
    wants() { false; }
    watch_clocks() {
        shift
        "$@"
    }
    sum=0
    for stage in "$@"; do
        "check_$stage" >/dev/null 2>&1
    done
    echo "$sum"
)

# The page says what the limits of each stage add up to, in the order in which stages run, and which
# of them a call has time for: of 560 s it keeps 21 for its end.
table='|'
for stage in build kernels ranks jobs rates length sanitizer peers sm_90a; do
    table="$table $(limits_of "$stage" | sed 's/^\([0-9]\)\([0-9]\{3\}\)$/\1,\2/') s |"
done
grep -qxF "$table" "$source_dir/docs/gpus.md" || fail "docs/gpus.md does not say $table"
for stages in build 'ranks rates' sanitizer sm_90a peers; do
    # shellcheck disable=SC2086 # several words
    [ "$(limits_of $stages)" -le 539 ] || fail "$stages do not fit into one call"
done

[ ! -s "$work/late" ] || fail "$(cat "$work/late")"

run 0 --help
run 2 --limit 0
run 2 --limit
run 2 --nothing
run 2 --no-build --only build
run 2 --only build,nothing
grep -q 'there are build kernels ranks jobs rates length sanitizer peers sm_90a' "$work/output" || fail "the names are missing"
run 2 --deps "$work"
grep -q 'neither packages' "$work/output" || fail "no word of what --deps wants"

# Nothing that a GPU needs but what the system has.
fake none/unused :
clean=$work/none:/usr/bin:/bin
if ! PATH=$clean command -v nvidia-smi >/dev/null; then
    PATH=$clean run 77 --build "$work/build"
    grep -q '^skipped: there is no GPU: nvidia-smi is not there$' "$work/output" || fail "no reason"
    lines 1
fi
# shellcheck disable=SC2031 # what comes with common.sh, above, stays in its subshell
export PATH="$work/bin:$PATH"
fake bin/nvidia-smi 'echo "Failed to communicate with the NVIDIA driver."; exit 9'
run 77 --build "$work/build"
grep -q '^skipped: .*Failed to communicate' "$work/output" || fail "no reason"
lines 1
fake bin/nvidia-smi :
run 77 --build "$work/build"
grep -q 'lists none' "$work/output" || fail "no reason"
[ ! -e "$work/build" ] || fail "something was written without a GPU"

# It asks for the GPU that CUDA takes: the first of those that are visible.
# shellcheck disable=SC2016
fake bin/nvidia-smi 'echo "$CUDA_DEVICE_ORDER $*"; exit 9'
asks_for() {
    grep -q -- "failed, or did not end: PCI_BUS_ID $1--query-gpu=name" "$work/output" || fail "not $1"
}
run 77 --build "$work/build"
asks_for '-i 0 '
CUDA_VISIBLE_DEVICES=3,1 run 77 --build "$work/build"
asks_for '-i 3 '
CUDA_VISIBLE_DEVICES=MIG-1,MIG-2 run 77 --build "$work/build"
asks_for ''

# What a bare container lacks: made where root may, and else named in a line. (Programs are played.)
machine() {
    bash -c '. "$1/launch/common.sh"; . "$1/launch/gpu-machine.sh"; shift; "$@"' machine \
        "$source_dir" "$@" >"$work/output" 2>&1
}
# shellcheck disable=SC2016
fake machine/id 'echo "$USER_ID"'
fake machine/mount "echo \"\$*\" >'$work/mounted'"
fake machine/ip 'exit 1'
fake machine/ifconfig "[ \"\$*\" != 'lo up' ] || echo 0x9 >'$work/flags'"
echo 0x8 >"$work/flags"
export USER_ID=1000
PATH=$work/machine:$PATH machine prepare_shared_memory "$work/shm"
grep -q "^$work/shm is missing, and not ours to make" "$work/output" || fail "no word of /dev/shm"
PATH=$work/machine:$PATH machine prepare_loopback "$work/flags"
grep -q '^lo is down, and not ours' "$work/output" || fail "no word of lo"
[ ! -e "$work/shm" ] || fail "made, though not root"
export USER_ID=0
PATH=$work/machine:$PATH machine prepare_shared_memory "$work/shm"
[ -k "$work/shm" ] || fail "/dev/shm is not everybody's"
grep -q "^-t tmpfs .*$work/shm\$" "$work/mounted" || fail "/dev/shm is only a folder"
PATH=$work/machine:$PATH machine prepare_loopback "$work/flags"
grep -q '^lo was down: brought up$' "$work/output" || fail "lo is still down"
for part in "prepare_shared_memory $work/shm" "prepare_loopback $work/flags" \
    "prepare_loopback $work/no"; do
    # shellcheck disable=SC2086 # two words
    PATH=$work/machine:$PATH machine $part
    lines 0
done

# A build that fails: all else is absent, even what an earlier build left.
# shellcheck disable=SC2016
fake bin/nvidia-smi 'case "$*" in
*"-i 0 "*compute_cap*) echo "${played_capability:-9.0}" ;;
*"-i 0 "*clocks*) echo $$ >"$0.pid"
    { echo "345, 3201, 90.5, 0x1"; echo "1980, 3201, 650.1, 0x4"; echo "1755, 3201, 500, 0x4"
        sleep 300; } | cut -c 1- ;; # which says nothing until much was said, or it ends
*) echo "Played GPU, 1.2.3, 1 MiB" ;;
esac'
fake bin/cmake 'echo "compiler \"broken\" | 100 %"; exit 1'
fake bin/mpirun 'shift 2; exec "$@"'
fake bin/compute-sanitizer 'exit 9'
fake bin/python3 'exit 77'
fake build/src/tool/ringattn 'exit 0'
run 1 --build "$work/build"
verdict configure FAILED
verdict 'job as timed, blocks' absent
verdict 'job causal' absent
verdict 'compute-sanitizer memcheck, head_dim 128' FAILED
grep -qF '"device": "Played GPU, 1.2.3, 1 MiB"' "$work/build/report/report.json" || fail "device"
grep -qF 'compiler \"broken\" | 100 %' "$work/build/report/report.json" || fail "quotes in JSON"
if [ -x /usr/bin/python3 ]; then
    /usr/bin/python3 -c 'import json, sys; json.load(open(sys.argv[1]))' \
        "$work/build/report/report.json" || fail "the JSON report is none"
fi
grep -qF 'compiler "broken" \| 100 %' "$work/build/report/report.md" || fail "bars in Markdown"

# Everything passes, and figures are read from where they stand.
point() {
    echo "echo '  {\"pattern\": \"$1\", \"live_pairs\": 1, \"tflops_forward\": $2, \"x\": 1," \
        "\"tflops_backward\": $3}';"
}
mkdir -p "$work/deps/usr"
fake deps/usr/bin/mpirun.openmpi 'shift 2; exec "$@"'
# shellcheck disable=SC2016
fake bin/cmake 'echo "$PKG_CONFIG_SYSROOT_DIR $*"'
# shellcheck disable=SC2016
fake bin/compute-sanitizer 'echo "\"kernel\": \"cuda\""
[ "$2" != racecheck ] || echo "\"status\": \"unsupported\""
[ "$2" != memcheck ] || [ "$5 $6" = "--report-api-errors no" ]'
# shellcheck disable=SC2016 # what these programs do, not we
fake bin/python3 'case $1 in
-c) [ "$3" != nvidia.cublas ] || echo "${0%/bin/*}/pip" ;;
-) echo "dense 1.5"; echo "causal 0.8"; echo "window 1.3"; echo "blocks 1.2"; echo "random 1.1"
    echo "dilated absent: RuntimeError: no" ;;
*) while [ "$1" != --json ]; do shift; done; echo "{}" > "$2" ;;
esac'
# shellcheck disable=SC2016
fake build/src/tool/ringattn 'case $1 in
run) while [ $# -gt 0 ]; do
    [ "$1" != memory.limit=1M ] || exit 4
    [ "$1" != --output ] || echo same >"$2"
    [ "$1" != --trace ] || printf "%s\n" "\"clock\":\"device\"" "\"untimed_events\":0}}" >"$2"
    shift
done
printf "{\"error\": {\"o\": 0.001, \"lse\": 2e-4,\n \"dq\": 1e-3},"
[ -z "$NCCL_DEBUG" ] || printf "%s\n%s\n" "host-1:2:3 [0] NCCL $NCCL_DEBUG in between" \
    "[2026-01-02 03:04:05] host-1:2:3 [0] misc/socket.cc:58 NCCL WARN {\"error\": 1}"
printf " \"error_bound\": {\"o\": 0.008,\n \"lse\": 0.001, \"dq\": 0.008},"
printf "\n \"kernel\": \"cuda\",\n \"forward_ms\": {\n \"min\": 1,\n \"median\": 1250.5\n },\n \"median\": 9}" ;;
info) echo "cuda softmax f32 64 dq 1.00e-07 4.00e-06 25.0 192 plain  ok"
    echo "cuda softmax bf16 256 dq 1.00e-07 4.00e-06 40.0 64 dilated  ok"
    echo "cuda-sm_90a softmax bf16 128 dq 1.00e-07 4.00e-06 50.0 96 plain  ok"
    echo "cuda-standard softmax bf16 256 dq 1.00e-07 4.00e-06 400.0 32 plain  ok" ;;
ablate) echo "\"kernel\": \"cuda\"" ;;
bench) printf "%s\n" variant,status,forward_median_ms,x base,ok,100,1 ring,ok,101,1 \
    ring_again,ok,103,1 base_again,ok,102,1 " \"peak_bytes\": 1000," " \"peak_bytes\": 0," \
    " \"theory_bytes\": 1010," ;;
probe) echo "{\"kernel\": \"cuda\", \"seq\": 1000, \"limit_bytes_sum\": 8200000, \"seq\": 980, \"limit_bytes_sum\": 1}" ;;
esac'
fake bin/nvcc 'echo "Played compiler, release 1.5, V1.5.6"'
fake pip/lib/libcublas.so.13 :
fake pip/include/cublas_v2.h :
fake build/tests/sparse/test_kernel_contract_device 'exit 0'
fake build/tests/sparse/test_kernel_contract_device_standard 'exit 0'
fake build/tests/sparse/test_kernel_order_device 'exit 0'
fake build/tests/sparse/test_kernel_rows_device 'exit 0'
fake build/tests/sparse/test_kernel_contract_device_sm90a 'exit 0'
fake build/tests/sparse/test_kernel_order_device_sm90a 'exit 0'
fake build/tests/sparse/test_kernel_contract_device_sm90a_backward 'exit 0'
fake build/tests/sparse/test_kernel_order_device_sm90a_backward 'exit 0'
fake build/tests/pool/test_devices 'exit 77'
# Rates are there when the clocks are.
fake build/tests/sparse/cuda_bench "n=0
until [ \$((n += 1)) -gt 200 ] || [ \"\$(wc -l <'$work/build/logs/clocks.csv')\" -ge 3 ]; do
    sleep 0.05
done
$(point dense 400 290) $(point causal 299.5 \
    '7, "forward_blocks": {"held": 1, "assumed": 2}, "x": {"held": 2, "assumed": 2}') \
    $(point window 390 1) $(point blocks 100 1) $(point random 344 1) $(point global 339.6 9) \
    $(point dilated 360 1)"
run 1 --build "$work/build" --deps "$work/deps" --commit abc1234
verdict build passed
grep -q "^$work/deps .*-DCMAKE_CUDA_ARCHITECTURES=90-real" "$work/build/report/log.txt" ||
    fail "neither the GPU's code nor what was unpacked"
grep -q -e "-DRA_CUBLAS_LIBRARY=$work/pip/lib/libcublas.so.13" "$work/build/report/log.txt" ||
    fail "cuBLAS was not offered"
grep -q '^- commit: abc1234$' "$work/build/report/report.md" || fail "not the commit named"
grep -q '^- nvcc: 1.5, V1.5.6$' "$work/build/report/report.md" || fail "no version of nvcc"
for fact in 'kernel: [0-9]' 'memory_available: [0-9]* kB' 'shared_memory: ' 'loopback_flags: ' \
    'limits: locked memory [0-9u].*, stack [0-9u].*, files [0-9u].*, processes [0-9u]'; do
    grep -q "^- $fact" "$work/build/report/report.md" || fail "not among the facts: $fact"
done
grep -q '^| clocks, rates | passed .* SM 1755 to 1980 MHz, .* up to 650 W, limited by 0x4 (2 s' \
    "$work/build/report/report.md" || fail "no clocks"
verdict 'kernels against the plain one' passed
verdict 'contract on the device' passed
verdict 'contract, sm_90a' passed
verdict 'contract, sm_90a_backward' passed
verdict 'memory of the device' absent
verdict '4 ranks over NCCL' 'passed | 0.2'
# What comes first when time may be short: NCCL before what other machines can tell, small jobs
# before large ones, and PyTorch before kernels that no job takes unasked.
at=0
for row in 'rows on the device' '4 ranks over NCCL' '2 ranks through host memory' 'job dense' \
    'job as timed, dense' 'ring and base' 'longest sequence in 24 GiB' \
    'compute-sanitizer memcheck, small jobs' 'beside PyTorch, dense' \
    'contract, sm_90a_backward'; do
    before=$at at=$(grep -n -m 1 "^| $row " "$work/build/report/report.md" | cut -d : -f 1)
    [ "${at:-0}" -gt "$before" ] || fail "'$row' comes too early"
done
verdict 'job as timed, dilated' 'passed | 0.2'
grep -q 'NCCL INFO in between' "$work/build/report/log.txt" || fail "NCCL does not say what it does"
grep -qF 'blocks.kind=global_local' "$work/build/report/report.md" || fail "a pattern has no job"
verdict 'compute-sanitizer memcheck, small jobs' passed
verdict 'compute-sanitizer racecheck, head_dim 128' passed
verdict 'compute-sanitizer racecheck, small jobs' absent
verdict 'a kernel longer than comm.timeout' passed
verdict 'its time, s' 'passed | 1.250'
verdict 'times of the GPU in a trace' passed
[ "$work/build/deps/bin/mpirun" -ef "$work/deps/usr/bin/mpirun.openmpi" ] || fail "no name for mpirun"
[ ! -e "$work/deps/usr/bin/mpirun" ] || fail "what was given has changed"

# Packages as files: unpacked once, without what only static linking needs; one that is none.
if command -v dpkg-deb >/dev/null; then
    mkdir -p "$work/package/DEBIAN" "$work/package/usr/lib/pkgconfig" "$work/debs"
    printf '%s\n' 'Package: a' 'Version: 1' 'Architecture: all' 'Maintainer: a <a@b>' \
        'Description: a' >"$work/package/DEBIAN/control"
    printf 'Name: a\nRequires.private: b\n' >"$work/package/usr/lib/pkgconfig/a.pc"
    dpkg-deb -b "$work/package" "$work/debs/a.deb" >"$work/output" 2>&1 || fail "no package"
    from=(--build "$work/unpacked" --deps "$work/debs" --only build)
    run 0 "${from[@]}"
    grep -q "^$work/unpacked/deps " "$work/unpacked/report/log.txt" || fail "packages were not used"
    [ "$(cat "$work/unpacked/deps/pkgconfig/a.pc")" = 'Name: a' ] || fail "static linking"
    rm "$work/unpacked/deps/usr/lib/pkgconfig/a.pc"
    run 0 "${from[@]}"
    [ ! -e "$work/unpacked/deps/usr/lib/pkgconfig/a.pc" ] || fail "packages were unpacked twice"
    echo none >"$work/debs/b.deb"
    run 1 "${from[@]}"
    grep -q "^ringattn: error: --deps $work/debs: .* could not be unpacked" "$work/output" ||
        fail "a package that is none"
fi
verdict '50 ms over the longest check at start' \
    'passed | 1.0000 | 1 |  | cuda-sm_90a softmax bf16 96 plain'
verdict 'a limit that is too low ends with exit code 4' passed
verdict 'what features cost' passed
verdict 'results repeat bit for bit with compute.deterministic' passed
verdict 'planned memory and what a job took, their ratio' 'FAILED | 0.990099 | 1'
verdict 'TFLOP/s forward, dense' 'passed | 400 | 330'
verdict 'TFLOP/s forward, causal' 'FAILED | 299.5 | 300'
verdict 'TFLOP/s backward, dense' 'passed | 290 | 280'
verdict 'TFLOP/s backward, causal' 'passed | 7 | '
verdict 'share of thread blocks held' 'FAILED | 0.5 | 1'
verdict 'live rate of window over dense' 'passed | 0.9750 | 0.85'
verdict 'live rate of blocks over dense' 'FAILED | 0.2500 | 0.85'
verdict 'live rate of random over dense' 'passed | 0.8600 | 0.85'
verdict 'live rate of global over dense' 'FAILED | 0.8490 | 0.85'
verdict 'TFLOP/s backward, global' 'passed | 9 | '
verdict 'live rate of dilated over dense' 'passed | 0.9000 | 0.9'
verdict 'speed of one rank in the ring over base' 'passed | 0.9902 | 0.99'
verdict 'speed over FlexAttention, backward, causal' 'passed | 0.8 | '
verdict 'speed over FlexAttention, dense, causal' 'FAILED | 0.8 | 0.85'
verdict 'speed over FlexAttention, sparse, blocks' 'passed | 1.2 | 1.2'
verdict 'speed over FlexAttention, sparse, random' 'FAILED | 1.1 | 1.2'
verdict 'speed over FlexAttention, sparse, dilated' 'absent |  | 1.2 |  | RuntimeError: no'
grep -q '^| live rate of random .*cuda_bench --json 131072 16 128 window' \
    "$work/build/report/report.md" || fail "a figure without its command"
grep -q 'beside PyTorch, sparse.*--budget 220 ' "$work/build/report/report.md" ||
    fail "another budget than there is time for"
! grep -q "$source_dir/" "$work/build/report/report.md" || fail "a path of this machine in a command"
verdict 'contract, sm_90a' passed
verdict 'job causal, sm_80' 'passed | 0.2'
for row in 'job causal, sm_90a_backward' 'compute-sanitizer racecheck, sm_90a_backward' \
    'TFLOP/s backward, sm_90a_backward, random'; do
    grep -q "^| $row |.*\(isa=\|--\)sm_90a_backward " "$work/build/report/report.md" ||
        fail "$row is not of it"
done
verdict 'TFLOP/s backward, sm_90a_backward, dense' 'passed | 290 | 280'
for row in 'job causal, sm_80' 'compute-sanitizer synccheck, sm_80' 'TFLOP/s forward, sm_80, random'; do
    grep -q "^| $row |.*\(isa=\|--\)sm_80 " "$work/build/report/report.md" ||
        fail "$row is not of it"
done
verdict 'compute-sanitizer synccheck, sm_80' passed
verdict 'TFLOP/s forward, sm_80, causal' 'FAILED | 299.5 | 300'
verdict 'TFLOP/s forward, sm_80, random' 'passed | 344 | '
verdict 'base length over what memory could hold' 'passed | 0.9990 | 0.99'
verdict 'ring length over base' 'FAILED | 0.9800 | 0.99'
grep -q '"verdict": "passed", "value": 400, "at_least": 330' "$work/build/report/report.json" ||
    fail "the JSON report has no figures"

# A part at a time: rows of others stay where that was asked for, and are found anew only once.
count_rows() {
    [ "$(grep -c '"verdict"' "$work/build/report/report.json")" -eq "$1" ] || fail "not $1 rows"
}
run 1 --build "$work/build" --no-build --only peers --limit 50
grep -q 'beside PyTorch, dense.*--budget [12]\?[0-9] ' "$work/build/report/report.md" ||
    fail "a budget beyond what time is left"
run 1 --build "$work/build" --no-build --only rates
verdict 'TFLOP/s forward, dense' 'passed | 400 | 330'
count_rows 25
fake build/tests/sparse/cuda_bench "$(point dense 310 290) $(point causal 301 1)"
run 1 --build "$work/build" --keep --only rates,kernels
verdict 'TFLOP/s forward, dense' 'FAILED | 310 | 330'
grep -q '^==== rates at 16,384 tokens: passed$' "$work/build/report/log.txt" || fail "no log"
played_capability=8.0 run 1 --build "$work/build" --no-build --only sm_90a
verdict 'compute.isa: sm_90a' absent
count_rows 1
run 1 --build "$work/build" --no-build --only ' rates, kernels '
played_capability=8.0 run 1 --build "$work/build" --no-build --keep --only rates
verdict 'TFLOP/s forward, dense' 'passed | 310 | '
verdict 'live rate of global over dense' 'absent |  | 0.85'
verdict 'contract on the device' passed
count_rows 34
[ "$(find "$work/build/report" -type f | wc -l)" -le 7 ] || fail "more than a handful of files"
# Rows are those of the build folder: a report goes where it is asked for, with all of them.
run 1 --build "$work/build" --keep --only kernels --out "$work/elsewhere"
[ "$(grep -c '"verdict"' "$work/elsewhere/report.json")" -eq 34 ] || fail "rows were lost"
grep -q 'configure' "$work/build/report/report.md" && fail "built, though not asked to"
# They are found where a report was brought from a machine that is gone, too. Where nothing is built
# on the new one, that is all that is said, and rows stay as they are.
cp "$work/elsewhere/report.json" "$work/before.json"
for part in '--no-build' '--only ranks'; do
    # shellcheck disable=SC2086 # two words
    run 1 --build "$work/new" $part --keep --out "$work/elsewhere"
    grep -q "^ringattn: error: $work/new: nothing is built there: " "$work/output" || fail "no reason"
    lines 1
    cmp -s "$work/elsewhere/report.json" "$work/before.json" || fail "rows were written"
    [ ! -e "$work/new" ] || fail "something was written"
done
fake new/src/tool/ringattn 'exit 1'
run 1 --build "$work/new" --no-build --keep --only ranks --out "$work/elsewhere"
grep -q '"name": "rows on the device"' "$work/elsewhere/report.json" || fail "rows were lost"

# Without Criterion there would be nothing to check with.
fake bin/cmake 'echo "-- tests: left out, there is no Criterion"; echo "-- Generating done"'
run 1 --build "$work/build" --only build
verdict configure absent
grep -q 'did not do it: -- tests: left out, there is no Criterion' "$work/build/report/report.md" ||
    fail "no word of Criterion"
fake bin/cmake 'exit 0'

# What cannot be configured without is named. (Programs of the system, but for one.)
mkdir "$work/most"
ln -s /usr/bin/* "$work/most" 2>/dev/null
rm -f "$work"/most/*pkg-config* "$work"/most/*pkgconf*
mkdir -p "$work/no-packages/usr" # in place of the .deps that a checkout may have
PATH=$work/bin:$work/most run 1 --build "$work/build" --only build --deps "$work/no-packages"
verdict configure absent
grep -q 'pkg-config is not there' "$work/build/report/report.md" || fail "no reason"

# Programs that end well without having used the GPU; NCCL's that says itself that it hung; and
# results that differ.
# shellcheck disable=SC2016
fake build/src/tool/ringattn 'case "$*" in
*comm.backend=nccl*) exit 5 ;;
*--output*) while [ "$1" != --output ]; do shift; done; echo $$ >"$2" ;; # others than before
esac'
fake build/tests/pool/test_devices 'echo "[SKIP] devices::memory: there is no NVIDIA driver"'
run 1 --build "$work/build"
verdict 'memory of the device' absent
grep -q 'SKIP.*there is no NVIDIA driver' "$work/build/report/report.md" || fail "no reason"
verdict 'kernels against the plain one' absent
verdict 'ring and base' absent
verdict 'longest sequence in 24 GiB' absent
verdict '2 ranks over NCCL' FAILED
verdict '3 ranks over NCCL' 'not run'
verdict '2 ranks over NCCL, schedule ring' 'not run'
verdict 'results repeat bit for bit with compute.deterministic' FAILED

# What this build refuses is absent, with its line; what hangs is stopped, and told from failures.
# Whatever time those have that hang, it is 2 s.
timeout=$(command -v timeout)
fake bin/timeout "case \"\$*\" in
'-k '*/ringattn\ info* | '-k '*comm.backend=nccl*) shift 3; set -- -k 1 2 \"\$@\" ;;
esac
exec $timeout \"\$@\""
# shellcheck disable=SC2016
fake build/src/tool/ringattn 'abort_block() {
    printf "%s\n" "the last words" "" "$dashes" "$1" "$dashes"
}
dashes=$(printf "%074d" 0 | tr 0 -)
case "$*" in
*documents.yaml*--backward*) echo "ringattn: error: no backward pass here" >&2; exit 2 ;;
*comm.backend=nccl*) echo "waits for a peer"; trap "" TERM; sleep 1000 ;;
*comm.backend*) echo "ringattn: error: comm.backend: mpi: not in this build" >&2; exit 2 ;;
*causal.yaml*)
    echo "{\"error\": {\"o\": 0.1, \"lse\": null},"
    echo " \"error_bound\": {\"o\": 1, \"lse\": 1}}"; exit 6 ;;
info*) trap "" TERM; sleep 1000 ;;
*dense.yaml*) echo "Segmentation fault"; exit 139 ;;
*kind=linear\ *|*kind=linear) abort_block "  Exit code:    1"; exit 1 ;;
*blocks.yaml*) abort_block "mpirun noticed that process rank 1 exited on signal 11 (dumped)."; exit 139 ;;
esac'
fake build/tests/sparse/cuda_bench 'exit 1'
run 1 --build "$work/build" --no-build
rm "$work/bin/timeout"
verdict 'kernels against the plain one' 'TIMED OUT'
verdict 'job causal' 'FAILED |  | '
verdict 'job dense' FAILED
grep -q 'exit code 139: Segmentation fault' "$work/build/report/report.md" || fail "no last line"
# Not what mpirun says of any process that fails, but its signal.
grep -q '^| job linear | FAILED .*exit code 1: the last words |' "$work/build/report/report.md" ||
    fail "other last words"
grep -q '^| job blocks | FAILED .*: mpirun noticed .* exited on signal 11' \
    "$work/build/report/report.md" || fail "no signal"
verdict 'job documents' absent
verdict 'job documents, forward only' passed
verdict '2 ranks through host memory' absent
grep -q 'comm.backend: mpi: not in this build' "$work/build/report/report.md" || fail "no reason"
# What hangs over NCCL is not tried again with more ranks.
verdict '2 ranks over NCCL' 'TIMED OUT'
verdict '3 ranks over NCCL' 'not run'
verdict 'longest sequence in 24 GiB' absent
verdict 'TFLOP/s forward, dense' absent
grep -q '^| configure' "$work/build/report/report.md" && fail "--no-build built"

# Everything hangs: the report comes all the same, and says what never ran.
fake build/tests/sparse/test_kernel_contract_device 'trap "" TERM; sleep 1000'
fake build/src/tool/ringattn 'trap "" TERM; sleep 1000'
begin=$SECONDS
run 1 --build "$work/build" --no-build --limit 12
[ $((SECONDS - begin)) -le 60 ] || fail "it took $((SECONDS - begin)) s"
verdict 'contract on the device' 'TIMED OUT'
verdict 'longest sequence in 24 GiB' 'not run'

# So does one that is ended from outside; and what is known is there at any time before.
fake build/tests/sparse/test_kernel_contract_device 'exit 0'
fake build/tests/pool/test_devices 'echo "before it hangs"; sleep 1000'
rm -r "$work/build/report"
"$source_dir/launch/gpu-check.sh" --build "$work/build" --no-build >"$work/output" 2>&1 &
pid=$!
until_line '"name": "rows on the device", "verdict": "passed"' "$work/build/report/report.json"
until_line '^before it hangs$' "$work/build/logs/memory-of-the-device.log"
verdict 'contract on the device' passed
grep -q '"name": "contract on the device", "verdict": "passed"' \
    "$work/build/report/report.json" || fail "what was found is not in the JSON report"
kill "$pid"
wait "$pid"
verdict 'memory of the device' 'TIMED OUT'
sed -n '/^==== memory of the device: TIMED OUT$/,$p' "$work/build/report/log.txt" |
    grep -q '^before it hangs$' || fail "what it said before it hung is not in the log"

# Ended between two checks: the row of the first stays as it is, all has not passed, and what
# looked at the clocks is gone.
# shellcheck disable=SC2016
fake bin/python3 'case $1 in
-) sleep 1000 ;;
*) while [ $# -gt 0 ]; do [ "$1" != --json ] || echo "{}" >"$2"; shift; done ;;
esac'
rm -rf "$work/build/report" "$work/bin/nvidia-smi.pid"
"$source_dir/launch/gpu-check.sh" --build "$work/build" --only peers >"$work/output" 2>&1 &
pid=$!
until_line '^passed *beside PyTorch, dense' "$work/output"
until_line '^[0-9]' "$work/bin/nvidia-smi.pid"
[ -s "$work/bin/nvidia-smi.pid" ] || fail "nothing looks at the clocks"
kill "$pid"
wait "$pid"
[ $? -eq 1 ] || fail "all has passed, though it was ended"
verdict 'beside PyTorch, dense' passed
# It was told to end, and by itself it would not for minutes.
for _ in $(seq 300); do
    kill -0 "$(cat "$work/bin/nvidia-smi.pid")" 2>/dev/null || exit 0
    sleep 0.1
done
fail "clocks are still looked at"
