package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/inspect/status"
)

func TestPrintDatastore(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	const head = `
COMPONENT   STATE   SINCE   LAST ERROR
datastore   Ready   1m0s    
`
	for name, test := range map[string]struct {
		store *status.Datastore
		want  string
	}{
		"agent": {nil, ""},
		"SQLite": {&status.Datastore{
			Stats: datastore.Stats{
				Kind: "sqlite", Place: "/db", Size: 3 << 20, Used: 1 << 20, Disk: &datastore.Disk{Size: 32 << 30, Free: 1 << 19},
				Recent: &datastore.Latency{Count: 12, P50: 2 * time.Millisecond, P99: 1234567 * time.Microsecond},
				Slow:   &datastore.Slow{Over: time.Second, Count: 2, Last: "list /registry/pods/", Took: 3 * time.Second, At: now.Add(-time.Minute)},
			},
			Health: datastore.Health{Fault: "disk is full"},
		}, `
DATASTORE   sqlite: /db
fault       disk is full
size        3.0 MiB, 1.0 MiB of it in use
disk        0.5 MiB of 32.0 GiB free
commits     12 in the last minutes: p50 2ms, p99 1.2346s
slow        2 operations of more than 1s, the last 1m0s ago: list /registry/pods/ took 3s
`},
		"database": {&status.Datastore{
			Stats:  datastore.Stats{Kind: "mysql", Place: "MySQL on db", Size: 1 << 20, Slow: &datastore.Slow{Over: time.Second}},
			Health: datastore.Health{Connections: &datastore.Connections{Open: 3, InUse: 1, Max: 20, Answer: time.Millisecond}},
		}, `
DATASTORE     mysql: MySQL on db
size          1.0 MiB
slow          0 operations of more than 1s
connections   3 of at most 20, 1 in use; the database answers in 1ms
`},
		"etcd": {&status.Datastore{
			Stats: datastore.Stats{Kind: "etcd", Place: "/etcd"},
			Health: datastore.Health{Etcd: &datastore.Etcd{Term: 3, Committed: 100, Applied: 98, Quorum: 2, Members: []datastore.EtcdMember{
				{Name: "a", Leader: true, Answers: true}, {Name: "b"}, {Name: "c", Learner: true, Answers: true},
			}}},
		}, `
DATASTORE   etcd: /etcd
raft        term 3, index 100, 2 of it to be applied; 2 votes are needed
member      a: leader
member      b: voter, does not answer
member      c: learner
`},
	} {
		t.Run(name, func(t *testing.T) {
			var printed strings.Builder
			err := printParts(&printed, &status.Report{
				Datastore:  test.store,
				Components: []component.Status{{Name: "datastore", State: component.Ready, Since: now.Add(-time.Minute)}},
			}, now)
			if err != nil || printed.String() != head+test.want {
				t.Errorf("%v, got\n%s\nwant\n%s", err, printed.String(), head+test.want)
			}
		})
	}
}

func TestPrintStorage(t *testing.T) {
	var printed strings.Builder
	err := printStatus(&printed, &status.Report{PID: 7, Version: "v1", Node: "pi", Storage: &status.Storage{
		Volumes:   []status.Volume{{Name: "pvc-1", Size: 1 << 30, Claim: "default/data"}, {Name: "snapshot-2", Size: 20 << 30, Snapshot: true}},
		Leftovers: []status.Leftover{{Path: "/storage/pvc-3", Reason: "is nobody's"}},
		Fault:     "a record is damaged",
	}}, true, time.Now())
	const want = `kedge v1 on node pi, process 7: all is well

note: left over: /storage/pvc-3 is nobody's

note: storage: a record is damaged

COMPONENT   STATE   SINCE   LAST ERROR

VOLUME       SIZE         CLAIM
pvc-1        1024.0 MiB   default/data
snapshot-2   20.0 GiB     (snapshot)
`
	if err != nil || printed.String() != want {
		t.Errorf("%v, got\n%s\nwant\n%s", err, printed.String(), want)
	}
}

func TestPrintCluster(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	var printed strings.Builder
	report := &status.Report{PID: 7, Version: "v1", Node: "pi", Cluster: &status.Cluster{
		Servers: []string{"192.0.2.1:6443", "192.0.2.2:6443"},
		Nodes: []status.Node{
			{Name: "b", Roles: []string{"control-plane", "etcd"}, Ready: true, Version: "v1", Address: "192.0.2.2", Heartbeat: now.Add(-4 * time.Second)},
			{Name: "c", Unschedulable: true, Version: "v0", Heartbeat: now.Add(-time.Hour)},
		},
		Problems: []status.Problem{{What: "node c does not answer", Do: "look"}},
		Notes:    []string{"nothing enforces"},
	}}
	err := printStatus(&printed, report, true, now)
	const want = `kedge v1 on node pi, process 7: something is wrong

wrong: node c does not answer
to do: look

note: nothing enforces

COMPONENT   STATE   SINCE   LAST ERROR

NODE   STATE                         ROLES                VERSION   ADDRESS     HEARD OF
b      Ready                         control-plane,etcd   v1        192.0.2.2   4s ago
c      NotReady,SchedulingDisabled                        v0                    1h0m0s ago
servers: 192.0.2.1:6443, 192.0.2.2:6443
`
	if err != nil || printed.String() != want {
		t.Errorf("%v, got\n%s\nwant\n%s", err, printed.String(), want)
	}
}
