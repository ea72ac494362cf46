// Package run tests `kedge run` and `kedge cluster`: that commands get clusters, and that nothing stays on the
// machine, however they end. The machine is a host of the harness. So each cluster is made of namespaces
// within namespaces. TestInContainer has a real container around it.
package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

const (
	// patience is long, because five clusters may start at a time.
	patience = 5 * time.Minute
	// servedPort is the NodePort of the web server of manifest.
	servedPort = "30080"
)

// machine is a machine on which users run kedge.
type machine struct {
	*testing.T
	*harness.Host
}

// newMachine returns a machine without a kedge.
func newMachine(t *testing.T) machine {
	t.Helper()
	harness.Require(t)
	harness.Need(t, "curl", "nftables", "iproute2")
	return machine{t, harness.NewNetwork(t).NewHost(t, "machine")}
}

// testserver returns the archive of an image with a web server.
func (m machine) testserver() string {
	m.Helper()
	repository, err := harness.Repository()
	if err == nil {
		var archive string
		if archive, err = image.Testserver(repository); err == nil {
			return archive
		}
	}
	m.Fatal(err)
	return ""
}

// manifest writes a file with a web server that answers with its own name, and returns the file's path.
func (m machine) manifest(name string) string {
	m.Helper()
	path := filepath.Join(m.Scratch("manifests"), name+".yaml")
	text := fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {name: web, image: %[2]q, args: [serve, "80"], readinessProbe: {httpGet: {port: 80}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, nodePort: %[3]s}]
`, name, image.TestserverName, servedPort)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		m.Fatal(err)
	}
	return path
}

// started is a command on the machine.
type started struct {
	*harness.Cmd
	output *output
	ended  chan struct{}
}

// output is what a command has printed so far.
type output struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.text.Write(p)
}

// String returns the output.
func (o *output) String() string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.text.String()
}

// command returns a command of kedge that is not started yet.
func (m machine) command(args ...string) *started {
	return m.program(os.Getenv("KEDGE_BINARY"), args...)
}

// program returns a command that is not started yet.
func (m machine) program(name string, args ...string) *started {
	return &started{m.Command(context.Background(), name, args...), &output{}, make(chan struct{})}
}

// begin starts a command.
func (m machine) begin(s *started) *started {
	m.Helper()
	s.Stdout, s.Stderr = s.output, s.output
	if err := s.Start(); err != nil {
		m.Fatal(err)
	}
	go func() {
		defer close(s.ended)
		_ = s.Wait()
	}()
	return s
}

// start starts a command of kedge.
func (m machine) start(args ...string) *started {
	m.Helper()
	return m.begin(m.command(args...))
}

// status waits for the end of the command and returns its exit status, which is -1 after a signal.
func (s *started) status(t *testing.T) int {
	t.Helper()
	select {
	case <-s.ended:
		return s.ProcessState.ExitCode()
	case <-time.After(harness.Slowly(patience)):
		t.Fatalf("%v has not ended within %s", s.Args, harness.Slowly(patience))
		return 0
	}
}

// want wants an exit status and words in the output.
func (s *started) want(t *testing.T, status int, words ...string) {
	t.Helper()
	got := s.status(t)
	var missing []string
	for _, word := range words {
		if !strings.Contains(s.output.String(), word) {
			missing = append(missing, word)
		}
	}
	if got != status || len(missing) > 0 {
		t.Fatalf("%v ended with %d, want %d, and the output lacks %q:\n%s", s.Args, got, status, missing, s.output)
	}
}

// state returns what clusters could leave on the machine, in lines.
func (m machine) state() string {
	m.Helper()
	output, err := m.Command(m.Context(), "bash", "-c", `
		echo "interfaces"; ip -o address | awk '{print $2, $4}'
		echo "rules"; nft list ruleset
		echo "mounts"; awk '{print $1, $2, $3}' /proc/self/mounts | sort
		echo "cgroups"; find /sys/fs/cgroup -name 'kedge-cluster-*'
		echo "processes"; for p in /proc/[0-9]*; do [ "$(readlink $p/exe)" = "$(readlink -f "$0")" ] || tr '\0' ' ' <$p/cmdline | grep -v '^bash\|^tr \|^grep \|^awk \|^find ' ; done
		echo "files"; { find /run /tmp/kedge-keeper-* -xdev; find /etc /opt /var/lib /var/log /usr/local -xdev | grep 'kedge\|kube\|cni'; } 2>/dev/null | sort
		true`).Output()
	if err != nil {
		m.Fatal(err)
	}
	return string(output)
}

// wantState wants the machine to be as it was.
func (m machine) wantState(before string) {
	m.Helper()
	harness.Eventually(m.T, time.Minute, "the machine to be as before", func() error {
		if lines := difference(before, m.state()); lines != "" {
			return errors.New(lines)
		}
		return nil
	})
}

// difference returns the lines that are only in one of two states. All machines of the harness have the same
// cgroups: clusters of other machines may be gone.
func difference(before, after string) string {
	was, is := strings.Split(before, "\n"), strings.Split(after, "\n")
	var lines []string
	for _, line := range was {
		if !slices.Contains(is, line) && !strings.HasPrefix(line, "/sys/fs/cgroup/") {
			lines = append(lines, "- "+line)
		}
	}
	for _, line := range is {
		if !slices.Contains(was, line) {
			lines = append(lines, "+ "+line)
		}
	}
	return strings.Join(lines, "\n")
}

// query is a command that asks the web server of the cluster in KUBECONFIG, at its node.
const query = `curl -sS --max-time 10 --retry 60 --retry-all-errors --retry-delay 1 http://$(sed -n 's|.*https://\(.*\):6443|\1|p' $KUBECONFIG):` + servedPort

// TestFiveAtOnce gives five commands a cluster each, at the same time. Each deploys a web server and queries
// it. Then it kills five others.
func TestFiveAtOnce(t *testing.T) {
	m := newMachine(t)
	archive := m.testserver()
	m.start("run", "--", "true").want(t, 0)
	before := m.state()

	var running []*started
	for i := range 5 {
		name := fmt.Sprintf("web%d", i)
		running = append(running, m.start("run", "--image", archive, "--manifest", m.manifest(name), "--wait", "--", "bash", "-c", query))
	}
	for i, s := range running {
		s.want(t, 0, fmt.Sprintf("web%d-", i), "objects ready")
	}
	m.wantState(before)

	t.Log("kill -9 of each, while its command runs")
	running = nil
	for i := range 5 {
		name := fmt.Sprintf("web%d", i)
		running = append(running, m.start("run", "--image", archive, "--manifest", m.manifest(name), "--wait", "--", "bash", "-c", query+"; exec sleep 1000"))
	}
	for i, s := range running {
		s.waitFor(t, fmt.Sprintf("web%d-", i))
	}
	for _, s := range running {
		if err := s.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		s.status(t)
	}
	m.wantState(before)

	t.Log("kill -9 of kedge run and of the keeper: the next run removes what is left")
	s := m.start("run", "--nodes=2", "--", "bash", "-c", "echo started; exec sleep 1000")
	s.waitFor(t, "started")
	if output, err := m.Command(t.Context(), "bash", "-c", "kill -9 $(grep -o '\"keeper\":[0-9]*' /run/kedge-clusters/run-*/status.json | cut -d: -f2)").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	_ = s.Process.Signal(syscall.SIGKILL)
	s.status(t)
	m.start("run", "--", "true").want(t, 0)
	m.wantState(before)
}
