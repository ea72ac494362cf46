package upgradecontrol

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kedge-dev/kedge/internal/base/upgrades"
)

// TestBegin makes a Plan while there is none, or one in each state.
func TestBegin(t *testing.T) {
	spec := upgrades.PlanSpec{Version: target, Concurrency: 1}
	c := newCluster(t, "")
	client := NewClient(c.custom)
	begin := func(spec upgrades.PlanSpec) *upgrades.Plan {
		t.Helper()
		if err := client.Begin(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		return c.get(PlanName)
	}
	status := func(phase upgrades.Phase) {
		plan := c.get(PlanName)
		plan.UID, plan.ResourceVersion = "first", "7"
		plan.Status = upgrades.PlanStatus{Phase: phase, ObservedGeneration: plan.Generation}
		c.put(plan, false)
	}
	if plan := begin(spec); plan.Spec.Version != target {
		t.Errorf("got %+v", plan)
	}
	status(upgrades.Upgrading)
	if plan := begin(spec); plan.UID != "first" || plan.Status.Phase != upgrades.Upgrading {
		t.Errorf("the same Plan again becomes %+v", plan)
	}
	spec.Concurrency = 2
	if plan := begin(spec); plan.ResourceVersion != "7" || plan.Spec.Concurrency != 2 {
		t.Errorf("another spec becomes %+v", plan)
	}
	for _, phase := range []upgrades.Phase{upgrades.Stopped, upgrades.Complete} {
		status(phase)
		if plan := begin(spec); plan.UID != "" || plan.Status.Phase != "" {
			t.Errorf("a Plan that is %s becomes %+v", phase, plan)
		}
	}
	if plans, err := client.List(t.Context()); err != nil || len(plans) != 1 {
		t.Errorf("got %v, %v", plans, err)
	}
	c.custom.PrependReactor("*", "plans", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(upgrades.Plans.GroupResource(), "")
	})
	if err := client.Begin(t.Context(), spec); err == nil || !strings.Contains(err.Error(), "too old for Plans") {
		t.Errorf("an older cluster: %v", err)
	}
	if _, err := client.List(t.Context()); err == nil || !strings.Contains(err.Error(), "too old for Plans") {
		t.Errorf("an older cluster: %v", err)
	}
}

// TestAwait follows a Plan, also while the API does not answer.
func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "s:server a:agent")
		var silent atomic.Bool
		c.custom.PrependReactor("get", "plans", func(clienttesting.Action) (bool, runtime.Object, error) {
			return silent.Load(), nil, errors.New("connection refused")
		})
		c.plan(PlanName, upgrades.PlanSpec{Version: target})
		var told []string
		await := func(ctx context.Context) error {
			told = nil
			ended := make(chan error, 1)
			go func() {
				ended <- NewClient(c.custom).Await(ctx, func(line string) { told = append(told, line) })
			}()
			time.Sleep(askPause / 2) // it looks between the steps
			for i := range 60 {
				silent.Store(i == 4 || i == 5)
				synctest.Wait()
				select {
				case err := <-ended:
					return err
				default:
				}
				if !silent.Load() {
					c.step()
				}
				time.Sleep(askPause)
			}
			return errors.New("it does not end")
		}
		if err := await(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := `Resolving: looking for the version
Node s: ordered: waiting for its answer
Node s: ordered: it gets the executable
Node s: ordered: it runs the new version, and goes back if that does not work
The API does not answer. Its server is probably being upgraded
Node s: upgraded
Node a: ordered: waiting for its answer
Node a: ordered: it gets the executable
Node a: ordered: it runs the new version, and goes back if that does not work
Node a: upgraded
Complete: 2 nodes run v1.37.3+kedge.1`
		if got := strings.Join(told, "\n"); got != want {
			t.Errorf("told\n%s\nwant\n%s", got, want)
		}
		c.answer = func(_ string, order upgrades.Order, _ upgrades.Report) upgrades.Report {
			return upgrades.Report{ID: order.ID, Stage: upgrades.Refused, Message: "the disk is full"}
		}
		c.node("a", func(n *corev1.Node) { n.Status.NodeInfo.KubeletVersion = old })
		c.change(PlanName, func(spec *upgrades.PlanSpec) { spec.Concurrency = 2 })
		before := strings.Join(told, "\n")
		if err := await(t.Context()); !errors.Is(err, ErrStopped) || strings.Contains(before, "disk") || !strings.Contains(strings.Join(told, "\n"), "Node s: upgraded: it ran this version before") || !strings.Contains(err.Error(), "node a: it changed nothing: the disk is full") {
			t.Errorf("got %v", err)
		}
		if err := c.custom.Tracker().Delete(upgrades.Plans, "", PlanName); err != nil {
			t.Fatal(err)
		}
		if err := NewClient(c.custom).Await(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "the Plan was deleted") {
			t.Errorf("got %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := NewClient(c.custom).Await(ctx, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

// TestForesee looks at a cluster without changing it.
func TestForesee(t *testing.T) {
	c := newCluster(t, "s1:server s2:server e:etcd a:agent b:agent d:agent")
	c.node("b", func(n *corev1.Node) { n.Status.NodeInfo.Architecture = "arm64" })
	c.node("d", func(n *corev1.Node) { n.Status.NodeInfo.KubeletVersion = target })
	look := func(spec upgrades.PlanSpec, version string) Forecast {
		t.Helper()
		list, err := c.api.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		cluster := Cluster{Plans: c.plans(), Leader: "s1"}
		for i := range list.Items {
			cluster.Nodes = append(cluster.Nodes, &list.Items[i])
		}
		plan := &upgrades.Plan{ObjectMeta: metav1.ObjectMeta{Name: PlanName, CreationTimestamp: metav1.NewTime(c.now)}, Spec: spec}
		return Foresee(t.Context(), plan, version, cluster)
	}
	steps := func(f Forecast) string {
		var all []string
		for _, step := range f.Steps {
			var names []string
			for _, node := range step {
				names = append(names, node.Node)
			}
			all = append(all, strings.Join(names, "+"))
		}
		return strings.Join(all, " ")
	}
	f := look(upgrades.PlanSpec{Version: target, Concurrency: 2}, target)
	if steps(f) != "s2 s1 e a+b" || strings.Join(f.Done, " ") != "d" || strings.Join(f.Architectures, " ") != "amd64 arm64" || len(f.Forbidden) != 0 || f.Waits != "" {
		t.Errorf("got %+v", f)
	}
	if f.Steps[2][0] != (Step{"e", "server without an API server", old}) || f.Steps[3][1] != (Step{"b", "agent", old}) {
		t.Errorf("got %+v", f.Steps)
	}
	if f := look(upgrades.PlanSpec{File: "/x", Concurrency: 1}, target); steps(f) != "s2 s1 e a b d" {
		t.Errorf("got %+v", f)
	}
	if f := look(upgrades.PlanSpec{Version: "v1.36.1"}, "v1.36.1"); len(f.Forbidden) != 6 {
		t.Errorf("got %+v", f)
	}
	c.node("e", setReady(false))
	c.has(look(upgrades.PlanSpec{Version: target, Concurrency: 2}, target).Waits, "server e is not Ready")
	if f := look(upgrades.PlanSpec{Version: target, NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"-": ""}}}, target); len(f.Forbidden) != 1 {
		t.Errorf("got %+v", f)
	}
	if len(c.plans()) != 0 {
		t.Error("there is a Plan now")
	}
}
