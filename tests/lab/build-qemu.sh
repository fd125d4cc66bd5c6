#!/bin/sh
# Builds the lab's QEMU: build-qemu.sh DSC WORK PATCH...
#
#   DSC    a QEMU source package (.dsc), its archives beside it, already verified by apt
#   WORK   an empty folder to build in; the result is WORK/qemu-system-x86_64
#   PATCH  changes to apply to it, in this order; absolute paths
#
# Only the x86 system emulator with the software CPU and the devices of the lab machine is built: no accelerator, no
# display, no network.
set -eu

dsc=$(realpath "$1")
work=$(realpath "$2")
shift 2

step() { echo "== $*"; }

step "unpack $(basename "$dsc")"
dpkg-source --no-check -x "$dsc" "$work/src"
cd "$work/src"

for patch; do
    step "apply $(basename "$patch")"
    patch -p1 --fuzz=0 <"$patch"
done

# The package leaves out the UEFI blobs, but its build still looks for their files.
sed -n "s/^ *'\(edk2-[^']*\.fd\)',.*/\1/p" pc-bios/meson.build | while read -r blob; do
    [ -e "pc-bios/$blob.bz2" ] || bzip2 -c </dev/null >"pc-bios/$blob.bz2"
done

step 'fetch the build tools from PyPI'
# Debian 12's own meson is too old. The system's Python, whatever else is first on PATH.
/usr/bin/python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    'meson>=1.5,<1.9' ninja tomli pycotap

step 'configure'
echo 'CONFIG_Q35=y' >configs/devices/x86_64-softmmu/lab.mak
PATH="$work/venv/bin:$PATH"
mkdir "$work/build"
cd "$work/build"
# Without the checks of casts and the wiping of registers and variables, and optimized as a whole, the emulated CPU takes
# 3 to 9 % less time.
../src/configure --python="$work/venv/bin/python3" --ninja="$work/venv/bin/ninja" \
    --target-list=x86_64-softmmu --without-default-features --enable-tcg --enable-fdt=system \
    --without-default-devices --with-devices-x86_64=lab --disable-debug-info --disable-qom-cast-debug --enable-lto \
    -Doptimization=3 --extra-cflags='-fzero-call-used-regs=skip -ftrivial-auto-var-init=uninitialized' \
    --disable-docs --disable-tools --disable-guest-agent --disable-install-blobs

step 'compile'
ninja -j"$(nproc)" qemu-system-x86_64
strip -o "$work/qemu-system-x86_64" qemu-system-x86_64
