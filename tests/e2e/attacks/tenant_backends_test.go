package attacks

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// backends is a tenant who writes EndpointSlices, on a cluster of two nodes, with a client outside.
type backends struct {
	*cluster.Cluster
	*tenant
	client *harness.Host
}

// listed makes a Service without a selector and an Ingress NAME.example.com for it, with an endpoint of
// the tenant's choice. reference is its targetRef, or empty.
func (b *backends) listed(name, address, port, reference string) {
	b.Helper()
	if reference != "" {
		reference = ", targetRef: " + reference
	}
	b.must(fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec: {ports: [{port: 80, name: http}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{port: %[3]s, name: http}]
endpoints: [{addresses: [%[2]s]%[4]s}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: %[1]s}
spec: {rules: [{host: %[1]s.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: %[1]s, port: {number: 80}}}}]}}]}
`, name, address, port, reference))
}

// must applies objects as the tenant.
func (b *backends) must(objects string) {
	b.Helper()
	b.Eventually("the tenant's objects to be applied", func() error {
		_, err := b.tenant.kubectl(objects, "apply", "-f", "-")
		return err
	})
}

// ask asks the gateway of a node for a host, and returns the status and the body.
func (b *backends) ask(node *harness.Host, name string) (int, string, error) {
	return b.get(net.JoinHostPort(node.Address.String(), "80"), name+".example.com")
}

// get asks an address from outside.
func (b *backends) get(address, name string) (int, string, error) {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: b.client.DialContext, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return 0, "", err
	}
	request.Host = name
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// answers waits until the gateway of a node answers for a host with a status.
func (b *backends) answers(node *harness.Host, name string, status int) (body string) {
	b.Helper()
	b.Eventually(fmt.Sprintf("%s.example.com at %s to answer %d", name, node.Name, status), func() error {
		got, text, err := b.ask(node, name)
		if err == nil && got != status {
			err = fmt.Errorf("it answers %d: %s", got, text)
		}
		body = text
		return err
	})
	return body
}

// webPod is a pod of a namespace that answers on WebPort, as Pod Security restricted wants it.
func webPod(namespace, name, node string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[2]s, namespace: %[1]s, labels: {app: %[2]s}}
spec:
  nodeName: %[3]s
  terminationGracePeriodSeconds: 1
  securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: main
    image: %[4]s
    args: [serve, %[5]q]
    readinessProbe: {httpGet: {path: /, port: %[5]s}, periodSeconds: 1}
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
`, namespace, name, node, image.TestserverName, cluster.WebPort)
}

