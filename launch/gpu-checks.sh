# shellcheck shell=bash
# The checks of gpu-check.sh. Sourced: `check` and `figure` are there, and where things are.
# shellcheck disable=SC2154,SC2034

tool=$build_dir/src/tool/ringattn
tests_dir=$build_dir/tests
bench=$tests_dir/sparse/cuda_bench
# In the JSON of `bench` and `ablate`, which end well if any of their jobs ran.
refused_job='"status": "(oom|config|unsupported|io)"'

# Where a package of Python's lies.
package_folder() {
    timeout 60 "$python" -c 'import importlib.util as u, sys
print(list(u.find_spec(sys.argv[1]).submodule_search_locations)[0])' "$1" 2>/dev/null
}

# With PyTorch come NCCL, and cuBLAS for a toolkit that lacks it. Sets `options`.
offer_libraries() {
    local folder library name
    folder=$(package_folder nvidia.nccl)
    [ ! -f "$folder/include/nccl.h" ] || options+=("-DRA_NCCL_INCLUDE_DIR=$folder/include"
        "-DRA_NCCL_LIBRARY=$folder/lib/libnccl.so.2")
    [ ! -f "$(dirname "$(command -v nvcc)")/../include/cublas_v2.h" ] || return 0
    for name in nvidia.cu13 nvidia.cublas; do
        folder=$(package_folder "$name")
        for library in "$folder"/lib/libcublas.so.*; do
            [ -f "$library" ] && [ -f "$folder/include/cublas_v2.h" ] || continue
            options+=("-DRA_CUBLAS_INCLUDE_DIR=$folder/include" "-DRA_CUBLAS_LIBRARY=$library")
            return
        done
    done
}

# Code for this GPU alone is compiled in a third of the time.
check_build() {
    local options=(-DCMAKE_BUILD_TYPE=Release -DRA_CUDA=ON)
    if ! command -v pkg-config >/dev/null && ! command -v pkgconf >/dev/null; then
        add_row configure absent '' '' '' '' 'pkg-config is not there; pkgconf in --deps has it'
        return 1
    fi
    [ -z "$capability" ] || options+=("-DCMAKE_CUDA_ARCHITECTURES=${capability/./}-real")
    offer_libraries
    # Read from the disk while compilers are at work; the first import takes up to half a minute.
    ! wants peers || timeout 100 "$python" -c 'import torch, torch._inductor.compile_fx, triton' >/dev/null 2>&1 &
    unwanted='^-- tests: left out'
    check 'configure' 60 cmake -S "$root" -B "$build_dir" -G Ninja "${options[@]}" || return
    check 'build' 300 cmake --build "$build_dir" --target ringattn_tool test_kernel_contract_device \
        test_kernel_contract_device_standard test_kernel_order_device test_kernel_rows_device test_devices cuda_bench \
        test_kernel_{contract,order}_device_sm90a{,_backward}
}

# How long a GPU, or another rank, may come no further before the program itself says where it hangs
# and ends with exit code 5 (comm.timeout). With the default of 60 s most checks would have been
# ended by then. Nothing that is healthy is lost: thread blocks that draw tickets count as coming
# further, however long a launch takes; host work is not waited for on one rank, and takes fractions
# of a second in jobs of several; launches of linear attention and of standard, which draw no
# tickets, take milliseconds in the jobs here.
#
# A GPU that hangs is found out after nine looks, an eighth of the time apart: 15 s are said after
# 17, which of the shortest check's 30 s leaves 13 for what comes before.
patience=(--set comm.timeout=15s)
# NCCL is loaded, and connects, while others wait, for which seconds are usual. 20 s are said after
# 23; of 40 s that leaves 17.
nccl_patience=(--set comm.timeout=20s)
# All is slower under compute-sanitizer. A launch of 1,000 tokens takes less than a millisecond
# without, so this permits 30,000 times that. 30 s are said after 34, which of 55 s leaves 21.
sanitizer_patience=(--set comm.timeout=30s)
# The one launch without tickets that fills all memory is one that clears it, in less than a second.
# Its check has minutes, most of which drawing inputs takes.
probe_patience=(--set comm.timeout=30s)

