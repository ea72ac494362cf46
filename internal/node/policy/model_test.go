package policy

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
)

// TestExcessByNamespace has groups that do not all fit a node. The namespace that has the most pays, and
// not the namespace of the largest group.
func TestExcessByNamespace(t *testing.T) {
	const part = maxElements / 10
	for _, test := range []struct {
		name string
		// groups are the sizes of the groups of each namespace.
		groups map[string][]int
		want   []string
	}{
		{"all fit", map[string][]int{"a": {part}, "b": {part, part}}, nil},
		{"many middle ones of one namespace", map[string][]int{
			"attacker": {part, part + 1, part, part, part, part, part, part, part}, "victim": {part + part/2}, "other": {1},
		}, []string{"attacker/1"}},
		{"many small ones of one namespace", map[string][]int{"attacker": slices.Repeat([]int{part / 10}, 96), "victim": {part}},
			[]string{"attacker/0", "attacker/1", "attacker/10", "attacker/11", "attacker/12", "attacker/13"}},
		{"one that is too large", map[string][]int{"attacker": {maxElements + 1}, "victim": {part, part}}, []string{"attacker/0"}},
		{"one namespace only", map[string][]int{"a": {5 * part, 6 * part}}, []string{"a/1"}},
		{"two that exceed", map[string][]int{"a": {6 * part, 1}, "b": {7 * part}, "victim": {5 * part}}, []string{"a/0", "b/0"}},
	} {
		m, sandboxes := newModel(), map[string]netpolicy.Sandbox{}
		for namespace, sizes := range test.groups {
			for i, size := range sizes {
				name := fmt.Sprintf("%s/%d", namespace, i)
				m.pods[name] = netpolicy.Pod{UID: name, Ingress: name, Egress: name}
				sandboxes[name] = netpolicy.Sandbox{Namespace: namespace, Name: fmt.Sprint(i), UID: name}
				m.groups[name] = &group{blocks: make([]span, size)}
			}
		}
		if got := slices.Sorted(maps.Keys(m.excess(sandboxes))); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v pay, want %v", test.name, got, test.want)
		}
	}
}
