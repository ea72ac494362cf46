package upgradecontrol

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/base/foreigntext"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
)

// patience is how long a node may stay in one stage of an order.
const patience = 15 * time.Minute

// drainPatience is how long a drain may take, unless the Plan says so.
const drainPatience = 5 * time.Minute

// world is what the next status of a Plan follows from. A status has everything that another
// server needs to go on, so a world keeps nothing from one status to the next.
type world struct {
	plan *upgrades.Plan
	// all are the nodes of the cluster, and bares its servers that are no nodes.
	all   []*node
	bares []bare
	// others are the other Plans.
	others []*upgrades.Plan
	// own is the node of this server, or "".
	own string
	// drained is how far the nodes are that are being drained.
	drained map[string]drained
	// ask looks for what the spec means.
	ask   func(question) answer
	now   time.Time
	newID func() string
}

// next returns the next status of the Plan.
func (w *world) next() upgrades.PlanStatus {
	s := w.plan.Status
	s.Nodes, s.Executables, s.Conditions = slices.Clone(s.Nodes), maps.Clone(s.Executables), slices.Clone(s.Conditions)
	switch {
	case s.ObservedGeneration != w.plan.Generation:
		w.begin(&s)
	case !ended(&s):
		w.advance(&s)
	}
	setConditions(&s, w.now)
	return s
}

// ended tells whether a Plan does nothing more until its spec changes.
func ended(s *upgrades.PlanStatus) bool {
	return s.Phase == upgrades.Complete || s.Phase == upgrades.Stopped
}

// begin makes the status of a new spec. Nodes that have an order of the earlier spec keep its ID,
// as a sign that they come first.
func (w *world) begin(s *upgrades.PlanStatus) {
	s.Nodes = slices.DeleteFunc(s.Nodes, func(n upgrades.NodeStatus) bool { return n.State != upgrades.NodeOrdered })
	for i := range s.Nodes {
		w.enter(&s.Nodes[i], upgrades.NodePending, "")
	}
	s.ObservedGeneration, s.Version, s.Executables = w.plan.Generation, "", nil
	s.Phase, s.Message = upgrades.Resolving, "looking for the version"
}

// maxMessage is how many bytes the message of a node may have. The datastore refuses a Plan of more
// than 1.5 MiB, and up to 1,000 nodes can fail at a time. The annotation of the Node has more.
const maxMessage = 1 << 10

// enter puts a node into a state.
func (w *world) enter(n *upgrades.NodeStatus, state upgrades.NodeState, message string) {
	n.State, n.Message, n.Since = state, foreigntext.Cut(message, maxMessage), metav1.NewTime(w.now)
}

// advance brings the Plan on.
func (w *world) advance(s *upgrades.PlanStatus) {
	nodes, err := chosen(w.plan, w.all)
	if err != nil {
		w.stop(s, fmt.Sprintf("spec.nodeSelector: %v", err))
		return
	}
	s.Nodes = w.entries(s, nodes)
	for i := range s.Nodes {
		w.follow(s, &s.Nodes[i])
	}
	if failed := in(s, upgrades.NodeFailed); len(failed) > 0 {
		w.stop(s, failures(failed))
		return
	}
	if !w.resolve(s, nodes) {
		return
	}
	if len(nodes) == 0 {
		s.Phase, s.Message = upgrades.Waiting, "the cluster has no node that the Plan chooses"
		return
	}
	if upgraded := in(s, upgrades.NodeUpgraded); len(upgraded) == len(s.Nodes) {
		s.Phase, s.Message = upgrades.Complete, fmt.Sprintf("%s %s", count(len(upgraded), "node runs", "nodes run"), s.Version)
		return
	}
	why, fault := w.start(s)
	if fault != "" {
		w.stop(s, fault)
		return
	}
	if under := underWay(s); len(under) > 0 {
		s.Phase, s.Message = upgrades.Upgrading, fmt.Sprintf("%d of %s upgraded. Upgrading %s",
			len(in(s, upgrades.NodeUpgraded)), count(len(s.Nodes), "node is", "nodes are"), names(under))
		return
	}
	s.Phase, s.Message = upgrades.Waiting, why
}

