package internal

import (
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

// base are the packages everything may stand on.
var base = []string{"assets", "bootstrap", "component", "config", "datadir", "events", "folderwatch", "host", "kubeinit", "logs", "objectcache", "pki", "registration", "rootsocket", "version"}

// nodes are the packages of nodes, which know nothing of what servers alone have.
var nodes = []string{"agent", "apilb", "containerd", "csi", "dns", "host", "idle", "kubelet", "network", "proxy", "teardown", "tunnel"}

// TestImportsRunDown keeps the layers apart:
//
//	cmd → cli → server → agent → components → base
func TestImportsRunDown(t *testing.T) {
	layer := func(pkg string) int {
		switch top, _, _ := strings.Cut(pkg, "/"); {
		case top == "testutil":
			return 6
		case top == "cli":
			return 5
		case top == "server":
			return 4
		case top == "agent":
			return 3
		case pkg == "datastore": // without those below it: what they have in common
			return 1
		case slices.Contains(base, top):
			return 1
		default:
			return 2
		}
	}
	for pkg, files := range packages(t) {
		for _, file := range files {
			for _, path := range imports(file) {
				imported, ours := strings.CutPrefix(path, module+"internal/")
				// A package below another belongs to it: kine implements datastore with
				// its sister etcdapi, inprocess is a piece of controlplane.
				parent, _, _ := strings.Cut(pkg, "/")
				switch {
				case ours && slices.Contains(nodes, parent) && slices.ContainsFunc([]string{"controlplane", "datastore", "supervisor"}, func(top string) bool {
					return imported == top || strings.HasPrefix(imported, top+"/")
				}):
					t.Errorf("%s imports %s, which is for servers", pkg, imported)
				case ours && (imported == parent || strings.HasPrefix(imported, parent+"/")), ours && layer(imported) < layer(pkg), ours && layer(pkg) == 1 && layer(imported) == 1:
				case ours:
					t.Errorf("%s imports %s, which is not below it", pkg, imported)
				case strings.HasPrefix(path, "github.com/urfave/cli") && pkg != "cli":
					t.Errorf("%s imports urfave/cli; only cli may", pkg)
				case strings.HasPrefix(path, "k8s.io/kubernetes/") && !slices.Contains([]string{"controlplane", "kubelet", "proxy", "kubeinit"}, pkg):
					t.Errorf("%s imports %s; only controlplane, kubelet, proxy and kubeinit import k8s.io/kubernetes", pkg, path)
				}
			}
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
