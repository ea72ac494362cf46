package policycontrol

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
)

// parsed reads an object in YAML.
func parsed[T any](t testing.TB, text string) *T {
	t.Helper()
	object := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), object); err != nil {
		t.Fatal(err)
	}
	return object
}

// policyOf reads the spec of a policy in YAML.
func policyOf(t testing.TB, namespace, name, spec string) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       *parsed[networkingv1.NetworkPolicySpec](t, spec),
	}
}

// small is a cluster whose pods the tests below know: web (app=web, the ports http 8080
// and dns 5353/UDP), db (app=db, http 9090) in namespace shop, client (app=client) in
// namespace out, all on node n, and the cluster's DNS.
func small(t testing.TB) (*model, *state, func()) {
	m := newModel(func(string) {})
	m.setActive(true)
	for _, name := range []string{"shop", "out", "kube-system"} {
		m.setNamespace(name, map[string]string{"kubernetes.io/metadata.name": name})
	}
	m.setPod(clusterDNS([]netip.Addr{netip.MustParseAddr("10.43.0.10"), netip.MustParseAddr("fd00:43::a")}))
	for _, text := range []string{
		`{"metadata": {"namespace": "shop", "name": "web", "uid": "1", "labels": {"app": "web"}}, "spec": {"nodeName": "n", "containers": [{"ports": [{"name": "http", "containerPort": 8080}]}, {"ports": [{"name": "dns", "containerPort": 5353, "protocol": "UDP"}]}]}, "status": {"podIPs": [{"ip": "10.42.0.1"}, {"ip": "fd00::1"}]}}`,
		`{"metadata": {"namespace": "shop", "name": "db", "uid": "2", "labels": {"app": "db"}}, "spec": {"nodeName": "n", "initContainers": [{"restartPolicy": "Always", "ports": [{"name": "http", "containerPort": 9090}]}, {"ports": [{"name": "http", "containerPort": 9091}]}]}, "status": {"podIP": "10.42.0.2"}}`,
		`{"metadata": {"namespace": "out", "name": "client", "uid": "3", "labels": {"app": "client"}}, "spec": {"nodeName": "n"}, "status": {"podIP": "10.42.0.3"}}`,
		`{"metadata": {"namespace": "out", "name": "host", "uid": "4", "labels": {"app": "client"}}, "spec": {"nodeName": "n", "hostNetwork": true}, "status": {"podIP": "192.0.2.1"}}`,
		`{"metadata": {"namespace": "out", "name": "done", "uid": "5", "labels": {"app": "client"}}, "spec": {"nodeName": "n"}, "status": {"phase": "Succeeded", "podIP": "10.42.0.5"}}`,
	} {
		if p := podOf(parsed[corev1.Pod](t, text)); p != nil {
			m.setPod(p)
		}
	}
	w, known := m.watch("n"), &state{}
	return m, known, func() {
		if u, changed := m.takeUpdate("n", w); changed {
			if err := known.apply(u); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestSemantics has policies of the pod shop/web, in the namespace shop unless it is
// named. Each case lists all connections of a fixed list that are allowed.
func TestSemantics(t *testing.T) {
	connections := []string{ // peer, protocol and port
		"10.42.0.2 TCP 80", "10.42.0.2 TCP 8080", "10.42.0.2 TCP 9090", "10.42.0.2 UDP 5353", "10.42.0.2 SCTP 80", "10.42.0.2 TCP 85",
		"10.42.0.3 TCP 80", "10.42.0.3 TCP 8080", "10.43.0.10 UDP 53", "10.43.0.10 TCP 53", "fd00:43::a UDP 53", "192.0.2.1 TCP 80", "10.42.0.5 TCP 80", "203.0.113.9 TCP 80", "2001:db8::1 TCP 80",
	}
	numbers := map[string]uint8{"TCP": 6, "UDP": 17, "SCTP": 132}
	none, all := "", "all"
	for name, test := range map[string]struct {
		spec            string
		ingress, egress string
	}{
		"another pod is selected":         {`{podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress, Egress]}`, all, all},
		"no type, nothing else":           {`{podSelector: {}}`, none, all},
		"no type, but egress":             {`{podSelector: {}, egress: [{}]}`, none, all},
		"no type, but an empty egress":    {`{podSelector: {}, egress: []}`, none, all},
		"egress only":                     {`{podSelector: {}, policyTypes: [Egress]}`, all, none},
		"egress without its type":         {`{podSelector: {}, policyTypes: [Ingress], egress: []}`, none, all},
		"both":                            {`{podSelector: {}, policyTypes: [Ingress, Egress]}`, none, none},
		"an empty rule":                   {`{podSelector: {}, ingress: [{}]}`, all, all},
		"empty lists":                     {`{podSelector: {}, ingress: [{from: [], ports: []}]}`, all, all},
		"an expression":                   {`{podSelector: {matchExpressions: [{key: app, operator: In, values: [web, x]}]}}`, none, all},
		"an expression about another pod": {`{podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [web, x]}]}}`, all, all},
		"pods of the namespace":           {`{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}`, "10.42.0.2 *", all},
		"pods of all namespaces": {`{podSelector: {}, ingress: [{from: [{namespaceSelector: {}}]}]}`,
			"10.42.0.2 *, 10.42.0.3 *, 10.43.0.10 *, fd00:43::a *", all},
		"pods of one namespace": {`{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: out}}}]}]}`,
			"10.42.0.3 *", all},
		"pods in a namespace, both selectors": {`{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: out}}, podSelector: {matchLabels: {app: db}}}]}]}`,
			none, all},
		"pods or a namespace, two peers": {`{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: out}}}, {podSelector: {matchLabels: {app: db}}}]}]}`,
			"10.42.0.2 *, 10.42.0.3 *", all},
		"a block":         {`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.42.0.0/16}}]}]}`, "10.42.0.2 *, 10.42.0.3 *, 10.42.0.5 *", all},
		"a block except":  {`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.42.0.0/16, except: [10.42.0.2/31]}}]}]}`, "10.42.0.5 *", all},
		"a block of IPv6": {`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: "2001:db8::/32"}}]}]}`, "2001:db8::1 *", all},
		"IPv4 as IPv6":    {`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: "::ffff:10.42.0.2/128"}}]}]}`, "10.42.0.2 *", all},
		"an old block":    {`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 010.042.000.002/32}}]}]}`, "10.42.0.2 *", all},
		"a bad block":     {`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: all}}]}]}`, none, all},
		"a bad except":    {`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [x]}}]}]}`, none, all},
		"a bad selector":  {`{podSelector: {}, ingress: [{from: [{podSelector: {matchExpressions: [{key: app, operator: Is}]}}]}]}`, none, all},
		"an empty peer":   {`{podSelector: {}, ingress: [{from: [{}]}]}`, none, all},
		"a port":          {`{podSelector: {}, ingress: [{ports: [{port: 8080}]}]}`, "* TCP 8080", all},
		"a protocol":      {`{podSelector: {}, ingress: [{ports: [{protocol: UDP}]}]}`, "* UDP *", all},
		"SCTP":            {`{podSelector: {}, ingress: [{ports: [{protocol: SCTP, port: 80}]}]}`, "* SCTP 80", all},
		"endPort":         {`{podSelector: {}, ingress: [{ports: [{port: 80, endPort: 85}]}]}`, "* TCP 80, * TCP 85", all},
		"a bad endPort":   {`{podSelector: {}, ingress: [{ports: [{port: 80, endPort: 79}]}]}`, none, all},
		"a named port":    {`{podSelector: {}, ingress: [{ports: [{port: http}]}]}`, "* TCP 8080", all},
		"a named port UDP": {`{podSelector: {}, ingress: [{from: [{podSelector: {}}], ports: [{protocol: UDP, port: dns}]}]}`,
			"10.42.0.2 UDP 5353", all},
		"a named port that nobody has":   {`{podSelector: {}, ingress: [{ports: [{port: other}]}]}`, none, all},
		"a named port of another kind":   {`{podSelector: {}, ingress: [{ports: [{port: dns}]}]}`, none, all},
		"egress to a named port":         {`{podSelector: {}, policyTypes: [Egress], egress: [{to: [{podSelector: {}}], ports: [{port: http}]}]}`, all, "10.42.0.2 TCP 9090"},
		"egress to anybody's named port": {`{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: http}, {port: 80}]}]}`, all, "10.42.0.2 TCP 9090, * TCP 80"},
		"egress to a named port in a block": {`{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.42.0.2/32}}], ports: [{port: http}]}]}`,
			all, "10.42.0.2 TCP 9090"},
		"egress to a named port outside of a block": {`{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.42.0.3/32}}], ports: [{port: http}]}]}`, all, none},
		"the cluster's DNS": {`{podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}, podSelector: {matchLabels: {k8s-app: kube-dns}}}], ports: [{protocol: UDP, port: 53}, {port: dns-tcp}]}]}`,
			all, "10.43.0.10 UDP 53, 10.43.0.10 TCP 53, fd00:43::a UDP 53"},
	} {
		t.Run(name, func(t *testing.T) {
			m, known, follow := small(t)
			m.setPolicy(policyOf(t, "shop", "p", test.spec))
			follow()
			for d, want := range []string{test.ingress, test.egress} {
				for _, c := range connections {
					words := strings.Fields(c)
					var port uint16
					_, _ = fmt.Sscan(words[2], &port)
					got := known.allows("shop/web", direction(d), netip.MustParseAddr(words[0]), numbers[words[1]], port)
					if got != listedIn(want, words) {
						t.Errorf("%s %s is allowed: %t", direction(d), c, got)
					}
				}
			}
			if len(known.pods) != 3 {
				t.Errorf("the node is told about the pods %v", known.pods)
			}
			m.deletePolicy("shop/p")
			follow()
			if len(known.groups)+len(known.sets) > 0 {
				t.Errorf("after the policy: %v", known)
			}
		})
	}
}

// listedIn tells whether a connection is in a list, whose entries may have * for any
// word, or for all that follow.
func listedIn(list string, connection []string) bool {
	return list == "all" || list != "" && slices.ContainsFunc(strings.Split(list, ", "), func(entry string) bool {
		for i, word := range strings.Fields(entry) {
			if word != "*" && word != connection[i] {
				return false
			}
		}
		return true
	})
}

// TestSharing wants that sets and groups are shared, and that names depend on content
// alone.
func TestSharing(t *testing.T) {
	names := map[string]bool{}
	for _, reverse := range []bool{false, true} {
		m, known, follow := small(t)
		policies := []*networkingv1.NetworkPolicy{
			policyOf(t, "shop", "a", `{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: db}}}]}]}`),
			policyOf(t, "shop", "b", `{podSelector: {}, ingress: [{from: [{podSelector: {matchExpressions: [{key: app, operator: In, values: [db]}]}}, {podSelector: {matchLabels: {app: db}}}], ports: [{port: 1}, {port: 2}]}]}`),
		}
		if reverse {
			slices.Reverse(policies)
		}
		for _, p := range policies {
			m.setPolicy(p)
		}
		follow()
		if len(known.groups) != 1 || known.pods["shop/web"].Ingress != known.pods["shop/db"].Ingress || known.pods["out/client"].Ingress != "" {
			t.Errorf("groups: %v, pods %v", known.groups, known.pods)
		}
		text, err := json.Marshal(known.groups)
		if err != nil {
			t.Fatal(err)
		}
		names[string(text)] = true
		for _, g := range known.groups {
			if want := []netpolicy.Ports{{Protocol: 6, First: 1, Last: 2}}; !slices.Equal(g.Rules[1].Ports, want) {
				t.Errorf("ports are %v", g.Rules[1].Ports)
			}
		}
	}
	if len(names) != 1 {
		t.Errorf("the order of policies makes a difference: %v", names)
	}
}

// TestUID has pods whose mirror annotation is a UID, and anything.
func TestUID(t *testing.T) {
	for mirror, want := range map[string]string{"": "real", "0123abcd": "0123abcd", "a\n}": "real", strings.Repeat("a", 500): "real"} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "real", Annotations: map[string]string{mirrorAnnotation: mirror}}}
		if got := podOf(p).uid; got != want {
			t.Errorf("%q: got %q", mirror, got)
		}
	}
}

