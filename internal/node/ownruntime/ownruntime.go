// Package ownruntime is a container runtime of the user's own, in place of kedge's
// containerd. The agent package makes its component; teardown calls Unlink.
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
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/util/wait"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/datadir"
)

const (
	// runtimeInterval is how often a runtime of the user's own is asked whether
	// it is there, and runtimeReminder how often it is said that it is not.
	runtimeInterval = 500 * time.Millisecond
	runtimeReminder = 30 * time.Second
	// runtimeTimeout is how long it may take to answer.
	runtimeTimeout = 5 * time.Second
)

// cniPlugins are those of the helpers that kedge's CNI configuration names, and
// what the runtimes themselves want.
var cniPlugins = []string{"bridge", "host-local", "loopback", "portmap", "bandwidth"}

// New returns the component that is ready when a runtime that is
// not kedge's answers. It waits for it as long as it takes: at boot that may be
// started later, and without it there is nothing else that a node could do.
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
			logrus.WithField("component", "runtime").Warnf("No container runtime answers at %s: %v: start it, correct --container-runtime-endpoint, or leave that out for kedge's own containerd; trying again", socket, err)
		}
		return false, nil
	})
}

// askRuntime returns nil if a socket serves the CRI. The connection is a new
// one each time: one that failed would be tried again more and more rarely.
func askRuntime(ctx context.Context, socket string) error {
	if _, err := os.Stat(socket); err != nil {
		return err // plainer than what gRPC makes of it
	}
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to runtime: %w", err)
	}
	defer conn.Close()
	_, err = cri.NewRuntimeServiceClient(conn).Version(ctx, &cri.VersionRequest{})
	return err
}

// link puts kedge's CNI plugins where other runtimes look for them, as
// far as there are none of these names. The links stay right when kedge is
// updated: they lead to the helpers of the kedge that runs.
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

// Unlink removes the links of kedge's plugins from a folder.
func Unlink(folder string) error {
	var faults []error
	for _, plugin := range cniPlugins {
		link := filepath.Join(folder, plugin)
		if target, err := os.Readlink(link); err == nil && target == filepath.Join(datadir.HelpersLink, plugin) {
			faults = append(faults, os.Remove(link))
		}
	}
	return errors.Join(faults...)
}
