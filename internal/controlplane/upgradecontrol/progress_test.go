package upgradecontrol

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kedge-dev/kedge/internal/base/upgrades"
)

// TestOrder has clusters of all kinds, and a server that begins to lead at each step. Servers
// come one at a time, the leading one last, and then agents.
func TestOrder(t *testing.T) {
	for name, test := range map[string]struct {
		nodes, own  string
		concurrency int32
		want        string
	}{
		"a server":                        {"s:server", "s", 0, "s"},
		"servers, the first leads":        {"s1:server s2:server s3:server", "s1", 0, "s2 s3 s1"},
		"servers, the last leads":         {"s1:server s2:server s3:server", "s3", 5, "s1 s2 s3"},
		"agents, one at a time":           {"s:server a:agent b:agent", "s", 0, "s a b"},
		"agents, two at a time":           {"c:agent b:agent a:agent s:server", "s", 2, "s a+b c"},
		"agents, all at a time":           {"a:agent b:agent c:agent s:server", "s", 9, "s a+b+c"},
		"servers without an API come on":  {"a:agent e:etcd s1:server s2:server", "s1", 9, "s2 s1 e a"},
		"a leader that is no node":        {"s1:server s2:server a:agent", "", 1, "s1 s2 a"},
		"a name that sorts before others": {"a:server b:agent aa:agent", "a", 1, "a aa b"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, test.nodes)
			c.own = test.own
			c.plan("kedge", upgrades.PlanSpec{Version: target, Concurrency: test.concurrency})
			plan := c.until("kedge", upgrades.Complete)
			if got := strings.Join(c.trace, " "); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			count := len(strings.Fields(test.nodes))
			if strings.Count(states(plan), ":Upgraded") != count || plan.Status.Version != target {
				t.Errorf("got %+v", plan.Status)
			}
			c.has(plan.Status.Message, target)
			if !meta.IsStatusConditionTrue(plan.Status.Conditions, "Complete") || meta.IsStatusConditionTrue(plan.Status.Conditions, "Stopped") {
				t.Errorf("conditions %+v", plan.Status.Conditions)
			}
			// It has ended: nothing happens any more, also not with nodes that join.
			c.join("late", "agent")
			before := c.get("kedge")
			c.step()
			if after := c.get("kedge"); !reflect.DeepEqual(before, after) {
				t.Errorf("then it is %+v", after.Status)
			}
			if got := len(c.events.Events); got != 2*count+1 {
				t.Errorf("%d Events", got)
			}
		})
	}
}

// TestOneLeader has the same server lead all the time. Its steps are those of TestOrder.
func TestOneLeader(t *testing.T) {
	c := newCluster(t, "s1:server s2:server a:agent b:agent")
	c.plan("kedge", upgrades.PlanSpec{Version: target, Cordon: true})
	leader := c.lead()
	for c.get("kedge").Status.Phase != upgrades.Complete {
		leader.nodes = c.lead().nodes
		if _, err := leader.sync(t.Context(), c.plans()); err != nil {
			t.Fatal(err)
		}
		c.note()
		c.act()
		if c.now = c.now.Add(time.Second); c.now.Sub(began) > time.Minute {
			t.Fatalf("got %+v", c.get("kedge").Status)
		}
	}
	if got := strings.Join(c.trace, " "); got != "s1 s2 a b" {
		t.Errorf("got %s", got)
	}
}

// TestOldNews has a leader whose cache is behind: it sees each Plan and node as they were some
// steps ago. Its writes are refused.
func TestOldNews(t *testing.T) {
	c := newCluster(t, "s1:server s2:server a:agent b:agent")
	c.plan("kedge", upgrades.PlanSpec{Version: target, Cordon: true, Concurrency: 2})
	type seen struct {
		plans []*upgrades.Plan
		term  *term
	}
	var history []seen
	for c.get("kedge").Status.Phase != upgrades.Complete {
		history = append(history, seen{c.plans(), c.lead()})
		for behind := 1; behind <= 3 && behind < len(history); behind++ {
			before := c.get("kedge")
			was := history[len(history)-1-behind]
			if reflect.DeepEqual(was.plans[0], before) {
				continue
			}
			if _, err := was.term.sync(t.Context(), was.plans); err != nil {
				t.Error(err)
			}
			if after := c.get("kedge"); !reflect.DeepEqual(before, after) {
				t.Errorf("a server that is behind changes %+v to %+v", before.Status, after.Status)
			}
		}
		if c.step(); len(history) > 100 {
			t.Fatalf("got %+v", c.get("kedge").Status)
		}
	}
	if got := strings.Join(c.trace, " "); got != "s1 s2 a+b" {
		t.Errorf("got %s", got)
	}
}

