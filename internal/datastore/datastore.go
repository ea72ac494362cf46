// Package datastore is what the API server keeps its objects in: something
// that speaks etcd's API on an endpoint of its own. Each way to do that is a
// package below this one; package server picks one and hands its endpoint to
// the control plane.
package datastore

import (
	"context"
	"net"

	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/kedge-dev/kedge/internal/base/component"
)

// Endpoint is where an etcd client reaches a datastore.
type Endpoint struct {
	// URL is what an etcd client dials, for example unix:///run/kedge/datastore.sock,
	// or several with commas between them.
	URL string
	// CAFile, CertFile and KeyFile are for TLS; empty where there is none.
	CAFile, CertFile, KeyFile string
	// Dial connects to it, whatever the address in URL says; nil dials that.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// NewClient returns a client that needs no connection, because the
	// datastore is in this process: nil if it is not. It may be called while
	// the datastore is ready.
	NewClient func() *kubernetes.Client
	// Shared says that several servers may use the datastore, and so have to
	// agree on what is compacted, tell of each other, and elect who does what only
	// one may do.
	Shared bool
}

// Datastore is a component that is ready once etcd's API answers at its
// endpoint. The endpoint is known before Run.
type Datastore interface {
	component.Component
	Endpoint() Endpoint
	// Stats and Health tell how it fares, at any time, before Run and after it
	// too. Stats is asked often, and is cheap; Health may ask other hosts.
	Stats(context.Context) Stats
	Health(context.Context) Health
}

// Snapshotter is a Datastore that can be saved while it is ready, and restored
// while nothing runs on it. Package snapshot calls it, and makes the file, which
// is Save's, into a snapshot: compressed, checked and named.
type Snapshotter interface {
	// Kind names what Save writes, for example sqlite: only a datastore of the
	// same kind can restore it.
	Kind() string
	// Save writes all that is stored, as it is at one moment, into file, which is
	// not there, while others go on to write; it returns the revision of that
	// moment. Every change that was acknowledged before the call is in it.
	Save(ctx context.Context, file string) (revision int64, err error)

	// LastRevision returns one not below any that was ever handed out by what is
	// stored now; 0 if nothing is. Nothing runs on the data, here and below.
	LastRevision(ctx context.Context) (int64, error)
	// Prepare makes of file, which Save wrote and which it may take away, what
	// Commit needs, in folder, on the file system of both the file and the data; a
	// database has it in itself. It changes nothing else, and refuses a file that
	// cannot be served. Once that is, every new revision will be above the given
	// one, and all up to it count as compacted: nobody who saw what was there
	// before can miss that it has changed.
	Prepare(ctx context.Context, file, folder string, above int64) error
	// Commit puts what Prepare has made in the place of what is stored, and that
	// into the folder kept. If it was interrupted, it is called again, as often
	// as it takes; once it has returned nil, it does nothing.
	Commit(ctx context.Context, folder, kept string) error
	// Kept says, for the user, where Commit leaves what was stored, given the same
	// folder.
	Kept(kept string) string
}
