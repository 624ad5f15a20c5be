#!/usr/bin/env bash
# Everything there is to find out where there is a GPU, in one report. See usage below.
set -uo pipefail
export LC_ALL=C # mawk, where that is awk, reads and writes figures as the language has them
# shellcheck source=launch/common.sh
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"
# shellcheck source=launch/gpu-machine.sh
. "$root/launch/gpu-machine.sh"
# shellcheck source=launch/gpu-report.sh
. "$root/launch/gpu-report.sh"

usage() {
    cat <<'END'
gpu-check.sh [--build DIR] [--no-build] [--out DIR] [--limit SECONDS] [--python PYTHON]
             [--only LIST] [--keep] [--deps DIR] [--commit NAME]

Builds, and checks on the first GPU: the kernels' contract against float64, memory, 2, 3 and 4 ranks
over NCCL and through host memory, whole jobs with --verify, rates, the longest sequences,
compute-sanitizer on small cases, and what PyTorch reaches; on compute capability 9.0, the contract
of compute.isa: sm_90a, which auto takes there, and rates of others beside it. Nothing is installed and
no network is used; root makes /dev/shm and brings up lo where they are missing. What this build or
this machine does not have is a row of the report all the same.
The value of a job's row is its worst error over the bound; it passes up to 1.

  --build DIR       where to build (build/gpu); what is built there already is used again
  --no-build        check what DIR holds as it is; where nothing is built there, all ends at once
  --out DIR         where report.json, report.md, what PyTorch reached and log.txt, the output of all
                    checks, go: a handful of files (DIR/report). Logs one by one are in DIR/logs
  --limit SECONDS   the end, whatever happens (600); each check has a limit of its own besides
  --python PYTHON   the one that has PyTorch (python3), and with it NCCL
  --only LIST       of build,kernels,ranks,jobs,rates,length,sanitizer,peers,sm_90a; all of them
                    otherwise, in this order. Where time is short, several calls do a part each
  --keep            rows of an earlier call with the same --build stay, but for those found anew, and
                    so does its log.txt where --out is the same; `rows`, a file that each call
                    leaves in --out, counts where it is newer, as after a change of machines
  --deps DIR        libraries and headers that the system lacks, as Debian packages: files DIR/*.deb,
                    or unpacked as DIR/usr/... (.deps, where it is there). Of a bare machine
                    pkgconf is among them
  --commit NAME     what is checked, for the report of a copy without .git
  -h, --help        this text

Exit codes: 0 all passed; 1 something did not, or is absent; 2 usage; 77 there is no GPU.
END
}

# What is right comes before what is fast, and of that first what takes little time and says most.
# Where it ends early, what is missing are kernels that no job takes unasked, and before them what
# PyTorch reaches, which another machine could tell.
stages=(build kernels ranks jobs rates length sanitizer peers sm_90a)
build_dir=$root/build/gpu out_dir='' limit=600 python=python3 builds=yes only='' keeps=no
deps='' commit=''
if [ -d "$root/.deps/usr" ] || compgen -G "$root/.deps/*.deb" >/dev/null; then
    deps=$root/.deps
fi
arguments=("$@")
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help)
        usage
        exit 0
        ;;
    --no-build) builds=no ;;
    --keep) keeps=yes ;;
    --build | --out | --limit | --python | --only | --deps | --commit)
        if [ $# -lt 2 ]; then
            refuse "$1 wants a value"
        fi
        case $1 in
        --build) build_dir=$2 ;;
        --out) out_dir=$2 ;;
        --limit) limit=$2 ;;
        --python) python=$2 ;;
        --only) only=$2 ;;
        --deps) deps=$2 ;;
        --commit) commit=$2 ;;
        esac
        shift
        ;;
    *)
        refuse "$1: see gpu-check.sh --help"
        ;;
    esac
    shift
done
case $limit in
'' | *[!0-9]* | 0*)
    refuse "--limit $limit: a whole number of seconds from 1 on is wanted"
    ;;
esac
out_dir=${out_dir:-$build_dir/report}
read -r -a only <<<"${only//,/ }"
for stage in "${only[@]}"; do
    case " ${stages[*]} " in
    *" $stage "*) ;;
    *)
        refuse "--only $stage: there are ${stages[*]}"
        ;;
    esac
done
[ "$builds" = yes ] || [ "${only[*]}" != build ] || refuse "--no-build leaves nothing of --only build"
if [ -n "$deps" ] && [ ! -d "$deps/usr" ] && ! compgen -G "$deps/*.deb" >/dev/null; then
    refuse "--deps $deps: there are neither packages (*.deb) nor a folder usr in it"
fi

# Whether a stage is among those asked for.
wants() {
    [ ${#only[@]} -eq 0 ] || [[ " ${only[*]} " == *" $1 "* ]]
}

skip() {
    say "skipped: $*"
    exit 77
}

# CUDA's first GPU, by what nvidia-smi calls it; the two number them alike by their place on the bus.
# It knows no slices of a GPU (MIG).
export CUDA_DEVICE_ORDER=PCI_BUS_ID
visible=${CUDA_VISIBLE_DEVICES-0}
first_gpu=(-i "${visible%%,*}")
[ "${visible#MIG-}" = "$visible" ] || first_gpu=()

# One line of name, driver and memory, or the reason why there is none. A driver that hangs is none.
# The end comes even where a check cannot be stopped: from outside, and the report is written then.
gpu=${RA_GPU_CHECK_INSIDE:-}
if [ -z "$gpu" ]; then
    command -v nvidia-smi >/dev/null || skip "there is no GPU: nvidia-smi is not there"
    gpu=$(timeout -k 2 20 nvidia-smi "${first_gpu[@]}" --query-gpu=name,driver_version,memory.total \
        --format=csv,noheader 2>&1) || skip "there is no GPU: nvidia-smi failed, or did not end: $gpu"
    gpu=${gpu%%$'\n'*}
    [ -n "$gpu" ] || skip "there is no GPU: nvidia-smi lists none"
    if { [ "$builds" = no ] || ! wants build; } && [ ! -x "$build_dir/src/tool/ringattn" ]; then
        say "ringattn: error: $build_dir: nothing is built there: leave out --no-build," \
            "and have build in --only"
        exit 1
    fi
    RA_GPU_CHECK_INSIDE=$gpu exec timeout --preserve-status -k 10 "$limit" bash "${BASH_SOURCE[0]}" "${arguments[@]}"
fi
# Its compute capability, such as 9.0.
capability=$(timeout 20 nvidia-smi "${first_gpu[@]}" --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
    sed -n '1s/^\([0-9]*\.[0-9]\)$/\1/p')
PATH=$PATH:/usr/local/cuda/bin # where nvcc and compute-sanitizer are, if nowhere else
logs=$build_dir/logs
mkdir -p "$build_dir" "$out_dir" "$logs" || exit 1
build_dir=$(cd "$build_dir" && pwd) out_dir=$(cd "$out_dir" && pwd) logs=$(cd "$logs" && pwd)
python=$(command -v "$python" || printf '%s' "$python") # not one that packages bring
if [ -n "$deps" ] && ! use_deps "$(cd "$deps" && pwd)" "$build_dir/deps"; then
    say "ringattn: error: --deps $deps: its packages could not be unpacked into $build_dir/deps"
    exit 1
fi
reserve=$((limit / 30 + 3)) # for ending a check that hangs, and for writing
grace=$((reserve / 4 + 1))  # of that: between being asked to end and being killed
deadline=$((limit - reserve)) # of SECONDS, which began with the limit
child='' watcher='' current='' log='' checked=''

# Versions of what PyTorch is and brings, without waiting for it to be imported.
python_versions() {
    timeout 20 "$python" -c 'from importlib import metadata
found = [(d.metadata["Name"] or "", d.version) for d in metadata.distributions()]
print(", ".join("%s %s" % d for d in sorted(found) if d[0].startswith(
    ("torch", "nvidia-nccl", "nvidia-cudnn"))))' 2>/dev/null
}

facts() {
    local compiler packages
    # Not that of a repository around this folder.
    commit=${commit:-$(GIT_CEILING_DIRECTORIES=${root%/*} git -C "$root" rev-parse --short HEAD 2>/dev/null)}
    compiler=$(timeout 20 nvcc --version 2>/dev/null | sed -n 's/.*release //p')
    packages=$(python_versions)
    machine_facts
    report_facts=(date "$(date -u +%Y-%m-%dT%H:%M:%SZ)" host "$(hostname 2>/dev/null)"
        device "$gpu" capability "${capability:-unknown}" commit "${commit:-unknown}" nvcc "${compiler:-unknown}"
        python "${packages:-no PyTorch}" "${machine[@]}")
}

# What is known so far: whatever comes next, it is not lost. Rows are kept for later calls, too.
publish() {
    local known=("${report_facts[@]}" seconds "$SECONDS")
    write_rows "$logs/rows" && write_rows "$out_dir/rows" &&
        write_json "$out_dir/report.json" "${known[@]}" &&
        write_markdown "$out_dir/report.md" "${known[@]}"
}

# finish [STOPPED]: with the exit code that rows tell, but 1 where more would have come.
finish() {
    local text code=0
    trap '' TERM INT # it is over anyway
    publish || exit 1
    summarize || code=1
    say "$text; $out_dir/report.md"
    [ $# -eq 0 ] || code=1
    exit "$code"
}

# shellcheck disable=SC2317 # the trap calls it
stop() {
    [ -z "$watcher" ] || kill "$watcher" 2>/dev/null
    if [ -n "$child" ]; then
        kill "$child" 2>/dev/null
        add_row "$current" 'TIMED OUT' '' '' '' "$checked" 'the time for all checks was over'
        keep_log "$current: TIMED OUT" "$log" # up to where it hung
    fi
    finish stopped
}
prepare_shared_memory /dev/shm
prepare_loopback /sys/class/net/lo/flags
facts
trap stop TERM INT
if [ "$keeps" = yes ]; then
    kept=$logs/rows
    [ ! "$out_dir/rows" -nt "$kept" ] || kept=$out_dir/rows
    [ ! -f "$kept" ] || read_rows "$kept"
else
    : >"$out_dir/log.txt"
fi

# limited SECONDS COMMAND...: its exit code; 124 after that time, or when all is over. Its output is
# $log.
limited() {
    local seconds=$1 left=$((deadline - SECONDS)) code
    shift
    [ "$left" -ge 1 ] || left=1 # 0 would be no limit
    [ "$seconds" -le "$left" ] || seconds=$left
    timeout -k "$grace" "$seconds" "$@" >"$log" 2>&1 &
    child=$!
    publish # while it runs
    wait "$child" 2>/dev/null # it would say how the child was ended
    code=$?
    child=
    return "$code"
}

# The line that says why: the one that must not be there, or our error line, where there is one, else
# the last that says anything; of a long one the end, where what hung is named.
reason() {
    { [ -n "$unwanted" ] && grep -a -m 1 -E "$unwanted" "$1"; } ||
        grep -a -m 1 -E 'ringattn: error: |^skipped: ' "$1" || skips "$1" || last_words "$1" | tail -c 300
}

# mpirun ends with blocks between rows of dashes. Of these a signal says more than the lines before
# them, but that a process has failed does not.
last_words() {
    LC_ALL=C awk '/^-+$/ && length($0) > 60 { inside = !inside; next }
        !/[[:alnum:]]/ { next }
        / exited on signal / { killed = $0 }
        inside { block = $0; next }
        { last = $0 }
        END { if (killed) print killed
            else if (last) print last
            else if (block) print block }' "$1"
}

# verdict_of CODE LOG: a refusal of ours (2) says that this build cannot do it.
verdict_of() {
    case $1 in
    0) printf passed ;;
    124 | 137) printf 'TIMED OUT' ;;
    77 | 126 | 127) printf absent ;;
    2) if grep -a -q 'ringattn: error: ' "$2"; then printf absent; else printf FAILED; fi ;;
    *) printf FAILED ;;
    esac
}

# A program may end well without having done what it was for: with tests skipped, or on the CPU.
# What must be in its output for it to count is $wanted, an expression, and what must not is
# $unwanted; $measured is what prints the row's value, given the log. All are "" after each check.
wanted='' unwanted='' measured=''
did_it() {
    ! skips "$1" >/dev/null && { [ -z "$wanted" ] || grep -a -q -E "$wanted" "$1"; } &&
        { [ -z "$unwanted" ] || ! grep -a -q -E "$unwanted" "$1"; }
}

# What Criterion says of tests that were skipped, but for those that nobody asked for.
skips() {
    grep -a '^\[SKIP\]' "$1" | grep -v ': Test is disabled$'
}

# In one file with the others, so that few have to be brought home; of what is long both ends.
keep_log() {
    local most=100000
    {
        printf '==== %s\n' "$1"
        if [ "$(wc -c <"$2")" -le $((2 * most)) ]; then
            cat "$2"
        else
            head -c "$most" "$2"
            printf '\n[...]\n'
            tail -c "$most" "$2"
        fi
        printf '\n'
    } >>"$out_dir/log.txt"
}

# check NAME SECONDS COMMAND...: a row by the exit code. Its log is $log, the code $code (125: no
# time was left), and the command, as a person would type it in the project's folder, $checked.
check() {
    local begin=$SECONDS seconds=$2 note='' value='' verdict
    current=$1
    log=$logs/${1//[!A-Za-z0-9]/-}.log
    shift 2
    command_text "$@"
    checked=$text
    : >"$log"
    if [ $((deadline - SECONDS)) -lt 1 ]; then # at once: there are many to come
        code=125 wanted='' unwanted='' measured=''
        add_row "$current" 'not run' '' '' 0 "$checked" 'no time was left'
        return 1
    fi
    limited "$seconds" "$@"
    code=$?
    verdict=$(verdict_of "$code" "$log")
    case $code in
    0)
        if ! did_it "$log"; then
            code=77 verdict=absent
            note="it ended well, but did not do it: $(reason "$log" | head -n 1 | cut -c 1-300)"
        fi
        ;;
    *)
        note=$(reason "$log" | head -n 1 | cut -c 1-300)
        note="exit code $code${note:+: $note}"
        ;;
    esac
    [ -z "$measured" ] || value=$("$measured" "$log")
    wanted='' unwanted='' measured=''
    add_row "$current" "$verdict" "$value" '' $((SECONDS - begin)) "$checked" "$note"
    keep_log "$current: $verdict" "$log"
    [ "$code" -eq 0 ]
}

# shellcheck disable=SC2317 # the checks call it
# figure NAME VALUE REQUIRED [NOTE]: a row by a number that the last check's command printed; where
# none is required, any will do. "absent: WHY" in place of a number says why there is none.
figure() {
    local verdict=FAILED value=$2 note=${4:-}
    if [ -z "$2" ]; then
        verdict=absent note="its command did not say"
    elif [ "${2#absent: }" != "$2" ]; then
        verdict=absent value='' note=${2#absent: }
    elif awk -v v="$2" -v r="$3" 'BEGIN { exit !(v + 0 >= r + 0 && v == v + 0) }'; then
        verdict=passed
    fi
    add_row "$1" "$verdict" "$value" "$3" '' "$checked" "$note"
}

# shellcheck source=launch/gpu-checks.sh
. "$root/launch/gpu-checks.sh"
if [ "$builds" = yes ] && wants build && ! check_build; then
    # What an earlier build left is not what would be checked.
    tool=$build_dir/not-built/ringattn bench=$build_dir/not-built/cuda_bench
    tests_dir=$build_dir/not-built
fi
for stage in "${stages[@]:1}"; do
    ! wants "$stage" || "check_$stage"
done
finish
