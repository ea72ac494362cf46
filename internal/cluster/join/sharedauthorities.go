package join

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// AuthoritiesKey is the key in a shared datastore that holds the authorities which all
// servers are to use. It exists once authorities have been replaced. The value is
// encrypted as the token is.
const AuthoritiesKey = "/kedge/authorities"

// ErrAuthorities says that a server has started with authorities that the cluster has
// replaced. The caller must start the server again at once: that start takes the new
// ones.
var ErrAuthorities = errors.New("the cluster has replaced the certificate authorities that this server has started with")

// SharedAuthorities makes the servers that share a datastore use the same authorities.
// Each server prepares the authorities in the datastore, and uses them from its next
// start on.
type SharedAuthorities struct {
	dir       datadir.Dir
	newClient func() (*clientv3.Client, error)
	log       *logrus.Entry

	mu     sync.Mutex
	client *clientv3.Client // nil until AuthoritiesKey has been read
	// revision is the datastore's revision of AuthoritiesKey, 0 if there is no such key.
	revision int64
}

// NewSharedAuthorities makes the component; newClient is called when it runs.
func NewSharedAuthorities(dir datadir.Dir, newClient func() (*clientv3.Client, error)) *SharedAuthorities {
	return &SharedAuthorities{dir: dir, newClient: newClient, log: logrus.WithField("component", "authorities")}
}

// Name implements component.Component.
func (*SharedAuthorities) Name() string { return "authorities" }

var _ component.Component = (*SharedAuthorities)(nil)

// Run implements component.Component. It is ready once it has read AuthoritiesKey. If
// the value then differs from what this server has started with, Run returns
// ErrAuthorities.
func (s *SharedAuthorities) Run(ctx context.Context, ready func()) error {
	client, err := s.newClient()
	if err != nil {
		return err
	}
	defer client.Close()
	isReady := false
	get := func(ctx context.Context) (*clientv3.GetResponse, error) { return client.Get(ctx, AuthoritiesKey) }
	follow := func(text []byte, revision int64) error {
		wanted, err := s.take(client, text, revision)
		if wanted && !isReady {
			return ErrAuthorities
		}
		if wanted {
			s.log.Warn("The cluster's certificate authorities are being replaced (`kedge certificate rotate-ca`): restart this server, so that it uses the new ones")
		}
		if !isReady {
			isReady = true
			ready()
		}
		return err
	}
	return again(ctx, s.log, func() error { return followKey(ctx, client, AuthoritiesKey, get, follow) })
}

// take prepares the authorities that the datastore has at a revision. It tells whether
// this server must be restarted to use them.
func (s *SharedAuthorities) take(client *clientv3.Client, text []byte, revision int64) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.client = client
	if text == nil || revision < s.revision {
		return false, nil
	}
	s.revision = revision
	files, err := openForServers(s.dir, text)
	if err != nil {
		return false, fmt.Errorf("read the cluster's authorities in the datastore: %w", err)
	}
	return pki.FollowAuthorities(s.dir, files)
}

// Replace makes all servers prepare the files that next returns, this server first. It
// fails if another server replaces the authorities at the same moment.
func (s *SharedAuthorities) Replace(ctx context.Context, next func() (map[string][]byte, error)) error {
	files, err := next()
	if err != nil {
		return err
	}
	text, err := sealForServers(s.dir, files)
	if err != nil {
		return err
	}
	s.mu.Lock()
	client, revision := s.client, s.revision
	s.mu.Unlock()
	if client == nil {
		return errors.New("this server does not know yet which certificate authorities the cluster has: try again when it is ready")
	}
	asking, cancel := context.WithTimeout(ctx, tokenPatience)
	defer cancel()
	answer, err := client.Txn(asking).If(clientv3.Compare(clientv3.ModRevision(AuthoritiesKey), "=", revision)).
		Then(clientv3.OpPut(AuthoritiesKey, text)).Else(clientv3.OpGet(AuthoritiesKey)).Commit()
	if err != nil {
		return fmt.Errorf("write the new certificate authorities to the datastore: %w", err)
	}
	if !answer.Succeeded {
		return errors.New("another server has replaced the certificate authorities at the same moment")
	}
	if _, err := s.take(client, []byte(text), answer.Header.Revision); err != nil {
		return err
	}
	token, err := keptToken(s.dir)
	if err == nil {
		sealing, cancel := context.WithTimeout(ctx, sealPatience)
		defer cancel()
		err = resealStored(sealing, client, s.dir, token.Secret)
	}
	if err != nil {
		s.log.Warnf("A server that joins now starts with the old certificate authorities, and then takes the new ones: %v", err)
	}
	return nil
}

// clusterKeys returns the keys that only servers of the cluster have. Data for them is
// encrypted under the first, which stays the same when authorities are replaced. The
// second was used by versions of kedge that did not have the first. A server that has not
// joined yet has none.
func clusterKeys(dir datadir.Dir) ([]string, error) {
	var keys []string
	for _, name := range []string{pki.EncryptionKey, "server-ca.key"} {
		key, err := os.ReadFile(filepath.Join(dir.ServerTLS(), name))
		if err == nil {
			keys = append(keys, string(key))
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read the cluster's keys: %w", err)
		}
	}
	return keys, nil
}

// sealForServers encrypts files for the cluster's servers.
func sealForServers(dir datadir.Dir, files map[string][]byte) (string, error) {
	keys, err := clusterKeys(dir)
	if err != nil {
		return "", err
	}
	if len(keys) == 0 {
		return "", fmt.Errorf("no cluster's keys are in %s: start this server first", dir.ServerTLS())
	}
	sealed, err := Seal(keys[0], files)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(sealed)
	return string(text), err
}

// openForServers decrypts what sealForServers has returned on any server of the cluster.
func openForServers(dir datadir.Dir, text []byte) (map[string][]byte, error) {
	var sealed Sealed
	if err := json.Unmarshal(text, &sealed); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	keys, err := clusterKeys(dir)
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		if files, err := sealed.Open(key); err == nil {
			return files, nil
		}
	}
	return nil, fmt.Errorf("it is encrypted with another %s than the one in %s: all servers of a cluster need the same file, so copy it from another server", pki.EncryptionKey, dir.ServerTLS())
}

// agreedAuthorities returns the authorities at AuthoritiesKey, none if there is no such
// key.
func agreedAuthorities(ctx context.Context, store clientv3.KV, dir datadir.Dir) (map[string][]byte, error) {
	answer, err := store.Get(ctx, AuthoritiesKey)
	if err != nil || len(answer.Kvs) == 0 {
		return nil, err
	}
	return openForServers(dir, answer.Kvs[0].Value)
}
