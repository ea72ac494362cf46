package machines

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
)

// shownIn is the page with the table of what was shown on which machine.
const shownIn = "docs/requirements.md"

// The lines around the rows of that table.
const (
	shownBegin = "<!-- `make machines` writes the rows -->"
	shownEnd   = "<!-- the end of the rows -->"
)

// shown is what a run has shown on a machine.
type shown struct {
	system, kernel, version string
	passed, failed          []string
}

// row is the machine's row of the table.
func (m machine) row(s shown, day time.Time) string {
	security := m.security
	if security == "" {
		security = "none"
	}
	memory := "that of the host"
	if m.memory > 0 {
		memory = fmt.Sprintf("%d MiB", m.memory)
	}
	results := strings.Join(s.passed, ", ")
	if len(s.failed) > 0 {
		results += ". Failed: " + strings.Join(s.failed, ", ")
	}
	return fmt.Sprintf("| %s | %s, Linux %s, %s | %s | %s | %s | %s | %s, %s |",
		m.name, s.system, s.kernel, m.debianArchitecture(), m.cgroup, security, memory, results, s.version, day.Format(time.DateOnly))
}

// withRow returns the page with the machine's row in place of an older one. Rows of machines that are no longer in the
// table of machines go.
func withRow(page, name, row string) (string, error) {
	before, rest, begins := strings.Cut(page, shownBegin+"\n")
	rows, after, ends := strings.Cut(rest, shownEnd)
	if !begins || !ends {
		return "", errors.New("the page has no table of machines")
	}
	known := map[string]string{name: row}
	var header []string
	for i, line := range strings.Split(strings.TrimSpace(rows), "\n") {
		words := strings.Fields(line)
		switch {
		case i < 2:
			header = append(header, line)
		case len(words) > 1 && words[1] != name:
			known[words[1]] = line
		}
	}
	lines := header
	for _, m := range machines {
		if line, found := known[m.name]; found {
			lines = append(lines, line)
		}
	}
	return before + shownBegin + "\n\n" + strings.Join(lines, "\n") + "\n\n" + shownEnd + after, nil
}

// record writes what was shown on a machine into the page.
func (l *life) record(t *testing.T, s shown) {
	t.Helper()
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(repository, shownIn)
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed, err := withRow(string(page), l.name, l.row(s, time.Now().UTC()))
	if err == nil {
		err = os.WriteFile(path, []byte(changed), 0o644)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestWithRow adds a row between others, and replaces it.
func TestWithRow(t *testing.T) {
	first, second := machines[0].name, machines[1].name
	page := "# Page\n\n" + shownBegin + "\n\n| machine |\n| --- |\n| " + second + " | old |\n| gone | x |\n\n" + shownEnd + "\n\nThe rest\n"
	got, err := withRow(page, first, "| "+first+" | new |")
	if err != nil {
		t.Fatal(err)
	}
	want := "# Page\n\n" + shownBegin + "\n\n| machine |\n| --- |\n| " + first + " | new |\n| " + second + " | old |\n\n" + shownEnd + "\n\nThe rest\n"
	if got != want {
		t.Errorf("got %s", got)
	}
	if again, err := withRow(got, second, "| "+second+" | newer |"); err != nil || again != strings.Replace(want, "old", "newer", 1) {
		t.Errorf("got %v\n%s", err, again)
	}
	if _, err := withRow("# Page\n", first, ""); err == nil {
		t.Error("a page without the table was changed")
	}
}
