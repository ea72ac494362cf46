package policycontrol

import (
	"fmt"
	"net/netip"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
)

// state is what a node knows after some updates.
type state struct {
	active bool
	sets   map[string]map[netip.Addr]bool
	groups map[string]*netpolicy.Group
	pods   map[string]*netpolicy.Pod
}

// apply takes an update in as a node does, and fails if it does not fit to the former
// ones.
func (s *state) apply(u netpolicy.Update) error {
	if err := u.Check(); err != nil {
		return err
	}
	if u.Whole {
		*s = state{sets: map[string]map[netip.Addr]bool{}, groups: map[string]*netpolicy.Group{}, pods: map[string]*netpolicy.Pod{}}
	}
	s.active = u.Active
	for name, change := range u.Sets {
		if change == nil {
			if s.sets[name] == nil {
				return fmt.Errorf("set %s goes, and is not known", name)
			}
			delete(s.sets, name)
			continue
		}
		if s.sets[name] == nil {
			s.sets[name] = map[netip.Addr]bool{}
		}
		for _, a := range change.Remove {
			if !s.sets[name][a] {
				return fmt.Errorf("set %s loses %s, which it does not have", name, a)
			}
			delete(s.sets[name], a)
		}
		for _, a := range change.Add {
			if s.sets[name][a] {
				return fmt.Errorf("set %s gets %s, which it has", name, a)
			}
			s.sets[name][a] = true
		}
	}
	for name, g := range u.Groups {
		if (s.groups[name] == nil) == (g == nil) {
			return fmt.Errorf("group %s comes or goes twice", name)
		}
		if g == nil {
			delete(s.groups, name)
		} else {
			s.groups[name] = g
		}
	}
	for key, p := range u.Pods {
		if p == nil {
			delete(s.pods, key)
		} else {
			s.pods[key] = p
		}
	}
	// Everything that is named is there, and nothing else.
	named := map[string]bool{}
	for key, p := range s.pods {
		for _, g := range []string{p.Ingress, p.Egress} {
			if named[g] = true; g != "" && s.groups[g] == nil {
				return fmt.Errorf("pod %s has the unknown group %s", key, g)
			}
		}
	}
	sets := map[string]bool{}
	for name, g := range s.groups {
		if !named[name] {
			return fmt.Errorf("no pod has group %s", name)
		}
		for _, r := range g.Rules {
			for _, set := range r.Sets {
				if sets[set] = true; s.sets[set] == nil {
					return fmt.Errorf("group %s has the unknown set %s", name, set)
				}
			}
		}
	}
	for name := range s.sets {
		if !sets[name] {
			return fmt.Errorf("no group has set %s", name)
		}
	}
	return nil
}

func (s *state) allows(key string, d direction, peer netip.Addr, protocol uint8, port uint16) bool {
	p := s.pods[key]
	name := map[direction]string{ingress: p.Ingress, egress: p.Egress}[d]
	return name == "" || s.groups[name].Allows(peer, protocol, port, func(set string, a netip.Addr) bool { return s.sets[set][a] }) != nil
}
