// Package localapi is how commands ask the kedge that runs on their host: JSON
// over HTTP on a socket that only root can open. Each package that answers commands
// has one.
package localapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// ErrNobody says that nobody listens.
var ErrNobody = errors.New("nobody listens on this host")

// Listen makes the socket, and its folder, which nobody but root can open. It
// replaces one that was left by a kill -9, but not one that somebody serves.
func Listen(socket string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return nil, fmt.Errorf("make folder of socket: %w", err)
	}
	if other, err := net.Dial("unix", socket); err == nil {
		other.Close()
		return nil, fmt.Errorf("%s is served by another process: stop the other kedge on this host first", socket)
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

// Serve answers until ctx is done, and returns nil then. The contexts of the
// requests that are being answered end with it, and their answers are waited for.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		Handler:           handler,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case <-ctx.Done():
		_ = server.Shutdown(context.WithoutCancel(ctx))
		<-failed
		return nil
	case err := <-failed:
		return fmt.Errorf("serve %s: %w", listener.Addr(), err)
	}
}

// Answer is what a handler answers with.
func Answer(w http.ResponseWriter, answer any) {
	w.Header().Set("Content-Type", "application/json")
	// The only error is a client that went away.
	_ = json.NewEncoder(w).Encode(answer)
}

// Ask sends a question to a path of the socket, and reads the answer. The error
// is ErrNobody if nobody listens.
func Ask(ctx context.Context, socket, path string, question, answer any) error {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://kedge/"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := client.Do(post)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED):
		return ErrNobody
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w; run it as root", err)
	case err != nil:
		return err
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(answer); err != nil {
		return fmt.Errorf("kedge stopped before it was done: %w", err)
	}
	return nil
}
