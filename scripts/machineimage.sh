#!/bin/sh
# Makes the system of a test machine: a folder with a Debian, and a disk with the same contents.
# It takes three minutes of processor time.
#
#   machineimage.sh NAME FILES OUTPUT
#
# NAME is the name of the Debian, such as bookworm, and words with dashes between them:
#   openrc       OpenRC starts the services, and not systemd
#   selinux      SELinux enforces Debian's policy
#   neighbours   firewalls and other programs that change the network. They do not start by themselves
#   suites       what the tests of other packages need
#   stock-ARCH   Debian's own kernel for that architecture: OUTPUT.img.kernel and OUTPUT.img.initrd
# FILES is a folder that is copied over the system. The folder is OUTPUT, the disk OUTPUT.img.
set -eu

suite=${1%%-*}
files=$2
out=$3
packages=udev,kmod,iproute2,procps,e2fsprogs,apparmor,nftables,dmsetup,curl,ca-certificates,xz-utils
case $1- in *-openrc-*) init=openrc packages=$packages,openrc,sysvinit-core,socat ;; *) init=systemd packages=$packages,systemd-sysv,dbus,libpam-systemd,dbus-user-session,uidmap ;; esac
case $1- in *-neighbours-*) packages=$packages,ufw,firewalld,docker.io,network-manager,systemd-resolved ;; esac
case $1- in *-selinux-*) packages=$packages,selinux-basics,selinux-policy-default ;; esac
case $1- in *-suites-*) packages=$packages,sqlite3,openssl,xfsprogs,fio,etcd-client,skopeo,nghttp2-client,nginx-light,postgresql,mariadb-server-core,mariadb-client-core ;; esac
own=$(dpkg --print-architecture)
architecture=$own kernel="" mirror=""
case $1 in *-stock-*)
	architecture=${1##*-stock-}
	kernel=linux-image-$architecture
	if [ "$architecture" = armhf ]; then
		kernel=linux-image-armmp
		# Without the security updates: mirrors have lists of them that do not fit together.
		mirror=http://deb.debian.org/debian
	fi
	packages=$packages,$kernel,initramfs-tools
	;;
esac
skip=
if [ "$architecture" != "$own" ]; then
	skip=--skip=chroot/mount/sys
	if [ -z "${KEDGE_FOREIGN:-}" ]; then
		"$(dirname "$0")/need.sh" qemu-user-static arch-test
		KEDGE_FOREIGN=yes exec "$(dirname "$0")/foreign.sh" "$0" "$@"
	fi
fi

# mmdebstrap mounts /proc and more into the system. Nobody else is to see these mounts.
[ -n "${KEDGE_OWN_MOUNTS:-}${KEDGE_FOREIGN:-}" ] || KEDGE_OWN_MOUNTS=yes exec unshare --mount "$0" "$@"

mkdir -p "$(dirname "$out")"
half=$out.half
# A mounted /proc in it must not be removed with it.
trap 'umount "$half/proc" 2>/dev/null || true; rm -rf --one-file-system "$half" "$half.img"' EXIT
rm -rf --one-file-system "$half" "$half.img" "$out" "$out.img"
# With INITRD=No the kernel's package makes no initrd. That comes below.
# shellcheck disable=SC2086 # a flag or none, a mirror or none
if ! INITRD=No mmdebstrap --mode=root $skip --architectures="$architecture" --dpkgopt=force-unsafe-io --variant=minbase --include="$packages" "$suite" "$half" $mirror >"$out.log" 2>&1; then
	tail -n 20 "$out.log" >&2
	exit 1
fi
cp -r "$files/." "$half"
echo machine >"$half/etc/hostname"
printf '127.0.0.1 localhost\n::1 localhost\n127.0.1.1 machine\n' >"$half/etc/hosts"
rm -f "$half/etc/resolv.conf" # a link to a file of systemd-resolved
: >"$half/etc/resolv.conf"
: >"$half/etc/fstab"
# The address comes with the kernel's command line, as ip=. Nobody looks at a terminal, and
# nothing outside is reachable.
case $init in
systemd)
	# As Debian's installer does, so that the journal of a boot is there after the next one.
	mkdir -p "$half/var/log/journal"
	# Every machine gets its own at its first boot.
	: >"$half/etc/machine-id"
	chroot "$half" systemctl -q enable shell.socket usr-lib-modules.mount systemd-networkd systemd-network-generator
	chroot "$half" systemctl -q mask getty@.service serial-getty@.service console-getty.service \
		apt-daily.timer apt-daily-upgrade.timer systemd-networkd-wait-online.service
	for service in ufw firewalld docker docker.socket containerd NetworkManager systemd-resolved nginx; do
		chroot "$half" systemctl -q disable "$service" 2>/dev/null || true
	done
	;;
openrc)
	sed -i '/getty/d' "$half/etc/inittab"
	cat >>"$half/etc/inittab" <<-'END'
		net::bootwait:/usr/local/sbin/machine-network
		shl:2345:respawn:/usr/local/sbin/machine-shell
	END
	sed -i 's/^#*rc_cgroup_mode=.*/rc_cgroup_mode="unified"/; s/^#*rc_logger=.*/rc_logger="YES"/' "$half/etc/rc.conf"
	;;
esac
if [ -n "$kernel" ]; then
	# The initrd has to find the disk, and nothing else.
	echo MODULES=list >"$half/etc/initramfs-tools/conf.d/disk"
	printf 'virtio_pci\nvirtio_mmio\nvirtio_blk\next4\n' >>"$half/etc/initramfs-tools/modules"
	chroot "$half" update-initramfs -c -k "$(ls "$half/lib/modules")" >>"$out.log"
	cp "$half"/boot/vmlinuz-* "$out.img.kernel"
	cp "$half"/boot/initrd.img-* "$out.img.initrd"
fi
if [ -e "$half/etc/selinux/config" ]; then
	sed -i 's/^SELINUX=.*/SELINUX=enforcing/' "$half/etc/selinux/config"
	# Debian 13's policy gives this program a domain in which it cannot write the settings of the network.
	sed -i '/^\/usr\/lib\/systemd\/systemd-network-generator\s/s/:systemd_networkd_exec_t:/:bin_t:/' "$half/etc/selinux/default/contexts/files/file_contexts"
	mount -t proc proc "$half/proc"
	chroot "$half" setfiles -F /etc/selinux/default/contexts/files/file_contexts /
	umount "$half/proc"
fi
truncate -s 8G "$half.img"
mkfs.ext4 -q -d "$half" "$half.img"
mv "$half.img" "$out.img"
mv "$half" "$out"
