package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	etcdkubernetes "go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/backup/chain"
	"github.com/kedge-dev/kedge/internal/datastore/backup/place"
	"github.com/kedge-dev/kedge/internal/datastore/backup/rebuild"
	"github.com/kedge-dev/kedge/internal/datastore/backup/records"
	"github.com/kedge-dev/kedge/internal/datastore/backup/volumes"
	"github.com/kedge-dev/kedge/internal/datastore/sqlite"
	"github.com/kedge-dev/kedge/internal/testutil/etcd"
)

// cluster is a datastore with somebody who writes and remembers, and a backup of it.
type cluster struct {
	t       *testing.T
	connect func() (*clientv3.Client, error)
	client  *etcdkubernetes.Client
	leases  bool

	place    place.Place
	key      *chain.RecoveryKey
	api      *fake.Clientset
	interval time.Duration
	keep     volumes.Keep
	now      func() time.Time
	verify   time.Duration

	// last is the revision of the last change of an object.
	last int64

	mu    sync.Mutex
	files []records.File
}

// newCluster returns one whose datastore runs until the test ends.
func newCluster(t *testing.T, endpoint datastore.Endpoint, leases bool) *cluster {
	t.Helper()
	c := &cluster{t: t, leases: leases, interval: 20 * time.Millisecond, keep: volumes.Keep{All: 7 * day, Daily: 90 * day}, now: time.Now}
	c.connect = func() (*clientv3.Client, error) { return datastore.NewClient(endpoint) }
	client, err := c.connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	c.client = &etcdkubernetes.Client{Client: client}
	c.client.Kubernetes = c.client
	c.place, err = place.Open(t.Context(), "file://"+filepath.Join(t.TempDir(), "backup"), config.S3{}, nil)
	if err == nil {
		err = c.place.Prepare(t.Context())
	}
	if err == nil {
		c.key, err = chain.NewRecoveryKey()
	}
	if err != nil {
		t.Fatal(err)
	}
	c.appoint(1, nil)
	return c
}

// appoint makes the cluster the writer.
func (c *cluster) appoint(number int, after *chain.Entry) {
	c.t.Helper()
	writer, err := c.key.Appoint(number, after, time.Now())
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.chain().Admit(c.t.Context(), writer); err != nil {
		c.t.Fatal(err)
	}
	c.api = fake.NewClientset()
	if err := KeepWriter(c.t.Context(), c.api, writer); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) chain() *chain.Chain {
	c.t.Helper()
	found, err := chain.Open(c.t.Context(), c.place, c.key.Root())
	if err != nil {
		c.t.Fatal(err)
	}
	return found
}

