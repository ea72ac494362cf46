package controlplane

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/volume/csi"

	"github.com/kedge-dev/kedge/internal/base/component"
)

// testElection has a second server, b, on the same API, and takes the Lease away
// from both. The first server, a, is the plane's own.
func (p *plane) testElection(t *testing.T, admin kubernetes.Interface) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	controllersPort, schedulerPort := freePort(t), freePort(t)
	ready := make(chan struct{})
	group := &component.Group{OnReady: func() { close(ready) }}
	p.newLoops(t, "b", controllersPort, schedulerPort).addTo(group)
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- group.Run(running) }()
	t.Cleanup(func() { stop(); <-ended })
	select {
	case <-ready: // b is ready although a leads
	case err := <-ended:
		t.Fatalf("b ended with %v", err)
	}
	p.awaitLeader(ctx, t, "a", p.controllersPort, p.schedulerPort)
	p.awaitFollower(ctx, t, "b", controllersPort, schedulerPort)
	// By this the kubelet is told of CSI drivers.
	handler := *csi.PluginHandler

	p.setHolder(ctx, t, admin, "somebody else")
	p.awaitFollower(ctx, t, "a", p.controllersPort, p.schedulerPort)
	p.setHolder(ctx, t, admin, "somebody else") // renews the time of the Lease
	createDeployment(ctx, t, admin, "orphan")
	time.Sleep(2 * time.Second)
	if sets, err := admin.AppsV1().ReplicaSets("default").List(ctx, metav1.ListOptions{LabelSelector: "app=orphan"}); err != nil || len(sets.Items) > 0 {
		t.Errorf("got %d ReplicaSets, %v while no server is elected, want none", len(sets.Items), err)
	}

	p.setHolder(ctx, t, admin, "b")
	p.awaitLeader(ctx, t, "b", controllersPort, schedulerPort)
	awaitPods(ctx, t, admin, "orphan")
	p.awaitFollower(ctx, t, "a", p.controllersPort, p.schedulerPort)

	stop()
	if err := <-ended; err != nil {
		t.Errorf("b ended with %v", err)
	}
	ended <- nil
	p.awaitLeader(ctx, t, "a", p.controllersPort, p.schedulerPort)
	createDeployment(ctx, t, admin, "late")
	awaitPods(ctx, t, admin, "late")
	if *csi.PluginHandler != handler {
		t.Error("controllers have taken the kubelet's CSI drivers")
	}
}

// setHolder sets the holder of the Lease.
func (p *plane) setHolder(ctx context.Context, t *testing.T, admin kubernetes.Interface, holder string) {
	t.Helper()
	api := admin.CoordinationV1().Leases("kube-system")
	eventually(ctx, t, "change of the Lease", func() (bool, error) {
		lease, err := api.Get(ctx, "kedge", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		now := metav1.NowMicro()
		lease.Spec.HolderIdentity, lease.Spec.RenewTime = &holder, &now
		_, err = api.Update(ctx, lease, metav1.UpdateOptions{})
		return err == nil, err
	})
}

// awaitLeader waits until a server's controllers and scheduler run.
func (p *plane) awaitLeader(ctx context.Context, t *testing.T, server string, controllersPort, schedulerPort int) {
	t.Helper()
	eventually(ctx, t, "controllers of "+server, func() (bool, error) { return p.runsControllers(t, controllersPort) })
	eventually(ctx, t, "scheduler of "+server, func() (bool, error) { return p.runsScheduler(t, schedulerPort) })
}

// awaitFollower waits until a server's controllers and scheduler follow, and are
// healthy.
func (p *plane) awaitFollower(ctx context.Context, t *testing.T, server string, controllersPort, schedulerPort int) {
	t.Helper()
	eventually(ctx, t, "rest of the controllers of "+server, func() (bool, error) {
		runs, err := p.runsControllers(t, controllersPort)
		return err == nil && !runs, err
	})
	eventually(ctx, t, "rest of the scheduler of "+server, func() (bool, error) {
		runs, err := p.runsScheduler(t, schedulerPort)
		return err == nil && !runs, err
	})
}

func (p *plane) runsControllers(t *testing.T, port int) (bool, error) {
	return p.healthSays(t, port, "/healthz", "[+]deployment-controller ok")
}

func (p *plane) runsScheduler(t *testing.T, port int) (bool, error) {
	return p.healthSays(t, port, "/readyz", "[+]sched-handler-sync ok")
}

// healthSays tells whether a healthy component's answer contains something. It
// returns an error if the component is not healthy or does not answer: the port
// is closed for a moment when the leader changes.
func (p *plane) healthSays(t *testing.T, port int, path, what string) (bool, error) {
	t.Helper()
	response, err := p.client(t).Get(fmt.Sprintf("https://127.0.0.1:%d%s?verbose", port, path))
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	var body strings.Builder
	if err := response.Write(&body); err != nil {
		return false, err
	}
	if response.StatusCode != 200 {
		return false, fmt.Errorf("%s is %d: %s", path, response.StatusCode, &body)
	}
	return strings.Contains(body.String(), what), nil
}
