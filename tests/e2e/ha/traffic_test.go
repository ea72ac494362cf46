package ha

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/tests/harness"
)

const (
	// requestTimeout is how long a client waits before it tries another server.
	requestTimeout = 2 * time.Second
	// goesOn is how many writes show that the cluster continues.
	goesOn = 40
	// writers is how many goroutines write at the same time.
	writers = 4
	pace    = 40 * time.Millisecond
)

// clients has the clients of several servers.
type clients []kubernetes.Interface

func clientsOf(servers ...*harness.Server) clients {
	var all clients
	for _, server := range servers {
		all = append(all, server.Client())
	}
	return all
}

// watch watches from a version on, at any server that answers, until ctx ends. It resumes where it
// was, and never lists.
func (c clients) watch(ctx context.Context, version string, options metav1.ListOptions,
	begin func(context.Context, kubernetes.Interface, metav1.ListOptions) (watch.Interface, error), note func(watch.Event),
) error {
	follow := func(client kubernetes.Interface) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		// A dead server ends its connections only if its host is alive to do so.
		begun := time.AfterFunc(requestTimeout, cancel)
		options.ResourceVersion, options.AllowWatchBookmarks = version, true
		watching, err := begin(ctx, client, options)
		begun.Stop()
		if err != nil {
			return err
		}
		defer watching.Stop()
		for event := range watching.ResultChan() {
			if event.Type == watch.Error {
				return apierrors.FromObject(event.Object)
			}
			object, err := meta.Accessor(event.Object)
			if err != nil {
				return err
			}
			version = object.GetResourceVersion()
			note(event)
		}
		return nil
	}
	for i := 0; ctx.Err() == nil; i++ {
		err := follow(c[i%len(c)])
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			return fmt.Errorf("the watch cannot be resumed: %w", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}

// traffic writes a hundred times a second, to another server whenever one fails, and watches what
// it writes.
type traffic struct {
	*testing.T
	clients clients

	mu sync.Mutex
	// written has the names of acknowledged writes. seen has how often the watch received
	// each of them.
	written []string
	seen    map[string]int
	// gap is the longest time until a write was acknowledged.
	gap time.Duration

	ctx     context.Context
	cancel  context.CancelFunc
	writing sync.WaitGroup
	watched chan error
}

// startTraffic starts traffic. It stops with end, or with the test.
func startTraffic(t *testing.T, servers ...*harness.Server) *traffic {
	t.Helper()
	c := &traffic{T: t, clients: clientsOf(servers...), seen: map[string]int{}, watched: make(chan error, 1)}
	list, err := c.clients[0].CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	watching, cancel := context.WithCancel(context.Background())
	for writer := range writers {
		c.writing.Go(func() { c.write(writer) })
	}
	t.Cleanup(func() {
		c.cancel()
		c.writing.Wait()
		cancel()
		<-c.watched
	})
	go func() {
		c.watched <- c.clients.watch(watching, list.ResourceVersion, metav1.ListOptions{LabelSelector: "traffic=yes"},
			func(ctx context.Context, client kubernetes.Interface, options metav1.ListOptions) (watch.Interface, error) {
				return client.CoreV1().ConfigMaps("default").Watch(ctx, options)
			}, c.note)
		close(c.watched)
	}()
	return c
}

func (c *traffic) note(event watch.Event) {
	if object, ok := event.Object.(*corev1.ConfigMap); ok && event.Type == watch.Added {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.seen[object.Name]++
	}
}

// write writes one ConfigMap after the other.
func (c *traffic) write(writer int) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	last := time.Now()
	for i, server := 0, writer; c.ctx.Err() == nil; {
		name := fmt.Sprintf("write-%d-%06d", writer, i)
		request, cancel := context.WithTimeout(context.Background(), requestTimeout)
		_, err := c.clients[server%len(c.clients)].CoreV1().ConfigMaps("default").Create(request,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"traffic": "yes"}}}, metav1.CreateOptions{})
		cancel()
		if err != nil && !apierrors.IsAlreadyExists(err) {
			server++
			time.Sleep(50 * time.Millisecond)
			continue
		}
		c.mu.Lock()
		c.written = append(c.written, name)
		c.gap = max(c.gap, time.Since(last))
		c.mu.Unlock()
		<-tick.C
		i, last = i+1, time.Now()
	}
}

// waits returns the longest time that a write took, with all its attempts, since the last call.
func (c *traffic) waits() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	gap := c.gap
	c.gap = 0
	return gap
}

func (c *traffic) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.written)
}

// goesOn waits until there were some more writes.
func (c *traffic) goesOn() {
	c.Helper()
	before := c.count()
	harness.Eventually(c.T, patience, "writes to go on", func() error {
		if n := c.count(); n < before+goesOn {
			return fmt.Errorf("%d since then", n-before)
		}
		return nil
	})
}

// end stops the traffic. It checks that all acknowledged writes are there, and that the watch
// received each of them once.
func (c *traffic) end() {
	c.Helper()
	c.cancel()
	c.writing.Wait()
	list, err := c.clients[0].CoreV1().ConfigMaps("default").List(c.Context(), metav1.ListOptions{LabelSelector: "traffic=yes"})
	if err != nil {
		c.Fatal(err)
	}
	there := map[string]bool{}
	for _, object := range list.Items {
		there[object.Name] = true
	}
	harness.Eventually(c.T, patience, "the watch to have had all writes", func() error {
		select {
		case err := <-c.watched:
			c.Fatalf("the watch ended with %v", err)
		default:
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.seen) < len(there) {
			return fmt.Errorf("it had %d of %d", len(c.seen), len(there))
		}
		return nil
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	var faults []error
	for _, name := range c.written {
		if !there[name] {
			faults = append(faults, fmt.Errorf("%s was acknowledged and is not there", name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.seen)) {
		if !there[name] || c.seen[name] != 1 {
			faults = append(faults, fmt.Errorf("the watch had %s %d times; it is there: %t", name, c.seen[name], there[name]))
		}
	}
	if err := errors.Join(faults...); err != nil {
		c.Error(err)
	}
	c.Logf("%d writes", len(c.written))
}
