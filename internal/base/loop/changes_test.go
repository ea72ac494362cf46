package loop

import "testing"

// TestChanges notifies a receiver that is not there of two changes, which count as one.
func TestChanges(t *testing.T) {
	changes := NewChanges()
	changes.Notify()
	changes.Notify()
	if got := len(changes); got != 1 {
		t.Errorf("%d changes wait for the receiver, want 1", got)
	}
}
