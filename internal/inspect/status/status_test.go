package status

import (
	"context"
	"errors"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/base/localapi/localtest"
	"github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/datastore"
)

// store is a datastore.Datastore that only reports its state.
type store struct{ datastore.Datastore }

func (store) Stats(context.Context) datastore.Stats {
	return datastore.Stats{Kind: "sqlite", Place: "/db", Size: 7, Slow: &datastore.Slow{Over: time.Second}}
}

func (store) Health(context.Context) datastore.Health {
	return datastore.Health{Fault: "disk is full", Etcd: &datastore.Etcd{Term: 3, Members: []datastore.EtcdMember{{Name: "pi", Leader: true}}}}
}

func TestFetch(t *testing.T) {
	components := []component.Status{{Name: "api", State: component.Ready}}
	for _, known := range []datastore.Datastore{nil, store{}} {
		want := Report{PID: os.Getpid(), Version: version.Version, Node: "pi", Components: components}
		if known != nil {
			want.Datastore = &Datastore{known.Stats(t.Context()), known.Health(t.Context())}
		}
		told := Config{Node: "pi", Components: func() []component.Status { return components }, Datastore: known}
		got, err := Fetch(t.Context(), localtest.Serve(t, New(told).Routes()...))
		if err != nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
	}
	if _, err := Fetch(t.Context(), localtest.Serve(t)); !errors.Is(err, localapi.ErrNotReady) {
		t.Errorf("a kedge that starts: got %v", err)
	}
}

// TestProblems wants problems of other parts to stand beside those of the cluster.
func TestProblems(t *testing.T) {
	wrong := []Problem{{What: "configmaps default/app is damaged", Do: "delete it"}}
	got, err := Fetch(t.Context(), localtest.Serve(t, New(Config{
		Components: func() []component.Status { return nil },
		Cluster:    func(context.Context) *Cluster { return &Cluster{Fault: "the API server is starting"} },
		Problems:   func(context.Context) []Problem { return wrong },
	}).Routes()...))
	if err != nil || !reflect.DeepEqual(got.Cluster.Problems, wrong) || got.Well() {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestWell(t *testing.T) {
	ready := []component.Status{{State: component.Ready}}
	etcd := func(answers bool, fault string) *Datastore {
		return &Datastore{Health: datastore.Health{Fault: fault, Etcd: &datastore.Etcd{Members: []datastore.EtcdMember{{Name: "a", Answers: true}, {Name: "b", Answers: answers}}}}}
	}
	for name, test := range map[string]struct {
		report Report
		want   bool
	}{
		"agent":                     {Report{Components: ready}, true},
		"server":                    {Report{Components: ready, Datastore: etcd(true, ""), Cluster: &Cluster{}}, true},
		"a component that starts":   {Report{Components: append(ready, component.Status{State: component.Starting})}, false},
		"a datastore with a fault":  {Report{Components: ready, Datastore: etcd(true, "full")}, false},
		"a member that is silent":   {Report{Components: ready, Cluster: &Cluster{Problems: silentMembers(etcd(false, ""))}}, false},
		"an API that does not tell": {Report{Components: ready, Cluster: &Cluster{Fault: "down"}}, false},
	} {
		if got := test.report.Well(); got != test.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
	if said := silentMembers(etcd(false, "no quorum")); said != nil {
		t.Errorf("said twice: %v", said)
	}
}