// stop ends the Plan as soon as no node has an order. Until then no other node begins.
func (w *world) stop(s *upgrades.PlanStatus, reason string) {
	for i := range s.Nodes {
		if n := &s.Nodes[i]; n.State == upgrades.NodeDraining {
			w.enter(n, upgrades.NodePending, "")
		}
	}
	s.Phase, s.Message = upgrades.Stopped, reason
	if ordered := in(s, upgrades.NodeOrdered); len(ordered) > 0 {
		s.Phase, s.Message = upgrades.Upgrading, fmt.Sprintf("%s. No other node begins. Waiting for %s", reason, names(ordered))
	}
}

// entries returns the states of nodes in the order of nodes. Nodes that are gone, or that the
// Plan chooses no more, are left out.
func (w *world) entries(s *upgrades.PlanStatus, nodes []*node) []upgrades.NodeStatus {
	var entries []upgrades.NodeStatus
	for _, n := range nodes {
		i := slices.IndexFunc(s.Nodes, func(e upgrades.NodeStatus) bool { return e.Name == n.name })
		if i >= 0 {
			entries = append(entries, s.Nodes[i])
			continue
		}
		entry := upgrades.NodeStatus{Name: n.name, Architecture: n.architecture}
		w.enter(&entry, upgrades.NodePending, "")
		entries = append(entries, entry)
	}
	return entries
}

// follow notes what has become of a node.
func (w *world) follow(s *upgrades.PlanStatus, e *upgrades.NodeStatus) {
	n := find(w.all, e.Name)
	// The clock of this server may be behind that of the server that wrote the time.
	if e.Since.After(w.now) {
		e.Since = metav1.NewTime(w.now)
	}
	switch e.State {
	case upgrades.NodePending:
		e.Architecture = n.architecture
		// Files can be different and have the same version. A node that still tries an order is
		// not known to stay with its version.
		if w.plan.Spec.File == "" && n.version == s.Version && e.Order == "" && !n.isTrying() {
			w.enter(e, upgrades.NodeUpgraded, "it ran this version before")
		}
	case upgrades.NodeDraining:
		w.followDrain(e)
	case upgrades.NodeOrdered:
		w.followOrder(s, e, n)
	}
}

// followDrain notes how far the drain of a node is.
func (w *world) followDrain(e *upgrades.NodeStatus) {
	result, known := w.drained[e.Name]
	limit := drainPatience
	if drain := w.plan.Spec.Drain; drain != nil && drain.TimeoutSeconds > 0 {
		limit = time.Duration(drain.TimeoutSeconds) * time.Second
	}
	switch {
	case !known:
	case result.refused != "":
		w.enter(e, upgrades.NodeFailed, "it cannot be drained: "+result.refused)
	case result.left == "":
		w.order(e)
	case w.now.Sub(e.Since.Time) > limit:
		w.enter(e, upgrades.NodeFailed, fmt.Sprintf("it was not drained in %s: %s", limit, result.left))
	default:
		e.Message = foreigntext.Cut(result.left, maxMessage)
	}
}

// waiting is what is said of a node that has an order, and has not told about it.
const waiting = "waiting for its answer"

// order gives a node a new order.
func (w *world) order(e *upgrades.NodeStatus) {
	e.Order = w.newID()
	w.enter(e, upgrades.NodeOrdered, waiting)
}

// followOrder notes what a node tells about its order.
func (w *world) followOrder(s *upgrades.PlanStatus, e *upgrades.NodeStatus, n *node) {
	report, err := upgrades.ParseReport(n.report)
	told := ""
	stage := waiting
	switch {
	case n.report == "":
	case err != nil:
		told = "its report cannot be read: " + err.Error()
	case report.ID != e.Order: // of an earlier order
	case report.Stage == upgrades.Failed:
		w.enter(e, upgrades.NodeFailed, "it went back to the version before: "+report.Message)
		return
	case report.Stage == upgrades.Refused:
		w.enter(e, upgrades.NodeFailed, "it changed nothing: "+report.Message)
		return
	case report.Stage == upgrades.Fetching:
		stage, told = "it gets the executable", report.Message
	case report.Stage == upgrades.Trying:
		stage, told = "it runs the new version, and goes back if that does not work", report.Message
	case n.version != s.Version:
		stage = fmt.Sprintf("it is upgraded, but its kubelet reports the version %s", n.version)
	case !n.ready:
		stage = "it is upgraded, but not Ready yet"
	default:
		w.enter(e, upgrades.NodeUpgraded, "")
		return
	}
	if !strings.HasPrefix(e.Message, stage) {
		w.enter(e, upgrades.NodeOrdered, stage)
	}
	if e.Message = stage; told != "" {
		e.Message = foreigntext.Cut(stage+": "+told, maxMessage)
	}
	if w.now.Sub(e.Since.Time) > patience {
		w.enter(e, upgrades.NodeFailed, fmt.Sprintf("nothing has changed for %s: %s. Read its log; a kedge that is too old for Plans does not answer", patience, e.Message))
	}
}

