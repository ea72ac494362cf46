package sqlite

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/k3s-io/kine/pkg/server"
)

// started runs a backend over the database in folder, which is made if it does
// not exist. stop ends it in order; crash leaves the files as a kill would.
type started struct {
	*Backend
	folder string
	cancel context.CancelFunc
}

func start(t testing.TB, folder string) *started {
	t.Helper()
	file := folder + "/state.db"
	if _, err := prepare(context.Background(), file, "v1.36.3"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &started{newBackend(file, newFaults(file)), folder, cancel}
	if err := s.Start(ctx); err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	return s
}

func (s *started) stop() {
	if s.cancel != nil {
		s.cancel()
		s.wait()
		s.cancel = nil
	}
}

// model is what the backend must equal: all keys at all revisions.
type model struct {
	history []*server.Event
}

func (m *model) at(revision int64) map[string]*server.KeyValue {
	keys := map[string]*server.KeyValue{}
	for _, e := range m.history {
		if e.KV.ModRevision > revision {
			break
		}
		if keys[e.KV.Key] = e.KV; e.Delete {
			delete(keys, e.KV.Key)
		}
	}
	return keys
}

func keyText(kv *server.KeyValue) string {
	if kv == nil {
		return "none"
	}
	return fmt.Sprintf("%s=%q created %d changed %d lease %d", kv.Key, kv.Value, kv.CreateRevision, kv.ModRevision, kv.Lease)
}

func eventText(e *server.Event) string {
	if e.Delete {
		return fmt.Sprintf("%d deletes %s, was %s", e.KV.ModRevision, e.KV.Key, keyText(e.PrevKV))
	}
	return fmt.Sprintf("create %v %s, was %s", e.Create, keyText(e.KV), keyText(e.PrevKV))
}

// check compares a range of the backend, at a revision, with the model.
func (m *model) check(t *testing.T, b *Backend, key, end string, limit, revision int64) {
	t.Helper()
	ctx := context.Background()
	at := revision
	if at == 0 {
		at = b.state.current()
	}
	keys := m.at(at)
	var want []string
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		if name >= key && name < end {
			want = append(want, keyText(keys[name]))
		}
	}
	all := len(want)
	if limit > 0 {
		want = want[:min(len(want), int(limit))]
	}
	_, kvs, err := b.List(ctx, key, end, limit, revision, false)
	var got []string
	for _, kv := range kvs {
		got = append(got, keyText(kv))
	}
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("list of %s at %d, limit %d: %v\ngot\n%s\nwant\n%s", key, revision, limit, err, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if _, count, err := b.Count(ctx, key, end, revision); err != nil || count != int64(all) {
		t.Fatalf("count of %s at %d: %d %v, want %d", key, revision, count, err, all)
	}
	if len(kvs) > 0 {
		some := kvs[rand.IntN(len(kvs))]
		if _, kv, err := b.Get(ctx, some.Key, revision, false); err != nil || keyText(kv) != keyText(some) {
			t.Fatalf("get at %d: %s %v, want %s", revision, keyText(kv), err, keyText(some))
		}
	}
}

// observer collects the events of one watch, until the backend ends.
type observer struct {
	key, end string
	from     int64
	events   <-chan server.EventBatch
	running  sync.WaitGroup
	got      []*server.Event
}

func observe(b *Backend, key, end string, from int64) *observer {
	o := &observer{key: key, end: end, from: from, events: b.WatchRange(context.Background(), key, end, from).Eventc}
	o.running.Go(func() {
		for batch := range o.events {
			o.got = append(o.got, batch.Events...)
		}
	})
	return o
}

// keepUp waits for the goroutine of the observer, which a busy machine may not run for a while. The backend ends a
// watch that lags far behind.
func (o *observer) keepUp() {
	for len(o.events) > 4 {
		time.Sleep(time.Millisecond)
	}
}

// check wants every event of the model once, and in order.
func (o *observer) check(t *testing.T, m *model) {
	t.Helper()
	o.running.Wait()
	var want, got []string
	for _, e := range m.history {
		if e.KV.ModRevision >= o.from && e.InRange(o.key, o.end) {
			want = append(want, eventText(e))
		}
	}
	for _, e := range o.got {
		got = append(got, eventText(e))
	}
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Errorf("the watch of %s from %d, event %d of %d and %d: got\n%s\nwant\n%s", o.key, o.from, i, len(got), len(want),
				slices.Concat(got[min(i, len(got)):], []string{"none"})[0], slices.Concat(want[min(i, len(want)):], []string{"none"})[0])
			return
		}
	}
}

