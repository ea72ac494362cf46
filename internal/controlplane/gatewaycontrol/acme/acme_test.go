package acme

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
	"github.com/kedge-dev/kedge/internal/testutil"
	"github.com/kedge-dev/kedge/internal/testutil/acmeserver"
)

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

// harness runs a Manager beside an authority.
type harness struct {
	*testing.T
	*acmeserver.Authority
	api     *fake.Clientset
	events  *record.FakeRecorder
	manager *Manager
	objects *Objects

	clock sync.Mutex
	ahead time.Duration
}

// start runs a Manager over some Secrets. Its authority is the cluster's, and finds answers in
// what the nodes would serve.
func start(t *testing.T, secrets ...runtime.Object) *harness {
	t.Helper()
	testutil.CheckLeaks(t)
	h := &harness{T: t, Authority: acmeserver.Start(t, nil), api: fake.NewClientset(secrets...), events: record.NewFakeRecorder(100)}
	h.SetProbe(h.arrive)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(h.Trust())
	h.manager = New(Config{API: h.api, Events: h.events, Directory: h.URL("directory"), Roots: roots})
	h.manager.settle = time.Millisecond
	h.manager.now = func() time.Time {
		h.clock.Lock()
		defer h.clock.Unlock()
		return time.Now().Add(h.ahead)
	}
	h.objects = &Objects{Secret: h.secret}
	return h
}

// run runs the Manager until the end of the test.
func (h *harness) run() {
	ctx, cancel := context.WithCancel(h.Context())
	var running sync.WaitGroup
	running.Go(func() { h.manager.Run(ctx) })
	h.Cleanup(func() { cancel(); running.Wait() })
	h.manager.Update(h.objects)
}

// pass lets time pass.
func (h *harness) pass(d time.Duration) {
	h.clock.Lock()
	h.ahead += d
	h.clock.Unlock()
	h.manager.changed.Notify()
}

// secret returns a Secret, or nil.
func (h *harness) secret(namespace, name string) *corev1.Secret {
	secret, err := h.api.CoreV1().Secrets(namespace).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return secret
}

// event waits for an Event that has these texts.
func (h *harness) event(texts ...string) {
	h.Helper()
	select {
	case event := <-h.events.Events:
		for _, text := range texts {
			if !strings.Contains(event, text) {
				h.Errorf("got the Event %q, want %q in it", event, text)
			}
		}
	case <-time.After(patience):
		h.Fatalf("got no Event, want %q", texts)
	}
}

// quiet fails if there is an Event, after everything has been looked at.
func (h *harness) quiet() {
	h.Helper()
	var none sync.WaitGroup
	h.manager.look(h.Context(), &none)
	none.Wait()
	select {
	case event := <-h.events.Events:
		h.Errorf("got the Event %q, want none", event)
	default:
	}
}

// arrive asks as the authority does: the listener for the host of the front of Ingresses.
func (h *harness) arrive(kind, host, token, keyAuthorization string) error {
	certificates := map[string]*routing.Certificate{}
	fronts := Merge(ReadChallenges(h.secret(ChallengesName.Namespace, ChallengesName.Name)), nil, certificates)
	for _, f := range fronts {
		for _, port := range f.Ports {
			for _, listener := range port.Listeners {
				if f.Name != front.Shared || listener.Hostname != host {
					continue
				}
				if kind == http01 && port.Number == 80 && listener.Challenges[token] == keyAuthorization {
					return nil
				}
				if kind == tlsALPN01 && port.Number == 443 {
					return proves(certificates[listener.ChallengeCertificates[host]], host, keyAuthorization)
				}
			}
		}
	}
	return errors.New("no answer")
}

// proves looks at a certificate as RFC 8737 has it.
func proves(certificate *routing.Certificate, host, keyAuthorization string) error {
	block, _ := pem.Decode([]byte(certificate.Chain))
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(keyAuthorization))
	for _, extension := range leaf.Extensions {
		if extension.Id.String() == "1.3.6.1.5.5.7.1.31" && string(extension.Value[2:]) == string(sum[:]) && slices.Equal(leaf.DNSNames, []string{host}) {
			return nil
		}
	}
	return fmt.Errorf("no answer")
}

