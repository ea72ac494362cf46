package why

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kedge-dev/kedge/internal/node/reach"
)

func nodeThatIs(name string, status corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}}}
}

func TestTryService(t *testing.T) {
	ends := []reach.Attempt{
		{Address: "10.43.0.7:80", End: reach.Connected, Took: time.Millisecond},
		{Address: "10.43.0.7:81", End: reach.Refused, Error: "refused"},
		{Address: "10.43.0.7:82", End: reach.Silent, Error: "i/o timeout", Took: 3 * time.Second},
		{Address: "10.43.0.7:83", End: reach.Other, Error: "no route to host"},
	}
	for name, test := range map[string]struct {
		nodes    []runtime.Object
		node     string
		attempts []reach.Attempt
		fault    error
		want     []string
	}{
		"all ends": {[]runtime.Object{nodeThatIs("away", corev1.ConditionFalse), nodeThatIs("edge", corev1.ConditionTrue)}, "", ends, nil, []string{
			"passed node edge connects to 10.43.0.7:80 in 1ms", "failed node edge is refused at 10.43.0.7:81: no pod is ready, or no process listens",
			"failed node edge gets no answer from 10.43.0.7:82 within 3s", "failed node edge cannot connect to 10.43.0.7:83: no route to host",
		}},
		"a chosen node": {nil, "other", ends[:1], nil, []string{"passed node other connects"}},
		"no address":    {nil, "other", nil, nil, []string{"warning there is nothing to try: the Service has no address of its own"}},
		"no node":       {[]runtime.Object{nodeThatIs("away", corev1.ConditionFalse)}, "", nil, nil, []string{"error no node is ready"}},
		"forbidden":     {nil, "other", nil, errors.New("not you"), []string{"error not you"}},
	} {
		report := &Report{Object: Object{"Service", "shop", "web"}}
		asked := ""
		err := Try(t.Context(), Clients{Kubernetes: fake.NewClientset(test.nodes...)}, report, Trial{Node: test.node, Reach: func(_ context.Context, node, namespace, service string) ([]reach.Attempt, error) {
			asked = namespace + "/" + service
			return test.attempts, test.fault
		}})
		var got []string
		if err != nil {
			got = append(got, "error "+err.Error())
		} else if asked != "shop/web" {
			t.Errorf("%s: asked about %s", name, asked)
		}
		for _, step := range report.Steps {
			got = append(got, string(step.State)+" "+step.Says)
			if (step.Do == "") != (step.State != Failed) {
				t.Errorf("%s: %+v", name, step)
			}
		}
		if len(got) != len(test.want) {
			t.Fatalf("%s: got %q, want %q", name, got, test.want)
		}
		for i := range got {
			if !strings.HasPrefix(got[i], test.want[i]) {
				t.Errorf("%s: got %q, want %q", name, got[i], test.want[i])
			}
		}
	}
	if err := Try(t.Context(), Clients{}, &Report{Object: Object{"Pod", "shop", "web"}}, Trial{}); err == nil || !strings.Contains(err.Error(), "only Services and Ingresses") {
		t.Errorf("a pod: %v", err)
	}
}

func TestTryIngress(t *testing.T) {
	app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Host + r.URL.Path {
		case "web.test/shop":
		case "moved.test/":
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
		case "broken.test/":
			w.WriteHeader(http.StatusBadGateway)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	})
	plain, secure := httptest.NewServer(app), httptest.NewTLSServer(app)
	defer plain.Close()
	defer secure.Close()
	var dialed []string
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		dialed = append(dialed, address)
		to := plain.Listener.Addr().String()
		switch address {
		case "192.0.2.1:443":
			to = secure.Listener.Addr().String()
		case "192.0.2.9:80":
			return nil, errors.New("no route to host")
		}
		return new(net.Dialer).DialContext(ctx, network, to)
	}
	rule := func(host, path string) networkingv1.IngressRule {
		return networkingv1.IngressRule{Host: host, IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{Path: path}}}}}
	}
	for name, test := range map[string]struct {
		addresses []string
		rules     []networkingv1.IngressRule
		tls       []string
		want      []string
	}{
		"answers": {[]string{"192.0.2.1"}, []networkingv1.IngressRule{rule("web.test", "/shop"), rule("web.test", "/other"), rule("moved.test", ""), rule("broken.test", "/"), rule("*.wild.test", "/")}, nil, []string{
			"passed http://web.test/shop at 192.0.2.1 answers 200 OK", "passed http://moved.test/ at 192.0.2.1 answers 302 Found",
			"failed http://broken.test/ at 192.0.2.1 answers 502 Bad Gateway", "warning http://any.wild.test/ at 192.0.2.1 answers 404 Not Found",
		}},
		"no host":                {[]string{"192.0.2.1"}, nil, nil, []string{"warning http://192.0.2.1/ at 192.0.2.1 answers 404"}},
		"unknown authority":      {[]string{"192.0.2.1"}, []networkingv1.IngressRule{rule("web.test", "/")}, []string{"web.test"}, []string{"warning https://web.test/ at 192.0.2.1 has a certificate that this machine does not trust"}},
		"away":                   {[]string{"192.0.2.9"}, []networkingv1.IngressRule{rule("web.test", "/")}, nil, []string{"failed http://web.test/ at 192.0.2.9 does not answer: no route to host"}},
		"no address":             {nil, []networkingv1.IngressRule{rule("web.test", "/")}, nil, []string{"warning there is nothing to try"}},
		"addresses of this host": {[]string{"127.0.0.1", "169.254.169.254", "0.0.0.0", "::1", "::ffff:127.0.0.1", "fd00:ec2::254", "100.100.100.200", "x"}, []networkingv1.IngressRule{rule("web.test", "/")}, nil, []string{"warning there is nothing to try"}},
		"a host that is no host": {[]string{"192.0.2.1"}, []networkingv1.IngressRule{rule("a b%zz", "/")}, nil, []string{"failed http://a b%zz/ at 192.0.2.1 is not a URL"}},
	} {
		ingress := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "front"}, Spec: networkingv1.IngressSpec{Rules: test.rules}}
		for _, a := range test.addresses {
			ingress.Status.LoadBalancer.Ingress = append(ingress.Status.LoadBalancer.Ingress, networkingv1.IngressLoadBalancerIngress{IP: a})
		}
		if test.tls != nil {
			ingress.Spec.TLS = []networkingv1.IngressTLS{{Hosts: test.tls}}
		}
		report := &Report{Object: Object{"Ingress", "shop", "front"}}
		if err := Try(t.Context(), Clients{Kubernetes: fake.NewClientset(ingress)}, report, Trial{Dial: dial}); err != nil {
			t.Fatal(err)
		}
		if len(report.Steps) != len(test.want) {
			t.Fatalf("%s: %+v", name, report.Steps)
		}
		for i, step := range report.Steps {
			if got := string(step.State) + " " + step.Says; !strings.HasPrefix(got, test.want[i]) {
				t.Errorf("%s: got %q, want %q", name, got, test.want[i])
			}
		}
	}
	for _, address := range dialed {
		if !strings.HasPrefix(address, "192.0.2.") {
			t.Errorf("connected to %s", address)
		}
	}
}
