package gatewaycontrol

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"maps"
	"math/big"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/acme"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/kinds"
)

// fakeIssuer is told what a Manager would be told. The tests write what it would write: they run
// in a bubble of synctest, which has no network.
type fakeIssuer struct {
	mu      sync.Mutex
	made    int
	cfg     acme.Config
	objects *acme.Objects
	// running is how many Runs there are, and runs is how many there were.
	running, runs int
}

func (f *fakeIssuer) make(cfg acme.Config) issuer {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cfg = cfg
	f.made++
	return f
}

func (f *fakeIssuer) Update(objects *acme.Objects) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects = objects
}

func (f *fakeIssuer) Run(ctx context.Context) {
	count := func(by int) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.running += by
		f.runs += max(by, 0)
	}
	count(1)
	<-ctx.Done()
	time.Sleep(time.Millisecond) // it takes challenges back
	count(-1)
}

// expect fails if other Runs are there, or were there.
func (f *fakeIssuer) expect(w *world, when string, running, runs int) {
	w.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running != running || f.runs != runs || f.made > 1 || (f.objects != nil) != (running > 0) {
		w.Errorf("%s there are %d Runs after %d in all, of %d issuers, with the objects %+v; want %d after %d", when, f.running, f.runs, f.made, f.objects, running, runs)
	}
}

// challenge lets the Secret of challenges have these ones.
func (w *world) challenge(challenges ...acme.Challenge) {
	w.Helper()
	secret := &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: acme.ChallengesName.Namespace, Name: acme.ChallengesName.Name}, Data: map[string][]byte{},
	}
	for i := range challenges {
		text, err := json.Marshal(&challenges[i])
		if err != nil {
			w.Fatal(err)
		}
		secret.Data["challenge."+string(rune('a'+i))] = text
	}
	w.applyJSON(secret)
	w.settle()
}

// certify writes the Secret shop/tls with a certificate.
func (w *world) certify() {
	w.Helper()
	got := newCertificate(w.T)
	w.applyJSON(&corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "tls"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: []byte(got.Chain), corev1.TLSPrivateKeyKey: []byte(got.Key)},
	})
	w.settle()
}

// applyJSON creates or replaces an object.
func (w *world) applyJSON(object any) {
	w.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		w.Fatal(err)
	}
	w.apply(string(text))
}

func newCertificate(t *testing.T) *routing.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"shop.example"}, NotAfter: time.Now().Add(time.Hour)}
	chain, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &routing.Certificate{
		Chain: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: chain})),
		Key:   string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
	}
}

