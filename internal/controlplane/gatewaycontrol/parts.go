package gatewaycontrol

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
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
func (s *sources) newParts(fronts []front.Front, l *lookup) *parts {
	p := &parts{serving: map[types.NamespacedName]*loadbalancercontrol.NodeSet{}, choices: map[string]string{}}
	if s.objects == nil {
		return p
	}
	nodes, _ := s.nodes.List(labels.Everything()) // listing a cache does not fail
	serving := loadbalancercontrol.NewServing(s.pools(), nodes, l.labelsOf)
	sets := map[string]*loadbalancercontrol.NodeSet{}
	for _, f := range fronts {
		if service := l.service(f.Name.Namespace, f.Name.Name); service != nil && front.IsFront(service) {
			set := serving.Of(service)
			p.serving[f.Name], sets[set.Name] = set, set
		}
	}
	names := slices.Sorted(maps.Keys(sets))
	for _, node := range nodes {
		in := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !sets[name].Has(node.Name) })
		if len(in) > 0 {
			p.choices[node.Name] = strings.Join(in, " ")
		}
	}
	return p
}

// pools returns the LoadBalancerPools, or nil if kedge gives no addresses of pools.
func (s *sources) pools() []*unstructured.Unstructured {
	if s.objects == nil || s.watchedPools == nil {
		return nil
	}
	objects := []*unstructured.Unstructured{}
	for _, object := range s.watchedPools.List() {
		if pool, is := object.(*unstructured.Unstructured); is {
			objects = append(objects, pool)
		}
	}
	return objects
}

// labelsOf returns the labels of a namespace.
func (l *lookup) labelsOf(namespace string) labels.Set {
	if found := l.namespace(namespace); found != nil {
		return found.Labels
	}
	return nil
}