// TestNothingToDo has nodes that run the version already.
func TestNothingToDo(t *testing.T) {
	c := newCluster(t, "s:server a:agent b:agent")
	for _, name := range []string{"s", "b"} {
		c.node(name, func(n *corev1.Node) { n.Status.NodeInfo.KubeletVersion = target })
	}
	c.plan("kedge", upgrades.PlanSpec{Version: target})
	c.until("kedge", upgrades.Complete)
	if got := strings.Join(c.trace, " "); got != "a" {
		t.Errorf("got %s", got)
	}
}

// TestTryingNode has a node that still tries the version, by a Plan that is gone. It is not
// upgraded before it says so.
func TestTryingNode(t *testing.T) {
	c := newCluster(t, "s:server")
	c.node("s", func(n *corev1.Node) {
		n.Status.NodeInfo.KubeletVersion = target
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, upgrades.ReportAnnotation, upgrades.FormatReport(upgrades.Report{ID: "gone", Stage: upgrades.Trying}))
	})
	c.plan("kedge", upgrades.PlanSpec{Version: target})
	c.until("kedge", upgrades.Complete)
	if got := strings.Join(c.trace, " "); got != "s" {
		t.Errorf("got %s", got)
	}
}

// TestFile orders each node, also one with the same version.
func TestFile(t *testing.T) {
	c := newCluster(t, "s:server a:agent")
	for _, name := range []string{"s", "a"} {
		c.node(name, func(n *corev1.Node) { n.Status.NodeInfo.KubeletVersion = target })
	}
	c.ask = func(q question) answer {
		if q.version != "" {
			t.Errorf("asked for %v of %s", q.architectures, q.version)
		}
		return answer{done: true, version: target, executables: map[string]upgrades.Executable{"amd64": {SHA256: digest, Size: 9}}}
	}
	c.plan("kedge", upgrades.PlanSpec{File: "/tmp/kedge", SHA256: digest})
	c.until("kedge", upgrades.Complete)
	if got := strings.Join(c.trace, " "); got != "s a" {
		t.Errorf("got %s", got)
	}
	// Another architecture than that of the file.
	c.plan("other", upgrades.PlanSpec{File: "/tmp/kedge", SHA256: digest})
	c.node("a", func(n *corev1.Node) { n.Status.NodeInfo.Architecture = "arm64" })
	c.has(c.until("other", upgrades.Stopped).Status.Message, "node a is arm64, and /tmp/kedge is for amd64: choose nodes with spec.nodeSelector")
}

// TestChannelGoesBack has a channel with an older version than that of a node, as one that an
// attacker has changed. A user may ask for the older version by its name.
func TestChannelGoesBack(t *testing.T) {
	c := newCluster(t, "s:server a:agent")
	c.node("a", func(n *corev1.Node) { n.Status.NodeInfo.KubeletVersion = "v1.37.3+kedge.2" })
	c.plan("channel", upgrades.PlanSpec{Channel: "https://example.com/stable"})
	c.has(c.until("channel", upgrades.Stopped).Status.Message, "node a runs v1.37.3+kedge.2, and the channel has the older version "+target)
	if len(c.trace) > 0 {
		t.Errorf("nodes %v have begun", c.trace)
	}
	c.plan("version", upgrades.PlanSpec{Version: target})
	c.until("version", upgrades.Complete)
}

// TestClockGoesBack has a node that never answers, and a clock that was wrong when the node got its
// order. The node fails in time.
func TestClockGoesBack(t *testing.T) {
	c := newCluster(t, "s:server")
	c.answer = func(string, upgrades.Order, upgrades.Report) upgrades.Report { return upgrades.Report{} }
	c.now = began.AddDate(10, 0, 0)
	c.plan("kedge", upgrades.PlanSpec{Version: target})
	c.reaches("kedge", "s:Ordered")
	c.now = began
	c.step()
	c.now = began.Add(patience + time.Minute)
	c.has(c.until("kedge", upgrades.Stopped).Status.Message, "nothing has changed for 15m0s")
}

