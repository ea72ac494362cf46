package cli

import (
	"slices"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/component"
)

// TestUnitStatus wants systemd's line of the unit to say what is wrong as long as it is.
func TestUnitStatus(t *testing.T) {
	var told []string
	unit := newUnitStatus(func(state string) { told = append(told, state) })
	unit.onFault(component.Status{Name: "tunnel", Fault: "no server\nanswers"})
	unit.onReady()
	unit.onFault(component.Status{Name: "node", Fault: "deleted"})
	unit.onFault(component.Status{Name: "tunnel"})
	unit.onFault(component.Status{Name: "node"})
	want := []string{
		"STATUS=tunnel: no server answers", "READY=1\nSTATUS=tunnel: no server answers",
		"STATUS=node: deleted; tunnel: no server answers", "STATUS=node: deleted", "STATUS=ready",
	}
	if !slices.Equal(told, want) {
		t.Errorf("got %q", told)
	}
}
