// Package encryption encrypts the cluster's Secrets where they are stored, with
// upstream's own transformers, and replaces the keys.
//
// The keys are in the datastore too, under one name outside of the API server's
// prefix. They are encrypted under the content of a file that all servers have in
// common. So nobody can read the keys or the Secrets from the datastore, or from a
// copy of it, without that file. Keys and Secrets are always from the same moment,
// also in a snapshot and in a restored cluster. The file never changes.
//
// Every server asks for the keys before it writes a Secret, and when it reads a
// Secret whose key it does not know. So two servers never disagree, even after one
// was cut off for long, and a change needs no message to all servers first. A change
// has these steps:
//
//  1. The new way to write is stored first, and the keyring is pending.
//  2. Requests that asked for the keys before that end.
//  3. Every Secret that is not stored in the new way is rewritten.
//  4. The keys that nothing needs any more are removed.
//
// After a kill -9 at any point the keyring is still pending, and the leading server
// continues at step 2.
//
// The server package runs an Encryption before the API server, which gets its
// transformers, and a Keeper where the controllers run. The commands ask through
// localapi.
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

// KeyringKey is where the datastore has the keys.
const KeyringKey = "/kedge/encryption/keys"

const (
	// serversPrefix is where the datastore has what is known of the servers that can read
	// the keys, by address.
	serversPrefix = "/kedge/encryption/servers/"
	// healthKey is a key that kine stores in every new datastore, below the
	// prefix.
	healthKey = "/health"
	// poll is how often a command asks for the progress of a change.
	poll = time.Second
)

// Config is what an Encryption needs.
type Config struct {
	// KeyFile contains the secret under which the stored keys are encrypted.
	KeyFile string
	// NewClient is called only while the datastore is ready.
	NewClient func() (*clientv3.Client, error)
	// Prefix begins the names of the API server's objects in the datastore.
	Prefix string
	// Address is this server's address, as its API server writes it into a
	// datastore that is Shared with other servers.
	Address string
	Shared  bool
	// Enabled is true if Secrets have to be encrypted.
	Enabled bool
	// Theirs says why the user encrypts Secrets instead of kedge. It is empty if
	// kedge does.
	Theirs string
}

// Encryption is the component that has the keys and answers questions about them.
type Encryption struct {
	cfg Config
	log *logrus.Entry
	// under and client are not set until Run is ready.
	under  []byte
	client *clientv3.Client

	mu sync.Mutex
	// known is what the datastore had when it was last read.
	known known
	// waiting says what a change waits for. It is empty if no change waits.
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
		return fmt.Errorf("read the file that the keys of Secrets are encrypted under: %w", err)
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

// begin gives a new cluster its first key, and announces this server's setting.
func (e *Encryption) begin(ctx context.Context) error {
	found, err := e.load(ctx)
	if err != nil {
		return err
	}
	if e.cfg.Theirs != "" {
		if len(found.Keys) > 0 {
			return errors.New("this cluster's Secrets are encrypted with kedge's keys, and " + e.cfg.Theirs +
				": first start without that and with secrets-encryption: false, and wait until `kedge secrets-encrypt status` says that Secrets are not encrypted")
		}
		return nil
	}
	if err := e.announce(ctx); err != nil {
		return err
	}
	if found.revision > 0 || !e.cfg.Enabled {
		return nil
	}
	// In a cluster that has objects, servers that know of no keys may be running:
	// the Keeper waits until there are none.
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
		return nil // another server has already stored a key
	}
	return err
}

// secretsPrefix begins the names of stored Secrets.
func (e *Encryption) secretsPrefix() string { return path.Join(e.cfg.Prefix, "secrets") + "/" }
