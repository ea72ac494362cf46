package join

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/loop"
)

const (
	// TokenKey is the key in a shared datastore that holds the servers' token, encrypted
	// under a key that only servers have (clusterKeys). It is outside the API server's
	// keys.
	TokenKey = "/kedge/token"
	// tokenPatience is how long the datastore may take to answer. tokenRetry is the wait
	// after a failed attempt.
	tokenPatience = 5 * time.Second
	// sealPatience bounds what also encrypts, which is slow on purpose (scrypt), if somebody waits
	// for the answer. A start has no limit.
	sealPatience = time.Minute
	tokenRetry   = time.Second
)

// SharedToken is the join token of servers that share a datastore. The token in the
// datastore is the valid one. Each server's file follows it, whatever the server's
// configuration says. A single server has a nil SharedToken: the token in its file is
// the valid one.
type SharedToken struct {
	dir        datadir.Dir
	configured string
	newClient  func() (*clientv3.Client, error)
	log        *logrus.Entry

	mu     sync.Mutex
	client *clientv3.Client // nil until Run
	// revision is the datastore's revision of the token in the file, 0 before it is known.
	revision int64
}

// NewSharedToken makes the component. configured is the token in the configuration, or
// empty. newClient is called when the component runs.
func NewSharedToken(dir datadir.Dir, configured string, newClient func() (*clientv3.Client, error)) *SharedToken {
	return &SharedToken{dir: dir, configured: configured, newClient: newClient, log: logrus.WithField("component", "token")}
}

// Name implements component.Component.
func (*SharedToken) Name() string { return "token" }

var _ component.Component = (*SharedToken)(nil)

// Run implements component.Component. It is ready once the file has the token of the
// datastore. If the datastore has none, Run first puts the token of the file there.
func (s *SharedToken) Run(ctx context.Context, ready func()) error {
	client, err := s.newClient()
	if err != nil {
		return err
	}
	defer client.Close()
	s.mu.Lock()
	s.client = client
	s.mu.Unlock()
	ready = sync.OnceFunc(ready)
	return again(ctx, s.log, func() error { return s.follow(ctx, client, ready) })
}

// again calls follow until ctx ends or follow returns ErrAuthorities.
func again(ctx context.Context, log *logrus.Entry, follow func() error) (wrong error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	loop.Loop{Log: log, First: tokenRetry, Last: tokenRetry, Steady: time.Minute}.Run(ctx, func(context.Context) (loop.Next, error) {
		err := follow()
		if errors.Is(err, ErrAuthorities) {
			wrong = err
			end()
		}
		if err != nil {
			err = fmt.Errorf("follow the cluster's value in the datastore: %w", err)
		}
		return loop.Next{After: tokenRetry}, err
	})
	return wrong
}

// follow takes the token in the datastore, and then each new one.
func (s *SharedToken) follow(ctx context.Context, client *clientv3.Client, ready func()) error {
	get := func(ctx context.Context) (*clientv3.GetResponse, error) {
		answer, err := client.Get(ctx, TokenKey)
		if err == nil && len(answer.Kvs) == 0 {
			return s.give(ctx, client)
		}
		return answer, err
	}
	return followKey(ctx, client, TokenKey, get, func(text []byte, revision int64) error {
		if text == nil {
			return errors.New("the datastore has lost the token")
		}
		if err := s.take(text, revision); err != nil {
			return err
		}
		ready()
		return nil
	})
}

// followKey calls take with the value that get returns for a key, nil if there is none,
// and then with each new value. It returns the first error.
func followKey(ctx context.Context, client *clientv3.Client, key string, get func(context.Context) (*clientv3.GetResponse, error),
	take func(text []byte, revision int64) error) error {
	asking, cancel := context.WithTimeout(ctx, tokenPatience)
	defer cancel()
	answer, err := get(asking)
	if err != nil {
		return fmt.Errorf("ask the datastore: %w", err)
	}
	var text []byte
	revision := answer.Header.Revision
	if len(answer.Kvs) > 0 {
		text, revision = answer.Kvs[0].Value, answer.Kvs[0].ModRevision
	}
	if err := take(text, revision); err != nil {
		return err
	}
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	for change := range client.Watch(watching, key, clientv3.WithRev(revision+1)) {
		if err := change.Err(); err != nil {
			return fmt.Errorf("watch the datastore: %w", err)
		}
		for _, event := range change.Events {
			if event.Type != clientv3.EventTypePut {
				continue
			}
			if err := take(event.Kv.Value, event.Kv.ModRevision); err != nil {
				return err
			}
		}
	}
	return nil
}

// give puts the token of this server's file into the datastore, unless another server
// was faster. It returns what the datastore has then.
func (s *SharedToken) give(ctx context.Context, client *clientv3.Client) (*clientv3.GetResponse, error) {
	token, err := keptToken(s.dir)
	if err != nil {
		return nil, err
	}
	text, err := sealToken(s.dir, token)
	if err != nil {
		return nil, err
	}
	_, err = client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(TokenKey), "=", 0)).
		Then(clientv3.OpPut(TokenKey, text)).Commit()
	if err != nil {
		return nil, err
	}
	return client.Get(ctx, TokenKey)
}

