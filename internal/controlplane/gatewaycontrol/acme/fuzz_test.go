package acme

import (
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
)

// FuzzRequest reads any annotations and any host. What is asked of an authority is one plain
// host, of a server that speaks TLS, with an address that is no list.
func FuzzRequest(f *testing.F) {
	for _, seed := range [][3]string{
		{"true", "", "a.example.com"}, {"admin@example.com", "https://ca.example.com/directory", "*.example.com"},
		{"a@b,c@d", "http://example.com", ""}, {"a <b@c>", "https://user@example.com", "a..b"}, {"a@b?cc=d", "https://", "A.example.com"},
		{"\"a b\"@c.d", "https://127.0.0.1/\n", strings.Repeat("a.", 200)}, {"ä@example.com", "https://[::1%25eth0]:443/", "xn--a"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, email, server, host string) {
		object := ingress("i", "tls", host)
		object.Annotations = map[string]string{AnnotationACME: email, AnnotationServer: server}
		wanted, faults := wantedBy(&Objects{Ingresses: []*netv1.Ingress{object}}, LetsEncrypt)
		if len(wanted)+len(faults) > 1 {
			t.Errorf("got %v and the faults %v", wanted, faults)
		}
		for _, fault := range faults {
			if len(fault.message) > 1024 {
				t.Errorf("a message has %d bytes", len(fault.message))
			}
		}
		for _, c := range wanted {
			if strings.ContainsAny(c.email, ", ?\r\n") || strings.Count(c.email, "@") > 1 && !strings.Contains(c.email, "\"") {
				t.Errorf("the account has the address %q", c.email)
			}
			if read, err := url.Parse(c.directory); err != nil || read.Scheme != "https" || read.Host == "" {
				t.Errorf("the authority is at %q", c.directory)
			}
			if strings.ContainsAny(c.hosts[0], "*/ ") || !strings.Contains(c.hosts[0], ".") || c.hosts[0] != strings.ToLower(c.hosts[0]) {
				t.Errorf("the host is %q", c.hosts[0])
			}
		}
	})
}

// FuzzChallenges reads any Secret with challenges. They come only to the fronts that they name,
// and never to a listener with routes of another host.
func FuzzChallenges(f *testing.F) {
	for _, seed := range []string{
		`{"host":"a.example.com","fronts":[""],"token":"t","answer":"x"}`, `{"host":"a","fronts":["shop/g"],"certificate":{"chain":"c","key":"k"}}`,
		`{"host":"","token":"t"}`, `{"host":"a","token":"t","certificate":{}}`, `{`, `null`, `{"host":"*","fronts":["",""],"token":"t"}`,
	} {
		f.Add(challengePrefix+"a", []byte(seed))
	}
	f.Fuzz(func(t *testing.T, key string, text []byte) {
		challenges := ReadChallenges(&corev1.Secret{Data: map[string][]byte{key: text}})
		other := routing.Listener{Protocol: routing.HTTP, Hostname: "other.example.com", Routes: []string{"r"}}
		fronts := []front.Front{{Name: front.Shared, Ports: []front.Port{{Number: 80, Transport: routing.TCP, Listeners: []front.Listener{{Listener: other}}}}}}
		certificates := map[string]*routing.Certificate{}
		for _, f := range Merge(challenges, fronts, certificates) {
			for _, port := range f.Ports {
				for _, listener := range port.Listeners {
					if len(listener.Routes) > 0 && len(listener.Challenges) > 0 && challenges[0].Host != listener.Hostname {
						t.Errorf("the listener of %q answers for %q", listener.Hostname, challenges[0].Host)
					}
				}
			}
		}
		if len(certificates) > len(challenges) || len(challenges) > 0 && !strings.HasPrefix(key, challengePrefix) {
			t.Errorf("got %v and certificates %v", challenges, certificates)
		}
	})
}
