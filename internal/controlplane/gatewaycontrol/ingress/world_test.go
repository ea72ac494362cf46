package ingress

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	netv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/certificates"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/endpoints"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
)

// world has the objects of a test. Its Services have the endpoint 10.42.0.9:8080.
type world struct {
	Input
	services map[string]*corev1.Service
	secrets  map[string]*corev1.Secret
	slices   map[string][]*discoveryv1.EndpointSlice
	born     int
}

func newWorld() *world {
	w := &world{services: map[string]*corev1.Service{}, secrets: map[string]*corev1.Secret{}, slices: map[string][]*discoveryv1.EndpointSlice{}}
	w.Classes = []*netv1.IngressClass{class("kedge", Controller)}
	w.Service = func(namespace, name string) *corev1.Service { return w.services[namespace+"/"+name] }
	w.Secret = func(namespace, name string) *corev1.Secret { return w.secrets[namespace+"/"+name] }
	// What addresses endpoints may have is tested there.
	rules := endpoints.Rules{
		Allowed: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")},
		Owner:   func(netip.Addr) (string, bool) { return "", false },
	}
	w.Endpoints = func(service *corev1.Service, port *corev1.ServicePort) endpoints.Found {
		finder := &endpoints.Finder{
			Rules: rules, Nodes: func() []*corev1.Node { return nil }, Pool: func(netip.Addr) string { return "" },
			Slices: func(namespace, name string) []*discoveryv1.EndpointSlice { return w.slices[namespace+"/"+name] },
		}
		return finder.Of(service, port)
	}
	w.Input.Certificate = certificates.Read
	return w
}

// Compile works out what the Ingresses mean if there is nothing else.
func Compile(in *Input) *Result {
	run := Begin(in)
	return run.Finish(hosts.Decide(run.Claims(), nil))
}

func class(name, controller string) *netv1.IngressClass {
	return &netv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: netv1.IngressClassSpec{Controller: controller}}
}

// service adds a Service of the namespace shop with the port 80, and an endpoint.
func (w *world) service(name string, change ...func(*corev1.Service)) *world {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "web", Port: 80, Protocol: corev1.ProtocolTCP}}},
	}
	for _, f := range change {
		f(service)
	}
	w.services["shop/"+name] = service
	w.endpoints(name, "10.42.0.9")
	return w
}

// endpoints sets the addresses behind a Service.
func (w *world) endpoints(name string, addresses ...string) {
	slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
	for _, port := range w.services["shop/"+name].Spec.Ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: ptr.To(port.Name), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)})
	}
	for _, address := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	w.slices["shop/"+name] = []*discoveryv1.EndpointSlice{slice}
}

// secret adds a Secret of the namespace shop.
func (w *world) secret(name string, data map[string]string) *world {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Data: map[string][]byte{}}
	for key, value := range data {
		secret.Data[key] = []byte(value)
	}
	w.secrets["shop/"+name] = secret
	return w
}

// certificate adds a Secret with a certificate for some hosts.
func (w *world) certificate(t testing.TB, name string, hosts ...string) *world {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: hosts, NotAfter: time.Now().Add(time.Hour)}
	chain, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return w.secret(name, map[string]string{
		"tls.crt": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: chain})),
		"tls.key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
	})
}

// ingress adds an Ingress of the namespace shop, younger than those before.
func (w *world) ingress(name string, rules []netv1.IngressRule, change ...func(*netv1.Ingress)) *world {
	w.born++
	ingress := &netv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, CreationTimestamp: metav1.Unix(int64(1000+w.born), 0)},
		Spec:       netv1.IngressSpec{IngressClassName: ptr.To("kedge"), Rules: rules},
	}
	for _, f := range change {
		f(ingress)
	}
	w.Ingresses = append(w.Ingresses, ingress)
	return w
}

// annotated sets an annotation.
func annotated(key, value string) func(*netv1.Ingress) {
	return func(i *netv1.Ingress) { metav1.SetMetaDataAnnotation(&i.ObjectMeta, key, value) }
}

// secured adds an entry of spec.tls.
func secured(secret string, hosts ...string) func(*netv1.Ingress) {
	return func(i *netv1.Ingress) {
		i.Spec.TLS = append(i.Spec.TLS, netv1.IngressTLS{Hosts: hosts, SecretName: secret})
	}
}

// defaulted sets the default backend.
func defaulted(service string) func(*netv1.Ingress) {
	return func(i *netv1.Ingress) { i.Spec.DefaultBackend = ptr.To(backendOf(service)) }
}

