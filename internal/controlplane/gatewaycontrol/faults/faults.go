// Package faults tells users by Events what is wrong with their objects. Package gatewaycontrol collects
// the faults that the other packages find, and tells them on the elected server.
package faults

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/kedge-dev/kedge/internal/base/events"
)

// Object is an object of the API.
type Object interface {
	metav1.Object
	runtime.Object
}

// Fault is what is wrong with an object.
type Fault struct {
	Object Object
	// Reason is that of the Event.
	Reason string
	// Message says what is wrong and what the user can do.
	Message string
}

// Teller writes an Event about each fault, once. One goroutine uses it.
type Teller struct {
	// Recorder is called when there is something to tell.
	Recorder func() record.EventRecorder
	told     map[news]bool
}

// news is a fault that was told.
type news struct {
	object          types.UID
	reason, message string
}

// Tell writes an Event about each fault that is new. A fault that has gone and comes again is
// new.
func (t *Teller) Tell(faults []Fault) {
	told := map[news]bool{}
	for _, f := range faults {
		one := news{f.Object.GetUID(), f.Reason, f.Message}
		if !t.told[one] && !told[one] {
			t.Recorder().Event(f.Object, corev1.EventTypeWarning, f.Reason, events.Message(f.Message))
		}
		told[one] = true
	}
	t.told = told
}
