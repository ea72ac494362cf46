package policycontrol

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/base/published"
)

// run runs a compiler over a fake API.
func run(t *testing.T, client *fake.Clientset) (*Compiler, chan struct{}, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	factory := informers.NewSharedInformerFactory(client, 0)
	objects := objectcache.New(ctx, factory, client)
	c := New(Config{
		Client: func(context.Context) *rest.Config { return &rest.Config{} },
		Informers: func(ctx context.Context) (informers.SharedInformerFactory, error) {
			return objects.View(ctx, objectcache.Options{}), nil
		},
		DNS:          []netip.Addr{netip.MustParseAddr("10.43.0.10")},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16")},
		Gateway:      true,
	})
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- c.Run(ctx, func() { close(ready) }) }()
	return c, ready, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		factory.Shutdown()
	}
}

// listed returns the kinds that were listed.
func listed(client *fake.Clientset) (kinds []string) {
	for _, action := range client.Actions() {
		if action.GetVerb() == "list" {
			kinds = append(kinds, action.GetResource().Resource)
		}
	}
	slices.Sort(kinds)
	return kinds
}

// TestCompiler has a cluster that gets its first policy, and loses its last one.
func TestCompiler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "1"}, Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{PodIP: "10.42.0.1"}},
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "far", UID: "2"}, Spec: corev1.PodSpec{NodeName: "m"}, Status: corev1.PodStatus{PodIP: "10.42.1.1"}},
		)
		c, ready, stop := run(t, client)
		var updates []netpolicy.Update
		known := &state{}
		watching := make(chan error, 1)
		go func() {
			watching <- c.Watch(t.Context(), "n", func(u netpolicy.Update) error {
				updates = append(updates, u)
				return known.apply(u)
			})
		}()
		synctest.Wait()
		<-ready
		if kinds := listed(client); !slices.Equal(kinds, []string{"networkpolicies"}) {
			t.Errorf("without policies it lists %v", kinds)
		}
		if len(updates) != 1 || !updates[0].Whole || updates[0].Active {
			t.Errorf("without policies the node is told %v", updates)
		}
		if _, err := c.explain(t.Context(), Question{Namespace: "shop", Pod: "web"}); !errors.Is(err, errNoPolicy) {
			t.Errorf("without policies: %v", err)
		}

		policies := client.NetworkingV1().NetworkPolicies("shop")
		for turn := range 2 {
			updates = nil
			if _, err := policies.Create(t.Context(), policyOf(t, "shop", "p", `{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}`), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if len(updates) != 1 || !updates[0].Whole || !known.active || len(known.pods) != 1 || known.pods["shop/web"] == nil || len(known.sets) != 1 {
				t.Errorf("turn %d: with a policy the node is told %+v", turn, updates)
			}
			for _, set := range known.sets {
				if len(set) != 2 {
					t.Errorf("turn %d: the set has %v", turn, set)
				}
			}
			// A pod without an address yet, and one that goes.
			if _, err := client.CoreV1().Pods("shop").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "new", UID: "3"}, Spec: corev1.PodSpec{NodeName: "n"}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if told := known.pods["shop/new"]; told == nil || told.Ingress == "" || told.UID != "3" {
				t.Errorf("turn %d: the node is told about a new pod: %v", turn, told)
			}
			if err := client.CoreV1().Pods("shop").Delete(t.Context(), "new", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if len(known.pods) != 1 {
				t.Errorf("turn %d: pods %v", turn, known.pods)
			}
			if err := policies.Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if known.active || len(known.pods)+len(known.sets)+len(known.groups) > 0 {
				t.Errorf("turn %d: after the last policy the node knows %+v", turn, known)
			}
			c.mu.Lock()
			if len(c.model.pods)+len(c.model.namespaces) > 0 || c.objects != nil {
				t.Errorf("turn %d: the compiler still knows pods", turn)
			}
			c.mu.Unlock()
		}
		if kinds := listed(client); !slices.Equal(kinds, []string{"namespaces", "networkpolicies", "pods"}) {
			t.Errorf("it lists %v", kinds)
		}
		stop()
		if err := <-watching; !errors.Is(err, published.ErrEnded) {
			t.Errorf("the watch ended with %v", err)
		}
	})
}