# Of an order suite, what repeats bit for bit.
repeats='kernel/@(repeated*|ends*|steps*)'

# Tests run side by side: random cases take the oracle a minute of one core. Which one hangs or was
# skipped is said.
side_by_side=(--verbose -j8)

# The contract of all kernel tables, against float64, and the device's memory.
check_kernels() {
    local suite=("${side_by_side[@]}" --timeout 150)
    check 'contract on the device' 200 "$tests_dir/sparse/test_kernel_contract_device" "${suite[@]}"
    if [ "$capability" = 9.0 ]; then # with dims that launch its own kernels
        check 'contract, sm_90a' 200 "$tests_dir/sparse/test_kernel_contract_device_sm90a" "${suite[@]}"
        check 'order, sm_90a' 50 "$tests_dir/sparse/test_kernel_order_device_sm90a" \
            "${side_by_side[@]}" --timeout 45 --filter "$repeats"
    fi
    check 'contract of standard on the device' 200 \
        "$tests_dir/sparse/test_kernel_contract_device_standard" "${suite[@]}"
    check 'order on the device' 160 "$tests_dir/sparse/test_kernel_order_device" "${suite[@]}"
    check 'rows on the device' 60 "$tests_dir/sparse/test_kernel_rows_device" "${side_by_side[@]}"
    check 'memory of the device' 30 "$tests_dir/pool/test_devices" --verbose -j1 \
        --filter 'devices/*_of_a_gpu*'
    wanted='^cuda.* ok$'
    # Here the timeout is 60 s in any case, said after 68; without a hang it all takes some 15.
    check 'kernels against the plain one' 110 "$tool" info --check
    local ms which
    read -r ms which < <(longest_start "$log")
    figure '50 ms over the longest check at start' "$(ratio 50 "$ms")" 1 "$which"
}

# longest_start FILE: of the comparisons of `info --check` with a GPU, one of which a job makes
# before it begins: ms of the longest, and which it is.
longest_start() {
    awk '/^cuda(-sm_90a(_backward)?)? / && $(NF - 3) > most {
        most = $(NF - 3)
        which = $1 " " $2 " " $3 " " $(NF - 2) " " $(NF - 1)
    } END { print most, which }' "$1"
}

# A job of linear attention, which takes no pattern; with edges.
linear=(--set shape.seq=5000 --set shape.heads=4 --set shape.kv_heads=2 --set shape.head_dim=96)
on_gpu=(--quiet --json --verify --set compute.backend=cuda "${patience[@]}")
# The patterns of cuda_bench that are timed at 131,072 tokens, and all of them as keys of a job.
sparse=(window blocks random global dilated)
declare -A keys_of=([dense]='' [causal]='pattern.causal=true'
    [window]='pattern.causal=true pattern.window.left=1023'
    [blocks]='pattern.blocks.kind=dilated_sparse pattern.blocks.size=128'
    [random]='pattern.blocks.kind=random pattern.blocks.size=128'
    [global]='pattern.blocks.kind=global_local pattern.blocks.size=128 pattern.blocks.width=4'
    [dilated]='pattern.dilated.segments=[8192] pattern.dilated.rates=[4]')

# worst_error FILE: of a verified job's errors the one nearest to its bound, as a share of that;
# none where one of them is no number.
worst_error() {
    # What NCCL says may come in the middle of a report, too; warnings have a time before them and
    # their place in NCCL's source.
    local rank='[[:alnum:].-]*:[0-9]+:[0-9]+ \[-?[0-9]+\]' place='[^ ]+:[0-9]+ (\(.*\) )?'
    LC_ALL=C sed -E "s/(\[[0-9: -]+\] )?$rank ($place)?NCCL .*//" "$1" | tr -d ' \n' |
        sed -n 's/.*"error":{\([^}]*\)},"error_bound":{\([^}]*\)}.*/\1,\2/p' |
        awk -F '[,:]' '!/null/ { for (i = 2; i <= NF / 2; i += 2)
            if ($i / $(i + NF / 2) > worst) worst = $i / $(i + NF / 2)
            printf "%.3g", worst }'
}

