// Package datastore defines what a datastore is: the API server keeps its objects
// in it, and it speaks etcd's API at an endpoint of its own. Each kind of
// datastore is a package below this one. Package choice picks the kind, and
// package server hands its endpoint to the control plane.
package datastore

import (
	"context"
	"net"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/kedge-dev/kedge/internal/base/component"
)

// Endpoint is where an etcd client reaches a datastore.
type Endpoint struct {
	// URL is what an etcd client dials, for example unix:///run/kedge/datastore.sock,
	// or several URLs separated by commas.
	URL string
	// CAFile, CertFile and KeyFile are the TLS files. They are empty without TLS.
	CAFile, CertFile, KeyFile string
	// Dial connects to the datastore and ignores the address in URL. If it is
	// nil, the client dials the address.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// NewClient returns a client that needs no connection, because the datastore
	// is in this process. It is nil for all others. It may be called only while
	// the datastore is ready.
	NewClient func() *kubernetes.Client
	// Shared is true if several servers may use the datastore. These servers agree
	// on compaction, know of each other, and elect one of them for what only one
	// may do.
	Shared bool
}

// Datastore is a component that is ready once etcd's API answers at its
// endpoint. The endpoint is known before Run.
type Datastore interface {
	component.Component
	Endpoint() Endpoint
	// Stats and Health describe the state of the datastore. They may be called at
	// any time, also before and after Run. Stats is called often and is cheap.
	// Health may ask other hosts.
	Stats(context.Context) Stats
	Health(context.Context) Health
}

// Export calls each with changes in the order of their revisions: with all that can be read from a datastore, or only with the
// present values. It returns the current revision, and the revision below which nothing can be read. The changes have no
// versions, and their leases are lifetimes in seconds.
type Export func(ctx context.Context, each func(*mvccpb.Event) error) (revision, compacted int64, err error)

// Snapshotter is a Datastore that can be saved while it is ready, and restored
// while nothing runs on its data. Package snapshot calls it, and packs the file
// that Save writes into a named snapshot with checksums.
type Snapshotter interface {
	// Kind names what Save writes, for example sqlite: only a datastore of the
	// same kind can restore it.
	Kind() string
	// Save writes all that is stored at one moment into file and returns the
	// revision of that moment. The file must not exist. Others may write
	// meanwhile. Every change that was acknowledged before the call is in the
	// file.
	Save(ctx context.Context, file string) (revision int64, err error)

	// Convert writes the present values that something else exports into file, as Save would. Nothing runs on the data,
	// and Convert does not change them. The file must not exist.
	Convert(ctx context.Context, export Export, file string) error

	// LastRevision returns a revision that is not below any that the stored data
	// ever handed out, or 0 if nothing is stored. While this method and those
	// below are called, nothing runs on the data.
	LastRevision(ctx context.Context) (int64, error)
	// Prepare converts a file written by Save into the form that Commit installs.
	// It may consume the file. The result is written to folder, which must be on
	// the same file system as file and the data; a database keeps the result in
	// itself. Prepare changes nothing else, and refuses a file that cannot be
	// served. After Commit, every new revision is above the revision given here,
	// and all revisions up to it count as compacted. A client that saw the earlier
	// data therefore notices that it changed.
	Prepare(ctx context.Context, file, folder string, above int64) error
	// Commit puts the result of Prepare in the place of the stored data, and
	// moves the stored data into the folder kept. If Commit was interrupted, it
	// is called again until it succeeds. Once it has returned nil, further calls
	// do nothing.
	Commit(ctx context.Context, folder, kept string) error
	// Kept says, for the user, where Commit leaves the earlier data. It takes the
	// same folder as Commit.
	Kept(kept string) string
}
