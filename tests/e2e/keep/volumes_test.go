package keep

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// runWithVolume runs a pod on a node that writes a few files into a volume at its first start. During a backup, there is the file hook.
func runWithVolume(c *cluster.Cluster, name, node, class, annotations string) {
	c.Helper()
	c.Apply(fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s, annotations: {%[4]s}}
spec: {accessModes: [ReadWriteOnce], storageClassName: %[3]s, resources: {requests: {storage: 64Mi}}}
---
apiVersion: v1
kind: Pod
metadata:
  name: %[1]s
  annotations:
    pre.hook.backup.velero.io/command: '["sh", "-c", "echo stopped >/data/hook; sync"]'
    post.hook.backup.velero.io/command: '["rm", "-f", "/data/hook"]'
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: %[2]s}
  volumes: [{name: data, persistentVolumeClaim: {claimName: %[1]s}}]
  containers:
  - name: main
    image: %[5]s
    command: [sh, -c, "set -e; cd /data; if [ ! -e sum ]; then mkdir folder; dd if=/dev/urandom of=folder/random bs=1M count=20; ln folder/random second; sha256sum folder/random second >sum; sync; fi; touch /tmp/ready; exec sleep 1000000"]
    readinessProbe: {exec: {command: [test, -e, /tmp/ready]}, periodSeconds: 1}
    volumeMounts: [{name: data, mountPath: /data}]
