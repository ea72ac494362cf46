#!/bin/sh
# Builds a kernel that is a process, called User Mode Linux, from the source package of a
# Debian kernel. It takes ten minutes of processor time and 2 GB of disk, which are freed.
#
#   userkernel.sh VERSION FRAGMENT OUTPUT
#
# VERSION is that of the package linux-source-VERSION, such as 6.1, of a Debian.
# FRAGMENT has the settings that the kernel gets beyond the defaults. A newer kernel also
# gets settings that older ones do not know. It is a fault if the kernel cannot have one
# of these settings.
set -eu

version=$1
fragment=$(realpath "$2")
mkdir -p "$(dirname "$3")"
out=$(realpath "$3")

later=""
newer=""
case $version in
6.1) suite=bookworm ;;
6.12) suite=trixie ;;
7.2) suite=trixie later=trixie-backports newer="CONFIG_SMP=y CONFIG_NR_CPUS=4 CONFIG_CPUSETS=y CONFIG_NETFILTER_XTABLES_LEGACY=y" ;;
*)
	echo "unknown kernel $version: add the Debian that has it to $0" >&2
	exit 1
	;;
esac

folder=$out.source
trap 'rm -rf "$folder"' EXIT
rm -rf "$folder"
mkdir "$folder"
for from in $suite $later; do
	echo "deb http://deb.debian.org/debian $from main"
done | mmdebstrap --quiet --variant=extract --include="linux-source-$version" "$suite" "$folder/debian" - >&2
tar -xf "$folder/debian/usr/src/linux-source-$version.tar.xz" -C "$folder" --strip-components=1
cd "$folder"
rm -rf debian

# cAdvisor does not start without a clock speed in /proc/cpuinfo.
sed -i 's|seq_printf(m, "mode\\t\\t: skas\\n");|&\n\tseq_printf(m, "cpu MHz\\t\\t: 2000.000\\n");|' arch/um/kernel/um_arch.c
grep -q 'cpu MHz' arch/um/kernel/um_arch.c

# The handler of events keeps all that epoll has returned in one array, and a softirq that runs in it lets the handler run again,
# which overwrites the array. An event of the disk that was still in it is then lost: the disk's answers stay unread, and the
# machine waits for ever. With room for one event, none is left in the array when the handler runs again.
sed -i 's/^#define MAX_EPOLL_EVENTS 64$/#define MAX_EPOLL_EVENTS 1/' arch/um/os-Linux/irq.c
grep -q '^#define MAX_EPOLL_EVENTS 1$' arch/um/os-Linux/irq.c

make -s ARCH=um defconfig
{
	cat "$fragment"
	# shellcheck disable=SC2086 # a line for each
	printf '%s\n' $newer
} >settings
scripts/kconfig/merge_config.sh -m .config settings >/dev/null
make -s ARCH=um olddefconfig
missing=$(grep '^CONFIG_' settings | grep -vxFf .config || true)
if [ -n "$missing" ]; then
	echo "Linux $version for user mode cannot have these settings of $fragment or $0. Remove them, or add what they need:" >&2
	echo "$missing" >&2
	exit 1
fi
make -s ARCH=um -j"$(nproc)" linux
mv linux "$out" # a machine that runs keeps its old one