// TestManyFailures has many nodes that fail at the same time, each with a long explanation. The
// status must fit into the datastore.
func TestManyFailures(t *testing.T) {
	var nodes strings.Builder
	nodes.WriteString("s:server")
	for i := range 30 {
		fmt.Fprintf(&nodes, " a%d:agent", i)
	}
	c := newCluster(t, nodes.String())
	c.answer = func(node string, order upgrades.Order, before upgrades.Report) upgrades.Report {
		if node == "s" {
			return obey(node, order, before)
		}
		return upgrades.Report{ID: order.ID, Stage: upgrades.Failed, Message: strings.Repeat("x", 3000)}
	}
	c.plan("kedge", upgrades.PlanSpec{Version: target, Concurrency: 1000})
	plan := c.until("kedge", upgrades.Stopped)
	c.has(plan.Status.Message, ". 25 other nodes have failed, too: see status.nodes")
	if got := len(plan.Status.Message); got > 6*maxMessage {
		t.Errorf("the message has %d bytes", got)
	}
	for _, n := range plan.Status.Nodes {
		if len(n.Message) > maxMessage {
			t.Errorf("the message of node %s has %d bytes", n.Name, len(n.Message))
		}
	}
}

// TestHostileNode has a node that says something long and unprintable of itself.
func TestHostileNode(t *testing.T) {
	c := newCluster(t, "s:server a:agent")
	c.node("a", func(n *corev1.Node) {
		n.Status.NodeInfo.Architecture = "amd64\x1b[2J" + strings.Repeat("x", 1000)
		n.Status.NodeInfo.KubeletVersion = "v1.37.2\n" + strings.Repeat("\n", 1000)
	})
	c.ask = func(q question) answer {
		if q.version == "" {
			return answer{done: true, version: target}
		}
		return answer{done: true, err: errors.New("no release for " + strings.Join(q.architectures, ", "))}
	}
	c.plan("kedge", upgrades.PlanSpec{Version: target})
	for _, n := range c.until("kedge", upgrades.Stopped).Status.Nodes {
		if len(n.Architecture) > maxWord || strings.Contains(n.Architecture, "\x1b") {
			t.Errorf("node %s is %q", n.Name, n.Architecture)
		}
	}
	if message := c.get("kedge").Status.Message; strings.ContainsAny(message, "\x1b\n") || len(message) > 500 {
		t.Errorf("got %q", message)
	}
}

// TestResolving has a release that takes its time, and one that is not there.
func TestResolving(t *testing.T) {
	c := newCluster(t, "s:server a:agent b:agent")
	c.node("b", func(n *corev1.Node) { n.Status.NodeInfo.Architecture = "arm64" })
	obeying := c.ask
	c.ask = func(question) answer { return answer{} }
	c.plan("kedge", upgrades.PlanSpec{Channel: "https://example.com/stable"})
	c.step()
	c.step()
	if s := c.get("kedge").Status; s.Phase != upgrades.Resolving || s.Message != "looking for the version" {
		t.Errorf("got %+v", s)
	}
	var asked []string
	c.ask = func(q question) answer {
		if asked = q.architectures; q.version == "" {
			return obeying(q)
		}
		return answer{}
	}
	c.step()
	c.step()
	if s := c.get("kedge").Status; s.Phase != upgrades.Resolving || s.Version != target || s.Message != "getting v1.37.3+kedge.1 for amd64, arm64" || !reflect.DeepEqual(asked, []string{"amd64", "arm64"}) {
		t.Errorf("asked for %v, got %+v", asked, s)
	}
	c.ask = obeying
	c.step()
	if s := c.get("kedge").Status; s.Phase != upgrades.Upgrading || len(s.Executables) != 2 {
		t.Errorf("got %+v", s)
	}
	c.until("kedge", upgrades.Complete)

	c.plan("missing", upgrades.PlanSpec{Version: "v1.37.9+kedge.1"})
	c.ask = func(question) answer { return answer{done: true, err: errors.New("there is no such release")} }
	c.has(c.until("missing", upgrades.Stopped).Status.Message, "there is no such release")
}

// TestLateArchitecture has a node of another architecture join during a Plan.
func TestLateArchitecture(t *testing.T) {
	c := newCluster(t, "s:server a:agent")
	c.plan("kedge", upgrades.PlanSpec{Version: target})
	c.until("kedge", upgrades.Upgrading)
	c.join("b", "agent")
	c.node("b", func(n *corev1.Node) { n.Status.NodeInfo.Architecture = "arm64" })
	if plan := c.until("kedge", upgrades.Complete); len(plan.Status.Executables) != 2 {
		t.Errorf("got %+v", plan.Status)
	}
	if got := strings.Join(c.trace, " "); got != "s a b" {
		t.Errorf("got %s", got)
	}
}

