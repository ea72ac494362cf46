package upstream

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// source is the file m.go of the module example.com/m.
const source = `// Package m is upstream.
package m

// Limit is how many there may be.
const Limit = 3

const (
	one = iota
	two
)

var (
	// quiet is a message.
	quiet = "nothing to do"
	loud  = "all is lost" // another
)

// T is a type.
type T struct{ private int }

// Get returns it.
func (t *T) Get() int { return t.private }

// Do does it.
func Do() int {
	// Twice.
	return 2 * Limit
}
`

// tree is a file of kedge's that follows all of it.
const tree = `package here

//upstream:follows example.com/m/m.go Do T.Get
func do() {}

func other() {
	//upstream:relies-on example.com/m/m.go T two quiet Limit
	//upstream:relies-on example.com/m/list.txt
}
`

// fakes are versions of the module, in folders of their own.
func fakes(t *testing.T, sources map[string]string) func([]module) (map[string]module, error) {
	t.Helper()
	root := t.TempDir()
	for version, text := range sources {
		for name, content := range map[string]string{"m.go": text, "list.txt": "a\n"} {
			file := filepath.Join(root, version, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return func(wanted []module) (map[string]module, error) {
		found := map[string]module{}
		for _, m := range wanted {
			found[m.String()] = module{m.path, m.version, filepath.Join(root, m.version)}
		}
		return found, nil
	}
}

// at returns what finds the module at a version.
func at(version string) func(directive) (module, string, error) {
	return modules{".": {{path: "example.com/m", version: version}}}.find
}

// parse returns the directives of one file here.
func parse(t *testing.T, text string) []directive {
	t.Helper()
	all, err := directives(fstest.MapFS{"internal/here/here.go": {Data: []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestCompare wants each change of the module, and nothing else, to be found.
func TestCompare(t *testing.T) {
	for _, test := range []struct {
		name     string
		from, to string // what is replaced in the new version
		want     []string
	}{
		{name: "nothing"},
		{"another function", "// Do does", "func another() {}\n\n// Do does", nil},
		{"another variable", "all is lost", "all is well", nil},
		{"package doc", "is upstream", "is not here", nil},
		{"body", "2 * Limit", "3 * Limit", []string{"changed m.go Do internal/here/here.go:3 (follows)"}},
		{"comment in the body", "Twice", "Two times", []string{"changed m.go Do internal/here/here.go:3 (follows)"}},
		{"doc", "returns it", "returns it at once", []string{"changed m.go T.Get internal/here/here.go:3 (follows)"}},
		{"receiver", "(t *T) Get", "(t *U) Get", []string{"gone m.go T.Get internal/here/here.go:3 (follows)"}},
		{"field", "private int", "secret int", []string{"changed m.go T internal/here/here.go:7 (relies-on)"}},
		{"message", "nothing to do", "idle", []string{"changed m.go quiet internal/here/here.go:7 (relies-on)"}},
		{"constant", "Limit = 3", "Limit = 4", []string{"changed m.go Limit internal/here/here.go:7 (relies-on)"}},
		{"constant before", "one = iota", "zero = iota\n\tone", []string{"changed m.go two internal/here/here.go:7 (relies-on)"}},
		{"removed", "func Do()", "func done()", []string{"gone m.go Do internal/here/here.go:3 (follows)"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			next := strings.Replace(source, test.from, test.to, 1)
			if test.name != "nothing" && next == source {
				t.Fatal("nothing was replaced")
			}
			get := fakes(t, map[string]string{"v1": source, "v2": next})
			all := parse(t, tree)
			golden, changes, err := compare(all, nil, at("v1"), get)
			if err != nil || len(golden) != 7 || len(changes) != 7 {
				t.Fatalf("got %d entries, %d changes, %v without golden lines, want 7 of each", len(golden), len(changes), err)
			}
			_, changes, err = compare(all, golden, at("v2"), get)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, c := range changes {
				got = append(got, c.why+" "+strings.TrimPrefix(c.what, "example.com/m/")+" "+strings.Join(c.here, " "))
				if text, err := diff(c, get); err != nil || !strings.Contains(text, "\n+") && !strings.Contains(text, "\n-") {
					t.Errorf("diff: %q, %v", text, err)
				}
				row := strings.Fields(strings.Split(table(changes), "\n")[1])
				if !slices.Contains(row, "v1") || !slices.Contains(row, "v2") || !slices.Contains(row, strings.Fields(c.here[0])[0]) {
					t.Errorf("table: %q", row)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestGolden wants golden lines and directives to belong together.
func TestGolden(t *testing.T) {
	get := fakes(t, map[string]string{"v1": source})
	golden, _, err := compare(parse(t, tree), nil, at("v1"), get)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "golden")
	if err := writeGolden(file, golden); err != nil {
		t.Fatal(err)
	}
	if golden, err = readGolden(file); err != nil {
		t.Fatal(err)
	}
	if err := writeGolden(file, append(slices.Clone(golden), golden[0])); err != nil {
		t.Fatal(err)
	}
	if _, err := readGolden(file); err == nil {
		t.Error("a line that is there twice was read")
	}
	reasons := func(text string) (all []string) {
		_, changes, err := compare(parse(t, text), golden, at("v1"), get)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range changes {
			all = append(all, c.why+" "+c.what)
		}
		return all
	}
	if got := reasons(tree); got != nil {
		t.Errorf("got changes %q of the tree as it was written, want none", got)
	}
	if got := reasons(strings.Replace(tree, " T.Get", "", 1)); !slices.Equal(got, []string{"no directive example.com/m/m.go T.Get"}) {
		t.Errorf("without the directive of T.Get: got changes %q", got)
	}
	if got := reasons(strings.Replace(tree, " T.Get", " T.Get loud", 1)); !slices.Equal(got, []string{"not in golden example.com/m/m.go loud"}) {
		t.Errorf("with a directive of loud: got changes %q", got)
	}
	if got := reasons(strings.Replace(tree, "list.txt", "other.txt", 1)); !slices.Equal(got, []string{"gone example.com/m/other.txt", "no directive example.com/m/list.txt"}) {
		t.Errorf("with a directive of another file: got changes %q", got)
	}
}

// TestDirectives wants what is not quite a directive to be refused.
func TestDirectives(t *testing.T) {
	for text, refused := range map[string]bool{
		"//upstream:follows example.com/m/m.go Do":      false,
		"\t//upstream:relies-on example.com/m/list.txt": false,
		"#upstream:relies-on example.com/m/m.go Do":     false,
		"// Upstream: follows nothing":                  false,
		"// upstream:follows example.com/m/m.go Do":     true,
		"//upstream:follow example.com/m/m.go Do":       true,
		"//upstream:follows":                            true,
		"//upstream:follows  example.com/m/m.go":        true,
		" * upstream:relies-on example.com/m/m.go":      true,
	} {
		all, err := directives(fstest.MapFS{"a.go": {Data: []byte(text + "\n")}})
		if (err != nil) != refused {
			t.Errorf("directives(%q): got %v, %v, want refused %t", text, all, err, refused)
		}
	}
	all := parse(t, "//upstream:follows example.org/m/m.go Do\n")
	if _, _, err := at("v1")(all[0]); err == nil {
		t.Error("a module that no go.mod has was found")
	}
}

// TestHeaders wants files with what follows upstream to say so.
func TestHeaders(t *testing.T) {
	const good = "// Follows example.com/m v1, m.go.\n\npackage here\n\n//upstream:follows example.com/m/m.go Do\nfunc do() {}\n"
	for _, test := range []struct {
		name, file, text, fault string
	}{
		{"good", "upstream_m.go", good, ""},
		{"another name", "m.go", good, "stands in a file upstream_*.go"},
		{"another version", "upstream_m.go", strings.Replace(good, "v1", "v0", 1), "another version"},
		{"another file", "upstream_m.go", strings.Replace(good, ", m.go", ", n.go", 1), "no directive follows"},
		{"no header", "upstream_m.go", strings.Replace(good, "// Follows", "// After", 1), "must begin with"},
		{"package doc", "upstream_m.go", strings.Replace(good, "\n\n", "\n", 1), "an empty line"},
		{"no directive", "upstream_m.go", strings.Replace(good, "//upstream:", "// up", 1), "no directive"},
		{"only relied on", "m.go", "package here\n\n//upstream:relies-on example.com/m/m.go Do\n", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			file := filepath.Join(root, test.file)
			if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			all, err := directives(os.DirFS(root))
			if err != nil {
				t.Fatal(err)
			}
			faults, err := headers(root, all, at("v1"), false)
			if err != nil || (test.fault == "") != (len(faults) == 0) || !strings.Contains(strings.Join(faults, "\n"), test.fault) {
				t.Errorf("got %q, %v, want %q", faults, err, test.fault)
			}
			if test.name != "another version" {
				return
			}
			if _, err := headers(root, all, at("v1"), true); err != nil {
				t.Fatal(err)
			}
			if content, err := os.ReadFile(file); err != nil || string(content) != good {
				t.Errorf("updated to %q, %v", content, err)
			}
		})
	}
}

// TestFind wants the module with the longest path, of the nearest go.mod.
func TestFind(t *testing.T) {
	used := modules{
		".":           {{path: "example.com/m", version: "v1"}, {path: "example.com/m/sub", version: "v2"}, {path: std, version: "go1"}},
		"cmd/helpers": {{path: "example.com/m", version: "v3"}, {path: "example.com/tool", version: "v4"}},
	}
	for _, test := range []struct{ here, path, module, file string }{
		{"internal/a.go:1", "example.com/m/a.go", "example.com/m@v1", "a.go"},
		{"internal/a.go:1", "example.com/m/sub/b/a.go", "example.com/m/sub@v2", "b/a.go"},
		{"internal/a.go:1", "std/net/lookup.go", "std@go1", "net/lookup.go"},
		{"internal/a.go:1", "example.com/tool/a.go", "example.com/tool@v4", "a.go"},
		{"cmd/helpers/a.c:1", "example.com/m/a.go", "example.com/m@v3", "a.go"},
		{"cmd/helpers/a.c:1", "example.com/m/sub/a.go", "example.com/m@v3", "sub/a.go"},
	} {
		m, file, err := used.find(directive{here: test.here, path: test.path})
		if err != nil || m.String() != test.module || file != test.file {
			t.Errorf("%s at %s: %v %s, %v", test.path, test.here, m, file, err)
		}
	}
}

// TestAdd wants outsiders to be found like modules of go.mod, and a table that no longer
// fits go.mod to be refused.
func TestAdd(t *testing.T) {
	for _, test := range []struct {
		name  string
		added outsider
		fault string
	}{
		{"alone", outsider{path: "example.com/o", version: "v1.0.0"}, ""},
		{"of the same release", outsider{path: "example.com/o", version: "v2.3.5", of: "example.com/m"}, ""},
		{"of an older minor version", outsider{path: "example.com/o", version: "v2.2.4", of: "example.com/m"}, "begins with v2.3"},
		{"of a module that is gone", outsider{path: "example.com/o", version: "v2.3.4", of: "example.com/n"}, "go.mod has example.com/n"},
		{"in go.mod", outsider{path: "example.com/m", version: "v2.3.4"}, "a go.mod has example.com/m"},
		{"in another go.mod", outsider{path: "example.com/tool", version: "v1.0.0"}, "a go.mod has example.com/tool"},
	} {
		t.Run(test.name, func(t *testing.T) {
			used := modules{
				".":           {{path: "example.com/m", version: "v2.3.4"}},
				"cmd/helpers": {{path: "example.com/tool", version: "v1.0.0"}},
			}
			err := used.add([]outsider{test.added})
			if test.fault != "" {
				if err == nil || !strings.Contains(err.Error(), test.fault) {
					t.Errorf("got error %v, want one with %q", err, test.fault)
				}
				return
			}
			m, file, findErr := used.find(directive{here: "internal/a.go:1", path: test.added.path + "/b/a.go"})
			if err != nil || findErr != nil || m.String() != test.added.path+"@"+test.added.version || file != "b/a.go" {
				t.Errorf("got %s %s, %v, %v, want the outsider", m, file, err, findErr)
			}
		})
	}
}

// TestOutsiders wants each outsider to be named by a directive.
func TestOutsiders(t *testing.T) {
	all, err := directives(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range outsiders {
		if !slices.ContainsFunc(all, func(d directive) bool { return strings.HasPrefix(d.path, o.path+"/") }) {
			t.Errorf("no directive names %s: remove it from outsiders in modules_test.go", o.path)
		}
	}
}

// TestFetchFails wants a module that cannot be downloaded to be told with what to do.
func TestFetchFails(t *testing.T) {
	t.Setenv("GOPROXY", "off")
	t.Setenv("GOFLAGS", "")
	_, err := fetch("../..", []module{{path: "example.com/absent", version: "v1.0.0"}})
	if want := "run `go mod download example.com/absent@v1.0.0`"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v, want one with %q", err, want)
	}
}