# job NAME SECONDS COMMAND...: a check whose value is that.
job() {
    measured=worst_error
    check "$@"
}

# both NAME SECONDS COMMAND...: forward and backward; where that is refused, forward alone.
both() {
    local name=$1 seconds=$2
    shift 2
    job "$name" "$seconds" "$@" --backward
    [ "$last_verdict" != absent ] || job "$name, forward only" "$seconds" "$@"
}

# What rates are taken of, computed as they are timed.
check_timed_jobs() {
    local name tokens key options
    for name in dense causal "${sparse[@]}"; do
        tokens=131072 options=()
        case $name in dense | causal) tokens=16384 ;; esac
        for key in ${keys_of[$name]}; do
            options+=(--set "$key")
        done
        both "job as timed, $name" 60 "$tool" run "${on_gpu[@]}" --set shape.dtype=bf16 \
            --set shape.heads=16 --set shape.head_dim=128 --set "shape.seq=$tokens" "${options[@]}"
    done
}

# Gradients of bfloat16 at head_dim 128 are the ones that thread blocks add to in any order, unless
# they are to repeat.
check_repeats() {
    # shellcheck disable=SC2016
    check 'results repeat bit for bit with compute.deterministic' 60 bash -c \
        'for i in 1 2; do "$@" --output "$0.$i" || exit; done; cmp "$0.1" "$0.2"
        code=$?; rm -f "$0.1" "$0.2"; exit $code' "$logs/repeated.safetensors" \
        "$tool" run --config "$root/configs/causal.yaml" --quiet --backward \
        --set compute.backend=cuda --set compute.deterministic=true --set shape.dtype=bf16 \
        --set shape.head_dim=128 "${patience[@]}"
}

# planned_share FILE: of `bench --json`: what a plan says of a job's memory, and what it took, the
# smaller over the larger. The job's figure comes before those of its pool's parts.
planned_share() {
    sed -n -e 's/.*"peak_bytes": \([0-9]*\).*/peak \1/p' \
        -e 's/.*"theory_bytes": \([0-9]*\).*/theory \1/p' "$1" |
        awk '!($1 in of) { of[$1] = $2 } END { peak = of["peak"]; plan = of["theory"]
            if (peak > 0 && plan > 0) printf "%.6f", peak < plan ? peak / plan : plan / peak }'
}

# Without a pool, which keeps more than it is asked for, a plan is right to the byte.
check_plan() {
    printf 'sweep: {shape.seq: [20000]}\n' >"$logs/planned.yaml"
    check 'memory as planned' 40 "$tool" bench --config "$logs/planned.yaml" --quiet --json \
        --backward --set job.repeat=1 --set pattern.causal=true --set shape.dtype=bf16 \
        --set memory.pool.mode=off --set compute.backend=cuda "${patience[@]}"
    figure 'planned memory and what a job took, their ratio' "$(planned_share "$log")" 1
}

# forward_seconds FILE: of `run --json` with one repetition.
forward_seconds() {
    sed -n '/"forward_ms"/,/}/s/.*"median": \([0-9.eE+-]*\).*/\1/p' "$1" |
        awk 'NR == 1 { printf "%.3f", $1 / 1000 }'
}

# A kernel that takes longer than the deadline is not taken for one that hangs: it is looked at while
# it works, which needs copies beside it.
check_long_kernel() {
    wanted='"kernel": "cuda'
    check 'a kernel longer than comm.timeout' 40 "$tool" run --quiet --json \
        --set compute.backend=cuda --set comm.timeout=1s --set job.repeat=1 \
        --set shape.dtype=f32 --set shape.seq=64K --set shape.heads=4 --set shape.kv_heads=1 \
        --set shape.head_dim=128
    figure 'its time, s' "$(forward_seconds "$log")" "$(for_hopper 1.2)"
}

