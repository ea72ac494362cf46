package internal

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// toured are the documents whose names of files, packages, functions and types have to
// exist. Paths in those of this folder may begin here, and all may begin at the root of
// the source tree, with or without a slash.
func toured(t *testing.T) []string {
	t.Helper()
	documents := []string{"../docs/tour.md", "README.md"}
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == "DECISIONS.md" {
			documents = append(documents, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return documents
}

var (
	codeSpan = regexp.MustCompile("`([^`\n]+)`")
	// A path is one by its first folder or its ending.
	sourcePath = regexp.MustCompile(`^/?[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*/?$`)
	// An identifier is PACKAGE.Name, PACKAGE.Type.Name, Type.name or a name with capitals.
	identifier = regexp.MustCompile(`^(?:([a-z][a-z0-9]*)\.)?([A-Z][A-Za-z0-9]*)(?:\.([A-Za-z][A-Za-z0-9]*))?$`)
	// A function that is not exported is given by its name alone.
	unexported = regexp.MustCompile(`^[a-z][a-z0-9]*[A-Z][A-Za-z0-9]*$`)
)

// TestNames looks up each name of code that the tour and the decisions have.
func TestNames(t *testing.T) {
	declared := declarations(t)
	checked := 0
	for _, document := range toured(t) {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, span := range codeSpan.FindAllStringSubmatch(string(text), -1) {
			name := span[1]
			switch kind := kindOf(name); {
			case kind == "path" && !onDisk(name):
				t.Errorf("%s names %s, which is not there", document, name)
			case kind == "identifier" && !declared[name]:
				t.Errorf("%s names %s, which nothing in the source tree declares", document, name)
			case kind != "":
				checked++
			}
		}
	}
	if checked < 150 {
		t.Errorf("only %d names were found", checked)
	}
}

// kindOf tells whether a name of a document is a path or an identifier of the source
// tree. Others, such as commands and names in the cluster, are neither.
func kindOf(name string) string {
	if sourcePath.MatchString(name) {
		first, _, _ := strings.Cut(strings.TrimPrefix(name, "/"), "/")
		_, room := rooms[first]
		switch first {
		case "internal", "cmd", "tests", "docs", "manifests", "scripts", "install.sh":
			return "path"
		}
		if room && (strings.Contains(name, "/") || name == first) || strings.HasSuffix(name, ".go") {
			return "path"
		}
	}
	if identifier.MatchString(name) || unexported.MatchString(name) {
		return "identifier"
	}
	return ""
}

func onDisk(path string) bool {
	for _, root := range []string{".", ".."} {
		if _, err := os.Stat(filepath.Join(root, path)); err == nil {
			return true
		}
	}
	return false
}

// declarations are what the source tree declares, by each name that a document may use:
// Name, package.Name, Type.Name and package.Type.Name.
func declarations(t *testing.T) map[string]bool {
	t.Helper()
	declared := map[string]bool{}
	for _, root := range []string{".", "../cmd/kedge", "../manifests", "../tests/harness"} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			add := func(names ...string) {
				name := strings.Join(names, ".")
				declared[name], declared[file.Name.Name+"."+name] = true, true
			}
			for _, declaration := range file.Decls {
				declare(declaration, add)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return declared
}

func declare(declaration ast.Decl, add func(names ...string)) {
	switch d := declaration.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			add(d.Name.Name)
		} else if receiver := typeName(d.Recv.List[0].Type); receiver != "" {
			add(d.Name.Name)
			add(receiver, d.Name.Name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.ValueSpec:
				for _, name := range s.Names {
					add(name.Name)
				}
			case *ast.TypeSpec:
				add(s.Name.Name)
				for _, field := range fields(s.Type) {
					for _, name := range field.Names {
						add(name.Name)
						add(s.Name.Name, name.Name)
					}
				}
			}
		}
	}
}

// fields are those of a struct, or the methods of an interface.
func fields(expression ast.Expr) []*ast.Field {
	switch e := expression.(type) {
	case *ast.StructType:
		return e.Fields.List
	case *ast.InterfaceType:
		return e.Methods.List
	}
	return nil
}

func typeName(expression ast.Expr) string {
	switch e := expression.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
