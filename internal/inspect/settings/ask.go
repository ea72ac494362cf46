package settings

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"runtime/pprof"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/localapi"
)

// The paths on the socket.
const (
	printPath   = "print"
	reloadPath  = "reload"
	levelsPath  = "levels"
	profilePath = "profile"
)

// Printed is the configuration of a kedge that runs.
type Printed struct {
	Role     config.Role
	Settings []config.Setting
}

type reloaded struct {
	Changes []string
	Error   string
}

type levels struct {
	// Words are for config.ParseLevels; as a question none is for nothing new.
	Words []string
	Error string
}

type profiled struct {
	Data  []byte
	Error string
}

// AskPrint asks the kedge of this host for its configuration.
func AskPrint(ctx context.Context, socket string) (answer Printed, err error) {
	err = ask(ctx, socket, printPath, nil, &answer)
	return answer, err
}

// AskReload has the kedge of this host read its configuration again, and returns what
// changed and what did not.
func AskReload(ctx context.Context, socket string) ([]string, error) {
	var answer reloaded
	if err := ask(ctx, socket, reloadPath, nil, &answer); err != nil {
		return nil, err
	}
	return answer.Changes, fault(answer.Error)
}

// AskLevels has the kedge of this host log as words say, if there are any, until it is
// started anew or reads its configuration again. It returns what is logged now.
func AskLevels(ctx context.Context, socket string, words []string) ([]string, error) {
	var answer levels
	if err := ask(ctx, socket, levelsPath, levels{Words: words}, &answer); err != nil {
		return nil, err
	}
	return answer.Words, fault(answer.Error)
}

// AskProfile returns a profile of the kedge of this host: goroutine, as text, or heap,
// for `go tool pprof`.
func AskProfile(ctx context.Context, socket, name string) ([]byte, error) {
	var answer profiled
	if err := ask(ctx, socket, profilePath, name, &answer); err != nil {
		return nil, err
	}
	return answer.Data, fault(answer.Error)
}

func ask(ctx context.Context, socket, path string, question, answer any) error {
	err := localapi.Ask(ctx, socket, path, question, answer)
	if errors.Is(err, localapi.ErrNobody) {
		return ErrNotRunning
	}
	return err
}

func fault(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}

// levels answers AskLevels.
func (s *Settings) levels(w http.ResponseWriter, r *http.Request) {
	var question levels
	if err := json.NewDecoder(r.Body).Decode(&question); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if len(question.Words) > 0 {
		parsed, err := config.ParseLevels(question.Words)
		if err != nil {
			localapi.Answer(w, levels{Error: err.Error()})
			return
		}
		s.log.SetLevels(parsed)
	}
	localapi.Answer(w, levels{Words: s.log.Levels().Words()})
}

// profile answers AskProfile.
func profile(w http.ResponseWriter, r *http.Request) {
	var name string
	var answer profiled
	found := (*pprof.Profile)(nil)
	if err := json.NewDecoder(r.Body).Decode(&name); err == nil {
		found = pprof.Lookup(name)
	}
	if found == nil {
		answer.Error = "there is no profile " + name
	} else {
		var data bytes.Buffer
		debug := 0
		if name == "goroutine" {
			debug = 2 // each with its stack, as in a panic
		}
		if err := found.WriteTo(&data, debug); err != nil {
			answer.Error = err.Error()
		}
		answer.Data = data.Bytes()
	}
	localapi.Answer(w, answer)
}
