package bench

import (
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// TestPolicies measures the network of pods, the time until a changed policy is in force, and memory,
// with increasing numbers of policies, addresses and Services. It fails only if something does not
// work.
func TestPolicies(t *testing.T) {
	harness.Require(t)
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	origin, err := newOrigin(repository)
	if err != nil {
		t.Fatal(err)
	}
	report := &policiesReport{origin: origin}
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1").Host
	for name, node := range map[string]string{"far": agent.Name, "near": c.Server.Host.Name} {
		runMeasured(c, name, node, "serve-measure", podPort)
	}
	runMeasured(c, "switched", agent.Name, "serve-doors", podPort)
	runProbe(c, "client", c.Server.Host.Name, "sleep")
	runProbe(c, "watcher", c.Server.Host.Name, "watch-door", net.JoinHostPort(c.Pod("switched").Status.PodIP, podPort))
	to := map[string]string{
		wayPod:  net.JoinHostPort(c.Pod("far").Status.PodIP, podPort),
		wayNear: net.JoinHostPort(c.Pod("near").Status.PodIP, podPort),
	}
	crowd := &crowd{client: c.Client}
	if err := crowd.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, step := range policySteps {
		if step.Policies > 0 && crowd.have.Policies == 0 {
			if err := crowd.allow(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := crowd.grow(t.Context(), step); err != nil {
			t.Fatal(err)
		}
		time.Sleep(datastoreRest) // The last Services are still on their way to the rules.
		step.Ways = map[string][]wayResult{}
		for range policyRounds {
			for way, address := range to {
				var result wayResult
				output, err := cluster.OnNode(c.Server.Host, "client", "/testserver", "measure", address, networkSeconds)
				if err == nil {
					err = json.Unmarshal([]byte(strings.TrimSpace(output)), &result)
				}
				if err != nil {
					t.Fatalf("%s: %s: %v", step, way, err)
				}
				step.Ways[way] = append(step.Ways[way], result)
			}
			forbid, allow := timeSwitch(c)
			step.Forbid, step.Allow = append(step.Forbid, forbid), append(step.Allow, allow)
		}
		for host, memory := range map[*harness.Host]*float64{c.Server.Host: &step.Server, agent: &step.Agent} {
			now, err := takeSnapshot(host)
			if err != nil {
				t.Fatal(err)
			}
			*memory = now.Installation.Anonymous
		}
		report.Steps = append(report.Steps, step)
	}
	fmt.Print(report.Table())
	if err := writeJSON(filepath.Join(repository, policiesFile), report); err != nil {
		t.Fatal(err)
	}
}

// timeSwitch makes a policy that forbids the watcher's connections, removes it again, and returns the
// seconds until the watcher sees each.
func timeSwitch(c *cluster.Cluster) (forbid, allow float64) {
	c.Helper()
	policies := c.Client.NetworkingV1().NetworkPolicies(cluster.Namespace)
	if _, err := policies.Create(c.Context(), &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: switchPolicy},
		Spec:       networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "switched"}}},
	}, metav1.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
	forbid = seen(c, time.Now(), "closed")
	if err := policies.Delete(c.Context(), switchPolicy, metav1.DeleteOptions{}); err != nil {
		c.Fatal(err)
	}
	return forbid, seen(c, time.Now(), "open")
}

// seen returns how many seconds after a time the watcher first saw a state. It may be negative,
// because a policy can be in force before the API has answered.
func seen(c *cluster.Cluster, since time.Time, state string) (after float64) {
	c.Helper()
	c.Eventually("the watcher to see the door "+state, func() error {
		lines := strings.Split(c.Kubectl("logs", "watcher", "--tail=1"), " ")
		if len(lines) != 2 || lines[0] != state {
			return fmt.Errorf("it printed %q", lines)
		}
		at, err := strconv.ParseInt(lines[1], 10, 64)
		after = time.Unix(0, at).Sub(since).Seconds()
		return err
	})
	return after
}

// runMeasured runs testserver in a pod that the crowd's policies select.
func runMeasured(c *cluster.Cluster, name, node string, args ...string) {
	c.Helper()
	c.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: %[1]s, measured: "%[2]s"}}
spec:
  nodeName: %[3]s
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: %[4]q, args: ["%[5]s"]}]
`, name, map[bool]string{true: "no", false: "yes"}[name == "switched"], node, image.TestserverName, strings.Join(args, `", "`)))
	c.Pod(name)
}
