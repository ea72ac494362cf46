package kill9

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/slowfs"
)

const (
	cuts        = 8
	databaseDir = "/var/lib/kedge/server/db"
	renewed     = "witnessed"
)

// TestPowerCut cuts the power of the disk with the database at random moments. Clients make durable
// writes, and renew a Lease, whose renewals are not worth a write each. No acknowledged write may
// be lost. A remote witness must never see one resourceVersion for two states, nor a new one that
// is not higher than all that it saw earlier.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	host := harness.NewNetwork(t).NewHost(t, "server-1")
	disk := slowfs.Mount(t, host, databaseDir, slowfs.Limits{})
	server := host.StartServer(t)
	server.WaitReady()
	client := server.Client()

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := &writer{client: client, expected: map[string][]string{}, random: rand.New(rand.NewPCG(seed, 1))}
	seen := &witness{client: client, contents: map[string]string{}}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var running sync.WaitGroup
	running.Go(func() { w.run(ctx) })
	running.Go(func() { seen.watch(ctx) })
	renewals := 0
	running.Go(func() { renewals = renew(ctx, client) })
	for range cuts {
		time.Sleep(time.Duration(random.Int64N(int64(longest))))
		if err := disk.Cut(); err != nil {
			t.Fatal(err)
		}
		server.Kill9()
		disk.PowerOn()
		seen.restarts()
		server.Start()
		server.WaitReady()
	}
	time.Sleep(2 * time.Second)
	stop()
	running.Wait()

	t.Logf("%d writes and %d renewals were acknowledged, %d changes were seen", w.acknowledged, renewals, len(seen.contents))
	if w.acknowledged < cuts || renewals < cuts || len(seen.contents) < renewals/2 {
		t.Error("too few writes, so the test shows nothing")
	}
	w.verify(t)
	for _, fault := range seen.faults {
		t.Error(fault)
	}
}

// renew renews a Lease as its holder until ctx ends, and returns how often.
func renew(ctx context.Context, client kubernetes.Interface) (renewals int) {
	api := client.CoordinationV1().Leases(namespace)
	holder, seconds := "test", int32(40)
	for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		asking, cancel := context.WithTimeout(ctx, 5*time.Second)
		lease, err := api.Get(asking, renewed, metav1.GetOptions{})
		now := metav1.NowMicro()
		spec := coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &now}
		switch {
		case apierrors.IsNotFound(err):
			_, err = api.Create(asking, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: renewed}, Spec: spec}, metav1.CreateOptions{})
		case err == nil:
			lease.Spec = spec
			_, err = api.Update(asking, lease, metav1.UpdateOptions{})
		}
		cancel()
		if err == nil {
			renewals++
		}
	}
	return renewals
}

// witness watches Leases remotely and remembers the state at each resourceVersion.
type witness struct {
	client kubernetes.Interface

	mu       sync.Mutex
	contents map[string]string
	// highest is the highest resourceVersion seen, floor its value at the last power cut.
	highest, floor uint64
	faults         []string
}

// restarts tells the witness that a new start of the server follows.
func (w *witness) restarts() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.floor = w.highest
}

// watch lists and watches repeatedly, as an informer does: it resumes where it was if it may.
func (w *witness) watch(ctx context.Context) {
	api := w.client.CoordinationV1().Leases(namespace)
	for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		list, err := api.List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for i := range list.Items {
			w.note(&list.Items[i], false)
		}
		version := list.ResourceVersion
		for ctx.Err() == nil {
			events, err := api.Watch(ctx, metav1.ListOptions{ResourceVersion: version})
			if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
				break
			}
			if err != nil {
				time.Sleep(50 * time.Millisecond)
				continue
			}
			expired := false
			for event := range events.ResultChan() {
				if lease, ok := event.Object.(*coordinationv1.Lease); ok && event.Type != watch.Bookmark {
					version = lease.ResourceVersion
					w.note(lease, true)
				} else if event.Type == watch.Error {
					expired = true
				}
			}
			events.Stop()
			if expired {
				break
			}
		}
	}
}

// note compares a Lease with earlier states. An event of a watch must be new.
func (w *witness) note(lease *coordinationv1.Lease, isNew bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var version uint64
	if _, err := fmt.Sscan(lease.ResourceVersion, &version); err != nil {
		w.faults = append(w.faults, fmt.Sprintf("resourceVersion %q: %v", lease.ResourceVersion, err))
		return
	}
	content := fmt.Sprintf("%s/%s %s %s", lease.Namespace, lease.Name, lease.UID, lease.Spec.RenewTime)
	if known, ok := w.contents[lease.ResourceVersion]; ok && known != content {
		w.faults = append(w.faults, fmt.Sprintf("resourceVersion %s was %s, and is %s", lease.ResourceVersion, known, content))
	}
	if isNew && version <= w.floor {
		w.faults = append(w.faults, fmt.Sprintf("after the power cut, %s comes with resourceVersion %d, and %d was seen before it", content, version, w.floor))
	}
	w.contents[lease.ResourceVersion] = content
	w.highest = max(w.highest, version)
}
