package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/ginkgo"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// What is where on a host.
const (
	kubeconfig = "/etc/kedge/kedge.yaml"
	kubectl    = "/opt/kubectl"
	results    = "/var/log/conformance"
	driverFile = results + "/testdriver.yaml"
	poolFile   = "/var/lib/kedge/server/manifests/loadbalancerpool.yaml"
	mirror     = "127.0.0.1:5555"
	mirrorFile = "/var/lib/kedge/agent/etc/containerd/certs.d/registry.k8s.io/hosts.toml"
)

// selection is which tests run. It comes from the environment.
type selection struct {
	labels      string // ginkgo's label filter
	focus, skip string // regular expressions
	processes   string // tests at a time
	agents      int    // besides the server, which is a node too
	names       []string
}

// selected reads the environment: LABELS, FOCUS, SKIP, PROCS, AGENTS, and LIST, which
// names a file with the only tests to run.
func selected() (selection, error) {
	value := func(name, otherwise string) string {
		if value := os.Getenv(name); value != "" {
			return value
		}
		return otherwise
	}
	s := selection{
		labels:    value("LABELS", "Conformance"),
		focus:     os.Getenv("FOCUS"),
		skip:      os.Getenv("SKIP"),
		processes: value("PROCS", "4"),
	}
	var err error
	if s.agents, err = strconv.Atoi(value("AGENTS", "1")); err != nil || s.agents < 1 {
		return s, fmt.Errorf("AGENTS is %q, which is not a number of agents", os.Getenv("AGENTS"))
	}
	list := os.Getenv("LIST")
	if list == "" {
		return s, nil
	}
	if s.focus != "" || s.skip != "" {
		return s, errors.New("FOCUS and SKIP do not go together with a list of tests")
	}
	if s.names, err = readList(list); err != nil {
		return s, err
	}
	quoted := make([]string, 0, len(s.names))
	for _, name := range s.names {
		quoted = append(quoted, regexp.QuoteMeta(name))
	}
	// The names end there: some are the beginnings of others.
	s.focus = "(" + strings.Join(quoted, "|") + `) \[Conformance\]`
	return s, nil
}

// readList reads the names of tests, one a line.
func readList(path string) (names []string, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		line := strings.TrimSpace(scanner.Text())
		if line != "" && !strings.HasPrefix(line, "#") {
			names = append(names, line)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s names no test", path)
	}
	return names, nil
}