// The test makes random changes of all kinds, reads and watches at random
// revisions, compactions and orderly restarts. Everything must agree with the
// model.
func TestModel(t *testing.T) {
	ctx := context.Background()
	ranges := [][2]string{
		{"/registry/pods/", "/registry/pods0"}, {eventPrefix, "/registry/events0"},
		{leasePrefix, "/registry/leases0"}, {"/registry/masterleases/", "/registry/masterleases0"}, {"/registry/", "/registry0"},
	}
	b := start(t, t.TempDir())
	first := b.state.current()
	_, health, _ := b.Get(ctx, server.HealthKey, 0, false)
	m := &model{history: []*server.Event{{Create: true, KV: health}}}
	compacted := first
	// below is the last revision that cannot be read for some range. Of the
	// volatile versions from before a restart only the last is left, as after a
	// compaction.
	below := func(some [2]string) int64 {
		if some == ranges[0] {
			return max(first, b.state.compacted)
		}
		return compacted
	}
	var observers []*observer
	do := func(key string) {
		before := m.at(b.state.current())[key]
		value, lease := []byte(fmt.Sprint(rand.IntN(1000))), int64(0)
		switch {
		case strings.HasPrefix(key, leasePrefix):
			value = leaseValue(fmt.Sprint(rand.IntN(8)/7), rand.IntN(100))
		case strings.HasPrefix(key, "/registry/masterleases/"):
			lease = 50
		case strings.HasPrefix(key, eventPrefix):
			lease = 3600
		}
		event := &server.Event{PrevKV: before, KV: &server.KeyValue{Key: key, Value: value, Lease: lease}}
		var revision int64
		var err error
		stale := rand.IntN(10) == 0
		ok := true
		switch {
		case before == nil:
			event.Create = true
			revision, err = b.Create(ctx, key, value, lease)
			event.KV.CreateRevision = revision
		case stale:
			var kv *server.KeyValue
			if revision, kv, ok, err = b.Update(ctx, key, value, before.ModRevision-1, lease); keyText(kv) != keyText(before) {
				t.Fatalf("a conflict answers %s, want %s", keyText(kv), keyText(before))
			}
			if _, again := b.Create(ctx, key, value, lease); again != server.ErrKeyExists {
				t.Fatalf("create a key that exists: got error %v, want %v", again, server.ErrKeyExists)
			}
		case rand.IntN(5) == 0:
			event.Delete = true
			event.KV = &server.KeyValue{Key: key}
			revision, _, ok, err = b.Delete(ctx, key, before.ModRevision)
		default:
			revision, _, ok, err = b.Update(ctx, key, value, before.ModRevision, lease)
			event.KV.CreateRevision = before.CreateRevision
		}
		if err != nil || ok == (stale && before != nil) {
			t.Fatalf("update %s: got success %t, %v", key, ok, err)
		}
		if ok {
			if event.KV.ModRevision = revision; len(m.history) > 0 && revision <= m.history[len(m.history)-1].KV.ModRevision {
				t.Fatalf("revision %d again", revision)
			}
			m.history = append(m.history, event)
		}
	}
	for step := range 6000 {
		r := ranges[rand.IntN(4)]
		do(fmt.Sprintf("%s%d", r[0], rand.IntN(12)))
		for _, o := range observers {
			o.keepUp()
		}
		current := b.state.current()
		some := ranges[rand.IntN(len(ranges))]
		switch rand.IntN(100) {
		case 0, 1, 2:
			m.check(t, b.Backend, some[0], some[1], int64(rand.IntN(6)), 0)
		case 3, 4, 5:
			m.check(t, b.Backend, some[0], some[1], int64(rand.IntN(6)), below(some)+rand.Int64N(current-below(some)+1))
		case 6:
			if from := below(some) + 1 + rand.Int64N(current-below(some)+1); len(observers) < 20 {
				observers = append(observers, observe(b.Backend, some[0], some[1], from))
			}
		case 7:
			if to := compacted + rand.Int64N(current-compacted+1); step%10 == 0 && to > b.state.compacted {
				if _, err := b.Compact(ctx, to); err != nil {
					t.Fatal(err)
				}
				done := b.state.compacted
				compacted = max(compacted, done)
				if done <= 1 {
					break
				}
				if _, _, err := b.List(ctx, some[0], some[1], 0, done-1, false); !errors.Is(err, server.ErrCompacted) {
					t.Fatalf("a list below the compaction: %v", err)
				}
				if result := b.WatchRange(ctx, some[0], some[1], done); result.CompactRevision != done {
					t.Fatalf("a watch below the compaction %d: %+v", done, result)
				}
			}
		case 8:
			if rand.IntN(10) > 0 {
				break
			}
			b.stop()
			for _, o := range observers {
				o.check(t, m)
			}
			b = start(t, b.folder)
			if b.state.current() != current {
				t.Fatalf("after a restart: got revision %d, want %d", b.state.current(), current)
			}
			compacted, observers = current, nil
			m.check(t, b.Backend, "/registry/", "/registry0", 0, 0)
		}
	}
	b.stop()
	for _, o := range observers {
		o.check(t, m)
	}
}
