package robustness

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/robustness/served"
)

// keptRounds is how often TestWhatSQLiteKeeps ends the datastore.
const keptRounds = 6

// kept is the model of what SQLite keeps (docs/datastores.md). One client makes one change after the
// other, so the model knows the order.
type kept struct {
	// durable has the keys that survive everything.
	durable map[string]string
	// deferred are changes of Events that are not known to be on the disk, in order. After a crash, the
	// first ones are there, and the others are not.
	deferred []keptChange
	// renewed has Leases that were renewed. A crash undoes the renewals, and an orderly stop keeps them.
	renewed map[string]string
	// holders has the holder of each Lease.
	holders map[string]string
	// seen is the last revision that the client has seen.
	seen int64
	// revisions has the revision of each present key.
	revisions map[string]int64
	// open is the change that was not acknowledged before a crash, if any.
	open *keptChange
}

// keptChange is a change of a key. Its value is empty if it is a deletion.
type keptChange struct {
	key, value string
	kind       keptKind
}

type keptKind int

const (
	durable keptKind = iota
	deferred
	renewal
)

// apply makes a change in keys.
func (c keptChange) apply(keys map[string]string) {
	if c.value == "" {
		delete(keys, c.key)
	} else {
		keys[c.key] = c.value
	}
}

// acknowledged notes a change.
func (k *kept) acknowledged(c keptChange, revision int64) {
	k.seen, k.revisions[c.key] = revision, revision
	switch c.kind {
	case durable:
		k.flushed()
		c.apply(k.durable)
		delete(k.renewed, c.key)
	case deferred:
		k.deferred = append(k.deferred, c)
	case renewal:
		k.renewed[c.key] = c.value
	}
	if c.value == "" {
		delete(k.revisions, c.key)
	}
}

// flushed notes that the deferred changes are on the disk.
func (k *kept) flushed() {
	for _, c := range k.deferred {
		c.apply(k.durable)
	}
	k.deferred = nil
}

// present returns what a reader sees.
func (k *kept) present() map[string]string {
	keys := maps.Clone(k.durable)
	for _, c := range k.deferred {
		c.apply(keys)
	}
	maps.Copy(keys, k.renewed)
	return keys
}

// afterCrash returns what a crash may leave.
func (k *kept) afterCrash() []map[string]string {
	keys := maps.Clone(k.durable)
	possible := []map[string]string{maps.Clone(keys)}
	changes := k.deferred
	if k.open != nil && k.open.kind != renewal {
		changes = append(changes, *k.open)
	}
	for _, c := range changes {
		c.apply(keys)
		possible = append(possible, maps.Clone(keys))
	}
	return possible
}

// TestWhatSQLiteKeeps ends SQLite's datastore in every way. What it finds afterwards must be what the
// model says, and no client may take what is lost for what is there.
func TestWhatSQLiteKeeps(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	seed := number(t, "SEED", rand.Uint64N(1_000_000))
	random := rand.New(rand.NewPCG(seed, 1))
	network := harness.NewNetwork(t)
	s := newSQLiteOn(t, network.NewHost(t, "server"))
	k := &kept{durable: map[string]string{}, renewed: map[string]string{}, holders: map[string]string{}, revisions: map[string]int64{}}
	lost := 0
	for round := range keptRounds {
		client := connect(t, s.host)
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			k.write(client, random, round, stop)
		}()
		time.Sleep(time.Duration(200+seed*31%7*100) * time.Millisecond)
		way := []string{"an orderly stop", "kill -9", "a power cut"}[round%3]
		if way == "an orderly stop" {
			close(stop)
			<-done
			if k.open != nil {
				t.Fatalf("seed %d: a change failed before the stop: %v", seed, *k.open)
			}
			s.end(unix.SIGTERM)
		} else {
			if way == "kill -9" {
				s.end(unix.SIGKILL)
			} else {
				s.cutPower(nil)
			}
			<-done
		}
		client.Close()
		s.revive()
		lost += k.check(t, fmt.Sprintf("seed %d, %s", seed, way), connect(t, s.host), way == "an orderly stop")
	}
	t.Logf("seed %d: %d keys, of which crashes have undone %d changes", seed, len(k.durable), lost)
	if lost == 0 {
		t.Error("the crashes have undone nothing: the test shows nothing")
	}
}

