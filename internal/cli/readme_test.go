package cli

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/base/config"
)

const (
	repository  = "../.."
	tablesBegin = "<!-- Flags, written by go test ./internal/cli -run TestREADMEFlags -update -->\n"
	tablesEnd   = "<!-- End of flags -->\n"
)

var update = flag.Bool("update", false, "write the tables of flags into README.md")

func readme(t *testing.T) string { return document(t, "README.md") }

func document(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestREADMEFlags compares README's tables of flags with the code.
func TestREADMEFlags(t *testing.T) {
	text := readme(t)
	before, rest, found := strings.Cut(text, tablesBegin)
	_, after, foundEnd := strings.Cut(rest, tablesEnd)
	if !found || !foundEnd {
		t.Fatalf("README.md has no lines %q and %q", tablesBegin, tablesEnd)
	}
	want := before + tablesBegin + "\n" + flagTables() + "\n" + tablesEnd + after
	switch {
	case text == want:
	case *update:
		if err := os.WriteFile(filepath.Join(repository, "README.md"), []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Error("README.md's tables of flags are out of date: run go test ./internal/cli -run TestREADMEFlags -update")
	}
}

func flagTables() string {
	var both, servers bytes.Buffer
	for _, f := range config.Default().Fields() {
		table := &both
		if f.Role == config.ServerRole {
			table = &servers
		}
		value := ""
		if text := f.String(); text != "" && text != "false" {
			value = "`" + text + "`"
		}
		fmt.Fprintf(table, "| `--%s` | %s | %s |\n", f.Key, value, strings.ReplaceAll(f.Usage, "|", "\\|"))
	}
	const head = "| flag | default | what it is |\n| --- | --- | --- |\n"
	return "Of `kedge server` and `kedge agent`:\n\n" + head + both.String() + "\nOf `kedge server` only:\n\n" + head + servers.String()
}

// counterparts are the tests that run README's commands: FOLDER TEST, or the target of
// the Makefile that a command is.
var counterparts = map[string]string{
	"make up":          "Makefile up",
	"make test":        "Makefile test",
	"kedge kubectl":    "tests/e2e/seeing TestSeeing",
	"kedge status":     "tests/e2e/seeing TestSeeing",
	"kedge crictl":     "tests/e2e/seeing TestSeeing",
	"kedge ctr":        "tests/e2e/seeing TestSeeing",
	"kedge completion": "internal/cli TestCompletionScripts",

	"kedge check-config":     "tests/e2e/seeing TestSeeing",
	"kedge config print":     "internal/cli TestConfigPrint",
	"kedge config reload":    "tests/e2e/seeing TestSeeing",
	"kedge log-level":        "tests/e2e/seeing TestSeeing",
	"kedge support-bundle":   "tests/e2e/seeing TestSeeing",
	"kedge token create":     "tests/e2e/join TestJoin",
	"kedge node list":        "tests/e2e/attacks TestFormerNode",
	"kedge node revoke":      "tests/e2e/attacks TestFormerNode",
	"kedge agent":            "tests/e2e/join TestJoin",
	"kedge snapshot save":    "tests/e2e/snapshot TestSaveAndRestore",
	"kedge snapshot list":    "tests/e2e/snapshot TestSaveAndRestore",
	"kedge snapshot restore": "tests/e2e/snapshot TestSaveAndRestore",
	"etcdctl":                "tests/e2e/care TestEtcd",

	"curl -sfL":                               "tests/e2e/install TestThisMachine",
	"export KEDGE_URL=https://HOST:6443":      "tests/e2e/install TestFiles",
	"kedge kubectl get events -n kube-system": "tests/e2e/addons TestAddons",
	"kedge secrets-encrypt":                   "tests/e2e/secrets TestOneServer",
	"kedge image":                             "tests/e2e/images TestImages",
	"kedge certificate check":                 "tests/e2e/certificates TestRenewed",
	"kedge certificate rotate":                "tests/e2e/certificates TestRenewed",
	"kedge certificate rotate-ca":             "tests/e2e/certificates TestRotateCAOfServers",

	"kedge server --cluster-init":                                                 "tests/e2e/ha TestThreeServers",
	"kedge server --cluster-init $ETCD":                                           "tests/e2e/roles TestSplitRoles",
	"kedge server --server https://FIRST:6443 --token-file token --disable-etcd":  "tests/e2e/roles TestSplitRoles",
	"kedge server --server https://FIRST:6443 --token-file token $ETCD":           "tests/e2e/roles TestSplitRoles",
	`ETCD="--disable-apiserver --disable-controller-manager --disable-scheduler"`: "tests/e2e/roles TestSplitRoles",
	"kedge server --server https://FIRST:6443 --token-file token":                 "tests/e2e/ha TestThreeServers",
}

// TestREADMECommands finds the test of each command in README and in the hardening
// guide, and has kedge read each of its own, but not do it.
func TestREADMECommands(t *testing.T) {
	text := readme(t) + document(t, "docs/hardening.md")
	commands := readmeCommands(text)
	if len(commands) < 20 {
		t.Errorf("only %d commands were found: %q", len(commands), commands)
	}
	for _, command := range commands {
		place := counterpart(command)
		if place == "" {
			t.Errorf("no test runs %q of README.md: write one, and name it in counterparts", command)
		} else if !exists(t, place) {
			t.Errorf("%q of README.md: there is no %s", command, place)
		}
	}
	inText := regexp.MustCompile("`(kedge [^`]+)`").FindAllStringSubmatch(strings.Join(strings.Fields(text), " "), -1)
	for _, match := range inText {
		commands = append(commands, match[1])
	}
	for _, command := range commands {
		if strings.HasPrefix(command, "kedge ") {
			if err := parse(command); err != nil {
				t.Errorf("%q of README.md: %v", command, err)
			}
		}
	}
}

// readmeCommands are the lines of README's shell blocks, as root types them where
// kedge is installed.
func readmeCommands(text string) (commands []string) {
	inside := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```sh"
		case inside && line != "" && !strings.HasPrefix(line, "#"):
			line, _, _ = strings.Cut(line, "  #")
			if command, ok := strings.CutPrefix(line, "source <("); ok {
				line, _, _ = strings.Cut(command, ")")
			}
			commands = append(commands, strings.TrimPrefix(strings.TrimSpace(line), "sudo "))
		}
	}
	return commands
}

// counterpart is that of the longest known beginning of a command.
func counterpart(command string) string {
	longest := ""
	for known := range counterparts {
		// Flags make of a server another one.
		if command != known && (!strings.HasPrefix(command, known+" ") || strings.HasPrefix(known, "kedge server")) {
			continue
		}
		if len(known) > len(longest) {
			longest = known
		}
	}
	return counterparts[longest]
}

func exists(t *testing.T, place string) bool {
	t.Helper()
	folder, name, _ := strings.Cut(place, " ")
	files, wanted := filepath.Join(repository, folder), "\n"+name+":"
	if folder != "Makefile" {
		files, wanted = filepath.Join(files, "*_test.go"), "\nfunc "+name+"(t *testing.T)"
	}
	found, err := filepath.Glob(files)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range found {
		if text, err := os.ReadFile(file); err == nil && bytes.Contains(text, []byte(wanted)) {
			return true
		}
	}
	return false
}

// parse reads a command as kedge does.
func parse(command string) error {
	app := newApp()
	app.Writer = new(bytes.Buffer)
	var idle func([]*cli.Command)
	idle = func(commands []*cli.Command) {
		for _, c := range commands {
			idle(c.Subcommands)
			if len(c.Subcommands) == 0 {
				c.Action = func(*cli.Context) error { return nil }
			}
		}
	}
	idle(app.Commands)
	return app.Run(strings.Fields(strings.NewReplacer("$ETCD", "", `"`, "").Replace(command)))
}
