#!/bin/sh
# Makes a disk with Debian on it, with systemd and cloud-init: build-debian-disk.sh RELEASE SOURCES WORK
#
#   RELEASE a Debian release's code name
#   SOURCES apt's list of sources for it
#   WORK    an empty folder to make it in; the results are WORK/debian.qcow2 and WORK/packages
#
# The disk has one partition, as the disks of distributions have partitions. Root's password is "vmprobe".
set -eu
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"

release=$1
sources=$(realpath "$2")
cd "$3"

# In bytes, and in KiB; the partition begins at 1 MiB, as fdisk has it.
start=1048576
size=491520

step() { echo "== $*"; }

step 'unpack and configure packages'
# The database of udev's hardware and documents are most of the bytes that no boot reads.
mmdebstrap --quiet --variant=minbase --format=tar \
    --include=systemd-sysv,udev,dbus,kmod,login,iproute2,cloud-init \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/info/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/lib/udev/hwdb.*' \
    --customize-hook='echo root:vmprobe | chroot "$1" chpasswd' \
    --customize-hook='echo debian >"$1/etc/hostname"' \
    --customize-hook=': >"$1/etc/machine-id"' \
    --customize-hook='chroot "$1" dpkg-query -W >packages' \
    "$release" root.tar "$sources"

step 'make the file system'
# Devices are the kernel's to make (devtmpfs), and only root could unpack them.
fill="mkdir root && tar -C root --exclude='./dev/*' -xf root.tar &&
      mke2fs -q -F -t ext4 -E offset=$start -d root disk.raw ${size}k && rm -r root"
truncate -s "$((size * 1024 + 2 * start))" disk.raw
if [ "$(id -u)" = 0 ]; then
    sh -euc "$fill"
else
    # Owners of files are those of a user namespace.
    unshare --map-root-user --map-auto sh -euc "$fill"
fi
echo "start=$((start / 512)), size=$((size * 2)), type=L, bootable" | sfdisk --quiet --label dos disk.raw

step 'compress the disk, as cloud images are'
qemu-img convert -f raw -O qcow2 -c disk.raw debian.qcow2
rm root.tar disk.raw