// TestMany has a policy that would need millions of sets.
func TestMany(t *testing.T) {
	m, known, follow := small(t)
	p := policyOf(t, "shop", "p", `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{podSelector: {}}]}]}`)
	rule := &p.Spec.Egress[0]
	for i := range 2000 {
		name := intstr.FromString(fmt.Sprint("p", i))
		rule.Ports = append(rule.Ports, networkingv1.NetworkPolicyPort{Port: &name})
		rule.To = append(rule.To, networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"n": fmt.Sprint(i)}}})
	}
	if now := m.setPolicy(p); now.tooLarge == "" || len(now.uses) > 0 {
		t.Errorf("it is not too large, and %d selectors are used", len(now.uses))
	}
	follow()
	for name, g := range known.groups {
		if len(g.Policies) != 1 || len(g.Rules) > 0 {
			t.Errorf("group %s is %v", name, g)
		}
	}
	if len(known.groups) != 1 || len(known.sets) > 0 {
		t.Errorf("the node knows %v, %v", known.groups, known.sets)
	}
	m.deletePolicy("shop/p")
	follow()
	if len(m.selectors)+len(known.groups) > 0 {
		t.Errorf("left are %d selectors, %v", len(m.selectors), known.groups)
	}
}

// TestSize has policies that are as large as possible, and larger ones.
func TestSize(t *testing.T) {
	peers := func(n int) (all []networkingv1.NetworkPolicyPeer) {
		for i := range n {
			all = append(all, networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"n": fmt.Sprint(i)}}})
		}
		return all
	}
	blocks := func(n, except int) (all []networkingv1.NetworkPolicyPeer) {
		for i := range n {
			block := &networkingv1.IPBlock{CIDR: fmt.Sprintf("10.%d.%d.0/24", i>>8, i&255)}
			for j := range except {
				block.Except = append(block.Except, fmt.Sprintf("10.%d.%d.%d/32", i>>8, i&255, j))
			}
			all = append(all, networkingv1.NetworkPolicyPeer{IPBlock: block})
		}
		return all
	}
	ports := func(n int) (all []networkingv1.NetworkPolicyPort) {
		for i := range n {
			port := intstr.FromInt(1 + 2*i)
			all = append(all, networkingv1.NetworkPolicyPort{Port: &port})
		}
		return all
	}
	for name, test := range map[string]struct {
		peers []networkingv1.NetworkPolicyPeer
		ports []networkingv1.NetworkPolicyPort
		large bool
	}{
		"many selectors":     {peers(maxSelectors), ports(maxPairs / maxSelectors), false},
		"too many selectors": {peers(maxSelectors + 1), nil, true},
		"many blocks":        {blocks(maxPairs, 0), nil, false},
		"too many blocks":    {blocks(maxPairs/2, 0), ports(3), true},
		"many exceptions":    {blocks(maxPairs/100, 99), nil, false},
		"too many of them":   {blocks(maxPairs/100, 100), nil, true},
		"too many ports":     {nil, ports(maxPairs + 1), true},
	} {
		m, known, follow := small(t)
		p := policyOf(t, "shop", "p", `{podSelector: {}}`)
		p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: test.peers, Ports: test.ports}}
		now := m.setPolicy(p)
		follow()
		if large := now.tooLarge != ""; large != test.large || large && len(now.uses)+len(m.selectors) > 0 {
			t.Errorf("%s: it is too large: %q, and has %d selectors", name, now.tooLarge, len(m.selectors))
		}
		for _, g := range known.groups {
			if (len(g.Rules) == 0) != test.large {
				t.Errorf("%s: the group has %d rules", name, len(g.Rules))
			}
		}
	}

	// Two policies that are too large only together.
	m, known, follow := small(t)
	for _, name := range []string{"a", "b"} {
		p := policyOf(t, "shop", name, `{podSelector: {matchLabels: {app: web}}}`)
		p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: blocks(maxPairs/2+1, 0)}}
		if now := m.setPolicy(p); now.tooLarge != "" {
			t.Errorf("it is too large: %s", now.tooLarge)
		}
		follow()
		for _, g := range known.groups {
			if want := map[string]int{"a": 1, "b": 0}[name]; len(g.Rules) != want {
				t.Errorf("with policy %s the group has %d rules, want %d", name, len(g.Rules), want)
			}
		}
		// What `kedge netpol explain` says agrees.
		side := m.side(m.pods["shop/web"], ingress)
		step := m.step(m.pods["shop/web"], ingress, netip.MustParseAddr("192.0.2.1"), 6, 80)
		words := strings.Join(side.TooLarge, "")
		if fits := name == "a"; (len(side.Rules) > 0) != fits || (words == "") != fits || !strings.Contains(step.Why, words) {
			t.Errorf("with policy %s: %d rules, %q, %s", name, len(side.Rules), words, step.Why)
		}
	}
	m.deletePolicy("shop/a")
	follow()
	for _, g := range known.groups {
		if len(g.Rules) != 1 {
			t.Errorf("with one policy again, the group has %d rules", len(g.Rules))
		}
	}
}

// TestReset has a watcher that takes nothing while very much changes.
func TestReset(t *testing.T) {
	m, known, follow := small(t)
	m.setPolicy(policyOf(t, "shop", "p", `{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}`))
	follow()
	slow := m.watch("n")
	if _, changed := m.takeUpdate("n", slow); !changed {
		t.Fatal("no first update")
	}
	for i := range maxPending {
		p := podOf(parsed[corev1.Pod](t, `{"metadata": {"namespace": "shop", "name": "db", "uid": "2"}}`))
		p.addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}
		m.setPod(p)
		if size := len(slow.pending.sets) + slow.pending.size; size > 2*maxPending {
			t.Fatalf("%d changes are pending", size)
		}
	}
	u, changed := m.takeUpdate("n", slow)
	if !changed || !u.Whole {
		t.Errorf("the slow watcher gets %v, %t", u, changed)
	}
	var whole state
	if err := whole.apply(u); err != nil {
		t.Fatal(err)
	}
	follow()
	same(t, known, &whole)
}
