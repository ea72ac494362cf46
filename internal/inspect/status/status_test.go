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
	if err != nil || !reflect.DeepEqual(got.Cluster.Problems, wrong) || len(got.Wrong()) != 2 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestWrong(t *testing.T) {
	ready := []component.Status{{State: component.Ready}}
	etcd := func(answers bool, fault string) *Datastore {
		return &Datastore{Health: datastore.Health{Fault: fault, Etcd: &datastore.Etcd{Members: []datastore.EtcdMember{{Name: "a", Answers: true}, {Name: "b", Answers: answers}}}}}
	}
	for name, test := range map[string]struct {
		report Report
		want   string
	}{
		"agent":                     {Report{Components: ready}, ""},
		"server":                    {Report{Components: ready, Datastore: etcd(true, ""), Cluster: &Cluster{}}, ""},
		"a component that starts":   {Report{Components: append(ready, component.Status{Name: "dns", State: component.Starting})}, "component dns is Starting"},
		"a component with a fault":  {Report{Components: []component.Status{{Name: "dns", State: component.Ready, Fault: "no answer", Error: "old"}}}, "component dns is Ready: no answer"},
		"a datastore with a fault":  {Report{Components: ready, Datastore: etcd(true, "full")}, "the datastore: full"},
		"a member that is silent":   {Report{Components: ready, Cluster: &Cluster{Problems: silentMembers(etcd(false, ""))}}, "etcd member b does not answer"},
		"an API that does not tell": {Report{Components: ready, Cluster: &Cluster{Fault: "down"}}, "nothing is known of the cluster: down"},
	} {
		var got string
		for _, p := range test.report.Wrong() {
			if got += p.What; p.Do == "" {
				t.Errorf("%s: nothing says what to do", name)
			}
		}
		if got != test.want {
			t.Errorf("%s: got %q", name, got)
		}
	}
	if said := silentMembers(etcd(false, "no quorum")); said != nil {
		t.Errorf("said twice: %v", said)
	}
}