// TestForbidden stops before anything is got.
func TestForbidden(t *testing.T) {
	c := newCluster(t, "s:server a:agent")
	c.ask = func(q question) answer {
		if q.version != "" {
			t.Error("executables are got")
		}
		return answer{done: true, version: "v1.36.0+kedge.1"}
	}
	c.plan("kedge", upgrades.PlanSpec{Version: "v1.36.0+kedge.1"})
	plan := c.until("kedge", upgrades.Stopped)
	c.has(plan.Status.Message, "node s runs v1.37.2+kedge.1, and no Plan brings a node to an older minor version")
	if !meta.IsStatusConditionTrue(plan.Status.Conditions, "Stopped") || len(c.trace) > 0 {
		t.Errorf("got %+v", plan.Status)
	}
}

// TestFailure has a node that goes back, or refuses, while others have orders. Those may finish,
// and no other node begins.
func TestFailure(t *testing.T) {
	for stage, want := range map[upgrades.Stage]string{
		upgrades.Failed:  "node a: it went back to the version before: no network",
		upgrades.Refused: "node a: it changed nothing: no network",
	} {
		c := newCluster(t, "s:server a:agent b:agent c:agent")
		c.answer = func(node string, order upgrades.Order, before upgrades.Report) upgrades.Report {
			if node == "a" && before.ID == order.ID {
				return upgrades.Report{ID: order.ID, Stage: stage, Message: "no network"}
			}
			return obey(node, order, before)
		}
		c.plan("kedge", upgrades.PlanSpec{Version: target, Concurrency: 2, Cordon: true})
		plan := c.until("kedge", upgrades.Stopped)
		if got := states(plan); got != "s:Upgraded a:Failed b:Upgraded c:Pending" {
			t.Errorf("got %s", got)
		}
		c.has(plan.Status.Message, want)
		c.step()
		c.checkCordons("")
		// The same spec again is a new Plan. A new spec goes on.
		c.answer = obey
		c.change("kedge", func(spec *upgrades.PlanSpec) { spec.Concurrency = 1 })
		c.until("kedge", upgrades.Complete)
		if got := strings.Join(c.trace, " "); got != "s a+b b a c" {
			t.Errorf("got %s", got)
		}
	}
}

// TestBrokenBuild stops after the first node.
func TestBrokenBuild(t *testing.T) {
	c := newCluster(t, "s1:server s2:server s3:server a:agent b:agent c:agent")
	c.answer = func(_ string, order upgrades.Order, before upgrades.Report) upgrades.Report {
		if before.Stage == upgrades.Trying {
			return upgrades.Report{ID: order.ID, Stage: upgrades.Failed, Message: "not ready in 5m0s"}
		}
		return obey("", order, before)
	}
	c.plan("kedge", upgrades.PlanSpec{Version: target, Concurrency: 3})
	if got := states(c.until("kedge", upgrades.Stopped)); got != "s1:Failed s2:Pending s3:Pending a:Pending b:Pending c:Pending" {
		t.Errorf("got %s", got)
	}
}

// TestReports has a node that tells nonsense, or what it told about another order.
func TestReports(t *testing.T) {
	for value, want := range map[string]string{
		"":                                 "waiting for its answer",
		"null":                             "its report cannot be read",
		"{":                                "its report cannot be read",
		`{"id":"order-1","stage":"Happy"}`: `"Happy" is not a stage`,
		upgrades.FormatReport(upgrades.Report{ID: "another one", Stage: upgrades.Upgraded}): "waiting for its answer",
		upgrades.FormatReport(upgrades.Report{ID: "order-1", Stage: upgrades.Fetching}):     "it gets the executable",
		upgrades.FormatReport(upgrades.Report{ID: "order-1", Stage: upgrades.Trying}):       "it runs the new version",
		upgrades.FormatReport(upgrades.Report{ID: "order-1", Stage: upgrades.Upgraded}):     "its kubelet reports the version v1.37.2+kedge.1",
		strings.Repeat("x", 9000): "it has 9000 bytes",
	} {
		c := newCluster(t, "s:server a:agent")
		c.answer = func(string, upgrades.Order, upgrades.Report) upgrades.Report { return upgrades.Report{} }
		c.plan("kedge", upgrades.PlanSpec{Version: target})
		c.until("kedge", upgrades.Upgrading)
		c.node("s", func(n *corev1.Node) { metav1.SetMetaDataAnnotation(&n.ObjectMeta, upgrades.ReportAnnotation, value) })
		c.step()
		s := c.get("kedge").Status
		if s.Phase != upgrades.Upgrading || s.Nodes[0].State != upgrades.NodeOrdered {
			t.Errorf("%.40q: got %+v", value, s)
		}
		c.has(s.Nodes[0].Message, want)
		c.now = c.now.Add(patience)
		c.step()
		plan := c.until("kedge", upgrades.Stopped)
		c.has(plan.Status.Message, "node s: nothing has changed for 15m0s: ")
		c.has(plan.Status.Message, want)
		if got := states(plan); got != "s:Failed a:Pending" {
			t.Errorf("%.40q: got %s", value, got)
		}
	}
}

