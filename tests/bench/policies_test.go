package bench

import (
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
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
	// switched is the address of the pod for which a policy changes.
	switched string
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
	p.switched = net.JoinHostPort(p.Pod("switched").Status.PodIP, podPort)
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
	forbid, allow := p.timeSwitch()
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

// timeSwitch makes a policy that forbids connections to a pod, and removes it again. It returns the
// seconds from each answer of the API until the client's connections fail, and until they succeed. They
// may be negative, because a policy can be in force before the API has answered. The client runs on
// the other node, and starts no process meanwhile.
func (p *policyCluster) timeSwitch() (forbid, allow float64) {
	p.Helper()
	type result struct {
		output string
		err    error
	}
	watched := make(chan result, 1)
	go func() {
		output, err := cluster.OnNode(p.Server.Host, "client", "/testserver", "watch-door", p.switched, fmt.Sprint((4 * policyPause).Seconds()))
		watched <- result{output, err}
	}()
	time.Sleep(policyPause) // until the client has started
	policies := p.Client.NetworkingV1().NetworkPolicies(cluster.Namespace)
	if _, err := policies.Create(p.Context(), &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: switchPolicy},
		Spec:       networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "switched"}}},
	}, metav1.CreateOptions{}); err != nil {
		p.Fatal(err)
	}
	created := time.Now()
	time.Sleep(policyPause)
	if err := policies.Delete(p.Context(), switchPolicy, metav1.DeleteOptions{}); err != nil {
		p.Fatal(err)
	}
	deleted := time.Now()
	seen := <-watched
	if seen.err != nil {
		p.Fatal(seen.err)
	}
	forbid, closed := after(seen.output, "closed", created)
	allow, open := after(seen.output, "open", deleted)
	if !closed || !open {
		p.Fatalf("%s: after the policy was made at %d and removed at %d, the client saw\n%s", p.step, created.UnixNano(), deleted.UnixNano(), seen.output)
	}
	return forbid, allow
}

// after returns how many seconds after a time the client of timeSwitch first saw a state. A state that
// began long before is no answer to the change.
func after(output, state string, since time.Time) (seconds float64, found bool) {
	for line := range strings.Lines(output) {
		var is string
		var at int64
		if _, err := fmt.Sscan(line, &is, &at); err != nil || is != state {
			continue
		}
		if seconds = time.Unix(0, at).Sub(since).Seconds(); seconds > -policyLead.Seconds() {
			return seconds, true
		}
	}
	return 0, false
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
