package cli

import (
	"bytes"
	"context"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/node/containerd/registries"
	"github.com/kedge-dev/kedge/internal/testutil/guide"
)

const repository = "../.."

// notRun are the reasons for which tests/e2e/documents does not run a block of the
// documents as it is.
var notRun = []string{
	"needs a second host", "needs several hosts", "needs the internet", "needs a release", "needs an archive",
	"needs etcdctl", "needs Docker", "needs age and jq", "needs the runtime on the node", "needs a cluster without flannel",
	"needs new authorities", "stops kedge", "restarts kedge", "starts another kedge", "builds kedge", "compiles",
	"takes minutes", "runs until it is ended",
}

func pages(t *testing.T) []guide.Page {
	t.Helper()
	pages, err := guide.Pages(repository)
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

// TestGuideBlocks wants each block of commands in the documents to be run by
// tests/e2e/documents, or to say why not, and which test does the same with kedge.
func TestGuideBlocks(t *testing.T) {
	run := 0
	for _, page := range pages(t) {
		blocks, err := page.Blocks()
		if err != nil {
			t.Error(err)
		}
		for _, block := range blocks {
			if block.Language != "sh" {
				// Nothing but sh is run, and so nothing else may look like commands.
				if slices.Contains([]string{"", "bash", "shell", "console"}, block.Language) {
					t.Errorf("%s: the language of the block is %q: write sh for commands, and the name of the language for everything else", block, block.Language)
				}
				continue
			}
			if block.NotRun == "" {
				run++
				continue
			}
			if !slices.Contains(notRun, block.NotRun) {
				t.Errorf("%s: got reason %q, want one of %q", block, block.NotRun, notRun)
			}
			for _, place := range block.Tests {
				if !exists(t, place) {
					t.Errorf("%s: the test %s, which is named as the reason, does not exist", block, place)
				}
			}
			ours := slices.ContainsFunc(block.Commands(), func(command string) bool { return strings.HasPrefix(command, "sudo kedge ") })
			if ours && len(block.Tests) == 0 {
				t.Errorf("%s: name a test that runs these commands of kedge: <!-- not run: %s; FOLDER TEST does the same -->", block, block.NotRun)
			}
		}
	}
	if run < 30 {
		t.Errorf("only %d blocks are run", run)
	}
}

// TestGuideCommands has kedge read each of its commands in the documents, but not do
// it.
func TestGuideCommands(t *testing.T) {
	read := 0
	for _, page := range pages(t) {
		blocks, err := page.Blocks()
		if err != nil {
			t.Fatal(err)
		}
		var commands []string
		for _, block := range blocks {
			if block.Language == "sh" {
				commands = append(commands, block.Commands()...)
			}
		}
		text := strings.Join(strings.Fields(page.Text), " ")
		for _, match := range regexp.MustCompile("`((?:sudo )?kedge [^`]+)`").FindAllStringSubmatch(text, -1) {
			commands = append(commands, match[1])
		}
		for _, command := range commands {
			command, ours := strings.CutPrefix(strings.TrimPrefix(command, "sudo "), "kedge ")
			if !ours {
				continue
			}
			// Another program gets what follows.
			command, _, _ = strings.Cut(command, " | ")
			read++
			if err := parse("kedge " + command); err != nil {
				t.Errorf("%s: kedge %s: %v", page.Name, command, err)
			}
		}
	}
	if read < 60 {
		t.Errorf("only %d commands were found", read)
	}
}

// TestGuideConfiguration loads each block of YAML in the documents that begins with
// the name of the configuration file or of registries.yaml.
func TestGuideConfiguration(t *testing.T) {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	authority := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	loaded := 0
	load := map[string]func(file string) error{
		"# /etc/kedge/config.yaml": func(file string) error {
			_, err := config.Load(file)
			return err
		},
		"# /etc/kedge/registries.yaml": func(file string) error {
			_, err := registries.New(file, nil, func(message string) { t.Error(message) })
			return err
		},
	}
	for _, page := range pages(t) {
		blocks, err := page.Blocks()
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range blocks {
			first, _, _ := strings.Cut(block.Text, "\n")
			name, _, _ := strings.Cut(first, ".yaml")
			read := load[name+".yaml"]
			if block.Language != "yaml" || read == nil {
				continue
			}
			loaded++
			folder := t.TempDir()
			file := filepath.Join(folder, "settings.yaml")
			// The authority that a page names has to exist.
			text := strings.ReplaceAll(block.Text, "/etc/kedge/mirror.crt", filepath.Join(folder, "mirror.crt"))
			for name, content := range map[string]string{"settings.yaml": text, "mirror.crt": authority} {
				if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := read(file); err != nil {
				t.Errorf("%s: read the configuration: %v", block, err)
			}
		}
	}
	if loaded < 10 {
		t.Errorf("only %d blocks were found", loaded)
	}
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
	app := newApp(&workload{})
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
	var words []string
	for _, word := range regexp.MustCompile(`(?:[^\s"]|"[^"]*")+`).FindAllString(strings.ReplaceAll(command, "$ETCD", ""), -1) {
		words = append(words, strings.ReplaceAll(word, `"`, ""))
	}
	return runApp(context.Background(), app, words)
}
