# shellcheck shell=bash
# What gpu-check.sh needs of a machine besides its GPU, and what its report says of it. Sourced.

# prepare_shared_memory DIR: /dev/shm, where Criterion's tests and NCCL's ranks share memory, and
# which a bare container may lack. Root makes it; without the right to mount it is a folder.
prepare_shared_memory() {
    [ ! -d "$1" ] || return 0
    if [ "$(id -u)" -eq 0 ] && mkdir -p "$1" 2>/dev/null && chmod 1777 "$1"; then
        mount -t tmpfs -o mode=1777 tmpfs "$1" 2>/dev/null
        say "$1 was missing: made"
    else
        say "$1 is missing, and not ours to make: tests by Criterion and ranks over NCCL need it"
    fi
}

# loopback_is_up FILE: by the flags that the system shows there.
loopback_is_up() {
    [ $(($(cat "$1") & 1)) -eq 1 ]
}

# prepare_loopback FILE: the interface lo, on which ranks find each other. Root brings it up.
prepare_loopback() {
    [ -r "$1" ] || return 0 # nobody knows
    ! loopback_is_up "$1" || return 0
    [ "$(id -u)" -ne 0 ] || ip link set lo up 2>/dev/null || ifconfig lo up 2>/dev/null
    if loopback_is_up "$1"; then
        say "lo was down: brought up"
    else
        say "lo is down, and not ours to bring up: ranks over NCCL need it"
    fi
}

# Sets `machine`, facts as pairs of name and text. Limits are as ulimit has them, memory in KiB.
machine_facts() {
    local memory shared lo limits
    memory=$(sed -n 's/^MemAvailable: *//p' /proc/meminfo 2>/dev/null)
    shared=$(df -B1 --output=size,avail /dev/shm 2>/dev/null |
        awk 'END { if (NR == 2) print $1 " bytes, " $2 " free" }')
    lo=$(cat /sys/class/net/lo/flags 2>/dev/null)
    limits="locked memory $(ulimit -l), stack $(ulimit -s), files $(ulimit -n)"
    limits+=", processes $(ulimit -u)"
    # shellcheck disable=SC2034 # for who asked for them
    machine=(kernel "$(uname -r)" memory_available "${memory:-unknown}"
        shared_memory "${shared:-there is none}" loopback_flags "${lo:-unknown}"
        limits "$limits")
}

# unpack_deps DIR TO: packages DIR/*.deb into TO, unless it has all of them already.
unpack_deps() {
    local package list
    list=$(cd "$1" && ls -l -- *.deb)
    [ "$(cat "$2/unpacked" 2>/dev/null)" != "$list" ] || return 0
    mkdir -p "$2" || return 1
    for package in "$1"/*.deb; do
        dpkg-deb -x "$package" "$2" || return 1
    done
    printf '%s\n' "$list" >"$2/unpacked"
}

# use_deps DIR TO: Debian packages come before what the system has: as they are unpacked in DIR/usr,
# or as files DIR/*.deb, which are unpacked into TO. Of DIR itself nothing changes.
use_deps() {
    local dir=$1 to=$2 usr machine name file
    if [ ! -d "$dir/usr" ]; then
        unpack_deps "$dir" "$to" || return 1
        dir=$to
    fi
    usr=$dir/usr
    machine=$(uname -m)-linux-gnu
    mkdir -p "$to/bin" "$to/pkgconfig" || return 1
    export PATH=$to/bin:$usr/bin:$PATH
    local libraries=$usr/lib/$machine:$usr/lib:$dir/lib/$machine
    export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LIBRARY_PATH=$libraries${LIBRARY_PATH:+:$LIBRARY_PATH}
    export CPATH=$usr/include:$usr/include/$machine${CPATH:+:$CPATH}
    # pkg-config insists on packages that only static linking needs, so it reads copies without that
    # line. CMAKE_PREFIX_PATH stays as it is: CMake would have pkg-config read the originals there.
    export PKG_CONFIG_LIBDIR=$to/pkgconfig PKG_CONFIG_SYSROOT_DIR=$dir
    for file in "$usr/lib/$machine/pkgconfig"/*.pc "$usr"/{lib,share}/pkgconfig/*.pc; do
        [ ! -f "$file" ] || sed '/^Requires.private/d' "$file" >"$to/pkgconfig/${file##*/}"
    done
    if [ -d "$usr/lib/$machine/openmpi" ]; then # where it lies; no word of networks it finds not
        export OPAL_PREFIX=$usr PMIX_INSTALL_PREFIX=$usr
        export OMPI_MCA_mca_base_component_show_load_errors=0 OMPI_MCA_mtl=^ofi,psm,psm2
        export PMIX_MCA_pcompress_base_silence_warning=1
    fi
    # Names that Debian gives when packages are installed, which unpacking does not.
    for name in mpirun mpicc; do
        [ -e "$usr/bin/$name" ] || [ ! -e "$usr/bin/$name.openmpi" ] ||
            ln -sf "$usr/bin/$name.openmpi" "$to/bin/$name" || return 1
    done
}
