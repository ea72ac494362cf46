package why

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kedge-dev/kedge/internal/node/reach"
)

func nodeThatIs(name string, status corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}}}
}

// attempt is one to an address. Its error is that of its end.
func attempt(address string, end reach.End) reach.Attempt {
	a := reach.Attempt{Address: netip.MustParseAddrPort(address), End: end, Took: time.Millisecond}
	switch end {
	case reach.Silent:
		a.Took, a.Error = 3*time.Second, "i/o timeout"
	case reach.Other:
		a.Error = "no route to host"
	}
	return a
}

// checkSteps compares steps with the beginnings of sentences.
func checkSteps(t *testing.T, name string, report *Report, err error, want []string) {
	t.Helper()
	var got []string
	if err != nil {
		got = append(got, "error "+err.Error())
	}
	for _, step := range report.Steps {
		got = append(got, string(step.State)+" "+step.Says)
		if step.State == Failed && (step.Do == "" || step.Rule == "") {
			t.Errorf("%s: %+v", name, step)
		}
	}
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestTryService(t *testing.T) {
	ends := reach.Answer{Targets: []reach.Target{
		{Attempt: attempt("10.43.0.7:80", reach.Connected), Rules: reach.Rules{State: reach.Unknown}},
		{Attempt: attempt("10.43.0.7:81", reach.Refused), Rules: reach.Rules{State: reach.Unknown}},
		{Attempt: attempt("10.43.0.7:82", reach.Silent), Rules: reach.Rules{State: reach.Unknown}},
		{Attempt: attempt("10.43.0.7:83", reach.Other), Rules: reach.Rules{State: reach.Unknown}},
	}}
	for name, test := range map[string]struct {
		nodes  []runtime.Object
		node   string
		answer reach.Answer
		fault  error
		want   []string
	}{
		"no endpoints": {nil, "edge", reach.Answer{Targets: []reach.Target{{Attempt: attempt("10.43.0.7:80", reach.Refused), Rules: reach.Rules{State: reach.Refuses}}}}, nil, []string{
			"passed node edge refuses connections to 10.43.0.7:80, because the Service has no endpoints", "failed node edge is refused at 10.43.0.7:80"}},
		"all ends": {[]runtime.Object{nodeThatIs("away", corev1.ConditionFalse), nodeThatIs("edge", corev1.ConditionTrue)}, "", ends, nil, []string{
			"passed node edge connects to 10.43.0.7:80 in 1ms", "failed node edge is refused at 10.43.0.7:81: no process listens",
			"failed node edge gets no answer from 10.43.0.7:82 within 3s", "failed node edge cannot connect to 10.43.0.7:83: no route to host",
		}},
		"a chosen node": {nil, "other", reach.Answer{Targets: ends.Targets[:1]}, nil, []string{"passed node other connects"}},
		"no address":    {nil, "other", reach.Answer{}, nil, []string{"warning there is nothing to try: the Service has no address of its own"}},
		"no node":       {[]runtime.Object{nodeThatIs("away", corev1.ConditionFalse)}, "", reach.Answer{}, nil, []string{"error no node is ready"}},
		"forbidden":     {nil, "other", reach.Answer{}, errors.New("not you"), []string{"error not you"}},
	} {
		report := &Report{Object: Object{"Service", "shop", "web"}}
		var asked reach.Question
		err := Try(t.Context(), Clients{Kubernetes: fake.NewClientset(test.nodes...), Now: time.Now}, report, Trial{Node: test.node, Ask: func(_ context.Context, _ string, q reach.Question) (reach.Answer, error) {
			asked = q
			return test.answer, test.fault
		}})
		if err == nil && asked != (reach.Question{Namespace: "shop", Service: "web"}) {
			t.Errorf("%s: asked %+v", name, asked)
		}
		checkSteps(t, name, report, err, test.want)
	}
	for object, want := range map[Object]string{{"Deployment", "shop", "web"}: "only pods, Services and Ingresses", {"Pod", "shop", "web"}: "give --to, such as --to=db:5432"} {
		if err := Try(t.Context(), Clients{}, &Report{Object: object}, Trial{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", object, err, want)
		}
	}
}

// shop is a cluster with the pod shop/web, and the Service data/db with the pods db-0 and db-1. A Service data/cache has no pod.
func shop(policies ...*networkingv1.NetworkPolicy) *fake.Clientset {
	pod := func(namespace, name, ip string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": strings.TrimRight(name, "-01")}},
			Spec:       corev1.PodSpec{NodeName: "edge", Containers: []corev1.Container{{Name: "app", Ports: []corev1.ContainerPort{{ContainerPort: 5432}}}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionTrue},
			}},
		}
	}
	service := func(name, ip string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "data", Name: name}, Spec: corev1.ServiceSpec{
			ClusterIP: ip, ClusterIPs: []string{ip}, Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Name: "sql", Port: 5432}, {Name: "gossip", Port: 7946, Protocol: corev1.ProtocolUDP}},
		}}
	}
	ready := true
	client := fake.NewClientset(pod("shop", "web", "10.42.0.9"), pod("data", "db-0", "10.42.0.5"), pod("data", "db-1", "10.42.1.7"), service("db", "10.43.7.7"), service("cache", "10.43.7.8"),
		&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "data", Name: "db-1", Labels: map[string]string{discoveryv1.LabelServiceName: "db"}}, Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.42.0.5"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}, {Addresses: []string{"10.42.1.7"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}},
		}})
	for _, p := range policies {
		_ = client.Tracker().Add(p)
	}
	return client
}

