package policycontrol

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/base/netpolicy"
)

// Why connections are allowed that no rule allows.
const (
	whyOwnNode = "a node reaches its own pods, whatever policies say"
	whyItself  = "nothing filters connections inside a pod"
	whyHost    = "this pod uses the network of its node, so policies do not isolate it"
)

// errNoPolicy is the answer while there is nothing to explain.
var errNoPolicy = errors.New("the cluster has no NetworkPolicy, so every pod may talk to every pod and every address")

// explain answers `kedge netpol explain`.
func (c *Compiler) explain(ctx context.Context, q Question) (Explanation, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.model.active {
		if !c.model.known || len(c.model.policies) > 0 {
			return Explanation{}, errors.New("this server is still reading the NetworkPolicies and pods: try again in a moment")
		}
		return Explanation{}, errNoPolicy
	}
	key := q.Namespace + "/" + q.Pod
	object := c.object(key)
	p := c.model.pods[key]
	if object == nil || p == nil {
		answer := Explanation{Pod: key}
		switch {
		case object == nil:
			return Explanation{}, fmt.Errorf("there is no pod %s. Run `kedge kubectl get pods --all-namespaces` for the list", key)
		case object.Spec.HostNetwork:
			answer.Note = "this pod uses the network of its node (hostNetwork), so NetworkPolicies do not concern it"
		default:
			answer.Note = "this pod has ended, so it has no address and no connections"
		}
		answer.Node = object.Spec.NodeName
		return answer, nil
	}
	answer := Explanation{Pod: key, Node: p.node, Addresses: p.addresses}
	if q.From == "" && q.To == "" {
		answer.Ingress, answer.Egress = c.model.side(p, ingress), c.model.side(p, egress)
		return answer, nil
	}
	self := party{name: key, pod: p, addresses: p.addresses}
	for _, asked := range []struct {
		text string
		from bool
	}{{q.From, true}, {q.To, false}} {
		if asked.text == "" {
			continue
		}
		peer, err := c.party(ctx, q.Namespace, asked.text)
		if err != nil {
			return Explanation{}, err
		}
		from, to := self, peer
		if asked.from {
			from, to = peer, self
		}
		verdicts, err := c.judge(ctx, from, to, q.Protocol, q.Port)
		if err != nil {
			return Explanation{}, err
		}
		answer.Verdicts = append(answer.Verdicts, verdicts...)
	}
	return answer, nil
}

// object returns a pod as the API has it, or nil.
func (c *Compiler) object(key string) *corev1.Pod {
	found, _, err := c.objects.GetByKey(key)
	if err != nil {
		return nil
	}
	object, _ := found.(*corev1.Pod)
	return object
}

// party is one end of a connection.
type party struct {
	// name is NAMESPACE/POD or an address.
	name string
	// pod is nil for an address that no pod has, and for a pod with its node's network.
	pod *pod
	// node is that of a pod with its node's network.
	node      string
	addresses []netip.Addr
}

// party finds what a user calls POD, NAMESPACE/POD or an address.
func (c *Compiler) party(ctx context.Context, namespace, text string) (party, error) {
	if address, err := netip.ParseAddr(text); err == nil {
		address = address.Unmap().WithZone("")
		found := party{name: text, addresses: []netip.Addr{address}}
		if owners := c.model.owners[address]; len(owners) > 0 {
			found.name, found.pod = owners[0].key, owners[0]
			return found, nil
		}
		if slices.ContainsFunc(c.cfg.ServiceCIDRs, func(p netip.Prefix) bool { return p.Contains(address) }) {
			return found, fmt.Errorf("%s is an address of a Service, and policies judge the pods behind Services: name one of these pods", text)
		}
		if node := c.gatewayNode(ctx, address); node != "" {
			found.name = fmt.Sprintf("%s (the gateway of node %s)", text, node)
		}
		return found, nil
	}
	key := text
	if !strings.Contains(text, "/") {
		key = namespace + "/" + text
	}
	if p := c.model.pods[key]; p != nil {
		if len(p.addresses) == 0 {
			return party{}, fmt.Errorf("pod %s has no address yet, so it has no connections: wait until it runs", key)
		}
		return party{name: key, pod: p, addresses: p.addresses}, nil
	}
	object := c.object(key)
	switch {
	case object == nil:
		return party{}, fmt.Errorf("%q is neither an address nor a pod that exists. Give an address, or NAMESPACE/POD of a pod in `kedge kubectl get pods --all-namespaces`", text)
	case !object.Spec.HostNetwork:
		return party{}, fmt.Errorf("pod %s has ended, so it has no address and no connections", key)
	}
	found := party{name: key, node: object.Spec.NodeName, addresses: hostAddresses(object)}
	if len(found.addresses) == 0 {
		return party{}, fmt.Errorf("pod %s has no address yet, so it has no connections: wait until it runs", key)
	}
	return found, nil
}

