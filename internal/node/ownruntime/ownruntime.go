// Package ownruntime connects a container runtime that the user runs in place of kedge's
// containerd. The agent package creates its component. The teardown package calls Unlink.
package ownruntime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/util/wait"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/node/runtimesocket"
)

const (
	// runtimeInterval is how often the user's runtime is asked whether it is running.
	// runtimeReminder is how often the log says that it is not.
	runtimeInterval = 500 * time.Millisecond
	runtimeReminder = 30 * time.Second
	// runtimeTimeout limits how long the runtime may take to answer.
	runtimeTimeout = 5 * time.Second
)

// cniPlugins are the plugins that kedge's CNI configuration names, and those that container
// runtimes themselves need.
var cniPlugins = []string{"kedge-cni", "bridge", "host-local", "loopback", "portmap", "bandwidth"}

// New returns the component that is ready when the user's runtime answers. It waits without limit:
// at boot the runtime may start later, and a node can do nothing without it.
func New(socket string) component.Component {
	return component.Step("runtime", func(ctx context.Context) error {
		if err := link(datadir.CNIBinDir); err != nil {
			return err
		}
		return waitForRuntime(ctx, socket)
	})
}

func waitForRuntime(ctx context.Context, socket string) error {
	var reminded time.Time
	return wait.PollUntilContextCancel(ctx, runtimeInterval, true, func(ctx context.Context) (bool, error) {
		err := askRuntime(ctx, socket)
		if err == nil || ctx.Err() != nil {
			return true, ctx.Err()
		}
		if time.Since(reminded) > runtimeReminder {
			reminded = time.Now()
			logrus.WithField("component", "runtime").Warnf("No container runtime answers at %s: %v: start it, correct --container-runtime-endpoint, or remove that setting to use kedge's own containerd; trying again", socket, err)
		}
		return false, nil
	})
}

// askRuntime returns nil if the socket serves the CRI. It makes a new connection each time, because
// gRPC retries a failed connection less and less often.
func askRuntime(ctx context.Context, socket string) error {
	if _, err := os.Stat(socket); err != nil {
		return err // plainer than gRPC's error
	}
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	runtime, conn, err := runtimesocket.Connect(socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = runtime.Version(ctx, &cri.VersionRequest{})
	return err
}

// link links kedge's CNI plugins into the folder where other runtimes look for them. It keeps files
// that already have these names. The links stay valid after an update of kedge: they lead to the
// helpers of the running kedge.
func link(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("make folder of CNI plugins: %w", err)
	}
	for _, plugin := range cniPlugins {
		err := os.Symlink(filepath.Join(datadir.HelpersLink, plugin), filepath.Join(folder, plugin))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("link CNI plugin: %w", err)
		}
	}
	return nil
}

// Unlink removes the links to kedge's plugins from a folder, and the folder if nothing else was in it. Other files of these
// names stay.
func Unlink(folder string) error {
	var faults []error
	removed := false
	for _, plugin := range cniPlugins {
		link := filepath.Join(folder, plugin)
		if target, err := os.Readlink(link); err == nil && target == filepath.Join(datadir.HelpersLink, plugin) {
			faults = append(faults, os.Remove(link))
			removed = true
		}
	}
	if removed { // both fail if there is something in them
		_ = os.Remove(folder)
		_ = os.Remove(filepath.Dir(folder))
	}
	return errors.Join(faults...)
}
