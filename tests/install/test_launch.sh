#!/usr/bin/env bash
# test_launch.sh SOURCE: the scripts under launch/ ask for what is missing, and for nothing else.
set -u
source_dir=$1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export OMPI_MCA_orte_tmpdir_base=$work # of two mpirun at once one may remove the other's folder
fail() {
    echo "test_launch: $*" >&2
    exit 1
}

# An apt-get, and a sudo, that write down what they were asked; "apt-get install" meets the need.
mkdir "$work/bin" "$work/a b"
cp -r "$source_dir/launch" "$work/a b/launch"
cat >"$work/bin/apt-get" <<END
#!/bin/sh
echo "apt-get \$*" >>"$work/asked"
[ -e "$work/broken" ] || { [ "\$1" != install ] || touch "$work/installed"; exit 0; }
echo 'Reading package lists...'
for package in 1 2 3 4 5 6 7 8 9; do echo "E: Failed to fetch package \$package"; done
[ "\$1" != install ]
END
printf '#!/bin/sh\necho sudo >>"%s/asked"\nexec "$@"\n' "$work" >"$work/bin/sudo"
chmod +x "$work/bin/apt-get" "$work/bin/sudo"
export PATH="$work/bin:$PATH"

# In a folder with a blank in its name, from elsewhere.
ensure() {
    rm -f "$work/asked" "$work/output"
    (cd / && bash -c '. "$1/launch/common.sh"; shift; ensure "$@"' - "$work/a b" "$@") \
        >"$work/output" 2>&1
}

ensure 'never|true' "never|test -d '$work/bin'" || fail "needs that are met: an error"
[ ! -e "$work/asked" ] || fail "needs that are met: apt was asked: $(cat "$work/asked")"
[ ! -s "$work/output" ] || fail "needs that are met: $(cat "$work/output")"

ensure 'never|true' "one two|test -e '$work/installed'" || fail "a need: $(cat "$work/output")"
grep -q '^apt-get update' "$work/asked" || fail "the lists were not brought up to date"
grep -q '^apt-get install .* one two$' "$work/asked" || fail "asked: $(cat "$work/asked")"
grep -q never "$work/asked" && fail "asked for what is there: $(cat "$work/asked")"
grep -q 'one two' "$work/output" || fail "nothing was said: $(cat "$work/output")"
if [ "$(id -u)" -eq 0 ]; then
    grep -q sudo "$work/asked" && fail "root needs no sudo"
else
    grep -q sudo "$work/asked" || fail "apt-get without sudo"
fi

# Where cd looks is the user's matter: it must not find another launch/ there, nor print this one.
mkdir -p "$work/elsewhere/launch"
for path in . "$work/elsewhere"; do
    is=$(cd "$work/a b" && CDPATH=$path bash -c '. launch/common.sh; printf "%s" "$root"')
    [ "$is" = "$work/a b" ] || fail "with CDPATH=$path the project's folder is '$is'"
done

touch "$work/broken"
ensure 'three|false' && fail "an installation that fails passed"
grep -q 'error: apt-get could not install: three' "$work/output" || fail "$(cat "$work/output")"
grep -q '^E: Failed to fetch' "$work/output" || fail "why was not said: $(cat "$work/output")"
[ "$(wc -l <"$work/output")" -le 6 ] || fail "said again and again: $(cat "$work/output")"
log=$(sed -n 's/.*all it said in \([^ ]*\)).*/\1/p' "$work/output")
grep -q 'package 9' "$log" || fail "'$log' is not all that apt-get said"
rm "$log" "$work/broken"
ensure 'four|false' && fail "an installation that does not help passed"
grep -q 'error: installed, and still missing or too old: four' "$work/output" || fail "$(cat "$work/output")"

# What can be gone without is said, and no error.
touch "$work/broken"
(. "$work/a b/launch/common.sh" && wish 'five|false') >"$work/output" 2>&1 || fail "a wish is a need"
grep -q 'going on without these' "$work/output" || fail "$(cat "$work/output")"
grep -q 'error:' "$work/output" && fail "a wish is an error: $(cat "$work/output")"
rm "$work/broken"

# Ranks beyond the cores leave them to each other, however many threads OpenMP was told of.
printf '#!/bin/sh\necho "${OMP_NUM_THREADS:-2}"\n' >"$work/bin/nproc"
chmod +x "$work/bin/nproc"
for ranks in 2 3; do
    yields=$(env -u OMPI_MCA_mpi_yield_when_idle -u OMP_WAIT_POLICY OMP_NUM_THREADS=64 bash -c \
        '. "$1/launch/common.sh"; set_mpi_environment "$2"; echo "${OMPI_MCA_mpi_yield_when_idle-}"' \
        - "$work/a b" "$ranks")
    [ "$ranks$yields" = 2 ] || [ "$ranks$yields" = 31 ] || fail "$ranks ranks yield: '$yields'"
