#!/usr/bin/env bash
set -euo pipefail
# shellcheck source=launch/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
    cat <<'END'
test.sh [--quick | STAGE...]

Installs what is missing (Debian 12, Ubuntu 24.04; root or sudo), builds, and runs every test.
Stages, in this order; each fails by itself and the rest still runs:

  format    clang-format
  release   the whole suite, optimised, with MPI
  lean      built without MPI and CUDA; the suite that such a build has
  asan      the whole suite under AddressSanitizer, LeakSanitizer and UBSan
  tsan      pool, communicator and ring tests under ThreadSanitizer, ranks as threads
  fuzz      every fuzz target for a minute (-DRA_FUZZ_SECONDS of the preset fuzz)
  tidy      clang-tidy

  --quick       format and release only
  -h, --help    this text
END
}

all_stages=(format release lean asan tsan fuzz tidy)
stages=()
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help)
        usage
        exit 0
        ;;
    --quick) stages=(format release) ;;
    *)
        [[ " ${all_stages[*]} " == *" $1 "* ]] || die "$1: the stages are ${all_stages[*]}"
        stages+=("$1")
        ;;
    esac
    shift
done
[ ${#stages[@]} -gt 0 ] || stages=("${all_stages[@]}")

# run_ctest PRESET: build it, run its tests, and keep what ctest said.
run_ctest() {
    build "$1" || return 1
    (cd "$root" && ctest --preset "$1") 2>&1 | tee "$root/build/$1/ctest.log"
}

run_stage() {
    case $1 in
    format | tidy) "$root/launch/lint.sh" "$1" ;;
    *) run_ctest "$1" ;;
    esac
}

# The closing line of ctest where there was one: "100% tests passed, 0 tests failed out of 42".
closing_line() {
    sed -n '/tests passed/p' "$root/build/$1/ctest.log" 2>/dev/null || true
}

ensure "${run_needs[@]}" "${test_needs[@]}"
# Every test may start ranks of its own; what is set here reaches them all.
set_mpi_environment 2

failed=0
summary=()
for stage in "${stages[@]}"; do
    say "== $stage"
    rm -f "$root/build/$stage/ctest.log"
    begin=$SECONDS
    if run_stage "$stage"; then
        verdict=passed
    else
        verdict=FAILED
        failed=1
    fi
    summary+=("$(printf '%-8s %-7s %4d s  %s' "$stage" "$verdict" $((SECONDS - begin)) \
        "$(closing_line "$stage")")")
done
cache=$root/build/release/CMakeCache.txt
if [ -f "$cache" ] && ! grep -q '^CMAKE_CUDA_COMPILER:[^=]*=/' "$cache"; then
    summary+=('cuda     left out       no nvcc was found: nothing of CUDA was compiled or tested')
fi
printf '\n'
printf '%s\n' "${summary[@]}"
exit "$failed"
