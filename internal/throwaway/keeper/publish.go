package keeper

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/kedge-dev/kedge/internal/throwaway/clusters"
	"github.com/kedge-dev/kedge/internal/throwaway/egress"
)

// publisher forwards connections from ports of the machine to the first node.
type publisher struct {
	listeners []net.Listener
	running   sync.WaitGroup
}

// publish opens the ports.
func publish(ports []clusters.Published, node netip.Addr) (*publisher, error) {
	p := &publisher{}
	for _, port := range ports {
		listener, err := listen("publish "+port.String(), port.Listen)
		if err != nil {
			p.close()
			return nil, err
		}
		p.listeners = append(p.listeners, listener)
		target := netip.AddrPortFrom(node, port.Port)
		p.running.Go(func() {
			for {
				conn, err := listener.Accept()
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err == nil {
					go forward(conn, target)
				}
			}
		})
	}
	return p, nil
}

// listen opens a port of the machine. what is what the port is for.
func listen(what string, address netip.AddrPort) (net.Listener, error) {
	listener, err := net.Listen("tcp", address.String())
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
	for _, listener := range p.listeners {
		listener.Close()
	}
	p.running.Wait()
}
