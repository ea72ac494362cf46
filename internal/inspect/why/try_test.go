package why

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

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
