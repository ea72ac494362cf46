package compile

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/certificates"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/endpoints"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
)

// world is a cluster as Compile sees it.
type world struct {
	in         Input
	namespaces map[string]*corev1.Namespace
	services   map[types.NamespacedName]*corev1.Service
	secrets    map[types.NamespacedName]*corev1.Secret
	configMaps map[types.NamespacedName]*corev1.ConfigMap
	slices     map[types.NamespacedName][]*discoveryv1.EndpointSlice
}

// newWorld returns a cluster with the objects of manifests. Namespaces that objects are in
// exist. Each object is a minute younger than the one before it. There is a GatewayClass kedge.
// In namespace infra, the Secret certificate has a certificate, and the ConfigMap authority one
// of an authority. An administrator has opened all ports.
func newWorld(t testing.TB, manifests string) *world {
	t.Helper()
	w := &world{
		namespaces: map[string]*corev1.Namespace{}, services: map[types.NamespacedName]*corev1.Service{},
		secrets: map[types.NamespacedName]*corev1.Secret{}, configMaps: map[types.NamespacedName]*corev1.ConfigMap{},
		slices: map[types.NamespacedName][]*discoveryv1.EndpointSlice{},
	}
	w.in = Input{
		Namespace: func(name string) *corev1.Namespace { return w.namespaces[name] },
		Service:   func(namespace, name string) *corev1.Service { return w.services[nameOf(namespace, name)] },
		Secret:    func(namespace, name string) *corev1.Secret { return w.secrets[nameOf(namespace, name)] },
		ConfigMap: func(namespace, name string) *corev1.ConfigMap { return w.configMaps[nameOf(namespace, name)] },
		Endpoints: func(service *corev1.Service, port *corev1.ServicePort) endpoints.Found {
			// What addresses endpoints may have is tested there.
			finder := &endpoints.Finder{
				Rules: endpoints.Rules{
					Allowed: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")},
					Owner:   func(netip.Addr) (string, bool) { return "", false },
				},
				Slices: w.in.Slices, Nodes: func() []*corev1.Node { return nil }, Pool: func(netip.Addr) string { return "" },
			}
			return finder.Of(service, port)
		},
		Slices: func(namespace, name string) []*discoveryv1.EndpointSlice {
			return w.slices[nameOf(namespace, name)]
		},
		Certificate: certificates.Read,
		Offered:     func(string, map[string]string) bool { return false },
	}
	for port := range 65535 {
		w.in.Ports = append(w.in.Ports, uint16(port+1))
	}
	chain, key := newCertificate(t)
	w.addNamespace("infra")
	w.addNamespace("other")
	w.secrets[nameOf("infra", "certificate")] = &corev1.Secret{Data: map[string][]byte{corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key}}
	w.secrets[nameOf("other", "certificate")] = &corev1.Secret{Data: map[string][]byte{corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key}}
	w.secrets[nameOf("infra", "malformed")] = &corev1.Secret{Data: map[string][]byte{corev1.TLSCertKey: []byte("Hello"), corev1.TLSPrivateKeyKey: []byte("Hello")}}
	w.secrets[nameOf("infra", "empty")] = &corev1.Secret{}
	w.configMaps[nameOf("infra", "authority")] = &corev1.ConfigMap{Data: map[string]string{authorityKey: string(chain)}}
	w.configMaps[nameOf("other", "authority")] = w.configMaps[nameOf("infra", "authority")]
	w.configMaps[nameOf("infra", "text")] = &corev1.ConfigMap{Data: map[string]string{authorityKey: "Hello"}}
	w.in.Classes = append(w.in.Classes, &gwv1.GatewayClass{
		ObjectMeta: metav1.ObjectMeta{Name: "kedge"}, Spec: gwv1.GatewayClassSpec{ControllerName: Controller},
	})
	w.add(t, manifests)
	return w
}

func nameOf(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

func (w *world) addNamespace(name string) {
	if w.namespaces[name] == nil {
		w.namespaces[name] = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}}}
	}
}

// add adds the objects of manifests.
func (w *world) add(t testing.TB, manifests string) {
	t.Helper()
	reader := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(manifests)))
	for created := time.Unix(1_700_000_000, 0); ; created = created.Add(time.Minute) {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(document, &kind); err != nil {
			t.Fatal(err)
		}
		switch kind.Kind {
		case "GatewayClass":
			w.in.Classes = append(w.in.Classes, decode[gwv1.GatewayClass](t, document))
		case "Gateway":
			w.in.Gateways = append(w.in.Gateways, dated(w, decode[gwv1.Gateway](t, document), created))
		case "ListenerSet":
			w.in.ListenerSets = append(w.in.ListenerSets, dated(w, decode[gwv1.ListenerSet](t, document), created))
		case "ReferenceGrant":
			w.in.Grants = append(w.in.Grants, dated(w, decode[gwv1.ReferenceGrant](t, document), created))
		case "Namespace":
			namespace := decode[corev1.Namespace](t, document)
			w.namespaces[namespace.Name] = namespace
		default:
			w.addForRoutes(t, kind.Kind, document, created)
		}
	}
}

