#!/bin/sh
# Takes a program for the test images from Debian's package. The package is not
# installed: a static busybox would replace the machine's own, and Prometheus would be
# started.
#
#   debianprogram.sh PACKAGE:ARCHITECTURE PROGRAM OUTPUT
set -eu

package=$1
program=$2
out=$3

"$(dirname "$0")/aptlists.sh"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# As root, apt downloads as a user of its own, who may not enter our folder.
(cd "$folder" && apt-get download -qq -o APT::Sandbox::User=root "$package")
dpkg-deb -x "$folder/${package%:*}"_*.deb "$folder/root"
mkdir -p "$(dirname "$out")"
cp "$(find "$folder/root" -path "*/bin/$program" -type f -perm -100 | head -n 1)" "$out"
