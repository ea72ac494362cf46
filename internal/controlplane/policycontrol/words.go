package policycontrol

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
)

// side says what policies say about a pod in one direction.
func (m *model) side(p *pod, d direction) *Side {
	s := &Side{Policies: []string{}, Rules: []Rule{}, TooLarge: leftOut(p, d)}
	for _, policy := range p.policies {
		if !policy.isolates[d] {
			continue
		}
		s.Policies = append(s.Policies, policy.key)
		if tooMany(p, d) {
			continue
		}
		for _, r := range policy.rules[d] {
			s.Rules = append(s.Rules, Rule{RuleName{policy.key, r.number}, r.peerWords(), r.portWords(p)})
		}
	}
	return s
}

func (r *rule) peerWords() (words []string) {
	if r.anybody {
		return []string{"all"}
	}
	for _, q := range slices.Concat(r.peers, r.named) {
		if text := q.describe(); q.block == nil && !slices.Contains(words, text) {
			words = append(words, text)
		}
	}
	for _, b := range r.blocks {
		text := b.CIDR.String()
		for i, except := range b.Except {
			text += map[bool]string{true: " except ", false: ", "}[i == 0] + except.String()
		}
		words = append(words, text)
	}
	return words
}

func (r *rule) portWords(p *pod) (words []string) {
	if r.anyPort {
		return []string{"all"}
	}
	for _, ports := range r.ports {
		words = append(words, portWords(ports))
	}
	resolved := func(name portName, numbers []uint16) {
		text := protocolWord(name.protocol) + " " + name.name
		if len(numbers) == 0 {
			text += " (no pod has a port of this name)"
		} else {
			text += " (" + strings.Trim(strings.Join(strings.Fields(fmt.Sprint(numbers)), ", "), "[]") + ")"
		}
		if !slices.Contains(words, text) {
			words = append(words, text)
		}
	}
	for _, name := range r.names {
		resolved(name, p.numbers(name))
	}
	for _, q := range r.named {
		resolved(q.key.port, slices.Sorted(maps.Keys(q.sets)))
	}
	return words
}

func protocolWord(protocol uint8) string {
	return map[uint8]string{6: "TCP", 17: "UDP", 132: "SCTP"}[protocol]
}

func portWords(p netpolicy.Ports) string {
	switch {
	case p.First == p.Last:
		return fmt.Sprintf("%s %d", protocolWord(p.Protocol), p.First)
	case p.First <= 1 && p.Last == 65535:
		return protocolWord(p.Protocol)
	}
	return fmt.Sprintf("%s %d-%d", protocolWord(p.Protocol), p.First, p.Last)
}

// describe returns the peers in words.
func (q *peers) describe() string {
	var where string
	switch k := q.selector.key; {
	case k.pods == nothing || k.namespaces == nothing:
		return "nobody, because the selector is invalid"
	case q.selector.namespaces == nil:
		where = "in namespace " + k.namespace
	case k.namespaces == "=":
		where = "in all namespaces"
	default:
		where = "in namespaces with " + strings.TrimPrefix(k.namespaces, "=")
	}
	if pods := strings.TrimPrefix(q.selector.key.pods, "="); pods != "" {
		return "pods with " + pods + " " + where
	}
	return "all pods " + where
}
