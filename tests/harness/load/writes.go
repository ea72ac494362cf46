package load

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

const (
	// writeTimeout is longer than etcd takes to report that a write was lost with its leader.
	writeTimeout = 15 * time.Second
	// refusalTimeout is longer than the API server waits for its datastore before it answers.
	refusalTimeout = 75 * time.Second
)

// Writes creates ConfigMaps one after the other, and counts them in one more ConfigMap. It remembers what
// the API has acknowledged.
type Writes struct {
	t       *testing.T
	clients []kubernetes.Interface
	counter string
	cancel  context.CancelFunc
	writing sync.WaitGroup

	mu           sync.Mutex
	acknowledged map[string]bool
	counted      int
	// fault is why the last write that failed did so.
	fault error
}

// StartWrites writes every pause, or without a pause if that is 0. If a write fails, the next one goes to
// the next of the clients. The writes end with the test, or with Stop.
func StartWrites(t *testing.T, pause time.Duration, clients ...kubernetes.Interface) *Writes {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &Writes{
		t: t, clients: clients, counter: fmt.Sprintf("writes-%d", time.Now().UnixNano()), cancel: cancel,
		acknowledged: map[string]bool{},
	}
	w.writing.Go(func() { w.work(ctx, pause) })
	t.Cleanup(w.Stop)
	return w
}

func (w *Writes) work(ctx context.Context, pause time.Duration) {
	client := 0
	for n := 0; ctx.Err() == nil; n++ {
		err := w.write(ctx, w.clients[client], n)
		wait := pause
		if err != nil {
			w.mu.Lock()
			w.fault = err
			w.mu.Unlock()
			client, wait = (client+1)%len(w.clients), max(pause, 100*time.Millisecond)
		}
		time.Sleep(wait)
	}
}

// write creates a ConfigMap with a name of its own, because a create that failed may have been done, and
// then counts.
func (w *Writes) write(ctx context.Context, client kubernetes.Interface, n int) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := w.create(ctx, client, fmt.Sprintf("%s-%d", w.counter, n)); err != nil {
		return err
	}
	all := client.CoreV1().ConfigMaps(cluster.Namespace)
	counter, err := all.Get(ctx, w.counter, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		counter, err = all.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: w.counter}}, metav1.CreateOptions{})
	}
	if err != nil {
		return err
	}
	counter.Data = map[string]string{"count": strconv.Itoa(n)}
	// The update has the version that was read, so that an earlier one that comes late changes nothing.
	if _, err = all.Update(ctx, counter, metav1.UpdateOptions{}); err != nil {
		return err
	}
	w.mu.Lock()
	w.counted = n
	w.mu.Unlock()
	return nil
}

// create creates a ConfigMap, and remembers an acknowledgement.
func (w *Writes) create(ctx context.Context, client kubernetes.Interface, name string) error {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := client.CoreV1().ConfigMaps(cluster.Namespace).Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acknowledged[name] = true
	return nil
}

// More waits until n more writes have been acknowledged.
func (w *Writes) More(n int) {
	w.t.Helper()
	n += w.count()
	harness.Eventually(w.t, cluster.Patience, "more writes", func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.acknowledged) < n {
			return fmt.Errorf("%d are missing; the last one that failed: %w", n-len(w.acknowledged), w.fault)
		}
		return nil
	})
}

func (w *Writes) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.acknowledged)
}

// Refused waits until the API answers a write with an error. It writes by itself, because an answer may
// come later than the other writes wait.
func (w *Writes) Refused() {
	w.t.Helper()
	attempt := 0
	harness.Eventually(w.t, cluster.Patience, "writes to be refused", func() error {
		attempt++
		ctx, cancel := context.WithTimeout(w.t.Context(), refusalTimeout)
		defer cancel()
		err := w.create(ctx, w.clients[0], fmt.Sprintf("%s-refused-%d", w.counter, attempt))
		if err == nil {
			return errors.New("the last write succeeded")
		}
		if !apierrors.IsInternalError(err) && !apierrors.IsServiceUnavailable(err) && !apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err) {
			return fmt.Errorf("the last write ended with: %w", err)
		}
		w.t.Logf("refused: %v", err)
		return nil
	})
}

// Stop ends the writes.
func (w *Writes) Stop() {
	w.cancel()
	w.writing.Wait()
}

// WantAll fails the test unless a client reads all that was acknowledged. The writes have been stopped.
func (w *Writes) WantAll(client kubernetes.Interface) {
	w.t.Helper()
	list, err := client.CoreV1().ConfigMaps(cluster.Namespace).List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	lost, count := maps.Clone(w.acknowledged), ""
	for _, item := range list.Items {
		delete(lost, item.Name)
		if item.Name == w.counter {
			count = item.Data["count"]
		}
	}
	for name := range lost {
		w.t.Errorf("%s was acknowledged, and is lost", name)
	}
	if n, _ := strconv.Atoi(count); n < w.counted {
		w.t.Errorf("the count is %q, and %d was acknowledged", count, w.counted)
	}
	w.t.Logf("%d writes were acknowledged, %d of them are lost", len(w.acknowledged), len(lost))
}