// take writes the token that the datastore has at a revision into the file.
func (s *SharedToken) take(text []byte, revision int64) error {
	token, err := openToken(s.dir, text)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if revision <= s.revision {
		return nil
	}
	kept, err := keptToken(s.dir)
	if err == nil {
		token.Hash = kept.Hash // this server's authority: others may have replaced theirs already
	}
	if err != nil || kept != token {
		if err := keepToken(s.dir.ServerToken(), token.String()); err != nil {
			return err
		}
		s.log.Info("The cluster's token was replaced: nodes and servers that join need the new one, which is in server/token on every server")
	}
	s.revision = revision
	if given, err := tokenSecret(s.configured, ServerUser, nil); s.configured != "" && (err != nil || given != token.Secret) {
		s.log.Warnf("The token in this server's configuration is no longer the cluster's, and is not used: remove it, or replace it with the one in %s",
			s.dir.ServerToken())
	}
	return nil
}

// Known fails until the file has the cluster's token. Before that, the file may hold a
// token that was replaced while this server was down.
func (s *SharedToken) Known() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.revision == 0 {
		return errors.New("this server does not know yet which token the cluster has: try again when it is ready")
	}
	return nil
}

// Rotate replaces the token on all servers by a given one, or by a random one if given is
// empty, and returns the whole new token. If given cannot be a token, the error is an
// ErrToken.
func (s *SharedToken) Rotate(ctx context.Context, given string) (string, error) {
	if err := s.Known(); err != nil {
		return "", err
	}
	token, err := keptToken(s.dir)
	if err != nil {
		return "", err
	}
	if token, err = token.with(given); err != nil {
		return "", err
	}
	text, err := sealToken(s.dir, token)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	revision := s.revision
	s.mu.Unlock()
	asking, cancel := context.WithTimeout(ctx, tokenPatience)
	defer cancel()
	answer, err := s.client.Txn(asking).If(clientv3.Compare(clientv3.ModRevision(TokenKey), "=", revision)).
		Then(clientv3.OpPut(TokenKey, text)).Else(clientv3.OpGet(TokenKey)).Commit()
	if err != nil {
		return "", fmt.Errorf("write the new token to the datastore: %w", err)
	}
	if !answer.Succeeded {
		return "", errors.New("another server has replaced the token at the same moment")
	}
	sealing, cancel := context.WithTimeout(ctx, sealPatience)
	defer cancel()
	if err := resealStored(sealing, s.client, s.dir, token.Secret); err != nil {
		s.log.Warnf("The cluster's secrets in the datastore stay encrypted under the old token until a server restarts: %v", err)
	}
	return token.String(), s.take([]byte(text), answer.Header.Revision)
}

// AskRotate asks the server on this host, at HOST:PORT, to replace the cluster's token by a
// given one, or by a random one if given is empty, and returns the whole new token. While the datastore does not accept it, AskRotate tries again
// until ctx ends.
func AskRotate(ctx context.Context, dir datadir.Dir, server string, dial Dial, given string) (string, error) {
	old, err := keptToken(dir)
	if err != nil {
		return "", err
	}
	if _, err := old.with(given); err != nil {
		return "", err
	}
	j := &ServerJoin{cfg: ServerConfig{Server: server, Dial: dial, Dir: dir}, token: old, log: logrus.WithField("component", "token")}
	var answer RotateResponse
	err = retry(ctx, j.log, func() error {
		// An earlier attempt may have replaced the token, and its answer was lost.
		if token, err := keptToken(dir); err != nil || token != old {
			answer.Token = token.String()
			return err
		}
		if err := j.trust(ctx); err != nil {
			return err
		}
		c := j.client()
		defer c.close()
		return c.call(ctx, http.MethodPost, TokenPath, old.Authorize, RotateRequest{given}, &answer)
	})
	return answer.Token, err
}

// keptToken returns the token in this server's file.
func keptToken(dir datadir.Dir) (Token, error) {
	text, err := os.ReadFile(dir.ServerToken())
	if err != nil {
		return Token{}, fmt.Errorf("read join token (only a server that has started before has one): %w", err)
	}
	token, err := ParseToken(string(text))
	if err != nil {
		return Token{}, fmt.Errorf("read join token %s: %w", dir.ServerToken(), err)
	}
	return token, nil
}

// sealToken returns the value for TokenKey.
func sealToken(dir datadir.Dir, token Token) (string, error) {
	return sealForServers(dir, map[string][]byte{"token": []byte(token.String())})
}

// openToken reads the value of TokenKey.
func openToken(dir datadir.Dir, text []byte) (Token, error) {
	opened, err := openForServers(dir, text)
	if err != nil {
		return Token{}, fmt.Errorf("read the cluster's token in the datastore: %w", err)
	}
	return ParseToken(string(opened["token"]))
}

// storedToken returns the valid token, which is in the datastore that servers share. It
// returns an empty one if there is none, or if this server has not joined yet.
func storedToken(ctx context.Context, store clientv3.KV, dir datadir.Dir) (Token, error) {
	if keys, err := clusterKeys(dir); err != nil || len(keys) == 0 {
		return Token{}, err
	}
	answer, err := store.Get(ctx, TokenKey)
	if err != nil {
		return Token{}, fmt.Errorf("ask the datastore for the cluster's token: %w", err)
	}
	if len(answer.Kvs) == 0 {
		return Token{}, nil
	}
	return openToken(dir, answer.Kvs[0].Value)
}