// TestPatience has a node that takes long for each stage, but not too long.
func TestPatience(t *testing.T) {
	c := newCluster(t, "s:server")
	waited := upgrades.Stage("")
	c.answer = func(node string, order upgrades.Order, before upgrades.Report) upgrades.Report {
		if before.Stage != waited {
			waited = before.Stage
			c.now = c.now.Add(patience - 2*time.Second)
			return before
		}
		return obey(node, order, before)
	}
	c.plan("kedge", upgrades.PlanSpec{Version: target})
	c.until("kedge", upgrades.Complete)
}

// TestNotReady has nodes that are not Ready: before their turn, and after their upgrade.
func TestNotReady(t *testing.T) {
	c := newCluster(t, "s1:server s2:server a:agent b:agent")
	for _, name := range []string{"s2", "a"} {
		c.node(name, setReady(false))
	}
	c.plan("kedge", upgrades.PlanSpec{Version: target})
	c.has(c.until("kedge", upgrades.Waiting).Status.Message, "server s2 is not Ready: a server is upgraded only while all are")
	c.node("s2", setReady(true))
	c.step()
	plan := c.until("kedge", upgrades.Waiting)
	if plan.Status.Message != "waiting for a (not Ready)" || states(plan) != "s1:Upgraded s2:Upgraded a:Pending b:Upgraded" {
		t.Errorf("got %s %+v", states(plan), plan.Status)
	}
	c.node("a", setReady(true))
	c.answer = func(node string, order upgrades.Order, before upgrades.Report) upgrades.Report {
		defer c.node(node, setReady(false))
		return obey(node, order, before)
	}
	c.step()
	for range 5 {
		c.step()
	}
	if n := c.get("kedge").Status.Nodes[2]; n.State != upgrades.NodeOrdered || n.Message != "it is upgraded, but not Ready yet" {
		t.Errorf("got %+v", n)
	}
	c.answer = obey
	c.node("a", setReady(true))
	c.until("kedge", upgrades.Complete)
}

// TestGone deletes nodes in each state.
func TestGone(t *testing.T) {
	c := newCluster(t, "s:server a:agent b:agent c:agent")
	c.answer = func(node string, order upgrades.Order, before upgrades.Report) upgrades.Report {
		if node == "b" {
			return upgrades.Report{}
		}
		return obey(node, order, before)
	}
	c.plan("kedge", upgrades.PlanSpec{Version: target})
	c.reaches("kedge", "b:Ordered")
	c.remove("b") // ordered
	c.remove("a") // upgraded
	c.step()
	if got := states(c.get("kedge")); got != "s:Upgraded c:Ordered" {
		t.Errorf("got %s", got)
	}
	c.join("b", "agent") // another one with the same name
	c.answer = obey
	if got := states(c.until("kedge", upgrades.Complete)); got != "s:Upgraded b:Upgraded c:Upgraded" {
		t.Errorf("got %s", got)
	}
	c.plan("none", upgrades.PlanSpec{Version: target, NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": "x"}}})
	c.has(c.until("none", upgrades.Waiting).Status.Message, "no node that the Plan chooses")
}

// TestAnotherSpec changes a Plan while a node has an order. The node comes first again, and
// nothing that it told before counts.
func TestAnotherSpec(t *testing.T) {
	c := newCluster(t, "s1:server s2:server a:agent b:agent")
	c.plan("kedge", upgrades.PlanSpec{Version: "v1.37.9+kedge.1", Cordon: true})
	ask := c.ask
	c.ask = func(q question) answer {
		got := ask(q)
		if q.version == "" {
			got.version = q.plan.Spec.Version
		}
		return got
	}
	c.reaches("kedge", "b:Ordered")
	first := c.get("kedge").Status.Nodes[3].Order
	c.change("kedge", func(spec *upgrades.PlanSpec) { spec.Version = target })
	if order := orderOf(c.plans(), "b"); order != (upgrades.Order{}) {
		t.Errorf("the order stays: %v", order)
	}
	c.step()
	if s := c.get("kedge").Status; s.Phase != upgrades.Resolving || states(c.get("kedge")) != "b:Pending" || s.Nodes[0].Order != first || s.Version != "" {
		t.Errorf("got %+v", s)
	}
	c.trace = nil
	c.until("kedge", upgrades.Complete)
	if got := strings.Join(c.trace, " "); got != "s1 s2 b a" {
		t.Errorf("got %s", got)
	}
	if n := find(c.lead().mustNodes(t), "b"); n.version != target || n.unschedulable {
		t.Errorf("got %+v", n)
	}
}

// mustNodes returns the nodes that a controller sees.
func (t *term) mustNodes(test *testing.T) []*node {
	test.Helper()
	list, err := t.nodes.List(labels.Everything())
	if err != nil {
		test.Fatal(err)
	}
	return nodesOf(list)
}

// TestSeveralPlans has Plans for the same nodes. The older one wins, and the other one waits.
func TestSeveralPlans(t *testing.T) {
	c := newCluster(t, "s1:server s2:server a:agent b:agent")
	agents := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "name", Operator: metav1.LabelSelectorOpIn, Values: []string{"a", "b"}}}}
	c.plan("older", upgrades.PlanSpec{Version: target, NodeSelector: agents})
	c.now = c.now.Add(time.Second)
	c.plan("all", upgrades.PlanSpec{File: "/tmp/kedge", SHA256: digest})
	c.ask = func(question) answer {
		return answer{done: true, version: target, executables: map[string]upgrades.Executable{"amd64": {SHA256: digest, Size: 9}}}
	}
	c.has(c.until("all", upgrades.Waiting).Status.Message, "the older Plan older is for some of the same nodes: waiting until it has ended")
	if got := c.until("older", upgrades.Complete); states(got) != "a:Upgraded b:Upgraded" {
		t.Errorf("got %s", states(got))
	}
	c.until("all", upgrades.Upgrading)
	// The older one goes on while the other one has begun with a server. It waits for nobody,
	// because its nodes are others.
	c.change("older", func(spec *upgrades.PlanSpec) { spec.NodeSelector.MatchExpressions[0].Values = []string{"a", "b", "s2"} })
	c.until("older", upgrades.Complete)
	c.until("all", upgrades.Complete)
}

