package storage

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// TestPostgreSQL checks that PostgreSQL in a StatefulSet keeps every committed row: when its pod is
// deleted, kedge stops or is killed, or the node restarts, and in a claim made from a snapshot.
func TestPostgreSQL(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	s := start(t, harness.NewNetwork(t), cluster.PostgreSQLImage(t))
	// The claim is for one pod, even if a pod was deleted by force and still runs: two PostgreSQLs
	// would corrupt the data, because both are process 1 in their lock file.
	d := s.runDatabase("database", claim{name: "data", size: "1Gi", mode: "ReadWriteOncePod"})
	d.sql("CREATE TABLE kept (n int PRIMARY KEY, filler text)")
	d.add()
	volume := s.volumeOf("data-database-0")

	for _, event := range []struct {
		name    string
		happens func()
		// restarts is true if the pod gets new containers.
		restarts bool
	}{
		{"its pod is deleted", func() { s.Kubectl("delete", "pod", d.pod) }, true},
		{"its pod is deleted by force", func() { s.Kubectl("delete", "pod", d.pod, "--grace-period=0", "--force") }, true},
		{"kedge is stopped and started", s.Server.Restart, false},
		{"kedge is killed while rows are added", func() {
			d.whileAdding(s.Server.Kill9)
			s.Server.Start()
		}, false},
		{"everything is killed by kedge", func() {
			s.killall()
			s.Server.Start()
		}, true},
		{"the node is started anew while rows are added", func() {
			d.whileAdding(s.Server.Host.Reboot)
			s.Server.Start()
		}, true},
	} {
		t.Log(event.name)
		before := s.Pod(d.pod).Status.ContainerStatuses[0].ContainerID
		event.happens()
		s.restarted()
		if event.restarts {
			s.Eventually("another container of "+d.pod, func() error {
				if now := s.Pod(d.pod).Status.ContainerStatuses[0].ContainerID; now == before {
					return fmt.Errorf("it is still %s", now)
				}
				return nil
			})
		}
		d.wantAll()
		if now := s.Pod(d.pod).Status.ContainerStatuses[0].ContainerID; !event.restarts && now != before {
			t.Errorf("the container is %s, and was %s", now, before)
		}
		if now := s.volumeOf("data-database-0"); now.UID != volume.UID {
			t.Errorf("the volume is %s, and was %s", now.Name, volume.Name)
		}
		d.add()
	}

	t.Log("a snapshot is taken while rows are added, and becomes another database")
	committed := d.rows
	d.whileAdding(func() { s.snapshot("before", "data-database-0") })
	restored := s.runDatabase("restored", claim{name: "data", size: "2Gi", mode: "ReadWriteOncePod", source: "{apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: before}"})
	// Rows from the time of the snapshot may be there: all up to one of them.
	restored.rows = restored.count()
	if restored.rows < committed {
		t.Errorf("the snapshot has %d rows, and %d were committed before it", restored.rows, committed)
	}
	restored.wantAll()
	restored.add()
	d.wantAll()

	t.Log("without the original")
	s.removed("statefulset/database", "pvc/data-database-0")
	s.gone(volume.Name)
	restored.wantAll()
	s.removed("volumesnapshot/before", "statefulset/restored", "pvc/data-restored-0")
	s.clean()
}

// database is a PostgreSQL in a StatefulSet with one pod.
type database struct {
	*storage
	pod string
	// rows is how many rows were committed. The table kept has the numbers below it.
	rows int
}

// runDatabase runs PostgreSQL in a claim called NAME-DATABASE-0, and waits for it.
func (s *storage) runDatabase(name string, data claim) *database {
	s.Helper()
	s.RunPostgreSQL(name, data.name, data.spec(), "")
	return &database{storage: s, pod: name + "-0"}
}

// trySQL runs a statement and returns what it printed.
func (d *database) trySQL(statement string) (string, error) { return d.TrySQL(d.pod, statement) }

func (d *database) sql(statement string) string {
	d.Helper()
	output, err := d.trySQL(statement)
	if err != nil {
		d.Fatal(err)
	}
	return output
}

// insert returns a statement that adds a thousand rows, 200 KB.
func insert(from int) string {
	return fmt.Sprintf("INSERT INTO kept SELECT n, repeat('kept', 50) FROM generate_series(%d, %d) n", from, from+999)
}

func (d *database) add() {
	d.Helper()
	d.sql(insert(d.rows))
	d.rows += 1000
}

// whileAdding calls happens while rows are added, and waits until adding fails.
func (d *database) whileAdding(happens func()) {
	d.Helper()
	rows, first := d.rows, make(chan struct{})
	var adding sync.WaitGroup
	adding.Go(func() {
		for i := range 10 {
			_, err := d.trySQL(insert(rows))
			if i == 0 {
				close(first)
			}
			if err != nil {
				return
			}
			rows += 1000
		}
	})
	<-first
	happens()
	adding.Wait()
	d.rows = rows
}

// count returns how many rows there are.
func (d *database) count() (rows int) {
	d.Helper()
	if _, err := fmt.Sscan(d.sql("SELECT count(*) FROM kept"), &rows); err != nil {
		d.Fatal(err)
	}
	return rows
}

// wantAll checks that every committed row is there, and that the pages of the rows have valid
// checksums. A statement that was interrupted may have been committed too.
func (d *database) wantAll() {
	d.Helper()
	d.Pod(d.pod)
	var found string
	d.Eventually(d.pod+" to answer", func() (err error) {
		found, err = d.trySQL("SELECT count(*), coalesce(max(n), -1) + 1, bool_and(filler = repeat('kept', 50)) FROM kept")
		return err
	})
	for _, rows := range []int{d.rows, d.rows + 1000} {
		if found == fmt.Sprintf("%d|%d|t", rows, rows) {
			d.rows = rows
			return
		}
	}
	d.Errorf("%s: got %s (last row | number of rows | all complete), want %d rows, which were committed", d.pod, strings.TrimSpace(found), d.rows)
}

// snapshot takes a snapshot of a claim, and waits until it is ready to use.
func (s *storage) snapshot(name, claim string) {
	s.Helper()
	s.Apply(fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: %s}
spec: {source: {persistentVolumeClaimName: %s}}
`, name, claim))
	s.Kubectl("wait", "volumesnapshot/"+name, "--for=jsonpath={.status.readyToUse}=true", "--timeout="+patience.String())
}

// killall ends everything on the server's host, as before a reboot.
func (s *storage) killall() {
	s.Helper()
	if output, err := s.Server.Host.Kedge(s.Context(), "killall").CombinedOutput(); err != nil {
		s.Fatalf("killall: %v\n%s", err, output)
	}
	s.Server.Exited()
	s.Eventually("killall to have left nothing mounted", func() error { return mountedOn(s.Server.Host, s.disk) })
}
