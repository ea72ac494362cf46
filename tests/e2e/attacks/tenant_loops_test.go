package attacks

import (
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

const (
	// loopPort is the port of the Gateways in loops.
	loopPort = "5353"
	// poolAddress is the address of one of them.
	poolAddress = "172.31.0.200"
	// moreDescriptors is how many more kedge may have open after an attack. A loop makes thousands.
	moreDescriptors = 200
)

// loops are a Gateway with the addresses of nodes, one with an address of a pool, and routes of both to one
// Service, whose endpoints the user writes.
const loops = `
apiVersion: v1
kind: Service
metadata: {name: loop}
spec: {ports: [{name: tcp, port: 80, protocol: TCP}, {name: udp, port: 80, protocol: UDP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: shared}
spec:
  gatewayClassName: kedge
  listeners: [{name: tcp, port: ` + loopPort + `, protocol: TCP}, {name: udp, port: ` + loopPort + `, protocol: UDP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: own}
spec:
  gatewayClassName: kedge
  addresses: [{value: ` + poolAddress + `}]
  listeners: [{name: tcp, port: ` + loopPort + `, protocol: TCP}, {name: udp, port: ` + loopPort + `, protocol: UDP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: loop}
spec: {parentRefs: [{name: shared}, {name: own}], rules: [{backendRefs: [{name: loop, port: 80}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: UDPRoute
metadata: {name: loop}
spec: {parentRefs: [{name: shared}, {name: own}], rules: [{backendRefs: [{name: loop, port: 80}]}]}
`

// leadTo gives the Service an endpoint. reference is its targetRef, or empty.
func (b *backends) leadTo(address, tcp, udp, reference string) {
	b.Helper()
	b.must(fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: loop, labels: {kubernetes.io/service-name: loop}}
addressType: IPv4
ports: [{name: tcp, port: %s, protocol: TCP}, {name: udp, port: %s, protocol: UDP}]
endpoints: [{addresses: [%s]%s}]
`, tcp, udp, address, reference))
}

// loopPorts returns the address and the node ports of the Service of a Gateway, by protocol.
func (b *backends) loopPorts(namespace, name string) (address string, ports map[corev1.Protocol]string) {
	b.Helper()
	service, err := b.Client.CoreV1().Services(namespace).Get(b.Cluster.Context(), name, metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	ports = map[corev1.Protocol]string{}
	for _, port := range service.Spec.Ports {
		if fmt.Sprint(port.Port) == loopPort {
			ports[port.Protocol] = fmt.Sprint(port.NodePort)
		}
	}
	return service.Spec.ClusterIP, ports
}

// descriptors returns how many files and sockets the server has open.
func (b *backends) descriptors() int {
	open, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", b.Cluster.Server.Process().Pid))
	return len(open)
}

// enter says a word to a Gateway by TCP and by UDP. A word that goes nowhere ends the connection.
func (b *backends) enter(address string) error {
	b.Helper()
	b.sendTo(address, loopPort, []byte("word"))
	ctx, cancel := context.WithTimeout(b.Cluster.Context(), 20*time.Second)
	defer cancel()
	conn, err := b.client.DialContext(ctx, "tcp", net.JoinHostPort(address, loopPort))
	if err != nil {
		return nil // refused
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(conn, "word")
	said, err := io.ReadAll(conn)
	if timeout, is := err.(net.Error); is && timeout.Timeout() {
		return fmt.Errorf("a connection to %s stays open", address)
	}
	if len(said) > 0 {
		return fmt.Errorf("a connection to %s is answered with %q", address, said)
	}
	return nil
}

// loop is an endpoint that leads back to a gateway.
type loop struct{ name, address, tcp, udp string }

// ownAnswers leads the routes to a pod of the user, and waits until it answers at all addresses.
func (b *backends) ownAnswers(podIP string, addresses ...string) {
	b.Helper()
	b.leadTo(podIP, cluster.WebPort, fmt.Sprint(closedPort), ", targetRef: {kind: Pod, namespace: tenant, name: own}")
	for _, address := range addresses {
		b.Eventually("the own pod to answer at "+address, func() error {
			_, body, err := b.get(net.JoinHostPort(address, loopPort), "own.example.com")
			if err == nil && !strings.Contains(body, "hostname=own") {
				err = fmt.Errorf("the answer is %q", body)
			}
			return err
		})
	}
}

// isRefused leads the routes back, enters at the addresses of the Gateways, and checks that the status says why
// nobody gets on, and that kedge opens nothing for it. It returns how many descriptors there were before.
func (b *backends) isRefused(l loop, addresses ...string) (before int) {
	b.Helper()
	before = b.descriptors()
	b.leadTo(l.address, l.tcp, l.udp, "")
	enter := func() (err error) {
		for _, address := range addresses {
			if err = b.enter(address); err != nil {
				break
			}
		}
		if now := b.descriptors(); now > before+moreDescriptors {
			b.Fatalf("%s: kedge had %d descriptors and has %d", l.name, before, now)
		}
		return err
	}
	for _, kind := range []string{"tcproute", "udproute"} {
		b.Eventually("the "+kind+" to say that "+l.name+" is refused", func() error {
			_ = enter() // until the node knows the endpoint, the own pod answers
			status := b.Cluster.Kubectl("get", kind, "loop", "--namespace=tenant", "-o", "jsonpath={.status.parents[*].conditions}")
			if strings.Count(status, "AddressNotPermitted") < 2 || !strings.Contains(status, "does not connect to "+l.address) {
				return fmt.Errorf("its conditions are %s", status)
			}
			return nil
		})
	}
	b.Eventually("the node to know the endpoint", enter)
	for range 10 {
		if err := enter(); err != nil {
			b.Cluster.Errorf("%s: %v", l.name, err)
		}
	}
	return before
}

// TestTenantLoops has a user of one namespace who leads routes of TCP and UDP back to the gateway that serves
// them. The administrator allows the networks of nodes, pods and Services as backends.
func TestTenantLoops(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network, "--gateway-backend-ranges=172.31.0.0/25", "--gateway-backend-ranges=10.0.0.0/8", "--gateway-ports="+loopPort)
	b := &backends{c, newTenant(c), network.NewHost(t, "client")}
	node := c.Server.Host
	c.Apply("apiVersion: kedge.dev/v1alpha1\nkind: LoadBalancerPool\nmetadata: {name: lan}\nspec: {addresses: [" + poolAddress + "]}\n")
	b.must(webPod("tenant", "own", node.Name))
	c.Kubectl("wait", "--namespace=tenant", "pod/own", "--for=condition=Ready", "--timeout="+cluster.Patience.String())
	podIP := c.Kubectl("get", "pod", "own", "--namespace=tenant", "-o", "jsonpath={.status.podIP}")
	b.must(loops)
	addresses := []string{node.Address.String(), poolAddress}
	b.ownAnswers(podIP, addresses...)
	sharedIP, shared := b.loopPorts("kube-system", "kedge-gateway")
	ownIP, own := b.loopPorts("tenant", "own-kedge")
	source := strings.Replace(c.Kubectl("get", "node", node.Name, "-o", "jsonpath={.spec.podCIDR}"), ".0/24", ".1", 1)
	for _, attack := range []loop{
		{"the node", node.Address.String(), loopPort, loopPort},
		{"the sockets at the node's address", node.Address.String(), shared[corev1.ProtocolTCP], shared[corev1.ProtocolUDP]},
		{"the sockets at the gateway's own address", source, shared[corev1.ProtocolTCP], shared[corev1.ProtocolUDP]},
		{"the sockets of the pool's Gateway", source, own[corev1.ProtocolTCP], own[corev1.ProtocolUDP]},
		{"the address of the pool", poolAddress, loopPort, loopPort}, // in no range
		{"the Service of the nodes' Gateways", sharedIP, loopPort, loopPort},
		{"the Service of the pool's Gateway", ownIP, loopPort, loopPort},
	} {
		before := b.isRefused(attack, addresses...)
		b.ownAnswers(podIP, addresses...)
		if now := b.descriptors(); now > before+moreDescriptors {
			t.Errorf("%s: kedge had %d descriptors and has %d", attack.name, before, now)
		}
	}

	t.Log("honest use by UDP")
	process := processOf(c, node, "own")
	arrived := refusedDatagrams(c, node, process)
	c.Eventually("a datagram to reach the own pod", func() error {
		b.send([]byte("honest"))
		if refusedDatagrams(c, node, process) == arrived {
			return fmt.Errorf("none has arrived")
		}
		return nil
	})
}
