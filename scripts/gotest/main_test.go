package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tests are those of a module: a test of each outcome.
const tests = `package fake

import "testing"

func TestPass(t *testing.T) { t.Log("quiet") }

func TestMain(m *testing.M) {
	println("noise")
	m.Run()
}

func TestSkip(t *testing.T) { t.Skip("needs a moon") }

func TestSome(t *testing.T) {
	t.Run("one", func(t *testing.T) { t.SkipNow() })
	t.Run("two", func(t *testing.T) { FAIL })
}
`

// run runs the command, which is at path, in a module with a test file.
func run(t *testing.T, path, content string, arguments ...string) (printed string, status int) {
	t.Helper()
	folder := t.TempDir()
	for name, content := range map[string]string{"go.mod": "module example.com/fake\n\ngo 1.26\n", "fake_test.go": content} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.Command(path, append(arguments, "-count=1", ".")...)
	command.Dir = folder
	command.Env = append(os.Environ(), "GOFLAGS=", "CGO_ENABLED=0")
	output, err := command.CombinedOutput()
	if err != nil && command.ProcessState == nil {
		t.Fatal(err)
	}
	return string(output), command.ProcessState.ExitCode()
}

// built builds the command, and returns its path.
func built(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gotest")
	if output, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, output)
	}
	return path
}

func TestCommand(t *testing.T) {
	path := built(t)
	passing := strings.Replace(tests, "FAIL", `t.Log("fine")`, 1)
	failing := strings.Replace(tests, "FAIL", `t.Error("broken")`, 1)
	skips := []string{
		"SKIP example.com/fake TestSkip: fake_test.go:12: needs a moon",
		"SKIP example.com/fake TestSome/one: no reason given",
	}
	for _, test := range []struct {
		name, content string
		arguments     []string
		status        int
		skips         []string
		// has and hasNot are parts of what is printed before the skips.
		has, hasNot string
	}{
		{"passing", passing, nil, 0, skips, "ok  \texample.com/fake", "noise"},
		{"passing quietly", passing, nil, 0, skips, "ok  \texample.com/fake", "quiet"},
		{"verbose", passing, []string{"-v"}, 0, skips, "noise", "broken"},
		{"verbose tests", passing, []string{"-v"}, 0, skips, "quiet", "broken"},
		{"failing", failing, nil, 1, skips, "broken", "quiet"},
		{"panicking", strings.Replace(tests, "FAIL", `panic("over")`, 1), nil, 1, skips, "panic: over", "quiet"},
		{"not building", strings.Replace(tests, "FAIL", "nonsense", 1), nil, 1, nil, "undefined: nonsense", "ok  \t"},
		{"a wrong flag", passing, []string{"-timeout=long"}, 2, nil, "long", "ok  \t"},
	} {
		t.Run(test.name, func(t *testing.T) {
			printed, status := run(t, path, test.content, test.arguments...)
			if status != test.status {
				t.Errorf("exit status %d, want %d", status, test.status)
			}
			var got []string
			for line := range strings.Lines(printed) {
				if strings.HasPrefix(line, "SKIP ") {
					got = append(got, strings.TrimSuffix(line, "\n"))
				}
			}
			if !slices.Equal(got, test.skips) || !strings.HasSuffix(printed, strings.Join(test.skips, "\n")+"\n") {
				t.Errorf("skipped %q, want %q at the end", got, test.skips)
			}
			if !strings.Contains(printed, test.has) || strings.Contains(printed, test.hasNot) {
				t.Errorf("want %q and not %q in:\n%s", test.has, test.hasNot, printed)
			}
		})
	}
}

// TestShow prints what is no event as it is, and its last line without an end too.
func TestShow(t *testing.T) {
	var out bytes.Buffer
	if skips, err := show(strings.NewReader("# a build\n{\"Action\":\"build-output\",\"Output\":\"ok\\n\"}\nthe end"), &out, false); err != nil || skips != nil {
		t.Errorf("%q, %v", skips, err)
	}
	if out.String() != "# a build\nok\nthe end" {
		t.Errorf("printed %q", out.String())
	}
}