# Whole jobs, every pattern; sampled rows are recomputed in float64. First those that take little.
check_jobs() {
    local name
    for name in dense causal sliding-window documents dilated blocks; do
        both "job $name" 40 "$tool" run --config "$root/configs/$name.yaml" "${on_gpu[@]}"
    done
    both 'job causal, float16' 40 "$tool" run --config "$root/configs/causal.yaml" "${on_gpu[@]}" \
        --set shape.dtype=f16
    check_repeats
    check_plan
    check_long_kernel
    for name in linear linear_causal; do
        both "job $name" 40 "$tool" run "${linear[@]}" "${on_gpu[@]}" --set "attention.kind=$name"
    done
    for name in recurrent cumsum; do # which have no backward pass
        job "job linear_causal, $name" 40 "$tool" run "${linear[@]}" "${on_gpu[@]}" \
            --set attention.kind=linear_causal --set "attention.linear_method=$name"
    done
    both 'job of materialised scores' 40 "$tool" run --config "$root/configs/causal.yaml" \
        "${on_gpu[@]}" --set attention.kind=standard --set shape.seq=8192
    for name in off size_class driver; do
        both "job with pool $name" 30 "$tool" run --config "$root/configs/causal.yaml" \
            "${on_gpu[@]}" --set "memory.pool.mode=$name"
    done
    wanted='"untimed_events":0'
    # shellcheck disable=SC2016
    check 'times of the GPU in a trace' 30 bash -c \
        '"$@" --trace "$0" && grep -q "\"clock\":\"device\"" "$0" && tail -n 1 "$0"' \
        "$logs/trace.json" "$tool" run --config "$root/configs/causal.yaml" --quiet --backward \
        --set compute.backend=cuda "${patience[@]}"
    # shellcheck disable=SC2016
    check 'a limit that is too low ends with exit code 4' 30 bash -c '"$@"; [ $? -eq 4 ]' limit \
        "$tool" run --config "$root/configs/causal.yaml" --quiet --set compute.backend=cuda \
        --set memory.limit=1M "${patience[@]}"
    wanted='"kernel": "cuda' unwanted=$refused_job
    check 'what features cost' 60 "$tool" ablate --config "$root/configs/causal.yaml" --json \
        --quiet --set compute.backend=cuda "${patience[@]}"
    check_timed_jobs
}

# nccl_job NAME RANKS OPTION...: ranks of one GPU. NCCL takes them for several hosts if each has a
# host identifier of its own. It is not made for that: where one run of it hangs (`hung`, of the
# caller), the next would, too.
nccl_job() {
    local name=$1 ranks=$2
    # Loopback alone; nor are hosts that are none looked for in a domain of NVLink. It says what it
    # has found and chosen, and so where it was when it hung or failed; not into a report.
    local settings=(NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_MNNVL_ENABLE=0 NCCL_DEBUG=INFO
        NCCL_DEBUG_FILE=/dev/stderr)
    shift 2
    if [ "$hung" = yes ]; then
        add_row "$name" 'not run' '' '' '' '' 'another of these hung or failed'
        return
    fi
    # shellcheck disable=SC2016
    both "$name" 40 mpirun -n "$ranks" bash -c \
        'NCCL_HOSTID=ringattn-$OMPI_COMM_WORLD_RANK exec "$@"' rank \
        env "${settings[@]}" "$tool" run --config "$root/configs/causal.yaml" "${on_gpu[@]}" \
        --set comm.backend=nccl "$@" "${nccl_patience[@]}"
    # Exit code 5: it was the program that ended the wait.
    [ "$last_verdict" != 'TIMED OUT' ] && [ "$code" -ne 5 ] || hung=yes
}

