package policy

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
)

func TestMetrics(t *testing.T) {
	w := newWorld(t)
	registry := prometheus.NewPedanticRegistry()
	must(t, registry.Register(newCollector(w.policy)))
	gather := func() string {
		t.Helper()
		families, err := registry.Gather()
		must(t, err)
		var text strings.Builder
		for _, family := range families {
			_, err := expfmt.MetricFamilyToText(&text, family)
			must(t, err)
		}
		return text.String()
	}
	if text := gather(); text != "" {
		t.Errorf("without policies there is\n%s", text)
	}
	group := &netpolicy.Group{Policies: []string{"ns/a", "ns/b"}}
	port := &netpolicy.Group{Policies: group.Policies, Rules: []netpolicy.Rule{{Anybody: true, Ports: []netpolicy.Ports{tcp(1, 1)}}}}
	w.start(netpolicy.Update{
		Groups: map[string]*netpolicy.Group{"G": group, "H": port, "I": {Policies: []string{"ns/c"}}},
		Pods: map[string]*netpolicy.Pod{
			"ns/pod1": w.one.pod("G", "I"), "ns/pod2": w.two.pod("H", ""), "ns/pod3": w.three.pod("", ""), "ns/pod4": w.four.pod("", ""),
		},
	})
	for _, to := range []*party{w.one, w.two} {
		for _, address := range []string{to.at(80).String(), to.at6(80).String()} {
			w.three.do(func() { send(t, address) })
		}
	}
	w.one.do(func() { send(t, w.outside.at(80).String()) })
	const name = "kedge_network_policy_dropped_packets_total"
	text := gather()
	for _, want := range []string{`{direction="ingress",policies="ns/a,ns/b"} 4`, `{direction="egress",policies="ns/c"} 1`} {
		if !strings.Contains(text, name+want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}