// isTrying tells whether a node still works at an order.
func (n *node) isTrying() bool {
	report, err := upgrades.ParseReport(n.report)
	return err == nil && (report.Stage == upgrades.Fetching || report.Stage == upgrades.Trying)
}

// resolve finds out what the spec means, and whether that may be done. It returns false if the
// Plan must wait for that, or cannot go on.
func (w *world) resolve(s *upgrades.PlanStatus, nodes []*node) bool {
	wait := func(got answer, message string) bool {
		if got.err != nil {
			w.stop(s, got.err.Error())
			return false
		}
		if !got.done {
			s.Phase, s.Message = upgrades.Resolving, message
		}
		return got.done
	}
	if s.Version == "" {
		got := w.ask(question{plan: w.plan})
		if !wait(got, "looking for the version") {
			return false
		}
		s.Version, s.Executables = got.version, got.executables
		for i := range s.Nodes {
			w.follow(s, &s.Nodes[i]) // some may run it already
		}
	}
	if reasons := w.forbids(s.Version, nodes); len(reasons) > 0 {
		w.stop(s, strings.Join(reasons, ". "))
		return false
	}
	missing := map[string]bool{}
	for _, n := range s.Nodes {
		if _, has := s.Executables[n.Architecture]; !has && n.State != upgrades.NodeUpgraded {
			missing[n.Architecture] = true
		}
		if file := w.plan.Spec.File; file != "" && missing[n.Architecture] {
			w.stop(s, fmt.Sprintf("node %s is %s, and %s is for %s: choose nodes with spec.nodeSelector, or use spec.version",
				n.Name, n.Architecture, file, strings.Join(slices.Sorted(maps.Keys(s.Executables)), ", ")))
			return false
		}
	}
	if len(missing) == 0 {
		return true
	}
	architectures := slices.Sorted(maps.Keys(missing))
	got := w.ask(question{plan: w.plan, version: s.Version, architectures: architectures})
	if !wait(got, fmt.Sprintf("getting %s for %s", s.Version, strings.Join(architectures, ", "))) {
		return false
	}
	if s.Executables == nil {
		s.Executables = map[string]upgrades.Executable{}
	}
	maps.Copy(s.Executables, got.executables)
	return true
}

// start begins with as many nodes as may be upgraded now. If it begins with none, it returns why
// the Plan waits, or the fault that stops it.
func (w *world) start(s *upgrades.PlanStatus) (why, fault string) {
	open, opening, err := opens(w.plan.Spec.Window, w.now)
	if err != nil {
		return "", err.Error()
	}
	if other := w.older(); other != "" {
		return fmt.Sprintf("the older Plan %s is for some of the same nodes: waiting until it has ended", other), ""
	}
	if !open {
		return "the window opens at " + opening.Format("Mon 2006-01-02 15:04 MST"), ""
	}
	for _, b := range w.bares {
		if b.version == "" {
			return fmt.Sprintf("the server at %s, which is not a node, does not tell its version", b.address), ""
		}
	}
	pending := w.inOrder(in(s, upgrades.NodePending))
	under := underWay(s)
	if servers := slices.DeleteFunc(slices.Clone(s.Nodes), func(e upgrades.NodeStatus) bool {
		return e.State == upgrades.NodeUpgraded || find(w.all, e.Name).role == agent
	}); len(servers) > 0 {
		if len(under) > 0 {
			return "", ""
		}
		return w.startServer(s, pending[0].Name), ""
	}
	room := max(int(w.plan.Spec.Concurrency), 1) - len(under)
	var waiting []string
	for _, e := range pending {
		switch other := w.takenBy(e.Name); {
		case other != "":
			waiting = append(waiting, fmt.Sprintf("%s (Plan %s is upgrading it)", e.Name, other))
		case !find(w.all, e.Name).ready:
			waiting = append(waiting, e.Name+" (not Ready)")
		case room > 0:
			w.launch(s, e.Name)
			room--
		}
	}
	return "waiting for " + strings.Join(waiting, ", "), ""
}

