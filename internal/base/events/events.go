// Package events writes Events into the cluster. Node is the component that tells
// of what a node cannot use of its own files.
package events

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// maxMessage is how many bytes of a message the API takes
// (k8s.io/kubernetes/pkg/apis/core/validation/events.go).
//
//upstream:relies-on k8s.io/kubernetes/pkg/apis/core/validation/events.go
const maxMessage = 1024

// NewRecorder returns what writes Events in the name of a component until ctx ends.
// Host is the component's node, or empty. An Event is not waited for: while the API
// is not there, it is tried again for two minutes.
func NewRecorder(ctx context.Context, api kubernetes.Interface, component, host string) record.EventRecorder {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: api.CoreV1().Events(corev1.NamespaceAll)})
	return broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component, Host: host})
}

// Message returns a message, or as much of it as the API takes.
func Message(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage-3], "") + "..."
}
