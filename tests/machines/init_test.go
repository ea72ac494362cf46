package machines

import (
	"fmt"
	"strings"
	"testing"
)

// initSystem is the program that starts the services of a machine: the commands by which it is used.
type initSystem struct {
	// process is what the kernel calls the machine's first process.
	process string
	// booted waits until the machine has started everything, and fails if something did not start.
	booted string
	// why says what did not start.
	why    string
	reboot string
	// start, stop and restart change kedge's service, and pid prints its process. state fails with the
	// status 3 while the service is stopped.
	start, stop, restart, state, pid string
	// installed are commands about the new service, each with what it prints.
	installed map[string]string
	// log prints the last lines of kedge's log.
	log string
	// waited prints for which processes the last boot waited in vain at its end.
	waited string
}

// systemd starts the services of most distributions.
var systemd = &initSystem{
	process: "systemd",
	booted:  "systemctl is-system-running --wait",
	why:     "systemctl --failed --no-legend --plain; journalctl -b -p err --no-pager | tail -n 20",
	reboot:  "systemctl reboot --no-block",
	start:   "systemctl start kedge",
	stop:    "systemctl stop kedge",
	restart: "systemctl restart kedge",
	state:   "systemctl is-active kedge",
	pid:     "systemctl show -p MainPID --value kedge",
	installed: map[string]string{
		"systemctl is-active kedge":                 "active",
		"systemctl is-enabled kedge":                "enabled",
		"systemctl show -p Type --value kedge":      "notify",
		"systemctl show -p NRestarts --value kedge": "0",
	},
	log:    `journalctl -b -u kedge --no-pager -o cat -p warning -n 60; journalctl -b -u kedge --no-pager -o cat -n 200 | grep -v -e msg=stopped -e 'msg=.ready' | tail -n 20; journalctl -b --no-pager -p warning -n 30 _TRANSPORT=journal _TRANSPORT=syslog _TRANSPORT=stdout`,
	waited: "journalctl -b -1 --no-pager | grep -i 'timed out' || true",
}

// openrc starts the services of Alpine, Gentoo and others. Its first process is that of sysvinit.
var openrc = &initSystem{
	process: "init",
	booted:  "[ \"$(rc-status --runlevel)\" = default ] && ! rc-status --crashed | grep .",
	why:     "rc-status --all; tail -n 20 /var/log/rc.log",
	reboot:  "(sleep 1; exec reboot) >/dev/null 2>&1 &",
	start:   "rc-service kedge start",
	stop:    "rc-service kedge stop",
	restart: "rc-service kedge restart",
	state:   "rc-service kedge status",
	pid:     "pgrep -o -x kedge",
	installed: map[string]string{
		"rc-update show default | grep -o -w kedge":                                                  "kedge",
		"rc-service kedge status | grep -o -w started":                                               "started",
		"ps -o comm= -p $(cat /run/kedge-service.pid)":                                               "supervise-daemo", // the kernel keeps 15 bytes
		"stat -c %a /etc/init.d/kedge /etc/kedge /etc/kedge/kedge.yaml /etc/kedge/kedge.env | xargs": "755 755 600 600",
	},
	log:    "grep -v -e msg=stopped -e 'msg=.ready' /var/log/kedge.log | tail -n 60; tail -n 30 /var/log/rc.log",
	waited: "true",
}

// init returns the machine's program that starts services.
func (m machine) init() *initSystem {
	if m.openrc {
		return openrc
	}
	return systemd
}

// restartKedge restarts kedge's service.
func (l *life) restartKedge(t *testing.T) {
	t.Helper()
	l.sh(t, l.init().restart)
}

// pid returns the ID of kedge's process.
func (l *life) pid(t *testing.T) string {
	t.Helper()
	return l.sh(t, l.init().pid)
}

// stopped wants kedge's service to be stopped.
func (l *life) stopped(t *testing.T) {
	t.Helper()
	if state, err := l.try(l.init().state); err == nil || !strings.Contains(fmt.Sprint(err), "status 3") {
		t.Errorf("the service is %s after its stop: %v", state, err)
	}
}
