# shellcheck shell=bash
# Shared by this folder's scripts: what to install, how to build, what MPI must be told. Sourced.

unset CDPATH # with it, cd prints where it goes, and may go elsewhere
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() {
    printf '%s\n' "$*" >&2
}

die() {
    say "ringattn: error: $*"
    exit 1
}

# What was asked for cannot be: the exit code is the command's for that.
refuse() {
    say "ringattn: error: $*"
    exit 2
}

mpi_is_there() {
    command -v mpirun >/dev/null && command -v mpicc >/dev/null
}

cmake_is_new() {
    command -v cmake >/dev/null &&
        [ "$(printf '3.25\n%s\n' "$(cmake --version | sed -n '1s/[^0-9.]*//p')" |
            sort -V | head -n 1)" = 3.25 ]
}

# "packages | command that succeeds where they are not needed". Probed in this order.
run_needs=(
    'gcc g++ libc6-dev|command -v cc && command -v c++'
    'cmake|cmake_is_new'
    'ninja-build|command -v ninja'
    'pkg-config|command -v pkg-config'
    'libopenmpi-dev openmpi-bin|mpi_is_there'
    'libhwloc-dev|pkg-config --exists hwloc'
    'libfyaml-dev|pkg-config --exists libfyaml'
    'libjansson-dev|pkg-config --exists jansson'
    'libxxhash-dev|pkg-config --exists libxxhash'
)
# Without these there are no attention.kind: standard on CPUs and no plots.
wishes=(
    'libopenblas-dev|pkg-config --exists openblas'
    'gnuplot-nox|command -v gnuplot'
)

may_install() {
    [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null
}

# missing_packages NEED...: sets `missing` to the packages of the needs that are not met.
missing_packages() {
    local need names
    missing=()
    for need in "$@"; do
        if ! eval "${need#*|}" >/dev/null 2>&1; then
            read -r -a names <<<"${need%%|*}"
            missing+=("${names[@]}")
        fi
    done
}

# What apt said was wrong, without the dozens of times that it says so.
say_apt_errors() {
    grep -m 4 -E '^(E|W): ' "$1" >&2 || tail -n 20 "$1" >&2
}

# ensure NEED...: install what is missing through apt; where nothing is, apt is not touched.
ensure() {
    local as_root=() log
    missing_packages "$@"
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null ||
        die "missing, and there is no apt-get to install it: ${missing[*]}"
    may_install ||
        die "neither root nor sudo; have run as root: apt-get update && apt-get install ${missing[*]}"
    [ "$(id -u)" -eq 0 ] || as_root=(sudo)
    say "installing through apt: ${missing[*]}"
    log=$(mktemp)
    if ! { "${as_root[@]}" apt-get update -q &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -q -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
        say_apt_errors "$log"
        die "apt-get could not install: ${missing[*]} (why is above, and all it said in $log):" \
            "without a network have these packages brought and installed by hand"
    fi
    rm -f "$log"
    missing_packages "$@"
    [ ${#missing[@]} -eq 0 ] || die "installed, and still missing or too old: ${missing[*]}"
}

# wish NEED...: the same, but what cannot be had is gone without, and no error.
wish() {
    ! may_install || (
        die() {
            say "ringattn: $*"
            exit 1
        }
        ensure "$@"
    ) || say "going on without these"
}

# quietly LOG COMMAND...: show a command's output only when it fails.
quietly() {
    local log=$1
    shift
    if ! { mkdir -p "$(dirname "$log")" && : >"$log"; } 2>/dev/null; then
        say "ringattn: error: $log cannot be written: build in a copy of the tree that is yours"
        return 1
    fi
    if ! "$@" >"$log" 2>&1; then
        tail -n 30 "$log" >&2
        say "ringattn: error: failed: $* (the whole log: $log)"
        return 1
    fi
}

# build PRESET [TARGET]...: configure and build into build/PRESET.
build() {
    local preset=$1 folder="$root/build/$1" targets=()
    shift
    [ $# -eq 0 ] || targets=(--target "$@")
    say "building ($preset)"
    (cd "$root" && quietly "$folder/configure.log" cmake --preset "$preset" &&
        quietly "$folder/build.log" cmake --build --preset "$preset" "${targets[@]}")
}

# What Open MPI must be told for RANKS ranks on this machine; what is set already stays.
set_mpi_environment() {
    local ranks=$1
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    # More ranks than slots are allowed, and no rank is bound to one core: threads need them all.
    # Twice, because from release 5 on PRRTE starts ranks, whose names for these differ.
    export OMPI_MCA_rmaps_base_oversubscribe="${OMPI_MCA_rmaps_base_oversubscribe:-1}"
    export OMPI_MCA_hwloc_base_binding_policy="${OMPI_MCA_hwloc_base_binding_policy:-none}"
    export PRTE_MCA_rmaps_default_mapping_policy="${PRTE_MCA_rmaps_default_mapping_policy:-slot:oversubscribe}"
    export PRTE_MCA_hwloc_default_binding_policy="${PRTE_MCA_hwloc_default_binding_policy:-none}"
    # Who waits must not keep busy a core that another needs: ranks, and threads of OpenMP.
    # nproc would say what OpenMP was told.
    if [ "$ranks" -gt "$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)" ]; then
        export OMPI_MCA_mpi_yield_when_idle="${OMPI_MCA_mpi_yield_when_idle:-1}"
        export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
    fi
    # Where one interface has IPv4 and IPv6 addresses, release 5 finds (by netlink) that its ranks
    # cannot reach each other over TCP, and says so in many lines, though they share memory.
    export OMPI_MCA_reachable="${OMPI_MCA_reachable:-weighted}"
    # mpirun hangs where ulimit -f stops what it shares with its ranks: messages need no file.
    export PMIX_MCA_gds="${PMIX_MCA_gds:-hash}"
    # Without ssh Open MPI must not go looking for it; on one machine nothing is started with it.
    if ! command -v ssh >/dev/null && ! command -v rsh >/dev/null; then
        export OMPI_MCA_plm_rsh_agent="${OMPI_MCA_plm_rsh_agent:-true}"
    fi
}
