package policycontrol

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
)

// group is a netpolicy.Group as the model has it.
type group struct {
	name string
	// keys say what it is compiled from. Different policies can mean the same.
	keys    []string
	content *netpolicy.Group
	sets    []*set
	// nodes counts those that know the group.
	nodes int
}

// groupOf returns the group of a pod in a direction, or nil if the pod is not isolated.
// The caller must take it.
func (m *model) groupOf(p *pod, d direction) *group {
	key := groupKey(p, d)
	if key == "" {
		return nil
	}
	if g := m.groups[key]; g != nil {
		return g
	}
	content, _, sets := compile(p, d)
	if tooMany(p, d) {
		m.warn(fmt.Sprintf("The NetworkPolicies of pod %s have more than %d pairs of a peer and a port together for %s. They isolate the pod, and their rules allow it nothing. "+
			"Use fewer of them, ranges of ports (endPort), or larger blocks", p.key, maxPairs, d))
	}
	text, err := json.Marshal(content)
	if err != nil {
		panic(err) // the type has only what JSON has
	}
	name := hash("g", string(text))
	g := m.named[name]
	if g == nil {
		g = &group{name: name, content: content, sets: sets}
		m.named[name] = g
	}
	g.keys = append(g.keys, key)
	m.groups[key] = g
	return g
}

// groupKey identifies the states of the policies that isolate a pod in a direction, and
// how their named ports resolve. It is empty if the pod is not isolated.
func groupKey(p *pod, d direction) string {
	var key []byte
	for _, policy := range p.policies {
		if !policy.isolates[d] {
			continue
		}
		if key == nil {
			key = append(make([]byte, 0, 16+8*len(p.policies)), byte(d))
		}
		key = binary.BigEndian.AppendUint64(key, policy.serial)
		for _, r := range policy.rules[d] {
			for _, name := range r.names {
				numbers := p.numbers(name)
				key = append(key, byte(len(numbers)>>8), byte(len(numbers)))
				for _, number := range numbers {
					key = binary.BigEndian.AppendUint16(key, number)
				}
			}
		}
	}
	return string(key)
}

// source is the rule of a policy that a netpolicy.Rule comes from.
type source struct {
	policy *policy
	rule   *rule
}

// compile returns the group of a pod, where each of its rules comes from, and the sets
// that it names.
func compile(p *pod, d direction) (content *netpolicy.Group, sources []source, sets []*set) {
	content = &netpolicy.Group{}
	named := map[*set]struct{}{}
	isolatesOnly := tooMany(p, d)
	for _, policy := range p.policies {
		if !policy.isolates[d] {
			continue
		}
		content.Policies = append(content.Policies, policy.key)
		if isolatesOnly {
			continue
		}
		for i := range policy.rules[d] {
			r := &policy.rules[d][i]
			for _, compiled := range r.compile(p, named) {
				compiled.Policy = policy.key
				content.Rules = append(content.Rules, compiled)
				sources = append(sources, source{policy, r})
			}
		}
	}
	return content, sources, slices.Collect(maps.Keys(named))
}

// compile returns what a rule means for a pod. Its sets are added to named. A rule that
// allows nothing is left out: without ports or peers, it would say the opposite.
func (r *rule) compile(p *pod, named map[*set]struct{}) (compiled []netpolicy.Rule) {
	ports := r.ports
	for _, name := range r.names {
		for _, number := range p.numbers(name) {
			protocol := name.protocol
			ports = append(slices.Clip(ports), netpolicy.Ports{Protocol: protocol, First: number, Last: number})
		}
	}
	if r.anyPort || len(ports) > 0 {
		all := netpolicy.Rule{Anybody: r.anybody, Blocks: r.blocks}
		if !r.anyPort {
			all.Ports = netpolicy.Union(ports)
		}
		for _, q := range r.peers {
			all.Sets = append(all.Sets, q.sets[0].name)
			named[q.sets[0]] = struct{}{}
		}
		slices.Sort(all.Sets)
		all.Sets = slices.Compact(all.Sets)
		if all.Anybody || len(all.Sets)+len(all.Blocks) > 0 {
			compiled = append(compiled, all)
		}
	}
	// One rule for each number, with the pods whose port has that number.
	for _, q := range r.named {
		for _, number := range slices.Sorted(maps.Keys(q.sets)) {
			named[q.sets[number]] = struct{}{}
			compiled = append(compiled, netpolicy.Rule{
				Sets:  []string{q.sets[number].name},
				Ports: []netpolicy.Ports{{Protocol: q.key.port.protocol, First: number, Last: number}},
			})
		}
	}
	return compiled
}

// refresh gives a pod its groups, and tells the pod's node about changes. It takes new
// groups before it lets go of former ones, so that what both have in common stays.
func (m *model) refresh(on *node, p *pod) {
	former := [2]*group{p.ingress, p.egress}
	p.ingress, p.egress = m.take(on, m.groupOf(p, ingress)), m.take(on, m.groupOf(p, egress))
	for _, g := range former {
		m.letGo(on, g)
	}
	now := netpolicy.Pod{UID: p.uid}
	if p.ingress != nil {
		now.Ingress = p.ingress.name
	}
	if p.egress != nil {
		now.Egress = p.egress.name
	}
	if p.told == nil || *p.told != now {
		p.told = &now
		on.tellPod(p.key, &now)
	}
}

// take notes that one more pod of a node uses a group.
func (m *model) take(on *node, g *group) *group {
	if g == nil {
		return nil
	}
	if on.groups[g]++; on.groups[g] > 1 {
		return g
	}
	g.nodes++
	on.tellGroup(g, true)
	for _, s := range g.sets {
		if on.sets[s]++; on.sets[s] == 1 {
			s.nodes[on] = struct{}{}
			on.tellSet(s, func() []netip.Addr { return m.addresses(s) })
		}
	}
	return g
}

// letGo is the opposite of take.
func (m *model) letGo(on *node, g *group) {
	if g == nil {
		return
	}
	if on.groups[g]--; on.groups[g] > 0 {
		return
	}
	delete(on.groups, g)
	if g.nodes--; g.nodes == 0 {
		delete(m.named, g.name)
		for _, key := range g.keys {
			delete(m.groups, key)
		}
	}
	on.tellGroup(g, false)
	for _, s := range g.sets {
		if on.sets[s]--; on.sets[s] == 0 {
			delete(on.sets, s)
			delete(s.nodes, on)
			on.tellSet(s, nil)
		}
	}
}
