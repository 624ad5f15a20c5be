#!/usr/bin/env bash
set -euo pipefail
# shellcheck source=launch/common.sh
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

usage() {
    cat <<'END'
test.sh [--quick | STAGE...]

Installs what is missing (Debian 12; root or sudo), builds, and runs every test. Debian 13 has
no package that format and tidy need: name other stages there, of which release and lean were
tried. Stages, in this order; each fails by itself and the rest still runs:

  format    clang-format
  release   the whole suite, optimised, with MPI
  lean      built without MPI and CUDA; its suites of communicators, commands, files and packages
            (pools, kernels and rings are those of release)
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
    --quick) stages+=(format release) ;;
    *)
        [[ " ${all_stages[*]} " == *" $1 "* ]] || refuse "$1: the stages are ${all_stages[*]}"
        stages+=("$1")
        ;;
    esac
    shift
done
[ ${#stages[@]} -gt 0 ] || stages=("${all_stages[@]}")
asked=" ${stages[*]} "
stages=() # each once, in the order above
for stage in "${all_stages[@]}"; do
    [[ $asked != *" $stage "* ]] || stages+=("$stage")
done

# Whether clang can build with a sanitizer: its runtime comes in a package of its own.
clang_has() {
    printf 'int main(void) { return 0; }\n' |
        clang "-fsanitize=$1" -x c - -o /dev/null 2>/dev/null
}

clang_fuzzes() {
    printf 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return !d && n; }\n' |
        clang -fsanitize=fuzzer,address,undefined -x c - -o /dev/null 2>/dev/null
}

clang_has_openmp() {
    printf '#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n' |
        clang -fopenmp -x c - -o /dev/null 2>/dev/null
}

# install_for STAGE: what it needs. In a shell of its own, which ends where that cannot be installed.
install_for() (
    if [ "$1" = format ]; then
        ensure 'clang-format-14|command -v clang-format-14'
        return
    fi
    ensure "${run_needs[@]}" 'libcriterion-dev|pkg-config --exists criterion'
    wish "${wishes[@]}"
    case $1 in
    tidy) ensure 'clang-tidy-14|command -v clang-tidy-14' ;;
    tsan) ensure 'clang libclang-rt-dev|clang_has thread' 'libomp-dev|clang_has_openmp' ;;
    fuzz) ensure 'clang libclang-rt-dev|clang_fuzzes' 'libomp-dev|clang_has_openmp' ;;
    *)
        ensure 'python3|command -v python3'
        wish 'iproute2|command -v ip'
        ;;
    esac
)

# run_ctest PRESET: build it, run its tests, and keep what ctest said.
run_ctest() {
    build "$1" || return 1
    (cd "$root" && ctest --preset "$1") 2>&1 | tee "$root/build/$1/ctest.log"
}

run_stage() {
    install_for "$1" || return 1
    case $1 in
    format | tidy) "$root/launch/lint.sh" "$1" ;;
    *) run_ctest "$1" ;;
    esac
}

# The closing line of ctest where there was one: "100% tests passed, 0 tests failed out of 42".
closing_line() {
    sed -n '/tests passed/p' "$root/build/$1/ctest.log" 2>/dev/null || true
}

# Every test may start ranks of its own; what is set here reaches them all.
set_mpi_environment 2
# Where sweeps that leave failures out begin (tests/support/thin_sweep.h): the same for the same
# sources on any machine, and elsewhere with the next change. Without a repository the clock says.
if [ -z "${RA_TEST_START:-}" ] && tree=$(git -C "$root" rev-parse 'HEAD^{tree}' 2>/dev/null); then
    export RA_TEST_START=$((16#${tree:0:8}))
fi

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
pkg-config --exists openblas 2>/dev/null || [ "${stages[*]}" = format ] ||
    summary+=('standard left out       no OpenBLAS was found: tests of attention.kind: standard were skipped')
cache=$root/build/release/CMakeCache.txt
if [ -f "$cache" ] && ! grep -q '^CMAKE_CUDA_COMPILER:[^=]*=/' "$cache"; then
    summary+=('cuda     left out       no nvcc that works was found: nothing of CUDA was compiled or tested')
fi
printf '\n'
printf '%s\n' "${summary[@]}"
exit "$failed"
