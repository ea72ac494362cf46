// Package status tells what the parts of a running kedge do: Serve answers on
// a socket that only root can open, Fetch asks there. It is what `kedge
// status` shows.
package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/kedge-dev/kedge/internal/component"
)

// Report is the state of one kedge process.
type Report struct {
	PID        int                `json:"pid"`
	Version    string             `json:"version"`
	Node       string             `json:"node"`
	Components []component.Status `json:"components"`
}

// ErrNotRunning says that nobody answers on the socket.
var ErrNotRunning = errors.New("kedge is not running on this host; start it with `kedge server`")

// New returns the component that answers on socket with what report returns.
func New(socket string, report func() Report) component.Component {
	return component.Func("status", func(ctx context.Context, ready func()) error {
		// A socket left by a kill -9; whoever holds the data directory's lock
		// is the only one to make it.
		if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove old status socket: %w", err)
		}
		listener, err := net.Listen("unix", socket)
		if err != nil {
			return fmt.Errorf("listen for status: %w", err)
		}
		if err := os.Chmod(socket, 0o600); err != nil {
			listener.Close()
			return fmt.Errorf("protect status socket: %w", err)
		}
		server := &http.Server{
			ReadHeaderTimeout: 10 * time.Second,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				// The only error is a client that went away.
				_ = json.NewEncoder(w).Encode(report())
			}),
		}
		failed := make(chan error, 1)
		go func() { failed <- server.Serve(listener) }()
		ready()
		select {
		case <-ctx.Done():
			server.Close()
			<-failed
			return nil
		case err := <-failed:
			return fmt.Errorf("serve status: %w", err)
		}
	})
}

// Fetch asks the kedge that listens on socket. The error is ErrNotRunning if
// there is none.
func Fetch(ctx context.Context, socket string) (*Report, error) {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://kedge/", nil)
	if err != nil {
		return nil, fmt.Errorf("fetch status: %w", err)
	}
	response, err := client.Do(request)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED):
		return nil, ErrNotRunning
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("fetch status: %w; run it as root", err)
	case err != nil:
		return nil, fmt.Errorf("fetch status: %w", err)
	}
	defer response.Body.Close()
	var report Report
	if err := json.NewDecoder(response.Body).Decode(&report); err != nil {
		return nil, fmt.Errorf("read status: %w", err)
	}
	return &report, nil
}
