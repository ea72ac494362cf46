// Package localtest runs routes of localapi in the tests of the parts that have routes.
package localtest

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/localapi"
)

// part is a localapi.Part that has only routes.
type part []localapi.Route

func (part) Name() string { return "test" }

func (part) Run(ctx context.Context, ready func()) error {
	ready()
	<-ctx.Done()
	return nil
}

func (p part) Routes() []localapi.Route { return p }

// Serve answers routes until the test ends, and returns a client that asks for them.
func Serve(t testing.TB, routes ...localapi.Route) *localapi.Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	server := localapi.New(socket)
	ctx, cancel := context.WithCancel(context.Background())
	ended, ready, answered := make(chan error, 1), make(chan struct{}), make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	go func() { answered <- server.With(part(routes)).Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-answered:
		cancel()
		t.Fatalf("it does not answer: %v", err)
	}
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-answered, <-ended); err != nil {
			t.Errorf("the end: %v", err)
		}
	})
	return localapi.NewClient(socket)
}
