package run

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestEnvtestSuite runs the suite of a project with controller-runtime, which uses envtest, with --api-only.
func TestEnvtestSuite(t *testing.T) {
	m := newMachine(t)
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	suite := filepath.Join(m.Scratch("suite"), "suite.test")
	build := exec.Command("go", "test", "-c", "-o", suite)
	build.Dir = filepath.Join(repository, "tests/envtest")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the suite: %v: %s", err, output)
	}
	// The variable is envtest's own: it connects by KUBECONFIG.
	s := m.program("bash", "-c", `cd "$SUITE" && "$KEDGE_PROGRAM" run --api-only -- "$0" -test.v`, suite)
	s.Env = append(s.Env, "SUITE="+build.Dir, "USE_EXISTING_CLUSTER=true", "KEDGE_PROGRAM="+os.Getenv("KEDGE_BINARY"))
	m.begin(s).want(t, 0, "--- PASS: TestSuite")
}
