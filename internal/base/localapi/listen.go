package localapi

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// Listen makes a socket and its folder, which only root can open. It replaces a socket
// that a killed kedge has left. It fails if another process serves the socket.
func Listen(socket string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return nil, fmt.Errorf("make folder of socket: %w", err)
	}
	if other, err := net.Dial("unix", socket); err == nil {
		other.Close()
		return nil, fmt.Errorf("another process serves %s: stop the other kedge on this host first", socket)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen on socket: %w", err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		listener.Close()
		return nil, fmt.Errorf("protect socket: %w", err)
	}
	return listener, nil
}