# From neighbour to neighbour and without standing buffers: the other ways to send.
check_nccl() {
    local ranks hung=no
    for ranks in 2 3 4; do
        nccl_job "$ranks ranks over NCCL" "$ranks"
    done
    nccl_job '2 ranks over NCCL, schedule ring' 2 --set ring.schedule=ring --set ring.comm_buffers=0
}

# NCCL first: what it does only such a machine can tell.
check_ranks() {
    local ranks
    set_mpi_environment 4
    check_nccl
    for ranks in 2 3 4; do
        both "$ranks ranks through host memory" 40 mpirun -n "$ranks" \
            "$tool" run --config "$root/configs/causal.yaml" "${on_gpu[@]}" --set comm.backend=mpi
    done
    both '3 ranks, linear_causal' 40 mpirun -n 3 "$tool" run "${linear[@]}" "${on_gpu[@]}" \
        --set comm.backend=mpi --set attention.kind=linear_causal
}

# small_jobs FILE: write jobs for compute-sanitizer, with edges: 1,000 tokens and 40 channels fill no
# tile. Each in every dtype: branches that meet on rows, with heads that share keys; a band with
# sinks; materialised scores; linear attention. One process, because most of the time is its start.
small_jobs() {
    cat >"$1" <<'END'
shape: {seq: 1000, heads: 4, kv_heads: 2, head_dim: 40}
compute: {backend: cuda}
job: {backward: true, repeat: 1}
variants:
  branches: {pattern.dilated.segments: [256, 1024], pattern.dilated.rates: [1, 2]}
  band: {pattern.causal: true, pattern.window.left: 100, pattern.sinks: 3, shape.head_dim: 192}
  standard: {attention.kind: standard, shape.seq: 300}
  linear: {attention.kind: linear_causal}
sweep: {shape.dtype: [f32, f16, bf16]}
END
}

# sanitize KIND NAME SECONDS COMMAND... A stream that is asked whether it has come to its end may say
# no: to memcheck that is an error. The others count the mbarriers of a kernel by what compilers say,
# and results may be incorrect where that is too low: here are more than any of our kernels has.
sanitize() {
    local kind=$1 name=$2 seconds=$3 options=(--tool "$1" --error-exitcode 9)
    if [ "$kind" = memcheck ]; then
        options+=(--report-api-errors no)
    else
        options+=(--num-cuda-barriers 64)
    fi
    check "compute-sanitizer $kind, $name" "$seconds" compute-sanitizer "${options[@]}" "${@:4}"
}

# sanitize_bench NAME OPTION...: what is timed, small, by kernels of one kind. Looking for races took
# 32 s of sm_80's on an H100, all else a second. One kind of blocks is enough: all are the same launch.
sanitize_bench() {
    local kind seconds
    for kind in memcheck racecheck synccheck; do
        seconds=15
        [ "$kind" != racecheck ] || seconds=60
        sanitize "$kind" "$1" "$seconds" "$bench" --once "${@:2}" 1000 2 128 \
            dense causal window blocks dilated
    done
}

# What is timed, small, and jobs; then ranks, which pack, send and add rows.
check_sanitizer() {
    local kind smaller
    small_jobs "$logs/small.yaml"
    sanitize_bench 'head_dim 128'
    for kind in memcheck racecheck synccheck; do
        wanted='"kernel": "cuda' unwanted=$refused_job
        # Looking for races takes long: 1,000 tokens were not over after 100 s on an H100.
        smaller=()
        [ "$kind" != racecheck ] || smaller=(--set shape.seq=300 --set job.warmup=0)
        sanitize "$kind" 'small jobs' 100 "$tool" bench --config "$logs/small.yaml" --quiet --json \
            "${smaller[@]}" "${sanitizer_patience[@]}"
    done
    set_mpi_environment 2
    check 'compute-sanitizer memcheck, 2 ranks' 55 mpirun -n 2 compute-sanitizer --tool memcheck \
        --error-exitcode 9 --report-api-errors no "$tool" run --quiet --backward \
        --set compute.backend=cuda --set comm.backend=mpi --set shape.seq=1000 \
        --set shape.heads=2 --set shape.head_dim=40 --set shape.dtype=bf16 \
        --set pattern.causal=true "${sanitizer_patience[@]}"
}