// TestTenantBackends lets a user of one namespace lead the gateway to pods of others, to nodes, and to
// hosts beside them. The victim is a pod that a NetworkPolicy isolates. The gateway of the pod's own node
// reaches it, whatever policies say.
func TestTenantBackends(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	outside := network.NewHost(t, "outside")
	// The administrator has allowed a network, and then made a pool of some of its addresses.
	c := cluster.Start(t, network, "--gateway-backend-ranges="+outside.Address.String()+",172.31.0.96/28", "--gateway-ports=5353")
	c.Apply("apiVersion: kedge.dev/v1alpha1\nkind: LoadBalancerPool\nmetadata: {name: lan}\nspec: {addresses: [172.31.0.100]}\n")
	agent := c.Join(network, "agent-1").Host
	b := &backends{c, newTenant(c), network.NewHost(t, "client")}
	c.Kubectl("label", "namespace", "tenant", "pod-security.kubernetes.io/enforce=restricted")
	b.must(webPod("tenant", "own", c.Server.Host.Name))
	c.Kubectl("wait", "--namespace=tenant", "pod/own", "--for=condition=Ready", "--timeout="+cluster.Patience.String())
	ownIP := c.Kubectl("get", "pod", "own", "--namespace=tenant", "-o", "jsonpath={.status.podIP}")
	victim := c.RunWeb("victim", agent.Name)
	// The victim takes packets of one address only, which no pod has. By VXLAN an attacker could send from it.
	friend := netip.MustParsePrefix(c.Kubectl("get", "node", c.Server.Host.Name, "-o", "jsonpath={.spec.podCIDR}")).Addr().As4()
	friend[3] = 200
	forged := netip.AddrPortFrom(netip.AddrFrom4(friend), 5000)
	c.Apply("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: isolated}\n" +
		"spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress], ingress: [{from: [{ipBlock: {cidr: " + forged.Addr().String() + "/32}}]}]}\n")
	for _, host := range []*harness.Host{outside, b.client} {
		server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "outside") })} //nolint:gosec // a test
		listener := host.Listen(net.JoinHostPort(host.Address.String(), "8080"))
		go func() { _ = server.Serve(listener) }()
	}

	// Honest use: the own pod, by a list that names it, and what the administrator has allowed.
	const ownPod = "{kind: Pod, namespace: tenant, name: own}"
	b.listed("honest", ownIP, cluster.WebPort, ownPod)
	b.listed("allowed", outside.Address.String(), "8080", "")
	for _, attack := range []struct{ name, address, port, reference string }{
		{"by-address", victim.Status.PodIP, cluster.WebPort, ""},
		{"by-own-pod", victim.Status.PodIP, cluster.WebPort, ownPod},
		{"by-its-name", victim.Status.PodIP, cluster.WebPort, "{kind: Pod, namespace: default, name: victim}"},
		{"node", agent.Address.String(), "10250", ""},
		{"api", c.Server.Host.Address.String(), "6443", ""},
		{"service", "10.43.0.1", "443", ""},
		{"pool", "172.31.0.100", "80", ""},
		{"beside", b.client.Address.String(), "8080", ""},
	} {
		b.listed(attack.name, attack.address, attack.port, attack.reference)
		c.Told("tenant", attack.name, "does not connect to "+attack.address)
		for _, node := range []*harness.Host{c.Server.Host, agent} {
			b.answers(node, attack.name, 503)
			b.answers(node, "honest", 200)
			b.answers(node, "allowed", 200)
			if status, body, err := b.ask(node, attack.name); err != nil || status != 503 {
				t.Errorf("%s at %s: %s of the tenant's choice answers %d, %v: %s", attack.name, node.Name, attack.address, status, err, body)
			}
		}
	}
	c.Told("tenant", "beside", "gateway-backend-ranges: ["+b.client.Address.String()+"/32]")
	c.Told("tenant", "node", "No setting allows this")
	c.Told("tenant", "pool", "LoadBalancerPool lan", "No setting allows this")

	t.Log("a UDPRoute to the VXLAN port of a node, with a packet for the victim")
	process := processOf(c, agent, "victim")
	packet := datagram(forged, netip.AddrPortFrom(netip.MustParseAddr(victim.Status.PodIP), closedPort), "injected")
	packet = append([]byte{8, 0, 0, 0, 0, 0, 1, 0}, frame(net.HardwareAddr{2, 0, 0, 0, 9, 9}, mac(c, agent, "flannel.1"), packet)...)
	b.must(fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: vxlan}