`, name, node, class, annotations, image.BusyboxName))
}

// completed returns the VolumeBackups of a claim that are complete, each as NAME SIZE SENT.
func completed(c *cluster.Cluster, claim string) []string {
	c.Helper()
	all := c.Kubectl("get", "volumebackups", "-o", `jsonpath={range .items[?(@.status.phase=="Completed")]}{.spec.claimName} {.metadata.name} {.status.size} {.status.sent}{"\n"}{end}`)
	var found []string
	for line := range strings.Lines(all) {
		if rest, ok := strings.CutPrefix(line, claim+" "); ok {
			found = append(found, strings.TrimSpace(rest))
		}
	}
	return found
}

// ledger is a PostgreSQL that gets rows without a pause. The table kept has the numbers below rows.
type ledger struct {
	pod  string
	rows atomic.Int64
	stop chan struct{}
	done sync.WaitGroup
}

// openLedger runs PostgreSQL on a node.
func openLedger(c *cluster.Cluster, node string) *ledger {
	c.Helper()
	c.RunPostgreSQL("ledger", "data", "{accessModes: [ReadWriteOncePod], storageClassName: local, resources: {requests: {storage: 512Mi}}}", node)
	l := &ledger{pod: "ledger-0", stop: make(chan struct{})}
	if _, err := c.TrySQL(l.pod, "CREATE TABLE kept (n int PRIMARY KEY, filler text)"); err != nil {
		c.Fatal(err)
	}
	l.done.Go(func() {
		for {
			select {
			case <-l.stop:
				return
			default:
			}
			from := l.rows.Load()
			if _, err := c.TrySQL(l.pod, fmt.Sprintf("INSERT INTO kept SELECT n, repeat('kept', 50) FROM generate_series(%d, %d) n", from, from+99)); err != nil {
				return // the box is lost
			}
			l.rows.Store(from + 100)
		}
	})
	return l
}

// want waits until PostgreSQL has recovered, with all rows up to one of them, and at least so many.
func (l *ledger) want(c *cluster.Cluster, least int64) {
	c.Helper()
	c.Eventually("PostgreSQL to have recovered", func() error {
		text, err := c.TrySQL(l.pod, "SELECT count(*), coalesce(max(n), -1) + 1 = count(*), bool_and(filler = repeat('kept', 50)) FROM kept")
		if err != nil {
			return err
		}
		count, whole, _ := strings.Cut(strings.TrimSpace(text), "|")
		rows, err := strconv.ParseInt(count, 10, 64)
		if err != nil || whole != "t|t" || rows < least {
			return fmt.Errorf("it has %s, want at least %d rows without gaps: %w", text, least, err)
		}
		c.Logf("PostgreSQL has %d of %d rows. %d were committed before the backup", rows, l.rows.Load(), least)
		return nil
	})
}

// many is how many pods run besides those with volumes.
const many = 34

// TestVolumes loses a server with the disks of its volumes, one of which is PostgreSQL's under load. Their contents come back when the pods start. The volume of
// an agent, which was not lost, keeps what was written after the last backup.
func TestVolumes(t *testing.T) {
	harness.Require(t)
	postgres := cluster.PostgreSQLImage(t)
	network := harness.NewNetwork(t)
	b := newBucket(t)
	host := cluster.NewHost(t, network, "server-1")
	cluster.PreloadBusybox(t, host)
	host.Preload(postgres)
	b.serve(host)
	host.WriteFile("/etc/kedge/config.yaml", settings+"backup-volumes: \"* * * * *\"\n")
	server := host.StartServer(t)
	server.WaitReady()
	c := cluster.Of(t, server)
	agent := cluster.NewHost(t, network, "agent-1")
	cluster.PreloadBusybox(t, agent)
	agent.StartAgent(t, server).WaitReady()
	c.Join(network, "agent-2")
	key := makeKey(t, host)
	runWithVolume(c, "image", "server-1", "local", "")
	runWithVolume(c, "plain", "server-1", "local-path", "")
	runWithVolume(c, "elsewhere", "agent-1", "local", "")
	runWithVolume(c, "left-out", "server-1", "local", `kedge.dev/backup: "false"`)
	for _, name := range []string{"image", "plain", "elsewhere", "left-out"} {
		c.Pod(name)
	}
	c.RunDeployment("many")
	c.Scale("many", many)
	ledger := openLedger(c, "server-1")
	backedUp := func(what string, least int) {
		harness.Eventually(t, 5*time.Minute, what, func() error {
			for _, name := range []string{"image", "plain", "elsewhere", "data-ledger-0"} {
				if found := completed(c, name); len(found) < least {
					return fmt.Errorf("claim %s has %d backups: %s", name, len(found), c.Kubectl("get", "volumebackups", "-o", "wide"))
				}
			}
			return nil
		})
	}
	backedUp("the first backup of all volumes", 1)
	c.Kubectl("exec", "image", "--", "sh", "-c", "echo later >/data/later; sync")
	committed := ledger.rows.Load()
	backedUp("two more backups of all volumes", len(completed(c, "image"))+2)
	t.Logf("%s", c.Kubectl("get", "volumebackups", "-o", "wide"))
	if found := completed(c, "left-out"); len(found) > 0 {
		t.Errorf("a claim that is left out has %v", found)
	}
	for _, name := range []string{"image", "plain", "elsewhere"} {
		all := completed(c, name)
		if newest := all[len(all)-1]; !strings.Contains(newest, " 20 MiB ") || strings.HasSuffix(newest, " 20 MiB") {
			t.Errorf("the newest backup of claim %s is %s, want 20 MiB of which little was sent", name, newest)
		}
	}
	c.Kubectl("create", "configmap", "last", "--from-literal=value=written")
	last, err := c.Client.CoreV1().ConfigMaps(cluster.Namespace).Get(t.Context(), "last", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	host.WriteFile("/opt/key", key)
	restore := append(slices.Clone(restore), "--key", "/opt/key")
	inBackup(c, host, last, restore)
	if said := run(t, host, append(restore, "--check")...); !strings.Contains(said, "default/left-out does not come back: there is no backup") {
		t.Errorf("kedge restore --check says %s", said)
	}
	c.Kubectl("exec", "elsewhere", "--", "sh", "-c", "echo newest >/data/newest; sync")

	host.LoseDisk()
	server.Exited()
	close(ledger.stop)
	ledger.done.Wait()
	cluster.Preload(t, host)
	cluster.PreloadBusybox(t, host)
	host.Preload(postgres)
	b.serve(host)
	host.WriteFile("/opt/key", key)
	t.Log(run(t, host, restore...))
	server = host.StartServer(t)
	server.WaitReady()
	c = cluster.Of(t, server)
	c.WaitNode("agent-1", corev1.ConditionTrue)
	for _, name := range []string{"image", "plain", "elsewhere"} {
		// The status of the pod came with the backup.
		c.Eventually("the contents of claim "+name, func() error {
			_, err := c.TryKubectl("", "exec", name, "--", "sh", "-c", "cd /data && sha256sum -c sum && test folder/random -ef second")
			return err
		})
	}
	if said := c.Kubectl("exec", "image", "--", "cat", "/data/later"); said != "later" {
		t.Errorf("the file of a later backup has %q", said)
	}
	inArchive(t, host, "image", "./later", "later\n")
	inArchive(t, host, "plain", "./hook", "stopped\n")
	if said := c.Kubectl("exec", "elsewhere", "--", "cat", "/data/newest"); said != "newest" {
		t.Errorf("the volume that was not lost has %q", said)
	}
	ledger.want(c, committed)
	c.Scale("many", many)
	t.Logf("%s", c.Kubectl("get", "events", "--field-selector=involvedObject.name=image"))
	c.Eventually("the keys of volumes to be forgotten", func() error {
		if _, err := c.TryKubectl("", "get", "secret", "-n", "kube-system", "kedge-backup-restore"); err == nil {
			return fmt.Errorf("there is %s", c.Kubectl("get", "secret", "-n", "kube-system", "kedge-backup-restore", "-o", "name"))
		}
		return nil
	})
	if said := c.Kubectl("get", "events", "--field-selector=involvedObject.name=left-out"); !strings.Contains(said, "there is no such volume on this node") {
		t.Errorf("the Events of a pod whose volume is lost are %s", said)
	}
	before := len(completed(c, "image"))
	backedUp("a backup by the restored server", before+1)
	if newest := completed(c, "image")[before]; strings.HasSuffix(newest, " 20 MiB") {
		t.Errorf("the restored server has sent everything again: %s", newest)
	}
}

// inArchive checks a file of a volume that `kedge backup volume` writes.
func inArchive(t *testing.T, host *harness.Host, claim, name, want string) {
	t.Helper()
	output, err := host.Kedge(t.Context(), "backup", "volume", claim, "--key", "/opt/key").Output()
	if err != nil {
		t.Fatalf("kedge backup volume: %v", err)
	}
	for archive := tar.NewReader(bytes.NewReader(output)); ; {
		header, err := archive.Next()
		if err != nil {
			t.Fatalf("find %s in an archive of %d bytes: %v", name, len(output), err)
		}
		if header.Name != name {
			continue
		}
		if text, err := io.ReadAll(archive); err != nil || string(text) != want {
			t.Errorf("%s in the archive has %q, %v, want %q", name, text, err, want)
		}
		return
	}
}