// start runs a backup. stop ends it in order.
func (c *cluster) start() (b *Backup, stop func()) {
	b = New(Config{
		Open:     func(context.Context, kubernetes.Interface) (place.Place, error) { return c.place, nil },
		Location: c.place.String(), Interval: c.interval, Keep: c.keep, Verify: c.verify, Folder: c.t.TempDir(), Connect: c.connect, Leases: c.leases, Now: c.now,
		Files: func() ([]records.File, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			return slices.Clone(c.files), nil
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		b.run(ctx, c.api)
		close(done)
	}()
	stop = func() {
		cancel()
		<-done
	}
	c.t.Cleanup(stop)
	return b, stop
}

// log returns the backup, for somebody who has the key.
func (c *cluster) log() *rebuild.Log { return &rebuild.Log{Chain: c.chain(), Open: c.key.Open} }

// load returns the state of a point.
func (c *cluster) load(at rebuild.At) (*rebuild.State, error) {
	log := c.log()
	point, err := log.Find(c.t.Context(), at)
	if err != nil {
		return nil, err
	}
	state, err := log.Load(c.t.Context(), point, c.t.TempDir(), nil)
	if err == nil {
		c.t.Cleanup(func() { state.Close() })
	}
	return state, err
}

// contents is a state by names, each with revision and hash.
type contents map[string]string

func note(kv *mvccpb.KeyValue) string {
	sum := sha256.Sum256(kv.Value)
	return fmt.Sprintf("created %d changed %d %s", kv.CreateRevision, kv.ModRevision, hex.EncodeToString(sum[:8]))
}

func (o contents) apply(event *mvccpb.Event) {
	if event.Type == mvccpb.Event_DELETE {
		delete(o, string(event.Kv.Key))
	} else {
		o[string(event.Kv.Key)] = note(event.Kv)
	}
}

// recorder remembers every state that there was, as a client sees it.
type recorder struct {
	mu     sync.Mutex
	states map[int64]contents
	last   int64
}

func (c *cluster) record() *recorder {
	r := &recorder{states: map[int64]contents{}}
	changes := c.client.Watch(c.t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithRev(1))
	go func() {
		now := contents{}
		for answer := range changes {
			r.mu.Lock()
			for _, event := range answer.Events {
				now.apply((*mvccpb.Event)(event))
				r.last = event.Kv.ModRevision
				r.states[r.last] = maps.Clone(now)
			}
			r.mu.Unlock()
		}
	}()
	return r
}

func (r *recorder) await(t *testing.T, revision int64) {
	t.Helper()
	eventually(t, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.last < revision {
			return fmt.Errorf("the recorder is at %d, not at %d", r.last, revision)
		}
		return nil
	})
}

func eventually(t *testing.T, try func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	t.Fatal(err)
}

// put writes an object, which may be there.
func (c *cluster) put(name, value string) (revision int64) {
	c.t.Helper()
	there, err := c.client.Client.Get(c.t.Context(), name)
	if err != nil {
		c.t.Fatal(err)
	}
	expected := int64(0)
	if len(there.Kvs) > 0 {
		expected = there.Kvs[0].ModRevision
	}
	answer, err := c.client.OptimisticPut(c.t.Context(), name, []byte(value), expected, etcdkubernetes.PutOptions{GetOnFailure: true})
	if err != nil || !answer.Succeeded {
		c.t.Fatalf("put %s: %v %v", name, answer.Succeeded, err)
	}
	c.last = answer.Revision
	return answer.Revision
}

// remove deletes an object if it is there.
func (c *cluster) remove(name string) {
	c.t.Helper()
	there, err := c.client.Client.Get(c.t.Context(), name)
	if err != nil {
		c.t.Fatal(err)
	}
	if len(there.Kvs) == 0 {
		return
	}
	answer, err := c.client.OptimisticDelete(c.t.Context(), name, there.Kvs[0].ModRevision, etcdkubernetes.DeleteOptions{GetOnFailure: true})
	if err != nil || !answer.Succeeded {
		c.t.Fatalf("delete %s: %v %v", name, answer.Succeeded, err)
	}
	c.last = answer.Revision
}

const day = 24 * time.Hour

// eachDatastore runs a test with SQLite and with etcd.
func eachDatastore(t *testing.T, run func(*testing.T, *cluster)) {
	t.Run("sqlite", func(t *testing.T) {
		folder := t.TempDir()
		d := sqlite.New(sqlite.Config{Dir: filepath.Join(folder, "db"), Socket: filepath.Join(folder, "s")})
		ctx, cancel := context.WithCancel(context.Background())
		ready, done := make(chan struct{}), make(chan error, 1)
		go func() { done <- d.Run(ctx, func() { close(ready) }) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		<-ready
		run(t, newCluster(t, d.Endpoint(), false))
	})
	t.Run("etcd", func(t *testing.T) {
		run(t, newCluster(t, datastore.Endpoint{URL: etcd.Start(t)}, true))
	})
}

// TestEachRevision writes at random while backups begin and end, and wants each state that there was back from the backup, exactly.
func TestEachRevision(t *testing.T) {
	eachDatastore(t, func(t *testing.T, c *cluster) {
		recorder := c.record()
		random := rand.New(rand.NewPCG(1, 2))
		var last int64
		for round := range 5 {
			b, stop := c.start()
			for range 60 {
				name := fmt.Sprintf("%spods/ns/p%d", objects, random.IntN(20))
				if random.IntN(3) == 0 {
					c.remove(name)
				} else {
					c.put(name, strings.Repeat(fmt.Sprint(random.Int()), 1+random.IntN(200)))
				}
				time.Sleep(time.Duration(random.IntN(3)) * time.Millisecond)
			}
			last = c.put(objects+"configmaps/ns/round", fmt.Sprint(round))
			if round == 4 {
				c.written(b)
				c.reached()
			}
			stop()
		}
		recorder.await(t, last)
		newest, err := c.load(rebuild.At{})
		if err != nil {
			t.Fatal(err)
		}
		if newest.Revision != last {
			t.Errorf("the newest state is of revision %d, want %d", newest.Revision, last)
		}
		for revision := newest.Base.Revision; revision <= last; revision++ {
			c.compare(recorder, revision)
		}
		if _, err := c.load(rebuild.At{Revision: last + 1}); err == nil {
			t.Error("a revision that is not in the backup was found")
		}
	})
}

// TestLarge writes more at once than an entry can have.
func TestLarge(t *testing.T) {
	eachDatastore(t, func(t *testing.T, c *cluster) {
		c.interval = 300 * time.Millisecond
		recorder := c.record()
		b, stop := c.start()
		noise := make([]byte, 500<<10)
		for i := range 30 {
			for j := range noise {
				noise[j] = byte(rand.Uint32())
			}
			c.put(fmt.Sprintf("%sconfigmaps/ns/c%d", objects, i), string(noise))
		}
		c.written(b)
		c.reached()
		stop()
		recorder.await(t, c.last)
		for _, revision := range []int64{c.last, c.last - 1, c.last - 15, c.last - 29} {
			c.compare(recorder, revision)
		}
	})
}

// compare loads the state of a revision. The recorder must have seen the same objects at that revision.
func (c *cluster) compare(r *recorder, revision int64) {
	c.t.Helper()
	state, err := c.load(rebuild.At{Revision: revision})
	if err != nil {
		c.t.Fatalf("revision %d: %v", revision, err)
	}
	got := contents{}
	before := int64(0)
	if _, _, err := state.Export(c.t.Context(), func(e *mvccpb.Event) error {
		if e.Kv.ModRevision <= before {
			c.t.Errorf("revision %d comes after %d", e.Kv.ModRevision, before)
		}
		before = e.Kv.ModRevision
		got.apply(e)
		return nil
	}); err != nil {
		c.t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	want := r.states[revision]
	for at := revision; want == nil && at > 0; at-- { // a revision without a change of an object
		want = r.states[at]
	}
	if !maps.Equal(got, want) {
		c.t.Errorf("at revision %d the backup has\n%v\nwant\n%v", revision, got, want)
	}
}

// TestTimes wants the states of the times between writes.
func TestTimes(t *testing.T) {
	eachDatastore(t, func(t *testing.T, c *cluster) {
		b, _ := c.start()
		name := objects + "pods/ns/p"
		var times []time.Time
		for i := range 5 {
			revision := c.put(name, fmt.Sprint(i))
			eventually(t, func() error {
				if s := b.Status(); s.Revision < revision {
					return fmt.Errorf("the backup is at %d, not at %d: %s", s.Revision, revision, s.Fault)
				}
				return nil
			})
			times = append(times, time.Now())
			time.Sleep(10 * time.Millisecond)
		}
		for i, at := range times {
			state, err := c.load(rebuild.At{Time: at})
			if err != nil {
				t.Fatal(err)
			}
			_, _, _ = state.Export(t.Context(), func(e *mvccpb.Event) error {
				if string(e.Kv.Key) == name && string(e.Kv.Value) != fmt.Sprint(i) {
					t.Errorf("at %s the backup has %s, want %d", at, e.Kv.Value, i)
				}
				return nil
			})
		}
	})
}

// TestFiles wants files back, and not those that are gone.
func TestFiles(t *testing.T) {
	eachDatastore(t, func(t *testing.T, c *cluster) {
		set := func(files ...records.File) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.files = files
		}
		set(records.File{Name: "a", Content: []byte("1")}, records.File{Name: "b", Mode: 0o600, Content: []byte{0xff, 0}})
		b, stop := c.start()
		c.put(objects+"pods/ns/p", "1")
		c.written(b)
		set(records.File{Name: "b", Mode: 0o600, Content: []byte("2")}, records.File{Name: "c"})
		c.put(objects+"pods/ns/p", "2")
		c.written(b)
		stop()
		state, err := c.load(rebuild.At{})
		if err != nil {
			t.Fatal(err)
		}
		if names := slices.Sorted(maps.Keys(state.Files)); !slices.Equal(names, []string{"b", "c"}) || string(state.Files["b"].Content) != "2" || state.Files["b"].Mode != 0o600 {
			t.Errorf("the backup has the files %v", state.Files)
		}
	})
}

// TestSilence writes nothing while nothing changes but renewals of Leases.
func TestSilence(t *testing.T) {
	eachDatastore(t, func(t *testing.T, c *cluster) {
		b, _ := c.start()
		lease := objects + "leases/kube-node-lease/pi"
		revision := c.put(lease, "0")
		eventually(t, func() error {
			if b.Status().Revision < revision {
				return errors.New("the new Lease is not written")
			}
			return nil
		})
		before, err := c.chain().Tail(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			c.put(lease, fmt.Sprint(i))
			c.put(objects+"masterleases/10.0.0.1", fmt.Sprint(i))
		}
		time.Sleep(5 * c.interval)
		if after, err := c.chain().Tail(t.Context()); err != nil || after.Number != before.Number {
			t.Errorf("the log has %d entries, %v, want %d", after.Number, err, before.Number)
		}
	})
}

// TestOldMachine refuses to write when the cluster was restored elsewhere, and when two clusters use one place.
func TestOldMachine(t *testing.T) {
	eachDatastore(t, func(t *testing.T, c *cluster) {
		b, stop := c.start()
		c.put(objects+"pods/ns/p", "1")
		c.written(b)
		stop()
		old := c.api
		tail, err := c.chain().Tail(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c.appoint(2, tail)
		c.api = old
		b, stop = c.start()
		c.refused(b, "this cluster was restored on another machine")
		stop()

		c.api = nil
		c.key, _ = chain.NewRecoveryKey()
		other, _ := c.key.Appoint(1, nil, time.Now())
		c.api = fake.NewClientset()
		if err := KeepWriter(t.Context(), c.api, other); err != nil {
			t.Fatal(err)
		}
		b, _ = c.start()
		c.refused(b, "another recovery key")
	})
}

// written waits until all is in the backup.
func (c *cluster) written(b *Backup) {
	c.t.Helper()
	eventually(c.t, func() error {
		if s := b.Status(); s.Revision < c.last || s.Fault != "" {
			return fmt.Errorf("the backup is at %d, not at %d: %s", s.Revision, c.last, s.Fault)
		}
		return nil
	})
}

// reached waits until each revision can be restored by its number. After a base, its own one can, and those before it only when the changes that
// led to it are written too.
func (c *cluster) reached() {
	c.t.Helper()
	eventually(c.t, func() error {
		tail, err := c.chain().Tail(c.t.Context())
		if err == nil && tail.To < c.last {
			err = fmt.Errorf("the backup has all changes up to %d, not up to %d", tail.To, c.last)
		}
		return err
	})
}

// refused waits until the backup says why it does not write.
func (c *cluster) refused(b *Backup, why string) {
	c.t.Helper()
	eventually(c.t, func() error {
		if fault := b.Status().Fault; !strings.Contains(fault, why) {
			return fmt.Errorf("the backup says %q, want %q", fault, why)
		}
		return nil
	})
}

// TestTampering changes each file of the place in turn, and wants each change to be noticed.
func TestTampering(t *testing.T) {
	eachDatastore(t, func(t *testing.T, c *cluster) {
		b, stop := c.start()
		for i := range 4 {
			c.put(objects+"pods/ns/p", fmt.Sprint(i))
			c.written(b)
		}
		stop()
		whole, err := c.load(rebuild.At{})
		if err != nil {
			t.Fatal(err)
		}
		root := strings.TrimPrefix(c.place.String(), "file://")
		var files []string
		_ = filepath.WalkDir(root, func(path string, entry os.DirEntry, _ error) error {
			if entry.Type().IsRegular() && entry.Name() != "kedge-backup" {
				files = append(files, path)
			}
			return nil
		})
		if len(files) < 5 {
			t.Fatalf("the backup has only %v", files)
		}
		for i, path := range files {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			other, err := os.ReadFile(files[(i+1)%len(files)])
			if err != nil {
				t.Fatal(err)
			}
			flipped := slices.Clone(text)
			flipped[rand.IntN(len(flipped))] ^= 0x20
			for what, content := range map[string][]byte{"cut": text[:len(text)-1], "flipped": flipped, "swapped": other, "emptied": {}, "longer": append(slices.Clone(text), 'x')} {
				if err := os.WriteFile(path, content, 0o600); err != nil {
					t.Fatal(err)
				}
				c.noticed(fmt.Sprintf("%s %s", what, strings.TrimPrefix(path, root)), whole)
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			c.noticed("removed "+strings.TrimPrefix(path, root), whole)
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if state, err := c.load(rebuild.At{}); err != nil || state.Revision != whole.Revision {
			t.Errorf("the mended backup: %v", err)
		}
	})
}

// noticed fails the test if the changed backup loads as if it were whole. After a removal, an older state may load: the newest files can be
// removed unnoticed.
func (c *cluster) noticed(what string, whole *rebuild.State) {
	c.t.Helper()
	found, err := chain.Open(c.t.Context(), c.place, c.key.Root())
	if err != nil {
		return
	}
	log := &rebuild.Log{Chain: found, Open: c.key.Open}
	point, err := log.Find(c.t.Context(), rebuild.At{})
	if err != nil {
		return
	}
	state, err := log.Load(c.t.Context(), point, c.t.TempDir(), nil)
	if err != nil {
		return
	}
	defer state.Close()
	// Without its newest files, nobody can know that the backup had them.
	if strings.HasPrefix(what, "removed") && state.Revision < whole.Revision {
		return
	}
	c.t.Errorf("%s: nobody has noticed", what)
}

// TestKeep removes what is too old, and keeps one state of each day.
func TestKeep(t *testing.T) {
	eachDatastore(t, func(t *testing.T, c *cluster) {
		var mu sync.Mutex
		clock := time.Now()
		c.now = func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			return clock
		}
		c.keep = volumes.Keep{All: 2 * day, Daily: 7 * day}
		b, _ := c.start()
		for i := range 40 { // ten days of four changes
			c.put(objects+"pods/ns/p", fmt.Sprint(i))
			c.written(b)
			mu.Lock()
			clock = clock.Add(6 * time.Hour)
			mu.Unlock()
		}
		c.put(objects+"pods/ns/p", "last")
		c.written(b)
		for ago, kept := range map[time.Duration]bool{day: true, 36 * time.Hour: true, 4*day + time.Hour: true, 9 * day: false} {
			state, err := c.load(rebuild.At{Time: c.now().Add(-ago)})
			if kept != (err == nil) {
				t.Errorf("%s ago: %v", ago, err)
			}
			if err == nil && c.now().Sub(state.Time) > ago+day+6*time.Hour {
				t.Errorf("%s ago: the state is of %s", ago, c.now().Sub(state.Time))
			}
		}
	})
}

// TestThief has all files of the place, and what the cluster keeps in order to write, and reads nothing.
func TestThief(t *testing.T) {
	eachDatastore(t, func(t *testing.T, c *cluster) {
		c.files = []records.File{{Name: "token", Content: []byte("hush-hush-token")}}
		b, stop := c.start()
		c.put(objects+"secrets/ns/s", "hush-hush-secret")
		c.written(b)
		c.put(objects+"secrets/ns/s", "hush-hush-again")
		c.written(b)
		stop()
		writer, err := readWriter(t.Context(), c.api)
		if err != nil {
			t.Fatal(err)
		}
		files := 0
		err = filepath.WalkDir(strings.TrimPrefix(c.place.String(), "file://"), func(path string, entry os.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			files++
			text, err := os.ReadFile(path)
			for _, word := range []string{"hush", "secrets/ns", c.key.String()} {
				if strings.Contains(string(text), word) {
					t.Errorf("%s contains %s", path, word)
				}
			}
			return err
		})
		if err != nil || files < 4 {
			t.Fatalf("the backup has %d files, %v", files, err)
		}
		secret, err := json.Marshal(writer)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(secret), "AGE-SECRET-KEY") {
			t.Error("the cluster keeps the recovery key")
		}
		// The key with which the cluster signs opens nothing.
		log := c.log()
		if _, err := chain.ParseRecoveryKey(writer.Private); err == nil {
			t.Error("the writer's key is a recovery key")
		}
		other, err := chain.NewRecoveryKey()
		if err != nil {
			t.Fatal(err)
		}
		log.Open = other.Open
		point, err := log.Find(t.Context(), rebuild.At{})
		if err != nil {
			t.Fatal(err)
		}
		if state, err := log.Load(t.Context(), point, t.TempDir(), nil); err == nil {
			state.Close()
			t.Error("another key opens the backup")
		}
	})
}
