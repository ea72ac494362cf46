package upstream

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// entry is something upstream, as a line of the golden file has it.
type entry struct {
	module, version, file string
	// name is "" for the whole file.
	name string
	hash string
}

// whole stands for no name in the golden file.
const whole = "-"

func (e entry) String() string {
	return strings.Join([]string{e.module, e.version, e.file, cmp.Or(e.name, whole), e.hash}, " ")
}

// what is what the entry is of, whatever the version.
func (e entry) what() string { return strings.TrimSuffix(e.module+"/"+e.file+" "+e.name, " ") }

// readGolden reads a golden file.
func readGolden(file string) ([]entry, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var entries []entry
	seen := map[string]bool{}
	for line := range strings.Lines(string(content)) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		if len(words) != 5 {
			return nil, fmt.Errorf("read %s: want module, version, file, name and hash in %q", file, line)
		}
		e := entry{words[0], words[1], words[2], strings.TrimSuffix(words[3], whole), words[4]}
		if seen[e.what()] {
			return nil, fmt.Errorf("read %s: %s is there twice", file, e.what())
		}
		seen[e.what()] = true
		entries = append(entries, e)
	}
	return entries, nil
}

// writeGolden writes a golden file.
func writeGolden(file string, entries []entry) error {
	var content strings.Builder
	content.WriteString("# What kedge follows or relies on upstream: module, version, file, name, hash.\n# Written by `make upstream UPDATE=1`.\n")
	for _, e := range entries {
		fmt.Fprintln(&content, e)
	}
	return os.WriteFile(file, []byte(content.String()), 0o644)
}

// change is one line of the table.
type change struct {
	what     string
	old, new entry
	why      string
	// here are the places of the directives.
	here []string
}

// The reasons of a change.
const (
	changed     = "changed"
	gone        = "gone"
	noGolden    = "not in golden"
	noDirective = "no directive"
)

// compare takes the directives of a tree for what they name in its modules, and
// compares that with the golden entries. It returns what is there now, in the order of
// a golden file, and what has changed.
func compare(all []directive, golden []entry, find func(directive) (module, string, error), fetch func([]module) (map[string]module, error)) (now []entry, changes []change, err error) {
	here := map[string][]string{}
	versions := map[string]module{}
	for _, d := range all {
		m, file, err := find(d)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", d.here, err)
		}
		names := d.names
		if len(names) == 0 {
			names = []string{""}
		}
		for _, name := range names {
			e := entry{module: m.path, version: m.version, file: file, name: name}
			if len(here[e.what()]) == 0 {
				now = append(now, e)
			}
			here[e.what()] = append(here[e.what()], d.here+" ("+d.verb+")")
		}
		versions[m.String()] = m
	}
	slices.SortFunc(now, func(a, b entry) int { return cmp.Compare(a.what(), b.what()) })
	var wanted []module
	for _, m := range versions {
		wanted = append(wanted, m)
	}
	found, err := fetch(wanted)
	if err != nil {
		return nil, nil, err
	}
	old := map[string]entry{}
	for _, e := range golden {
		old[e.what()] = e
	}
	there := now[:0]
	for _, e := range now {
		before, known := old[e.what()]
		delete(old, e.what())
		source, err := declaration(in(found[module{path: e.module, version: e.version}.String()].dir, e.file), e.name)
		why := ""
		switch {
		case errors.Is(err, errGone):
			why = gone
		case err != nil:
			return nil, nil, fmt.Errorf("%s: %w", here[e.what()][0], err)
		default:
			e.hash = hash(source)
			there = append(there, e)
			if !known {
				why = noGolden
			} else if before.hash != e.hash {
				why = changed
			}
		}
		if why != "" {
			changes = append(changes, change{e.what(), before, e, why, here[e.what()]})
		}
	}
	for _, e := range golden {
		if _, left := old[e.what()]; left {
			changes = append(changes, change{e.what(), e, entry{}, noDirective, nil})
		}
	}
	return there, changes, nil
}

// table shows changes.
func table(changes []change) string {
	var text bytes.Buffer
	columns := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(columns, "WHY\tUPSTREAM\tOLD\tNEW\tHERE")
	for _, c := range changes {
		fmt.Fprintf(columns, "%s\t%s\t%s\t%s\t%s\n", c.why, c.what, cmp.Or(c.old.version, whole), cmp.Or(c.new.version, whole), cmp.Or(strings.Join(c.here, ", "), whole))
	}
	_ = columns.Flush() // to memory
	return text.String()
}

// diff returns a unified diff of something that has changed or is gone.
func diff(c change, fetch func([]module) (map[string]module, error)) (string, error) {
	folder, err := os.MkdirTemp("", "upstream")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(folder)
	arguments := []string{"-u"}
	for _, e := range []entry{c.old, c.new} {
		arguments = append(arguments, "--label", c.what+" "+e.version)
	}
	for i, e := range []entry{c.old, c.new} {
		m := module{path: e.module, version: e.version}
		found, err := fetch([]module{m})
		if err != nil {
			return "", err
		}
		source, err := declaration(in(found[m.String()].dir, e.file), e.name)
		if err != nil && !errors.Is(err, errGone) {
			return "", err
		}
		file := filepath.Join(folder, []string{"old", "new"}[i])
		if err := os.WriteFile(file, source, 0o600); err != nil {
			return "", err
		}
		arguments = append(arguments, file)
	}
	out, err := exec.Command("diff", arguments...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 1 {
		err = nil // they differ
	}
	return string(out), err
}
