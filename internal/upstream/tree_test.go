package upstream

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var (
	update = flag.Bool("update", false, "take over what is upstream now")
	diffs  = flag.Bool("diff", false, "show how what has changed differs")
)

const goldenFile = "golden"

// TestTree fails if something upstream has changed that kedge follows or relies on.
func TestTree(t *testing.T) {
	const root = "../.."
	all, err := directives(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	used, err := usedModules(root)
	if err != nil {
		t.Fatal(err)
	}
	golden, err := readGolden(goldenFile)
	if err != nil && !*update {
		t.Fatal(err)
	}
	get := func(wanted []module) (map[string]module, error) { return fetch(root, wanted) }
	now, changes, err := compare(all, golden, used.find, get)
	if err != nil {
		t.Fatal(err)
	}
	faults, err := headers(root, all, used.find, *update)
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range faults {
		t.Error(fault)
	}
	if *update {
		if err := writeGolden(goldenFile, now); err != nil {
			t.Fatal(err)
		}
	}
	// Gone is what no update mends.
	left := 0
	for _, c := range changes {
		if !*update || c.why == gone {
			left++
		}
		if *diffs && (c.why == changed || c.why == gone && c.old.hash != "") {
			text, err := diff(c, get)
			if err != nil {
				t.Error(err)
			}
			fmt.Printf("%s\n", text) // not the log, which indents
		}
	}
	if len(changes) > 0 {
		fmt.Print(table(changes))
	}
	if left > 0 {
		t.Errorf("%d functions or files of other modules differ from golden. Run `make upstream` to see how, correct the code here, and run `make upstream UPDATE=1`", left)
	}
}

// TestHelpersVersions wants what kedge embeds of a module, and what it is linked with,
// to be of one version: a directive means both.
func TestHelpersVersions(t *testing.T) {
	used, err := usedModules("../..")
	if err != nil {
		t.Fatal(err)
	}
	tools := 0
	for _, embedded := range used["cmd/helpers"] {
		if !strings.HasPrefix(embedded.path, "github.com/containerd/containerd/") && !strings.HasPrefix(embedded.path, "github.com/containernetworking/") {
			continue
		}
		for _, linked := range used["."] {
			if linked.path != embedded.path {
				continue
			}
			tools++
			if linked.version != embedded.version {
				t.Errorf("%s is %s in go.mod and %s in cmd/helpers/go.mod", linked.path, linked.version, embedded.version)
			}
		}
	}
	if tools == 0 {
		t.Error("no module is in both go.mod files")
	}
}
