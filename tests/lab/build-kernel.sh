#!/bin/sh
# Builds the lab's test kernel: build-kernel.sh SOURCE CONFIG WORK
#
#   SOURCE a kernel's source archive (.orig.tar.xz), already verified by apt
#   CONFIG the options that it is to have; all others are off
#   WORK   an empty folder to build in; the results are WORK/bzImage, WORK/config, and WORK/debug with the vmlinux that
#          has debug information and the kernel's scripts for gdb
set -eu
# Ranges of letters below are those of ASCII.
export LC_ALL=C

source=$(realpath "$1")
config=$(realpath "$2")
work=$(realpath "$3")

step() { echo "== $*"; }

step "unpack $(basename "$source")"
mkdir "$work/src" "$work/build"
# What large drivers and boards are made of is most of the archive. Their Kconfig files stay.
tar -xf "$source" -C "$work/src" --strip-components=1 \
    --exclude='*/arch/*.dts*' --exclude='*/Documentation/[a-z]*' --exclude='*/tools/testing' \
    --exclude='*/sound/*.[ch]' --exclude='*/drivers/gpu/*.[ch]' --exclude='*/drivers/media/*.[ch]' \
    --exclude='*/drivers/net/*/*.[ch]' --exclude='*/fs/xfs/*.[ch]'
cd "$work/src"

step 'configure'
# The same source gives the same kernel on each machine and day.
export KBUILD_BUILD_TIMESTAMP='1970-01-01' KBUILD_BUILD_USER=vmprobe KBUILD_BUILD_HOST=lab
make -s O="$work/build" KCONFIG_ALLCONFIG="$config" allnoconfig
# An option that this kernel doesn't know, or that lacks another one, is left out without a word.
missing=$(grep '^CONFIG_' "$config" | grep -vxFf "$work/build/.config" || true)
[ -z "$missing" ] || {
    echo "these options can't be had:" "$missing" >&2
    exit 1
}

step 'compile'
make -s -j"$(nproc)" O="$work/build" bzImage scripts_gdb
mv "$work/build/arch/x86/boot/bzImage" "$work/bzImage"
mv "$work/build/.config" "$work/config"
mkdir -p "$work/debug/scripts"
# The scripts are links to the source.
cp -rL "$work/build/scripts/gdb" "$work/debug/scripts/gdb"
cp -L "$work/build/vmlinux-gdb.py" "$work/debug"
mv "$work/build/vmlinux" "$work/debug"
