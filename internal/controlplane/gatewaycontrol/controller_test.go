package gatewaycontrol

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	k8stesting "k8s.io/client-go/testing"

	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/kinds"
)

// TestFailure has a route whose status cannot be written for a while.
func TestFailure(t *testing.T) {
	run(t, nodes+class+app, func(w *world) {
		attempts := 0
		w.custom.PrependReactor("patch", kinds.HTTPRoutes.Resource, func(action k8stesting.Action) (bool, runtime.Object, error) {
			if action.(k8stesting.PatchAction).GetName() != "bad" {
				return false, nil, nil
			}
			if attempts++; attempts > 3 {
				return false, nil, nil
			}
			if attempts == 2 {
				return true, nil, apierrors.NewConflict(schema.GroupResource{}, "bad", errors.New("newer"))
			}
			return true, nil, apierrors.NewInternalError(errors.New("no"))
		})
		w.apply(strings.Replace(gatewayAndRoute, "{namespace: shop, name: web, generation: 1}", "{namespace: shop, name: bad, generation: 1}", 1) + gatewayAndRoute)
		w.settle()
		if got := w.condition(kinds.HTTPRoutes, "shop", "web", "Accepted"); got != "True/Accepted" {
			t.Errorf("beside a route that cannot be written, another one is accepted: %s", got)
		}
		time.Sleep(5 * loop.LastWait)
		w.settle()
		if got := w.condition(kinds.HTTPRoutes, "shop", "bad", "Accepted"); got != "True/Accepted" {
			t.Errorf("after %d attempts the route is accepted: %s", attempts, got)
		}
	})
}

// TestOwnFront has a Gateway with an address of its own, which it changes.
func TestOwnFront(t *testing.T) {
	const gateway = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: shop, name: own, generation: 1}
spec:
  gatewayClassName: kedge
  infrastructure: {annotations: {gateway.kedge.dev/external-traffic-policy: Cluster}, labels: {team: shop}}
  addresses: [{value: 192.0.2.240}]
  listeners: [{name: http, port: 80, protocol: HTTP}]
`
	run(t, nodes+class+app+lan+gateway, func(w *world) {
		service := w.service("shop", "own-kedge")
		if service == nil || w.shared() != nil {
			t.Fatalf("the Services are %v and %v", service, w.shared())
		}
		if service.Annotations[servicelb.AddressAnnotation] != "192.0.2.240" || service.Labels["team"] != "shop" ||
			service.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyCluster || len(service.OwnerReferences) != 1 {
			t.Errorf("the Service is %+v", service)
		}
		if got := w.endpoints("own-kedge"); !slices.Equal(got, []string{"n=192.0.2.1"}) {
			t.Errorf("the endpoints are %v", got)
		}
		// Somebody removes a slice and changes the Service.
		if err := w.api.DiscoveryV1().EndpointSlices("shop").Delete(w.ctx, "own-kedge-ipv4", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		service.Spec.Ports[0].TargetPort.IntVal, service.Annotations["theirs"] = 1, "x"
		if _, err := w.api.CoreV1().Services("shop").Update(w.ctx, service, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle()
		service = w.service("shop", "own-kedge")
		if service.Spec.Ports[0].TargetPort.IntVal != 30080 || service.Annotations["theirs"] != "x" || len(w.endpoints("own-kedge")) != 1 {
			t.Errorf("after somebody's change the Service is %+v, and its endpoints are %v", service, w.endpoints("own-kedge"))
		}
		w.apply(strings.Replace(gateway, "  addresses: [{value: 192.0.2.240}]\n", "", 1))
		w.settle()
		if w.service("shop", "own-kedge") != nil || !front.IsFront(w.shared()) {
			t.Errorf("without an address the Gateway has the Services %v and %v", w.service("shop", "own-kedge"), w.shared())
		}
		w.apply(`
