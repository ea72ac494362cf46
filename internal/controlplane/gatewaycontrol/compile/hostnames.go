package compile

import (
	"cmp"
	"strings"

	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
)

// intersection returns the host names that fit both a and b. Each is exact, or has the wildcard
// "*." in front, or is empty for all names. A wildcard stands for one label or several.
func intersection(a, b string) (string, bool) {
	switch {
	case a == "", a == b, covers(a, b):
		return b, true
	case b == "", covers(b, a):
		return a, true
	}
	return "", false
}

// covers tells whether a wildcard has all names of another host name.
func covers(wildcard, hostname string) bool {
	suffix, is := strings.CutPrefix(wildcard, "*")
	return is && len(hostname) > len(suffix) && strings.HasSuffix(hostname, suffix)
}

// names are the host names that routes of one kind have on a listener. They are to find those
// that overlap, without comparing each with each.
type names struct {
	// whole has the host names themselves, and below has all wildcards that cover one of
	// them. The values are the names of the routes that were first.
	whole, below map[string]string
}

func newNames() *names {
	return &names{whole: map[string]string{}, below: map[string]string{}}
}

// add gives a host name to a route.
func (n *names) add(hostname, route string) {
	if n.whole[hostname] == "" {
		n.whole[hostname] = route
	}
	for wider := range hosts.Wider(hostname) {
		if n.below[wider] == "" {
			n.below[wider] = route
		}
	}
}

// overlap returns a route that has a host name which overlaps with this one, or "".
func (n *names) overlap(hostname string) string {
	if route := cmp.Or(n.whole[hostname], n.below[hostname]); route != "" {
		return route
	}
	for wider := range hosts.Wider(hostname) {
		if route := n.whole[wider]; route != "" {
			return route
		}
	}
	return ""
}
