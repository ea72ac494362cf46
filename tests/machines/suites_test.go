package machines

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/image"
	"github.com/kedge-dev/kedge/tests/harness/store"
)

// suitesVariable has the packages below tests whose tests run on the machine, in place of the scenarios, such as
// "integration e2e/policy conformance".
const suitesVariable = "KEDGE_SUITES"

// passedOn are the variables that the packages read.
var passedOn = []string{"LIST", "FOCUS", "SKIP", "LABELS", "PROCS", "AGENTS"}

// sourceTree is where the machine has the source tree of this machine.
const sourceTree = "/work"

func suites() []string { return strings.Fields(os.Getenv(suitesVariable)) }

// toRun returns the scenarios, or what runs in their place.
func toRun() []scenario {
	if len(suites()) > 0 {
		return []scenario{scenarios[0], {"suites", everywhere, runSuites, basic}}
	}
	return scenarios
}

// runSuites runs tests of other packages on the machine, as `make e2e` runs them on this one. Each makes hosts of
// its own there.
func runSuites(t *testing.T, l *life) {
	// The machine has no Go to build them.
	if _, err := image.Testserver(l.tree); err != nil {
		t.Fatal(err)
	}
	if _, err := image.Build(l.tree, store.EtcdPackage); err != nil {
		t.Fatal(err)
	}
	l.sh(t, "mkdir -p "+sourceTree+" && "+l.kind.mount(l))
	for _, suite := range suites() {
		t.Run(suite, func(t *testing.T) {
			program := filepath.Join("build/machines/suites", suite+".test")
			build := exec.Command("go", "test", "-c", "-o", program, "./tests/"+suite)
			build.Dir = l.tree
			if output, err := build.CombinedOutput(); err != nil {
				t.Fatalf("build the tests of %s: %v\n%s", suite, err, output)
			}
			l.runSuite(t, suite, program)
		})
	}
}

// runSuite runs the tests of a package as a unit of the machine, because they take longer than a connection may.
func (l *life) runSuite(t *testing.T, suite, program string) {
	variables := fmt.Sprintf("-E HOME=/root -E KEDGE_BINARY=%s -E KEDGE_SLOW=%d", filepath.Join(sourceTree, "bin/kedge"), l.kind.slow())
	for _, name := range passedOn {
		if value := os.Getenv(name); value != "" {
			variables += fmt.Sprintf(" -E %s='%s'", name, value)
		}
	}
	l.sh(t, fmt.Sprintf("systemd-run -q --unit=suite --no-block --collect %s -p Delegate=yes -p TasksMax=infinity -p StandardOutput=truncate:/run/suite.log -p StandardError=append:/run/suite.log "+
		"-p WorkingDirectory=%s/tests/%s %s/%s -test.v -test.timeout=6h -test.parallel=1", variables, sourceTree, suite, sourceTree, program))
	harness.Eventually(t, suitePatience, suite, func() error {
		state, err := l.try("systemctl is-active suite")
		if err == nil || strings.Contains(state, "activating") {
			return fmt.Errorf("it is still running")
		}
		return nil
	})
	output := l.sh(t, "grep -E '^ *--- |^(PASS|FAIL|ok)|_test.go:' /run/suite.log | tail -c 20000")
	t.Log(output)
	if last := l.sh(t, "tail -n 1 /run/suite.log"); last != "PASS" {
		t.Errorf("%s failed:\n%s", suite, l.sh(t, "tail -c 20000 /run/suite.log"))
	}
}
