#!/bin/sh
# Starts bin/kedge server in the background, with or without systemd, and
# waits until its node is Ready. Further words are flags for the server.
set -eu

kedge=$(cd "$(dirname "$0")/.." && pwd)/bin/kedge
data=/var/lib/kedge # the default of --data-dir
run=/run/kedge
pidfile=$run/up.pid
log=/var/log/kedge.log
patience=300 # seconds; a small board unpacks and makes keys for long

fail() {
	echo "make up: $*" >&2
	exit 1
}

[ "$(id -u)" = 0 ] || fail "a server makes containers and networks, which only root may: sudo make up"

# running tells whether the process that up started is running. Its executable may
# have been replaced meanwhile.
running() {
	[ -s "$pidfile" ] || return 1
	case $(readlink "/proc/$(cat "$pidfile")/exe" || true) in
	"$kedge" | "$kedge (deleted)") ;;
	*) return 1 ;;
	esac
}

# Use the kubeconfig of this server, not one that the caller happens to have set.
unset KUBECONFIG
ready() {
	"$kedge" kubectl wait --for=condition=Ready node --all --timeout=2s >/dev/null 2>&1
}

if running; then
	pid=$(cat "$pidfile")
	echo "kedge is already running as process $pid"
else
	mkdir -p "$run"
	chmod 700 "$run"
	# down removes the data only if up made them.
	if [ ! -e "$data" ]; then
		mkdir -m 700 "$data"
		touch "$data/made-by-make-up"
	fi
	# The server gets a session of its own, because it must outlive this terminal.
	setsid "$kedge" server "$@" >"$log" 2>&1 </dev/null &
	pid=$!
	echo "$pid" >"$pidfile"
	echo "started kedge server as process $pid, log in $log"
fi

waited=0
until ready; do
	# The link of a process that has ended leads nowhere.
	if [ ! -e "/proc/$pid/exe" ]; then
		rm -f "$pidfile"
		tail -n 20 "$log" >&2
		fail "the server ended; these are the last lines of $log"
	fi
	if [ "$waited" -ge "$patience" ]; then
		tail -n 20 "$log" >&2
		fail "the node is not ready after $patience s; the server still runs, see $log and $kedge status"
	fi
	sleep 1
	waited=$((waited + 1))
done

"$kedge" kubectl get nodes -o wide
cat <<END

kedge is ready. To use it, as root:
  $kedge kubectl get pods -A
  $kedge status
or with any kubectl:
  export KUBECONFIG=/etc/kedge/kedge.yaml
log: $log    stop and undo: make down
END