// answers returns what the node's sockets answer to challenges: SOCKET TOKEN=ANSWER, and
// SOCKET HOST for a certificate that the node has.
func (w *world) answers() (all []string) {
	state := w.served()
	for name, socket := range state.Sockets {
		for _, listener := range socket.Listeners {
			for token, answer := range listener.Challenges {
				all = append(all, name+" "+token+"="+answer)
			}
			for host, certificate := range listener.ChallengeCertificates {
				if state.Certificates[certificate] != nil {
					all = append(all, name+" "+host)
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// shown returns the certificates that a socket of the node shows.
func (w *world) shown(socket string) (all []string) {
	state := w.served()
	if found := state.Sockets[socket]; found != nil {
		for _, listener := range found.Listeners {
			for _, name := range listener.Certificates {
				if state.Certificates[name] != nil {
					all = append(all, name)
				}
			}
		}
	}
	return all
}

// TestCertificateOfIngress follows an Ingress from its annotation to its certificate.
func TestCertificateOfIngress(t *testing.T) {
	secure := anIngress[:len(anIngress)-len("---\n")] + "  tls: [{hosts: [shop.example], secretName: tls}]\n---\n"
	asking := strings.Replace(secure, "name: web}", "name: web, annotations: {gateway.kedge.dev/acme: admin@shop.example}}", 1)
	token := acme.Challenge{Host: "shop.example", Fronts: []string{""}, Token: "t", Answer: "t.k"}
	run(t, nodes+class+app+secure, func(w *world) {
		w.issuer.expect(w, "before the annotation", 0, 0)
		w.challenge(token)
		if got := w.answers(); len(got) != 0 {
			t.Errorf("nobody asks for a certificate, and the node answers %v", got)
		}
		w.challenge()

		w.apply(asking)
		w.settle()
		w.issuer.expect(w, "with the annotation", 1, 1)
		objects := w.issuer.objects
		if len(objects.Ingresses) != 1 || len(objects.Gateways) != 0 || objects.Owners == nil || objects.Secret("shop", "tls") != nil {
			t.Errorf("the issuer is told %+v", objects)
		}
		if cfg := w.issuer.cfg; cfg.API == nil || cfg.Events == nil || cfg.Directory != "https://ca.example/directory" || len(cfg.Refused) != 1 {
			t.Errorf("the issuer has the settings %+v", cfg)
		}
		w.challenge(token)
		if got := w.answers(); !slices.Equal(got, []string{"30080/tcp t=t.k"}) {
			t.Errorf("the node answers %v", got)
		}
		w.challenge(acme.Challenge{Host: "shop.example", Fronts: []string{""}, Certificate: newCertificate(t)})
		if got := w.answers(); !slices.Equal(got, []string{"30443/tcp shop.example"}) {
			t.Errorf("the node answers %v", got)
		}
		if got := w.shown("30443/tcp"); len(got) != 0 {
			t.Errorf("before there is a certificate, the node shows %v", got)
		}

		w.certify()
		w.challenge()
		if got := w.shown("30443/tcp"); !slices.Equal(got, []string{"Secret/shop/tls"}) || len(w.answers()) != 0 {
			t.Errorf("the node shows %v, and answers %v", got, w.answers())
		}
		if got := slices.Collect(maps.Keys(w.served().Certificates)); len(got) != 1 {
			t.Errorf("the node has the certificates %v", got)
		}
		if w.issuer.objects.Secret("shop", "tls") == nil {
			t.Error("the issuer does not see the Secret")
		}
		if got := w.events(); len(got) != 1 { // about the Ingress before it had the annotation
			t.Errorf("the Events are %v", got)
		}

		w.apply(secure)
		w.settle()
		w.issuer.expect(w, "without the annotation", 0, 1)
		if got := w.shown("30443/tcp"); len(got) != 1 {
			t.Errorf("without the annotation the node shows %v", got)
		}
		w.apply(asking)
		w.settle()
		w.issuer.expect(w, "with the annotation again", 1, 2)
	})
}

// TestCertificateOfGateway has a Gateway with an address of its own, and HTTPS only. Its address
// and its port are there before its certificate is.
func TestCertificateOfGateway(t *testing.T) {
	const asking = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: shop, name: own, generation: 1, annotations: {gateway.kedge.dev/acme: "true"}}
spec:
  gatewayClassName: kedge
  addresses: [{value: 192.0.2.240}]
  listeners: [{name: https, port: 443, protocol: HTTPS, hostname: shop.example, tls: {certificateRefs: [{name: tls}]}}]
---
`
	ports := func(w *world) (all []int32) {
		w.Helper()
		service := w.service("shop", "own-kedge")
		if service == nil {
			w.Fatal("the Gateway has no Service")
		}
		for _, port := range service.Spec.Ports {
			if port.Protocol == corev1.ProtocolTCP {
				all = append(all, port.Port)
			}
		}
		return all
	}
	run(t, nodes+class+app+lan+asking, func(w *world) {
		if got := ports(w); !slices.Equal(got, []int32{443}) || w.served().Sockets["30443/tcp"] == nil {
			t.Errorf("before there is a certificate, the Service has the ports %v, and the node %+v", got, w.served())
		}
		if got := w.condition(kinds.Gateways, "shop", "own", "Accepted"); got != "True/ListenersNotValid" {
			t.Errorf("the Gateway is accepted: %s", got)
		}
		if got := w.events(); len(got) != 0 {
			t.Errorf("the Events are %v", got)
		}
		w.challenge(acme.Challenge{Host: "shop.example", Fronts: []string{"shop/own"}, Certificate: newCertificate(t)})
		if got := w.answers(); !slices.Equal(got, []string{"30443/tcp shop.example"}) {
			t.Errorf("the node answers %v", got)
		}
		w.challenge(acme.Challenge{Host: "shop.example", Fronts: []string{"shop/own"}, Token: "t", Answer: "t.k"})
		if got := w.answers(); !slices.Equal(got, []string{"30080/tcp t=t.k"}) || w.shared() != nil {
			t.Errorf("the node answers %v, and the shared front is %v", got, w.shared())
		}
		w.challenge()
		if got := ports(w); !slices.Equal(got, []int32{443}) {
			t.Errorf("after the challenge, the Service has the ports %v", got)
		}
		w.certify()
		if got := w.shown("30443/tcp"); !slices.Equal(got, []string{"shop/tls"}) {
			t.Errorf("the node shows %v", got)
		}
		if got := w.condition(kinds.Gateways, "shop", "own", "Accepted"); got != "True/Accepted" {
			t.Errorf("with its certificate the Gateway is accepted: %s", got)
		}
	})
}
