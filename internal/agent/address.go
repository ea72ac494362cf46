package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/host"
)

// ErrNodeMoved is why Run ends when the host has another address than it had
// at the start. Everything is made for the address it had, so the caller is to
// start anew, as a new process; pods run on meanwhile.
var ErrNodeMoved = errors.New("the address of this node has changed")

// addressInterval is how often the host's addresses are looked at. A change
// counts when it is seen twice: a network that is set up anew may be without
// its address for a moment.
const addressInterval = 10 * time.Second

// addressWatch returns the component that fails with ErrNodeMoved when the
// node's addresses, found by ResolveNode, are gone from the host and others are
// in their place. A host that has only lost its network keeps what it has.
func addressWatch(node host.Node, settings config.Node, cluster config.Cluster) component.Component {
	resolve := func() (host.Node, error) { return host.ResolveNode(settings, cluster.PodCIDRs()) }
	return newAddressWatch(node, resolve, host.Node.IsHere, addressInterval)
}

func newAddressWatch(node host.Node, resolve func() (host.Node, error), onHost func(host.Node) (bool, error), interval time.Duration) component.Component {
	return component.Func("address", func(ctx context.Context, ready func()) error {
		ready()
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		var seen host.Node
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
			}
			// An error here is a host without a default route, or a passing one.
			now, err := resolve()
			here, errHere := onHost(node)
			if err != nil || errHere != nil || here || slices.Equal(now.IPs, node.IPs) {
				seen = host.Node{}
				continue
			}
			if slices.Equal(now.IPs, seen.IPs) {
				return fmt.Errorf("%w from %v to %v", ErrNodeMoved, node.IPs, now.IPs)
			}
			seen = now
		}
	})
}