spec: {ports: [{port: 8472, protocol: UDP, name: vxlan}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: vxlan, labels: {kubernetes.io/service-name: vxlan}}
addressType: IPv4
ports: [{port: 8472, protocol: UDP, name: vxlan}]
endpoints: [{addresses: [%s]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door}
spec: {gatewayClassName: kedge, listeners: [{name: a, port: 5353, protocol: UDP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: UDPRoute
metadata: {name: vxlan}
spec: {parentRefs: [{name: door, sectionName: a}], rules: [{backendRefs: [{name: vxlan, port: 8472}]}]}
`, agent.Address))
	before := refusedDatagrams(c, agent, process)
	c.Eventually("the route to say that the address is refused", func() error {
		status := c.Kubectl("get", "udproute", "vxlan", "--namespace=tenant", "-o", "jsonpath={.status.parents[0].conditions}")
		if !strings.Contains(status, "AddressNotPermitted") && refusedDatagrams(c, agent, process) == before {
			b.send(packet)
			return fmt.Errorf("its conditions are %s", status)
		}
		return nil
	})
	b.send(packet)
	// Nothing says that a datagram was dropped. Those of honest use take the same way after it.
	c.Kubectl("patch", "--namespace=tenant", "endpointslice", "vxlan", "--type=merge", fmt.Sprintf(`--patch={"ports": [{"port": %d, "protocol": "UDP", "name": "vxlan"}], `+
		`"endpoints": [{"addresses": [%q], "targetRef": {"kind": "Pod", "namespace": "tenant", "name": "own"}}]}`, closedPort, ownIP))
	ownProcess := processOf(c, c.Server.Host, "own")
	arrived := refusedDatagrams(c, c.Server.Host, ownProcess)
	c.Eventually("a datagram to reach the tenant's own pod", func() error {
		b.send([]byte("honest"))
		if refusedDatagrams(c, c.Server.Host, ownProcess) == arrived {
			return fmt.Errorf("none has arrived")
		}
		return nil
	})
	if count := refusedDatagrams(c, agent, process) - before; count != 0 {
		t.Errorf("a UDPRoute got %d packets into an isolated pod of another namespace", count)
	}
}

// send sends a datagram from outside to port 5353 of the server's node.
func (b *backends) send(data []byte) {
	b.Helper()
	b.sendTo(b.Cluster.Server.Host.Address.String(), "5353", data)
}

// sendTo sends a datagram from outside.
func (b *backends) sendTo(address, port string, data []byte) {
	b.Helper()
	text := base64.StdEncoding.EncodeToString(data)
	command := fmt.Sprintf("base64 -d <<<%s >/dev/udp/%s/%s", text, address, port)
	if output, err := b.client.Command(b.Context(), "bash", "-c", command).CombinedOutput(); err != nil {
		b.Fatalf("send a datagram: %v\n%s", err, output)
	}
}

// TestPolicyForTheGateway follows what docs/gateway.md says about NetworkPolicies. The policy lets the
// gateways of all nodes in, and nobody who comes by a NodePort of a node.
func TestPolicyForTheGateway(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1").Host
	b := &backends{c, newTenant(c), network.NewHost(t, "client")}
	// The server's node has no pod, and so no bridge. Its gateway reaches the pod of the other node.
	b.must(webPod("tenant", "web", agent.Name))
	b.must(`
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: ` + cluster.WebPort + `}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec: {rules: [{host: web.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}
`)
	byNodePort := net.JoinHostPort(c.Server.Host.Address.String(), c.Kubectl("get", "service", "web", "--namespace=tenant", "-o", "jsonpath={.spec.ports[0].nodePort}"))
	c.Eventually("the pod to answer by a NodePort", func() error {
		_, _, err := b.get(byNodePort, "web")
		return err
	})
	sources := strings.Fields(c.Kubectl("get", "nodes", "-o", `jsonpath={range .items[*]}{.spec.podCIDR}{"\n"}{end}`))
	var blocks []string
	for _, cidr := range sources {
		blocks = append(blocks, "{ipBlock: {cidr: "+strings.Replace(cidr, ".0/24", ".1/32", 1)+"}}")
	}
	b.must("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: from-gateway}\n" +
		"spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{from: [" + strings.Join(blocks, ", ") + "]}]}\n")
	c.Eventually("the policy to close the NodePort of the other node", func() error {
		if status, body, err := b.get(byNodePort, "web"); err == nil {
			return fmt.Errorf("it answers %d: %s", status, body)
		}
		return nil
	})
	b.answers(agent, "web", 200)
	b.answers(c.Server.Host, "web", 200)
	if status, _, err := b.get(byNodePort, "web"); err == nil {
		t.Errorf("a client of a NodePort passes by a policy for the gateway: %d", status)
	}
	for name, words := range map[string][]string{
		strings.TrimSuffix(sources[1], ".0/24") + ".1": {"the gateway of node", "allowed by"},
		strings.TrimSuffix(sources[1], "/24"):          {"none of the rules allows"},
	} {
		output, err := c.Server.Host.Kedge(t.Context(), "netpol", "explain", "web", "--namespace=tenant", "--from", name, "--port", cluster.WebPort).CombinedOutput()
		for _, word := range words {
			if !strings.Contains(string(output), word) {
				t.Errorf("netpol explain --from %s does not say %q: %v\n%s", name, word, err, output)
			}
		}
	}
}

// TestTenantFillsTheGateway lets a user of one namespace make more and larger Ingresses than nodes can
// take. Requests to the Service of another namespace go to its new pods.
func TestTenantFillsTheGateway(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	b := &backends{c, newTenant(c), network.NewHost(t, "client")}
	node := c.Server.Host
	c.Apply(webPod("default", "first", node.Name) + `
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: first}, ports: [{port: 80, targetPort: ` + cluster.WebPort + `}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec: {rules: [{host: web.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}
`)
	b.answers(node, "web", 200)
	// fill makes an Ingress of the tenant with so many paths.
	fill := func(name string, paths int) {
		object := fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: %s}\nspec: {rules: [{host: %[1]s.example.com, http: {paths: [%s]}}]}\n", name, longPaths(paths, "none"))
		c.Eventually("a large Ingress to be made", func() error {
			_, err := b.tenant.kubectl(object, "create", "-f", "-")
			if err != nil && strings.Contains(err.Error(), "AlreadyExists") {
				return nil
			}
			return err
		})
	}
	for i := range 30 {
		fill(fmt.Sprintf("large-%02d", i), 2500)
	}
	c.Told("tenant", "large-29", "there is no room")
	// Smaller ones take the room that the large ones leave.
	smallest := ""
	for i, paths := 0, 1250; paths > 0; i, paths = i+1, paths/2 {
		smallest = fmt.Sprintf("small-%02d", i)
		fill(smallest, paths)
	}
	c.Eventually("the gateway to look at "+smallest, func() error {
		addresses := c.Kubectl("get", "ingress", smallest, "--namespace=tenant", "-o", "jsonpath={.status.loadBalancer.ingress}")
		if events := c.Kubectl("get", "events", "--namespace=tenant", "--field-selector=involvedObject.name="+smallest, "-o", "name"); addresses+events == "" {
			return errors.New("it has no address and no event")
		}
		return nil
	})
	// The Service has more endpoints than before, so what nodes have to know of it grows.
	for _, pod := range []string{"second", "third"} {
		c.Apply(webPod("default", pod, node.Name))
		c.Pod(pod)
		c.Kubectl("label", "pod", pod, "tier=new")
	}
	c.Kubectl("patch", "service", "web", "--type=merge", `--patch={"spec": {"selector": {"app": null, "tier": "new"}}}`)
	c.Kubectl("delete", "pod", "first")
	c.Apply("apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: later}\nspec: {rules: [{host: later.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}, " +
		longPaths(9, "web") + "]}}]}\n")
	b.answers(node, "later", 200)
	c.Eventually("requests to go to the new pods", func() error {
		status, body, err := b.ask(node, "web")
		if err == nil && (status != 200 || !strings.Contains(body, "hostname=second") && !strings.Contains(body, "hostname=third")) {
			err = fmt.Errorf("it answers %d: %s", status, body)
		}
		return err
	})
}

// longPaths returns paths of an Ingress that lead to a Service, about 340 bytes each.
func longPaths(count int, service string) string {
	paths := make([]string, count)
	for i := range paths {
		paths[i] = fmt.Sprintf("{path: /%s%d, pathType: Exact, backend: {service: {name: %s, port: {number: 80}}}}", strings.Repeat("x", 250), i, service)
	}
	return strings.Join(paths, ", ")
}