// ingress makes an Ingress of the namespace shop that asks for a certificate.
func ingress(name, secret string, hosts ...string) *netv1.Ingress {
	return &netv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "uid-" + "ingress", CreationTimestamp: metav1.Unix(1000, 0), Annotations: map[string]string{AnnotationACME: "admin@example.com"}},
		Spec:       netv1.IngressSpec{TLS: []netv1.IngressTLS{{Hosts: hosts, SecretName: secret}}},
	}
}

// gateway makes a Gateway of the namespace shop that asks for a certificate.
func gateway(name, secret, host string) *gwv1.Gateway {
	return &gwv1.Gateway{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "uid-gateway", CreationTimestamp: metav1.Unix(1000, 0), Annotations: map[string]string{AnnotationACME: "true"}},
		Spec: gwv1.GatewaySpec{Listeners: []gwv1.Listener{{
			Protocol: gwv1.HTTPSProtocolType, Hostname: ptr.To(gwv1.Hostname(host)),
			TLS: &gwv1.ListenerTLSConfig{CertificateRefs: []gwv1.SecretObjectReference{{Name: gwv1.ObjectName(secret)}}},
		}}},
	}
}

// TestIssue gets a certificate for an Ingress and one for a Gateway.
func TestIssue(t *testing.T) {
	h := start(t)
	h.objects.Ingresses = []*netv1.Ingress{ingress("i", "tls", "www.example.com", "example.com")}
	h.run()
	h.event("Normal CertificateIssued", `"tls"`)
	h.objects = &Objects{Ingresses: h.objects.Ingresses, Gateways: []*gwv1.Gateway{gateway("g", "other", "shop.example.com")}, Secret: h.secret}
	h.manager.Update(h.objects)
	h.event("Normal CertificateIssued", `"other"`)
	h.quiet()

	secret := h.secret("shop", "tls")
	leaf, err := leafOf(secret)
	if err != nil || !slices.Equal(leaf.DNSNames, []string{"example.com", "www.example.com"}) || secret.Type != corev1.SecretTypeTLS || !isOurs(secret) {
		t.Errorf("got the Secret %+v (%v)", secret, err)
	}
	if secret := h.secret("shop", "other"); secret == nil || len(secret.Data[corev1.TLSPrivateKeyKey]) == 0 {
		t.Errorf("got the Secret %+v", secret)
	}
	if left := ReadChallenges(h.secret(ChallengesName.Namespace, ChallengesName.Name)); len(left) > 0 {
		t.Errorf("the challenges %v are still there", left)
	}
	if want := []string{"mailto:admin@example.com", ""}; !slices.Equal(h.Contacts, want) {
		t.Errorf("got accounts %q, want %q", h.Contacts, want)
	}
	if accounts := h.secret(accountsName.Namespace, accountsName.Name); accounts == nil || len(accounts.Data) != 2 {
		t.Errorf("got the accounts %v, want 2", accounts)
	}
}

// TestRenewal waits until two thirds of the life are over.
func TestRenewal(t *testing.T) {
	h := start(t)
	h.objects.Ingresses = []*netv1.Ingress{ingress("i", "tls", "example.com")}
	h.run()
	h.event(reasonIssued)
	first := h.secret("shop", "tls")
	h.pass(59 * 24 * time.Hour)
	h.quiet()
	h.pass(6 * 24 * time.Hour)
	h.event(reasonIssued)
	second := h.secret("shop", "tls")
	if string(first.Data[corev1.TLSCertKey]) == string(second.Data[corev1.TLSCertKey]) || string(first.Data[corev1.TLSPrivateKeyKey]) == string(second.Data[corev1.TLSPrivateKeyKey]) {
		t.Error("the certificate or its key is the same")
	}
	// Another host needs another certificate.
	h.objects = &Objects{Ingresses: []*netv1.Ingress{ingress("i", "tls", "example.com", "new.example.com")}, Secret: h.secret}
	h.manager.Update(h.objects)
	h.pass(successPause)
	h.event(reasonIssued)
	if leaf, err := leafOf(h.secret("shop", "tls")); err != nil || leaf.VerifyHostname("new.example.com") != nil {
		t.Errorf("got %v (%v)", leaf.DNSNames, err)
	}
}

