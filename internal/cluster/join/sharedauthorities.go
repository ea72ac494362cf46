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

// AuthoritiesKey is where servers with one datastore have the authorities that all of
// them are to use, since those were replaced for the first time. They are encrypted as
// the token is.
const AuthoritiesKey = "/kedge/authorities"

// ErrAuthorities is why a server ends that starts with authorities which the cluster
// has replaced: the next start, which is to come at once, takes those of now.
var ErrAuthorities = errors.New("the cluster has other authorities by now than this server has started with")

// SharedAuthorities has the servers that share a datastore use the same authorities:
// each prepares those that are there, and takes them at its next start.
type SharedAuthorities struct {
	dir       datadir.Dir
	newClient func() (*clientv3.Client, error)
	log       *logrus.Entry

	mu     sync.Mutex
	client *clientv3.Client // nil until it is known what is there
	// revision is the datastore's of what is there, 0 if nothing is.
	revision int64
}

// NewSharedAuthorities makes the component; newClient is called when it runs.
func NewSharedAuthorities(dir datadir.Dir, newClient func() (*clientv3.Client, error)) *SharedAuthorities {
	return &SharedAuthorities{dir: dir, newClient: newClient, log: logrus.WithField("component", "authorities")}
}

// Name implements component.Component.
func (*SharedAuthorities) Name() string { return "authorities" }

var _ component.Component = (*SharedAuthorities)(nil)

// Run implements component.Component. It is ready once it knows what is there. If
// that is not what this server has started with, it ends with ErrAuthorities.
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
			s.log.Warn("The cluster's authorities are being replaced (`kedge certificate rotate-ca`): restart this server, which takes the new ones then")
		}
		if !isReady {
			isReady = true
			ready()
		}
		return err
	}
	return again(ctx, s.log, func() error { return followKey(ctx, client, AuthoritiesKey, get, follow) })
}

// take prepares what the datastore has at a revision, and tells whether a start is
// wanted, which takes it.
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

// Replace has all servers prepare what next returns, this one first.
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
		return errors.New("this server does not know yet which authorities the cluster has: try again when it is ready")
	}
	asking, cancel := context.WithTimeout(ctx, tokenPatience)
	defer cancel()
	answer, err := client.Txn(asking).If(clientv3.Compare(clientv3.ModRevision(AuthoritiesKey), "=", revision)).
		Then(clientv3.OpPut(AuthoritiesKey, text)).Else(clientv3.OpGet(AuthoritiesKey)).Commit()
	if err != nil {
		return fmt.Errorf("the datastore does not take the new authorities: %w", err)
	}
	if !answer.Succeeded {
		return errors.New("another server has replaced the authorities at the same moment")
	}
	if _, err := s.take(client, []byte(text), answer.Header.Revision); err != nil {
		return err
	}
	token, err := keptToken(s.dir)
	if err == nil {
		err = resealStored(ctx, client, s.dir, token.Secret)
	}
	if err != nil {
		s.log.Warnf("Servers that join get the old authorities, and then the new ones: %v", err)
	}
	return nil
}

// clusterKeys are what only servers of the cluster have, to encrypt for them: first
// what stays when its authorities are replaced, and then what was used before that was
// there. There is none on a server that has yet to join.
func clusterKeys(dir datadir.Dir) ([]string, error) {
	var keys []string
	for _, name := range []string{pki.EncryptionKey, "server-ca.key"} {
		key, err := os.ReadFile(filepath.Join(dir.ServerTLS(), name))
		if err == nil {
			keys = append(keys, string(key))
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read what the cluster's servers have alike: %w", err)
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
		return "", fmt.Errorf("there are no keys of a cluster in %s: start this server first", dir.ServerTLS())
	}
	sealed, err := Seal(keys[0], files)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(sealed)
	return string(text), err
}

// openForServers reads what sealForServers has returned on any server.
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
	return nil, fmt.Errorf("it is encrypted for a cluster whose %s is not the one in %s: that must be the same on all servers", pki.EncryptionKey, dir.ServerTLS())
}

// agreedAuthorities is what is at AuthoritiesKey, nothing if there is none.
func agreedAuthorities(ctx context.Context, store clientv3.KV, dir datadir.Dir) (map[string][]byte, error) {
	answer, err := store.Get(ctx, AuthoritiesKey)
	if err != nil || len(answer.Kvs) == 0 {
		return nil, err
	}
	return openForServers(dir, answer.Kvs[0].Value)
}
