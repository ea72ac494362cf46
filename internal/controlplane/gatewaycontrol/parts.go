package gatewaycontrol

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/sources"
	"github.com/kedge-dev/kedge/internal/controlplane/loadbalancercontrol"
)

// parts are the parts of a State that nodes get. A node gets what the fronts that it serves lead
// to, and nothing else: above all no key of a certificate that it does not show.
type parts struct {
	// serving are the nodes of each front.
	serving map[types.NamespacedName]*loadbalancercontrol.NodeSet
	// choices are the names of the sets that a node is in. Nodes with the same choices get the
	// same part.
	choices map[string]string
	states  map[string]*routing.State
}

// serves tells whether a node serves a front.
func (p *parts) serves(f types.NamespacedName, node string) bool { return p.serving[f].Has(node) }

// of returns what a node has to serve.
func (p *parts) of(node string) *routing.State {
	if state := p.states[p.choices[node]]; state != nil {
		return state
	}
	return unserved
}

// unserved is what a node gets that serves no front.
var unserved = &routing.State{}

// divide divides a state. sockets has the front of each socket. A part that is equal to the one
// before stays the same pointer.
func (p *parts) divide(state *routing.State, sockets map[string]types.NamespacedName, before *parts) {
	p.states = map[string]*routing.State{}
	members := map[string]string{} // a node of each choice
	for node, choice := range p.choices {
		members[choice] = node
	}
	for choice, node := range members {
		part := routing.Update{Whole: true, State: state.Part(func(socket string) bool { return p.serves(sockets[socket], node) })}
		p.states[choice] = state.With(part)
		if p.states[choice] != state && before != nil && before.states[choice] != nil {
			p.states[choice] = before.states[choice].With(part)
		}
	}
}

// newParts finds out which nodes serve which fronts.
func newParts(fronts []front.Front, view *sources.View) *parts {
	p := &parts{serving: map[types.NamespacedName]*loadbalancercontrol.NodeSet{}, choices: map[string]string{}}
	serving := loadbalancercontrol.NewServing(view.Pools, view.Nodes, view.LabelsOf)
	sets := map[string]*loadbalancercontrol.NodeSet{}
	for _, f := range fronts {
		if service := view.Service(f.Name); service != nil && front.IsFront(service) {
			set := serving.Of(service)
			p.serving[f.Name], sets[set.Name] = set, set
		}
	}
	names := slices.Sorted(maps.Keys(sets))
	for _, node := range view.Nodes {
		in := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !sets[name].Has(node.Name) })
		if len(in) > 0 {
			p.choices[node.Name] = strings.Join(in, " ")
		}
	}
	return p
}
