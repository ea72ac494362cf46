package cli

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/controlplane/policycontrol"
)

func TestParsePort(t *testing.T) {
	for text, want := range map[string]struct {
		port     uint16
		protocol uint8
	}{"80": {80, 6}, "53/UDP": {53, 17}, "9/sctp": {9, 132}, "65535/TCP": {65535, 6}} {
		if port, protocol, err := parsePort(text); err != nil || port != want.port || protocol != want.protocol {
			t.Errorf("%s: got %d, %d, %v", text, port, protocol, err)
		}
	}
	for _, text := range []string{"0", "65536", "http", "80/ICMP", "-1", "/UDP"} {
		if _, _, err := parsePort(text); err == nil || !strings.Contains(err.Error(), "takes a number from 1 to 65535") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestPrintExplanation(t *testing.T) {
	address := []netip.Addr{netip.MustParseAddr("10.42.0.5")}
	for name, test := range map[string]struct {
		answer policycontrol.Explanation
		want   string
	}{
		"no peer": {policycontrol.Explanation{Pod: "shop/web", Node: "pi", Addresses: address,
			Ingress: &policycontrol.Side{Policies: []string{"shop/a"}, Rules: []policycontrol.Rule{
				{RuleName: policycontrol.RuleName{Policy: "shop/a", Number: 1}, Peers: []string{"pods with app=x in namespace shop", "10.0.0.0/8"}, Ports: []string{"TCP 80"}},
				{RuleName: policycontrol.RuleName{Policy: "shop/a", Number: 2}, Ports: []string{"all"}},
			}},
			Egress: &policycontrol.Side{},
		}, `pod shop/web: on node pi, 10.42.0.5

WHO MAY TALK TO IT
only what is listed: the pod is isolated by shop/a
POLICY        RULE   PEERS                                           PORTS
shop/a        1      pods with app=x in namespace shop; 10.0.0.0/8   TCP 80
shop/a        2      none                                            all
(every pod)          its own node                                    all

TO WHOM IT MAY TALK
everybody: no policy isolates the pod in this direction
`},
		"a note": {policycontrol.Explanation{Pod: "shop/web", Node: "pi", Note: "this pod has ended"}, "pod shop/web: on node pi\nthis pod has ended\n"},
		"verdicts": {policycontrol.Explanation{Pod: "shop/web", Verdicts: []policycontrol.Verdict{
			{From: "10.0.0.1", To: "shop/web", Allowed: true, Ports: []string{"TCP 80"}, Steps: []policycontrol.Step{{Pod: "shop/web", Direction: "ingress", Allowed: true, Why: "allowed by rule 1 of shop/a"}}},
			{From: "shop/web", To: "10.0.0.1", Steps: []policycontrol.Step{{Pod: "shop/web", Direction: "egress", Why: "isolated by shop/a, and none of the rules allows this"}}},
			{From: "shop/web", To: "shop/db", Steps: []policycontrol.Step{{Pod: "shop/web", Direction: "egress", Allowed: true, Why: "a"}, {Pod: "shop/db", Direction: "ingress", Allowed: true, Why: "b"}}},
		}}, `pod shop/web: no address yet

ALLOWED on TCP 80 only: from 10.0.0.1 to shop/web
POD        DIRECTION   ALLOWED   WHY
shop/web   ingress     yes       allowed by rule 1 of shop/a

FORBIDDEN: from shop/web to 10.0.0.1
POD        DIRECTION   ALLOWED   WHY
shop/web   egress      no        isolated by shop/a, and none of the rules allows this

FORBIDDEN: from shop/web to shop/db
POD        DIRECTION   ALLOWED   WHY
shop/web   egress      yes       a
shop/db    ingress     yes       b
no port is allowed on both sides
`},
	} {
		var got bytes.Buffer
		if err := printExplanation(&got, test.answer); err != nil || got.String() != test.want {
			t.Errorf("%s: %v, got\n%s\nwant\n%s", name, err, got.String(), test.want)
		}
	}
}
