// Package care tests what users see of the datastore: its speed and its faults in `kedge status` and in
// metrics, and its contents by etcdctl.
package care

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/inspect/status"
	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/slowfs"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

const patience = 3 * time.Minute

// statusOf runs `kedge status` on a host, whatever its exit status.
func statusOf(t *testing.T, host *harness.Host) (*status.Report, error) {
	t.Helper()
	output, failed := host.Kedge(t.Context(), "status", "--output=json").Output()
	report := &status.Report{}
	if err := json.Unmarshal(output, report); err != nil {
		return nil, fmt.Errorf("%w: %w", failed, err)
	}
	if report.Datastore == nil {
		return nil, fmt.Errorf("status knows of no datastore: %s", output)
	}
	return report, nil
}

// waitReady waits until all components of a server without a node are ready.
func waitReady(t *testing.T, server *harness.Server) {
	t.Helper()
	server.WaitAPI()
	harness.Eventually(t, patience, "status 0 of kedge status", func() error {
		_, err := server.Host.Kedge(t.Context(), "status").Output()
		return err
	})
}

// metrics checks that /metrics has these metrics.
func metrics(t *testing.T, server *harness.Server, want ...string) {
	t.Helper()
	metricsAt(t, server, "/metrics", want...)
}

// metricsAt checks that a path of the API server has these metrics.
func metricsAt(t *testing.T, server *harness.Server, path string, want ...string) {
	t.Helper()
	text, err := server.Client().CoreV1().RESTClient().Get().AbsPath(path).DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range want {
		if !regexp.MustCompile("(?m)^" + pattern).Match(text) {
			t.Errorf("no %s in %s", pattern, path)
		}
	}
}

// etcdctlPage is the document with the etcdctl commands.
const etcdctlPage = "docs/datastores.md"

// documentedCommands returns the commands of etcdctlPage that begin with sudo etcdctl.
func documentedCommands(t *testing.T, all bool) []string {
	t.Helper()
	var found []string
	for line := range strings.Lines(harness.Document(t, etcdctlPage)) {
		if strings.HasPrefix(line, "sudo etcdctl ") && (all || !strings.Contains(line, "# embedded etcd only")) {
			found = append(found, line)
		}
	}
	if len(found) < 2 {
		t.Fatalf("%s has the commands %q only", etcdctlPage, found)
	}
	return found
}

// etcdctl runs the commands of etcdctlPage as printed, except sudo: the test is root already.
func etcdctl(t *testing.T, server *harness.Server, all bool) {
	t.Helper()
	harness.Need(t, "etcd-client")
	folder := server.Host.Scratch("etcdctl")
	for _, line := range documentedCommands(t, all) {
		script := "set -e; cd " + folder + "; sudo() { \"$@\"; }; " + line
		output, err := server.Host.Command(t.Context(), "sh", "-c", script).CombinedOutput()
		if err != nil {
			t.Errorf("run %s: %v\n%s", line, err, output)
			continue
		}
		want := map[string]string{
			"get /registry":   "/registry/namespaces/kube-system\n",
			"endpoint status": "unix:///run/kedge/datastore.sock",
			"member list":     "started, server-1-",
			"snapshot save":   "saved at etcd.db",
		}
		for command, text := range want {
			if strings.Contains(line, command) && !strings.Contains(strings.ToLower(string(output)), text) {
				t.Errorf("%s: no %q in\n%s", line, text, output)
			}
		}
	}
	own := "export ETCDCTL_API=3; e='etcdctl --endpoints unix:///run/kedge/datastore.sock'; " +
		"$e put mine/a 1; $e put mine/a 2; $e put mine/b 3; $e get mine/a; $e del mine/b; $e put mine/c 4; $e del mine/ --prefix; $e get mine/ --prefix"
	output, err := server.Host.Command(t.Context(), "sh", "-ec", own).CombinedOutput()
	if want := "OK\nOK\nOK\nmine/a\n2\n1\nOK\n2\n"; err != nil || string(output) != want {
		t.Errorf("keys of a person's own: %v\n%s", err, output)
	}
	if info, err := os.Stat(filepath.Join(folder, "etcd.db")); all && (err != nil || info.Size() == 0) {
		t.Errorf("etcdctl snapshot save: %v, %v", info, err)
	}
}