// connect returns a client of the datastore on a host.
func connect(t *testing.T, host *harness.Host) *kubernetes.Client {
	t.Helper()
	client, err := kubernetes.New(clientv3.Config{
		Endpoints: []string{"http://127.0.0.1:" + served.SocketPort}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return host.DialContext(ctx, "tcp", address)
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// write makes changes until stop is closed or one fails.
func (k *kept) write(client *kubernetes.Client, random *rand.Rand, round int, stop <-chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	k.open = nil
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		c := k.next(random, fmt.Sprintf("%d-%d", round, i))
		var ok bool
		var revision int64
		var err error
		if c.value == "" {
			var answer kubernetes.DeleteResponse
			answer, err = client.Kubernetes.OptimisticDelete(ctx, c.key, k.revisions[c.key], kubernetes.DeleteOptions{GetOnFailure: true})
			ok, revision = answer.Succeeded, answer.Revision
		} else {
			var answer kubernetes.PutResponse
			answer, err = client.Kubernetes.OptimisticPut(ctx, c.key, []byte(c.value), k.revisions[c.key], kubernetes.PutOptions{GetOnFailure: true})
			ok, revision = answer.Succeeded, answer.Revision
		}
		if err != nil || !ok {
			k.open = &c
			return
		}
		k.acknowledged(c, revision)
	}
}

// next draws a change. name is unique.
func (k *kept) next(random *rand.Rand, name string) keptChange {
	lease := fmt.Sprint("/registry/leases/kube-node-lease/", random.IntN(3))
	switch draw := random.IntN(100); {
	case draw < 3:
		return keptChange{"/registry/pods/default/" + name, name, durable}
	case draw < 5, k.holders[lease] == "":
		k.holders[lease] = name
		return keptChange{lease, leaseOf(name, 0), durable}
	case draw < 50:
		return keptChange{lease, leaseOf(k.holders[lease], random.IntN(1_000_000)), renewal}
	case draw < 60:
		for key := range k.present() {
			if strings.HasPrefix(key, "/registry/events/") {
				return keptChange{key, map[bool]string{true: "", false: name}[draw < 55], deferred}
			}
		}
	}
	return keptChange{"/registry/events/default/" + name, name, deferred}
}

// leaseOf returns a Lease as the API server stores it.
func leaseOf(holder string, renewed int) string {
	at := meta.NewMicroTime(time.Unix(1_800_000_000+int64(renewed), 0))
	lease := &coordination.Lease{Spec: coordination.LeaseSpec{HolderIdentity: &holder, RenewTime: &at}}
	raw, err := lease.Marshal()
	if err != nil {
		panic(err)
	}
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}, Raw: raw}
	encoded, err := unknown.Marshal()
	if err != nil {
		panic(err)
	}
	return "k8s\x00" + string(encoded)
}

// check compares the datastore with the model after a stop or a crash. It returns how many changes
// are undone.
func (k *kept) check(t *testing.T, when string, client *kubernetes.Client, orderly bool) (undone int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	found, revisions := map[string]string{}, map[string]int64{}
	var now int64
	for _, kind := range []string{"pods", "events", "leases"} {
		list, err := client.Kubernetes.List(ctx, "/registry/"+kind+"/", kubernetes.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range list.Kvs {
			found[string(kv.Key)], revisions[string(kv.Key)] = string(kv.Value), kv.ModRevision
			if strings.HasPrefix(string(kv.Key), "/registry/leases/") && !orderly && kv.ModRevision <= k.seen {
				t.Errorf("%s: %s is at revision %d, which a client may have seen with a later value: %d was seen",
					when, kv.Key, kv.ModRevision, k.seen)
			}
		}
		now = list.Revision
	}
	possible := []map[string]string{k.present()}
	if !orderly {
		possible = k.afterCrash()
	}
	matches := -1
	for i, keys := range possible {
		if maps.Equal(keys, found) {
			matches = i
		}
	}
	if matches < 0 {
		t.Errorf("%s: %d keys are none of %d possible states: of the last one these differ: %v",
			when, len(found), len(possible), differences(possible[len(possible)-1], found))
	}
	if !orderly {
		undone = len(possible) - 1 - matches + len(k.renewed)
	}
	clear(k.holders) // a change of a holder may be undone, so the next change of each Lease is one again
	seen := k.seen
	k.durable, k.deferred, k.renewed, k.revisions, k.seen = found, nil, map[string]string{}, revisions, max(seen, now)
	k.wantWatch(ctx, t, when, client, orderly, seen, now)
	return undone
}

// wantWatch checks that a client that continues its watch after a crash has to list again, because
// what it saw may be undone. After an orderly stop it continues.
func (k *kept) wantWatch(ctx context.Context, t *testing.T, when string, client *kubernetes.Client, orderly bool, seen, now int64) {
	t.Helper()
	if orderly != (now == seen) {
		t.Errorf("%s: the revision is %d, and was %d", when, now, seen)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := client.Watch(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithRev(seen+1))
	c := keptChange{fmt.Sprint("/registry/pods/default/after-", now), "x", durable}
	made, err := client.Kubernetes.OptimisticPut(ctx, c.key, []byte(c.value), 0, kubernetes.PutOptions{})
	if err != nil || !made.Succeeded {
		t.Fatal(made, err)
	}
	answer := <-events
	switch err := answer.Err(); {
	case !orderly && err != rpctypes.ErrCompacted:
		t.Errorf("%s: a watch continues at revision %d: %v, %v", when, seen+1, answer.Events, err)
	case orderly && (err != nil || string(answer.Events[0].Kv.Key) != c.key):
		t.Errorf("%s: a watch from revision %d got %v, %v", when, seen+1, answer.Events, err)
	}
	k.acknowledged(c, made.Revision)
}

// differences names the keys in which two states differ.
func differences(want, got map[string]string) (keys []string) {
	for key, value := range want {
		if got[key] != value {
			keys = append(keys, key)
		}
	}
	for key := range got {
		if _, ok := want[key]; !ok {
			keys = append(keys, key)
		}
	}
	return keys
}