// TestForeign has Secrets that kedge did not make.
func TestForeign(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "shop", Name: "tls"}
	labelled := *meta.DeepCopy()
	labelled.Labels = map[string]string{managedBy: "kedge"}
	for name, secret := range map[string]*corev1.Secret{
		"of a user":       {ObjectMeta: meta, Type: corev1.SecretTypeTLS},
		"of another type": {ObjectMeta: labelled, Type: corev1.SecretTypeOpaque},
	} {
		t.Run(name, func(t *testing.T) {
			h := start(t, secret)
			h.objects.Ingresses = []*netv1.Ingress{ingress("i", "tls", "example.com")}
			h.run()
			h.event("kedge did not make it")
			h.quiet()
			if got := h.secret("shop", "tls"); len(got.Data) > 0 || h.Requests > 0 {
				t.Errorf("got the Secret %+v after %d requests", got, h.Requests)
			}
		})
	}
}

// TestStale has a cache that does not know the Secret of a user yet.
func TestStale(t *testing.T) {
	h := start(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "tls"}})
	h.objects.Secret = func(string, string) *corev1.Secret { return nil }
	h.objects.Ingresses = []*netv1.Ingress{ingress("i", "tls", "example.com")}
	h.run()
	h.event("Warning CertificateFailed", "already exists")
	if got := h.secret("shop", "tls"); len(got.Data) > 0 {
		t.Errorf("got the Secret %+v", got)
	}
}

