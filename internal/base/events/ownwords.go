package events

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// ownWords are the reasons of Events that quote the output of a program in a pod, or its
// arguments (pkg/kubelet/events/event.go).
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/events/event.go
var ownWords = []string{"Unhealthy", "ProbeWarning", "FailedPostStartHook", "FailedPreStopHook"}

// WithoutOwnWords returns the message of an Event, without what a program in a pod has said. That may be a secret, and
// the message may leave the cluster.
func WithoutOwnWords(event *corev1.Event) string {
	if !slices.Contains(ownWords, event.Reason) {
		return event.Message
	}
	message, _, _ := strings.Cut(event.Message, ":")
	return message
}
