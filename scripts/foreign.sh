#!/bin/sh
# Runs a command as root of a user namespace in which programs of other architectures run,
# by qemu's emulation of one program. Nothing outside the namespace changes. It needs Linux 6.7,
# which lets a user namespace have registrations of its own.
#
#   foreign.sh COMMAND...
set -eu

# The registrations of Debian's package qemu-user-static.
# shellcheck disable=SC2016 # expanded inside
inside='set -e
read -r _ <"$0"
rm "$0"
mount -t proc proc /proc
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
for architecture in x86_64 aarch64 arm; do
	file=/usr/lib/binfmt.d/qemu-$architecture.conf
	[ ! -e "$file" ] || tr -d "\n" <"$file" >/proc/sys/fs/binfmt_misc/register
done
exec "$@"'
go=$(mktemp -u)
mkfifo "$go"
unshare --user --mount --pid --fork --kill-child sh -c "$inside" "$go" "$@" &
child=$!
until [ "$(readlink "/proc/$child/ns/user")" != "$(readlink /proc/self/ns/user)" ]; do sleep 0.1; done
# Every user is the same one outside, so that files have their owners.
echo "0 0 65536" >"/proc/$child/uid_map"
echo "0 0 65536" >"/proc/$child/gid_map"
echo go >"$go"
wait "$child"
