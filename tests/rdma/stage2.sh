#!/bin/bash
# The guest's process 1 on the host's files: several rxe "hosts", the command, its exit status, the end.
#
# Every host is a veth pair on one bridge with an rxe device on it. All share one network namespace (rxe does
# not pass traffic in another), so routing by source address makes packets really leave by their own veth.
# In: /exchange/settings (HOSTS, OUT, ERR, KIND) and /exchange/command. Out: /exchange/status, or
# /exchange/failure with a sentence.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
box=/.guest/busybox

end() {
  $box sync
  exec $box poweroff -f
}
fail() {
  echo "$1" >/exchange/failure
  end
}

# A guest that restarts must not run the command a second time.
[ -e /exchange/started ] && end
: >/exchange/started
. /exchange/settings

$box mkdir -p /dev/shm /dev/pts
$box mount -t tmpfs -o mode=1777 shm /dev/shm
$box mount -t devpts -o ptmxmode=666 pts /dev/pts
$box mount -t tmpfs run /run
$box ln -sfn /proc/self/fd /dev/fd
for number in 0:stdin 1:stdout 2:stderr; do $box ln -sfn "/proc/self/fd/${number%:*}" "/dev/${number#*:}"; done
read -r name </etc/hostname && echo "$name" >/proc/sys/kernel/hostname
ulimit -c 0

# What perftest looks for, and user-mode Linux does not tell.
if ! $box grep -q '^cpu MHz' /proc/cpuinfo; then
  $box sed 's/^processor.*/&\ncpu MHz\t\t: 1000.000/' /proc/cpuinfo >/run/cpuinfo
  $box mount -o bind /run/cpuinfo /proc/cpuinfo
fi

make_links() {
  echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
  for value in accept_local=1 rp_filter=0 arp_ignore=1 arp_announce=2; do
    echo "${value#*=}" >"/proc/sys/net/ipv4/conf/default/${value%=*}"
  done
  # Link-local addresses, and their GIDs, are there at once.
  echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
  {
    echo "link set lo up"
    echo "link add br0 mtu 9000 type bridge"
    echo "link set br0 up"
    for ((n = 1; n <= HOSTS; n++)); do
      echo "link add v$n mtu 9000 type veth peer name b$n mtu 9000"
      echo "link set b$n master br0 up"
      echo "link set v$n up"
      echo "addr add 10.9.0.$n/32 dev v$n"
      echo "rule add pref 10 iif v$n lookup local"
      echo "rule add pref 15 from 10.9.0.$n to 10.9.0.$n lookup local"
      echo "rule add pref 20 from 10.9.0.$n to 10.9.0.0/24 lookup $((100 + n))"
      echo "route add 10.9.0.0/24 dev v$n src 10.9.0.$n table $((100 + n))"
    done
    echo "rule add pref 100 lookup local"
    echo "rule del pref 0"
  } >/run/links
  ip -batch /run/links
}

make_devices() {
  for ((n = 1; n <= HOSTS; n++)); do echo "link add rxe$n type rxe netdev v$n"; done >/run/devices
  rdma -b /run/devices
}

# wait_for_gid N: the GID of the device's IPv4 address comes a little after the device.
wait_for_gid() {
  local wanted tries gid file
  printf -v wanted '0000:0000:0000:0000:0000:ffff:0a09:%04x' "$1"
  for ((tries = 0; tries < 1000; tries++)); do
    for file in /sys/class/infiniband/rxe"$1"/ports/1/gids/{0..7}; do
      read -r gid 2>/dev/null <"$file" && [ "$gid" = "$wanted" ] && return 0
    done
    read -r -t 0.01 _ <>/run/never
  done
  return 1
}

$box mkfifo /run/never
make_links >/run/said 2>&1 || fail "the network of the guest cannot be made: $(</run/said)"
make_devices >/run/said 2>&1 || fail "rxe devices cannot be made: $(</run/said)"
for ((n = 1; n <= HOSTS; n++)); do wait_for_gid "$n" || fail "rxe$n has no GID of 10.9.0.$n after 10 s"; done

# Commands write into pipes, as under a shell; the ports are the way to the host.
for port in "$OUT" "$ERR"; do [ -c "$port" ] || fail "$port is missing in the guest"; done
case $OUT in */tty*) for port in "$OUT" "$ERR"; do $box stty -F "$port" raw -echo; done ;; esac
exec {out}> >(exec $box cat >"$OUT")
out_relay=$!
exec {err}> >(exec {out}>&- && exec $box cat >"$ERR")
err_relay=$!
/bin/bash /exchange/command <"/dev/null" >&"$out" 2>&"$err" {out}>&- {err}>&-
status=$?
exec {out}>&- {err}>&-
# Whatever the command left behind ends with it; then the relays end when all is written out.
for process in /proc/[0-9]*; do
  case ${process#/proc/} in 1 | "$out_relay" | "$err_relay") ;; *) kill -9 "${process#/proc/}" 2>/dev/null ;; esac
done
wait "$out_relay" "$err_relay"
echo "$status" >/exchange/.status && $box mv /exchange/.status /exchange/status
end