func decode[T any](t testing.TB, document []byte) *T {
	t.Helper()
	object := new(T)
	if err := yaml.UnmarshalStrict(document, object); err != nil {
		t.Fatal(err)
	}
	return object
}

func dated[T metav1.Object](w *world, object T, created time.Time) T {
	if object.GetNamespace() == "" {
		object.SetNamespace("infra")
	}
	w.addNamespace(object.GetNamespace())
	if stamp := object.GetCreationTimestamp(); stamp.IsZero() {
		object.SetCreationTimestamp(metav1.NewTime(created))
	}
	return object
}

// compile compiles the objects.
func (w *world) compile() *Result {
	run := Begin(&w.in)
	return run.Finish(hosts.Decide(run.Claims(), nil))
}

// serve compiles the objects twice. In between, each front gets a Service with an address and
// a node that listens.
func (w *world) serve() *Result {
	for _, f := range w.compile().Fronts {
		w.giveService(f)
	}
	return w.compile()
}

// giveService makes the Service of a front, with the addresses that it asks for, or another.
func (w *world) giveService(f front.Front) *corev1.Service {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: f.Name.Namespace, Name: f.Name.Name}}
	slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}}
	for i, port := range f.Ports {
		name, protocol := fmt.Sprintf("port-%d", i), corev1.Protocol(strings.ToUpper(string(port.Transport)))
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: name, Port: int32(port.Number), Protocol: protocol})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: ptr.To(int32(30000 + i))})
	}
	addresses := f.Addresses
	if len(addresses) == 0 {
		addresses = []string{"192.0.2.1"}
	}
	for _, address := range addresses {
		service.Status.LoadBalancer.Ingress = append(service.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: address})
	}
	w.services[f.Name], w.slices[f.Name] = service, []*discoveryv1.EndpointSlice{slice}
	return service
}

// newCertificate returns a certificate and its key, in PEM.
func newCertificate(t testing.TB) (chain, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"example.org"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text})
}

// conditionsOf writes the conditions of all Gateways and listener sets, and of their listeners,
// as NAME[/LISTENER] TYPE=STATUS REASON. It also has NAME sets=NUMBER of Gateways.
func conditionsOf(result *Result) []string {
	var lines []string
	add := func(name string, conditions []metav1.Condition) {
		for _, condition := range conditions {
			lines = append(lines, fmt.Sprintf("%s %s=%s %s", name, condition.Type, condition.Status, condition.Reason))
		}
	}
	for g, status := range result.Gateways {
		add(g.Name, status.Conditions)
		lines = append(lines, fmt.Sprintf("%s sets=%d", g.Name, ptr.Deref(status.AttachedListenerSets, -1)))
		for _, l := range status.Listeners {
			add(g.Name+"/"+string(l.Name), l.Conditions)
			lines = append(lines, g.Name+"/"+string(l.Name)+" kinds="+kindsText(l.SupportedKinds))
		}
	}
	for s, status := range result.ListenerSets {
		add(s.Name, status.Conditions)
		for _, l := range status.Listeners {
			add(s.Name+"/"+string(l.Name), l.Conditions)
		}
	}
	slices.Sort(lines)
	return lines
}

func kindsText(kinds []gwv1.RouteGroupKind) string {
	var texts []string
	for _, kind := range kinds {
		texts = append(texts, string(kind.Kind))
	}
	return strings.Join(texts, ",")
}

// expect checks that lines of conditionsOf are there. A line that begins with "!" must not be.
func expect(t testing.TB, result *Result, wanted ...string) {
	t.Helper()
	lines := conditionsOf(result)
	for _, line := range wanted {
		unwanted, not := strings.CutPrefix(line, "!")
		if not {
			if slices.ContainsFunc(lines, func(has string) bool { return strings.HasPrefix(has, unwanted) }) {
				t.Errorf("there is %q", unwanted)
			}
		} else if !slices.Contains(lines, line) {
			t.Errorf("missing %q", line)
		}
	}
	if t.Failed() {
		t.Logf("it has:\n%s", strings.Join(lines, "\n"))
	}
}
