package gatewaycontrol

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/base/published"
	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/kinds"
)

// nodes are two nodes, of which n listens.
const nodes = `
apiVersion: v1
kind: Node
metadata: {name: "n", annotations: {gateway.kedge.dev/listening: "30080/tcp"}}
spec: {podCIDRs: [10.42.0.0/24]}
status:
  addresses: [{type: InternalIP, address: 192.0.2.66}, {type: InternalIP, address: 192.0.2.1}, {type: Hostname, address: "n"}]
  conditions: [{type: Ready, status: "True"}]
---
apiVersion: v1
kind: Node
metadata: {name: m}
status:
  addresses: [{type: InternalIP, address: 192.0.2.2}]
  conditions: [{type: Ready, status: "True"}]
---
`

// class is kedge's class.
const class = `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: kedge}
spec: {controllerName: kedge.dev/gateway}
---
`

// app is a Service with one endpoint, its namespace, and a pod with several addresses.
const app = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec: {clusterIP: 10.43.0.9, ports: [{name: http, port: 80, protocol: TCP}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: web}
spec: {nodeName: "n"}
status: {phase: Running, podIPs: [{ip: 10.42.0.5}, {ip: 10.42.0.6}, {ip: 10.42.0.7}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.42.0.5], conditions: {ready: true}, targetRef: {kind: Pod, name: web}}]
---
`

// lan is a pool for Gateways with addresses of their own.
const lan = `
apiVersion: kedge.dev/v1alpha1
kind: LoadBalancerPool
metadata: {name: lan}
spec: {addresses: [192.0.2.240/28]}
---
`

const gatewayAndRoute = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: shop, name: door, generation: 1}
spec:
  gatewayClassName: kedge
  listeners: [{name: http, port: 80, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {namespace: shop, name: web, generation: 1}
spec:
  parentRefs: [{name: door}]
  hostnames: [shop.example]
  rules: [{backendRefs: [{name: web, port: 80}]}]
---
`

const anIngress = `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: shop, name: web}
spec:
  ingressClassName: kedge
  rules: [{host: shop.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
---
`

// TestRest has a cluster in which nothing is kedge's business.
func TestRest(t *testing.T) {
	const foreign = `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: other}
spec: {controllerName: example.com/other}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: shop, name: theirs}
spec: {gatewayClassName: other, listeners: [{name: http, port: 80, protocol: HTTP}]}
`
	run(t, nodes+class+app+foreign, func(w *world) {
		// The Controller's are in the cache of every server.
		if got := w.listed(); !slices.Equal(got, []string{"endpointslices", "gatewayclasses", "gateways", "ingressclasses", "ingresses", "nodes", "services"}) {
			t.Errorf("it lists %v", got)
		}
		if w.shared() != nil || w.updates != 1 || len(w.served().Sockets)+len(w.served().Routes) != 0 {
			t.Errorf("the node is told %+v, in %d updates", w.served(), w.updates)
		}
		if got := w.condition(kinds.Classes, "", "kedge", "Accepted"); got != "True/Accepted" {
			t.Errorf("the class is accepted: %s", got)
		}
		if got := w.condition(kinds.Gateways, "shop", "theirs", "Accepted"); got != "" {
			t.Errorf("somebody else's Gateway is accepted: %s", got)
		}
	})
}