// TestFailures has hosts that do not lead here. Attempts take turns with the kinds of
// challenges, and another server that is elected does not begin anew.
func TestFailures(t *testing.T) {
	h := start(t)
	lost := errors.New("lost")
	h.SetProbe(func(string, string, string, string) error { return lost })
	h.objects.Ingresses = []*netv1.Ingress{ingress("i", "tls", "example.com")}
	h.run()
	h.event("Warning CertificateFailed", "no answer", "Make sure that [example.com] resolves", "The next attempt is at")
	h.quiet()
	h.pass(firstPause * 3 / 2)
	h.event("Warning CertificateFailed")

	// The attempts are written after the Event is.
	other := New(h.manager.cfg)
	for deadline := time.Now().Add(patience); len(other.attempts) == 0 || other.attempts[name{"shop", "example.com", h.URL("directory")}].Failures != 2; {
		if err := other.takeOver(t.Context()); err != nil || time.Now().After(deadline) {
			t.Fatalf("the next server knows the attempts %v (%v)", other.attempts, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	h.SetProbe(h.arrive)
	h.pass(4 * firstPause)
	h.event(reasonIssued)
	if want := []string{http01 + " example.com", tlsALPN01 + " example.com", http01 + " example.com"}; !slices.Equal(h.Probed, want) {
		t.Errorf("the authority asked for %v, want %v", h.Probed, want)
	}
}

// TestKinds has authorities that offer only one kind of challenge.
func TestKinds(t *testing.T) {
	for _, kind := range []string{http01, tlsALPN01} {
		h := start(t)
		h.Kinds = []string{"dns-01", kind}
		h.objects.Ingresses = []*netv1.Ingress{ingress("i", "tls", "example.com")}
		h.run()
		h.event(reasonIssued)
	}
}

// TestAuthorities has authorities that refuse, or want what they should not.
func TestAuthorities(t *testing.T) {
	for _, test := range []struct {
		name    string
		change  func(*harness)
		message string
	}{
		{"too many requests", func(h *harness) { h.Limited = true }, "too many requests for this name"},
		{"external account", func(h *harness) { h.External = true }, "external account binding"},
		{"only DNS", func(h *harness) { h.Kinds = []string{"dns-01"} }, "offers no challenge"},
		{"another host", func(h *harness) {
			h.Spoil = func(a map[string]any) { a["identifier"] = map[string]any{"type": "dns", "value": "victim.com"} }
		}, "which nobody has asked for"},
		{"a token that is a path", func(h *harness) {
			h.Spoil = func(a map[string]any) {
				for _, challenge := range a["challenges"].([]map[string]any) {
					challenge["token"] = "../../admin"
				}
			}
		}, "which is not a token"},
		{"a certificate of yesterday", func(h *harness) { h.Life = -time.Minute }, "cannot be used"},
		{"no ACME", func(h *harness) {
			h.manager.cfg.Directory = h.URL("nothing")
		}, "the HTTP status 404, and not in the form of ACME"},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := start(t)
			test.change(h)
			h.objects.Ingresses = []*netv1.Ingress{ingress("i", "tls", "example.com")}
			h.run()
			h.event(reasonFailed, test.message)
			h.quiet()
			if h.secret("shop", "tls") != nil {
				t.Error("there is a Secret")
			}
			if left := ReadChallenges(h.secret(ChallengesName.Namespace, ChallengesName.Name)); len(left) > 0 {
				t.Errorf("the challenges %v are still there", left)
			}
		})
	}
}

// TestNamedAuthority has an annotation that names an authority on loopback. It gets no request.
func TestNamedAuthority(t *testing.T) {
	h := start(t)
	named := ingress("i", "tls", "example.com")
	named.Annotations[AnnotationServer] = h.URL("directory")
	h.manager.cfg.Directory = LetsEncrypt
	h.objects.Ingresses = []*netv1.Ingress{named}
	h.run()
	h.event(reasonFailed, "An annotation cannot name an authority at an address of loopback")
	if h.Requests > 0 {
		t.Errorf("the authority got %d requests", h.Requests)
	}
}

// TestRecover begins with challenges of a server that is gone.
func TestRecover(t *testing.T) {
	challenge := Challenge{Host: "example.com", Fronts: []string{""}, Token: "a", Answer: "b"}
	h := start(t)
	if err := h.manager.publish(t.Context(), []Challenge{challenge}); err != nil {
		t.Fatal(err)
	}
	if got := ReadChallenges(h.secret(ChallengesName.Namespace, ChallengesName.Name)); len(got) != 1 {
		t.Fatalf("got challenges %v", got)
	}
	if err := h.manager.takeOver(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := ReadChallenges(h.secret(ChallengesName.Namespace, ChallengesName.Name)); len(got) != 0 {
		t.Errorf("got challenges %v", got)
	}
}

// TestAgain runs a Manager a second time, after nobody asked for a while. It still knows that it
// has just got a certificate for a host.
func TestAgain(t *testing.T) {
	h := start(t)
	term := func(objects *Objects, reason, secret string) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { h.manager.Run(ctx) })
		h.manager.Update(objects)
		h.event(reason, secret)
		cancel()
		running.Wait()
		h.manager.Update(nil)
		h.quiet()
	}
	term(&Objects{Ingresses: []*netv1.Ingress{ingress("i", "tls", "example.com")}, Secret: h.secret}, reasonIssued, `"tls"`)
	both := ingress("i", "again", "example.com")
	both.Spec.TLS = append(both.Spec.TLS, netv1.IngressTLS{Hosts: []string{"other.example.com"}, SecretName: "other"})
	term(&Objects{Ingresses: []*netv1.Ingress{both}, Secret: h.secret}, reasonIssued, `"other"`)
	if h.secret("shop", "again") != nil {
		t.Error("it got a second certificate for the host at once")
	}
}
