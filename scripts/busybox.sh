#!/bin/sh
# Takes the static busybox of the test images from Debian's package, which is
# not installed: it would replace the machine's own busybox.
#
#   busybox.sh DEBIAN-ARCHITECTURE OUTPUT
set -eu

architecture=$1
out=$2

"$(dirname "$0")/aptlists.sh"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# As root apt downloads as a user of its own, who may not enter our folder.
(cd "$folder" && apt-get download -qq -o APT::Sandbox::User=root "busybox-static:$architecture")
dpkg-deb -x "$folder"/busybox-static_*.deb "$folder/root"
mkdir -p "$(dirname "$out")"
cp "$(find "$folder/root" -name busybox -type f -perm -100 | head -n 1)" "$out"
