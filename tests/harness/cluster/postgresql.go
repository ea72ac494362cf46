package cluster

import (
	"fmt"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// nobody is the user as which PostgreSQL runs, because it refuses to run as root.
const nobody = 65534

// PostgreSQLImage installs Debian's PostgreSQL on this machine and returns an image of it, for Preload of a host.
func PostgreSQLImage(t testing.TB) (archive string) {
	t.Helper()
	harness.Need(t, "postgresql")
	repository, err := harness.Repository()
	if err == nil {
		archive, err = image.PostgreSQL(repository)
	}
	if err != nil {
		t.Fatal(err)
	}
	return archive
}

// RunPostgreSQL runs PostgreSQL in a StatefulSet with one pod, NAME-0, and waits for it. Its data are in the claim CLAIM-NAME-0, which has the spec.
// node is where it runs, or empty.
func (c *Cluster) RunPostgreSQL(name, claim, spec, node string) {
	c.Helper()
	programs, err := image.PostgreSQLPrograms()
	if err != nil {
		c.Fatal(err)
	}
	selector := ""
	if node != "" {
		selector = fmt.Sprintf("nodeSelector: {kubernetes.io/hostname: %s}", node)
	}
	// The database is in a folder of its own, because the volume's root belongs to root. An
	// incomplete initdb is repeated.
	script := fmt.Sprintf(`set -e
[ -d /data/pgdata ] || { rm -rf /data/new; %[1]s/initdb --auth=trust --username=postgres --data-checksums -D /data/new; mv /data/new /data/pgdata; }
exec %[1]s/postgres -D /data/pgdata -k /tmp -c listen_addresses=`, programs)
	c.Apply(fmt.Sprintf(`
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
      %[8]s
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
`, name, nobody, image.PostgreSQLName, script, programs, claim, spec, selector))
	c.Pod(name + "-0")
}

// TrySQL runs a statement in a pod of PostgreSQL, and returns what it printed.
func (c *Cluster) TrySQL(pod, statement string) (string, error) {
	programs, err := image.PostgreSQLPrograms()
	if err != nil {
		return "", err
	}
	return c.TryKubectl("", "exec", pod, "--", programs+"/psql", "-h", "/tmp", "-U", "postgres", "-v", "ON_ERROR_STOP=1", "-At", "-c", statement)
}