// TestWatchEnds has watches that end by their callers.
func TestWatchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, ready, stop := run(t, fake.NewClientset(policyOf(t, "shop", "p", `{podSelector: {}}`)))
		<-ready
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Watch(ctx, "n", func(netpolicy.Update) error { return nil }) }()
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		broken := errors.New("broken")
		if err := c.Watch(t.Context(), "n", func(netpolicy.Update) error { return broken }); !errors.Is(err, broken) {
			t.Error(err)
		}
		c.mu.Lock()
		if len(c.model.nodes) > 0 {
			t.Errorf("nodes that nobody watches: %v", c.model.nodes)
		}
		c.mu.Unlock()
		stop()
	})
}

// explained has pods of all kinds, and policies in the namespace shop.
func explained(t *testing.T) *fake.Clientset {
	pod := func(namespace, name, node, ip string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}}}
		p.Spec.NodeName, p.Status.PodIP = node, ip
		p.Status.HostIPs = []corev1.HostIP{{IP: map[string]string{"a": "192.0.2.1", "b": "192.0.2.2"}[node]}}
		p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}}
		if change != nil {
			change(p)
		}
		return p
	}
	return fake.NewClientset(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.42.0.0/24"}}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.42.1.0/24"}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "out"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system"}},
		pod("shop", "web", "a", "10.42.0.5", nil), pod("shop", "front", "b", "10.42.1.5", nil), pod("out", "client", "b", "10.42.1.6", nil),
		pod("shop", "both", "a", "10.42.0.7", func(p *corev1.Pod) {
			p.Status.PodIPs = []corev1.PodIP{{IP: "10.42.0.7"}, {IP: "fd00::7"}}
		}),
		pod("out", "host", "a", "192.0.2.1", func(p *corev1.Pod) { p.Spec.HostNetwork = true }),
		pod("out", "hostb", "b", "192.0.2.2", func(p *corev1.Pod) { p.Spec.HostNetwork = true }),
		pod("shop", "new", "", "", nil), pod("shop", "done", "a", "10.42.0.9", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
		policyOf(t, "shop", "web", `{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress, Egress], ingress: [{from: [{podSelector: {matchLabels: {app: db}}}]}, {from: [{podSelector: {matchLabels: {app: front}}}, {ipBlock: {cidr: 198.51.100.0/24, except: [198.51.100.8/29]}}], ports: [{port: http}, {port: 90, endPort: 99}]}], egress: [{to: [{namespaceSelector: {}, podSelector: {matchLabels: {k8s-app: kube-dns}}}], ports: [{protocol: UDP, port: dns}]}]}`),
		policyOf(t, "shop", "front", `{podSelector: {matchLabels: {app: front}}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {}}], ports: [{port: 8080}]}]}`),
		policyOf(t, "shop", "both", `{podSelector: {matchLabels: {app: both}}, ingress: [{from: [{ipBlock: {cidr: "2001:db8::/32"}}]}]}`),
	)
}

