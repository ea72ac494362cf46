package upstream

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
)

// errGone says that what a directive names is not there.
var errGone = errors.New("gone")

// declaration returns the source of what name is in a Go file, with its comments, and
// all of any file for "". Other changes in the file do not change it. If it is not there
// the error is errGone.
func declaration(file, name string) ([]byte, error) {
	content, err := os.ReadFile(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, errGone
	case err != nil || name == "":
		return content, err
	case filepath.Ext(file) != ".go":
		return nil, fmt.Errorf("read %s in %s: only Go files have names, a directive takes others as a whole", name, file)
	}
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse upstream's source: %w", err)
	}
	var source []byte
	add := func(doc *ast.CommentGroup, node ast.Node, comment *ast.CommentGroup) {
		from, to := node.Pos(), node.End()
		if doc != nil {
			from = doc.Pos()
		}
		if comment != nil {
			to = comment.End()
		}
		source = append(append(source, content[set.Position(from).Offset:set.Position(to).Offset]...), '\n')
	}
	for _, decl := range parsed.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if nameOf(decl) == name { // there may be several init
				add(decl.Doc, decl, nil)
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					if spec.Name.Name == name {
						add(first(spec.Doc, decl), spec, spec.Comment)
					}
				case *ast.ValueSpec:
					for _, ident := range spec.Names {
						switch {
						case ident.Name != name:
						case decl.Tok == token.CONST && usesIota(decl):
							add(decl.Doc, decl, nil) // those before it count
						default:
							add(first(spec.Doc, decl), spec, spec.Comment)
						}
					}
				}
			}
		}
	}
	if source == nil {
		return nil, errGone
	}
	return source, nil
}

// first returns the comment of the only thing that is declared, which is its group's.
func first(doc *ast.CommentGroup, group *ast.GenDecl) *ast.CommentGroup {
	if doc == nil && !group.Lparen.IsValid() {
		return group.Doc
	}
	return doc
}

// nameOf returns the name of a function, or Type.Method.
func nameOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	of := f.Recv.List[0].Type
	for {
		switch t := of.(type) {
		case *ast.StarExpr:
			of = t.X
		case *ast.IndexExpr:
			of = t.X
		case *ast.IndexListExpr:
			of = t.X
		case *ast.Ident:
			return t.Name + "." + f.Name.Name
		default:
			return ""
		}
	}
}

// usesIota tells whether values in a group depend on those before them.
func usesIota(group *ast.GenDecl) bool {
	found := false
	ast.Inspect(group, func(node ast.Node) bool {
		ident, ok := node.(*ast.Ident)
		found = found || ok && ident.Name == "iota"
		return true
	})
	return found
}

// hash is short enough to be read, and long enough that no change goes unseen.
func hash(source []byte) string {
	sum := sha256.Sum256(bytes.TrimSpace(source))
	return hex.EncodeToString(sum[:8])
}

// in returns the path of a file, named with slashes, in a folder.
func in(folder, file string) string {
	return filepath.Join(folder, filepath.FromSlash(strings.TrimPrefix(file, "/")))
}
