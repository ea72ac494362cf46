package mesh

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// doorsPort is where a pod sends back what comes by TCP.
const doorsPort = "9100"

// TestConnectionsSurvive keeps connections between pods while everything below them changes. A connection may stand still for ten
// seconds at most.
func TestConnectionsSurvive(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	first := cluster.NewHost(t, network, "server-1").StartServer(t, "--cluster-init", "--flannel-backend=mesh")
	first.WaitReady()
	servers := []*harness.Server{first}
	for _, name := range []string{"server-2", "server-3"} {
		s := cluster.NewHost(t, network, name).StartServer(t, append(cluster.Joining(first), "--flannel-backend=mesh")...)
		s.WaitReady()
		servers = append(servers, s)
	}
	c := &meshed{cluster.Of(t, first), map[string]string{}}
	left, right := site{"left", harness.PortRestricted}, site{"right", harness.PortRestricted}
	far, other := site{"far", harness.Symmetric}, site{"other", harness.Symmetric}
	behind := map[string]*harness.Network{}
	for _, s := range []site{left, right, far, other} {
		behind[s.name] = network.Behind(t, s.nat)
		c.Join(behind[s.name], s.name)
		c.ips[s.name] = c.RunWeb("on-"+s.name, s.name).Status.PodIP
	}
	pairs := [][2]site{{left, right}, {far, other}}
	for _, pair := range pairs {
		c.talk(pair[0], pair[1])
		c.hold(pair[0], pair[1])
	}
	step := func(what string, do func()) {
		do()
		for _, pair := range pairs {
			c.talk(pair[0], pair[1])
		}
		c.wantHeld(what)
	}
	step("nothing has happened", func() {})
	step("a NAT has forgotten its connections", func() { behind["left"].ForgetConnections(); behind["far"].ForgetConnections() })
	step("a NAT has another address", func() { behind["left"].Move(network) })
	step("a NAT of the relayed pair has another address", func() { behind["far"].Move(network) })
	behind["left"].DropUDP(behind["right"].Outside())
	c.relayed(left, right)
	c.wantHeld("the direct way is lost")
	step("the direct way is back", func() { behind["left"].DropUDP(netip.Addr{}) })
	for _, s := range servers[1:] {
		step("server "+s.Host.Name+" was killed", func() { s.Kill9() })
		s.Start()
		s.WaitReady()
	}
	step("the first server has restarted", func() {
		first.Terminate()
		first.Start()
		first.WaitReady()
	})
}

// hold lets a pod of one site keep a connection to one of the other busy.
func (c *meshed) hold(a, b site) {
	c.Helper()
	c.Apply(fmt.Sprintf(held, "door-"+b.name, b.name, image.TestserverName, "serve-doors", doorsPort))
	address := c.Pod("door-"+b.name).Status.PodIP + ":" + doorsPort
	c.Apply(fmt.Sprintf(held, "held-"+a.name, a.name, image.TestserverName, "hold", address))
	c.Pod("held-" + a.name)
}

const held = `
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: held}}
spec:
  nodeName: %s
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: %q, args: [%q, %q]}]
`

// wantHeld wants all connections to be there.
func (c *meshed) wantHeld(when string) {
	c.Helper()
	c.Eventually("the state of the pods", func() error {
		pods, err := c.Client.CoreV1().Pods(cluster.Namespace).List(c.Context(), metav1.ListOptions{LabelSelector: "app=held"})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			if pod.Status.Phase != corev1.PodRunning {
				log, _ := c.TryKubectl("", "logs", pod.Name)
				c.Fatalf("when %s: pod %s is %s: %s", when, pod.Name, pod.Status.Phase, log)
			}
		}
		return nil
	})
}

// relayed waits until two sites reach each other through a server.
func (c *meshed) relayed(a, b site) {
	c.Helper()
	c.Eventually(a.name+" to reach "+b.name+" through a server", func() error {
		ways, err := c.ways(a.name)
		if err == nil && ways[b.name].Way != "relayed" {
			err = fmt.Errorf("the way is %+v", ways[b.name])
		}
		return err
	})
}
