#!/usr/bin/env bash
set -euo pipefail
# shellcheck source=launch/common.sh
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

usage() {
    cat <<'END'
run.sh [CONFIG] [--ranks N] [options of `ringattn run`]...

Installs what is missing (Debian 12 or 13; root or sudo), builds, and runs one job under
mpirun: CONFIG (configs/quickstart.yaml), on N ranks (4), its results verified.

  --ranks N     ranks to start; the environment's RANKS is the default
  -h, --help    this text

Everything else goes to the command, for example:
  launch/run.sh --set shape.seq=32K --backward
  launch/run.sh my.yaml --ranks 2 --input qkv.safetensors --output o.safetensors
  launch/run.sh --help-config        every configuration key
END
}

config=$root/configs/quickstart.yaml
ranks=${RANKS:-4}
options=()
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
    config=$1
    shift
fi
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help)
        usage
        exit 0
        ;;
    --ranks)
        [ $# -gt 1 ] || refuse "--ranks: a number must follow"
        ranks=$2
        shift
        ;;
    --ranks=*) ranks=${1#*=} ;;
    *) options+=("$1") ;;
    esac
    shift
done
[[ $ranks =~ ^[1-9][0-9]{0,5}$ ]] ||
    refuse "ranks: $ranks: it must be a number from 1 on (--ranks, or else RANKS)"

ensure "${run_needs[@]}"
wish "${wishes[@]}"
build release ringattn_tool || exit 1
set_mpi_environment "$ranks"
# The command says what is wrong in one line; mpirun's ten lines about it would bury that. Release 5
# cannot be told so: there seven of them follow.
export OMPI_MCA_orte_execute_quiet="${OMPI_MCA_orte_execute_quiet:-1}"
command=(mpirun -n "$ranks" "$root/build/release/src/tool/ringattn" run --config "$config"
    --verify "${options[@]}")
# Beside this script, not within it: a signal that ends the script ends the job, and mpirun's ranks.
"${command[@]}" <&0 &
job=$!
signal=''
end_job() {
    signal=$1
    kill -TERM "$job" 2>/dev/null || :
}
trap 'end_job 1' HUP
trap 'end_job 3' QUIT
trap 'end_job 15' TERM
trap 'signal=2' INT # from a terminal, mpirun has it, too
while kill -0 "$job" 2>/dev/null; do
    wait "$job" || : # a signal ends the waiting first
done
status=0
wait "$job" || status=$?
[ "$status" -eq 0 ] || [ -z "$signal" ] || exit $((128 + signal))
case $status in
0 | [2-6]) ;; # the command's own, and it has said why
*)
    reason="status $status"
    [ "$status" -le 128 ] || reason="status $status, a rank died of signal $((status - 128))"
    say "ringattn: error: mpirun failed ($reason): set OMPI_MCA_orte_execute_quiet=0 for its words"
    ;;
esac
exit "$status"
