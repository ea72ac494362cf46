package conformance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness/ginkgo"
)

const report = `[{"SpecReports": [
	{"LeafNodeType": "SynchronizedBeforeSuite", "LeafNodeText": "", "State": "passed", "RunTime": 1000000000},
	{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeText": "should | run [Conformance] [NodeConformance]", "State": "passed", "RunTime": 61000000000},
	{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-apps] Job"], "LeafNodeText": "should end", "State": "timedout", "RunTime": 3000000000, "Failure": {"Message": "too late\nby far"}},
	{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-apps] Job"], "LeafNodeText": "should not be asked for", "State": "skipped"},
	{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-apps] Job"], "LeafNodeText": "should be elsewhere", "State": "skipped", "Failure": {"Message": "needs two nodes"}},
	{"LeafNodeType": "SynchronizedAfterSuite", "LeafNodeText": "", "State": "failed", "Failure": {"Message": "no"}}
]}]`

func TestTables(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "report.json")
	if err := os.WriteFile(path, []byte(report), 0o644); err != nil {
		t.Fatal(err)
	}
	outcomes, err := ginkgo.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	facts := runFacts{
		Version: "v1.37.2+kedge.9", Commit: "abc", Started: time.Unix(0, 0).UTC(), Duration: 90 * time.Minute,
		Nodes: 1, Machine: "2 cores", Processes: "4", Selection: "label Conformance",
	}
	if err := writeTables(dir, facts, outcomes); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"results.tsv": "failed\t0\tSynchronizedAfterSuite\n" +
			"skipped\t0\t[sig-apps] Job should be elsewhere\n" +
			"failed\t3\t[sig-apps] Job should end\n" +
			"passed\t61\t[sig-node] Pods should | run\n",
		"results.md": `# Conformance of kedge v1.37.2+kedge.9

1 passed, 2 failed, 1 skipped in 90 minutes, at the first attempt.

- commit abc, 1 January 1970
- tests: label Conformance
- nodes: 1, tests at a time: 4
- machine: 2 cores

| area | passed | failed | skipped | minutes, added up |
| --- | --: | --: | --: | --: |
| other | 0 | 1 | 0 | 0.0 |
| sig-apps | 0 | 1 | 1 | 0.1 |
| sig-node | 1 | 0 | 0 | 1.0 |
| all | 1 | 2 | 1 | 1.1 |

## Failed

- SynchronizedAfterSuite: no
- [sig-apps] Job should end: too late

## Skipped

- [sig-apps] Job should be elsewhere: needs two nodes

## All

| test | result | seconds |
| --- | --- | --: |
| SynchronizedAfterSuite | failed | 0 |
| [sig-apps] Job should be elsewhere | skipped | 0 |
| [sig-apps] Job should end | failed | 3 |
| [sig-node] Pods should \| run | passed | 61 |
`,
	} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s is\n%swant\n%s", name, got, want)
		}
	}
	if _, err := ginkgo.Read(filepath.Join(dir, "results.md")); err == nil || !strings.Contains(err.Error(), "results.md") {
		t.Errorf("error is %v", err)
	}
}
