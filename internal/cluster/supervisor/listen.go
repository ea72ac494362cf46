package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"

	"github.com/kedge-dev/kedge/internal/base/host"
)

// Listen opens the server's port on address, or on all addresses of both families if
// address is empty. Its errors say what to do. If the port is taken, they name the
// process.
func Listen(address string, port int) (net.Listener, error) {
	config := net.ListenConfig{KeepAlive: keepAlive}
	wanted := host.Port{Network: "tcp", Address: net.JoinHostPort(address, strconv.Itoa(port))}
	listener, err := config.Listen(context.Background(), wanted.Network, wanted.Address)
	switch {
	case err == nil:
		return listener, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("port %d is taken by %s: stop that program, or choose another port with --https-listen-port", port, host.PortOwner(wanted))
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("this host has no address %s: correct --bind-address", address)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("port %d needs root: run kedge as root, or choose a port above 1023 with --https-listen-port", port)
	}
	return nil, fmt.Errorf("listen: %w", err)
}
