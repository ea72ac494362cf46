// Follows github.com/flannel-io/flannel v0.28.10, pkg/backend/vxlan/vxlan_network.go.
// Follows github.com/flannel-io/flannel v0.28.10, pkg/backend/vxlan/device.go.

package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"syscall"
	"time"

	"github.com/flannel-io/flannel/pkg/backend"
	"github.com/flannel-io/flannel/pkg/lease"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
)

// vxlanDevices returns the names of the devices that flannel's vxlan backend makes for a VNI
// (pkg/backend/vxlan/vxlan.go).
//
//upstream:relies-on github.com/flannel-io/flannel/pkg/backend/vxlan/vxlan.go createVXLANDevice
func vxlanDevices(vni int) (v4, v6 string) {
	return fmt.Sprintf("flannel.%d", vni), fmt.Sprintf("flannel-v6.%d", vni)
}

// isVXLAN tells whether a link is a device of flannel's vxlan backend, with any VNI.
func isVXLAN(link netlink.Link) bool {
	vxlan, is := link.(*netlink.Vxlan)
	if !is {
		return false
	}
	v4, v6 := vxlanDevices(vxlan.VxlanId)
	return vxlan.Name == v4 || vxlan.Name == v6
}

// vxlanRetry is the wait before a failed update of the devices, or a lost subscription, is tried again.
const vxlanRetry = time.Second

// vxlanNetwork configures the other nodes in flannel's vxlan devices. flannel's backend makes the
// devices, but its Run is not used (flannel's pkg/backend/vxlan/vxlan_network.go). It gives a node up
// after ten failed attempts (handleSubnetEvents). It ends the process if it cannot subscribe to
// messages about links. The kernel drops such messages while many pods start and stop, and flannel
// then misses a device that is removed before it has subscribed again (watchVXLANDevice).
//
//upstream:follows github.com/flannel-io/flannel/pkg/backend/vxlan/vxlan_network.go network.Run network.watchVXLANDeviceWithSubscriber network.handleSubnetEvents
type vxlanNetwork struct {
	backend.Network
	leases *leases
	fence  *fence
	vni    int
}

// peer is another node in one address family.
type peer struct {
	device string
	pods   *net.IPNet
	// vtep is the hardware address of the node's device, and host is the address to which
	// packets for it are sent.
	vtep net.HardwareAddr
	host net.IP
}

// Run follows the nodes until ctx is cancelled. If the devices must be made again, it calls
// leases.again and returns.
func (v *vxlanNetwork) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	gone := make(chan struct{})
	go func() {
		if watchDevices(ctx, v.devices(), netlink.LinkSubscribeWithOptions) {
			close(gone)
		}
	}()
	known := map[string]lease.Lease{}
	for {
		nodes, err := v.leases.nodes.List(labels.Everything())
		if err == nil && slices.ContainsFunc(nodes, v.leases.isOwnAndChanged) {
			v.leases.again()
			return
		}
		if err == nil {
			err = errors.Join(v.fence.update(ctx, nodes), v.update(known, v.leases.current(nodes)))
		}
		var retry <-chan time.Time
		if err != nil && ctx.Err() == nil {
			v.leases.log.Warnf("Cannot connect the pods of some nodes with this node's pods yet, trying again: %v", err)
			retry = time.After(vxlanRetry)
		}
		select {
		case <-v.leases.changed:
		case <-retry:
		case <-gone:
			v.leases.again()
			return
		case <-ctx.Done():
			return
		}
	}
}

// devices returns the devices of the cluster's address families.
func (v *vxlanNetwork) devices() []string {
	var names []string
	v4, v6 := vxlanDevices(v.vni)
	if v.leases.config.EnableIPv4 {
		names = append(names, v4)
	}
	if v.leases.config.EnableIPv6 {
		names = append(names, v6)
	}
	return names
}

// update brings the devices, and known, from known to current. It removes before it adds, because a new
// node may have the addresses of a removed one.
func (v *vxlanNetwork) update(known, current map[string]lease.Lease) error {
	delete(current, v.leases.nodeName)
	var faults []error
	each := func(name string, peers []peer, do func(peer) error) (ok bool) {
		ok = true
		for _, p := range peers {
			if err := do(p); err != nil {
				faults, ok = append(faults, fmt.Errorf("node %s: %w", name, err)), false
			}
		}
		return ok
	}
	for name, old := range known {
		if now, ok := current[name]; !ok || !reflect.DeepEqual(now, old) {
			peers, _ := peersOf(old, v.vni)
			each(name, peers, peer.remove)
			delete(known, name)
		}
	}
	for name, now := range current {
		if _, ok := known[name]; ok {
			continue
		}
		peers, err := peersOf(now, v.vni)
		if err != nil {
			// Trying again is useless until the node's annotations change.
			v.leases.log.Warnf("Cannot reach the pods of node %s: %v", name, err)
		}
		if each(name, peers, peer.add) {
			known[name] = now
		}
	}
	return errors.Join(faults...)
}

