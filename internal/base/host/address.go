package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
)

// ErrMoved is why WatchAddress fails when the host has another address than it had
// at the start. Everything is made for the address it had, so the caller is to
// start anew, as a new process; pods run on meanwhile.
var ErrMoved = errors.New("the address of this node has changed")

// addressInterval is how often the host's addresses are looked at. A change
// counts when it is seen twice: a network that is set up anew may be without
// its address for a moment.
const addressInterval = 10 * time.Second

// WatchAddress returns the component that fails with ErrMoved when the
// node's addresses, found by ResolveNode, are gone from the host and others are
// in their place. A host that has only lost its network keeps what it has.
func WatchAddress(node Node, settings config.Node, cluster config.Cluster) component.Component {
	resolve := func() (Node, error) { return ResolveNode(settings, cluster.PodCIDRs()) }
	return newAddressWatch(node, resolve, Node.IsHere, addressInterval)
}

func newAddressWatch(node Node, resolve func() (Node, error), onHost func(Node) (bool, error), interval time.Duration) component.Component {
	return component.Func("address", func(ctx context.Context, ready func()) error {
		ready()
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		var seen Node
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
				seen = Node{}
				continue
			}
			if slices.Equal(now.IPs, seen.IPs) {
				return fmt.Errorf("%w from %v to %v", ErrMoved, node.IPs, now.IPs)
			}
			seen = now
		}
	})
}
