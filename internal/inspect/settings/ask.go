package settings

import (
	"bytes"
	"context"
	"fmt"
	"runtime/pprof"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/localapi"
)

// Printed is the configuration of a running kedge.
type Printed struct {
	Role     config.Role      `json:"role"`
	Settings []config.Setting `json:"settings"`
}

// levels are words for config.ParseLevels.
type levels struct {
	Words []string `json:"words"`
}

// reloaded lists what a reload changed, and what only a restart changes.
type reloaded struct {
	Changes []string `json:"changes,omitempty"`
}

// profiled is a profile of the process.
type profiled struct {
	Data []byte `json:"data"`
}

// Routes implements localapi.Part, for `kedge config`, `kedge log-level` and `kedge
// support-bundle`.
func (s *Settings) Routes() []localapi.Route {
	return []localapi.Route{
		localapi.Answer(localapi.Settings, s.print),
		localapi.Answer(localapi.ReloadSettings, s.reload),
		localapi.Answer(localapi.LogLevels, s.levels),
		localapi.Answer(localapi.SetLogLevels, s.setLevels),
		localapi.Answer(localapi.Goroutines, profile("goroutine", 2)), // 2: each with its stack, as in a panic
		localapi.Answer(localapi.Heap, profile("heap", 0)),
	}
}

// AskPrint asks the kedge on this host for its configuration.
func AskPrint(ctx context.Context, kedge *localapi.Client) (Printed, error) {
	return localapi.Ask[Printed](ctx, kedge, localapi.Settings, nil)
}

// AskReload asks the kedge on this host to read its configuration again. It returns what
// changed, and what only a restart changes.
func AskReload(ctx context.Context, kedge *localapi.Client) ([]string, error) {
	answer, err := localapi.Ask[reloaded](ctx, kedge, localapi.ReloadSettings, nil)
	return answer.Changes, err
}

// AskLevels asks the kedge on this host to log at the levels in words, if there are any,
// until it restarts or reads its configuration again. It returns the levels in use then.
func AskLevels(ctx context.Context, kedge *localapi.Client, words []string) ([]string, error) {
	if len(words) == 0 {
		answer, err := localapi.Ask[levels](ctx, kedge, localapi.LogLevels, nil)
		return answer.Words, err
	}
	answer, err := localapi.Ask[levels](ctx, kedge, localapi.SetLogLevels, levels{words})
	return answer.Words, err
}

// AskGoroutines returns the stacks of all goroutines of the kedge on this host, as text.
func AskGoroutines(ctx context.Context, kedge *localapi.Client) ([]byte, error) {
	answer, err := localapi.Ask[profiled](ctx, kedge, localapi.Goroutines, nil)
	return answer.Data, err
}

// AskHeap returns a heap profile of the kedge on this host, for `go tool pprof`.
func AskHeap(ctx context.Context, kedge *localapi.Client) ([]byte, error) {
	answer, err := localapi.Ask[profiled](ctx, kedge, localapi.Heap, nil)
	return answer.Data, err
}

func (s *Settings) print(context.Context, localapi.Nothing) (Printed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Printed{s.role, s.current.Settings(s.sources, s.role)}, nil
}

func (s *Settings) reload(context.Context, localapi.Nothing) (reloaded, error) {
	changes, err := s.Reload()
	s.tell(changes, err)
	return reloaded{changes}, err
}

func (s *Settings) levels(context.Context, localapi.Nothing) (levels, error) {
	return levels{s.log.Levels().Words()}, nil
}

func (s *Settings) setLevels(ctx context.Context, question levels) (levels, error) {
	parsed, err := config.ParseLevels(question.Words)
	if err != nil {
		return levels{}, err
	}
	s.log.SetLevels(parsed)
	return s.levels(ctx, localapi.Nothing{})
}

// profile returns a handler that answers with a profile of this process. debug is the
// parameter of pprof.Profile.WriteTo.
func profile(name string, debug int) func(context.Context, localapi.Nothing) (profiled, error) {
	return func(context.Context, localapi.Nothing) (profiled, error) {
		var data bytes.Buffer
		if err := pprof.Lookup(name).WriteTo(&data, debug); err != nil {
			return profiled{}, fmt.Errorf("take profile %s: %w", name, err)
		}
		return profiled{data.Bytes()}, nil
	}
}
