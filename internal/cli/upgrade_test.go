package cli

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/controlplane/upgradecontrol"
)

// TestPlanOf reads flags.
func TestPlanOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kedge")
	if err := os.WriteFile(path, []byte("kedge"), 0o600); err != nil {
		t.Fatal(err)
	}
	digest := fmt.Sprintf("%x", sha256.Sum256([]byte("kedge")))
	for args, want := range map[string]any{
		"--version v1.37.2+kedge.2": upgrades.PlanSpec{Version: "v1.37.2+kedge.2", Concurrency: 1},
		"--version v1.37.2 --source https://example.com --concurrency 3 --drain": upgrades.PlanSpec{Version: "v1.37.2", Source: "https://example.com", Concurrency: 3, Drain: &upgrades.Drain{TimeoutSeconds: 300}},
		"--channel https://example.com/stable":                                   upgrades.PlanSpec{Channel: "https://example.com/stable", Concurrency: 1},
		"--file " + path:                                                         upgrades.PlanSpec{File: path, SHA256: digest, Concurrency: 1},
		"":                                                                       "needs one of --version, --channel and --file, got 0",
		"--version v1.37.2 --file " + path:                                       "got 2",
		"--version latest":                                                       "such as v1.37.2+kedge.2",
		"--version v1.37.2 --concurrency 0":                                      "from 1 to 1000",
		"--version v1.37.2 --concurrency many":                                   `got "many"`,
		"--file /does/not/exist":                                                 "no such file",
		"--file " + filepath.Dir(path):                                           "a folder",
		"--file " + path + " --source https://example.com":                       "leave it out with --file",
		"--channel https://example.com/stable --version v1.37.2 --file /dev/null": "got 3",
	} {
		app := newApp(&workload{})
		command := upgradeCommand()
		var got any
		command.Action = func(c *cli.Context) error {
			spec, err := planOf(c)
			if got = any(spec); err != nil {
				got = err.Error()
			}
			return nil
		}
		app.Commands = []*cli.Command{command}
		if err := runApp(t.Context(), app, append([]string{"kedge", "upgrade"}, strings.Fields(args)...)); err != nil {
			t.Fatal(err)
		}
		if text, is := want.(string); is && !strings.Contains(fmt.Sprint(got), text) || !is && !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", args, got, want)
		}
	}
}

func TestPrintForecast(t *testing.T) {
	steps := [][]upgradecontrol.Step{
		{{Node: "s1", Role: "server", Version: "v1.37.2"}},
		{{Node: "a", Role: "agent", Version: "v1.37.2"}, {Node: "b", Role: "agent", Version: "v1.36.9"}},
	}
	table := `To v1.37.3, in this order:

STEP   NODE   ROLE     VERSION
1      s1     server   v1.37.2
2      a      agent    v1.37.2
2      b      agent    v1.36.9

`
	for name, test := range map[string]struct {
		forecast   upgradecontrol.Forecast
		want, fail string
	}{
		"an upgrade": {upgradecontrol.Forecast{Steps: steps, Done: []string{"s2", "s3"}},
			"Already v1.37.3: s2, s3\n" + table + "Nothing forbids the upgrade. To begin, run this command without --check.\n", ""},
		"one that waits": {upgradecontrol.Forecast{Steps: steps, Waits: "server s2 is not Ready"},
			table + "It would wait: server s2 is not Ready.\nNothing forbids the upgrade. To begin, run this command without --check.\n", ""},
		"a forbidden one": {upgradecontrol.Forecast{Steps: steps, Forbidden: []string{"first", "second"}},
			table, "this forbids the upgrade:\n- first\n- second"},
		"nothing to do": {upgradecontrol.Forecast{Done: []string{"s1"}}, "Already v1.37.3: s1\nThere is nothing to do.\n", ""},
	} {
		var out bytes.Buffer
		err := printForecast(&out, "v1.37.3", test.forecast)
		if out.String() != test.want || fmt.Sprint(err) != test.fail && (err != nil || test.fail != "") {
			t.Errorf("%s: got\n%s%v, want\n%s%s", name, out.String(), err, test.want, test.fail)
		}
	}
}

// TestResolveFile has files that no cluster runs.
func TestResolveFile(t *testing.T) {
	if _, _, err := resolve(t.Context(), upgrades.PlanSpec{File: "/bin/sh"}); err == nil || !strings.Contains(err.Error(), "/bin/sh: it") {
		t.Errorf("a shell: %v", err)
	}
	path := filepath.Join(t.TempDir(), "kedge")
	if err := os.WriteFile(path, []byte("kedge"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := resolve(t.Context(), upgrades.PlanSpec{File: path}); err == nil || !strings.Contains(err.Error(), "not an executable of Linux") {
		t.Errorf("a text: %v", err)
	}
	if _, _, err := resolve(t.Context(), upgrades.PlanSpec{Version: "v1.37.2", Source: "http://192.0.2.1"}); err == nil || !strings.Contains(err.Error(), "anybody on the way") {
		t.Errorf("http: %v", err)
	}
}
