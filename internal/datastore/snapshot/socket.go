package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/kedge-dev/kedge/internal/base/localapi"
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
	localapi.Answer(w, answer)
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
	var answer Answer
	err := localapi.Ask(ctx, socket, command, request, &answer)
	switch {
	case errors.Is(err, localapi.ErrNobody):
		return nil, ErrNotRunning
	case err != nil:
		return nil, fmt.Errorf("ask for snapshots: %w", err)
	}
	if answer.Error != "" {
		return answer.Files, errors.New(answer.Error)
	}
	return answer.Files, nil
}

// List lists the snapshots of a server that does not run.
func List(ctx context.Context, cfg Config) ([]File, error) { return New(cfg).list(ctx) }
