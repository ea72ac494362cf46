package events

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
)

// notUsed is the reason of the Events: kedge does not use a file of the node's user, or
// not all of it.
const notUsed = "FileNotUsed"

// waiting is how many warnings can wait for the API. Further ones are only in the log.
const waiting = 64

// Node writes warnings about a node and its pods as Events. It costs nothing before the first
// one.
type Node struct {
	name     string
	client   *rest.Config
	warnings chan warning
}

// warning is an Event to be written.
type warning struct {
	about           corev1.ObjectReference
	reason, message string
}

// NewNode makes the component for a node. client calls the API as the node itself.
func NewNode(name string, client *rest.Config) *Node {
	return &Node{name: name, client: client, warnings: make(chan warning, waiting)}
}

// Name implements component.Component.
func (*Node) Name() string { return "events" }

// Warn writes an Event about a file that the node cannot use, as soon as the API answers.
// It returns at once, and does not log.
func (n *Node) Warn(message string) {
	// The UID is the same as in the kubelet's Events, because kubectl describe looks for it.
	n.warn(warning{corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.name, UID: types.UID(n.name)}, notUsed, message})
}

// WarnPod is Warn for an Event about a pod of the node. uid is the pod's as the kubelet knows it.
func (n *Node) WarnPod(namespace, name, uid, reason, message string) {
	n.warn(warning{corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name, UID: types.UID(uid)}, reason, message})
}

func (n *Node) warn(w warning) {
	select {
	case n.warnings <- w:
	default:
	}
}

// Run implements component.Component.
func (n *Node) Run(ctx context.Context, ready func()) error {
	api, err := kubernetes.NewForConfig(n.client)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	ready()
	var recorder record.EventRecorder
	for {
		select {
		case <-ctx.Done():
			return nil
		case w := <-n.warnings:
			if recorder == nil {
				recorder = NewRecorder(ctx, api, "kedge", n.name)
			}
			recorder.Event(&w.about, corev1.EventTypeWarning, w.reason, Message(w.message))
		}
	}
}