// TestServersOfTwoPlans has two Plans, each for a server. They are not upgraded at the same
// time.
func TestServersOfTwoPlans(t *testing.T) {
	c := newCluster(t, "s1:server s2:server")
	for _, name := range []string{"s1", "s2"} {
		c.plan(name, upgrades.PlanSpec{Version: target, NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": name}}})
		c.now = c.now.Add(time.Second)
	}
	c.has(c.until("s2", upgrades.Waiting).Status.Message, "Plan s1 is upgrading server s1, and servers are upgraded one at a time")
	c.until("s1", upgrades.Complete)
	c.until("s2", upgrades.Complete)
	if got := strings.Join(c.trace, " "); got != "s1 s2" {
		t.Errorf("got %s", got)
	}
}

// TestTimes has a Plan with a window that closes after its first node.
func TestTimes(t *testing.T) {
	c := newCluster(t, "s:server a:agent")
	c.plan("kedge", upgrades.PlanSpec{Version: target, Window: &upgrades.Window{StartTime: "12:30", EndTime: "12:31"}})
	c.has(c.until("kedge", upgrades.Waiting).Status.Message, "the window opens at Mon 2026-01-05 12:30 UTC")
	c.now = began.Add(30 * time.Minute)
	c.step()
	c.now = began.Add(31 * time.Minute)
	plan := c.until("kedge", upgrades.Waiting)
	c.has(plan.Status.Message, "the window opens at Tue 2026-01-06 12:30 UTC")
	if states(plan) != "s:Upgraded a:Pending" {
		t.Errorf("got %s", states(plan))
	}
	c.now = began.Add(24*time.Hour + 30*time.Minute)
	c.step()
	c.until("kedge", upgrades.Complete)
	c.plan("wrong", upgrades.PlanSpec{File: "/x", SHA256: digest, Window: &upgrades.Window{TimeZone: "Mars"}})
	c.ask = func(question) answer {
		return answer{done: true, version: target, executables: map[string]upgrades.Executable{"amd64": {}}}
	}
	c.has(c.until("wrong", upgrades.Stopped).Status.Message, "spec.window.timeZone")
	c.plan("selector", upgrades.PlanSpec{Version: target, NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"-": "x"}}})
	c.has(c.until("selector", upgrades.Stopped).Status.Message, "spec.nodeSelector")
}

