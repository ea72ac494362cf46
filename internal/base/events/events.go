// Package events writes Events into the cluster. Node is the component that warns about
// files of a node that kedge cannot use, and about the node's pods.
package events

import (
	"context"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// maxMessage is how many bytes of a message the API accepts
// (k8s.io/kubernetes/pkg/apis/core/validation/events.go).
//
//upstream:relies-on k8s.io/kubernetes/pkg/apis/core/validation/events.go
const maxMessage = 1024

// NewRecorder returns a recorder that writes Events in the name of a component until ctx
// ends. host is the component's node, or empty. The recorder does not block: while the
// API does not answer, it tries again for two minutes.
func NewRecorder(ctx context.Context, api kubernetes.Interface, component, host string) record.EventRecorder {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: api.CoreV1().Events(corev1.NamespaceAll)})
	return broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component, Host: host})
}

// Steady returns last if message says the same in another order, or of another field, and otherwise
// message. The API collects the faults of an object in no certain order, or tells only one of them.
// Only an Event with the same message is counted up, and each other one is a new Event. Both
// messages must be about the same object, unchanged.
func Steady(last, message string) string {
	if slices.Equal(parts(last), parts(message)) {
		return last
	}
	return message
}

// parts returns the parts of a text between the marks of lists and sentences, in alphabetical order.
func parts(text string) []string {
	all := marks.Split(fields.ReplaceAllString(text, " FIELD:"), -1)
	for i, part := range all {
		all[i] = strings.TrimSpace(part)
	}
	slices.Sort(all)
	return all
}

// fields are the paths of structured-merge-diff (fieldpath, Path.String), which says of the first
// unknown field that it finds, in no certain order, that the schema does not have it.
var fields = regexp.MustCompile(`\s\.[^\s:]+:`)

var marks = regexp.MustCompile(`[,;\[\]\n]|\. `)

// Message returns a message, cut to the length that the API accepts.
func Message(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage-3], "") + "..."
}
