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
// in clusters with different numbers of policies, addresses and Services. It fails only if something
// does not work.
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
	var all []*policyCluster
	for _, step := range policySteps {
		all = append(all, startPolicyCluster(t, step))
	}
	for _, p := range all {
		p.settle()
	}
	// All clusters in turn, in each round. So the load of the machine, which changes, is the same for
	// all of them.
	for range policyRounds {
		for _, p := range all {
			p.round()
		}
	}
	report := &policiesReport{origin: origin}
	for _, p := range all {
		p.readMemory()
		report.Steps = append(report.Steps, p.step)
	}
	fmt.Print(report.Table())
	if err := writeJSON(filepath.Join(repository, policiesFile), report); err != nil {
		t.Fatal(err)
	}
}

// policyCluster is a cluster of one size: a server, and an agent that is its second node.
type policyCluster struct {
	*cluster.Cluster
	agent *harness.Host
	step  policyStep
	// to has the address of the pod that answers, by way.
	to map[string]string
}

// startPolicyCluster starts a cluster and fills it.
func startPolicyCluster(t *testing.T, step policyStep) *policyCluster {
	t.Helper()
	network := harness.NewNetwork(t)
	p := &policyCluster{Cluster: cluster.Start(t, network), step: step}
	p.step.Ways = map[string][]wayResult{}
	server := p.Server.Host
	p.agent = p.Join(network, "agent-1").Host
	runMeasured(p.Cluster, "far", p.agent.Name, "serve-measure", podPort)
	runMeasured(p.Cluster, "near", server.Name, "serve-measure", podPort)
	runMeasured(p.Cluster, "switched", p.agent.Name, "serve-doors", podPort)
	runProbe(p.Cluster, "client", server.Name, "sleep")
	runProbe(p.Cluster, "watcher", server.Name, "watch-door", net.JoinHostPort(p.Pod("switched").Status.PodIP, podPort))
	p.to = map[string]string{
		wayPod:  net.JoinHostPort(p.Pod("far").Status.PodIP, podPort),
		wayNear: net.JoinHostPort(p.Pod("near").Status.PodIP, podPort),
	}
	crowd := &crowd{client: p.Client}
	err := crowd.prepare(t.Context())
	if err == nil && step.Policies > 0 {
		err = crowd.allow(t.Context())
	}
	if err == nil {
		err = crowd.fill(t.Context(), step)
	}
	if err != nil {
		t.Fatalf("%s: %v", step, err)
	}
	return p
}

// settle waits until kedge has written everything to the kernel: until it hardly uses the processor.
func (p *policyCluster) settle() {
	p.Helper()
	quiet := 0
	harness.Eventually(p.T, policySettleLimit, fmt.Sprintf("the cluster with %s to settle", p.step), func() error {
		before := p.processorTime()
		time.Sleep(policyWatch)
		used := (p.processorTime() - before) / policyWatch.Seconds()
		if quiet++; used > policyQuiet {
			quiet = 0
		}
		if quiet < policyQuietTimes {
			return fmt.Errorf("kedge uses %.0f %% of a core", 100*used)
		}
		return nil
	})
}

// processorTime returns the seconds that kedge has used on both hosts.
func (p *policyCluster) processorTime() (seconds float64) {
	p.Helper()
	for _, host := range []*harness.Host{p.Server.Host, p.agent} {
		now, err := takeSnapshot(host)
		if err != nil {
			p.Fatal(err)
		}
		seconds += now.CPU()
	}
	return seconds
}

// round measures everything once.
func (p *policyCluster) round() {
	p.Helper()
	for way, address := range p.to {
		var result wayResult
		output, err := cluster.OnNode(p.Server.Host, "client", "/testserver", "measure", address, networkSeconds)
		if err == nil {
			err = json.Unmarshal([]byte(strings.TrimSpace(output)), &result)
		}
		if err != nil {
			p.Fatalf("%s: %s: %v", p.step, way, err)
		}
		p.step.Ways[way] = append(p.step.Ways[way], result)
	}
	forbid, allow := timeSwitch(p.Cluster)
	p.step.Forbid, p.step.Allow = append(p.step.Forbid, forbid), append(p.step.Allow, allow)
	fmt.Printf("%s: forbidden after %.0f ms, allowed after %.0f ms\n", p.step, 1000*forbid, 1000*allow)
}

// readMemory notes the memory of both hosts.
func (p *policyCluster) readMemory() {
	p.Helper()
	for host, memory := range map[*harness.Host]*float64{p.Server.Host: &p.step.Server, p.agent: &p.step.Agent} {
		now, err := takeSnapshot(host)
		if err != nil {
			p.Fatal(err)
		}
		*memory = now.Installation.Anonymous
	}
}

// timeSwitch makes a policy that forbids the watcher's connections, removes it again, and returns the
// seconds until the watcher sees each.
func timeSwitch(c *cluster.Cluster) (forbid, allow float64) {
	c.Helper()
	policies := c.Client.NetworkingV1().NetworkPolicies(cluster.Namespace)
	time.Sleep(policyPause)
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
// because a policy can be in force before the API has answered. The watcher prints the time. Reading
// it waits a moment, because the start of kubectl takes the processor that the change needs.
func seen(c *cluster.Cluster, since time.Time, state string) (after float64) {
	c.Helper()
	time.Sleep(policyPause)
	c.Eventually("the watcher to see the door "+state, func() error {
		lines := strings.Split(c.Kubectl("logs", "watcher", "--tail=1"), " ")
		if len(lines) != 2 || lines[0] != state {
			return fmt.Errorf("it printed %q", lines)
		}
		at, err := strconv.ParseInt(lines[1], 10, 64)
		after = time.Unix(0, at).Sub(since).Seconds()
		return err
	})
	time.Sleep(policyPause)
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