done
rm "$work/bin/nproc"

# Where a build cannot write, that is said, and not what an older build had to say.
touch "$work/a b/build"
(. "$work/a b/launch/common.sh" && build release) >"$work/output" 2>&1 && fail "built in a file"
grep -q 'configure.log cannot be written' "$work/output" || fail "$(cat "$work/output")"
rm "$work/a b/build"

# Usage errors: one line, before anything is built.
"$work/a b/launch/run.sh" --help | grep -q -- --ranks || fail "run.sh --help"
"$work/a b/launch/test.sh" --help | grep -q tsan || fail "test.sh --help"
misuse() { # misuse SCRIPT [ARGUMENT]...
    local code=0 script=$1
    shift
    "$work/a b/launch/$script" "$@" >"$work/output" 2>&1 || code=$?
    [ "$code" -eq 2 ] || fail "$script $*: exit code $code"
    [ "$(wc -l <"$work/output")" -eq 1 ] || fail "$script $*: $(cat "$work/output")"
}
misuse run.sh --ranks 0
misuse run.sh --ranks x
misuse run.sh --ranks
misuse run.sh --ranks=-1
misuse test.sh nonsense
misuse test.sh --quick nonsense
misuse lint.sh nonsense

# A link to a script is the script.
ln -s "$work/a b/launch/run.sh" "$work/attend"
"$work/attend" --help | grep -q -- --ranks || fail "a link to run.sh"

command -v mpirun >/dev/null || exit 0

# A job of run.sh, in which nothing is installed or built and two ranks do what $work/rank says.
echo 'run_needs=() wishes=()' >>"$work/a b/launch/common.sh"
mkdir -p "$work/a b/build/release/src/tool"
printf '#!/bin/sh\n' >"$work/bin/cmake"
printf '#!/bin/sh\n. "%s/rank"\n' "$work" >"$work/a b/build/release/src/tool/ringattn"
chmod +x "$work/bin/cmake" "$work/a b/build/release/src/tool/ringattn"
job() { # in a shell of its own, which it becomes
    exec env RANKS=2 "$work/a b/launch/run.sh" job.yaml --set 'a=b c' </dev/null >"$work/output" 2>&1
}

# Its arguments reach the ranks whole, and their exit code whoever started it.
cat >"$work/rank" <<END
for argument in "\$@"; do echo "<\$argument>"; done >"$work/rank-\$OMPI_COMM_WORLD_RANK"
exit 6
END
code=0
(job) || code=$?
[ "$code" -eq 6 ] || fail "ranks that end with 6: exit code $code, $(cat "$work/output")"
for rank in 0 1; do
    grep -qx '<a=b c>' "$work/rank-$rank" || fail "rank $rank: $(cat "$work/rank-$rank")"
done

# A script that is ended ends its ranks first, and says nothing of mpirun. Waits are long only where
# this fails.
cat >"$work/rank" <<END
echo \$\$ >"$work/pid-\$OMPI_COMM_WORLD_RANK"
exec sleep 300
END
until_true() { # until_true COMMAND...: for a minute
    local try
    for ((try = 0; try < 600; ++try)); do
        "$@" && return 0
        sleep 0.1
    done
    return 1
}
begun() { [ -s "$work/pid-0" ] && [ -s "$work/pid-1" ]; }
gone() { # as far as the system goes: what nobody has waited for keeps its number
    local state=Z
    read -r _ _ state _ 2>/dev/null <"/proc/$(cat "$work/pid-$1")/stat"
    [ "$state" = Z ]
}
for signal in TERM HUP QUIT; do
    rm -f "$work"/pid-*
    job &
    script=$!
    until_true begun || fail "no ranks: $(cat "$work/output")"
    kill "-$signal" "$script"
    code=0
    wait "$script" || code=$?
    [ "$code" -eq $((128 + $(kill -l "$signal"))) ] || fail "ended by $signal: exit code $code"
    grep -q 'mpirun failed' "$work/output" && fail "ended by $signal: $(cat "$work/output")"
    for rank in 0 1; do
        until_true gone "$rank" || fail "rank $rank outlives its job, ended by $signal"
    done
done

# Where nothing can be installed, a job goes without what it does not need.
printf 'exit 0\n' >"$work/rank"
echo "wishes=('five|false')" >>"$work/a b/launch/common.sh"
touch "$work/broken"
for may in true false; do
    echo "may_install() { $may; }" >>"$work/a b/launch/common.sh"
    code=0
    (job) || code=$?
    [ "$code" -eq 0 ] || fail "may install: $may: exit code $code, $(cat "$work/output")"
done
exit 0
