// Follows github.com/containerd/containerd/v2 v2.4.2, cmd/containerd/command/main.go.

package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/cmd/containerd/server"
	srvconfig "github.com/containerd/containerd/v2/cmd/containerd/server/config"
	"github.com/containerd/containerd/v2/core/mount"
)

//upstream:follows github.com/containerd/containerd/v2/cmd/containerd/command/main.go App
func (c *Containerd) start(ctx context.Context, config *srvconfig.Config) (*server.Server, error) {
	if err := server.CreateTopLevelDirectories(config); err != nil {
		return nil, fmt.Errorf("make containerd folders: %w", err)
	}
	if err := makePassable(config.State); err != nil {
		return nil, err
	}
	for _, folder := range []string{c.cfg.CNIConfDir, filepath.Dir(c.cfg.Socket)} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return nil, fmt.Errorf("make folder %s: %w", folder, err)
		}
	}
	// Upstream's main does this too: an interrupted unpacking leaves mounts behind.
	if err := mount.SetTempMountLocation(filepath.Join(config.Root, "tmpmounts")); err != nil {
		return nil, fmt.Errorf("make folder for containerd's temporary mounts: %w", err)
	}
	warnings, err := mount.CleanupTempMounts(0)
	if err != nil {
		return nil, fmt.Errorf("clean up containerd's temporary mounts: %w", err)
	}
	for _, w := range warnings {
		c.log.Warnf("clean up temporary mount: %v", w)
	}

	c.reader.capture()
	interceptPulls(c.cfg.Source)
	srv, err := server.New(ctx, config)
	// The CRI plugin sets klog's verbosity for the whole process to its own log level
	// (setGLogLevel in plugins/cri/runtime/plugin.go).
	//upstream:relies-on github.com/containerd/containerd/v2/plugins/cri/runtime/plugin.go setGLogLevel
	c.cfg.Verbosity.Restore()
	if err != nil {
		return nil, fmt.Errorf("start containerd: %w", err)
	}
	if c.reader.service == nil {
		c.stop(srv)
		return nil, errors.New("find containerd's CRI: its plugin did not load")
	}
	if err := srv.Start(ctx); err != nil {
		c.stop(srv)
		return nil, fmt.Errorf("serve containerd: %w", err)
	}
	return srv, nil
}
