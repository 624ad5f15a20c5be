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