# rate FILE PATTERN KEY: a figure of cuda_bench --json, which has one line per pattern.
rate() {
    sed -n "s/.*\"pattern\": \"$2\".*\"$3\": \\([0-9.eE+-]*\\).*/\\1/p" "$1" | head -n 1
}

ratio() {
    awk -v a="$1" -v b="$2" 'BEGIN { if (a + 0 > 0 && b + 0 > 0) printf "%.4f", a / b }'
}

# watch_clocks NAME COMMAND...: a row of the clocks it runs under, looked at 20 times a second: what
# it reached goes by them. Only samples at half of the highest power or more count: then the GPU was
# at work.
watch_clocks() {
    local file=$logs/clocks.csv name=$1 found watching=(nvidia-smi "${first_gpu[@]}" --format=csv,noheader,nounits
        -lms 50 --query-gpu=clocks.sm,clocks.mem,power.draw.instant,clocks_event_reasons.active)
    shift
    timeout 300 stdbuf -oL "${watching[@]}" >"$file" 2>&1 & # what is in a buffer is lost
    watcher=$!
    "$@"
    kill "$watcher" 2>/dev/null
    wait "$watcher" 2>/dev/null
    watcher=
    [ "$code" -ne 125 ] || return
    command_text "${watching[@]}"
    found=$(awk -F ', *' '$1 + 0 > 0 { sm[++n] = $1 + 0; memory[n] = $2 + 0; watts[n] = $3 + 0
            why[n] = $4; if ($3 + 0 > most) most = $3 + 0 }
        END { for (i = 1; i <= n; i++) {
                if (watts[i] * 2 < most) continue
                if (!used++ || sm[i] < low) low = sm[i]
                if (sm[i] > high) high = sm[i]
                if (!seen[why[i]]++) reasons = reasons " " why[i]
                last = memory[i] }
            if (used) printf "SM %d to %d MHz, memory %d MHz, up to %d W," \
                " limited by%s (%d samples)", low, high, last, most, reasons, used }' "$file")
    if [ -n "$found" ]; then
        add_row "clocks, $name" passed '' '' '' "$text" "$found"
    else
        add_row "clocks, $name" absent '' '' '' "$text" \
            "$(tail -n 1 "$file" | cut -c 1-300)"
    fi
}

# blocks_held FILE: of all kernels, the least share of the thread blocks on a multiprocessor that
# they are made for; 1 where cuda_bench names none.
blocks_held() {
    grep -a -o '"held": [0-9]*, "assumed": [0-9]*' "$1" |
        awk -F '[:,]' 'BEGIN { least = 1 } $2 / $4 < least { least = $2 / $4 }
            END { printf "%.4g", least }'
}

# for_hopper VALUE: what is required of an H100 or H200. Other GPUs have other rates, and may hold
# fewer blocks: their figures are reported only.
for_hopper() {
    [ "$capability" != 9.0 ] || echo "$1"
}

declare -A least_rate=([forward,dense]=330 [forward,causal]=300 [backward,dense]=280)

# rate_figures ISA PATTERN...: of both passes, from the last check's log; ISA: ", " and its name.
rate_figures() {
    local direction pattern
    for pattern in "${@:2}"; do
        for direction in forward backward; do
            figure "TFLOP/s $direction$1, $pattern" "$(rate "$log" "$pattern" "tflops_$direction")" \
                "$(for_hopper "${least_rate[$direction,$pattern]-}")"
        done
    done
}

