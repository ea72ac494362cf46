package upgrade

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/releases"
)

const (
	// planName is the name of the Plan that `kedge upgrade` makes.
	planName = "kedge"
	// planPatience limits how long a Plan may take.
	planPatience = 30 * time.Minute
	// fileOfPlan is where the first server has the executable of the Plan.
	fileOfPlan = "/opt/kedge"
)

// executable is a kedge, or something that says that it is one.
type executable struct{ path, version, digest string }

func newExecutable(t *testing.T, path string) executable {
	t.Helper()
	digest, err := digestOf(path)
	if err != nil {
		t.Fatal(err)
	}
	return executable{path, versionOf(t, path), digest}
}

func digestOf(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	hash := sha256.New()
	_, err = io.Copy(hash, file)
	return hex.EncodeToString(hash.Sum(nil)), err
}

// planned is a world whose nodes upgrade themselves.
type planned struct{ *world }

// newPlanned starts a cluster whose hosts have copies of an executable.
func newPlanned(t *testing.T, of executable, servers, agents int) *planned {
	t.Helper()
	network := harness.NewNetwork(t)
	begin := func(kind string, count int) (hosts []*harness.Host) {
		for i := range count {
			host := newHost(t, network, fmt.Sprintf("%s-%d", kind, i+1), of.path)
			host.InstallCopy(of.path)
			hosts = append(hosts, host)
		}
		return hosts
	}
	p := &planned{newWorld(t, network, cluster.Gather(t, begin("server", servers)...), begin("agent", agents)...)}
	t.Cleanup(func() {
		if t.Failed() {
			p.Logf("the Plan: %v\nthe reports: %v", p.describe("plans"), p.describe("nodes"))
		}
	})
	return p
}

// describe returns objects of a kind, as a person would look at them.
func (p *planned) describe(kind string) string {
	output, err := p.TryKubectl("", "describe", kind)
	return fmt.Sprintf("%v\n%s", err, output)
}

// upgrade runs `kedge upgrade` for a file on the first server. It returns what that says, and an error
// unless the Plan is complete.
func (p *planned) upgrade(to executable, flags ...string) (string, error) {
	p.Helper()
	p.servers[0].CopyProgram(to.path, fileOfPlan)
	ctx, cancel := context.WithTimeout(p.Context(), planPatience)
	defer cancel()
	output, err := p.servers[0].Kedge(ctx, append([]string{"upgrade", "--file=" + fileOfPlan}, flags...)...).CombinedOutput()
	p.Logf("kedge upgrade %s: %v\n%s", strings.Join(flags, " "), err, output)
	if ctx.Err() != nil {
		p.Fatalf("the Plan takes longer than %s", planPatience)
	}
	return string(output), err
}

// plan returns the Plan.
func (p *planned) plan() (*upgrades.Plan, error) {
	ctx, cancel := context.WithTimeout(p.Context(), 10*time.Second)
	defer cancel()
	path := "/apis/" + upgrades.Plans.GroupVersion().String() + "/" + upgrades.Plans.Resource + "/" + planName
	text, err := p.Client.CoreV1().RESTClient().Get().AbsPath(path).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	plan := new(upgrades.Plan)
	return plan, json.Unmarshal(text, plan)
}

// ended waits until the Plan has ended, and returns it.
func (p *planned) ended() *upgrades.Plan {
	p.Helper()
	var ended *upgrades.Plan
	harness.Eventually(p.T, planPatience, "the Plan to end", func() error {
		// A service manager would do the same.
		for _, n := range p.nodes() {
			if !n.Runs() {
				p.Logf("kedge on %s has ended, and is started again:\n%s", n.Name, n.LogTail())
				n.Start()
			}
		}
		plan, err := p.plan()
		if err != nil {
			return err
		}
		ended = plan
		if status := plan.Status; status.ObservedGeneration != plan.Generation || status.Phase != upgrades.Complete && status.Phase != upgrades.Stopped {
			return fmt.Errorf("it is %s: %s", status.Phase, status.Message)
		}
		return nil
	})
	return ended
}

