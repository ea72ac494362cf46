package attacks

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// takes returns a Service that wants an address and a port for itself.
func takes(name, address string, port int) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {selector: {app: web}, externalIPs: [%q], ports: [{port: %d, targetPort: %s}]}\n", name, address, port, cluster.WebPort)
}

// TestExternalAddressesOfHosts lets a user of one namespace take the addresses of servers, nodes and pools by
// the external addresses of a Service. All nodes would send what is for the API to the user's pods.
func TestExternalAddressesOfHosts(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1")
	a, u := on(c, agent.Host), newTenant(c)
	c.Apply("apiVersion: kedge.dev/v1alpha1\nkind: LoadBalancerPool\nmetadata: {name: lan}\nspec: {addresses: [172.31.0.100-172.31.0.109]}\n")
	server, node := c.Server.Host.Address.String(), agent.Host.Address.String()
	number := 0
	for what, of := range map[string]struct {
		address string
		port    int
	}{
		"take the API away":                        {server, 6443},
		"take the API away, written as IPv6":       {"::ffff:" + server, 6443},
		"answer for a kubelet":                     {node, 10250},
		"answer at an address of a pool":           {"172.31.0.105", 80},
		"answer for the metadata service of Azure": {"168.63.129.16", 80},
		"answer for the metadata service of AWS":   {"169.254.169.254", 80},
		"answer on loopback":                       {"127.0.0.1", 80},
	} {
		number++
		output, err := u.kubectl(takes(fmt.Sprint("thief-", number), of.address, of.port), "create", "-f", "-")
		if err == nil || !strings.Contains(err.Error(), "orbidden") && !strings.Contains(err.Error(), "nvalid") {
			t.Errorf("the attacker may %s: %s, %v", what, output, err)
		}
	}
	// Addresses of others are the user's, as upstream has it.
	if output, err := u.kubectl(takes("honest", "192.0.2.1", 6443), "create", "-f", "-"); err != nil {
		t.Fatalf("a Service may have no external address: %s", output)
	}
	for what, patch := range map[string][]string{
		"take the API away later":              {fmt.Sprintf(`--patch={"spec": {"externalIPs": ["192.0.2.1", %q]}}`, server)},
		"take the API away as a load balancer": {"--subresource=status", fmt.Sprintf(`--patch={"status": {"loadBalancer": {"ingress": [{"ip": %q}]}}}`, server)},
	} {
		output, err := u.kubectl("", append([]string{"patch", "service", "honest", "--type=merge"}, patch...)...)
		u.wantForbidden(what, output, err)
	}
	if output, err := u.kubectl("", "annotate", "service", "honest", "note=x"); err != nil {
		t.Errorf("a Service with an external address cannot be changed: %s", output)
	}
	if status, body := a.curl(stolen("client-kubelet"), "/readyz"); status != http.StatusOK {
		t.Errorf("the agent reaches the API no more: %d %s", status, body)
	}
}

// TestExternalAddressOfLaterPool has a Service with an external address that then becomes one of a pool.
// Nodes serve it no more, and its user is told. Whoever gets the address of the pool answers there.
func TestExternalAddressOfLaterPool(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	a := on(c, c.Join(network, "agent-1").Host)
	c.RunWeb("thief", "server-1")
	c.Apply(takes("first", "172.31.0.105", 8088))
	ask := func() (string, error) {
		return a.run("", "curl", "--silent", "--show-error", "--max-time", "5", "http://172.31.0.105:8088/")
	}
	answers := func(name string) {
		t.Helper()
		c.Eventually(name+" to answer", func() error {
			output, err := ask()
			if err == nil && !strings.Contains(output, name) {
				err = fmt.Errorf("the answer is %q", output)
			}
			return err
		})
	}
	answers("thief")
	c.Apply("apiVersion: kedge.dev/v1alpha1\nkind: LoadBalancerPool\nmetadata: {name: lan}\nspec: {addresses: [172.31.0.105]}\n")
	c.Told(cluster.Namespace, "first", "172.31.0.105 is an address of LoadBalancerPool lan", "type: LoadBalancer")
	c.Eventually("nodes to serve the address no more", func() error {
		if output, err := ask(); err == nil {
			return fmt.Errorf("%q answers", output)
		}
		return nil
	})
	c.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: owner, labels: {app: owner}}
spec:
  nodeName: server-1
  containers: [{name: main, image: %s, args: [serve, "%s"]}]
