package encryption

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/sqlite"
	"github.com/kedge-dev/kedge/internal/testutil/etcd"
)

const (
	prefix    = "/registry/secrets/default/"
	plaintext = "what nobody is to read"
)

// cluster is a datastore, and the file that all servers have in common.
type cluster struct {
	*testing.T
	newClient func() (*clientv3.Client, error)
	client    *clientv3.Client
	shared    bool
	key       string
}

// clusters are the kinds of datastores that servers use.
func clusters(t *testing.T, test func(*testing.T, *cluster)) {
	t.Run("sqlite", func(t *testing.T) { test(t, newSQLite(t)) })
	t.Run("etcd", func(t *testing.T) { test(t, newEtcd(t)) })
}

func newCluster(t *testing.T, shared bool, newClient func() (*clientv3.Client, error)) *cluster {
	t.Helper()
	c := &cluster{T: t, newClient: newClient, shared: shared, key: filepath.Join(t.TempDir(), "encryption.key")}
	if err := os.WriteFile(c.key, []byte("only servers have it"), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if c.client, err = newClient(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.client.Close() })
	return c
}

func newEtcd(t *testing.T) *cluster {
	url := etcd.Start(t)
	return newCluster(t, true, func() (*clientv3.Client, error) {
		return clientv3.New(clientv3.Config{Endpoints: []string{url}, Logger: zap.NewNop()})
	})
}

func newSQLite(t *testing.T) *cluster {
	store := sqlite.New(sqlite.Config{Dir: t.TempDir(), Socket: filepath.Join(t.TempDir(), "s")})
	run(t, store.Run)
	return newCluster(t, false, func() (*clientv3.Client, error) { return datastore.NewClient(store.Endpoint()) })
}

// run runs something and waits until it is ready. It ends with the test, or when
// stop is called.
func run(t *testing.T, something func(context.Context, func()) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	ready, failed := make(chan struct{}), make(chan error, 1)
	running.Go(func() { failed <- something(ctx, func() { close(ready) }) })
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	select {
	case <-ready:
	case err := <-failed:
		t.Fatalf("the keeper ended: %v", err)
	}
	return stop
}

// server starts a server at an address.
func (c *cluster) server(address string, change ...func(*Config)) (_ *Encryption, stop func()) {
	c.Helper()
	e := c.notStarted(address, change...)
	defer c.lease(address)
	return e, run(c.T, e.Run)
}

func (c *cluster) notStarted(address string, change ...func(*Config)) *Encryption {
	cfg := Config{
		KeyFile: c.key, NewClient: c.newClient, Prefix: "/registry", Address: address, Shared: c.shared, Enabled: true,
	}
	for _, do := range change {
		do(&cfg)
	}
	return New(cfg)
}

func off(cfg *Config) { cfg.Enabled = false }

// lease is the key that an API server has in the datastore while it runs.
func (c *cluster) lease(address string) {
	if c.shared {
		c.put("/registry/masterleases/"+address, []byte("{}"))
	}
}

// keep runs a Keeper until stop is called.
func (c *cluster) keep(e *Encryption) (stop func()) {
	c.Helper()
	return run(c.T, hastyKeeper(e).Lead)
}

func (c *cluster) put(name string, text []byte) {
	c.Helper()
	answer, err := c.client.Get(c.Context(), name)
	if err != nil {
		c.Fatal(err)
	}
	var revision int64
	if len(answer.Kvs) > 0 {
		revision = answer.Kvs[0].ModRevision
	}
	if _, err := putIf(c.Context(), c.client, name, string(text), revision); err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) stored(name string) []byte {
	c.Helper()
	answer, err := c.client.Get(c.Context(), name)
	if err != nil || len(answer.Kvs) == 0 {
		c.Fatalf("get %s: %v, %v", name, answer, err)
	}
	return answer.Kvs[0].Value
}

// write stores a Secret as the API server of a server would.
func (c *cluster) write(e *Encryption, name string) {
	c.Helper()
	text, err := e.TransformerForResource(schema.GroupResource{Resource: "secrets"}).
		TransformToStorage(c.Context(), []byte(plaintext+name), value.DefaultContext(prefix+name))
	if err != nil {
		c.Fatal(err)
	}
	c.put(prefix+name, text)
}

// read wants a Secret to have the value that write stored.
func (c *cluster) read(e *Encryption, name string) {
	c.Helper()
	text, _, err := e.TransformerForResource(schema.GroupResource{Resource: "secrets"}).
		TransformFromStorage(c.Context(), c.stored(prefix+name), value.DefaultContext(prefix+name))
	if err != nil || string(text) != plaintext+name {
		c.Fatalf("read %s: %q, %v", name, text, err)
	}
}

// status returns the Status of a server.
func (c *cluster) status(e *Encryption) Status {
	c.Helper()
	s, err := e.status(c.Context())
	if err != nil {
		c.Fatal(err)
	}
	return s
}

// rest waits until a server's Status is as wanted and no change is pending.
func (c *cluster) rest(e *Encryption, what string, fits func(Status) bool) {
	c.Helper()
	c.eventually(e, what, func(s Status) bool { return !s.Pending && s.Lost == 0 && fits(s) })
}

func (c *cluster) eventually(e *Encryption, what string, fits func(Status) bool) {
	c.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		s := c.status(e)
		if fits(s) {
			return
		}
		if time.Now().After(deadline) {
			c.Fatalf("waiting for %s: got %+v", what, s)
		}
	}
}

func encrypted(n int) func(Status) bool {
	return func(s Status) bool {
		return s.Encrypted && s.Plain == 0 && len(s.Keys) == 1 && s.Keys[0].Writes && s.Keys[0].Secrets == n
	}
}

func plain(n int) func(Status) bool {
	return func(s Status) bool { return !s.Encrypted && s.Plain == n && len(s.Keys) == 0 }
}

// hastyKeeper does not wait for earlier requests.
func hastyKeeper(e *Encryption) *Keeper {
	return &Keeper{Encryption: e, settle: func() time.Duration { return time.Millisecond }}
}
