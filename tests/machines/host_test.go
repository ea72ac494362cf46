package machines

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
)

// withOwnKernel tells whether the machine has a clock and a network stack of its own, which a test may change.
func withOwnKernel(m machine) bool {
	_, shared := m.kind.(nspawn)
	return !shared
}

// networkChanges are what the hosts of users do to the network under a running kedge.
var networkChanges = []struct {
	name, do, undo string
	// restart is true if kedge starts while the change is there.
	restart bool
}{
	{name: "strict-rp-filter", do: "for file in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 1 >$file; done", undo: "for file in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 2 >$file; done; echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter", restart: true},
	{name: "networkd-restarts", do: "systemctl restart systemd-networkd"},
	{name: "without-ipv6", do: "sysctl -w net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1", undo: "sysctl -w net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.default.disable_ipv6=0", restart: true},
	{name: "without-default-route", do: "ip route show default >/run/route && ip route del default", undo: "ip route add $(cat /run/route)", restart: true},
	{name: "second-interface", do: "ip link add second type dummy && ip addr add 198.19.7.1/24 dev second && ip link set second up", undo: "ip link del second", restart: true},
}

// late restarts kedge on a host that gets its address and its default route half a minute later.
const late = `
	route=$(ip route show default)
	device=$(echo "$route" | grep -o 'dev [^ ]*' | cut -d ' ' -f 2)
	address=$(ip -o -4 addr show dev $device scope global | grep -o 'inet [^ ]*' | cut -d ' ' -f 2)
	systemd-run --no-block -q sh -c "sleep 1; ip addr del $address dev $device; systemctl restart --no-block kedge; sleep 30; ip addr add $address dev $device; ip route replace $route"`

// changesNetwork wants Services, DNS and new pods to work after each change.
func changesNetwork(t *testing.T, l *life) {
	for _, change := range networkChanges {
		t.Run(change.name, func(t *testing.T) {
			l.sh(t, change.do)
			if change.undo != "" {
				defer l.sh(t, change.undo)
			}
			if change.restart {
				l.restartKedge(t)
			}
			l.works(t)
			l.sameContainers(t)
		})
	}
	t.Run("late", func(t *testing.T) {
		before := l.pid(t)
		l.sh(t, late)
		l.eventually(t, "! kill -0 "+before)
		l.works(t)
		l.sameContainers(t)
	})
}

// works waits until kedge is ready. Then it starts a new pod, and waits until a Service answers by its name.
func (l *life) works(t *testing.T) {
	t.Helper()
	l.ready(t)
	once{name: "works", script: "true"}.output(t, l)
	l.answers(t)
}

// changesAddress gives the machine another address. The node has that one after a restart.
func changesAddress(t *testing.T, l *life) {
	old := netip.MustParseAddr(l.address)
	other := netip.AddrFrom4([4]byte{198, 18, 0, old.As4()[3] + 50})
	change := func(from, to netip.Addr) {
		l.sh(t, fmt.Sprintf("device=$(ip -o route get %s from %s | grep -o 'dev [^ ]*' | cut -d ' ' -f 2); gateway=$(ip route show default | cut -d ' ' -f 3); "+
			"systemd-run --no-block -q sh -c \"sleep 1; ip addr add %s/24 dev $device; ip addr del %s/24 dev $device; ip route replace default via $gateway\"",
			gatewayOf(l), from, to, from))
		l.address = to.String()
		l.eventually(t, "true")
		l.restartKedge(t)
		l.works(t)
		l.untilKubectl(t, "get node machine -o jsonpath='{.status.addresses[?(@.type==\"InternalIP\")].address}' | grep -x "+to.String())
	}
	change(old, other)
	change(other, old)
}

// gatewayOf returns the address of the machine's host.
func gatewayOf(l *life) string { return fmt.Sprintf("198.18.0.%d", 100+l.host.Address.As4()[3]) }

