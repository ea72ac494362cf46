// Package encryption encrypts the cluster's Secrets where they are stored, by
// upstream's own transformers, and replaces the keys.
//
// The keys are in the datastore themselves, at one key that is not below the API
// server's, encrypted under what is in a file that all servers have alike: whoever
// has the datastore, or a copy of it, without that can read neither. So keys and
// Secrets are always of one moment, in a snapshot and in a restored cluster too, and
// the file never changes.
//
// Every server asks for the keys before it writes a Secret, and when it reads one
// whose key it does not know: no two servers can be of different minds, however
// long one was cut off, and nothing has to be told to all of them before anything
// is changed. A change therefore is:
//
//  1. The new way to write is put first, and the keyring is pending.
//  2. Requests that asked for the keys before that come to their end.
//  3. Every Secret that is not as it would be written now is rewritten.
//  4. The keys that nothing needs any more are dropped.
//
// A kill -9 anywhere leaves it pending, which whoever leads goes on with at 2.
//
// The server package runs an Encryption before the API server, which gets its
// transformers, and a Keeper where the controllers run; cli asks by localapi.
package encryption

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// keyringKey is where the keys are in the datastore, and serversPrefix what is
	// known of the servers that can read them, by address.
	keyringKey    = "/kedge/encryption/keys"
	serversPrefix = "/kedge/encryption/servers/"
	// healthKey is what kine stores in every new datastore, below the prefix.
	healthKey = "/health"
	// poll is how often a command asks how far a change is.
	poll = time.Second
)

// Config is what an Encryption needs.
type Config struct {
	// KeyFile has what the keys are encrypted under where they are stored.
	KeyFile string
	// NewClient is called while the datastore is ready.
	NewClient func() (*clientv3.Client, error)
	// Prefix is what the names of the API server's objects in the datastore begin
	// with.
	Prefix string
	// Address is this server's, as its API server tells it in the datastore where
	// that is Shared with others.
	Address string
	Shared  bool
	// Enabled says whether Secrets are to be encrypted.
	Enabled bool
	// Theirs says why it is the user who sees to that, empty if it is kedge.
	Theirs string
}

// Encryption is the component that knows the keys, and tells of them.
type Encryption struct {
	cfg Config
	log *logrus.Entry
	// Before Run is ready these are not set.
	under  []byte
	client *clientv3.Client

	mu sync.Mutex
	// known is what the datastore had when it was last asked.
	known known
	// waiting is what a change waits for, empty if there is none.
	waiting string
}

// New returns the component; it implements component.Component.
func New(cfg Config) *Encryption {
	return &Encryption{cfg: cfg, log: logrus.WithField("component", "encryption")}
}

// Name implements component.Component.
func (*Encryption) Name() string { return "encryption" }

// Run implements component.Component. It is ready when it is decided how the first
// Secret is written.
func (e *Encryption) Run(ctx context.Context, ready func()) error {
	text, err := os.ReadFile(e.cfg.KeyFile)
	if err != nil {
		return fmt.Errorf("read what the keys of Secrets are encrypted under: %w", err)
	}
	client, err := e.cfg.NewClient()
	if err != nil {
		return err
	}
	defer client.Close()
	e.under, e.client = text, client
	if err := e.begin(ctx); err != nil {
		return err
	}
	ready()
	<-ctx.Done()
	return nil
}

// begin gives a new cluster its first key, and says what this server is set to.
func (e *Encryption) begin(ctx context.Context) error {
	found, err := e.load(ctx)
	if err != nil {
		return err
	}
	if e.cfg.Theirs != "" {
		if len(found.Keys) > 0 {
			return errors.New("this cluster's Secrets are encrypted with kedge's keys, and " + e.cfg.Theirs +
				": start without that and with secrets-encryption: false first, until `kedge secrets-encrypt status` says that they are not encrypted")
		}
		return nil
	}
	if err := e.announce(ctx); err != nil {
		return err
	}
	if found.revision > 0 || !e.cfg.Enabled {
		return nil
	}
	// What was stored before there were keys may be used by servers that know of
	// none: the Keeper waits for those.
	objects, err := e.client.Get(ctx, e.cfg.Prefix+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(2))
	if err != nil {
		return fmt.Errorf("ask the datastore whether the cluster is new: %w", err)
	}
	for _, kv := range objects.Kvs {
		if string(kv.Key) != e.cfg.Prefix+healthKey {
			return nil
		}
	}
	_, err = e.replace(ctx, found, keyring{Keys: []key{newKey(time.Now())}})
	if errors.Is(err, errChanged) {
		return nil // another server was faster
	}
	return err
}

// secretsPrefix is what the names of stored Secrets begin with.
func (e *Encryption) secretsPrefix() string { return path.Join(e.cfg.Prefix, "secrets") + "/" }