---
apiVersion: v1
kind: Service
metadata: {name: owner, annotations: {kedge.dev/pool: lan}}
spec: {type: LoadBalancer, selector: {app: owner}, ports: [{port: 8088, targetPort: %s}]}
`, c.Pod("thief").Spec.Containers[0].Image, cluster.WebPort, cluster.WebPort))
	answers("owner")
	c.Kubectl("patch", "service", "first", "--type=merge", `--patch={"spec": {"externalIPs": null}}`)
	c.Eventually("the condition to go", func() error {
		if text := c.Kubectl("get", "service", "first", "-o=jsonpath={.status.conditions}"); strings.Contains(text, "ExternalIPs") {
			return fmt.Errorf("the conditions are %s", text)
		}
		return nil
	})
}

// nft is kedge's own, on each host.
const nft = "/run/kedge/bin/nft"

// externalElement finds the chain that a map of the service proxy has for an external address.
var externalElement = regexp.MustCompile(`172\.31\.0\.151 \. tcp \. 6443 : (goto \S+)`)

// TestAgentBesideOldRules starts an agent on a host where an earlier service proxy has left rules that lead
// away what is for the server, as the Service of an attacker makes them. No server answers at first. The node
// and its pods reach the address of the server nevertheless, and nobody deletes a table. When the server is
// back, the agent becomes Ready, and the rule goes.
func TestAgentBesideOldRules(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1")
	a := on(c, agent.Host)
	c.RunWeb("thief", "agent-1")
	c.RunWeb("asker", "agent-1")
	c.Apply(takes("thief", "172.31.0.151", 6443))
	chain := a.externalChain(c)
	inPod := []string{"nsenter", "--net=/proc/" + processOf(c, agent.Host, "asker") + "/ns/net"}
	agent.Terminate()
	c.Server.Terminate()

	server := c.Server.Host.Address.String()
	listener := c.Server.Host.Listen(server + ":6443")
	inPlace := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the server's host") })} //nolint:gosec // a test
	go func() { _ = inPlace.Serve(listener) }()
	answers := func(words string) {
		t.Helper()
		for who, around := range map[string][]string{"the node": nil, "a pod": inPod} {
			c.Eventually(words+" to answer "+who+" at the address of the server", func() error {
				command := slices.Concat(around, []string{"curl", "--silent", "--show-error", "--max-time", "5", "http://" + server + ":6443/"})
				output, err := a.run("", command[0], command[1:]...)
				if err == nil && !strings.Contains(output, words) {
					err = fmt.Errorf("the answer is %q", output)
				}
				return err
			})
		}
	}
	// The table of this kedge is not there if the address of the server was not known to it.
	for _, command := range []string{
		"delete table ip kedge-servers",
		"add element ip kube-proxy service-ips { " + server + " . tcp . 6443 : " + chain + " }",
	} {
		if output, err := a.run("", nft, command); err != nil {
			t.Fatalf("%s: %s%v", command, output, err)
		}
	}
	answers("hostname=") // the attacker's pods
	agent.Start()
	answers("the server's host")
	if listing, err := a.serviceAddresses(); err != nil || !strings.Contains(listing, server+" . tcp . 6443") {
		t.Errorf("the rule of the attack is gone before a server answers, so the test shows nothing: %v: %s", err, listing)
	}

	listener.Close()
	c.Server.Start()
	c.Server.WaitReady()
	c.Kubectl("delete", "service/thief", "pod/thief", "--wait=false")
	agent.WaitReady()
	if status, body := a.curl(stolen("client-kubelet"), "/readyz"); status != http.StatusOK {
		t.Errorf("the agent does not reach the API: %d %s", status, body)
	}
	c.Eventually("the rule of the attack to go", func() error {
		listing, err := a.serviceAddresses()
		if err == nil && strings.Contains(listing, server+" . tcp . 6443") {
			err = errors.New("it is still there")
		}
		return err
	})
}

// serviceAddresses lists the addresses that the service proxy of the attacker's host leads to Services.
func (a *attacker) serviceAddresses() (string, error) {
	return a.run("", nft, "list", "map", "ip", "kube-proxy", "service-ips")
}

// externalChain waits until the service proxy serves the address 172.31.0.151, and returns where its map leads
// to.
func (a *attacker) externalChain(c *cluster.Cluster) (chain string) {
	a.Helper()
	c.Eventually("the rules of an external address", func() error {
		listing, err := a.serviceAddresses()
		if err != nil {
			return err
		}
		found := externalElement.FindStringSubmatch(listing)
		if found == nil {
			return fmt.Errorf("there are only %s", listing)
		}
		chain = found[1]
		return nil
	})
	return chain
}
