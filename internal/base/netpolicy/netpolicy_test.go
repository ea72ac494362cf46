package netpolicy

import (
	"slices"
	"testing"
)

// TestUnion joins ranges of one protocol that overlap or touch, and leaves its argument as it is.
func TestUnion(t *testing.T) {
	ports := []Ports{{17, 53, 53}, {6, 81, 90}, {6, 80, 80}, {6, 85, 86}, {6, 65535, 65535}, {6, 100, 65535}, {6, 92, 92}, {17, 53, 53}}
	before := slices.Clone(ports)
	want := []Ports{{6, 80, 90}, {6, 92, 92}, {6, 100, 65535}, {17, 53, 53}}
	if got := Union(ports); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if !slices.Equal(ports, before) {
		t.Errorf("the argument has changed to %v", ports)
	}
	if got := Union(nil); got != nil {
		t.Errorf("got %v of no ports", got)
	}
}
