package mesh

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// TestUses uses the mesh as apps do: by Services, names and policies, with packets of all sizes, on ways with another MTU.
func TestUses(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := &meshed{cluster.Start(t, network, "--flannel-backend=mesh", "--node-label=topology.kubernetes.io/zone=cloud"), map[string]string{}}
	shop, cabin := site{"shop", harness.PortRestricted}, site{"cabin", harness.Symmetric}
	behind := map[string]*harness.Network{}
	for _, s := range []site{shop, cabin} {
		behind[s.name] = network.Behind(t, s.nat)
		c.Join(behind[s.name], s.name, "--node-label=topology.kubernetes.io/zone="+s.name)
	}
	for _, name := range []string{"server-1", "shop", "cabin"} {
		c.ips[name] = c.RunWeb("on-"+name, name).Status.PodIP
	}

	t.Run("a Service by its name", func(t *testing.T) {
		in := c.in(t)
		port := in.ServeWeb()
		for _, name := range []string{"shop", "cabin"} {
			in.Answers("on-"+name, "http://web."+cluster.Namespace+".svc.cluster.local/", "on-server-1", "on-shop", "on-cabin")
		}
		answer, err := network.NewHost(t, "client").Get(net.JoinHostPort(c.Server.Host.Address.String(), port))
		if err != nil || !strings.Contains(answer, "hostname=on-") {
			t.Errorf("the NodePort answers %q (%v)", answer, err)
		}
	})

	t.Run("a Service prefers its own site", func(t *testing.T) {
		in := c.in(t)
		in.Apply(`
apiVersion: v1
kind: Service
metadata: {name: near}
spec:
  selector: {app: web}
  trafficDistribution: PreferSameZone
  ports: [{port: 80, targetPort: ` + cluster.WebPort + `}]
`)
		for _, name := range []string{"shop", "cabin"} {
			in.Answers("on-"+name, "http://near/", "on-"+name)
			for range 10 {
				answer := in.Kubectl("exec", "on-"+name, "--", "/testserver", "fetch", "http://near/")
				if !strings.HasPrefix(answer, "hostname=on-"+name+"\n") {
					t.Errorf("a pod in the %s gets an answer from %q", name, answer)
				}
			}
		}
	})

	t.Run("a NetworkPolicy", func(t *testing.T) {
		in := c.in(t)
		in.Apply(fmt.Sprintf(held, "door", "server-1", image.TestserverName, "serve-doors", doorsPort) + policy)
		address := in.Pod("door").Status.PodIP + ":" + doorsPort
		in.Apply(fmt.Sprintf(stranger, "stranger", "shop", "stranger", image.TestserverName, address))
		in.Apply(fmt.Sprintf(stranger, "friend", "cabin", "friend", image.TestserverName, address))
		friend, other := in.Pod("friend").Status.PodIP, in.Pod("stranger").Status.PodIP
		in.In("door", "the friend to reach the door", func(output string) bool { return strings.Contains(output, friend+" tcp") },
			"/testserver", "fetch", "http://localhost:8080/")
		time.Sleep(5 * time.Second)
		if output := in.Kubectl("exec", "door", "--", "/testserver", "fetch", "http://localhost:8080/"); strings.Contains(output, other) {
			t.Errorf("the stranger has reached the door:\n%s", output)
		}
		in.Kubectl("delete", "networkpolicy", "friends")
	})

	t.Run("after the interface was removed", func(t *testing.T) {
		if output, err := c.Server.Host.Command(t.Context(), "ip", "link", "delete", "kedge-mesh").CombinedOutput(); err != nil {
			t.Fatalf("remove the interface: %v: %s", err, output)
		}
		in := c.in(t)
		in.Answers("on-server-1", "http://"+c.ips["shop"]+":"+cluster.WebPort+"/", "on-shop")
		in.Answers("on-shop", "http://"+c.ips["server-1"]+":"+cluster.WebPort+"/", "on-server-1")
	})

	t.Run("a way with a short MTU", func(t *testing.T) {
		behind["shop"].LimitMTU(1380)
		in := c.in(t)
		in.Apply(fmt.Sprintf(held, "sink", "server-1", image.TestserverName, "serve-measure", "9200"))
		address := in.Pod("sink").Status.PodIP + ":9200"
		for _, name := range []string{"shop", "cabin"} {
			in.In("on-"+name, "many bytes to arrive from the "+name, func(output string) bool { return strings.Contains(output, "bytesPerSecond") },
				"/testserver", "measure", address, "1")
		}
		in.Eventually("the shop to know the MTU", func() error {
			ways, err := in.ways("shop")
			if w := ways["server-1"]; err == nil && w.MTU != 1280 {
				err = fmt.Errorf("the way is %+v", w)
			}
			return err
		})
	})
}

const policy = `
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: friends}
spec:
  podSelector: {matchLabels: {app: held}}
  ingress: [{from: [{podSelector: {matchLabels: {who: friend}}}]}]
`

const stranger = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {who: %[3]s}}
spec:
  nodeName: %[2]s
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: %[4]q, args: [knock, %[5]q]}]
`

// TestServerWithoutNode relays on a server that has no node, for pods with addresses of both families.
func TestServerWithoutNode(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	server := cluster.NewHost(t, network, "server-1").StartServer(t, "--flannel-backend=mesh", "--disable-agent",
		"--cluster-cidr=10.42.0.0/16,fd00:42::/56", "--service-cidr=10.43.0.0/16,fd00:43::/112")
	server.WaitAPI()
	c := &meshed{cluster.Of(t, server), map[string]string{}}
	left, right := site{"left", harness.Symmetric}, site{"right", harness.PortRestricted}
	pods := map[string]string{}
	for _, s := range []site{left, right} {
		c.Join(network.Behind(t, s.nat), s.name)
		pod := c.RunWeb("on-"+s.name, s.name)
		c.ips[s.name] = pod.Status.PodIP
		for _, ip := range pod.Status.PodIPs {
			if strings.Contains(ip.IP, ":") {
				pods[s.name] = ip.IP
			}
		}
	}
	c.talk(left, right)
	for _, pair := range [][2]string{{"left", "right"}, {"right", "left"}} {
		c.Answers("on-"+pair[0], "http://"+net.JoinHostPort(pods[pair[1]], cluster.WebPort)+"/", "on-"+pair[1])
	}
}