// startServer begins with a server, unless another one is not as it should be. It returns why.
func (w *world) startServer(s *upgrades.PlanStatus, name string) (why string) {
	for _, n := range w.all {
		if n.role == agent {
			continue
		}
		if other := w.takenBy(n.name); other != "" {
			return fmt.Sprintf("Plan %s is upgrading server %s, and servers are upgraded one at a time", other, n.name)
		}
		if !n.ready {
			return fmt.Sprintf("server %s is not Ready: a server is upgraded only while all are", n.name)
		}
	}
	w.launch(s, name)
	return ""
}

// launch begins with a node.
func (w *world) launch(s *upgrades.PlanStatus, name string) {
	for i := range s.Nodes {
		e := &s.Nodes[i]
		switch {
		case e.Name != name:
		case w.plan.Spec.Cordon || w.plan.Spec.Drain != nil:
			w.enter(e, upgrades.NodeDraining, "")
		default:
			w.order(e)
		}
	}
}

// inOrder sorts nodes in the order of their upgrades: those that have an order of an earlier
// spec, servers, the server that leads, and agents.
func (w *world) inOrder(pending []upgrades.NodeStatus) []upgrades.NodeStatus {
	rank := func(e upgrades.NodeStatus) int {
		n := find(w.all, e.Name)
		switch {
		case n.role != agent && e.Order != "":
			return 0
		case n.role == server && n.name != w.own:
			return 1
		case n.role == server:
			return 2
		case n.role == etcd:
			return 3
		case e.Order != "":
			return 4
		}
		return 5
	}
	slices.SortStableFunc(pending, func(a, b upgrades.NodeStatus) int { return cmp.Compare(rank(a), rank(b)) })
	return pending
}

// older returns the oldest other Plan that has not ended and is for some of the same nodes, or
// "".
func (w *world) older() string {
	mine, _ := chosen(w.plan, w.all)
	for _, other := range w.others {
		if ended(&other.Status) && other.Status.ObservedGeneration == other.Generation || compareAge(other, w.plan) > 0 {
			continue
		}
		theirs, _ := chosen(other, w.all)
		if slices.ContainsFunc(mine, func(n *node) bool { return find(theirs, n.name) != nil }) {
			return other.Name
		}
	}
	return ""
}

// compareAge compares Plans by age, the oldest first.
func compareAge(a, b *upgrades.Plan) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
}

// takenBy returns another Plan that has begun with a node, or "".
func (w *world) takenBy(node string) string {
	for _, other := range w.others {
		if slices.ContainsFunc(underWay(&other.Status), func(e upgrades.NodeStatus) bool { return e.Name == node }) {
			return other.Name
		}
	}
	return ""
}

// in returns the nodes that are in a state.
func in(s *upgrades.PlanStatus, state upgrades.NodeState) (found []upgrades.NodeStatus) {
	for _, n := range s.Nodes {
		if n.State == state {
			found = append(found, n)
		}
	}
	return found
}

// underWay returns the nodes that a Plan has begun with.
func underWay(s *upgrades.PlanStatus) []upgrades.NodeStatus {
	return append(in(s, upgrades.NodeDraining), in(s, upgrades.NodeOrdered)...)
}

// names returns the names of nodes as a list.
func names(nodes []upgrades.NodeStatus) string {
	var all []string
	for _, n := range nodes {
		all = append(all, n.Name)
	}
	return strings.Join(all, ", ")
}

// failures tells which nodes have failed, and why.
func failures(nodes []upgrades.NodeStatus) string {
	var all []string
	for _, n := range nodes[:min(len(nodes), maxNamed)] {
		all = append(all, fmt.Sprintf("node %s: %s", n.Name, n.Message))
	}
	if more := len(nodes) - maxNamed; more > 0 {
		all = append(all, fmt.Sprintf("%s failed, too: see status.nodes", count(more, "other node has", "other nodes have")))
	}
	return strings.Join(all, ". ")
}

// count returns a number with the words that fit it.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
