#!/bin/sh
# Installs the system packages that building vmprobe and its lab needs, on Debian 12 or newer.
# A second run finds nothing to do: it makes no apt call and prints nothing.
set -eu

# The build itself: a C toolchain for the linker and for -sys crates.
build='gcc libc6-dev make pkg-config ca-certificates'
# The labs: QEMU, Bochs and a test kernel are built from Debian's source packages, kernels are unpacked from theirs.
lab='debian-archive-keyring dpkg-dev g++ patch bzip2 xz-utils flex bison bc libelf-dev python3 python3-venv
     libglib2.0-dev libfdt-dev seabios qemu-system-data'
# The tests: what others read our files with, what makes a distribution's disk, and the libraries of a gdb that isn't
# installed. Perfetto's reader needs Node.js, which may be there from elsewhere. Chromium shows the status page; it needs
# so many libraries that it is installed.
tests='chromium-headless-shell trace-cmd qemu-utils e2fsprogs fdisk mmdebstrap uidmap libbabeltrace1 libdebuginfod1 libexpat1 libgmp10 libipt2
       libmpfr6 libncursesw6 libpixman-1-0 libpython3.11 libreadline8 libsource-highlight4v5 libxxhash0'
# What looks at the files of an installation: the service, manual pages, the package, scripts.
tests="$tests systemd mandoc lintian shellcheck bash"
command -v node >/dev/null || tests="$tests nodejs"
command -v npm >/dev/null || tests="$tests npm"

fail() {
    echo "setup: $*" >&2
    exit 1
}

installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

command -v dpkg-query >/dev/null ||
    fail "this is not a Debian system (no dpkg-query); install the equivalents of: $build $lab $tests"

missing=
for package in $build $lab $tests; do
    installed "$package" || missing="$missing $package"
done

if [ -n "$missing" ]; then
    [ "$(id -u)" = 0 ] || fail "these packages are missing; run this script as root:$missing"
    echo "setup: installing$missing" >&2
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    # Word splitting of $missing is meant: package names hold no spaces.
    # shellcheck disable=SC2086
    { apt-get update -q && apt-get install -q -y --no-install-recommends $missing; } \
        </dev/null >"$log" 2>&1 || {
        tail -n 20 "$log" >&2
        fail "apt-get failed (whole output: $log); mend what it says and run this again"
    }
    rm -f "$log"
fi

command -v cargo >/dev/null ||
    fail 'cargo is missing: install Rust 1.95 or newer (rustup does), put cargo on PATH and run this again'