// states returns the nodes of a Plan that are in a state.
func states(plan *upgrades.Plan, state upgrades.NodeState) (found []string) {
	for _, n := range plan.Status.Nodes {
		if n.State == state {
			found = append(found, n.Name)
		}
	}
	return found
}

// report returns what a node tells about its last order.
func (p *planned) report(n node) (upgrades.Report, error) {
	ctx, cancel := context.WithTimeout(p.Context(), 10*time.Second)
	defer cancel()
	object, err := p.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
	if err != nil {
		return upgrades.Report{}, err
	}
	text, told := object.Annotations[upgrades.ReportAnnotation]
	if !told {
		return upgrades.Report{}, nil
	}
	return upgrades.ParseReport(text)
}

// has checks that a node runs an executable, which is the installed one, and is Ready.
func (p *planned) has(want executable, nodes ...node) {
	p.Helper()
	for _, n := range nodes {
		p.Eventually(n.Name+" to run the installed executable of "+want.version, func() error {
			for _, path := range []string{n.Path(harness.InstalledPath), fmt.Sprintf("/proc/%d/exe", n.Process().Pid)} {
				if digest, err := digestOf(path); err != nil || digest != want.digest {
					return fmt.Errorf("%s has the digest %s, want %s: %v", path, digest, want.digest, err)
				}
			}
			if left, _ := filepath.Glob(n.Path(filepath.Dir(harness.InstalledPath) + "/.kedge-*")); len(left) > 0 {
				return fmt.Errorf("%v is there", left)
			}
			return nil
		})
		n.WaitReady()
		p.runs(n.Name, want.version)
	}
}

// TestPlan has three servers and three agents, which upgrade themselves. Executables that do not work stop
// the Plan at the first node.
func TestPlan(t *testing.T) {
	t.Parallel()
	older, ours := executables(t)
	now, next := newExecutable(t, ours), newExecutable(t, harness.RequireNext(t))
	p := newPlanned(t, now, 3, 3)
	processes := p.processes()

	output, err := p.upgrade(next, "--check")
	for _, n := range p.nodes() {
		if err != nil || !strings.Contains(output, n.Name) {
			t.Errorf("--check does not tell of %s", n.Name)
		}
	}
	if plan, err := p.plan(); !apierrors.IsNotFound(err) {
		t.Errorf("after --check there is the Plan %v: %v", plan, err)
	}

	for _, broken := range []executable{
		newExecutable(t, releases.Broken(t, "ends", runtime.GOARCH, next.version)),
		newExecutable(t, releases.Broken(t, "waits", runtime.GOARCH, next.version, "waits=yes")),
	} {
		t.Logf("an executable that %s", filepath.Base(broken.path))
		output, err := p.upgrade(broken)
		plan := p.ended()
		failed, waiting := states(plan, upgrades.NodeFailed), states(plan, upgrades.NodePending)
		if err == nil || plan.Status.Phase != upgrades.Stopped || len(failed) != 1 || len(waiting) != len(p.nodes())-1 {
			t.Fatalf("the Plan ended as %+v", plan.Status)
		}
		if !strings.HasPrefix(failed[0], "server-") || !strings.Contains(output, failed[0]) {
			t.Errorf("%s was the first node; the command should tell of a server", failed[0])
		}
		p.has(now, p.nodes()...)
		p.unchanged()
	}

	t.Log("one that works")
	if _, err := p.upgrade(next); err != nil {
		t.Error(err)
	}
	plan := p.ended()
	if upgraded := states(plan, upgrades.NodeUpgraded); plan.Status.Phase != upgrades.Complete || len(upgraded) != len(p.nodes()) {
		t.Errorf("the Plan ended as %+v", plan.Status)
	}
	p.has(next, p.nodes()...)
	var last time.Time // when the last server was upgraded
	for _, isAgent := range []bool{false, true} {
		for _, n := range plan.Status.Nodes {
			switch since := n.Since.Time; {
			case strings.HasPrefix(n.Name, "agent-") != isAgent:
			case !isAgent && since.After(last):
				last = since
			case isAgent && since.Before(last):
				t.Errorf("agent %s was upgraded before a server", n.Name)
			}
		}
	}
	p.works("late", "agent-1")

	t.Log("an older one is refused")
	output, err = p.upgrade(newExecutable(t, older))
	if err == nil || !strings.Contains(output, "docs/upgrades.md") {
		t.Errorf("it said %v", err)
	}
	p.has(next, p.nodes()...)
	if after := p.processes(); !maps.Equal(after, processes) {
		t.Errorf("a service manager has seen kedge end: the processes are %v, and were %v", after, processes)
	}
	p.unharmed()
}

