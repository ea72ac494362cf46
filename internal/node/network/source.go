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
	var wanted []netip.Addr
	for _, own := range podCIDRs {
		wanted = append(wanted, gateways.Source(own))
	}
	loopback, err := netlink.LinkByIndex(loopbackIndex)
	if err != nil {
		return fmt.Errorf("find the loopback device: %w", err)
	}
	if err := removeSources(cluster, wanted); err != nil {
		return err
	}
	for _, address := range wanted {
		if err := netlink.AddrReplace(loopback, sourceEntry(address)); err != nil {
			return fmt.Errorf("add the gateway's address %s: %w", address, err)
		}
	}
	return nil
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

// removeSources removes the addresses of the loopback device that are in the ranges of pods, except those
// in except. cluster are the cluster's ranges of pods.
func removeSources(cluster []netip.Prefix, except []netip.Addr) error {
	loopback, err := netlink.LinkByIndex(loopbackIndex)
	if err != nil {
		return fmt.Errorf("find the loopback device: %w", err)
	}
	entries, err := netlink.AddrList(loopback, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list the addresses of the loopback device: %w", err)
	}
	var faults []error
	for i := range entries {
		address, ok := netip.AddrFromSlice(entries[i].IP)
		address = address.Unmap()
		if !ok || slices.Contains(except, address) || !slices.ContainsFunc(cluster, func(r netip.Prefix) bool { return r.Contains(address) }) {
			continue
		}
		if err := netlink.AddrDel(loopback, &entries[i]); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			faults = append(faults, fmt.Errorf("remove the gateway's address %s: %w", address, err))
		}
	}
	return errors.Join(faults...)
}
