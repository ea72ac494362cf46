package storage

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// nobody is the user as which PostgreSQL runs, because it refuses to run as root.
const nobody = 65534

// postgres builds the image of PostgreSQL and returns its archive.
var postgres = sync.OnceValues(func() (archive string, err error) {
	repository, err := harness.Repository()
	if err != nil {
		return "", err
	}
	return image.PostgreSQL(repository)
})

// TestPostgreSQL checks that PostgreSQL in a StatefulSet keeps every committed row: when its pod is
// deleted, kedge stops or is killed, or the node restarts, and in a claim made from a snapshot.
func TestPostgreSQL(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	harness.Need(t, "postgresql")
	archive, err := postgres()
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, harness.NewNetwork(t), archive)
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
	programs, err := image.PostgreSQLPrograms()
	if err != nil {
		s.Fatal(err)
	}
	// The database is in a folder of its own, because the volume's root belongs to root. An
	// incomplete initdb is repeated.
	script := fmt.Sprintf(`set -e
[ -d /data/pgdata ] || { rm -rf /data/new; %[1]s/initdb --auth=trust --username=postgres --data-checksums -D /data/new; mv /data/new /data/pgdata; }
exec %[1]s/postgres -D /data/pgdata -k /tmp -c listen_addresses=`, programs)
	s.Apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: %[1]s}
spec:
  serviceName: %[1]s
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 10
      # PostgreSQL refuses a folder that its group may write to, and so the kubelet
      # must not give the group all of it at each start.
      securityContext: {runAsUser: %[2]d, runAsGroup: %[2]d, fsGroup: %[2]d, fsGroupChangePolicy: OnRootMismatch}
      containers:
      - name: postgres
        image: %[3]s
        command: [sh, -c, %[4]q]
        readinessProbe: {exec: {command: [%[5]s/psql, -h, /tmp, -U, postgres, -c, "SELECT 1"]}, periodSeconds: 1, timeoutSeconds: 5}
        volumeMounts: [{name: %[6]s, mountPath: /data}]
  volumeClaimTemplates: [{metadata: {name: %[6]s}, spec: %[7]s}]
`, name, nobody, image.PostgreSQLName, script, programs, data.name, data.spec()))
	d := &database{storage: s, pod: name + "-0"}
	s.Pod(d.pod)
	return d
}

// trySQL runs a statement and returns what it printed.
func (d *database) trySQL(statement string) (string, error) {
	programs, err := image.PostgreSQLPrograms()
	if err != nil {
		return "", err
	}
	return d.TryKubectl("", "exec", d.pod, "--", programs+"/psql", "-h", "/tmp", "-U", "postgres", "-v", "ON_ERROR_STOP=1", "-At", "-c", statement)
}

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