func backendOf(service string) netv1.IngressBackend {
	return netv1.IngressBackend{Service: &netv1.IngressServiceBackend{Name: service, Port: netv1.ServiceBackendPort{Number: 80}}}
}

// on returns the rule of a host. Each path is TYPE PATH SERVICE.
func on(host string, paths ...string) netv1.IngressRule {
	rule := netv1.IngressRule{Host: host}
	if len(paths) > 0 {
		rule.HTTP = &netv1.HTTPIngressRuleValue{}
	}
	for _, text := range paths {
		fields := strings.Fields(text)
		rule.HTTP.Paths = append(rule.HTTP.Paths, netv1.HTTPIngressPath{
			PathType: ptr.To(netv1.PathType(fields[0])), Path: strings.Trim(fields[1], "'"), Backend: backendOf(fields[2]),
		})
	}
	return rule
}

func rules(all ...netv1.IngressRule) []netv1.IngressRule { return all }

// ask returns who answers a request, as the docs of package routing say it: a Service, the
// status 404 or 503, or "redirect". Nobody answers HTTPS without a listener for the host.
func ask(r *Result, scheme, host, path string) string {
	var found *routing.Rule
	var best [4]int
	var age time.Time
	listener := listenerOf(r, scheme, host)
	if listener == nil {
		return "refused"
	}
	for _, name := range listener.Routes {
		route := r.State.Routes[name]
		specific := 0
		if len(route.Hostnames) > 0 {
			i := slices.IndexFunc(route.Hostnames, func(pattern string) bool { return covers(pattern, host, route.SingleLabel) })
			if i < 0 {
				continue
			}
			specific = len(route.Hostnames[i])
			if !isWildcard(route.Hostnames[i]) {
				specific += 1000
			}
		}
		for i := range route.Rules {
			for _, match := range route.Rules[i].Matches {
				rank := [4]int{1, specific, 0, len(match.Path)}
				switch match.PathType {
				case routing.Exact:
					if path != match.Path {
						continue
					}
					rank[2] = 1
				case routing.PathPrefix:
					prefix := strings.TrimSuffix(match.Path, "/")
					if path != prefix && !strings.HasPrefix(path, prefix+"/") {
						continue
					}
				}
				if order := slices.Compare(rank[:], best[:]); order > 0 || order == 0 && route.Created.Before(age) {
					found, best, age = &route.Rules[i], rank, route.Created
				}
			}
		}
	}
	switch {
	case found == nil:
		return "404"
	case len(found.Filters) > 0:
		return "redirect"
	case found.Targets[0].Backend == "":
		return "503"
	}
	name := r.State.Backends[found.Targets[0].Backend].Name
	return strings.TrimSuffix(strings.TrimPrefix(name, "shop/"), ":80")
}

// listenerOf returns the listener with the most specific host name, or nil.
func listenerOf(r *Result, scheme, host string) *front.Listener {
	port := map[string]uint16{"http": 80, "https": 443}[scheme]
	var found *front.Listener
	for _, f := range r.Fronts {
		for _, candidate := range f.Ports {
			if candidate.Number != port || candidate.Transport != routing.TCP {
				continue
			}
			for i := range candidate.Listeners {
				l := &candidate.Listeners[i]
				if l.Hostname != "" && !covers(l.Hostname, host, false) {
					continue
				}
				if found == nil || cmp.Compare(len(l.Hostname), len(found.Hostname)) > 0 || found.Hostname == "" {
					found = l
				}
			}
		}
	}
	return found
}

// covers tells whether a pattern is for a host.
func covers(pattern, host string, single bool) bool {
	if !isWildcard(pattern) {
		return pattern == host
	}
	label, found := strings.CutSuffix(host, pattern[1:])
	return found && label != "" && (!single || !strings.Contains(label, "."))
}

// reasons returns the reasons of all faults, with the name of the Ingress.
func reasons(r *Result) []string {
	var all []string
	for _, fault := range r.Faults {
		all = append(all, fault.Object.GetName()+" "+fault.Reason)
	}
	return all
}

// wantFaults compares the reasons of the faults.
func wantFaults(t *testing.T, r *Result, want ...string) {
	t.Helper()
	if got := reasons(r); !slices.Equal(got, want) {
		t.Errorf("faults %v, want %v", got, want)
		for _, fault := range r.Faults {
			t.Logf("%s: %s", fault.Object.GetName(), fault.Message)
		}
	}
}

var endpoint = netip.MustParseAddrPort("10.42.0.9:8080")