// processes returns the IDs of the processes that a service manager would know, by node.
func (p *planned) processes() map[string]int {
	processes := map[string]int{}
	for _, n := range p.nodes() {
		processes[n.Name] = n.Process().Pid
	}
	return processes
}

// TestPlanKilled kills the upgrading node at ten points. The service manager starts it again, and then it
// runs the old or the new executable, as the Plan says.
func TestPlanKilled(t *testing.T) {
	t.Parallel()
	_, ours := executables(t)
	now, next := newExecutable(t, ours), newExecutable(t, harness.RequireNext(t))
	p := newPlanned(t, now, 1, 1)
	runs := map[string]executable{}
	for _, n := range p.nodes() {
		runs[n.Name] = now
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	points := [kills]struct {
		stage upgrades.Stage
		// within is how long after the beginning of the stage the kill comes at the latest.
		within time.Duration
	}{
		{upgrades.Fetching, 1},
		{upgrades.Fetching, time.Second},
		{upgrades.Trying, 1},
		{upgrades.Trying, time.Second},
		{upgrades.Trying, 3 * time.Second},
		{upgrades.Trying, 10 * time.Second},
		{upgrades.Trying, 30 * time.Second},
		{upgrades.Trying, time.Minute},
		{upgrades.Upgraded, 1},
		{upgrades.Upgraded, 5 * time.Second},
	}
	for i, point := range points {
		n := p.nodes()[i%2]
		to := next
		if runs[n.Name] == next {
			to = now
		}
		p.begin(n, to)
		p.reaches(n, point.stage)
		delay := time.Duration(random.Int64N(int64(point.within)))
		time.Sleep(delay)
		n.Kill9()
		n.Start()
		plan := p.ended()
		if plan.Status.Phase == upgrades.Complete {
			runs[n.Name] = to
		}
		t.Logf("%s was killed %s after %s: the Plan is %s: %s", n.Name, delay.Round(time.Millisecond), point.stage, plan.Status.Phase, plan.Status.Message)
		p.has(runs[n.Name], n)
		p.unchanged()
	}
	p.works("late", "agent-1")
	p.unharmed()
}

// begin makes a Plan for one node.
func (p *planned) begin(n node, to executable) {
	p.Helper()
	p.servers[0].CopyProgram(to.path, fileOfPlan)
	p.Apply(fmt.Sprintf(`
apiVersion: %s
kind: Plan
metadata: {name: %s}
spec:
  file: %s
  sha256: %s
  nodeSelector: {matchLabels: {kubernetes.io/hostname: %s}}
`, upgrades.Plans.GroupVersion(), planName, fileOfPlan, to.digest, n.Name))
}

// reaches waits until a node is at a stage of its order, or is further.
func (p *planned) reaches(n node, stage upgrades.Stage) {
	p.Helper()
	order := []upgrades.Stage{upgrades.Fetching, upgrades.Trying, upgrades.Upgraded}
	harness.Eventually(p.T, planPatience, fmt.Sprintf("%s to be at %s", n.Name, stage), func() error {
		plan, err := p.plan()
		if err != nil && n.Name == p.servers[0].Name && stage == upgrades.Trying {
			return nil // the one server is on trial
		}
		if err != nil {
			return err
		}
		report, err := p.report(n)
		if err != nil {
			return err
		}
		if plan.Status.ObservedGeneration != plan.Generation || len(plan.Status.Nodes) != 1 || plan.Status.Nodes[0].Order != report.ID {
			return errors.New("it has told nothing yet")
		}
		if slices.Index(order, report.Stage) < slices.Index(order, stage) {
			return fmt.Errorf("it is at %s: %s", report.Stage, report.Message)
		}
		return nil
	})
}
