#!/usr/bin/env bash
# hosts.sh FOLDER COMMAND: run a command on host1, one of HOSTS (2) hosts that this machine plays:
# network and name apart, on a bridge. FOLDER is for files. Inside `unshare --mount --net`, as root;
# all of it is gone when the command ends. mpirun reaches the others through FOLDER/agent. RATE
# (1gbit, say; as tc writes it) bounds what each host sends.
set -euo pipefail
folder=$1

mount --make-rprivate /
mkdir -p /run/netns
mount -t tmpfs none /run/netns
numbers=$(seq "${HOSTS:-2}")
{
    echo 127.0.0.1 localhost
    for host in $numbers; do echo "10.77.0.$host host$host"; done
} >"$folder/hosts"
mount --bind "$folder/hosts" /etc/hosts

ip link set lo up
ip link add bridge0 type bridge
ip link set bridge0 up
for host in $numbers; do
    ip netns add "host$host"
    ip link add "port$host" type veth peer name eth0 netns "host$host"
    ip link set "port$host" master bridge0 up
    ip -n "host$host" addr add "10.77.0.$host/24" dev eth0
    ip -n "host$host" link set eth0 up
    ip -n "host$host" link set lo up
    if [ -n "${RATE:-}" ]; then
        tc -n "host$host" qdisc add dev eth0 root tbf rate "$RATE" burst 256kb latency 20ms
    fi
done

# In place of ssh: [-option]... HOST WORD...; the words are for a shell, as with ssh.
cat >"$folder/agent" <<'END'
#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c 'hostname "$1"; shift; exec sh -c "$*"' agent \
    "$host" "$@"
END
chmod +x "$folder/agent"
unset OMPI_MCA_btl
export OMPI_MCA_plm_rsh_agent="$folder/agent" PRTE_MCA_plm_ssh_agent="$folder/agent"
export OMPI_MCA_btl_tcp_if_include=eth0
export OMPI_MCA_oob_tcp_if_include=eth0 PRTE_MCA_oob_tcp_if_include=eth0

# shellcheck disable=SC2016  # expanded by the shell that is started
# No exec: the bridge lives as long as a process of its network does.
ip netns exec host1 unshare --uts sh -c 'hostname host1; exec sh -c "$1"' hosts "$2"