// TestGateway has a cluster that gets its first Gateway, and loses its last one.
func TestGateway(t *testing.T) {
	run(t, nodes+class+app, func(w *world) {
		for turn := range 2 {
			w.listed()
			w.apply(gatewayAndRoute)
			w.settle()
			want := []string{"backendtlspolicies", "grpcroutes", "httproutes", "listenersets", "loadbalancerpools", "referencegrants", "tcproutes", "tlsroutes", "udproutes"}
			if turn == 0 {
				// From the cache of the process.
				want = append(want, "namespaces", "pods", "secrets")
				slices.Sort(want)
			}
			if got := w.listed(); !slices.Equal(got, want) {
				t.Errorf("turn %d: it lists %v", turn, got)
			}
			service := w.shared()
			if service == nil || len(service.Spec.Ports) != 1 || service.Spec.Ports[0].TargetPort.IntValue() != 30080 {
				t.Fatalf("turn %d: the Service is %+v", turn, service)
			}
			state := w.served()
			socket := state.Sockets["30080/tcp"]
			if len(state.Sockets) != 1 || socket == nil || socket.PublicPort != 80 || len(socket.Trusted) != 1 {
				t.Errorf("turn %d: the node has sockets %v", turn, state.Sockets)
			}
			if backend := state.Backends["shop/web:80"]; backend == nil || len(backend.Endpoints) != 1 {
				t.Errorf("turn %d: the node has backends %v", turn, state.Backends)
			}
			if got := w.endpoints("kedge-gateway"); !slices.Equal(got, []string{"n=192.0.2.1"}) {
				t.Errorf("turn %d: the endpoints are %v", turn, got)
			}
			if got := w.condition(kinds.Gateways, "shop", "door", "Accepted"); got != "True/Accepted" {
				t.Errorf("turn %d: the Gateway is accepted: %s", turn, got)
			}
			if got := w.condition(kinds.HTTPRoutes, "shop", "web", "Accepted"); got != "True/Accepted" {
				t.Errorf("turn %d: the route is accepted: %s", turn, got)
			}
			if got := w.condition(kinds.Gateways, "shop", "door", "Programmed"); got == "True/Programmed" {
				t.Errorf("turn %d: a Gateway without addresses is programmed", turn)
			}
			service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
			if _, err := w.api.CoreV1().Services(service.Namespace).UpdateStatus(w.ctx, service, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			w.settle()
			if got := w.condition(kinds.Gateways, "shop", "door", "Programmed"); got != "True/Programmed" {
				t.Errorf("turn %d: the Gateway is programmed: %s", turn, got)
			}

			// Endpoints that change reach the node. Others do not even lead to a run.
			told := w.updates
			w.apply(app[:len(app)-len("endpoints: [{addresses: [10.42.0.5], conditions: {ready: true}, targetRef: {kind: Pod, name: web}}]\n---\n")] +
				"endpoints: [{addresses: [10.42.0.6], targetRef: {kind: Pod, name: web}}, {addresses: [10.42.0.7], targetRef: {kind: Pod, name: web}}]\n")
			w.settle()
			if got := w.served().Backends["shop/web:80"].Endpoints; len(got) != 2 || w.updates != told+1 {
				t.Errorf("turn %d: the endpoints are %v after %d updates", turn, got, w.updates-told)
			}
			before, _ := w.compiler.newest.Get()
			w.apply("apiVersion: v1\nkind: Secret\nmetadata: {namespace: shop, name: other}\n---\napiVersion: v1\nkind: Service\nmetadata: {namespace: shop, name: other}\n")
			w.settle()
			if now, _ := w.compiler.newest.Get(); now != before {
				t.Errorf("turn %d: objects that nobody refers to lead to a run", turn)
			}
			w.writes()
			w.settle()
			if got := w.writes(); len(got) != 0 {
				t.Errorf("turn %d: nothing changes, and it writes %v", turn, got)
			}

			w.remove(kinds.Gateways, "shop", "door")
			w.settle()
			if w.shared() != nil || len(w.endpoints("kedge-gateway")) != 0 {
				t.Errorf("turn %d: after the last Gateway there are the Service %v and endpoints %v", turn, w.shared(), w.endpoints("kedge-gateway"))
			}
			if state := w.served(); len(state.Sockets)+len(state.Routes)+len(state.Backends) != 0 {
				t.Errorf("turn %d: after the last Gateway the node serves %+v", turn, state)
			}
			w.apply(app)
		}
	})
}

// TestIngress has only an Ingress.
func TestIngress(t *testing.T) {
	run(t, nodes+class+app+anIngress, func(w *world) {
		if got := w.listed(); slices.Contains(got, "httproutes") || slices.Contains(got, "configmaps") {
			t.Errorf("without a Gateway it lists %v", got)
		}
		service := w.shared()
		if service == nil {
			t.Fatal("there is no Service")
		}
		if state := w.served(); len(state.Sockets) != 1 || len(state.Backends) != 1 {
			t.Errorf("the node serves %+v", state)
		}
		service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		if _, err := w.api.CoreV1().Services(service.Namespace).UpdateStatus(w.ctx, service, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle()
		got, err := w.api.NetworkingV1().Ingresses("shop").Get(w.ctx, "web", metav1.GetOptions{})
		if err != nil || len(got.Status.LoadBalancer.Ingress) != 1 || got.Status.LoadBalancer.Ingress[0].IP != "192.0.2.1" {
			t.Errorf("the Ingress has the status %+v (%v)", got.Status, err)
		}
		w.apply(gatewayAndRoute)
		w.settle()
		if sockets := w.served().Sockets; len(sockets) != 1 || len(sockets["30080/tcp"].Listeners) < 2 {
			t.Errorf("a Gateway and an Ingress have the sockets %v", sockets)
		}
	})
}

// TestEligible has nodes that load balancers leave out.
func TestEligible(t *testing.T) {
	run(t, nodes+class+app+gatewayAndRoute, func(w *world) {
		if len(w.served().Sockets) != 1 {
			t.Fatalf("the node serves %+v", w.served())
		}
		label := func(labels map[string]string) {
			node, err := w.api.CoreV1().Nodes().Get(w.ctx, "n", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			node.Labels = labels
			if _, err := w.api.CoreV1().Nodes().Update(w.ctx, node, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			w.settle()
		}
		label(map[string]string{corev1.LabelNodeExcludeBalancers: ""})
		if state := w.served(); len(state.Sockets)+len(state.Routes) != 0 || len(w.endpoints("kedge-gateway")) != 0 {
			t.Errorf("a node that is excluded serves %+v, and the endpoints are %v", state, w.endpoints("kedge-gateway"))
		}
		label(nil)
		if len(w.served().Sockets) != 1 || len(w.endpoints("kedge-gateway")) != 1 {
			t.Errorf("a node that is no longer excluded serves %+v", w.served())
		}
	})
}

// TestParts has a Gateway with an address of a pool. Only the nodes of the pool learn anything of it.
func TestParts(t *testing.T) {
	const pooled = `
apiVersion: kedge.dev/v1alpha1
kind: LoadBalancerPool
metadata: {name: vault}
spec: {addresses: [192.0.2.100], nodeSelector: {matchLabels: {pool: vault}}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: shop, name: vault, generation: 1}
spec:
  gatewayClassName: kedge
  infrastructure: {annotations: {kedge.dev/pool: vault}}
  listeners: [{name: other, port: 81, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {namespace: shop, name: secret, generation: 1}
spec:
  parentRefs: [{name: vault}]
  rules: [{backendRefs: [{name: secret, port: 80}]}]
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: secret}
spec: {clusterIP: 10.43.0.10, ports: [{name: http, port: 80, protocol: TCP}]}
---
`
	run(t, nodes+class+app+pooled+anIngress, func(w *world) {
		// got has the sockets, routes and backends that a node is told.
		got := func(node string) (sockets, routes, backends []string) {
			state := w.compiler.before().parts.of(node)
			return slices.Sorted(maps.Keys(state.Sockets)), slices.Sorted(maps.Keys(state.Routes)), slices.Sorted(maps.Keys(state.Backends))
		}
		check := func(when, node string, sockets, backends []string) {
			t.Helper()
			s, r, b := got(node)
			if !slices.Equal(s, sockets) || !slices.Equal(b, backends) || len(r) != len(sockets) {
				t.Errorf("%s node %s has sockets %v, routes %v, backends %v", when, node, s, r, b)
			}
		}
		web := []string{"Ingress/shop/web:80/http"}
		check("without labels", "n", []string{"30080/tcp"}, web)
		check("without labels", "m", []string{"30080/tcp"}, web)
		if len(w.served().Sockets) != 1 || len(w.served().Backends) != 1 {
			t.Errorf("the node is told %+v", w.served())
		}
		label := func(node string, labels map[string]string) {
			object, err := w.api.CoreV1().Nodes().Get(w.ctx, node, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			object.Labels = labels
			if _, err := w.api.CoreV1().Nodes().Update(w.ctx, object, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			w.settle()
		}
		label("m", map[string]string{"pool": "vault", corev1.LabelNodeExcludeBalancers: ""})
		check("when it is excluded", "m", nil, nil)
		updates := w.updates
		label("m", map[string]string{"pool": "vault"})
		check("with the label of the pool", "m", []string{"30080/tcp", "30081/tcp"}, []string{web[0], "shop/secret:80"})
		check("beside it", "n", []string{"30080/tcp"}, web)
		if w.updates != updates {
			t.Errorf("node n is told %d times of what is not for it", w.updates-updates)
		}
		label("m", map[string]string{"pool": "vault", servicelb.EnableLabel: "false"})
		check("when only the pool chooses it", "m", []string{"30081/tcp"}, []string{"shop/secret:80"})
		check("when no node is enabled", "n", nil, nil)
		if len(w.served().Sockets) != 0 {
			t.Errorf("the node still serves %+v", w.served())
		}
	})
}

// TestHostPorts has a node whose pod has a host port of the shared front.
func TestHostPorts(t *testing.T) {
	const pod = `
apiVersion: v1
kind: Pod
metadata: {namespace: ingress, name: nginx}
spec: {nodeName: "n", containers: [{name: c, ports: [{containerPort: 8080, hostPort: 80}]}]}
`
	run(t, nodes+class+app+gatewayAndRoute+pod, func(w *world) {
		if got := w.endpoints("kedge-gateway"); len(got) != 0 {
			t.Errorf("beside a pod with the host port the endpoints are %v", got)
		}
		if got := w.events(); !slices.Equal(got, []string{"HostPortInUse Service kube-system/kedge-gateway ×1"}) {
			t.Errorf("the Events are %v", got)
		}
		if err := w.api.CoreV1().Pods("ingress").Delete(w.ctx, "nginx", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle()
		if got := w.endpoints("kedge-gateway"); len(got) != 1 {
			t.Errorf("when the pod has gone the endpoints are %v", got)
		}
	})
}

// TestTaken has a Service of the user with the name of a front.
func TestTaken(t *testing.T) {
	const theirs = `
apiVersion: v1
kind: Service
metadata: {namespace: kube-system, name: kedge-gateway}
spec: {type: LoadBalancer, selector: {app: mine}, ports: [{name: x, port: 80, nodePort: 31000, protocol: TCP, targetPort: 31000}]}
status: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}}
---
`
	run(t, nodes+class+app+theirs+gatewayAndRoute+"---\n"+anIngress, func(w *world) {
		if service := w.shared(); service.Spec.Selector["app"] != "mine" || len(service.Labels) != 0 {
			t.Errorf("the user's Service is %+v", service)
		}
		if got := w.condition(kinds.Gateways, "shop", "door", "Programmed"); got != "False/AddressNotAssigned" {
			t.Errorf("the Gateway is programmed: %s", got)
		}
		if len(w.served().Sockets) != 0 {
			t.Errorf("the node has sockets %v", w.served().Sockets)
		}
		want := []string{"ServiceExists Gateway shop/door ×1", "ServiceExists Ingress shop/web ×1"}
		if got := w.events(); !slices.Equal(got, want) {
			t.Errorf("the Events are %v", got)
		}
		if err := w.api.CoreV1().Services("kube-system").Delete(w.ctx, "kedge-gateway", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle()
		if !front.IsFront(w.shared()) || len(w.served().Sockets) != 1 {
			t.Errorf("when the name is free, the Service is %+v", w.shared())
		}
	})
}

// TestFaults has a route to a Service that does not exist.
func TestFaults(t *testing.T) {
	const namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\n"
	run(t, nodes+class+namespace+gatewayAndRoute, func(w *world) {
		if got := w.condition(kinds.HTTPRoutes, "shop", "web", "ResolvedRefs"); got != "False/BackendNotFound" {
			t.Errorf("the route has ResolvedRefs: %s", got)
		}
		told := func() (count int) {
			for _, event := range w.events() {
				if event == "BackendNotFound HTTPRoute shop/web ×1" {
					count++
				}
			}
			return count
		}
		if told() != 1 {
			t.Errorf("the Events are %v", w.events())
		}
		w.apply("apiVersion: v1\nkind: Secret\nmetadata: {namespace: shop, name: other}\n")
		w.compiler.changes.Notify()
		w.settle()
		if told() != 1 {
			t.Errorf("after another run the Events are %v", w.events())
		}
		w.apply(app)
		w.settle()
		if got := w.condition(kinds.HTTPRoutes, "shop", "web", "ResolvedRefs"); got != "True/ResolvedRefs" {
			t.Errorf("with the Service the route has ResolvedRefs: %s", got)
		}
		if len(w.served().Backends) != 1 {
			t.Errorf("the node has backends %v", w.served().Backends)
		}
	})
}

// TestWatchLater has a watch that begins when there is a result, and one whose send fails.
func TestWatchLater(t *testing.T) {
	run(t, nodes+class+app+gatewayAndRoute, func(w *world) {
		var got routing.Update
		fails := func(update routing.Update) error {
			got = update
			return published.ErrEnded
		}
		if err := w.compiler.Watch(w.ctx, "n", fails); err != published.ErrEnded || !got.Whole || len(got.Sockets) != 1 {
			t.Errorf("got %+v, and the error %v", got, err)
		}
		if err := w.compiler.Watch(w.ctx, "unknown", fails); err != published.ErrEnded || !got.Whole || len(got.Sockets)+len(got.Certificates) != 0 {
			t.Errorf("an unknown node gets %+v, and the error %v", got, err)
		}
	})
}
