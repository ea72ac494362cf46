package encryption

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/kedge-dev/kedge/internal/base/localapi"
)

// The commands.
const (
	CommandStatus    = "status"
	CommandRotate    = "rotate"
	CommandReencrypt = "reencrypt"
)

// Status is how Secrets are stored.
type Status struct {
	// Encrypted says whether Secrets are encrypted when they are written, and Theirs
	// why it is the user who sees to that.
	Encrypted bool   `json:"encrypted"`
	Theirs    string `json:"theirs,omitempty"`
	// Pending says that the stored ones are being rewritten, and Waiting what this
	// server's kedge waits for, if it does that.
	Pending bool   `json:"pending"`
	Waiting string `json:"waiting,omitempty"`
	Keys    []Key  `json:"keys"`
	// Plain counts Secrets that are stored as they are, and Lost those whose key is
	// gone.
	Plain   int      `json:"plain"`
	Lost    int      `json:"lost"`
	Servers []Server `json:"servers"`
}

// Key is a key, without what is secret of it.
type Key struct {
	Name string `json:"name"`
	// Writes says that Secrets are written with it; Secrets counts those that were.
	Writes  bool `json:"writes"`
	Secrets int  `json:"secrets"`
}

// answer is what comes back.
type answer struct {
	Status Status `json:"status"`
	Error  string `json:"error,omitempty"`
}

func (e *Encryption) answer(w http.ResponseWriter, r *http.Request) {
	var a answer
	err := e.do(r.Context(), r.URL.Path[1:])
	if err == nil {
		a.Status, err = e.status(r.Context())
	}
	if err != nil {
		a.Error = err.Error()
	}
	localapi.Answer(w, a)
}

// do begins what a command asks for; a Keeper completes it.
func (e *Encryption) do(ctx context.Context, command string) error {
	keys, err := e.load(ctx)
	if err != nil {
		return err
	}
	next := keys.keyring
	switch {
	case command == CommandStatus:
		return nil
	case command != CommandRotate && command != CommandReencrypt:
		return fmt.Errorf("there is no command %q", command)
	case e.cfg.Theirs != "":
		return errors.New("kedge does not encrypt the Secrets of this cluster: " + e.cfg.Theirs)
	case keys.Pending:
		return errors.New("all Secrets are being rewritten already; `kedge secrets-encrypt status` tells how far that is")
	case command == CommandReencrypt:
		next.Pending = true
	case !keys.encrypts():
		return errors.New("there is no key to rotate, as Secrets are not encrypted: secrets-encryption: true on all servers turns that on")
	default:
		next = keys.renewed(newKey(time.Now()))
	}
	_, err = e.replace(ctx, keys, next)
	return err
}

func (e *Encryption) status(ctx context.Context) (s Status, err error) {
	keys, err := e.load(ctx)
	if err != nil {
		return s, err
	}
	e.mu.Lock()
	s.Waiting = e.waiting
	e.mu.Unlock()
	s.Theirs, s.Encrypted, s.Pending = e.cfg.Theirs, keys.encrypts(), keys.Pending
	if s.Theirs != "" {
		return s, nil
	}
	for i, k := range keys.Keys {
		s.Keys = append(s.Keys, Key{Name: k.Name, Writes: i == 0 && !keys.Plain})
	}
	err = e.scan(ctx, func(_ string, stored []byte, _ int64) error {
		name, encrypted := keyOf(stored)
		i := slices.IndexFunc(s.Keys, func(k Key) bool { return k.Name == string(name) })
		switch {
		case !encrypted:
			s.Plain++
		case i < 0:
			s.Lost++
		default:
			s.Keys[i].Secrets++
		}
		return nil
	})
	if err != nil {
		return s, err
	}
	s.Servers, err = e.servers(ctx)
	return s, err
}

// Ask has the server that listens on socket begin a command, and returns how
// Secrets are stored then.
func Ask(ctx context.Context, socket, command string) (Status, error) {
	var a answer
	err := localapi.Ask(ctx, socket, command, nil, &a)
	switch {
	case errors.Is(err, localapi.ErrNobody):
		return Status{}, errors.New("no kedge server with an API server is ready on this host; run this where one is, and see `kedge status`")
	case err != nil:
		return Status{}, fmt.Errorf("ask about encryption: %w", err)
	case a.Error != "":
		return Status{}, errors.New(a.Error)
	}
	return a.Status, nil
}

// Await asks until the Secrets are all rewritten, and calls say when what that
// waits for changes.
func Await(ctx context.Context, socket string, say func(string)) (Status, error) {
	for said := ""; ; {
		s, err := Ask(ctx, socket, CommandStatus)
		if err != nil || !s.Pending {
			return s, err
		}
		if s.Waiting != "" && s.Waiting != said {
			said = s.Waiting
			say(said)
		}
		sleep(ctx, poll)
		if err := ctx.Err(); err != nil {
			return s, err
		}
	}
}
