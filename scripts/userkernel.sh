#!/bin/sh
# Builds a kernel that is a process, called User Mode Linux, from the source package of a
# Debian kernel. It takes ten minutes of processor time and 2 GB of disk, which are freed.
#
#   userkernel.sh VERSION FRAGMENT OUTPUT
#
# VERSION is that of the package linux-source-VERSION, such as 6.1, of a Debian.
# FRAGMENT has the settings that the kernel gets beyond the defaults. It is a fault if the
# kernel cannot have one of them.
set -eu

version=$1
fragment=$(realpath "$2")
mkdir -p "$(dirname "$3")"
out=$(realpath "$3")

case $version in
6.1) suite=bookworm ;;
6.12) suite=trixie ;;
*)
	echo "unknown kernel $version: add the Debian that has it to $0" >&2
	exit 1
	;;
esac

folder=$out.source
trap 'rm -rf "$folder"' EXIT
rm -rf "$folder"
mkdir "$folder"
mmdebstrap --quiet --variant=extract --include="linux-source-$version" "$suite" "$folder/debian" >&2
tar -xf "$folder/debian/usr/src/linux-source-$version.tar.xz" -C "$folder" --strip-components=1
cd "$folder"
rm -rf debian

# cAdvisor does not start without a clock speed in /proc/cpuinfo.
sed -i 's|seq_printf(m, "mode\\t\\t: skas\\n");|&\n\tseq_printf(m, "cpu MHz\\t\\t: 2000.000\\n");|' arch/um/kernel/um_arch.c
grep -q 'cpu MHz' arch/um/kernel/um_arch.c

make -s ARCH=um defconfig
scripts/kconfig/merge_config.sh -m .config "$fragment" >/dev/null
make -s ARCH=um olddefconfig
missing=$(grep '^CONFIG_' "$fragment" | grep -vxFf .config || true)
if [ -n "$missing" ]; then
	echo "Linux $version for user mode cannot have these settings of $fragment. Remove them, or add what they need:" >&2
	echo "$missing" >&2
	exit 1
fi
make -s ARCH=um -j"$(nproc)" linux
cp linux "$out"
