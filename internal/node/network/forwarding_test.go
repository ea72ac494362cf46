package network

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// TestLetPodsThrough has firewalls that drop forwarded packets by default, as Docker makes them, and removes what kedge
// has added. It warns of the chain of somebody else.
func TestLetPodsThrough(t *testing.T) {
	host(t)
	testutil.Command(t, "mkdir -p /run/kedge")
	defer testutil.Command(t, "nft flush ruleset")
	logger, logged := logrustest.NewNullLogger()
	n := New(Config{Cluster: config.Cluster{ClusterCIDR: []string{"10.42.0.0/16", "fd42::/48"}}})
	n.log = logrus.NewEntry(logger)

	n.letPodsThrough(t.Context())
	if tables := testutil.Command(t, "nft list tables"); tables != "" {
		t.Errorf("without a firewall there are tables:\n%s", tables)
	}
	for _, program := range []string{"iptables", "ip6tables"} {
		testutil.Command(t, program+" -P FORWARD DROP")
		testutil.Command(t, program+" -A FORWARD -p udp -j DROP")
	}
	if err := acceptPods(t.Context(), "ip6tables", n.cfg.Cluster.PodCIDRs()[:1]); err != nil {
		t.Fatal(err)
	}
	if rules := testutil.Command(t, "ip6tables -S"); strings.Contains(rules, "KEDGE") {
		t.Errorf("without IPv6 there are rules:\n%s", rules)
	}
	for range 2 { // at each start
		n.letPodsThrough(t.Context())
	}
	for command, cidr := range map[string]string{"iptables -S": "10.42.0.0/16", "ip6tables -S": "fd42::/48"} {
		rules := testutil.Command(t, command)
		want := []string{
			"-P INPUT ACCEPT", "-P FORWARD DROP", "-P OUTPUT ACCEPT", "-N KEDGE-PODS", "-A FORWARD -p udp -j DROP", "-A FORWARD -j KEDGE-PODS",
			"-A KEDGE-PODS -s " + cidr + " -j ACCEPT", "-A KEDGE-PODS -d " + cidr + " -j ACCEPT",
		}
		if got := strings.Split(strings.TrimSpace(rules), "\n"); !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", rules, strings.Join(want, "\n"))
		}
	}
	if len(logged.AllEntries()) != 0 {
		t.Errorf("it warns: %s", logged.LastEntry().Message)
	}

	for range 2 {
		if err := removeIPTables(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if rules := testutil.Command(t, "nft list ruleset"); strings.Contains(rules, "KEDGE") || strings.Contains(rules, "mangle") {
		t.Errorf("after the clean-up there are rules:\n%s", rules)
	}
	if _, err := os.Stat(podsFile); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", podsFile, err)
	}

	testutil.Command(t, "nft add table inet mine")
	testutil.Command(t, "nft add chain inet mine own { type filter hook forward priority 0; policy drop; }")
	testutil.Command(t, "nft add rule ip filter FORWARD meta l4proto { tcp, udp } drop")
	n.letPodsThrough(t.Context())
	if warning := logged.LastEntry(); warning == nil || len(logged.AllEntries()) != 1 ||
		!strings.Contains(warning.Message, "chain inet mine own accept packets from and to [10.42.0.0/16 fd42::/48]") {
		t.Errorf("it warns: %+v", logged.AllEntries())
	}
	if rules := testutil.Command(t, "nft list chain ip filter FORWARD"); !strings.Contains(rules, "jump KEDGE-PODS") {
		t.Errorf("beside a rule that iptables does not know, got\n%s", rules)
	}
}

func TestDroppingChains(t *testing.T) {
	listing := `{"nftables": [{"metainfo": {"version": "1.0.6"}},
		{"chain": {"family": "ip", "table": "filter", "name": "FORWARD", "type": "filter", "hook": "forward", "prio": 0, "policy": "drop"}},
		{"chain": {"family": "ip", "table": "filter", "name": "INPUT", "type": "filter", "hook": "input", "prio": 0, "policy": "drop"}},
		{"chain": {"family": "inet", "table": "mine", "name": "fwd", "type": "filter", "hook": "forward", "prio": 0, "policy": "accept"}}]}`
	if got := droppingChains([]byte(listing)); !slices.Equal(got, []string{"ip filter FORWARD"}) {
		t.Errorf("got %q", got)
	}
	if got := droppingChains([]byte("no JSON")); got != nil {
		t.Errorf("got %q", got)
	}
}