// TestExplain asks all kinds of questions.
func TestExplain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := explained(t)
		c, ready, stop := run(t, client)
		<-ready
		// As the registrations do.
		nodes, err := c.cfg.Informers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		nodes.Core().V1().Nodes().Informer()
		nodes.StartWithContext(t.Context())
		defer nodes.Shutdown()
		synctest.Wait()
		for name, test := range map[string]struct {
			q Question
			// want are the verdicts with all reasons, or words of the error or the note.
			want []string
		}{
			"allowed":                  {Question{Pod: "web", From: "front", Port: 8080, Protocol: 6}, []string{"allowed: front→web", "egress allowed by rule 1 of shop/front", "ingress allowed by rule 2 of shop/web"}},
			"refused on the way in":    {Question{Pod: "web", From: "out/client", Port: 8080, Protocol: 6}, []string{"forbidden: client→web", "egress no policy isolates", "ingress isolated by shop/web, and none"}},
			"refused on the way out":   {Question{Pod: "web", From: "front", Port: 95, Protocol: 6}, []string{"forbidden", "egress isolated by shop/front", "ingress allowed by rule 2"}},
			"on all ports":             {Question{Pod: "web", From: "10.42.1.5"}, []string{"allowed: front→web on TCP 8080;"}},
			"an address":               {Question{Pod: "web", From: "198.51.100.1"}, []string{"allowed: 198.51.100.1→web on TCP 90-99 TCP 8080;", "ingress allowed by rule 2"}},
			"an address of the except": {Question{Pod: "web", From: "198.51.100.9"}, []string{"forbidden"}},
			"its own node":             {Question{Pod: "web", From: "192.0.2.1"}, []string{"allowed", "a node reaches its own pods"}},
			"another node":             {Question{Pod: "web", From: "192.0.2.2"}, []string{"forbidden"}},
			"its own node's gateway":   {Question{Pod: "web", From: "10.42.0.1"}, []string{"allowed: 10.42.0.1 (the gateway of node a)", "a node reaches its own pods"}},
			"another node's gateway":   {Question{Pod: "web", From: "10.42.1.1"}, []string{"forbidden: 10.42.1.1 (the gateway of node b)→web"}},
			"another node's NodePorts": {Question{Pod: "web", From: "10.42.1.0"}, []string{"forbidden: 10.42.1.0→web"}},
			"a pod of its own node":    {Question{Pod: "web", From: "out/host"}, []string{"allowed", "uses the network of its node", "a node reaches its own pods"}},
			"a pod of another node":    {Question{Pod: "web", From: "out/hostb"}, []string{"forbidden"}},
			"to a pod":                 {Question{Pod: "front", To: "web", Port: 8080, Protocol: 6}, []string{"allowed: front→web"}},
			"to a node":                {Question{Pod: "web", To: "out/hostb"}, []string{"forbidden", "egress isolated by shop/web"}},
			"to DNS":                   {Question{Pod: "web", To: "10.43.0.10", Port: 53, Protocol: 17}, []string{"allowed: web→cluster DNS", "egress allowed by rule 1 of shop/web"}},
			"to DNS by TCP":            {Question{Pod: "web", To: "10.43.0.10", Port: 53, Protocol: 6}, []string{"forbidden"}},
			"itself":                   {Question{Pod: "web", To: "web"}, []string{"allowed", "inside a pod"}},
			"one family only":          {Question{Pod: "both", From: "2001:db8::1"}, []string{"allowed: 2001:db8::1→both"}},
			"the other family":         {Question{Pod: "both", From: "203.0.113.1"}, []string{"forbidden"}},
			"families that differ":     {Question{Pod: "web", From: "2001:db8::1"}, []string{"no addresses of the same family"}},
			"a Service":                {Question{Pod: "web", To: "10.43.0.99"}, []string{"address of a Service", "name one of these pods"}},
			"no such pod":              {Question{Pod: "nobody"}, []string{"there is no pod shop/nobody"}},
			"no such peer":             {Question{Pod: "web", From: "nobody"}, []string{"neither an address nor a pod"}},
			"no address yet":           {Question{Pod: "new", From: "front"}, []string{"pod shop/new has no address yet"}},
			"a peer without":           {Question{Pod: "web", From: "new"}, []string{"pod shop/new has no address yet"}},
			"ended":                    {Question{Pod: "done"}, []string{"this pod has ended"}},
			"an ended peer":            {Question{Pod: "web", From: "done"}, []string{"has ended"}},
			"of the host":              {Question{Namespace: "out", Pod: "host"}, []string{"hostNetwork"}},
		} {
			if test.q.Namespace == "" {
				test.q.Namespace = "shop"
			}
			answer, err := c.explain(t.Context(), test.q)
			got := answer.Note
			if err != nil {
				got = err.Error()
			}
			for _, v := range answer.Verdicts {
				got += map[bool]string{true: "allowed", false: "forbidden"}[v.Allowed] + ": " + v.From[strings.Index(v.From, "/")+1:] + "→" + v.To[strings.Index(v.To, "/")+1:]
				if len(v.Ports) > 0 {
					got += " on " + strings.Join(v.Ports, " ")
				}
				for _, s := range v.Steps {
					got += "; " + s.Direction + " " + s.Why
				}
			}
			for _, want := range test.want {
				if !strings.Contains(got, want) {
					t.Errorf("%s: no %q in %q", name, want, got)
				}
			}
		}
		answer, err := c.explain(t.Context(), Question{Namespace: "shop", Pod: "web"})
		if err != nil {
			t.Fatal(err)
		}
		rules := answer.Ingress.Rules
		if len(rules) != 2 || !slices.Equal(rules[1].Peers, []string{"pods with app=front in namespace shop", "198.51.100.0/24 except 198.51.100.8/29"}) ||
			!slices.Equal(rules[1].Ports, []string{"TCP 90-99", "TCP http (8080)"}) || rules[1].Number != 2 || rules[0].Ports[0] != "all" {
			t.Errorf("ingress %+v", rules)
		}
		if rules := answer.Egress.Rules; len(rules) != 1 || rules[0].Peers[0] != "pods with k8s-app=kube-dns in all namespaces" || rules[0].Ports[0] != "UDP dns (53)" {
			t.Errorf("egress %+v", rules)
		}
		stop()
	})
}
