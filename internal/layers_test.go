package internal

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/kedge-dev/kedge/"

// rooms are the folders of internal, and the rooms that each may import from besides
// itself. A room stands above those that it imports from.
var rooms = map[string][]string{
	"base":         {},
	"cluster":      {"base"},
	"controlplane": {"base", "cluster"},
	"datastore":    {"base", "cluster"},
	"node":         {"base", "cluster"},
	"removal":      {"base", "node"},
	"inspect":      {"base", "cluster", "datastore", "node"},
	"agent":        {"base", "cluster", "inspect", "node"},
	"server":       {"agent", "base", "cluster", "controlplane", "datastore", "inspect", "node"},
	"adopt":        {"base", "cluster", "controlplane", "datastore", "node"},
	"throwaway":    {"base"},
	"cli":          {"adopt", "agent", "base", "cluster", "controlplane", "datastore", "inspect", "node", "removal", "server", "throwaway"},
	"testutil":     {},
	"upstream":     {},
}

// onlyIn lists imports that belong to some packages, and to those below these.
var onlyIn = map[string][]string{
	"github.com/urfave/cli": {"cli"},
	"k8s.io/kubernetes/":    {"controlplane/apiserver", "controlplane/controllers", "controlplane/lean", "controlplane/scheduler", "node/kubelet", "node/proxy"},
}

// TestRooms keeps imports to what a room may import. Folders that are no rooms fail.
func TestRooms(t *testing.T) {
	seen := map[string]bool{}
	for pkg, files := range packages(t) {
		room, _, _ := strings.Cut(pkg, "/")
		seen[room] = true
		for _, file := range files {
			for _, path := range imports(file) {
				if err := check(pkg, room, path); err != nil {
					t.Error(err)
				}
			}
		}
	}
	for room := range rooms {
		if !seen[room] {
			t.Errorf("internal/%s has no package: take it out of the list", room)
		}
	}
}

// check returns an error if a package of a room may not import a path.
func check(pkg, room, path string) error {
	for start, owners := range onlyIn {
		if strings.HasPrefix(path, start) && !slices.ContainsFunc(owners, func(owner string) bool { return pkg == owner || strings.HasPrefix(pkg, owner+"/") }) {
			return fmt.Errorf("internal/%s imports %s, which only %v may", pkg, path, owners)
		}
	}
	below, known := rooms[room]
	if !known {
		return fmt.Errorf("internal/%s is in no room: the rooms are the keys of rooms in layers_test.go", pkg)
	}
	imported, ours := strings.CutPrefix(path, module+"internal/")
	if !ours {
		return nil
	}
	if from, _, _ := strings.Cut(imported, "/"); from != room && !slices.Contains(below, from) {
		return fmt.Errorf("internal/%s imports %s: %s imports only from %v", pkg, imported, room, below)
	}
	return nil
}

// TestCheck makes sure that TestRooms refuses what it is for.
func TestCheck(t *testing.T) {
	for _, test := range []struct {
		pkg, path string
		allowed   bool
	}{
		{"node/kubelet", module + "internal/base/host", true},
		{"node/kubelet", "k8s.io/kubernetes/cmd/kubelet/app", true},
		{"node/dns", module + "internal/controlplane/addons", false},
		{"node/dns", module + "internal/datastore", false},
		{"node/dns", "k8s.io/kubernetes/pkg/proxy", false},
		{"controlplane/apiserver", "k8s.io/kubernetes/pkg/controlplane", true},
		{"controlplane/storage", "k8s.io/kubernetes/pkg/controlplane", false},
		{"base/config", module + "internal/cluster/pki", false},
		{"agent", module + "internal/server", false},
		{"server", "github.com/urfave/cli/v2", false},
		{"attic", "fmt", false},
	} {
		room, _, _ := strings.Cut(test.pkg, "/")
		if err := check(test.pkg, room, test.path); (err == nil) != test.allowed {
			t.Errorf("%s imports %s: %v", test.pkg, test.path, err)
		}
	}
}

// TestPackageDocs wants exactly one package doc per package.
func TestPackageDocs(t *testing.T) {
	for pkg, files := range packages(t) {
		docs := 0
		for _, file := range files {
			if file.Doc != nil {
				docs++
			}
		}
		if docs != 1 {
			t.Errorf("%s has %d package docs, want one", pkg, docs)
		}
	}
}

// packages parses all packages below internal, without their tests.
func packages(t *testing.T) map[string][]*ast.File {
	t.Helper()
	all := map[string][]*ast.File{}
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		pkg := filepath.ToSlash(filepath.Dir(path))
		all[pkg] = append(all[pkg], file)
		return nil
	})
	if err != nil || len(all) == 0 {
		t.Fatalf("parse packages: %v", err)
	}
	return all
}

func imports(file *ast.File) []string {
	var paths []string
	for _, spec := range file.Imports {
		path, _ := strconv.Unquote(spec.Path.Value)
		paths = append(paths, path)
	}
	return paths
}
