package status

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/component"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/version"
)

// store is a datastore.Datastore that only tells how it is.
type store struct{ datastore.Datastore }

func (store) Stats(context.Context) datastore.Stats {
	return datastore.Stats{Kind: "sqlite", Place: "/db", Size: 7, Slow: &datastore.Slow{Over: time.Second}}
}

func (store) Health(context.Context) datastore.Health {
	return datastore.Health{Fault: "disk is full", Etcd: &datastore.Etcd{Term: 3, Members: []datastore.EtcdMember{{Name: "pi", Leader: true}}}}
}

func TestFetch(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "status.sock")
	if _, err := Fetch(t.Context(), socket); !errors.Is(err, ErrNotRunning) {
		t.Errorf("no socket: got %v", err)
	}
	components := []component.Status{{Name: "api", State: component.Ready}}
	for _, known := range []datastore.Datastore{nil, store{}} {
		want := Report{PID: os.Getpid(), Version: version.Version, Node: "pi", Components: components}
		if known != nil {
			want.Datastore = &Datastore{known.Stats(t.Context()), known.Health(t.Context())}
		}
		ctx, stop := context.WithCancel(t.Context())
		ready, done := make(chan struct{}), make(chan error)
		answering := New(Config{
			Socket: socket, Node: "pi", Components: func() []component.Status { return components }, Datastore: known,
		})
		go func() { done <- answering.Run(ctx, func() { close(ready) }) }()
		<-ready
		got, err := Fetch(t.Context(), socket)
		if err != nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
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