// known is the answer of the DNS for the Service data/db.
func knownName() *reach.Name {
	return &reach.Name{Servers: []string{"10.43.0.10"}, Addresses: []netip.Addr{netip.MustParseAddr("10.43.7.7")}, Asked: []reach.Asked{
		{Name: "db.data.shop.svc.cluster.local.", Server: "10.43.0.10", Error: reach.NoSuchName}, {Name: "db.data.svc.cluster.local.", Server: "10.43.0.10"},
	}}
}

// askedName is the answer of the DNS for a name without addresses.
func askedName(faults ...string) *reach.Name {
	name := &reach.Name{Servers: []string{"10.43.0.10", "10.43.0.11"}}
	for _, fault := range faults {
		name.Asked = append(name.Asked, reach.Asked{Name: "db.shop.svc.cluster.local.", Server: "10.43.0.10", Error: fault})
	}
	return name
}

var (
	toDB = reach.Rules{State: reach.Sends, Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.42.0.5:5432"), netip.MustParseAddrPort("10.42.1.7:5432")}}
	both = []reach.Attempt{attempt("10.42.0.5:5432", reach.Connected), attempt("10.42.1.7:5432", reach.Connected)}
	half = []reach.Attempt{attempt("10.42.0.5:5432", reach.Connected), attempt("10.42.1.7:5432", reach.Silent)}
	none = []reach.Attempt{attempt("10.42.0.5:5432", reach.Silent), attempt("10.42.1.7:5432", reach.Silent)}
)

// policy isolates the pods with a label app.
func policyOf(namespace, app string, direction networkingv1.PolicyType) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "closed"}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, PolicyTypes: []networkingv1.PolicyType{direction},
	}}
}

