#!/usr/bin/env bash
# test_plan_jobs.sh PYTHON RINGATTN SOURCE: plan-jobs.py where a job runs, fails, hangs and is not
# there: that is 3, and not 1, which says that jobs do not agree.
set -euo pipefail
python=$1 ringattn=$2 source=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# run CODE TEXT ARG...: plan-jobs.py ends with that code, and says so.
run() {
    local want=$1 text=$2 code=0
    shift 2
    "$python" "$source/launch/plan-jobs.py" "$@" --jobs 1 --tokens 1000 >"$folder/out" 2>&1 ||
        code=$?
    if [ "$code" -ne "$want" ] || ! grep -q "$text" "$folder/out"; then
        printf 'test_plan_jobs: %s: exit code %s, not %s\n' "$*" "$code" "$want"
        cat "$folder/out"
        exit 1
    fi
}

printf '#!/bin/sh\nsleep 60\n' >"$folder/hangs"
printf '#!/bin/sh\necho why >&2\nexit 4\n' >"$folder/fails"
chmod +x "$folder/hangs" "$folder/fails"
run 0 '^1 jobs: ' memory "$ringattn" --kinds linear --idle 1000000
run 3 'not done after 1 s' memory "$folder/hangs" --limit 1
run 3 '^why$' memory "$folder/fails"
run 3 'No such file' memory "$folder/nothing"
run 2 'of flash,' memory "$ringattn" --kinds round

# Ranks start as launch/run.sh has them start; where it is does not matter.
# shellcheck disable=SC2016 # what is written has its own variables
printf '#!/bin/sh\necho "$2 ranks: $OMPI_MCA_reachable" >&2\nexit 4\n' >"$folder/mpirun"
chmod +x "$folder/mpirun"
(
    unset OMPI_MCA_reachable
    cd "$folder"
    PATH=$folder:$PATH
    run 3 '^3 ranks: weighted$' memory "$ringattn" --ranks 3
)
