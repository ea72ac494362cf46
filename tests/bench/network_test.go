package bench

import (
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// TestNetwork measures the network of pods and the link between their hosts. It fails only if
// something does not work.
func TestNetwork(t *testing.T) {
	harness.Require(t)
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	origin, err := newOrigin(repository)
	if err != nil {
		t.Fatal(err)
	}
	report := &networkReport{origin: origin, Rounds: map[string]map[string][]wayResult{}}
	for _, n := range networks {
		t.Run(n.name, func(t *testing.T) { report.Rounds[n.name] = measureNetwork(t, repository, n) })
	}
	if t.Failed() {
		t.Fatal("not everything could be measured")
	}
	for _, n := range networks {
		if report.Rounds[n.name] == nil {
			return // -run chose some
		}
	}
	fmt.Print(report.Table())
	if err := writeJSON(filepath.Join(repository, networkFile), report); err != nil {
		t.Fatal(err)
	}
}

// measureNetwork makes a cluster of two hosts and measures all ways in turns. Behind NATs, the link is the one between a node and
// the server that relays.
func measureNetwork(t *testing.T, repository string, n podNetwork) map[string][]wayResult {
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network, "--flannel-backend="+n.backend, "--mesh-relay-rate=100000")
	agent, server, linked := (*harness.Host)(nil), c.Server.Host, c.Server.Host
	if n.nat == "" {
		agent = c.Join(network, "agent-1").Host
		linked = agent
	} else {
		agent, server = c.Join(network.Behind(t, n.nat), "agent-1").Host, c.Join(network.Behind(t, n.nat), "agent-2").Host
	}
	program := image.TestserverProgram(repository)
	if err := linked.Command(t.Context(), program, "serve-measure", hostPort).Start(); err != nil {
		t.Fatal(err)
	}
	runProbe(c, "far", agent.Name, "serve-measure", podPort)
	runProbe(c, "near", server.Name, "serve-measure", podPort)
	runProbe(c, "client", server.Name, "sleep")
	c.Apply(`
apiVersion: v1
kind: Service
metadata: {name: far}
spec:
  selector: {app: far}
  ports: [{port: ` + servicePort + `, targetPort: ` + podPort + `}]
`)
	service := c.Kubectl("get", "service", "far", "-o", "jsonpath={.spec.clusterIP}")
	to := map[string]string{
		wayLink:    net.JoinHostPort(linked.Address.String(), hostPort),
		wayPod:     net.JoinHostPort(c.Pod("far").Status.PodIP, podPort),
		wayService: net.JoinHostPort(service, servicePort),
		wayNear:    net.JoinHostPort(c.Pod("near").Status.PodIP, podPort),
	}
	run := func(way, seconds string) (result wayResult, err error) {
		var output string
		if way == wayLink {
			var text []byte
			text, err = server.Command(t.Context(), program, "measure", to[way], seconds).Output()
			output = string(text)
		} else {
			output, err = cluster.OnNode(server, "client", "/testserver", "measure", to[way], seconds)
		}
		if err == nil {
			err = json.Unmarshal([]byte(strings.TrimSpace(output)), &result)
		}
		return result, err
	}
	for _, way := range ways {
		c.Eventually(way+" to work", func() error {
			_, err := run(way, "0.2")
			return err
		})
	}
	results := map[string][]wayResult{}
	for range networkRounds {
		for _, way := range ways {
			result, err := run(way, networkSeconds)
			if err != nil {
				t.Fatalf("measure %s: %v", way, err)
			}
			fmt.Printf("%s: %s: %+v\n", n.name, way, result)
			results[way] = append(results[way], result)
		}
	}
	return results
}

// runProbe runs testserver in a pod on a node, and waits until it is ready.
func runProbe(c *cluster.Cluster, name, node string, args ...string) {
	c.Helper()
	c.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: %[1]s}}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: %q, args: ["%s"]}]
`, name, node, image.TestserverName, strings.Join(args, `", "`)))
	c.Pod(name)
}