func TestTryFromPod(t *testing.T) {
	one := func(a reach.Attempt, rules reach.Rules, endpoints []reach.Attempt) []reach.Target {
		return []reach.Target{{Attempt: a, Rules: rules, Endpoints: endpoints}}
	}
	const (
		named   = "passed name server 10.43.0.10 knows db.data.svc.cluster.local: 10.43.7.7"
		service = "passed it is Service data/db with 2 endpoints"
		rules   = "passed node edge sends connections to 10.43.7.7:5432 to 10.42.0.5:5432, 10.42.1.7:5432"
	)
	for name, test := range map[string]struct {
		to       string
		answer   reach.Answer
		policies []*networkingv1.NetworkPolicy
		want     []string
		do       string
	}{
		"it works": {"db.data:5432", reach.Answer{Name: knownName(), Targets: one(attempt("10.43.7.7:5432", reach.Connected), toDB, both)}, nil,
			[]string{named, service, rules, "passed pod web connects to 10.43.7.7:5432 in 1ms"}, ""},
		"only a name": {"db.data", reach.Answer{Name: knownName()}, nil, []string{named}, ""},
		"one endpoint is away": {"db.data:5432", reach.Answer{Name: knownName(), Targets: one(attempt("10.43.7.7:5432", reach.Connected), toDB, half)}, nil,
			[]string{named, service, rules, "warning pod web connects to 10.43.7.7:5432 in 1ms. Not all endpoints answer: 10.42.1.7:5432 (silent)"}, "see why the pods of these endpoints"},
		"wrong port": {"db.data:5433", reach.Answer{Name: knownName(), Targets: one(attempt("10.43.7.7:5433", reach.Silent), reach.Rules{State: reach.None}, nil)}, nil,
			[]string{named, "failed Service data/db has no TCP port 5433. It has sql (5432)"}, "connect to a port of the Service"},
		"a Service without pods": {"cache.data:5432", reach.Answer{Targets: one(attempt("10.43.7.8:5432", reach.Refused), reach.Rules{State: reach.Refuses}, nil)}, nil,
			[]string{"failed it is Service data/cache, which does not work: the Service selects pods with app=cache"}, "give the selector of the Service and the pods the same labels"},
		"rules are missing": {"db.data:5432", reach.Answer{Targets: one(attempt("10.43.7.7:5432", reach.Refused), reach.Rules{State: reach.Refuses}, nil)}, nil,
			[]string{service, "failed node edge has no rules that lead from 10.43.7.7:5432 to an endpoint", "failed pod web is refused"}, "see the log of kedge on node edge"},
		"only the Service is refused": {"db.data:5432", reach.Answer{Targets: one(attempt("10.43.7.7:5432", reach.Silent), toDB, both)}, nil,
			[]string{service, rules, "failed pod web gets no answer from 10.43.7.7:5432 within 3s. The endpoints themselves answer: 10.42.0.5:5432, 10.42.1.7:5432"}, "a NetworkPolicy or a firewall"},
		"policy of the client": {"db.data:5432", reach.Answer{Targets: one(attempt("10.43.7.7:5432", reach.Silent), toDB, none)}, []*networkingv1.NetworkPolicy{policyOf("shop", "web", networkingv1.PolicyTypeEgress), policyOf("data", "db", networkingv1.PolicyTypeEgress)},
			[]string{service, rules, "failed pod web gets no answer from 10.43.7.7:5432 within 3s, and NetworkPolicies isolate it: shop/closed (Egress of pod web)"}, "see on a server whether they allow the connection: kedge netpol explain shop/web --to data/db-0 --port 5432"},
		"policy of the Service": {"db.data:5432", reach.Answer{Targets: one(attempt("10.43.7.7:5432", reach.Silent), toDB, none)}, []*networkingv1.NetworkPolicy{policyOf("data", "db", networkingv1.PolicyTypeIngress)},
			[]string{service, rules, "failed pod web gets no answer from 10.43.7.7:5432 within 3s, and NetworkPolicies isolate it: data/closed (Ingress of pod db-0), data/closed (Ingress of pod db-1)"}, "see on a server"},
		"another host": {"192.0.2.7:443", reach.Answer{Targets: one(attempt("192.0.2.7:443", reach.Refused), reach.Rules{State: reach.None}, nil)}, nil,
			[]string{"failed pod web is refused at 192.0.2.7:443: no process listens there"}, "see on which port"},
		"namespace is missing": {"db:5432", reach.Answer{Name: askedName(reach.NoSuchName, reach.NoSuchName)}, nil,
			[]string{"failed name server 10.43.0.10 does not know db: it was asked for db.shop.svc.cluster.local"}, "namespace data has a Service db: connect to db.data"},
		"nobody": {"nobody", reach.Answer{Name: askedName(reach.NoSuchName)}, nil,
			[]string{"failed name server 10.43.0.10 does not know nobody"}, "correct the name. The name of a Service in another namespace ends with the namespace, such as nobody.NAMESPACE"},
		"nobody, and no name servers outside": {"nobody", reach.Answer{Name: askedName(reach.NoSuchName, "SERVFAIL")}, nil,
			[]string{"failed name server 10.43.0.10 does not know nobody"}, "correct the name"},
		"outside, and no name servers there": {"example.com", reach.Answer{Name: askedName(reach.NoSuchName, "SERVFAIL")}, nil,
			[]string{"failed name server 10.43.0.10 cannot answer for db.shop.svc.cluster.local: SERVFAIL"}, "if the name is one of the cluster"},
		"headless": {"db", reach.Answer{Name: askedName(reach.NoSuchName, reach.NoAddress)}, nil,
			[]string{"failed the name db.shop.svc.cluster.local exists, and has no address"}, "if it is a Service without an address"},
		"no server": {"db", reach.Answer{Name: &reach.Name{}}, nil, []string{"failed pod web has no name server"}, "correct dnsPolicy"},
		"silent":    {"db", reach.Answer{Name: askedName(reach.Unanswered)}, nil, []string{"failed pod web gets no answer from its name servers: 10.43.0.10, 10.43.0.11"}, "see whether kedge runs on node edge"},
		"policy about names": {"db", reach.Answer{Name: askedName(reach.Unanswered)}, []*networkingv1.NetworkPolicy{policyOf("shop", "web", networkingv1.PolicyTypeEgress)},
			[]string{"failed pod web gets no answer from its name servers: 10.43.0.10, 10.43.0.11, and NetworkPolicies isolate it: shop/closed"}, "allow the pod to ask for names, at port 53"},
		"broken": {"db", reach.Answer{Name: askedName("SERVFAIL")}, nil, []string{"failed name server 10.43.0.10 cannot answer for db.shop.svc.cluster.local: SERVFAIL"}, "if the name is one of the cluster"},
	} {
		to, ok := ParseTarget(test.to)
		if !ok {
			t.Fatal(test.to)
		}
		report := &Report{Object: Object{"Pod", "shop", "web"}}
		var asked reach.Question
		err := Try(t.Context(), Clients{Kubernetes: shop(test.policies...), Now: time.Now}, report, Trial{To: to, Ask: func(_ context.Context, node string, q reach.Question) (reach.Answer, error) {
			asked = q
			if node != "edge" {
				t.Errorf("%s: asked node %s", name, node)
			}
			return test.answer, nil
		}})
		checkSteps(t, name, report, err, test.want)
		if asked != (reach.Question{Namespace: "shop", Pod: "web", Host: to.Host, Port: to.Port}) {
			t.Errorf("%s: asked %+v", name, asked)
		}
		i := slices.IndexFunc(report.Steps, func(s Step) bool { return s.Do != "" })
		if (i < 0) != (test.do == "") || i >= 0 && !strings.HasPrefix(report.Steps[i].Do, test.do) {
			t.Errorf("%s: %+v, want to do: %s", name, report.Steps, test.do)
		}
	}
}

