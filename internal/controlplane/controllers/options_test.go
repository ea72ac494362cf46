package controllers

import (
	"testing"

	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
)

// TestWorkers limits workers, except those that the user sets.
func TestWorkers(t *testing.T) {
	o, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		t.Fatal(err)
	}
	limitWorkers(o, 4)
	if many, few := o.ResourceClaimController.ConcurrentSyncs, o.DaemonSetController.ConcurrentDaemonSetSyncs; many != 4 || few != 2 {
		t.Errorf("got %d and %d workers, want 4 and 2", many, few)
	}
	o, err = newOptions(&Config{Args: []string{"concurrent-gc-syncs=33"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := o.GarbageCollectorController.ConcurrentGCSyncs; got != 33 {
		t.Errorf("a user's 33 are %d", got)
	}
}
