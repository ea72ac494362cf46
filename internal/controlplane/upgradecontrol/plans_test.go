package upgradecontrol

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/base/published"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/controlplane/upgradecontrol/store"
)

func digestOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

// newPlans makes the component of a server of the cluster, without other servers.
func newPlans(c *cluster) *Plans {
	c.Helper()
	p := New(Config{
		Client: func(context.Context) *rest.Config { return &rest.Config{} },
		Store:  store.New(store.Config{Folder: c.TempDir(), Servers: func() []string { return nil }}),
	})
	p.dial = func(*rest.Config) (dynamic.Interface, error) { return c.custom, nil }
	return p
}

// TestWatch has a server that does not know the kind of Plans at first, and a node that follows
// its orders.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "")
		var known atomic.Bool
		c.custom.PrependReactor("list", "plans", func(clienttesting.Action) (bool, runtime.Object, error) {
			if !known.Load() {
				return true, nil, apierrors.NewNotFound(upgrades.Plans.GroupResource(), "")
			}
			return false, nil, nil
		})
		p := newPlans(c)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := p.Run(ctx, func() {}); err != nil {
				t.Error(err)
			}
		})
		var mu sync.Mutex
		var told []string
		running.Go(func() {
			err := p.Watch(context.WithoutCancel(ctx), "a", func(o upgrades.Order) error {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, o.ID)
				return nil
			})
			if !errors.Is(err, published.ErrEnded) {
				t.Errorf("the watch ended with %v", err)
			}
		})
		status := func(plan string, generation int64, nodes ...upgrades.NodeStatus) *upgrades.Plan {
			return &upgrades.Plan{
				ObjectMeta: metav1.ObjectMeta{Name: plan, Generation: 1},
				Spec:       upgrades.PlanSpec{Version: target},
				Status: upgrades.PlanStatus{
					ObservedGeneration: generation, Phase: upgrades.Upgrading, Version: target, Nodes: nodes,
					Executables: map[string]upgrades.Executable{"amd64": {SHA256: digest, Size: 9}},
				},
			}
		}
		step := func(want string) {
			t.Helper()
			time.Sleep(4 * time.Second) // more than the longest pause of objectcache.UntilKnown
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if got := strings.Join(told, " "); got != want {
				t.Errorf("the node was told %q, want %q", got, want)
			}
		}
		step("")
		known.Store(true)
		step("")
		mu.Lock()
		if len(told) != 1 {
			t.Errorf("the node was told %d times that there is nothing", len(told))
		}
		mu.Unlock()
		ordered := upgrades.NodeStatus{Name: "a", Architecture: "amd64", State: upgrades.NodeOrdered, Order: "1"}
		c.put(status("x", 1, upgrades.NodeStatus{Name: "b", Architecture: "amd64", State: upgrades.NodeOrdered, Order: "2"}), true)
		step("")
		c.put(status("x", 1, ordered), false)
		step(" 1")
		c.put(status("other", 1), true)
		step(" 1")
		c.put(status("x", 2, ordered), false) // its spec has changed
		step(" 1 ")
		foreign := ordered
		foreign.Architecture = "arm64"
		c.put(status("x", 1, foreign), false)
		step(" 1 ")
		ordered.Order = "3"
		c.put(status("other", 1, ordered), false)
		step(" 1  3")
		if err := c.custom.Tracker().Delete(upgrades.Plans, "", "other"); err != nil {
			t.Fatal(err)
		}
		step(" 1  3 ")
		failed := errors.New("failed")
		if err := p.Watch(t.Context(), "a", func(upgrades.Order) error { return failed }); !errors.Is(err, failed) {
			t.Errorf("got %v", err)
		}
		cancel()
		running.Wait()
	})
}

// TestCopies has a Plan with a file. The server takes it, keeps it while the Plan needs it, and
// removes it afterwards.
func TestCopies(t *testing.T) {
	c := newCluster(t, "")
	p := newPlans(c)
	path := filepath.Join(t.TempDir(), "kedge")
	if err := os.WriteFile(path, []byte("kedge"), 0o600); err != nil {
		t.Fatal(err)
	}
	gone := digestOf("gone")
	if err := p.cfg.Store.Put(gone, strings.NewReader("gone")); err != nil {
		t.Fatal(err)
	}
	has := func(digest string) bool {
		file, err := p.Executable(digest)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
			return false
		}
		return file.Close() == nil
	}
	plan := &upgrades.Plan{ObjectMeta: metav1.ObjectMeta{Generation: 1}, Spec: upgrades.PlanSpec{File: path, SHA256: digestOf("kedge")}}
	plans, never := []*upgrades.Plan{plan}, make(chan struct{})
	if !p.copyAll(t.Context(), plans, never) || !has(digestOf("kedge")) || !has(gone) {
		t.Error("a Plan without a status: the file is not there, or something was removed")
	}
	plan.Status = upgrades.PlanStatus{ObservedGeneration: 1, Phase: upgrades.Upgrading, Executables: map[string]upgrades.Executable{"arm64": {SHA256: digestOf("other")}}}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if p.copyAll(t.Context(), plans, never) || !has(digestOf("kedge")) || has(gone) {
		t.Error("the Plan runs: its file is not there, or something else is")
	}
	renewed := make(chan struct{})
	close(renewed)
	plan.Status.Phase = upgrades.Complete
	if !p.copyAll(t.Context(), plans, renewed) || !has(digestOf("kedge")) {
		t.Error("something is removed although there are newer Plans")
	}
	if !p.copyAll(t.Context(), plans, never) || has(digestOf("kedge")) {
		t.Error("the file stays")
	}
}

// TestLead runs both components together, as a server does.
func TestLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "s:server a:agent")
		p := newPlans(c)
		informers := objectcache.Own(c.api)
		controller := NewController(ControllerConfig{
			Client: p.cfg.Client, Informers: informers, Plans: p, Node: "s",
		})
		controller.clients = func(*rest.Config) (kubernetes.Interface, dynamic.Interface, error) { return c.api, c.custom, nil }
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := p.Run(ctx, func() {}); err != nil {
				t.Error(err)
			}
		})
		running.Go(func() {
			if err := controller.Lead(ctx, func() {}); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(time.Second)
		synctest.Wait()
		c.plan("kedge", upgrades.PlanSpec{File: "/nowhere/kedge", SHA256: digest})
		time.Sleep(filePatience + time.Minute)
		synctest.Wait()
		c.has(c.get("kedge").Status.Message, "no server has /nowhere/kedge with the SHA-256 digest "+digest)
		c.plan("none", upgrades.PlanSpec{Version: old, Cordon: true})
		time.Sleep(time.Minute)
		synctest.Wait()
		if plan := c.get("none"); plan.Status.Phase != upgrades.Complete || states(plan) != "s:Upgraded a:Upgraded" {
			t.Errorf("got %+v", plan.Status)
		}
		cancel()
		running.Wait()
	})
}