// TestTryFromPodAsUser makes sure that what the user may not read is named, and that nothing is made up in its place.
func TestTryFromPodAsUser(t *testing.T) {
	client := shop()
	client.PrependReactor("list", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: a.GetResource().Resource}, "", errors.New("not you"))
	})
	report := &Report{Object: Object{"Pod", "shop", "web"}}
	err := Try(t.Context(), Clients{Kubernetes: client, Now: time.Now}, report, Trial{To: Target{Host: "10.43.7.7", Port: 5432}, Ask: func(context.Context, string, reach.Question) (reach.Answer, error) {
		return reach.Answer{Targets: []reach.Target{{Attempt: attempt("10.43.7.7:5432", reach.Silent), Rules: toDB, Endpoints: none}}}, nil
	}})
	checkSteps(t, "forbidden", report, err, []string{"passed node edge sends connections", "failed pod web gets no answer from 10.43.7.7:5432 within 3s"})
	if want := []string{"You may not read NetworkPolicies", "You may not read Services of all namespaces", "You may not read pods of all namespaces"}; !slices.EqualFunc(report.Unread, want, strings.HasPrefix) {
		t.Errorf("unread: %q", report.Unread)
	}
}

func TestParseTarget(t *testing.T) {
	for text, want := range map[string]Target{
		"db": {"db", 0}, "db:5432": {"db", 5432}, "db.data.svc.cluster.local.:80": {"db.data.svc.cluster.local.", 80}, "10.0.0.7": {"10.0.0.7", 0},
		"10.0.0.7:443": {"10.0.0.7", 443}, "fd00::7": {"fd00::7", 0}, "[fd00::7]:443": {"fd00::7", 443}, "_sql.db:1": {"_sql.db", 1},
	} {
		if got, ok := ParseTarget(text); !ok || got != want {
			t.Errorf("%s is %+v, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", ":80", "db:", "db:0", "db:65536", "db:http", "http://db", "db/sql", "a b", "[fd00::7]", strings.Repeat("a", 254)} {
		if got, ok := ParseTarget(text); ok {
			t.Errorf("%q is %+v", text, got)
		}
	}
}
