#!/bin/sh
# Undoes up.sh: stops the server and its pods, and removes what they left in the
# system (mounts, interfaces, cgroups, nft tables). It also removes the data if
# up.sh made them, and keeps data that were there before.
set -eu

kedge=$(cd "$(dirname "$0")/.." && pwd)/bin/kedge
data=/var/lib/kedge
pidfile=/run/kedge/up.pid
patience=40 # seconds; the server stops within 30

fail() {
	echo "make down: $*" >&2
	exit 1
}

[ "$(id -u)" = 0 ] || fail "only root may: sudo make down"
[ -x "$kedge" ] || fail "there is no $kedge to clean up with: make"

if [ -s "$pidfile" ]; then
	pid=$(cat "$pidfile")
	# make may have replaced the executable meanwhile.
	case $(readlink "/proc/$pid/exe" || true) in
	"$kedge" | "$kedge (deleted)")
		echo "stopping kedge, process $pid"
		kill "$pid"
		waited=0
		while [ -e "/proc/$pid/exe" ]; do
			[ "$waited" -lt "$patience" ] || fail "process $pid does not stop; see /var/log/kedge.log"
			sleep 1
			waited=$((waited + 1))
		done
		;;
	esac
	rm -f "$pidfile"
fi

if [ -e "$data/made-by-make-up" ]; then
	echo "removing pods and data"
	"$kedge" uninstall --yes
	rm -f "$data/made-by-make-up"
	rmdir "$data"
else
	echo "removing pods, keeping $data, which was there before make up"
	"$kedge" killall
fi