# rates_of SECONDS [ISA]: sets `dense`. Rates are medians of 20 launches after 3, by CUDA events.
# Operations: 4 D forward and 10 D backward per live pair and head, of which a causal mask has half.
# Tensors are several times the second cache, of which nothing is flushed: passes of a model follow
# each other like that.
rates_of() {
    local isa=${2:-} of=${2:+ of $2}
    local bench_isa=("$bench" --json ${isa:+"--$isa"})
    watch_clocks "${isa:-rates}" check "rates$of at 16,384 tokens" "$1" "${bench_isa[@]}" 16384 16 128 \
        dense causal
    dense=$(rate "$log" dense tflops_forward)
    rate_figures "${isa:+, $isa}" dense causal
    figure "share of thread blocks held${isa:+, $isa}" "${dense:+$(blocks_held "$log")}" "$(for_hopper 1)"
    check "rates$of at 131,072 tokens" "$1" "${bench_isa[@]}" 131072 16 128 "${sparse[@]}"
    rate_figures "${isa:+, $isa}" "${sparse[@]}"
}

check_rates() {
    local dense pattern least
    rates_of 60
    for pattern in "${sparse[@]}"; do
        least=0.85
        [ "$pattern" != dilated ] || least=0.9
        figure "live rate of $pattern over dense" \
            "$(ratio "$(rate "$log" "$pattern" tflops_forward)" "$dense")" "$least"
    done
    check_ring
}

# One rank in the ring beside base, in the order base, ring, ring, base. So long that the 0.1 ms in
# which the host learns of the end are little of it.
check_ring() {
    wanted='^ring,ok,'
    check 'ring and base' 60 "$tool" bench --config "$root/configs/bench/ring-vs-base.yaml" --csv \
        --quiet --set compute.backend=cuda --set shape.dtype=bf16 --set shape.seq=64K \
        --set shape.heads=16 --set job.warmup=3 --set job.repeat=15 "${patience[@]}"
    figure 'speed of one rank in the ring over base' "$(ring_speed "$log")" 0.99
}

# ring_speed FILE: base's time over the ring's, medians of both turns of each; a column of the table
# by its name, in the rows of the variants.
ring_speed() {
    awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "forward_median_ms") column = i }
        column && $2 == "ok" { ms[$1] = $column }
        END { ring = ms["ring"] * ms["ring_again"]; base = ms["base"] * ms["base_again"]
            if (ring > 0 && base > 0) printf "%.4f", sqrt(base / ring) }' "$1"
}

# peer_figures FILE: "pattern ratio" per point, of ours over FlexAttention; "pattern absent: why".
peer_figures() {
    "$python" - "$1" <<'END'
import json
import sys

for point in json.load(open(sys.argv[1]))["points"]:
    flex = point["peers"].get("flex", {})
    if "ours_times_as_fast" in flex:
        print(point["pattern"], "%.4f" % flex["ours_times_as_fast"]["median"])
    else:
        print(point["pattern"], "absent:", flex.get("why", point["status"]))
END
}

