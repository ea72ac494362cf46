package network

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/gateways"
)

// loopbackIndex is the index of the loopback device in each network namespace.
const loopbackIndex = 1

// keepSources makes the addresses of gateways.Source this node's. The bridge has them too, but the bridge
// comes with the first pod of the node, and a gateway may have backends on other nodes only. The addresses
// are on the loopback device, where no packet leaves. Addresses there of an earlier pod CIDR are removed.
// cluster are the cluster's ranges of pods.
func keepSources(podCIDRs, cluster []netip.Prefix) error {
	wanted := sources(podCIDRs)
	loopback, err := netlink.LinkByIndex(loopbackIndex)
	if err != nil {
		return fmt.Errorf("find the loopback device: %w", err)
	}
	if err := removeAddresses(loopback, cluster, wanted); err != nil {
		return err
	}
	for _, address := range wanted {
		if err := netlink.AddrReplace(loopback, sourceEntry(address)); err != nil {
			return fmt.Errorf("add the gateway's address %s: %w", address, err)
		}
	}
	return nil
}

// sources returns the addresses of gateways.Source in a node's pod CIDRs.
func sources(podCIDRs []netip.Prefix) []netip.Addr {
	var all []netip.Addr
	for _, own := range podCIDRs {
		all = append(all, gateways.Source(own))
	}
	return all
}

// leaveFormerRange removes the addresses that the bridge has of an earlier pod CIDR, and their routes with them. Another
// node may have that pod CIDR now. The route to that node would take the place of the bridge's. When this node gets the
// pod CIDR back, the bridge would have an address without a route, and no pod of the node would be reached.
func leaveFormerRange(podCIDRs, cluster []netip.Prefix) error {
	bridge, err := netlink.LinkByName(BridgeName)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find the bridge of the pods: %w", err)
	}
	return removeAddresses(bridge, cluster, sources(podCIDRs))
}

// sourceEntry returns an address as the kernel has it. The kernel itself never chooses it, because its
// scope is the host (IPv4), or because it is deprecated (IPv6).
func sourceEntry(address netip.Addr) *netlink.Addr {
	entry := &netlink.Addr{IPNet: &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(address.BitLen(), address.BitLen())}}
	if address.Is4() {
		entry.Scope = unix.RT_SCOPE_HOST
	} else {
		entry.Flags, entry.ValidLft = unix.IFA_F_NODAD, forever
	}
	return entry
}

// forever is the lifetime of an address in seconds, which is 68 years.
const forever = math.MaxInt32

// removeSources removes the addresses of the loopback device that are in the ranges of pods. cluster are the cluster's ranges
// of pods.
func removeSources(cluster []netip.Prefix) error {
	loopback, err := netlink.LinkByIndex(loopbackIndex)
	if err != nil {
		return fmt.Errorf("find the loopback device: %w", err)
	}
	return removeAddresses(loopback, cluster, nil)
}

// removeAddresses removes the addresses of a device that are in the cluster's ranges of pods, except those in except.
func removeAddresses(device netlink.Link, cluster []netip.Prefix, except []netip.Addr) error {
	name := device.Attrs().Name
	entries, err := netlink.AddrList(device, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list the addresses of %s: %w", name, err)
	}
	var faults []error
	for i := range entries {
		address, ok := netip.AddrFromSlice(entries[i].IP)
		address = address.Unmap()
		if !ok || slices.Contains(except, address) || !slices.ContainsFunc(cluster, func(r netip.Prefix) bool { return r.Contains(address) }) {
			continue
		}
		if err := netlink.AddrDel(device, &entries[i]); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			faults = append(faults, fmt.Errorf("remove the address %s of %s: %w", address, name, err))
		}
	}
	return errors.Join(faults...)
}