apiVersion: kedge.dev/v1alpha1
kind: LoadBalancerPool
metadata: {name: lan}
spec: {addresses: [192.0.2.240/28], namespaceSelector: {matchLabels: {}}}
`)
		w.settle()
		if w.service("shop", "own-kedge") == nil || w.shared() != nil {
			t.Error("a pool offers the Gateway an address, and it has no Service of its own")
		}
	})
}

// TestKeptFront has Gateways whose listeners cannot be served for a while. Their Services stay,
// with their ports, and nothing listens.
func TestKeptFront(t *testing.T) {
	const gateway = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: shop, name: own, generation: 1}
spec:
  gatewayClassName: kedge
  addresses: [{value: 192.0.2.240}]
  listeners: [{name: http, port: 80, protocol: HTTP}]
`
	shared := strings.Replace(strings.Replace(gateway, "  addresses: [{value: 192.0.2.240}]\n", "", 1), "name: own,", "name: shared,", 1)
	badKinds := strings.NewReplacer("protocol: HTTP}", "protocol: HTTP, allowedRoutes: {kinds: [{kind: Nonsense}]}}")
	badProtocol := strings.NewReplacer("protocol: HTTP}", "protocol: example.com/x}")
	badAddress := strings.NewReplacer("192.0.2.240", "nonsense", "listeners:", "infrastructure: {parametersRef: {group: a, kind: b, name: c}}\n  listeners:")
	run(t, nodes+class+app+lan, func(w *world) {
		w.apply(badKinds.Replace(gateway))
		w.apply(badKinds.Replace(shared))
		w.settle()
		if w.service("shop", "own-kedge") != nil || w.shared() != nil {
			t.Error("Gateways that were never served have Services")
		}
		for _, broken := range []*strings.Replacer{badKinds, badProtocol, badAddress} {
			w.apply(gateway)
			w.apply(shared)
			w.settle()
			if len(w.served().Sockets) == 0 || len(w.endpoints("own-kedge")) != 1 || len(w.endpoints("kedge-gateway")) != 1 {
				t.Fatalf("the node serves %+v", w.served().Sockets)
			}
			w.writes()
			w.apply(broken.Replace(gateway))
			w.apply(broken.Replace(shared))
			w.settle()
			for _, service := range []*corev1.Service{w.service("shop", "own-kedge"), w.shared()} {
				if service == nil || len(service.Spec.Ports) != 1 || service.Spec.Ports[0].TargetPort.IntVal != 30080 {
					t.Errorf("while no listener is served, the Service is %+v", service)
				}
			}
			if got := w.writes(); slices.Contains(got, "create services") || slices.Contains(got, "delete services") {
				t.Errorf("it writes %v", got)
			}
			if sockets := w.served().Sockets; len(sockets) != 0 || len(w.endpoints("own-kedge"))+len(w.endpoints("kedge-gateway")) != 0 {
				t.Errorf("while no listener is served, the node has %v, and there are endpoints", sockets)
			}
			if got := w.condition(kinds.Gateways, "shop", "own", "Programmed"); got != "False/Invalid" {
				t.Errorf("while no listener is served, the Gateway is programmed: %s", got)
			}
		}
		w.remove(kinds.Gateways, "shop", "own")
		w.remove(kinds.Gateways, "shop", "shared")
		w.settle()
		if w.service("shop", "own-kedge") != nil || w.shared() != nil {
			t.Error("without Gateways there are Services")
		}
	})
}

// TestForeignSlice has an EndpointSlice of the user with the name of one of kedge's.
func TestForeignSlice(t *testing.T) {
	const theirs = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: kube-system, name: kedge-gateway-ipv4}
addressType: IPv4
endpoints: [{addresses: [192.0.2.9]}]
---
`
	run(t, nodes+class+app+theirs+gatewayAndRoute, func(w *world) {
		slice, err := w.api.DiscoveryV1().EndpointSlices("kube-system").Get(w.ctx, "kedge-gateway-ipv4", metav1.GetOptions{})
		if err != nil || slice.Endpoints[0].Addresses[0] != "192.0.2.9" {
			t.Errorf("the user's EndpointSlice is %+v (%v)", slice, err)
		}
		if got := w.condition(kinds.Gateways, "shop", "door", "Accepted"); got != "True/Accepted" {
			t.Errorf("the Gateway is accepted: %s", got)
		}
	})
}

// TestConfigMap has a policy that refers to a ConfigMap, which comes later.
func TestConfigMap(t *testing.T) {
	const policy = `
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {namespace: shop, name: tls, generation: 1}
spec:
  targetRefs: [{group: "", kind: Service, name: web}]
  validation: {hostname: web.example, caCertificateRefs: [{group: "", kind: ConfigMap, name: ca}]}
---
`
	run(t, nodes+class+app+policy+gatewayAndRoute, func(w *world) {
		if got := w.listed(); !slices.Contains(got, "configmaps") {
			t.Errorf("with a reference to a ConfigMap it lists %v", got)
		}
		before, _ := w.compiler.newest.Get()
		w.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: shop, name: other}\n")
		w.settle()
		if now, _ := w.compiler.newest.Get(); now != before {
			t.Error("a ConfigMap that nobody refers to leads to a run")
		}
		w.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: shop, name: ca}\ndata: {ca.crt: nonsense}\n")
		w.settle()
		if now, _ := w.compiler.newest.Get(); now == before {
			t.Error("the ConfigMap changes nothing")
		}
	})
}

// TestAbsentKinds has an API server that does not know some kinds.
func TestAbsentKinds(t *testing.T) {
	run(t, nodes+class+app, func(w *world) {
		w.custom.PrependReactor("list", kinds.TCPRoutes.Resource, func(k8stesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewNotFound(kinds.TCPRoutes.GroupResource(), "")
		})
		w.apply(gatewayAndRoute)
		w.settle()
		if len(w.served().Sockets) != 1 {
			t.Errorf("without the kind TCPRoute the node serves %+v", w.served())
		}
	})
}
