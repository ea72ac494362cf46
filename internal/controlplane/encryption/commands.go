package encryption

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/base/loop"
)

// Status describes how Secrets are stored.
type Status struct {
	// Encrypted is true if Secrets are encrypted when they are written. Theirs says
	// why the user encrypts them instead of kedge.
	Encrypted bool   `json:"encrypted"`
	Theirs    string `json:"theirs,omitempty"`
	// Pending is true while the stored Secrets are being rewritten. Waiting says
	// what the rewriting on this server waits for.
	Pending bool   `json:"pending"`
	Waiting string `json:"waiting,omitempty"`
	Keys    []Key  `json:"keys"`
	// Plain counts Secrets that are stored unencrypted, and Lost those whose key is
	// gone.
	Plain   int      `json:"plain"`
	Lost    int      `json:"lost"`
	Servers []Server `json:"servers"`
}

// Key describes a key without its secret part.
type Key struct {
	Name string `json:"name"`
	// Writes is true for the key that Secrets are written with. Secrets counts
	// those stored with the key.
	Writes  bool `json:"writes"`
	Secrets int  `json:"secrets"`
}

// Routes implements localapi.Part, for `kedge secrets-encrypt`. Each route answers with
// the resulting Status.
func (e *Encryption) Routes() []localapi.Route {
	return []localapi.Route{
		localapi.Answer(localapi.Encryption, func(ctx context.Context, _ localapi.Nothing) (Status, error) { return e.status(ctx) }),
		localapi.Answer(localapi.RotateEncryption, func(ctx context.Context, _ localapi.Nothing) (Status, error) { return e.rewrite(ctx, true) }),
		localapi.Answer(localapi.Reencrypt, func(ctx context.Context, _ localapi.Nothing) (Status, error) { return e.rewrite(ctx, false) }),
	}
}

// rewrite begins to rewrite all Secrets, with a new key if rotate is true. A Keeper
// completes that.
func (e *Encryption) rewrite(ctx context.Context, rotate bool) (s Status, err error) {
	keys, err := e.load(ctx)
	if err != nil {
		return s, err
	}
	next := keys.keyring
	switch {
	case e.cfg.Theirs != "":
		return s, errors.New("kedge does not encrypt the Secrets of this cluster: " + e.cfg.Theirs)
	case keys.Pending:
		return s, errors.New("all Secrets are already being rewritten; `kedge secrets-encrypt status` shows the progress")
	case !rotate:
		next.Pending = true
	case !keys.encrypts():
		return s, errors.New("there is no key to rotate, because Secrets are not encrypted: set secrets-encryption: true on all servers first")
	default:
		next = keys.renewed(newKey(time.Now()))
	}
	if _, err := e.replace(ctx, keys, next); err != nil {
		return s, err
	}
	return e.status(ctx)
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

// AskStatus asks the server of this host how Secrets are stored.
func AskStatus(ctx context.Context, kedge *localapi.Client) (Status, error) {
	return localapi.Ask[Status](ctx, kedge, localapi.Encryption, nil)
}

// AskRotate asks the server of this host to begin replacing the key of Secrets.
func AskRotate(ctx context.Context, kedge *localapi.Client) (Status, error) {
	return localapi.Ask[Status](ctx, kedge, localapi.RotateEncryption, nil)
}

// AskReencrypt asks the server of this host to begin rewriting all Secrets.
func AskReencrypt(ctx context.Context, kedge *localapi.Client) (Status, error) {
	return localapi.Ask[Status](ctx, kedge, localapi.Reencrypt, nil)
}

// Await asks repeatedly until all Secrets are rewritten. It calls say whenever
// the reason for waiting changes.
func Await(ctx context.Context, kedge *localapi.Client, say func(string)) (Status, error) {
	for said := ""; ; {
		s, err := AskStatus(ctx, kedge)
		if err != nil || !s.Pending {
			return s, err
		}
		if s.Waiting != "" && s.Waiting != said {
			said = s.Waiting
			say(said)
		}
		if err := loop.Sleep(ctx, poll); err != nil {
			return s, err
		}
	}
}
