package keeper

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/kedge-dev/kedge/internal/throwaway/clusters"
	"github.com/kedge-dev/kedge/internal/throwaway/egress"
)

// publisher forwards connections from ports of the machine to the first node.
type publisher struct{ servers []*egress.Server }

// publish opens the ports.
func publish(ports []clusters.Published, node netip.Addr) (*publisher, error) {
	p := &publisher{}
	for _, port := range ports {
		listener, err := listen("publish "+port.String(), port.Listen)
		if err != nil {
			p.close()
			return nil, err
		}
		target := netip.AddrPortFrom(node, port.Port)
		p.servers = append(p.servers, egress.Serve(listener, egress.MaxConnections, func(conn net.Conn) { forward(conn, target) }))
	}
	return p, nil
}

// listen opens a port of the machine. what is what the port is for.
func listen(what string, address netip.AddrPort) (net.Listener, error) {
	network := "tcp6"
	if address.Addr().Is4() {
		network = "tcp4" // With tcp, 0.0.0.0 would be all addresses of IPv6, too.
	}
	listener, err := net.Listen(network, address.String())
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s: another program listens on %s. Run `ss -ltnp` to see which, or choose another port", what, address)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return listener, nil
}

func forward(conn net.Conn, target netip.AddrPort) {
	defer conn.Close()
	out, err := net.Dial("tcp", target.String())
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
