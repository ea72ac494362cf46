// Package datastore is what the API server keeps its objects in: something
// that speaks etcd's API on an endpoint of its own. Each way to do that is a
// package below this one; package server picks one and hands its endpoint to
// the control plane.
package datastore

import (
	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/kedge-dev/kedge/internal/component"
)

// Endpoint is where an etcd client reaches a datastore.
type Endpoint struct {
	// URL is what an etcd client dials, for example unix:///run/kedge/kine.sock.
	URL string
	// NewClient returns a client that needs no connection, because the
	// datastore is in this process: nil if it is not. It may be called while
	// the datastore is ready.
	NewClient func() *kubernetes.Client
	// Shared is whether other servers may use the same datastore: what only one
	// of them may do goes by election then.
	Shared bool
}

// Datastore is a component that is ready once etcd's API answers at its
// endpoint. The endpoint is known before Run.
type Datastore interface {
	component.Component
	Endpoint() Endpoint
}
