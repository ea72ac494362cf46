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

// Node writes warnings about a node as Events. It costs nothing before the first one.
type Node struct {
	name     string
	client   *rest.Config
	warnings chan string
}

// NewNode makes the component for a node. client calls the API as the node itself.
func NewNode(name string, client *rest.Config) *Node {
	return &Node{name: name, client: client, warnings: make(chan string, waiting)}
}

// Name implements component.Component.
func (*Node) Name() string { return "events" }

// Warn writes an Event about a file that the node cannot use, as soon as the API answers.
// It returns at once, and does not log.
func (n *Node) Warn(message string) {
	select {
	case n.warnings <- message:
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
		case message := <-n.warnings:
			if recorder == nil {
				recorder = NewRecorder(ctx, api, "kedge", n.name)
			}
			// The UID is the same as in the kubelet's Events, because kubectl describe
			// looks for it.
			recorder.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.name, UID: types.UID(n.name)},
				corev1.EventTypeWarning, notUsed, Message(message))
		}
	}
}
