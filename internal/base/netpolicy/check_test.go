package netpolicy

import (
	"net/netip"
	"strings"
	"testing"
)

// good returns an update that a server may send.
func good() *Update {
	address, block := netip.MustParseAddr("10.42.0.1"), netip.MustParsePrefix("10.0.0.0/8")
	return &Update{
		Whole: true, Active: true,
		Sets:   map[string]*Change{"s1": {Add: []netip.Addr{address, netip.MustParseAddr("fd00::1")}}},
		Groups: map[string]*Group{"g1": {Policies: []string{"ns/a.b"}, Rules: []Rule{{Policy: "ns/a.b", Sets: []string{"s1"}, Blocks: []Block{{CIDR: block}}, Ports: []Ports{{6, 1, 65535}}}, {Policy: "ns/a.b", Anybody: true}}}},
		Pods:   map[string]*Pod{"ns/web-0": {UID: "0123-ab", Ingress: "g1"}},
	}
}

// TestCheck changes a good update into all kinds of bad ones.
func TestCheck(t *testing.T) {
	if err := good().Check(); err != nil {
		t.Fatal(err)
	}
	rule := func(u *Update) *Rule { return &u.Groups["g1"].Rules[0] }
	for name, spoil := range map[string]func(*Update){
		"a set with a bad name":      func(u *Update) { u.Sets["s }"] = nil },
		"a set with a long name":     func(u *Update) { u.Sets[strings.Repeat("s", 33)] = nil },
		"no address":                 func(u *Update) { u.Sets["s1"].Add[0] = netip.Addr{} },
		"an address with a zone":     func(u *Update) { u.Sets["s1"].Remove = []netip.Addr{netip.MustParseAddr("fe80::1%eth0")} },
		"IPv4 as IPv6":               func(u *Update) { u.Sets["s1"].Add[0] = netip.MustParseAddr("::ffff:10.0.0.1") },
		"a group with a bad name":    func(u *Update) { u.Groups["1g"] = nil },
		"a policy with a bad name":   func(u *Update) { u.Groups["g1"].Policies[0] = "ns/a\nb" },
		"a rule of a bad policy":     func(u *Update) { rule(u).Policy = "a" },
		"all peers and some":         func(u *Update) { rule(u).Anybody = true },
		"an unknown set":             func(u *Update) { rule(u).Sets[0] = "s2" },
		"a block that is not masked": func(u *Update) { rule(u).Blocks[0].CIDR = netip.MustParsePrefix("10.0.0.1/8") },
		"no block":                   func(u *Update) { rule(u).Blocks[0].Except = []netip.Prefix{{}} },
		"port 0":                     func(u *Update) { rule(u).Ports[0].First = 0 },
		"ports the wrong way round":  func(u *Update) { rule(u).Ports[0] = Ports{6, 2, 1} },
		"another protocol":           func(u *Update) { rule(u).Ports[0].Protocol = 1 },
		"a pod with a bad name":      func(u *Update) { u.Pods["ns/../x"] = nil },
		"a pod without a UID":        func(u *Update) { u.Pods["ns/web-0"].UID = "" },
		"a pod in an unknown group":  func(u *Update) { u.Pods["ns/web-0"].Egress = "g2" },
	} {
		u := good()
		spoil(u)
		if err := u.Check(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	// Later updates may name what earlier ones had.
	u := good()
	u.Whole, u.Sets, u.Pods["ns/web-0"].Egress = false, nil, "g2"
	if err := u.Check(); err != nil {
		t.Error(err)
	}
}