// TestConformance runs upstream's tests and leaves what they say in
// build/conformance/results.
func TestConformance(t *testing.T) {
	harness.Require(t)
	selection, err := selected()
	if err != nil {
		t.Fatal(err)
	}
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	built := filepath.Join(repository, "build", "conformance")
	out := filepath.Join(built, "results")
	if err := os.RemoveAll(out); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		t.Fatal(err)
	}

	network := harness.NewNetwork(t)
	first := network.NewHost(t, "server-1")
	prepare(t, first, built)
	writePool(t, first)
	server := first.StartServer(t, place(selection, 0)...)
	keepLog(t, filepath.Join(out, "kedge.log"), server.Log)
	server.WaitReady()
	for n := 1; n <= selection.agents; n++ {
		node := network.NewHost(t, fmt.Sprint("agent-", n))
		prepare(t, node, built)
		agent := node.StartAgent(t, server, place(selection, n)...)
		keepLog(t, filepath.Join(out, fmt.Sprintf("kedge-agent-%d.log", n)), agent.Log)
		agent.WaitReady()
	}
	detected, err := host.Detect()
	if err != nil {
		t.Fatal(err)
	}
	// Upstream's tests expect to run outside of the cluster: a node's kernel answers connections
	// to an address of the cluster in another way.
	outside := network.NewHost(t, "client-1")
	writeKubeconfig(t, outside, first)
	writeDriver(t, outside, detected.SysResource)
	facts := facts(t, server, selection, detected)

	start := time.Now()
	t.Logf("what the tests write goes to %s", filepath.Join(out, "e2e.log"))
	runErr := run(outside, built, out, selection)
	facts.Duration = time.Since(start)
	for _, name := range []string{"report.json", "junit.xml"} {
		if err := harness.CopyFile(outside.Path(filepath.Join(results, name)), filepath.Join(out, name)); err != nil {
			t.Fatalf("the tests left no report: %v: %v", runErr, err)
		}
	}
	outcomes, err := ginkgo.Read(filepath.Join(out, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := writeTables(out, facts, outcomes); err != nil {
		t.Fatal(err)
	}
	judge(t, selection, outcomes, runErr)
}

// zones is how many zones the tests of zones need, with two nodes each.
const zones = 3

// place returns arguments that put a node into a zone, if there are enough agents for the tests of
// zones. The server then runs no pods: upstream does not count a node of the control plane where it
// spreads a Service over zones.
func place(selection selection, node int) []string {
	switch {
	case selection.agents < 2*zones:
		return nil
	case node == 0:
		return []string{"--node-taint=node-role.kubernetes.io/control-plane=true:NoSchedule"}
	}
	return []string{fmt.Sprintf("--node-label=%s=zone-%d", corev1.LabelTopologyZone, node%zones)}
}

// keepLog writes the log of a kedge to a file when the test ends.
func keepLog(t *testing.T, path string, log func() string) {
	t.Cleanup(func() {
		if err := os.WriteFile(path, []byte(log()), 0o644); err != nil {
			t.Error(err)
		}
	})
}

// judge fails the test unless all that was asked for ran and passed. Skipped
// tests say themselves that they are not for this cluster.
func judge(t *testing.T, selection selection, outcomes []ginkgo.Outcome, runErr error) {
	t.Helper()
	ran := map[string]bool{}
	count := map[ginkgo.State]int{}
	for _, o := range outcomes {
		ran[o.Name] = true
		count[o.State]++
		switch o.State {
		case ginkgo.Failed:
			t.Errorf("failed: %s: %s", o.Name, o.Summary())
		case ginkgo.Skipped:
			t.Logf("skipped: %s: %s", o.Name, o.Summary())
		}
	}
	for _, name := range selection.names {
		if !ran[name] {
			t.Errorf("the list names a test that does not exist: %s", name)
		}
	}
	if len(outcomes) == 0 {
		t.Error("no test matches")
	}
	if runErr != nil && count[ginkgo.Failed] == 0 {
		t.Errorf("the tests ended with %v: see the end of e2e.log", runErr)
	}
	t.Logf("%d passed, %d failed, %d skipped", count[ginkgo.Passed], count[ginkgo.Failed], count[ginkgo.Skipped])
}

// prepare gives a host the images, before its kedge starts, and a mirror that
// has them too, as one test pulls what it runs.
func prepare(t *testing.T, host *harness.Host, built string) {
	t.Helper()
	images := filepath.Join(built, "images")
	host.Preload(filepath.Join(images, "images.tar"))
	host.WriteFile(mirrorFile, fmt.Sprintf("server = \"https://registry.k8s.io\"\n\n[host.\"http://%s\"]\n", mirror))
	registry := host.Command(context.Background(), filepath.Join(built, "bin", "imgtool"), "serve", images, mirror)
	registry.Stderr = os.Stderr
	if err := registry.Start(); err != nil {
		t.Fatalf("serve images: %v", err)
	}
}

// writeKubeconfig gives a host the administrator's kubeconfig of the server.
func writeKubeconfig(t *testing.T, host, server *harness.Host) {
	t.Helper()
	text, err := os.ReadFile(server.Path(kubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	const loopback = "https://127.0.0.1:"
	if !strings.Contains(string(text), loopback) {
		t.Fatalf("the kubeconfig has no %s", loopback)
	}
	host.WriteFile(kubeconfig, strings.ReplaceAll(string(text), loopback, fmt.Sprintf("https://%s:", server.Address)))
}

// writePool gives the cluster addresses for Services of type LoadBalancer.
func writePool(t *testing.T, host *harness.Host) {
	t.Helper()
	text, err := os.ReadFile("loadbalancerpool.yaml")
	if err != nil {
		t.Fatal(err)
	}
	host.WriteFile(poolFile, string(text))
}

// writeDriver gives the host testdriver.yaml, less what this machine's kernel does
// not let it do: without CAP_SYS_RESOURCE no mounted ext4 can grow.
func writeDriver(t *testing.T, host *harness.Host, sysResource bool) {
	t.Helper()
	text, err := os.ReadFile("testdriver.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const online = "onlineExpansion: "
	if !strings.Contains(string(text), online+"true") {
		t.Fatalf("testdriver.yaml does not say %strue", online)
	}
	host.WriteFile(driverFile, strings.Replace(string(text), online+"true", online+strconv.FormatBool(sysResource), 1))
}

// run runs the tests on the host, with kedge as their kubectl.
func run(host *harness.Host, built, out string, selection selection) error {
	if err := os.Symlink(os.Getenv("KEDGE_BINARY"), host.Path(kubectl)); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(out, "e2e.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{
		"run", "--label-filter=" + selection.labels, "--procs=" + selection.processes,
		"--timeout=24h", "--no-color", "--silence-skips", "--output-dir=" + results,
		"--json-report=report.json", "--junit-report=junit.xml",
	}
	if selection.focus != "" {
		args = append(args, "--focus="+selection.focus)
	}
	if selection.skip != "" {
		args = append(args, "--skip="+selection.skip)
	}
	args = append(args, filepath.Join(built, "bin", "e2e.test"), "--",
		"--kubeconfig="+kubeconfig, "--kubectl-path="+kubectl, "--provider=skeleton", fmt.Sprintf("--num-nodes=%d", 1+selection.agents),
		// What it makes is none of conformance: who wants it says so.
		"--storage.testdriver="+driverFile)
	cmd := host.Command(context.Background(), filepath.Join(built, "bin", "ginkgo"), args...)
	cmd.Stdout, cmd.Stderr = log, log
	return cmd.Run()
}

// facts returns what the tables say about a run.
func facts(t *testing.T, server *harness.Server, selection selection, detected host.Facts) runFacts {
	t.Helper()
	version, err := server.Client().Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := server.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	facts := runFacts{
		Version: version.GitVersion,
		Commit:  version.GitCommit,
		Started: time.Now().UTC(),
		Nodes:   len(nodes.Items),
		Machine: fmt.Sprintf("%d cores, %s, Linux %s, cgroup v%d",
			runtime.NumCPU(), runtime.GOARCH, nodes.Items[0].Status.NodeInfo.KernelVersion, detected.CgroupVersion),
		Processes: selection.processes,
		Selection: "label " + selection.labels,
	}
	if !detected.SysResource {
		facts.Machine += ", without CAP_SYS_RESOURCE"
	}
	if selection.names != nil {
		facts.Selection += fmt.Sprintf(", a list of %d", len(selection.names))
	} else if selection.focus != "" {
		facts.Selection += ", focus " + selection.focus
	}
	if selection.skip != "" {
		facts.Selection += ", skip " + selection.skip
	}
	return facts
}

// TestQuickNames sees that the list names each test once, in order.
func TestQuickNames(t *testing.T) {
	names, err := readList("quick.txt")
	if err != nil {
		t.Fatal(err)
	}
	for i := range names[1:] {
		if names[i] >= names[i+1] {
			t.Errorf("%q is twice in quick.txt, or out of order", names[i+1])
		}
	}
}
