package machines

import (
	"regexp"
	"strings"
	"testing"
)

// ofDebian tells whether the kernel is that of Debian's package for user mode, which has modules, and nf_tables
// without the family inet. kedge runs there with iptables.
func ofDebian(m machine) bool {
	kind, is := m.kind.(userMode)
	return is && kind.source == ""
}

// features are parts of the kernel that a machine may lack: the module, what check-config calls the feature, and
// what kedge says, or nothing if it is ready all the same.
var features = []struct{ module, name, says string }{
	{module: "overlay", name: "OVERLAY_FS"},
	{module: "loop", name: "loop devices"},
	{module: "br_netfilter", name: "BRIDGE_NETFILTER"},
	{module: "vxlan", name: "VXLAN", says: "vxlan"},
	{module: "veth", name: "VETH", says: "veth"},
	{module: "bridge", name: "BRIDGE", says: "bridge"},
}

// missesFeatures takes one module after the other away from the machine's kernel. check-config says what is
// missing, and kedge is ready, or says it too.
func missesFeatures(t *testing.T, l *life) {
	const file = "/etc/modprobe.d/machine.conf"
	for _, feature := range features {
		t.Run(feature.module, func(t *testing.T) {
			l.sh(t, "echo 'install "+feature.module+" /bin/false' >"+file)
			l.reboot(t)
			output, _ := l.try("kedge check-config")
			if !regexp.MustCompile(`(?m)^(warn|fail) +\w+ +` + feature.name + ` `).MatchString(output) {
				t.Errorf("check-config does not say that %s is missing:\n%s", feature.name, output)
			}
			if feature.says == "" {
				l.ready(t)
				return
			}
			l.eventually(t, "{ kedge status; journalctl -b -u kedge -o cat --no-pager; } 2>&1 | grep -i "+feature.says)
		})
	}
	l.sh(t, "rm "+file)
	l.reboot(t)
	l.works(t)
	l.kubectl(t, "rollout status deployment/web deployment/keeper --timeout=15m")
	l.containers = l.ids(t)
}

// refusesWithoutInet wants check-config and the server to say what the machine's kernel lacks, and how kedge
// runs there nevertheless.
func refusesWithoutInet(t *testing.T, l *life) {
	l.write(t, "/opt/kedge", 0o755, l.kedge(t))
	defer l.sh(t, "rm /opt/kedge")
	for _, command := range []string{"check-config", "server --data-dir=/opt/data"} {
		output, err := l.try("timeout 300 /opt/kedge " + command)
		if err == nil || !strings.Contains(output, "nftables") || !strings.Contains(output, "proxy-mode=iptables") {
			t.Errorf("kedge %s does not say how to do without nftables: %v\n%s", command, err, output)
		}
	}
	l.sh(t, "/opt/kedge killall; rm -rf /opt/data")
	l.reboot(t) // so that the modules are not there that kedge has loaded
}
