package keeper

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netns"

	"github.com/kedge-dev/kedge/internal/throwaway/clusters"
	"github.com/kedge-dev/kedge/internal/throwaway/egress"
	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
)

// publisher forwards connections from ports of the machine to nodes.
type publisher struct {
	// network is the namespace of the cluster's network. Connections to nodes begin there.
	network netns.NsHandle
	servers []*egress.Server
}

// publish opens the ports, which lead to a node.
func publish(network netns.NsHandle, ports []clusters.Published, node netip.Addr) (*publisher, error) {
	p := &publisher{network: network}
	for _, port := range ports {
		if _, err := p.open("publish "+port.String(), port.Listen, netip.AddrPortFrom(node, port.Port)); err != nil {
			p.close()
			return nil, err
		}
	}
	return p, nil
}

// open opens a port of the machine that leads to target, and returns its address. what is what the port is for.
func (p *publisher) open(what string, address, target netip.AddrPort) (net.Addr, error) {
	listener, err := listen(what, address)
	if err != nil {
		return nil, err
	}
	p.servers = append(p.servers, egress.Serve(listener, egress.MaxConnections, func(conn net.Conn) { p.forward(conn, target) }))
	return listener.Addr(), nil
}

// listen opens a port of the machine. what is what the port is for.
func listen(what string, address netip.AddrPort) (net.Listener, error) {
	network := "tcp6"
	if address.Addr().Is4() {
		network = "tcp4" // With tcp, 0.0.0.0 would be all addresses of IPv6, too.
	}
	listener, err := net.Listen(network, address.String())
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s: another program listens on %s. Run `ss -ltnp` to see which, or choose another port", what, address)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("%s: only root may open port %d: choose one from 1024 on", what, address.Port())
	case err != nil:
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return listener, nil
}

func (p *publisher) forward(conn net.Conn, target netip.AddrPort) {
	defer conn.Close()
	var out net.Conn
	err := hosts.Within(p.network, func() (err error) {
		out, err = net.Dial("tcp", target.String())
		return err
	})
	if err != nil {
		_ = conn.(*net.TCPConn).SetLinger(0)
		return
	}
	defer out.Close()
	egress.Pipe(conn.(*net.TCPConn), out.(*net.TCPConn))
}

func (p *publisher) close() {
	for _, server := range p.servers {
		server.Close()
	}
}