# peers_at NAME SECONDS LEAST TOKENS PATTERNS PEERS OPTION...; the budget begins once PyTorch is
# there, and counts what time is left for all checks.
peers_at() {
    local name=$1 seconds=$2 least=$3 patterns=$5 pattern file figures
    [ "$seconds" -le $((deadline - SECONDS)) ] || seconds=$((deadline - SECONDS))
    file=$out_dir/peers-$name.json figures=$logs/$name.figures
    rm -f "$file" "$figures"
    check "beside PyTorch, $name" "$seconds" "$python" "$root/tests/gpu/peers.py" --device cuda \
        --bench "$bench" --tokens "$4" --heads 16 --dims 128 --patterns "$patterns" --peers "$6" \
        --rounds 3 --repeats 20 --budget $((seconds > 30 ? seconds - 30 : 1)) --json "$file" \
        "${@:7}"
    [ -f "$file" ] && peer_figures "$file" >"$figures" 2>/dev/null
    for pattern in ${patterns//,/ }; do
        figure "speed over FlexAttention, $name, $pattern" \
            "$(sed -n "s/^$pattern //p" "$figures" 2>/dev/null)" "$least"
    done
}

check_peers() {
    watch_clocks peers peers_at dense 120 0.85 16384 dense,causal flash,cudnn,flex
    peers_at sparse 250 1.2 131072 blocks,random,window,dilated flex
    peers_at backward 120 '' 16384 dense,causal flash,cudnn,flex --backward
}

# has_sm_90a NAME: whether there is such a GPU; where a stage was asked for without, that is a row.
has_sm_90a() {
    [ "$capability" != 9.0 ] || return 0
    [ ${#only[@]} -eq 0 ] ||
        add_row "$1" absent '' '' '' '' 'it is for compute capability 9.0 alone'
    return 1
}

# of_isa ISA: a job by these kernels, what compute-sanitizer says of them, and rates.
of_isa() {
    local isa=$1 dense
    both "job causal, $isa" 40 "$tool" run --config "$root/configs/causal.yaml" "${on_gpu[@]}" \
        --set "compute.isa=$isa" --set shape.dtype=bf16 --set shape.head_dim=128
    sanitize_bench "$isa" "--$isa"
    rates_of 30 "$isa"
}

# Where auto takes sm_90a, those backward that it does not take, on the contract with dims that launch
# them. Other stages have what it takes; here are the jobs, races and rates of the instruction sets
# that no job takes there unasked.
check_sm_90a() {
    has_sm_90a 'compute.isa: sm_90a' || return
    check 'contract, sm_90a_backward' 100 "$tests_dir/sparse/test_kernel_contract_device_sm90a_backward" \
        "${side_by_side[@]}" --timeout 90
    check 'order, sm_90a_backward' 50 "$tests_dir/sparse/test_kernel_order_device_sm90a_backward" \
        "${side_by_side[@]}" --timeout 45 --filter "$repeats"
    of_isa sm_90a_backward
    of_isa sm_80
}

# numbers FILE KEY: of a JSON report, in their order.
numbers() {
    grep -a -o "\"$2\": [0-9]*" "$1" | sed 's/.*: //'
}

# longest NAME SECONDS OPTION...: `probe`'s log is left in $log. With a window, so that a long
# sequence takes no hours.
longest() {
    local name=$1 seconds=$2
    shift 2
    wanted='"kernel": "cuda'
    check "$name" "$seconds" "$tool" probe --json --quiet --set compute.backend=cuda \
        --set shape.dtype=bf16 --set shape.heads=8 --set shape.head_dim=128 \
        --set pattern.causal=true --set pattern.window.left=1023 "${probe_patience[@]}" "$@"
}

# base_share NAME: of the memory there was for tensors, what the longest sequence of base takes of it
# by four tensors of 16-bit elements, the least that a forward pass can do with.
base_share() {
    local seqs limits contexts floor=$((4 * 8 * 128 * 2))
    mapfile -t seqs < <(numbers "$log" seq)
    mapfile -t limits < <(numbers "$log" limit_bytes_sum)
    mapfile -t contexts < <(numbers "$log" context)
    figure "$1" "$(ratio "$((${seqs[0]:-0} * floor))" "$((${limits[0]:-0} - ${contexts[0]:-0}))")" \
        0.99
}

# First of a part of the memory: drawing the inputs of a whole run that fills a GPU takes minutes.
check_length() {
    local seqs
    longest 'longest sequence in 24 GiB' 150 --set memory.limit=24G
    mapfile -t seqs < <(numbers "$log" seq)
    figure 'ring length over base' "$(ratio "${seqs[1]:-0}" "${seqs[0]:-0}")" 0.99
    printf 'variants: {base: {ring.variant: base}}\n' >"$logs/base.yaml"
    longest 'longest sequence of base in all memory' 480 --config "$logs/base.yaml"
    base_share 'base length over what memory could hold'
}
