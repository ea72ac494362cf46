package run

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kedge-dev/kedge/internal/testutil/guide"
	"github.com/kedge-dev/kedge/tests/harness"
)

// recipe returns the block of docs/run.md that begins with a line.
func recipe(t *testing.T, first string) string {
	t.Helper()
	page := guide.Page{Name: "docs/run.md", Text: harness.Document(t, "docs/run.md")}
	blocks, err := page.Blocks()
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range blocks {
		if strings.HasPrefix(block.Text, first+"\n") {
			return block.Text
		}
	}
	t.Fatalf("docs/run.md has no block that begins with %q", first)
	return ""
}

// workflow is the part of a workflow of GitHub Actions that says what to run.
type workflow struct {
	Jobs map[string]struct {
		Steps []struct{ Run string }
	}
}

// pipeline is the part of a pipeline of GitLab that says what to run.
type pipeline map[string]struct {
	BeforeScript []string `json:"before_script"`
	Script       []string
}

// TestRecipes runs what the recipes of docs/run.md run, except the installation of kedge, which needs a
// release.
func TestRecipes(t *testing.T) {
	m := newMachine(t)
	m.CopyProgram(os.Getenv("KEDGE_BINARY"), harness.InstalledPath)
	var actions workflow
	if err := yaml.Unmarshal([]byte(recipe(t, "# .github/workflows/e2e.yaml")), &actions); err != nil {
		t.Fatal(err)
	}
	var commands []string
	for _, step := range actions.Jobs["e2e"].Steps {
		commands = append(commands, step.Run)
	}
	var gitlab pipeline
	if err := yaml.Unmarshal([]byte(recipe(t, "# .gitlab-ci.yml")), &gitlab); err != nil {
		t.Fatal(err)
	}
	commands = append(commands, gitlab["e2e"].Script...)
	ran := 0
	for _, command := range commands {
		if command == "" || strings.Contains(command, "install.sh") {
			continue
		}
		ran++
		s := m.program("bash", "-ec", `cd "$FOLDER"; sudo() { "$@"; }`+"\n"+command)
		s.Env = append(s.Env, "FOLDER="+m.Scratch("checkout"))
		m.begin(s).want(t, 0, "server-1", "removed")
	}
	if ran != 2 {
		t.Errorf("%d commands were run, want 2", ran)
	}
}

// theirTest is a test of a user, who has the TestMain of docs/run.md.
const theirTest = `package e2e

import (
	"os"
	"strings"
	"testing"
)

func TestHasCluster(t *testing.T) {
	text, err := os.ReadFile(os.Getenv("KUBECONFIG"))
	if err != nil || !strings.Contains(string(text), "https://127.0.0.1:") {
		t.Fatalf("no cluster: %v", err)
	}
	t.Log("there is a cluster")
}

func TestFails(t *testing.T) {
	if os.Getenv("FAIL") != "" {
		t.Error("as it should")
	}
}
`

// TestTestMain runs a Go test with the TestMain of docs/run.md.
func TestTestMain(t *testing.T) {
	m := newMachine(t)
	m.CopyProgram(os.Getenv("KEDGE_BINARY"), harness.InstalledPath)
	folder := m.Scratch("module")
	for name, text := range map[string]string{
		"go.mod": "module example.com/e2e\n", "main_test.go": recipe(t, "// main_test.go"), "e2e_test.go": theirTest,
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "test", "-c", "-o", "e2e.test")
	build.Dir, build.Env = folder, append(os.Environ(), "GOFLAGS=", "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	program := filepath.Join(folder, "e2e.test")
	m.begin(m.program(program, "-test.v")).want(t, 0, "there is a cluster", "PASS", "removed")
	failing := m.program(program, "-test.v")
	failing.Env = append(failing.Env, "FAIL=yes")
	m.begin(failing).want(t, 1, "as it should", "removed")
}
