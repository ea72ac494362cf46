#!/bin/bash
# Prints what kedge changes on a machine, to be compared before and after.
echo "# interfaces"
ls /sys/class/net
echo "# routes and rules"
ip route | sed 's/ *$//' | sort
ip rule
ip -6 rule 2>/dev/null # fails if the module ipv6 is not loaded yet
echo "# mounts"
# systemd mounts those of /sys when a kernel module is loaded.
cut -d ' ' -f 2,3 /proc/mounts | grep -v -E '^/run/(user|credentials)|^/proc/sys/fs/binfmt_misc|^/sys/(fs/fuse/connections|kernel/config) ' | sort
echo "# cgroups"
# OpenRC keeps an empty one of each service that it has started. systemd does so in a container with version 1 alone, because
# the kernel tells only the machine's own systemd that a cgroup has become empty.
kept='/openrc\.'
[ "$(systemd-detect-virt 2>/dev/null)" != systemd-nspawn ] || [ ! -d /sys/fs/cgroup/systemd ] || [ -d /sys/fs/cgroup/unified ] || kept="$kept|/system.slice/kedge.service$"
find /sys/fs/cgroup -mindepth 1 -maxdepth 2 -type d | grep -v -E '/system.slice|/user.slice|/init.scope|/dev-|/sys-|/proc-|/openrc\.' | sort
find /sys/fs/cgroup -type d | grep -E 'kube|kedge|cri-' | grep -v -E "$kept" | sort
echo "# packet filters"
nft list ruleset
echo "# units"
if type systemctl >/dev/null 2>&1; then
systemctl list-units --all --no-legend --plain 'kube*' 'cri*' '*kedge*'
systemctl --failed --no-legend --plain
systemd-inhibit --list --no-legend 2>/dev/null | grep -i kube
else
rc-status --all --servicelist
fi
echo "# loop devices"
# A container sees those of the whole machine.
[ "$(systemd-detect-virt)" = systemd-nspawn ] || losetup -l --noheadings -O BACK-FILE
echo "# network namespaces"
ls /run/netns 2>/dev/null
echo "# processes"
# Not ps: it needs the time of the boot, which not every kernel tells.
cat /proc/[0-9]*/comm 2>/dev/null | grep -E 'kedge|containerd|pause|runc' | sort
echo "# kernel settings"
# Those of a container are the machine's, and outlive its boots.
[ "$(systemd-detect-virt)" = systemd-nspawn ] || sysctl -a 2>/dev/null | grep -E '^(vm\.(overcommit|panic)|kernel\.(panic|keys\.root)|net\.ipv[46]\.(ip_forward|conf\.all\.forwarding)|net\.bridge|net\.netfilter\.nf_conntrack_max)' | sort
echo "# files"
# What firewalls, iptables, NetworkManager, OpenRC and dpkg keep of their own is not of kedge.
for folder in /etc /usr /opt /var /run /tmp /root /srv /boot /home; do
	find "$folder" -xdev \( -path /var/log/journal -o -path /root/.kube -o -path /run/log -o -path /run/systemd -o -path /run/udev -o -path /run/user \
		-o -path /run/credentials -o -path '/tmp/systemd-private*' -o -path '/var/tmp/systemd-private*' -o -path /var/lib/systemd \
		-o -path /run/systemd/transient -o -path /run/xtables.lock -o -path /var/backups \
		-o -path /usr/lib/rc/cache -o -path '/var/log/dmesg*' -o -path /var/log/firewalld -o -path /etc/firewalld -o -path /etc/ufw -o -path /var/lib/NetworkManager \) -prune -o -print
done | sort
find /etc/systemd/system /run/systemd/transient /run/systemd/system -mindepth 1 2>/dev/null | sort
true