// peersOf returns the peers that flannel's data in a lease describe. vni is this node's.
//
//upstream:relies-on github.com/flannel-io/flannel/pkg/backend/vxlan/vxlan.go newSubnetAttrs hardwareAddr.MarshalJSON
func peersOf(l lease.Lease, vni int) ([]peer, error) {
	if l.Attrs.BackendType != "vxlan" {
		return nil, fmt.Errorf("it has flannel-backend %s, but this node has vxlan", l.Attrs.BackendType)
	}
	var peers []peer
	add := func(device string, data json.RawMessage, pods *net.IPNet, host net.IP) error {
		about := struct {
			VNI     int
			VtepMAC string
		}{VNI: vni}
		if err := json.Unmarshal(data, &about); err != nil {
			return fmt.Errorf("read the node's annotation about %s: %w", device, err)
		}
		if about.VNI != vni {
			return fmt.Errorf("it has VNI %d, but this node has %d: restart kedge on both, so that they have the flannel-conf of the servers", about.VNI, vni)
		}
		vtep, err := net.ParseMAC(about.VtepMAC)
		if err != nil {
			return fmt.Errorf("read the node's annotation about %s: %w", device, err)
		}
		peers = append(peers, peer{device, pods, vtep, host})
		return nil
	}
	var v4, v6 error
	device, deviceV6 := vxlanDevices(vni)
	if l.EnableIPv4 {
		v4 = add(device, l.Attrs.BackendData, l.Subnet.ToIPNet(), l.Attrs.PublicIP.ToIP())
	}
	if l.EnableIPv6 {
		v6 = add(deviceV6, l.Attrs.BackendV6Data, l.IPv6Subnet.ToIPNet(), l.Attrs.PublicIPv6.ToIP())
	}
	return peers, errors.Join(v4, v6)
}

// entries returns the entries for a peer: the first address of its pod CIDR is the address of its
// device (arp), the device is on the peer's host (fdb), and its pods are behind the device (route).
//
//upstream:follows github.com/flannel-io/flannel/pkg/backend/vxlan/device.go vxlanDevice.AddFDB vxlanDevice.AddV6FDB vxlanDevice.AddARP vxlanDevice.AddV6ARP
func (p peer) entries() (arp, fdb *netlink.Neigh, route *netlink.Route, err error) {
	link, err := netlink.LinkByName(p.device)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("find device %s: %w", p.device, err)
	}
	index := link.Attrs().Index
	arp = &netlink.Neigh{LinkIndex: index, State: netlink.NUD_PERMANENT, Type: unix.RTN_UNICAST, IP: p.pods.IP, HardwareAddr: p.vtep}
	fdb = &netlink.Neigh{LinkIndex: index, State: netlink.NUD_PERMANENT, Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF, IP: p.host, HardwareAddr: p.vtep}
	route = &netlink.Route{LinkIndex: index, Scope: netlink.SCOPE_UNIVERSE, Dst: p.pods, Gw: p.pods.IP, Flags: int(netlink.FLAG_ONLINK)}
	return arp, fdb, route, nil
}

// add adds the peer's entries. The route comes last: packets that use it before the other entries exist
// would make the kernel ask for them on the network.
func (p peer) add() error {
	arp, fdb, route, err := p.entries()
	if err != nil {
		return err
	}
	if err := netlink.NeighSet(arp); err != nil {
		return fmt.Errorf("add neighbour %s: %w", p.pods.IP, err)
	}
	if err := netlink.NeighSet(fdb); err != nil {
		return fmt.Errorf("add forwarding to %s: %w", p.host, err)
	}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("add route to %s: %w", p.pods, err)
	}
	return nil
}

// remove removes the peer's entries. It ignores those that do not exist.
func (p peer) remove() error {
	arp, fdb, route, err := p.entries()
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil
	}
	if err != nil {
		return err
	}
	for what, err := range map[string]error{
		"route":      netlink.RouteDel(route),
		"forwarding": netlink.NeighDel(fdb),
		"neighbour":  netlink.NeighDel(arp),
	} {
		if err != nil && !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("remove %s of %s: %w", what, p.pods, err)
		}
	}
	return nil
}

// subscribeFunc is the type of netlink.LinkSubscribeWithOptions.
type subscribeFunc func(chan<- netlink.LinkUpdate, <-chan struct{}, netlink.LinkSubscribeOptions) error

// watchDevices returns true when one of the devices is gone, and false when ctx is cancelled. When the
// kernel drops messages, netlink ends the subscription. watchDevices then subscribes again and checks
// that the devices exist.
func watchDevices(ctx context.Context, names []string, subscribe subscribeFunc) bool {
	err := wait.PollUntilContextCancel(ctx, vxlanRetry, true, func(ctx context.Context) (bool, error) {
		return watchDevicesOnce(ctx, names, subscribe), nil
	})
	return err == nil
}

// watchDevicesOnce is watchDevices, except that it also returns false when the subscription ends.
func watchDevicesOnce(ctx context.Context, names []string, subscribe subscribeFunc) bool {
	updates, done := make(chan netlink.LinkUpdate), make(chan struct{})
	if err := subscribe(updates, done, netlink.LinkSubscribeOptions{}); err != nil {
		return false
	}
	defer func() {
		close(done)
		go func() { // the sender may be about to send
			for range updates {
			}
		}()
	}()
	for _, name := range names {
		var missing netlink.LinkNotFoundError
		if _, err := netlink.LinkByName(name); errors.As(err, &missing) {
			return true
		}
	}
	for {
		select {
		case update, ok := <-updates:
			switch {
			case !ok:
				return false
			case update.Header.Type == unix.RTM_DELLINK && slices.Contains(names, update.Attrs().Name):
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}
