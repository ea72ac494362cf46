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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/tests/harness"
)

const (
	rounds = 20
	// requestTimeout is how long a client waits before it tries another server.
	requestTimeout = 2 * time.Second
	// goesOn are so many writes after a kill that the cluster has gone on.
	goesOn = 20
)

// traffic is a client of all servers that writes and watches.
type traffic struct {
	*testing.T
	servers []kubernetes.Interface

	mu sync.Mutex
	// written are the names of what a server has acknowledged, seen those that
	// the watch had, with how often.
	written []string
	seen    map[string]int
	// gap is the longest time between two acknowledgements.
	gap time.Duration
}

func newTraffic(t *testing.T, servers ...*harness.Server) *traffic {
	t.Helper()
	c := &traffic{T: t, seen: map[string]int{}}
	for _, server := range servers {
		client, err := kubernetes.NewForConfig(server.RESTConfig())
		if err != nil {
			t.Fatal(err)
		}
		c.servers = append(c.servers, client)
	}
	return c
}

// write writes one ConfigMap after the other until ctx ends.
func (c *traffic) write(ctx context.Context) {
	last := time.Now()
	for i, server := 0, 0; ctx.Err() == nil; {
		name := fmt.Sprintf("write-%06d", i)
		request, cancel := context.WithTimeout(context.Background(), requestTimeout)
		_, err := c.servers[server].CoreV1().ConfigMaps("default").Create(request,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"traffic": "yes"}}}, metav1.CreateOptions{})
		cancel()
		if err != nil && !apierrors.IsAlreadyExists(err) {
			server = (server + 1) % len(c.servers)
			time.Sleep(50 * time.Millisecond)
			continue
		}
		c.mu.Lock()
		c.written = append(c.written, name)
		c.gap = max(c.gap, time.Since(last))
		c.mu.Unlock()
		i, last = i+1, time.Now()
		time.Sleep(10 * time.Millisecond)
	}
}

// acknowledged is how many writes there were, and the longest wait for one since
// the last call.
func (c *traffic) acknowledged() (int, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	gap := c.gap
	c.gap = 0
	return len(c.written), gap
}

// watch watches from a version on, at whichever server answers, until ctx ends.
// It resumes where it was, and never lists.
func (c *traffic) watch(ctx context.Context, version string) error {
	for server := 0; ctx.Err() == nil; server = (server + 1) % len(c.servers) {
		err := c.follow(ctx, c.servers[server], &version)
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			return fmt.Errorf("the watch cannot be resumed: %w", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}

func (c *traffic) follow(ctx context.Context, server kubernetes.Interface, version *string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A server that died takes its connection along, but its host lives.
	begin := time.AfterFunc(requestTimeout, cancel)
	watching, err := server.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{
		LabelSelector: "traffic=yes", ResourceVersion: *version, AllowWatchBookmarks: true,
	})
	begin.Stop()
	if err != nil {
		return err
	}
	defer watching.Stop()
	for event := range watching.ResultChan() {
		if event.Type == watch.Error {
			return apierrors.FromObject(event.Object)
		}
		object := event.Object.(*corev1.ConfigMap)
		*version = object.ResourceVersion
		if event.Type == watch.Added {
			c.mu.Lock()
			c.seen[object.Name]++
			c.mu.Unlock()
		}
	}
	return nil
}

// TestKillEachInTurn kills each of three servers in turn, again and again, while a
// client writes and watches: all that was acknowledged is there, and the watch had
// each event once.
func TestKillEachInTurn(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	one := found(t, network)
	two := network.NewHost(t, "server-2").StartServer(t, joining(one)...)
	three := network.NewHost(t, "server-3").StartServer(t, joining(one)...)
	two.WaitReady()
	three.WaitReady()
	servers := []*harness.Server{one, two, three}
	c := newTraffic(t, servers...)
	list, err := c.servers[0].CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(stop)
	running.Go(func() { c.write(ctx) })
	watched := make(chan error, 1)
	running.Go(func() { watched <- c.watch(ctx, list.ResourceVersion) })

	writesGoOn := func() {
		before, _ := c.acknowledged()
		harness.Eventually(t, patience, "writes to go on", func() error {
			c.mu.Lock()
			defer c.mu.Unlock()
			if n := len(c.written); n < before+goesOn {
				return fmt.Errorf("%d since then", n-before)
			}
			return nil
		})
	}
	for round := range rounds {
		server := servers[round%len(servers)]
		writesGoOn()
		server.Kill9()
		writesGoOn()
		_, gap := c.acknowledged()
		t.Logf("round %d: without %s the longest wait for a write was %s", round, server.Host.Name, gap.Round(time.Millisecond))
		server.Start()
		server.WaitReady()
	}
	writesGoOn()
	stop()
	wanted, _ := c.acknowledged()
	found, err := c.servers[0].CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{LabelSelector: "traffic=yes"})
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, object := range found.Items {
		there[object.Name] = true
	}
	running.Wait()
	if err := <-watched; err != nil {
		t.Error(err)
	}
	var faults []error
	for _, name := range c.written[:wanted] {
		if !there[name] {
			faults = append(faults, fmt.Errorf("%s was acknowledged and is not there", name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.seen)) {
		if c.seen[name] != 1 {
			faults = append(faults, fmt.Errorf("the watch had %s %d times", name, c.seen[name]))
		}
	}
	// The watch ended with the writes, and may lack the last of them.
	for _, name := range c.written[:max(0, wanted-goesOn)] {
		if c.seen[name] == 0 {
			faults = append(faults, fmt.Errorf("the watch did not have %s", name))
		}
	}
	if err := errors.Join(faults...); err != nil {
		t.Error(err)
	}
	t.Logf("%d writes", wanted)
}
