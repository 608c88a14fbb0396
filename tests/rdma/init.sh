#!/bin/sh
# The guest's first program: the host's file system, read-only, under a layer in memory; then stage2.sh on it.
# The kernel's command line says guest.kind=uml|qemu and, for uml, guest.exchange=FOLDER.
PATH=/bin
export PATH
/bin/busybox mkdir -p /bin && /bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for word in $(cat /proc/cmdline); do
  case $word in
    guest.kind=*) kind=${word#*=} ;;
    guest.exchange=*) exchange=${word#*=} ;;
  esac
done
while read -r module; do insmod "/modules/$module" || echo "guest: $module does not load"; done </modules/order

share() { # share NAME FOLDER: a writable folder of the host
  if [ "$kind" = uml ]; then
    mount -t hostfs -o "$1" none "$2"
  else
    mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576,cache=mmap "$1" "$2"
  fi
}

fail() { # once the host can read it
  echo "$1" >/new/exchange/failure
  sync
  exec poweroff -f
}

if [ "$kind" = uml ]; then
  mount -t hostfs -o / none /lower && mount -o remount,ro /lower
else
  mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=1048576,cache=loose root /lower
  exchange=exchange
fi
mount -t tmpfs layer /top
mkdir /top/upper /top/work
mount -t overlay -o lowerdir=/lower,upperdir=/top/upper,workdir=/top/work overlay /new
mkdir -p /new/exchange
share "$exchange" /new/exchange
mount --move /proc /new/proc
mount --move /sys /new/sys
mount --move /dev /new/dev
mkdir -p /new/.guest && cp /bin/busybox /new/.guest/busybox
number=0
while IFS= read -r folder; do
  mkdir -p "/new$folder"
  if [ "$kind" = uml ]; then share "$folder" "/new$folder"; else share "writable$number" "/new$folder"; fi ||
    fail "the folder $folder of the host cannot be mounted, so nothing written there would stay"
  number=$((number + 1))
done </new/exchange/writable
exec switch_root /new /bin/bash /exchange/stage2
