package snapshot

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
	"syscall"
	"time"
)

// Request is what a command asks of the server that runs here.
type Request struct {
	// Names of snapshots: of the one to save, or the only ones to prune, or of
	// the files to delete.
	Names []string `json:"names,omitempty"`
	// Retention is how many prune keeps; 0 is the server's own setting.
	Retention int `json:"retention,omitempty"`
}

// Answer is what comes back.
type Answer struct {
	// Files are those that were saved, listed or deleted.
	Files []File `json:"files,omitempty"`
	Error string `json:"error,omitempty"`
}

// The commands.
const (
	CommandSave   = "save"
	CommandList   = "list"
	CommandDelete = "delete"
	CommandPrune  = "prune"
)

// ErrNotRunning says that no server runs on this host.
var ErrNotRunning = errors.New("no kedge server is ready on this host; start it with `kedge server`, and see `kedge status`")

// listen makes the socket, which nobody but root can open.
func listen(socket string) (net.Listener, error) {
	// A socket left by a kill -9; whoever holds the data directory's lock is the
	// only one to make it.
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove old socket of snapshots: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen for snapshots: %w", err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		listener.Close()
		return nil, fmt.Errorf("protect socket of snapshots: %w", err)
	}
	return listener, nil
}

// serve answers commands until ctx is done, and ends those that run then.
func (s *Snapshots) serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		Handler:           http.HandlerFunc(s.answer),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case <-ctx.Done():
		// Their contexts have ended, so it does not take long.
		_ = server.Shutdown(context.WithoutCancel(ctx))
		<-failed
		return nil
	case err := <-failed:
		return fmt.Errorf("serve snapshots: %w", err)
	}
}

func (s *Snapshots) answer(w http.ResponseWriter, r *http.Request) {
	var request Request
	var answer Answer
	err := json.NewDecoder(r.Body).Decode(&request)
	if err == nil {
		answer.Files, err = s.do(r.Context(), r.URL.Path[1:], request)
	}
	if err != nil {
		answer.Error = err.Error()
	}
	w.Header().Set("Content-Type", "application/json")
	// The only error is a client that went away.
	_ = json.NewEncoder(w).Encode(answer)
}

func (s *Snapshots) do(ctx context.Context, command string, r Request) ([]File, error) {
	name := ""
	if len(r.Names) > 0 {
		name = r.Names[0]
	}
	switch command {
	case CommandSave:
		file, err := s.save(ctx, name)
		if file == nil {
			return nil, err
		}
		return []File{*file}, err
	case CommandList:
		return s.list(ctx)
	case CommandDelete:
		return s.delete(ctx, r.Names)
	case CommandPrune:
		if r.Retention == 0 {
			r.Retention = s.cfg.Settings.Retention
		}
		return s.prune(ctx, name, r.Retention)
	}
	return nil, fmt.Errorf("there is no command %q", command)
}

// Ask has the server that listens on socket do a command. Files may have been
// saved or deleted also if there is an error; it is ErrNotRunning if nobody
// listens.
func Ask(ctx context.Context, socket, command string, request Request) ([]File, error) {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	body, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("ask for snapshots: %w", err)
	}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://kedge/"+command, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("ask for snapshots: %w", err)
	}
	response, err := client.Do(post)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED):
		return nil, ErrNotRunning
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("ask for snapshots: %w; run it as root", err)
	case err != nil:
		return nil, fmt.Errorf("ask for snapshots: %w", err)
	}
	defer response.Body.Close()
	var answer Answer
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("the server stopped before it was done: %w", err)
	}
	if answer.Error != "" {
		return answer.Files, errors.New(answer.Error)
	}
	return answer.Files, nil
}

// List lists the snapshots of a server that does not run.
func List(ctx context.Context, cfg Config) ([]File, error) { return New(cfg).list(ctx) }
