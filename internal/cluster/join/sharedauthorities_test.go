package join

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/testutil/etcd"
)

// newServers makes the data directories of servers of one cluster, with authorities and
// token.
func newServers(t *testing.T, number int) []datadir.Dir {
	t.Helper()
	var dirs []datadir.Dir
	for range number {
		dir := newDir(t)
		if len(dirs) > 0 {
			secrets, err := pki.Secrets(dirs[0])
			if err == nil {
				err = pki.KeepSecrets(dir, secrets)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		dirs = append(dirs, dir)
		restart(t, dir, "secret")
	}
	return dirs
}

// restart changes a data directory as the start of a server does.
func restart(t *testing.T, dir datadir.Dir, token string) {
	t.Helper()
	if err := pki.TakeAuthorities(dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	certificates, err := pki.EnsureServer(pki.ServerOptions{Dir: dir, NodeName: "one", ClusterDomain: "cluster.local", Etcd: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := EnsureToken(dir, token, certificates.ServerCA()); err != nil {
		t.Fatal(err)
	}
}

// startAuthorities runs the shared authorities of a server until stop is called, the test
// ends, or Run returns by itself. stop returns Run's error.
func startAuthorities(t *testing.T, dir datadir.Dir, store func() (*clientv3.Client, error)) (_ *SharedAuthorities, stop func(), _ error) {
	t.Helper()
	authorities := NewSharedAuthorities(dir, store)
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- authorities.Run(ctx, func() { close(ready) }) }()
	select {
	case err := <-ended:
		cancel()
		return authorities, func() {}, err
	case <-ready:
	case <-time.After(time.Minute):
		t.Error("the components were not ready within a minute")
	}
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return authorities, stop, nil
}

func TestSharedAuthorities(t *testing.T) {
	url := etcd.Start(t)
	store := func() (*clientv3.Client, error) {
		return clientv3.New(clientv3.Config{Endpoints: []string{url}, Logger: zap.NewNop()})
	}
	client, err := store()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	dirs := newServers(t, 4)
	one, two, down, away := dirs[0], dirs[1], dirs[2], dirs[3]
	stops := map[datadir.Dir]func(){}
	follows := func(dir datadir.Dir) *SharedAuthorities {
		t.Helper()
		authorities, stop, err := startAuthorities(t, dir, store)
		if err != nil {
			t.Fatal(err)
		}
		stops[dir] = stop
		return authorities
	}
	restart := func(t *testing.T, dir datadir.Dir, token string) {
		t.Helper()
		if stop := stops[dir]; stop != nil {
			stop()
		}
		restart(t, dir, token)
	}
	prepares := func(dir datadir.Dir) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			if _, err := os.Stat(dir.NextServerTLS()); err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Fatal("the other server did not prepare the authorities in time")
			}
		}
	}
	authority := func(dir datadir.Dir) string {
		t.Helper()
		content, err := os.ReadFile(filepath.Join(dir.ServerTLS(), "server-ca.crt"))
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	stored := func(dir datadir.Dir, want string) {
		t.Helper()
		found, err := TakeStored(t.Context(), client.KV, dir, "secret")
		if want == "" && (err != nil || !found) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("to start with the datastore: %v, want %q", err, want)
		}
	}
	if err := GiveStored(t.Context(), client.KV, one); err != nil {
		t.Fatal(err)
	}
	if err := NewSharedAuthorities(one, store).Replace(t.Context(), func() (map[string][]byte, error) { return nil, nil }); err == nil || !strings.Contains(err.Error(), "try again when it is ready") {
		t.Errorf("before the datastore was asked: %v", err)
	}
	first := follows(one)
	follows(two)
	startToken(t, one, "", store)

	begin := func() (map[string][]byte, error) { return pki.NextAuthorities(one, time.Now()) }
	if err := first.Replace(t.Context(), begin); err != nil {
		t.Fatal(err)
	}
	if err := first.Replace(t.Context(), begin); !errors.Is(err, pki.ErrPrepared) {
		t.Errorf("begin a second time: got error %v, want %v", err, pki.ErrPrepared)
	}
	prepares(two)
	late := &SharedAuthorities{dir: one, client: client}
	if err := late.Replace(t.Context(), func() (map[string][]byte, error) { return nil, nil }); err == nil || !strings.Contains(err.Error(), "at the same moment") {
		t.Errorf("by two servers at once: %v", err)
	}
	answer, err := client.Get(t.Context(), AuthoritiesKey)
	if err != nil || len(answer.Kvs) != 1 || strings.Contains(string(answer.Kvs[0].Value), "PRIVATE KEY") {
		t.Errorf("keys can be read, or are not there: %v", err)
	}
	old := authority(one)
	restart(t, one, "")
	stored(one, "")
	stored(two, "") // this server has not been restarted
	first = follows(one)
	// While only one of two servers has followed, both have the same token, each with the
	// hash of its own authority.
	startToken(t, one, "", store)
	startToken(t, two, "", store)
	for _, dir := range []datadir.Dir{one, two} {
		token, err := keptToken(dir)
		if err != nil || token.Secret != "secret" || pki.FindCA([]byte(authority(dir)), token.Hash) == nil {
			t.Errorf("the token is %v, %v", token, err)
		}
	}
	if one, two := authority(one), authority(two); two != old || one == old {
		t.Error("a server has others than it has started with")
	}
	joined := newDir(t)
	stored(joined, "")
	if authority(joined) != authority(one) {
		t.Error("a server that joins has the old ones")
	}
	// A server that was off starts, ends with ErrAuthorities, and has followed at its
	// next start.
	if _, _, err := startAuthorities(t, down, store); !errors.Is(err, ErrAuthorities) {
		t.Errorf("a server that was off: %v", err)
	}
	restart(t, down, "")
	follows(down)
	restart(t, two, "")
	follows(two)

	if err := first.Replace(t.Context(), func() (map[string][]byte, error) { return pki.LastAuthorities(one) }); err != nil {
		t.Fatal(err)
	}
	prepares(two)
	restart(t, one, "")
	restart(t, two, "")
	stored(one, "")
	stored(down, "")
	follows(one)
	if authority(one) != authority(two) || strings.Count(authority(one), "BEGIN") != 1 {
		t.Error("servers have old ones yet")
	}
	// This server has missed both steps.
	stored(away, "if this server was off while the cluster's certificate authorities were replaced, move the folder away")
	follows(away)
	if _, err := os.Stat(away.NextServerTLS()); err == nil {
		t.Error("a server prepared authorities that do not follow its own: want them refused")
	}
}

// TestJoinedServersApart compares two servers of which only one has followed to new
// authorities.
func TestJoinedServersApart(t *testing.T) {
	o := newOther(t)
	dir := newDir(t)
	if _, err := JoinServer(t.Context(), o.config(dir), false); err != nil {
		t.Fatal(err)
	}
	restart(t, dir, o.token)
	compare := func(want string) {
		t.Helper()
		later := o.config(dir)
		later.Token = ""
		_, err := JoinServer(t.Context(), later, true)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if err := pki.PrepareAuthorities(dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	restart(t, dir, "")
	compare("")
	key := filepath.Join(dir.ServerTLS(), pki.EncryptionKey)
	own, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	for _, content := range [][]byte{[]byte("another"), own} {
		if err := os.WriteFile(key, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if string(content) == "another" {
			compare("differ from those of the server at pi:6443: " + pki.EncryptionKey + ".")
		}
	}
	if err := pki.DropAuthorities(dir); err != nil {
		t.Fatal(err)
	}
	restart(t, dir, "")
	compare("was off while the certificate authorities of its cluster were replaced")
}