// TestSlowDisk has SQLite on a disk that becomes slow. Status, the log and the metrics must say so.
func TestSlowDisk(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	host := harness.NewNetwork(t).NewHost(t, "server-1")
	disk := slowfs.Mount(t, host, "/var/lib/kedge/server/db", slowfs.Limits{BytesPerSecond: 100e6, SyncsPerSecond: 1000})
	server := host.StartServer(t, "--disable-agent")
	waitReady(t, server)
	report, err := statusOf(t, host)
	if err != nil {
		t.Fatal(err)
	}
	d := report.Datastore
	if d.Kind != "sqlite" || d.Fault != "" || d.Size == 0 || d.Used == 0 || d.Disk == nil || d.Recent.Count == 0 {
		t.Errorf("got %+v", d)
	}
	etcdctl(t, server, false)
	metrics(t, server,
		`kedge_datastore_size_bytes\{kind="sqlite"\} [1-9]`, `kedge_datastore_disk_free_bytes\{kind="sqlite"\} [1-9]`,
		`kedge_datastore_commit_duration_seconds_count\{kind="sqlite"\} [1-9]`)

	disk.SetLimits(slowfs.Limits{BytesPerSecond: 100e6, SyncsPerSecond: 0.5})
	for n := range 3 {
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("slow-", n)}}
		if _, err := server.Client().CoreV1().ConfigMaps("default").Create(t.Context(), config, metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
	}
	if report, err = statusOf(t, host); err != nil {
		t.Fatal(err)
	}
	d = report.Datastore
	if d.Slow.Count < 2 || !strings.Contains(d.Slow.Last, "/registry/") || d.Slow.Took < time.Second || d.Recent.P99 < 500*time.Millisecond {
		t.Errorf("on a slow disk: %+v, %+v", d.Slow, d.Recent)
	}
	table, _ := host.Kedge(t.Context(), "status").Output()
	t.Logf("%s", table)
	server.WaitLog("The datastore is slow: ")
	server.WaitLog("the disk under /var/lib/kedge/server/db")
	metrics(t, server, `kedge_datastore_slow_operations_total\{kind="sqlite"\} [1-9]`)
	disk.SetLimits(slowfs.Limits{BytesPerSecond: 100e6, SyncsPerSecond: 1000})
}

// TestEtcd checks that status shows which member leads and which answer, and what a server waits
// for that is alone.
func TestEtcd(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	one := network.NewHost(t, "server-1").StartServer(t, "--cluster-init", "--disable-agent")
	waitReady(t, one)
	etcdctl(t, one, true)
	metrics(t, one,
		`kedge_datastore_commit_duration_seconds_count\{kind="etcd"\} [1-9]`, `kedge_datastore_used_bytes\{kind="etcd"\} [1-9]`)
	metricsAt(t, one, "/metrics/etcd", `etcd_disk_wal_fsync_duration_seconds_count [1-9]`, `etcd_server_has_leader 1`)
	two := network.NewHost(t, "server-2").StartServer(t, "--disable-agent",
		"--server=https://"+one.Host.Address.String()+":6443", "--token="+one.Token())
	waitReady(t, two)
	for _, server := range []*harness.Server{one, two} {
		report, err := statusOf(t, server.Host)
		if err != nil {
			t.Fatal(err)
		}
		e := report.Datastore.Etcd
		leads := slices.IndexFunc(e.Members, func(m datastore.EtcdMember) bool { return m.Leader })
		if report.Datastore.Fault != "" || len(e.Members) != 2 || leads < 0 || e.Quorum != 2 || !e.Members[0].Answers || !e.Members[1].Answers {
			t.Errorf("%s: got datastore %+v, want no fault, two members that answer, a leader and a quorum of 2", server.Host.Name, report.Datastore)
		}
		table, _ := server.Host.Kedge(t.Context(), "status").Output()
		t.Logf("%s", table)
	}

	t.Log("one of the two members is alone")
	two.Kill9()
	one.Kill9()
	one.Start()
	harness.Eventually(t, patience, "status to say what is waited for", func() error {
		report, err := statusOf(t, one.Host)
		if err != nil {
			return err
		}
		if fault := report.Datastore.Fault; !strings.Contains(fault, "of 2 members with a vote, 1 answer and 2 are needed. No answer from server-2") {
			return fmt.Errorf("it says %q", fault)
		}
		return nil
	})
	if err := one.Host.Kedge(t.Context(), "status").Run(); err == nil {
		t.Error("status succeeds without a quorum")
	}
}
