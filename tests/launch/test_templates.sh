#!/usr/bin/env bash
# test_templates.sh RINGATTN SOURCE: the templates of launch/ do what they say, on this host.
set -euo pipefail
ringattn=$1 source=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export OMPI_MCA_orte_tmpdir_base=$folder # of two mpirun at once one may remove the other's folder
cd "$folder"
unset OMPI_MCA_hwloc_base_binding_policy PRTE_MCA_hwloc_default_binding_policy # the template binds
printf 'shape: {seq: 300, heads: 2}\n' >job.yaml

fail() {
    printf 'templates: %s\n' "$*"
    cat out
    exit 1
}

# As Slurm would start it on one node, without Slurm.
RINGATTN=$ringattn bash "$source/launch/slurm.sbatch" --verify >out 2>&1 || fail "slurm.sbatch"
grep -q '^ranks  *1 (mpi), 1 thread' out || fail "one rank of one thread was asked for"
[ -s ringattn-0.json ] || fail "slurm.sbatch: no report"

# A command that fails fails the job.
code=0
CONFIG=missing.yaml RINGATTN=$ringattn bash "$source/launch/slurm.sbatch" >out 2>&1 || code=$?
[ "$code" -eq 3 ] || fail "slurm.sbatch: exit code $code for a missing file"

# The hostfile is one for mpirun, once its hosts are known names.
sed "s/^node[0-9]*/$(hostname)/" "$source/launch/hostfile.example" | sort -u >hosts
mpirun --hostfile hosts -n 2 "$ringattn" run --config job.yaml >out 2>&1 || fail "hostfile"
grep -q '^ranks  *2 (mpi)' out || fail "two ranks were asked for"
