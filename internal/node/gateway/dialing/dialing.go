// Package dialing connects the gateway of a node to endpoints of backends. Packages requests and
// sockets use it.
//
// A connection to a pod comes from an address that only the gateway of the node has
// (gateways.Source), so a NetworkPolicy can allow the gateway. The service proxy gives other addresses
// to clients of NodePorts.
//
// The server says which endpoints there are. It decides by what it knows at that time, so a node also
// refuses what no backend can be: see routing.MayBeBackend.
package dialing

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/base/routing"
)

// Dial connects to an endpoint. network is "tcp" or "udp".
type Dial func(ctx context.Context, network string, endpoint netip.AddrPort) (net.Conn, error)

// Plain is a Dial that refuses nothing, and leaves the own address to the kernel.
func Plain(ctx context.Context, network string, endpoint netip.AddrPort) (net.Conn, error) {
	var dialer net.Dialer
	return dialer.DialContext(ctx, network, endpoint.String())
}

// Dialer has the settings of a node.
type Dialer struct {
	// Services are the ranges of Services. The service proxy would choose another endpoint for such
	// an address.
	Services []netip.Prefix
	// Pods are the cluster's ranges of pods, and PodCIDRs returns those of this node. They say from
	// which address pods are called. Without ranges, the kernel chooses.
	Pods     []netip.Prefix
	PodCIDRs func() []string
}

// Dial is a Dial. It fails for an address that cannot be a backend.
func (d *Dialer) Dial(ctx context.Context, network string, endpoint netip.AddrPort) (net.Conn, error) {
	address := endpoint.Addr().Unmap()
	if !routing.MayBeBackend(address) || contains(d.Services, address) {
		return nil, fmt.Errorf("the gateway does not connect to %s, which is not the address of a backend", endpoint)
	}
	source := d.source(address)
	if !source.IsValid() {
		return Plain(ctx, network, endpoint)
	}
	dialer := net.Dialer{Control: portLater}
	if network == "udp" {
		dialer.LocalAddr = &net.UDPAddr{IP: source.AsSlice()}
	} else {
		dialer.LocalAddr = &net.TCPAddr{IP: source.AsSlice()}
	}
	conn, err := dialer.DialContext(ctx, network, endpoint.String())
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		// The network of pods is not there yet. Only pods that a policy isolates will refuse.
		return Plain(ctx, network, endpoint)
	}
	return conn, err
}

// source returns this node's address for connections to a pod, or the zero Addr.
func (d *Dialer) source(to netip.Addr) netip.Addr {
	if !contains(d.Pods, to) {
		return netip.Addr{}
	}
	for _, text := range d.PodCIDRs() {
		if own, err := netip.ParsePrefix(text); err == nil && own.Addr().Is4() == to.Is4() {
			return gateways.Source(own)
		}
	}
	return netip.Addr{}
}

// portLater lets the kernel choose the own port when it knows the endpoint. Otherwise all
// connections from the address would share its ports, whatever they lead to.
func portLater(network, _ string, c syscall.RawConn) error {
	if network != "tcp4" && network != "tcp6" {
		return nil
	}
	var failure error
	if err := c.Control(func(fd uintptr) {
		failure = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	}); err != nil {
		return err
	}
	return failure
}

func contains(ranges []netip.Prefix, address netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(address) })
}
