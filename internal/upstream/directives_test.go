package upstream

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// directive is a comment that names something upstream.
type directive struct {
	// here is where it stands, as FILE:LINE.
	here string
	verb string
	// path is a module's path and a file in it.
	path string
	// names are empty for the whole file.
	names []string
}

const (
	follows  = "follows"
	reliesOn = "relies-on"
)

var (
	// sources are the endings of the files that may have directives.
	sources = []string{".c", ".go", ".sh", ".yaml"}
	// without are folders that are not searched.
	without = []string{".git", "bin", "build", "testdata", "internal/upstream"}

	written = regexp.MustCompile(`^\s*(?://|#)upstream:(` + follows + `|` + reliesOn + `)((?: \S+)+)$`)
	// meant are directives with some mistake, as a blank before the first word.
	meant = regexp.MustCompile(`^\s*(?://|/?\*|#)\s*upstream:`)
)

// directives returns all directives below a folder, in the order of files and lines.
func directives(root fs.FS) (found []directive, err error) {
	err = fs.WalkDir(root, ".", func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (slices.Contains(without, file) || slices.Contains(without, entry.Name())):
			return fs.SkipDir
		case entry.IsDir() || !slices.Contains(sources, path.Ext(file)):
			return nil
		}
		content, err := fs.ReadFile(root, file)
		if err != nil {
			return err
		}
		lines := bufio.NewScanner(bytes.NewReader(content))
		lines.Buffer(nil, len(content)+1)
		for n := 1; lines.Scan(); n++ {
			here := fmt.Sprintf("%s:%d", file, n)
			match := written.FindStringSubmatch(lines.Text())
			switch {
			case match != nil:
				words := strings.Fields(match[2])
				found = append(found, directive{here: here, verb: match[1], path: words[0], names: words[1:]})
			case meant.MatchString(lines.Text()):
				return fmt.Errorf("%s: a directive is `//upstream:%s MODULE/FILE NAME…` or `//upstream:%s …`, not %q",
					here, follows, reliesOn, strings.TrimSpace(lines.Text()))
			}
		}
		return lines.Err()
	})
	return found, err
}

// header is a first line of a file upstream_*.go.
var header = regexp.MustCompile(`^// Follows (\S+) (\S+), (\S+)\.$`)

// headers compares the first lines of the files upstream_*.go below a folder with the
// directives in them, and with the versions of the modules. It returns one line for
// each fault, and with update puts the versions right that it finds wrong.
func headers(root string, all []directive, find func(directive) (module, string, error), update bool) (faults []string, err error) {
	followed := map[string]map[string]string{} // file here -> path upstream -> its line in the header
	for _, d := range all {
		file, _, _ := strings.Cut(d.here, ":")
		if d.verb != follows || path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			continue
		}
		if !strings.HasPrefix(path.Base(file), "upstream_") {
			faults = append(faults, d.here+": what follows upstream stands in a file upstream_*.go")
			continue
		}
		m, name, err := find(d)
		if err != nil {
			faults = append(faults, fmt.Sprintf("%s: %v", d.here, err))
			continue
		}
		if followed[file] == nil {
			followed[file] = map[string]string{}
		}
		followed[file][d.path] = fmt.Sprintf("// Follows %s %s, %s.", m.path, m.version, name)
	}
	err = filepath.WalkDir(root, func(full string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		file, err := filepath.Rel(root, full)
		file = filepath.ToSlash(file)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (slices.Contains(without, file) || slices.Contains(without, entry.Name())):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasPrefix(entry.Name(), "upstream_") || path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go"):
			return nil
		}
		content, err := os.ReadFile(full)
		if err != nil {
			return err
		}
		lines := strings.Split(string(content), "\n")
		want := followed[file]
		if len(want) == 0 {
			faults = append(faults, file+": no directive //upstream:follows in it")
		}
		n := 0
		for ; n < len(lines) && header.MatchString(lines[n]); n++ {
			match := header.FindStringSubmatch(lines[n])
			line, ok := want[match[1]+"/"+match[3]]
			switch {
			case !ok:
				faults = append(faults, fmt.Sprintf("%s:%d: no directive follows %s/%s", file, n+1, match[1], match[3]))
			case lines[n] != line && update:
				lines[n] = line
			case lines[n] != line:
				faults = append(faults, fmt.Sprintf("%s:%d: the line %q names another version than go.mod: run `make upstream UPDATE=1` once this file follows %q", file, n+1, lines[n], line))
			}
			delete(want, match[1]+"/"+match[3])
		}
		if n < len(lines) && lines[n] != "" && n > 0 {
			faults = append(faults, fmt.Sprintf("%s:%d: an empty line must end what the file follows", file, n+1))
		}
		for _, line := range want {
			faults = append(faults, fmt.Sprintf("%s:1: the file must begin with %q", file, line))
		}
		if !update || string(content) == strings.Join(lines, "\n") {
			return nil
		}
		return os.WriteFile(full, []byte(strings.Join(lines, "\n")), 0o644)
	})
	slices.Sort(faults)
	return faults, err
}
