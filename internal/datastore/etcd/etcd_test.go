package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

func TestMain(m *testing.M) {
	logrus.SetOutput(io.Discard)
	if folder, size, ok := strings.Cut(os.Getenv(childVariable), ":"); ok {
		os.Exit(migrateAsChild(folder, size))
	}
	os.Exit(m.Run())
}

const patience = time.Minute

// eventually waits until check returns nil.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waiting for %s: %v", what, err)
		}
	}
}

// host is a server as far as etcd can tell, with an address in 127.0.0.0/8.
type host struct {
	*testing.T
	number int
	dir    datadir.Dir
	files  pki.EtcdFiles
	public string

	// trial is Config.Trial.
	trial  bool
	member *Member
	stop   context.CancelFunc
	ended  chan error
}

// newHost makes a host, with the authorities of another host if one is given.
func newHost(t *testing.T, number int, other *host) *host {
	t.Helper()
	h := &host{T: t, number: number, dir: datadir.Dir(t.TempDir())}
	for _, folder := range []string{h.dir.ServerTLS(), h.dir.AgentTLS()} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if other != nil {
		secrets, err := pki.Secrets(other.dir)
		if err == nil {
			err = pki.KeepSecrets(h.dir, secrets)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	certificates, err := pki.EnsureServer(pki.ServerOptions{
		Dir: h.dir, NodeName: h.node(), NodeIPs: []netip.Addr{netip.MustParseAddr(h.address())}, ClusterDomain: "cluster.local", Etcd: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	h.files = certificates.Etcd
	t.Cleanup(func() { h.end() })
	return h
}

func (h *host) node() string    { return fmt.Sprint("node-", h.number) }
func (h *host) address() string { return fmt.Sprint("127.77.0.", h.number) }

func (h *host) config() Config {
	return Config{
		Dir: h.dir.Etcd(), Node: h.node(), Address: h.address(), Files: h.files, Public: h.public,
		Socket: filepath.Join(string(h.dir), "etcd.sock"), Trial: h.trial,
	}
}

// start runs the host's member, which joins through another host if it has no
// data.
func (h *host) start(by *host) {
	h.Helper()
	config := h.config()
	if by != nil {
		config.Join = func(ctx context.Context, r join.MemberRequest) (join.MemberResponse, error) {
			for {
				answer, err := by.member.Admit(ctx, r)
				if !errors.Is(err, join.ErrNotNow) || ctx.Err() != nil {
					return answer, err
				}
				time.Sleep(50 * time.Millisecond)
			}
		}
	}
	h.member = New(config)
	h.member.clientURL = fmt.Sprintf("https://%s:2379", h.address())
	ctx, cancel := context.WithCancel(context.Background())
	h.stop, h.ended = cancel, make(chan error, 1)
	ready, member, ended := make(chan struct{}), h.member, h.ended
	go func() { ended <- member.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		ended <- err
		h.Fatalf("%s ended: %v", h.node(), err)
	case <-time.After(patience):
		h.Fatalf("%s is not ready", h.node())
	}
}

// end stops the member, and returns the result of its Run.
func (h *host) end() error {
	if h.stop == nil {
		return nil
	}
	h.stop()
	h.stop = nil
	select {
	case err := <-h.ended:
		return err
	case <-time.After(patience):
		return errors.New("it does not end")
	}
}

// put writes through the host's own member, and get reads through it.
func (h *host) put(key string) {
	h.Helper()
	client := h.member.Endpoint().NewClient()
	defer client.Close()
	ctx, cancel := context.WithTimeout(h.Context(), patience)
	defer cancel()
	if _, err := client.Put(ctx, key, key); err != nil {
		h.Fatalf("write by %s: %v", h.node(), err)
	}
}

func (h *host) get(key string) {
	h.Helper()
	client := h.member.Endpoint().NewClient()
	defer client.Close()
	ctx, cancel := context.WithTimeout(h.Context(), patience)
	defer cancel()
	if answer, err := client.Client.Get(ctx, key); err != nil || len(answer.Kvs) != 1 {
		h.Fatalf("read by %s: got %v, %v", h.node(), answer, err)
	}
}

// voters waits until the members with a vote are those of the given nodes.
func (h *host) voters(nodes ...string) {
	h.Helper()
	eventually(h.T, fmt.Sprintf("the voters to be %v", nodes), func() error {
		var found []string
		for _, m := range membersOf(h.member.server.Load().Cluster().Members()) {
			if !m.learner {
				found = append(found, m.String())
			}
		}
		slices.Sort(found)
		if !slices.Equal(found, nodes) {
			return fmt.Errorf("got members %v, want %v", found, nodes)
		}
		return nil
	})
}

func TestMembers(t *testing.T) {
	first := newHost(t, 1, nil)
	first.start(nil)
	first.voters("node-1")
	first.put("early")
	watch := first.member.Endpoint().NewClient()
	defer watch.Close()
	events := watch.Watch(t.Context(), "watched")

	second, third := newHost(t, 2, first), newHost(t, 3, first)
	second.start(first)
	third.start(second)
	third.voters("node-1", "node-2", "node-3")
	third.get("early")
	third.put("watched")
	wantObserved(t, third, "node-1", "node-2", "node-3")
	overSocket(t, third)
	select {
	case answer := <-events:
		if len(answer.Events) != 1 || string(answer.Events[0].Kv.Key) != "watched" {
			t.Errorf("got %+v, want one event of the key watched", answer)
		}
	case <-time.After(patience):
		t.Error("the watch saw nothing")
	}

	// One server is down: the others continue, and a fourth can join.
	if err := second.end(); err != nil {
		t.Error(err)
	}
	first.put("without the second")
	wantObserved(t, first, "node-1", "node-3")
	fourth := newHost(t, 4, first)
	fourth.start(first)
	fourth.voters("node-1", "node-2", "node-3", "node-4")
	fourth.get("without the second")

	// The node of the member is deleted: the member is removed, and notices when
	// it starts again.
	for _, h := range []*host{first, third, fourth} {
		h.member.NodeDeleted("node-2")
	}
	first.voters("node-1", "node-3", "node-4")
	second.member = New(second.config())
	second.member.clientURL = "https://127.77.0.2:2379"
	if err := second.member.Run(t.Context(), func() {}); err == nil || !strings.Contains(err.Error(), "no longer a member") {
		t.Errorf("the removed member ended with %v", err)
	}
	// The new member stays, although the node of the old one was deleted.
	if err := os.RemoveAll(second.dir.Etcd()); err != nil {
		t.Fatal(err)
	}
	second.start(first)
	second.get("without the second")
	second.voters("node-1", "node-2", "node-3", "node-4")

	// The name is taken.
	_, err := first.member.Admit(t.Context(), join.MemberRequest{Name: "node-3-0badcafe", PeerURL: "https://127.77.0.9:2380"})
	if err == nil || !strings.Contains(err.Error(), "kubectl delete node node-3") {
		t.Errorf("admit a second node-3: got error %v, want one that says to delete the node", err)
	}
}

// wantObserved wants a host's member to know its own state and the cluster's, and
// the given members to answer.
func wantObserved(t *testing.T, h *host, answering ...string) {
	t.Helper()
	stats, health := h.member.Stats(t.Context()), h.member.Health(t.Context())
	if stats.Kind != "etcd" || stats.Place != h.dir.Etcd() || stats.Size < stats.Used || stats.Used == 0 || stats.Disk == nil {
		t.Errorf("%s: got stats %+v, want those of etcd, with sizes and a disk", h.node(), stats)
	}
	if stats.Recent.Count == 0 || stats.Recent.P99 == 0 {
		t.Errorf("%s knows of no syncs: %+v", h.node(), stats.Recent)
	}
	var answer, leaders []string
	for _, m := range health.Etcd.Members {
		if m.Answers {
			answer = append(answer, m.Name)
		}
		if m.Leader {
			leaders = append(leaders, m.Name)
		}
	}
	slices.Sort(answer)
	e := health.Etcd
	if health.Fault != "" || !slices.Equal(answer, answering) || len(leaders) != 1 || e.Quorum != 2 || e.Term == 0 || e.Applied == 0 {
		t.Errorf("%s: %v answer, %v lead, fault %q, %+v", h.node(), answer, leaders, health.Fault, e)
	}
}

// overSocket reads without a certificate, as etcdctl does.
func overSocket(t *testing.T, h *host) {
	t.Helper()
	socket := h.config().Socket
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v", info, err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + socket}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if answer, err := client.Get(t.Context(), "early"); err != nil || len(answer.Kvs) != 1 {
		t.Errorf("get over the socket: got %v, %v, want one key", answer, err)
	}
}

// TestAdmitTogether has two servers ask at once: one of them is told to wait.
func TestAdmitTogether(t *testing.T) {
	first := newHost(t, 41, nil)
	first.start(nil)
	answers := make(chan error, 2)
	for _, number := range []string{"42", "43"} {
		go func() {
			_, err := first.member.Admit(t.Context(), join.MemberRequest{Name: "node-" + number + "-0badcafe", PeerURL: "https://127.77.0." + number + ":2380"})
			answers <- err
		}()
	}
	admitted, refused := <-answers, <-answers
	if admitted != nil {
		admitted, refused = refused, admitted
	}
	if admitted != nil || !errors.Is(refused, join.ErrNotNow) || !strings.Contains(refused.Error(), "only one server can join at a time") {
		t.Errorf("got %v and %v", admitted, refused)
	}
}

func TestReset(t *testing.T) {
	first := newHost(t, 11, nil)
	first.start(nil)
	second := newHost(t, 12, first)
	second.start(first)
	second.put("kept")
	if err := errors.Join(second.end(), first.end()); err != nil {
		t.Fatal(err)
	}
	// The server has another address, as after a move to another network.
	moved := second.config()
	moved.Address = "127.77.0.13"
	if err := Reset(t.Context(), moved); err != nil {
		t.Fatal(err)
	}
	second.start(nil)
	second.voters("node-12")
	second.get("kept")
	eventually(t, "the member's address to be told", func() error {
		members := membersOf(second.member.server.Load().Cluster().Members())
		if want := second.member.peerURL(); members[0].url != want {
			return fmt.Errorf("it is %s, want %s", members[0].url, want)
		}
		return nil
	})

	if err := Reset(t.Context(), Config{Dir: filepath.Join(t.TempDir(), "none")}); err == nil || !strings.Contains(err.Error(), "no etcd member") {
		t.Errorf("reset nothing: %v", err)
	}
}

func TestDefragment(t *testing.T) {
	h := newHost(t, 21, nil)
	h.start(nil)
	client := h.member.Endpoint().NewClient()
	defer client.Close()
	for i := range 20 {
		if _, err := client.Put(t.Context(), "large", strings.Repeat(fmt.Sprint(i), 1<<19)); err != nil {
			t.Fatal(err)
		}
	}
	answer, err := client.Put(t.Context(), "large", "small")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Compact(t.Context(), answer.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	backend := h.member.server.Load().Backend()
	before := backend.Size()
	if err := h.member.defragmentAlone(t.Context(), client.Client); err != nil {
		t.Fatal(err)
	}
	if after := backend.Size(); after > before/2 {
		t.Errorf("%d bytes became %d", before, after)
	}
	h.get("large")
	if kept, err := client.Client.Get(t.Context(), defragmentKey); err != nil || len(kept.Kvs) != 0 {
		t.Errorf("the key is left: %v, %v", kept, err)
	}
}

// The API server fills its caches by one stream of each kind of objects. Without a
// connection too, all parts have the same revision.
func TestStream(t *testing.T) {
	h := newHost(t, 22, nil)
	h.start(nil)
	client := h.member.Endpoint().NewClient()
	defer client.Close()
	const keys = 100
	var last int64
	for i := range keys {
		answer, err := client.Put(t.Context(), fmt.Sprintf("/stream/%03d", i), strings.Repeat("x", 1<<16))
		if err != nil {
			t.Fatal(err)
		}
		last = answer.Header.Revision
	}
	parts, err := client.GetStream(t.Context(), "/stream/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	first := <-parts
	h.put("/stream/later")
	found := len(first.Kvs)
	var revision int64
	for part := range parts {
		if err := part.Err(); err != nil {
			t.Fatal(err)
		}
		found, revision = found+len(part.Kvs), part.Header.GetRevision()
	}
	if len(first.Kvs) >= keys || found != keys || revision != last {
		t.Errorf("got %d keys, and %d in all, at revision %d, want %d at %d", len(first.Kvs), found, revision, keys, last)
	}
	if parts, err = client.GetStream(t.Context(), "/stream/", clientv3.WithPrefix(), clientv3.WithRev(last+100)); err != nil {
		t.Fatal(err)
	}
	if refused := <-parts; refused.Err() == nil {
		t.Error("a stream of a future revision has no error")
	}
}

// TestFatal wants an error that says what the user can do, where etcd itself
// would end the process.
func TestFatal(t *testing.T) {
	m := New(Config{})
	logger := newLogger(m.log, m.fail)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		logger.Fatal("failed to save Raft hard state and entries", zap.Error(syscall.ENOSPC))
	}()
	<-ended
	err := <-m.failed
	if !errors.As(err, &fatalError{}) || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "free some space") {
		t.Errorf("got %v", err)
	}
}

// TestStopWithoutQuorum stops a member that waits for another one.
func TestStopWithoutQuorum(t *testing.T) {
	first := newHost(t, 31, nil)
	first.start(nil)
	second := newHost(t, 32, first)
	second.start(first)
	if err := errors.Join(first.end(), second.end()); err != nil {
		t.Fatal(err)
	}
	member := New(second.config())
	member.clientURL = "https://127.77.0.32:2379"
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- member.Run(ctx, func() { t.Error("it is ready") }) }()
	eventually(t, "the member to run", func() error {
		if member.server.Load() == nil {
			return errors.New("it does not")
		}
		return nil
	})
	_, err := member.Admit(t.Context(), join.MemberRequest{Name: "node-33-0badcafe", PeerURL: "https://127.77.0.33:2380"})
	if !errors.Is(err, join.ErrNotNow) || !strings.Contains(err.Error(), "of 2 members with a vote, 1 answer and 2 are needed") {
		t.Errorf("without a quorum: got error %v, want how many members answer", err)
	}
	if fault := member.Health(t.Context()).Fault; !strings.Contains(fault, "of 2 members with a vote, 1 answer and 2 are needed. No answer from node-31") {
		t.Errorf("without a quorum: got fault %q, want how many members answer", fault)
	}
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("the member did not stop in time")
	}
}
