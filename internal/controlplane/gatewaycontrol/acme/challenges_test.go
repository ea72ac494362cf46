package acme

import (
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
)

// TestMerge has fronts that the compilers made. A challenge comes to the listeners that serve
// its host, or to one of its own.
func TestMerge(t *testing.T) {
	own := func(listeners ...front.Listener) front.Front {
		return front.Front{
			Name: types.NamespacedName{Namespace: "shop", Name: "g-kedge"}, Gateway: &gwv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "g"}},
			Ports: []front.Port{{Number: 80, Transport: routing.TCP, Listeners: listeners}},
		}
	}
	shared := func(listeners ...front.Listener) front.Front {
		return front.Front{Name: front.Shared, Ports: []front.Port{{Number: 80, Transport: routing.TCP, Listeners: listeners}}}
	}
	listener := func(protocol routing.Protocol, host string) front.Listener {
		return front.Listener{Listener: routing.Listener{Protocol: protocol, Hostname: host}}
	}
	web := func(host string) front.Listener { return listener(routing.HTTP, host) }
	secure := func(protocol routing.Protocol, host string) front.Front {
		listeners := []front.Listener{listener(protocol, host)}
		return front.Front{Name: front.Shared, Ports: []front.Port{{Number: 443, Transport: routing.TCP, Listeners: listeners}}}
	}
	token := Challenge{Host: "a.example.com", Fronts: []string{""}, Token: "t", Answer: "t.x"}
	ofGateway := token
	ofGateway.Fronts = []string{"shop/g"}
	certificate := Challenge{Host: "a.example.com", Fronts: []string{""}, Certificate: &routing.Certificate{Chain: "c", Key: "k"}}
	for _, test := range []struct {
		name      string
		challenge Challenge
		fronts    []front.Front
		// want has FRONT PORT HOST of the listeners that answer.
		want []string
	}{
		{"no front", token, nil, []string{"kedge-gateway 80 a.example.com"}},
		{"no front, by TLS", certificate, nil, []string{"kedge-gateway 443 a.example.com"}},
		{"all hosts", token, []front.Front{own(web("")), shared(web(""))}, []string{"kedge-gateway 80 "}},
		{"a wildcard and another host", token, []front.Front{shared(web("*.example.com"), web("b.example.com"))}, []string{"kedge-gateway 80 *.example.com"}},
		{"another host", token, []front.Front{shared(web("b.example.com"), web("*.a.example.com"))}, []string{"kedge-gateway 80 a.example.com"}},
		{"another port", certificate, []front.Front{shared(web(""))}, []string{"kedge-gateway 443 a.example.com"}},
		{"a Gateway of its own", ofGateway, []front.Front{shared(web("")), own(web("b.example.com"))}, []string{"g-kedge 80 a.example.com"}},
		{"a Gateway in the shared front", ofGateway, []front.Front{shared(web("a.example.com"))}, []string{"kedge-gateway 80 a.example.com"}},
		{"TLS to a backend", certificate, []front.Front{secure(routing.TLSPassthrough, "*.example.com")}, []string{"kedge-gateway 443 *.example.com"}},
		{"HTTP at port 443", certificate, []front.Front{secure(routing.HTTP, "")}, nil},
		{"a port that is not HTTP", token, []front.Front{shared(listener(routing.RawTCP, ""))}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := copyOf(test.fronts)
			certificates := map[string]*routing.Certificate{}
			merged := Merge([]Challenge{test.challenge}, test.fronts, certificates)
			if got := answering(merged, test.challenge, certificates); !reflect.DeepEqual(got, test.want) {
				t.Errorf("it is answered by %q, want %q", got, test.want)
			}
			if !reflect.DeepEqual(before, test.fronts) {
				t.Error("Merge changed the fronts")
			}
		})
	}
}

// copyOf copies fronts, down to the listeners.
func copyOf(fronts []front.Front) []front.Front {
	var all []front.Front
	for _, f := range fronts {
		var ports []front.Port
		for _, p := range f.Ports {
			p.Listeners = append([]front.Listener(nil), p.Listeners...)
			ports = append(ports, p)
		}
		f.Ports = ports
		all = append(all, f)
	}
	return all
}

// answering returns the listeners that answer a challenge.
func answering(fronts []front.Front, challenge Challenge, certificates map[string]*routing.Certificate) []string {
	var all []string
	for _, f := range fronts {
		for _, port := range f.Ports {
			for _, listener := range port.Listeners {
				byToken := challenge.Token != "" && listener.Challenges[challenge.Token] == challenge.Answer
				byCertificate := challenge.Certificate != nil && certificates[listener.ChallengeCertificates[challenge.Host]] == challenge.Certificate
				if byToken || byCertificate {
					number := "80"
					if port.Number == 443 {
						number = "443"
					}
					all = append(all, f.Name.Name+" "+number+" "+listener.Hostname)
				}
			}
		}
	}
	return all
}