// judge says whether connections from one party to another are allowed: a verdict for
// each family of addresses, or one if both are the same.
func (c *Compiler) judge(ctx context.Context, from, to party, protocol uint8, port uint16) (verdicts []Verdict, err error) {
	for _, source := range from.addresses {
		for _, target := range to.addresses {
			if source.Is4() != target.Is4() {
				continue
			}
			v := c.verdict(ctx, from, to, source, target, protocol, port)
			if len(verdicts) > 0 && fmt.Sprint(verdicts[0].Allowed, verdicts[0].Ports, verdicts[0].Steps) == fmt.Sprint(v.Allowed, v.Ports, v.Steps) {
				continue
			}
			verdicts = append(verdicts, v)
		}
	}
	if len(verdicts) > 1 {
		for i := range verdicts {
			verdicts[i].From += map[bool]string{true: " (IPv4)", false: " (IPv6)"}[i == 0]
		}
	}
	if len(verdicts) == 0 {
		for _, p := range []party{from, to} {
			if len(p.addresses) == 0 {
				return nil, fmt.Errorf("pod %s has no address yet, so it has no connections: wait until it runs", p.name)
			}
		}
		return nil, fmt.Errorf("%s and %s have no addresses of the same family", from.name, to.name)
	}
	return verdicts, nil
}

func (c *Compiler) verdict(ctx context.Context, from, to party, source, target netip.Addr, protocol uint8, port uint16) Verdict {
	v := Verdict{From: from.name, To: to.name, Allowed: true}
	add := func(s Step) {
		v.Steps = append(v.Steps, s)
		v.Allowed = v.Allowed && s.Allowed
	}
	switch {
	case from.pod != nil && from.pod == to.pod:
		add(Step{Pod: from.name, Direction: egress.String(), Allowed: true, Why: whyItself})
		return v
	case from.pod != nil:
		add(c.model.step(from.pod, egress, target, protocol, port))
	case from.node != "":
		add(Step{Pod: from.name, Direction: egress.String(), Allowed: true, Why: whyHost})
	}
	switch {
	case to.pod == nil && to.node != "":
		add(Step{Pod: to.name, Direction: ingress.String(), Allowed: true, Why: whyHost})
	case to.pod == nil:
	case to.pod.node != "" && (from.node == to.pod.node || from.pod == nil && slices.Contains(c.nodeAddresses(ctx, to.pod), source)):
		add(Step{Pod: to.name, Direction: ingress.String(), Allowed: true, Why: whyOwnNode})
	default:
		add(c.model.step(to.pod, ingress, source, protocol, port))
	}
	if v.Allowed && port == 0 {
		var both []netpolicy.Ports
		for _, s := range v.Steps {
			both = common(both, s.ports)
		}
		for _, p := range netpolicy.Union(both) {
			v.Ports = append(v.Ports, portWords(p))
		}
		v.Allowed = both == nil || len(both) > 0
	}
	return v
}

// nodeAddresses returns the addresses with which the node of a pod calls the pod: its
// own, and the first ones of its ranges of pods, which bridges have.
func (c *Compiler) nodeAddresses(ctx context.Context, p *pod) (addresses []netip.Addr) {
	if object := c.object(p.key); object != nil {
		addresses = hostAddresses(object)
	}
	for _, node := range c.nodes(ctx) {
		if node.Name != p.node {
			continue
		}
		for _, own := range podCIDRs(node) {
			addresses = append(addresses, own.Addr(), own.Addr().Next())
		}
	}
	return addresses
}

