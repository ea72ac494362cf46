package ha

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/tests/harness"
)

// reign is a time during which one server, or nobody, held the Lease for the controllers and the
// scheduler.
type reign struct {
	// node is empty if nobody held the Lease.
	node  string
	began time.Time
}

// history has all changes of that Lease.
type history struct {
	*testing.T
	mu     sync.Mutex
	reigns []reign
}

// holderOf returns the node of the server that holds the Lease, or "".
func holderOf(lease *coordinationv1.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	node, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
	return node
}

// holder returns which of the servers holds the Lease. All of them must be running.
func holder(t *testing.T, servers ...*harness.Server) *harness.Server {
	t.Helper()
	var found *harness.Server
	harness.Eventually(t, patience, "a server to have the Lease", func() error {
		lease, err := servers[0].Client().CoordinationV1().Leases("kube-system").Get(t.Context(), "kedge", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, server := range servers {
			if server.Host.Name == holderOf(lease) {
				found = server
				return nil
			}
		}
		return fmt.Errorf("%q has it", holderOf(lease))
	})
	return found
}

// follow follows the Lease from now on, until the test ends.
func follow(t *testing.T, servers ...*harness.Server) *history {
	t.Helper()
	h := &history{T: t}
	all := clientsOf(servers...)
	lease, err := all[0].CoordinationV1().Leases("kube-system").Get(t.Context(), "kedge", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h.note(watch.Event{Type: watch.Modified, Object: lease})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	go func() {
		ended <- all.watch(ctx, lease.ResourceVersion, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "kedge").String()},
			func(ctx context.Context, client kubernetes.Interface, options metav1.ListOptions) (watch.Interface, error) {
				return client.CoordinationV1().Leases("kube-system").Watch(ctx, options)
			}, h.note)
	}()
	return h
}

func (h *history) note(event watch.Event) {
	lease, ok := event.Object.(*coordinationv1.Lease)
	if !ok || event.Type == watch.Bookmark {
		return
	}
	node := holderOf(lease)
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.reigns) == 0 || h.reigns[len(h.reigns)-1].node != node {
		h.reigns = append(h.reigns, reign{node, time.Now()})
	}
}

// after returns the reigns from this number on.
func (h *history) after(number int) []reign {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reigns[number:]
}

func (h *history) count() int { return len(h.after(0)) }

// passes calls end for the server that holds the Lease, and waits until another server holds it. It
// returns the reigns since then, and how long that took.
func (h *history) passes(from *harness.Server, end func()) ([]reign, time.Duration) {
	h.Helper()
	number, began := h.count(), time.Now()
	end()
	var since []reign
	harness.Eventually(h.T, patience, "another server to lead", func() error {
		since = h.after(number)
		if len(since) == 0 || since[len(since)-1].node == "" {
			return fmt.Errorf("%s does still", from.Host.Name)
		}
		return nil
	})
	return since, since[len(since)-1].began.Sub(began)
}
