package server

import (
	"errors"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/host"
)

// TestResolve resolves the node of several servers on a host without a network.
func TestResolve(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make a host without a network")
	}
	alone := func(c *config.Config) { c.Server.DisableAgent, c.Server.BindAddress = true, "127.0.0.1" }
	for name, test := range map[string]struct {
		change func(*config.Config)
		works  bool
	}{
		"without a node, on loopback": {alone, true},
		"with a node":                 {func(c *config.Config) { alone(c); c.Server.DisableAgent = false }, false},
		"on all addresses":            {func(c *config.Config) { alone(c); c.Server.BindAddress = "" }, false},
		"on another address":          {func(c *config.Config) { alone(c); c.Server.BindAddress = "192.0.2.1" }, false},
		"of another family":           {func(c *config.Config) { alone(c); c.Server.BindAddress = "::1" }, false},
		"of several servers":          {func(c *config.Config) { alone(c); c.Server.ClusterInit = true }, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := config.Default()
			c.DataDir, c.Node.NodeName = t.TempDir(), "edge"
			test.change(c)
			type result struct {
				node host.Node
				err  error
			}
			results := make(chan result)
			go func() {
				runtime.LockOSThread() // the thread ends with this function
				if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
					results <- result{err: err}
					return
				}
				resolved, err := Resolve(c)
				results <- result{resolved.node, err}
			}()
			got := <-results
			if test.works && (got.err != nil || got.node.Name != "edge" || !slices.Equal(got.node.IPs, []netip.Addr{netip.MustParseAddr("127.0.0.1")})) {
				t.Errorf("got %v, %v, want the address of loopback", got.node, got.err)
			}
			if !test.works && !errors.Is(got.err, host.ErrNoRoute) {
				t.Errorf("got %v, %v, want %v", got.node, got.err, host.ErrNoRoute)
			}
		})
	}
}
