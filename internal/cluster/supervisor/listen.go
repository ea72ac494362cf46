package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
)

// Listen opens the server's port on address, or on all addresses of both families if
// address is empty. Its errors say what to do. If the port is taken, they name the
// process.
func Listen(address string, port int) (net.Listener, error) {
	config := net.ListenConfig{KeepAlive: keepAlive}
	listener, err := config.Listen(context.Background(), "tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	switch {
	case err == nil:
		return listener, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("port %d is taken by %s: stop that process, or choose another port with --https-listen-port", port, portHolder("/proc", port))
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("this host has no address %s: correct --bind-address", address)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("port %d needs root: run kedge as root, or choose a port above 1023 with --https-listen-port", port)
	}
	return nil, fmt.Errorf("listen: %w", err)
}