// checkCordons fails unless exactly some nodes are cordoned, as a text with spaces.
func (c *cluster) checkCordons(want string) {
	c.Helper()
	list, err := c.api.CoreV1().Nodes().List(c.Context(), metav1.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	var got []string
	for _, n := range list.Items {
		by, annotated := n.Annotations[upgrades.CordonAnnotation]
		if n.Spec.Unschedulable {
			got = append(got, n.Name)
		}
		if n.Spec.Unschedulable != annotated || annotated && by == "" {
			c.Errorf("node %s is unschedulable: %t, by Plan %q", n.Name, n.Spec.Unschedulable, by)
		}
	}
	if strings.Join(got, " ") != want {
		c.Errorf("cordoned are %v, want %s", got, want)
	}
}

// TestCordon cordons each node for the time of its upgrade, and leaves those of the user alone.
func TestCordon(t *testing.T) {
	c := newCluster(t, "s:server a:agent b:agent")
	c.plan("kedge", upgrades.PlanSpec{Version: target, Cordon: true})
	cordoned := map[string]bool{}
	for c.get("kedge").Status.Phase != upgrades.Complete {
		c.step()
		for _, n := range c.lead().mustNodes(t) {
			if cordoned[n.name] = cordoned[n.name] || n.unschedulable; orderOf(c.plans(), n.name) != (upgrades.Order{}) && !n.unschedulable {
				t.Errorf("node %s has an order, and gets pods", n.name)
			}
		}
	}
	c.step()
	c.checkCordons("")
	if len(cordoned) != 3 || !cordoned["s"] || !cordoned["a"] || !cordoned["b"] {
		t.Errorf("cordoned were %v", cordoned)
	}
	// A Plan that is deleted, and a node that the user has cordoned.
	c.plan("second", upgrades.PlanSpec{File: "/x", SHA256: digest, Cordon: true})
	c.node("b", func(n *corev1.Node) { n.Spec.Unschedulable = true })
	c.ask = func(question) answer {
		return answer{done: true, version: target, executables: map[string]upgrades.Executable{"amd64": {SHA256: digest, Size: 9}}}
	}
	c.reaches("second", "a:Ordered")
	c.node("b", func(n *corev1.Node) { n.Spec.Unschedulable = false })
	c.checkCordons("a")
	c.node("b", func(n *corev1.Node) { n.Spec.Unschedulable = true })
	if err := c.custom.Tracker().Delete(upgrades.Plans, "", "second"); err != nil {
		t.Fatal(err)
	}
	c.step()
	c.node("b", func(n *corev1.Node) {
		if !n.Spec.Unschedulable {
			t.Error("the node of the user is uncordoned")
		}
		n.Spec.Unschedulable = false
	})
	c.checkCordons("")
}

// pod puts a pod on a node.
func (c *cluster) pod(node, name string, change func(*corev1.Pod)) {
	c.Helper()
	isController := true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "x", UID: "1", Controller: &isController}}},
		Spec:       corev1.PodSpec{NodeName: node},
	}
	if change != nil {
		change(pod)
	}
	if err := c.api.Tracker().Add(pod); err != nil {
		c.Fatal(err)
	}
}

// pods returns the names of all pods.
func (c *cluster) pods() string {
	c.Helper()
	list, err := c.api.CoreV1().Pods("").List(c.Context(), metav1.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	var all []string
	for _, pod := range list.Items {
		all = append(all, pod.Name)
	}
	return strings.Join(all, " ")
}

// TestCordonConflict has a Node that its kubelet has just written, when the Plan is gone. The
// newer version is the same to a Plan, so the controller must come again by itself.
func TestCordonConflict(t *testing.T) {
	c := newCluster(t, "s:server")
	c.node("s", func(n *corev1.Node) {
		n.Spec.Unschedulable = true
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, upgrades.CordonAnnotation, "gone")
	})
	leader, conflicts := c.lead(), 1
	c.api.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		if conflicts--; conflicts >= 0 {
			return true, nil, apierrors.NewConflict(corev1.Resource("nodes"), "s", errors.New("it is newer"))
		}
		return false, nil, nil
	})
	if again, err := leader.sync(t.Context(), nil); again != soon || err != nil {
		t.Errorf("after a conflict it looks again in %s: %v", again, err)
	}
	if again, err := leader.sync(t.Context(), nil); again != 0 || err != nil {
		t.Errorf("then it looks again in %s: %v", again, err)
	}
	c.checkCordons("")
}

// TestDrain evicts pods, and waits for budgets. Mirror pods stay.
func TestDrain(t *testing.T) {
	c := newCluster(t, "s:server")
	for i := range 7 {
		c.pod("s", fmt.Sprintf("p%d", i), nil)
	}
	c.pod("s", "static", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} })
	c.kept = true
	c.plan("kedge", upgrades.PlanSpec{Version: target, Drain: &upgrades.Drain{}})
	for range 10 {
		c.step()
	}
	plan := c.get("kedge")
	if states(plan) != "s:Draining" || plan.Status.Phase != upgrades.Upgrading {
		t.Errorf("got %+v", plan.Status)
	}
	c.has(plan.Status.Nodes[0].Message, "7 pods are left: default/p0 (a PodDisruptionBudget keeps it), default/p1")
	c.has(plan.Status.Nodes[0].Message, "p4 (a PodDisruptionBudget keeps it), …")
	c.checkCordons("s")
	c.kept = false
	c.reaches("kedge", "s:Ordered")
	if got := c.pods(); got != "static" {
		t.Errorf("left are %s", got)
	}
	c.until("kedge", upgrades.Complete)
	c.step()
	c.checkCordons("")
}

