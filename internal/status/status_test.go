package status

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/kedge-dev/kedge/internal/component"
)

func TestFetch(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "status.sock")
	if _, err := Fetch(t.Context(), socket); !errors.Is(err, ErrNotRunning) {
		t.Errorf("no socket: got %v", err)
	}
	want := Report{PID: 7, Version: "v1", Node: "pi", Components: []component.Status{{Name: "api", State: component.Ready}}}

	// Twice: the second finds the socket of the first, as after a kill -9.
	for range 2 {
		if err := os.WriteFile(socket, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ready, done := make(chan struct{}), make(chan error)
		go func() { done <- New(socket, func() Report { return want }).Run(ctx, func() { close(ready) }) }()
		<-ready
		got, err := Fetch(t.Context(), socket)
		if err != nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("got %+v, %v", got, err)
		}
		if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("socket: %v, %v", info, err)
		}
		stop()
		if err := <-done; err != nil {
			t.Errorf("stop: %v", err)
		}
	}
	if _, err := Fetch(t.Context(), socket); !errors.Is(err, ErrNotRunning) {
		t.Errorf("after the stop: got %v", err)
	}
}
