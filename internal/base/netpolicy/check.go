package netpolicy

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
)

var (
	// setName is the form of the names of sets and groups. They become names in nftables.
	setName = regexp.MustCompile(`^[a-z][a-z0-9]{0,31}$`)
	// objectName is the form of NAMESPACE/NAME.
	objectName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?/[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)
	// podUID is the form of UIDs, also of those of static pods, which are hashes or come
	// from a manifest.
	podUID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
)

// IsUID tells whether a text can be Pod.UID.
func IsUID(text string) bool { return podUID.MatchString(text) }

// Check returns an error if an update has something that a server never sends. After
// Check, every name is safe in nftables, and every address and range is valid. Check does
// not know earlier updates, so names may be unknown, except in an update that is Whole.
func (u *Update) Check() error {
	for name, change := range u.Sets {
		if !setName.MatchString(name) {
			return fmt.Errorf("invalid name of a set %q", name)
		}
		if change == nil {
			continue
		}
		for _, addresses := range [][]netip.Addr{change.Add, change.Remove} {
			for _, address := range addresses {
				if !address.IsValid() || address.Zone() != "" || address.Is4In6() {
					return fmt.Errorf("set %s has the invalid address %q", name, address)
				}
			}
		}
	}
	for name, group := range u.Groups {
		if !setName.MatchString(name) {
			return fmt.Errorf("invalid name of a group %q", name)
		}
		if group == nil {
			continue
		}
		if err := group.check(u); err != nil {
			return fmt.Errorf("group %s: %w", name, err)
		}
	}
	for name, pod := range u.Pods {
		if !objectName.MatchString(name) {
			return fmt.Errorf("invalid name of a pod %q", name)
		}
		if pod == nil {
			continue
		}
		if !IsUID(pod.UID) {
			return fmt.Errorf("pod %s has the invalid UID %q", name, pod.UID)
		}
		for _, group := range []string{pod.Ingress, pod.Egress} {
			if group != "" && (!setName.MatchString(group) || u.Whole && u.Groups[group] == nil) {
				return fmt.Errorf("pod %s has the unknown group %q", name, group)
			}
		}
	}
	return nil
}

func (g *Group) check(u *Update) error {
	for _, policy := range g.Policies {
		if !objectName.MatchString(policy) {
			return fmt.Errorf("invalid name of a policy %q", policy)
		}
	}
	for _, r := range g.Rules {
		if !objectName.MatchString(r.Policy) {
			return fmt.Errorf("invalid name of a policy %q", r.Policy)
		}
		if r.Anybody && len(r.Sets)+len(r.Blocks) > 0 {
			return errors.New("a rule for all peers names some")
		}
		for _, set := range r.Sets {
			if !setName.MatchString(set) || u.Whole && u.Sets[set] == nil {
				return fmt.Errorf("unknown set %q", set)
			}
		}
		for _, b := range r.Blocks {
			for _, prefix := range append([]netip.Prefix{b.CIDR}, b.Except...) {
				if !prefix.IsValid() || prefix.Masked() != prefix || prefix.Addr().Is4In6() || strings.Contains(prefix.String(), "%") {
					return fmt.Errorf("invalid range %q", prefix)
				}
			}
		}
		for _, p := range r.Ports {
			if p.First == 0 || p.First > p.Last || p.Protocol != 6 && p.Protocol != 17 && p.Protocol != 132 {
				return fmt.Errorf("invalid ports %v", p)
			}
		}
	}
	return nil
}