// hostAddresses returns the addresses of the node of a pod.
func hostAddresses(pod *corev1.Pod) (addresses []netip.Addr) {
	for _, ip := range pod.Status.HostIPs {
		if address, err := netip.ParseAddr(ip.IP); err == nil {
			addresses = append(addresses, address.Unmap())
		}
	}
	return addresses
}

// gatewayNode returns the node whose gateway calls pods from an address, or an empty name.
func (c *Compiler) gatewayNode(ctx context.Context, address netip.Addr) string {
	for _, node := range c.nodes(ctx) {
		for _, own := range podCIDRs(node) {
			if c.cfg.Gateway && gateways.Source(own) == address {
				return node.Name
			}
		}
	}
	return ""
}

// nodes returns all nodes.
func (c *Compiler) nodes(ctx context.Context) []*corev1.Node {
	factory, err := c.cfg.Informers(ctx)
	if err != nil {
		return nil
	}
	defer factory.Shutdown()
	// The registrations keep this informer running.
	nodes, err := factory.Core().V1().Nodes().Lister().List(labels.Everything())
	if err != nil {
		return nil
	}
	return nodes
}

func podCIDRs(node *corev1.Node) (all []netip.Prefix) {
	for _, text := range node.Spec.PodCIDRs {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			all = append(all, prefix)
		}
	}
	return all
}

// step decides about a pod in one direction. Port 0 means all ports.
func (m *model) step(p *pod, d direction, peer netip.Addr, protocol uint8, port uint16) Step {
	s := Step{Pod: p.key, Direction: d.String()}
	content, sources, sets := compile(p, d)
	if len(content.Policies) == 0 {
		s.Allowed, s.Why = true, "no policy isolates this pod for "+d.String()
		return s
	}
	in := func(name string, address netip.Addr) bool {
		i := slices.IndexFunc(sets, func(s *set) bool { return s.name == name })
		return i >= 0 && sets[i].of.has(address) && m.provided(sets[i].of, sets[i].number, address, nil)
	}
	s.Policies = content.Policies
	ports := []netpolicy.Ports{}
	for i := range content.Rules {
		r := content.Rules[i]
		if port == 0 {
			r.Ports = nil
		}
		if (&netpolicy.Group{Rules: []netpolicy.Rule{r}}).Allows(peer, protocol, port, in) == nil {
			continue
		}
		s.Allowed = true
		if len(content.Rules[i].Ports) == 0 {
			ports = nil
		} else if ports != nil {
			ports = append(ports, content.Rules[i].Ports...)
		}
		if name := (RuleName{sources[i].policy.key, sources[i].rule.number}); !slices.Contains(s.Rules, name) {
			s.Rules = append(s.Rules, name)
		}
	}
	if s.Allowed {
		s.Why, s.ports = "allowed by "+ruleWords(s.Rules), ports
	} else {
		isolated := fmt.Sprintf("isolated by %s, and none of the rules allows this", strings.Join(s.Policies, ", "))
		s.Why = strings.Join(append([]string{isolated}, leftOut(p, d)...), "; ")
	}
	return s
}

// leftOut says which rules of a pod's policies are left out, because they are too many.
func leftOut(p *pod, d direction) (words []string) {
	for _, policy := range p.policies {
		if policy.isolates[d] && policy.tooLarge != "" {
			words = append(words, fmt.Sprintf("the rules of %s do not count: %s", policy.key, policy.tooLarge))
		}
	}
	if tooMany(p, d) {
		words = append(words, fmt.Sprintf("no rules count: all those of this pod have together more than %d pairs of a peer and a port", maxPairs))
	}
	return words
}

func ruleWords(rules []RuleName) string {
	var words []string
	for _, r := range rules {
		words = append(words, fmt.Sprintf("rule %d of %s", r.Number, r.Policy))
	}
	return strings.Join(words, ", ")
}

// common returns the ports that are in both lists. nil means all ports.
func common(a, b []netpolicy.Ports) []netpolicy.Ports {
	if a == nil {
		return b
	}
	if b == nil {
		return a
	}
	both := []netpolicy.Ports{}
	for _, x := range a {
		for _, y := range b {
			if first, last := max(x.First, y.First), min(x.Last, y.Last); x.Protocol == y.Protocol && first <= last {
				both = append(both, netpolicy.Ports{Protocol: x.Protocol, First: first, Last: last})
			}
		}
	}
	return both
}
