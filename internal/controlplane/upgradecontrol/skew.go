package upgradecontrol

import (
	"fmt"
	"strconv"
	"strings"

	utilversion "k8s.io/apimachinery/pkg/util/version"
)

// maxOlder is how many minor versions an agent may be behind its servers:
// https://kubernetes.io/releases/version-skew-policy/#kubelet
const maxOlder = 3

// bare is a server that is no node, so no Plan upgrades it.
type bare struct {
	// address is HOST:PORT.
	address string
	// version is empty if the server does not answer.
	version string
}

// forbids returns everything that forbids to bring chosen nodes of the Plan to a version.
func (w *world) forbids(version string, nodes []*node) []string {
	reasons := forbids(version, nodes, w.all, w.bares)
	if w.plan.Spec.Channel != "" {
		reasons = append(reasons, goesBack(version, nodes)...)
	}
	return reasons
}

// forbids returns everything that forbids to bring chosen nodes to a version, by the rules of
// Kubernetes about versions that work together. all are the nodes of the cluster, and bares its
// servers that are no nodes.
func forbids(target string, chosen, all []*node, bares []bare) (reasons []string) {
	say := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	to, err := minorOf(target)
	if err != nil {
		say("the version %q cannot be read: %v", target, err)
		return reasons
	}
	isChosen := map[string]bool{}
	servers, agents := false, false
	for _, n := range chosen {
		isChosen[n.name] = true
		servers, agents = servers || n.role != agent, agents || n.role == agent
	}
	for _, n := range all {
		from, err := minorOf(n.version)
		switch {
		case err != nil:
			say("node %s reports the version %q, which cannot be read: %v", n.name, n.version, err)
		case isChosen[n.name] && from > to:
			say("node %s runs %s, and no Plan brings a node to an older minor version: docs/upgrades.md says how to go back", n.name, n.version)
		case n.role != agent && isChosen[n.name] && from < to-1:
			say("server %s runs %s. Servers go up by one minor version at a time: upgrade to v%d.%d first", n.name, n.version, (from+1)/minors, (from+1)%minors)
		case n.role != agent && !isChosen[n.name]:
			reasons = append(reasons, left("server "+n.name, n.version, "choose it, too", from, to, servers, agents)...)
		case n.role == agent && servers && from < to-maxOlder:
			say("agent %s runs %s, which is too old for servers of %s: agents may be at most %d minor versions behind. Upgrade the cluster to an older version first", n.name, n.version, target, maxOlder)
		}
	}
	for _, b := range bares {
		if b.version == "" {
			continue // the Plan waits for it
		}
		from, err := minorOf(b.version)
		if err != nil {
			say("the server at %s reports the version %q, which cannot be read: %v", b.address, b.version, err)
			continue
		}
		reasons = append(reasons, left("the server at "+b.address+" that is not a node", b.version, "upgrade it with install.sh first", from, to, servers, agents)...)
	}
	return reasons
}

// goesBack returns which chosen nodes run a newer version than that of a channel. A channel is
// a text without a signature. Without this check, an attacker who can change that text could bring
// the nodes back to a version with known faults.
func goesBack(target string, chosen []*node) (reasons []string) {
	to, err := utilversion.ParseSemantic(target)
	if err != nil {
		return nil // forbids says so
	}
	for _, n := range chosen {
		if from, err := utilversion.ParseSemantic(n.version); err == nil && isOlder(to, from) {
			reasons = append(reasons, fmt.Sprintf("node %s runs %s, and the channel has the older version %s: if you want that, use spec.version (--version)", n.name, n.version, target))
		}
	}
	return reasons
}

// isOlder tells whether version a of kedge is older than b. The number of kedge's own version is in
// the build metadata, behind the +, which LessThan ignores.
func isOlder(a, b *utilversion.Version) bool {
	if a.LessThan(b) || b.LessThan(a) {
		return a.LessThan(b)
	}
	return own(a) < own(b)
}

// own returns the number of kedge's own version, 0 if there is none.
func own(v *utilversion.Version) uint64 {
	text, _ := strings.CutPrefix(v.BuildMetadata(), "kedge.")
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0
	}
	return number
}

// left returns what forbids that a server is left as it is.
func left(server, version, remedy string, from, to int, servers, agents bool) []string {
	switch {
	case agents && from < to:
		return []string{fmt.Sprintf("agents would be newer than %s, which runs %s: %s", server, version, remedy)}
	case servers && (from < to-1 || from > to+1):
		return []string{fmt.Sprintf("servers would be more than one minor version apart from %s, which runs %s: %s", server, version, remedy)}
	}
	return nil
}

// minors is how many minor versions a major one has at most, so that both make one number.
const minors = 10000

// minorOf returns the major and the minor version as one number that grows with them.
func minorOf(text string) (int, error) {
	v, err := utilversion.ParseSemantic(text)
	if err != nil {
		return 0, err
	}
	if v.Major() >= minors || v.Minor() >= minors {
		return 0, fmt.Errorf("its numbers are too large")
	}
	return int(v.Major())*minors + int(v.Minor()), nil
}