// changesClock sets the clock a year ahead and back while kedge runs, and starts kedge with a clock that is
// years behind, as that of a machine without a battery is.
func changesClock(t *testing.T, l *life) {
	// set sets the clock to the right time plus a number of days. The right time follows from the time at the beginning
	// and from how long the machine has been up since then.
	set := func(days int) {
		t.Helper()
		l.sh(t, fmt.Sprintf("date -s @$(($(cut -d . -f 1 /run/clock/began) + $(cut -d . -f 1 /proc/uptime) - $(cut -d . -f 1 /run/clock/uptime) + %d * 86400))", days))
	}
	l.sh(t, "mkdir -p /run/clock && date +%s >/run/clock/began && cat /proc/uptime >/run/clock/uptime")
	defer l.sh(t, "rm -r /run/clock")
	l.containers = l.ids(t)
	for _, jump := range []struct {
		name    string
		days    int
		restart bool
	}{
		{"a-year-ahead", 365, false},
		{"restart-there", 365, true},
		{"a-year-back", 0, false},
		{"restart-back", 0, true},
	} {
		t.Run(jump.name, func(t *testing.T) {
			set(jump.days)
			if jump.restart {
				l.restartKedge(t)
			}
			l.works(t)
			l.sameContainers(t)
		})
	}
	t.Run("behind-at-the-start", func(t *testing.T) {
		l.sh(t, l.init().stop)
		set(-365 * 5)
		l.sh(t, l.init().start)
		l.ready(t)
		set(0)
		l.works(t)
		l.sameContainers(t)
	})
}

// changesName gives the host another name. It is another node then, and kedge warns of that.
func changesName(t *testing.T, l *life) {
	name := func(name string) {
		l.sh(t, "hostnamectl hostname "+name)
		l.restartKedge(t)
		l.readyAs(t, name)
	}
	name("renamed")
	wants(t, l.sh(t, "journalctl -b -u kedge -o cat --no-pager -p warning"), "This host was node machine the last time")
	name("machine")
	l.kubectl(t, "delete node renamed")
	l.works(t)
	l.containers = l.ids(t)
}

// firewalls are those of the distribution: how each is turned on and off.
var firewalls = []struct{ name, on, off string }{
	{"ufw", "ufw allow 23/tcp && ufw --force enable", "ufw --force disable && ufw --force reset"},
	{"firewalld", "systemctl start firewalld && firewall-cmd -q --permanent --add-port=23/tcp && firewall-cmd -q --reload", "systemctl stop firewalld"},
}

// passesFirewalls turns on a firewall with its defaults, does what check-config says, and wants everything
// to work, also after a restart.
func passesFirewalls(t *testing.T, l *life) {
	for _, firewall := range firewalls {
		t.Run(firewall.name, func(t *testing.T) {
			l.sh(t, "(timeout 60 sh -c '"+firewall.on+"') 2>&1")
			defer l.sh(t, firewall.off)
			advice := l.sh(t, "kedge check-config")
			wants(t, advice, firewall.name)
			// The commands stand in backquotes.
			for i, part := range strings.Split(advice, "`") {
				if i%2 == 1 && (strings.HasPrefix(part, "ufw ") || strings.HasPrefix(part, "firewall-cmd ")) {
					l.sh(t, part)
				}
			}
			if left := l.sh(t, "kedge check-config | grep 'warn.*"+firewall.name+"' || true"); left != "" {
				t.Errorf("after its own advice check-config still warns:\n%s", left)
			}
			l.works(t)
			l.reachable(t)
			l.restartKedge(t)
			l.works(t)
			l.reachable(t)
		})
	}
}

// reachable wants another host to reach the Deployment by a NodePort.
func (l *life) reachable(t *testing.T) {
	t.Helper()
	port := l.kubectl(t, "get service web -o jsonpath='{.spec.ports[0].nodePort}'")
	harness.Eventually(t, patience, "an answer at port "+port, func() error {
		output, err := l.host.Command(t.Context(), "curl", "-sS", "-m", "10", "http://"+l.address+":"+port).CombinedOutput()
		if err == nil && !strings.Contains(string(output), "web-") {
			err = fmt.Errorf("another answer")
		}
		if err != nil {
			return fmt.Errorf("%w: %s", err, output)
		}
		return nil
	})
}

// neighbours are services that change the host's network or run containers.
var neighbours = []string{"docker", "NetworkManager", "systemd-resolved"}

// livesBeside starts services beside kedge, and kedge beside them. If Docker starts on a host that does not forward packets,
// it drops by default those that it would forward then.
func livesBeside(t *testing.T, l *life) {
	for _, service := range neighbours {
		t.Run(service, func(t *testing.T) {
			l.sh(t, "systemctl start "+service)
			defer l.sh(t, "systemctl stop "+service)
			l.works(t)
			l.reachable(t)
			if service == "docker" {
				l.sh(t, "iptables -P FORWARD DROP")
			}
			l.restartKedge(t)
			l.works(t)
			l.reachable(t)
			l.sameContainers(t)
		})
	}
}
