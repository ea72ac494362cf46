package upgradecontrol

import (
	"context"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kedge-dev/kedge/internal/base/upgrades"
)

// Cluster is what Foresee looks at.
type Cluster struct {
	Nodes []*corev1.Node
	Plans []*upgrades.Plan
	// Servers are HOST:PORT of all servers with an API server, and HTTP asks them for their
	// version.
	Servers []string
	HTTP    *http.Client
	// Leader is the node of the server that leads, or "".
	Leader string
}

// Forecast is what a Plan would do.
type Forecast struct {
	// Steps are the nodes that would be upgraded. Those of one step begin at the same time.
	Steps [][]Step
	// Done are the names of the nodes that run the version already.
	Done []string
	// Forbidden says what forbids the Plan.
	Forbidden []string
	// Waits says why no node would begin now, or is empty.
	Waits string
	// Architectures are those for which executables are needed.
	Architectures []string
}

// Step is a node that a Plan would upgrade.
type Step struct{ Node, Role, Version string }

// Foresee tells what a Plan would do that brings nodes to a version, and changes nothing.
func Foresee(ctx context.Context, plan *upgrades.Plan, version string, c Cluster) Forecast {
	all := nodesOf(c.Nodes)
	w := &world{
		plan: plan, all: all, bares: baresOf(ctx, c.HTTP, c.Servers, all), own: c.Leader, now: time.Now(),
		others: slices.DeleteFunc(slices.Clone(c.Plans), func(other *upgrades.Plan) bool { return other.Name == plan.Name }),
		newID:  func() string { return "" },
	}
	nodes, err := chosen(plan, all)
	if err != nil {
		return Forecast{Forbidden: []string{err.Error()}}
	}
	s := &upgrades.PlanStatus{Version: version}
	s.Nodes = w.entries(s, nodes)
	for i := range s.Nodes {
		w.follow(s, &s.Nodes[i])
	}
	f := Forecast{Forbidden: w.forbids(version, nodes)}
	for _, n := range in(s, upgrades.NodeUpgraded) {
		f.Done = append(f.Done, n.Name)
	}
	room := 0
	for _, e := range w.inOrder(in(s, upgrades.NodePending)) {
		n := find(all, e.Name)
		if !slices.Contains(f.Architectures, n.architecture) {
			f.Architectures = append(f.Architectures, n.architecture)
		}
		step := Step{n.name, n.role.String(), n.version}
		if n.role == agent && room > 0 {
			f.Steps[len(f.Steps)-1] = append(f.Steps[len(f.Steps)-1], step)
			room--
			continue
		}
		if f.Steps = append(f.Steps, []Step{step}); n.role == agent {
			room = int(plan.Spec.Concurrency) - 1
		}
	}
	slices.Sort(f.Architectures)
	if len(f.Steps) == 0 {
		return f
	}
	why, fault := w.start(s)
	if fault != "" {
		f.Forbidden = append(f.Forbidden, fault)
	}
	if len(underWay(s)) == 0 {
		f.Waits = why
	}
	return f
}

// String returns what users call a role.
func (r role) String() string {
	return map[role]string{server: "server", etcd: "server without an API server", agent: "agent"}[r]
}