// TestEvictionFails has a pod whose eviction the API refuses with another answer than that of a
// budget, as for a pod with two of them. The Plan says so, and stops in time.
func TestEvictionFails(t *testing.T) {
	c := newCluster(t, "s:server a:agent")
	c.pod("a", "p", nil)
	c.pod("a", "q", nil)
	c.api.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction).Name == "q" {
			return false, nil, nil
		}
		return true, nil, apierrors.NewInternalError(errors.New("this pod has more than one PodDisruptionBudget"))
	})
	c.plan("kedge", upgrades.PlanSpec{Version: target, Drain: &upgrades.Drain{TimeoutSeconds: 20}})
	c.has(c.until("kedge", upgrades.Stopped).Status.Message, "node a: it was not drained in 20s: 1 pod is left: default/p (Internal error occurred: this pod has more than one PodDisruptionBudget)")
	if got := c.pods(); got != "p" {
		t.Errorf("left are %s", got)
	}
}

// TestDrainFails has pods that a drain must not touch, and a drain that takes too long.
func TestDrainFails(t *testing.T) {
	for want, change := range map[string]func(*corev1.Pod){
		"Pods that declare no controller": func(p *corev1.Pod) { p.OwnerReferences = nil },
		"Pods with local storage": func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		},
	} {
		c := newCluster(t, "s:server a:agent")
		c.pod("s", "p", change)
		c.plan("kedge", upgrades.PlanSpec{Version: target, Drain: &upgrades.Drain{}})
		plan := c.until("kedge", upgrades.Stopped)
		if states(plan) != "s:Failed a:Pending" || c.pods() != "p" {
			t.Errorf("got %s, with pods %s", states(plan), c.pods())
		}
		c.has(strings.ToLower(plan.Status.Message), strings.ToLower(want))
		c.has(plan.Status.Message, "spec.drain.force")
		c.step()
		c.checkCordons("")
		c.plan("forced", upgrades.PlanSpec{Version: target, Drain: &upgrades.Drain{Force: true, DeleteEmptyDirData: true}})
		c.until("forced", upgrades.Complete)
		if got := c.pods(); got != "" {
			t.Errorf("left are %s", got)
		}
	}
	c := newCluster(t, "s:server a:agent b:agent")
	c.pod("a", "p", nil)
	c.kept = true
	c.plan("kedge", upgrades.PlanSpec{Version: target, Concurrency: 2, Drain: &upgrades.Drain{TimeoutSeconds: 20}})
	c.answer = func(node string, order upgrades.Order, before upgrades.Report) upgrades.Report {
		if node == "b" && c.now.Sub(began) < time.Minute {
			return before
		}
		return obey(node, order, before)
	}
	c.reaches("kedge", "a:Failed")
	if s := c.get("kedge").Status; s.Phase != upgrades.Upgrading || !strings.Contains(s.Message, "No other node begins. Waiting for b") {
		t.Errorf("got %+v", s)
	}
	plan := c.until("kedge", upgrades.Stopped)
	c.has(plan.Status.Message, "node a: it was not drained in 20s: 1 pod is left: default/p")
	if states(plan) != "s:Upgraded a:Failed b:Upgraded" {
		t.Errorf("got %s", states(plan))
	}
}

// TestFailureWhileDraining has a node that fails while another one is drained. The other one
// gets its pods again.
func TestFailureWhileDraining(t *testing.T) {
	c := newCluster(t, "s:server a:agent b:agent")
	c.pod("a", "p", nil)
	c.kept = true
	c.answer = func(node string, order upgrades.Order, before upgrades.Report) upgrades.Report {
		if node == "b" {
			return upgrades.Report{ID: order.ID, Stage: upgrades.Refused}
		}
		return obey(node, order, before)
	}
	c.plan("kedge", upgrades.PlanSpec{Version: target, Concurrency: 2, Drain: &upgrades.Drain{}})
	if got := states(c.until("kedge", upgrades.Stopped)); got != "s:Upgraded a:Pending b:Failed" {
		t.Errorf("got %s", got)
	}
	c.step()
	c.checkCordons("")
}
