package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// rows returns the number of rows in the database.
func (s *started) rows(t *testing.T) (count int64) {
	t.Helper()
	if err := s.reader.db.QueryRow(`SELECT COUNT(*) FROM kine`).Scan(&count); err != nil {
		t.Fatal(err)
	}
	return count
}

// renewTimes creates a Lease if it does not exist, and renews it that many times.
func renewTimes(t *testing.T, b *Backend, times int) (revision int64) {
	t.Helper()
	ctx := context.Background()
	key := leasePrefix + "kube-node-lease/a"
	_, kv, err := b.Get(ctx, key, 0, false)
	if err == nil && kv == nil {
		revision, err = b.Create(ctx, key, leaseValue("a", 0), 0)
	} else if err == nil {
		revision = kv.ModRevision
	}
	for i := range times {
		if err != nil {
			t.Fatal(err)
		}
		var ok bool
		if revision, _, ok, err = b.Update(ctx, key, leaseValue("a", i+1), revision, 0); !ok {
			t.Fatalf("renewal %d: %v", i, err)
		}
	}
	return revision
}

// Renewals do not reach the disk, except that revisions are reserved from time to
// time. The last renewal is written when kedge stops.
func TestRenewalsStayInMemory(t *testing.T) {
	b := start(t, t.TempDir())
	renewTimes(t, b.Backend, 1)
	wal := func() int64 {
		info, err := os.Stat(b.folder + "/state.db-wal")
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	rows, size := b.rows(t), wal()
	last := renewTimes(t, b.Backend, 2*reserveBlock+100)
	if now := b.rows(t); now != rows {
		t.Errorf("%d rows after the renewals, %d before", now, rows)
	}
	if grown := wal() - size; grown > 5*(4096+24) {
		t.Errorf("the log has grown by %d bytes", grown)
	}
	b.stop()
	b = start(t, b.folder)
	if now := b.rows(t); now != rows+1 || b.state.current() != last {
		t.Errorf("%d rows after a restart, %d before; revision %d, not %d", now, rows, b.state.current(), last)
	}
}

// Renewals do not accumulate in memory.
func TestCompactionOfMemory(t *testing.T) {
	b := start(t, t.TempDir())
	last := renewTimes(t, b.Backend, 300)
	if _, err := b.Compact(context.Background(), last-100); err != nil {
		t.Fatal(err)
	}
	if kept := len(b.state.memory[leasePrefix+"kube-node-lease/a"]); kept != 101 {
		t.Errorf("%d versions are kept", kept)
	}
	if _, _, err := b.Get(context.Background(), leasePrefix+"kube-node-lease/a", last-100, false); err != nil {
		t.Error(err)
	}
}

// Events are written together with the next write.
func TestEventsComeAlong(t *testing.T) {
	b := start(t, t.TempDir())
	ctx := context.Background()
	rows := b.rows(t)
	for i := range 10 {
		if _, err := b.Create(ctx, fmt.Sprintf("%s%d", eventPrefix, i), []byte("x"), 3600); err != nil {
			t.Fatal(err)
		}
	}
	if now := b.rows(t); now != rows {
		t.Errorf("%d rows, not %d", now, rows)
	}
	if _, err := b.Create(ctx, "/registry/pods/a", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	if now := b.rows(t); now != rows+11 || len(b.state.memory) != 0 {
		t.Errorf("%d rows, not %d; in memory %v", now, rows+11, b.state.memory)
	}
	for i := range maxPending {
		if _, err := b.Create(ctx, fmt.Sprintf("%smore/%d", eventPrefix, i), []byte("x"), 3600); err != nil {
			t.Fatal(err)
		}
	}
	renewTimes(t, b.Backend, 0) // a durable write, after which nothing is pending
	if now := b.rows(t); now != rows+12+maxPending {
		t.Errorf("%d rows, not %d", now, rows+12+maxPending)
	}
}

// Many clients change one key at the same revision. One succeeds, although all
// are in one transaction, and the others get the result of that one.
func TestConflictsInOneTransaction(t *testing.T) {
	b := start(t, t.TempDir())
	ctx := context.Background()
	for range 20 {
		revision, err := b.Create(ctx, "/registry/a", []byte("x"), 0)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		var mu sync.Mutex
		succeeded := map[bool][]int64{}
		for i := range 30 {
			all.Go(func() {
				_, kv, ok, err := b.Update(ctx, "/registry/a", fmt.Append(nil, i), revision, 0)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				succeeded[ok] = append(succeeded[ok], kv.ModRevision)
			})
		}
		all.Wait()
		if len(succeeded[true]) != 1 {
			t.Fatalf("%d succeeded", len(succeeded[true]))
		}
		for _, found := range succeeded[false] {
			if found != succeeded[true][0] {
				t.Fatalf("a conflict with revision %d, want %d", found, succeeded[true][0])
			}
		}
		if _, _, ok, err := b.Delete(ctx, "/registry/a", 0); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
}

// A change that is refused is answered with a value and a revision. The key must have
// this value at this revision, also if later changes of the same transaction replace it.
func TestRevisionsOfRefusals(t *testing.T) {
	b := start(t, t.TempDir())
	first, err := b.Create(context.Background(), "/registry/a", []byte("1"), 0)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(kind kind) *change { return &change{kind: kind, key: "/registry/a", revision: first - 1} }
	// The writer has nothing to do, so nothing else uses what a transaction reads.
	tx := &transaction{writer: b.writer, last: first, staged: map[string]version{}}
	err = tx.plan([]*change{
		refused(kindUpdate), refused(kindCreate), refused(kindRemove), {kind: kindUpdate, key: "/registry/none", revision: 1},
		{kind: kindUpdate, key: "/registry/a", value: []byte("2"), revision: first},
		refused(kindUpdate), refused(kindCreate), refused(kindRemove),
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range tx.outcomes {
		want := first
		if i >= 4 {
			want++
		}
		if o.revision != want || o.kv != nil && o.kv.ModRevision != want {
			t.Errorf("change %d is answered with revision %d and %+v, want %d", i, o.revision, o.kv, want)
		}
	}
}

func TestDeleteOfNothing(t *testing.T) {
	b := start(t, t.TempDir())
	for revision, want := range map[int64]bool{0: true, 1: false} {
		if _, kv, ok, err := b.Delete(context.Background(), "/registry/none", revision); kv != nil || ok != want || err != nil {
			t.Errorf("delete of nothing at %d: %v %v %v", revision, kv, ok, err)
		}
	}
}

// A lease begins anew at a restart, and then ends.
func TestLeaseEndsAfterRestart(t *testing.T) {
	b := start(t, t.TempDir())
	ctx := context.Background()
	revision, err := b.Create(ctx, "/registry/masterleases/a", []byte("1"), 1)
	if err != nil {
		t.Fatal(err)
	}
	if revision, _, _, err = b.Update(ctx, "/registry/masterleases/a", []byte("2"), revision, 1); err != nil {
		t.Fatal(err)
	}
	b.stop()
	b = start(t, b.folder)
	if _, kv, err := b.Get(ctx, "/registry/masterleases/a", 0, false); err != nil || kv == nil || string(kv.Value) != "2" {
		t.Fatalf("after a restart: got %v, %v, want the value 2", kv, err)
	}
	gone := (<-b.WatchRange(ctx, "/registry/masterleases/a", "", revision+1).Eventc).Events[0]
	if !gone.Delete || gone.PrevKV == nil || string(gone.PrevKV.Value) != "2" {
		t.Errorf("got %+v", gone)
	}
	b.stop()
	b = start(t, b.folder)
	if _, kv, err := b.Get(ctx, "/registry/masterleases/a", 0, false); err != nil || kv != nil {
		t.Errorf("got %v, %v, want the key still deleted", kv, err)
	}
}

// While the disk is full, Leases are renewed and watches continue. Changes that
// would accumulate in memory are refused in the end.
func TestRenewalsWhileDiskIsFull(t *testing.T) {
	if !privately(t) {
		return
	}
	b := start(t, tmpfs(t, "size=4m"))
	ctx := context.Background()
	last := renewTimes(t, b.Backend, 1)
	watch := b.WatchRange(ctx, leasePrefix, "/registry/leases0", 0)
	filler := fill(t, b.folder, 0)
	var err error
	for i := 0; err == nil; i++ {
		_, err = b.Create(ctx, fmt.Sprintf("/registry/pods/%d", i), []byte(strings.Repeat("x", 20000)), 0)
	}
	if status.Code(err) != codes.ResourceExhausted || errors.Is(err, context.Canceled) {
		t.Errorf("a create got %v", err)
	}
	if renewed := renewTimes(t, b.Backend, 5); renewed <= last {
		t.Errorf("revision %d after %d", renewed, last)
	}
	for seen := 0; seen < 5; {
		seen += len((<-watch.Eventc).Events)
	}
	accepted := 0
	for err = nil; err == nil; accepted++ {
		_, err = b.Create(ctx, fmt.Sprintf("%s%d", eventPrefix, accepted), []byte("x"), 3600)
	}
	if accepted < maxPending || accepted > 3*maxPending || status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%d events were accepted, and then %v", accepted, err)
	}
	os.Remove(filler)
	if _, err := b.Create(ctx, "/registry/pods/a", []byte("x"), 0); err != nil {
		t.Errorf("create after there is space again: %v", err)
	}
	want := content(t, b.Backend)
	b.stop()
	if got := content(t, start(t, b.folder).Backend); got != want {
		t.Errorf("after a restart\n%s, want\n%s", got, want)
	}
}

// A cancelled request leaves nothing behind that anything waits for.
func TestGivenUp(t *testing.T) {
	b := start(t, t.TempDir())
	ctx, cancel := context.WithTimeout(context.Background(), time.Microsecond)
	defer cancel()
	for i := range 100 {
		b.Create(ctx, fmt.Sprintf("/registry/%d", i), nil, 0)
	}
	b.stop()
	if _, err := b.Create(context.Background(), "/registry/a", nil, 0); err != server.ErrGRPCUnhealthy {
		t.Errorf("create after the end: got error %v, want %v", err, server.ErrGRPCUnhealthy)
	}
}
