package bench

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/tests/harness"
)

// errEnded is the cause of a context whose measurement is over.
var errEnded = errors.New("the measurement is over")

// installation is one of the systems, on a host of its own.
type installation struct {
	system, repository string
	host               *harness.Host
	// disk holds all state and logs. memory is a cgroup of everything except pods.
	disk       *harness.Disk
	memory     *harness.MemoryCgroup
	kubeconfig string
	// ctx ends with its cause if something did not start.
	ctx  context.Context
	fail context.CancelCauseFunc

	// args are further arguments of kedge.
	args     []string
	server   *harness.Server
	baseline *baseline

	writtenAtStart, usedAtStart float64
}

// systems returns the names of the systems to compare.
func systems() []string { return []string{kedgeName, baselineName} }

// newInstallation makes the host of a system and starts nothing. limit is a limit of memory in
// bytes, or 0.
func newInstallation(t *testing.T, r *report, system string, limit int64) *installation {
	t.Helper()
	i := &installation{system: system, repository: r.repository}
	i.host, i.disk = harness.NewNetwork(t).NewHostOnDisk(t, "bench")
	i.memory = i.host.ContainMemory(limit)
	i.ctx, i.fail = context.WithCancelCause(t.Context())
	t.Cleanup(func() { i.fail(errEnded) })
	switch system {
	case kedgeName:
		i.kubeconfig = kedgeKubeconfig
	case baselineName:
		helpers, err := helpersDir(i.repository)
		if err != nil {
			t.Fatal(err)
		}
		i.baseline = newBaseline(t, i.host, i.fail, i.repository, helpers, r.Kubernetes)
		i.kubeconfig = i.baseline.kubeconfig()
	}
	var err error
	if i.writtenAtStart, err = i.disk.Written(); err == nil {
		i.usedAtStart, err = i.disk.Used()
	}
	if err != nil {
		t.Fatal(err)
	}
	// Earlier writes of others must not be waited for later.
	unix.Sync()
	return i
}

// start starts the system, and returns the time of the start.
func (i *installation) start(t *testing.T) time.Time {
	started := time.Now()
	if i.baseline != nil {
		i.baseline.start()
	} else {
		i.server = i.host.StartServer(t, i.args...)
	}
	return started
}

// stop stops the system in order. Its pods keep running.
func (i *installation) stop() {
	if i.baseline != nil {
		i.baseline.stop()
	} else {
		i.server.Terminate()
	}
}

// startAgain starts a stopped system on the same data, and returns the seconds until its API is ready.
func (i *installation) startAgain() (float64, error) {
	started := time.Now()
	if i.baseline != nil {
		i.baseline.startAgain()
	} else {
		i.server.Start()
	}
	ctx, cancel := context.WithTimeout(i.ctx, startTimeout)
	defer cancel()
	if err := waitReadyz(ctx, i.host); err != nil {
		return 0, fmt.Errorf("start on the same data: %w", err)
	}
	return time.Since(started).Seconds(), nil
}
